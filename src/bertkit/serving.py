"""The verb that serves models over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from bertkit import console
from bertkit.console import app, load
from bertkit.errors import InputError, import_extra


@app.command(epilog="Example: bertkit serve sentiment=run/model bert-base-uncased --port 8000")
def serve(
    models: Annotated[list[str], Argument(help="Model folders, checkpoints or hub names, each also as NAME=MODEL.")],
    host: Annotated[str, Option(help="The address to listen at; 0.0.0.0 for everybody's requests.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="The port; 0 for any that is free.")] = 8000,
    key: Annotated[str, Option(envvar="BERTKIT_KEY", help="Ask for this bearer key.", show_envvar=True)] = "",
    device: console.Device = "auto",
    precision: console.Precision = "fp32",
    max_texts: Annotated[int, Option(min=1, help="Texts of a request.")] = 128,
    max_tokens: Annotated[int, Option(min=1, help="Tokens of a request.")] = 16_384,
    max_body: Annotated[int, Option(min=1, help="Bytes of a request.")] = 1 << 20,
    queue: Annotated[int, Option(min=1, help="Texts that may wait, for each model.")] = 1024,
    wait: Annotated[float, Option(min=0, help="Milliseconds that a text waits for others to share its batch.")] = 4.0,
    timeout: Annotated[float, Option(min=0.1, help="Seconds until a request is given up.")] = 30.0,
    log_texts: Annotated[bool, Option("--log-texts", help="Log what was asked, too.")] = False,
) -> None:
    """Answer requests over HTTP until told to stop."""
    for library in ("fastapi", "uvicorn", "prometheus_client"):
        import_extra(library, "serve", "bertkit serve")
    from bertkit.serve.http import Limits, create_app, run

    named = [_named(model) for model in models]
    if len(dict(named)) < len(named):
        raise InputError(f"two models are named alike ({', '.join(name for name, _ in named)}); write NAME=MODEL")
    loaded = {name: load(place, device, precision) for name, place in named}
    limits = Limits(texts=max_texts, tokens=max_tokens, body=max_body, queue=queue, wait=wait / 1000, timeout=timeout)
    run(create_app(loaded, limits=limits, key=key, log_texts=log_texts), host, port)


def _named(model: str) -> tuple[str, str]:
    """NAME=MODEL, or a model under the last part of its own name."""
    name, _, place = model.rpartition("=")
    return (name, place) if name and not Path(model).exists() else (Path(model).name, model)
