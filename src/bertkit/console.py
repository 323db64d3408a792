"""What the commands share: the app they belong to, the options that mean the same everywhere, and how things are printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from bertkit.serve.predictor import Model

app = typer.Typer(
    name="bertkit",
    help="The whole life of a BERT: vocabulary, pre-training, fine-tuning, answers.",
    epilog="--debug, anywhere, shows the traceback of an error.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Settings = Annotated[list[str] | None, typer.Option("--set", help="Any setting: --set steps=300.")]
Bad = Annotated[str | None, typer.Option(help="Meet unusable rows with: stop or skip.")]
TextColumn = Annotated[str | None, typer.Option("--text", help="The column of the text, question or prompt.")]
PairColumn = Annotated[str | None, typer.Option("--pair", help="The column of the second text, context or options.")]
LabelColumn = Annotated[str | None, typer.Option("--label", help="The column of the label, number or answers.")]
ModelName = Annotated[str, typer.Option("--model", "-m", help="A model folder, a Google checkpoint, or a hub name.")]
Texts = Annotated[list[str] | None, typer.Argument(help="The texts.", metavar="TEXT", show_default=False)]
TextFile = Annotated[Path | None, typer.Option("--file", "-f", help="Read the texts from a file, one a line; - is stdin.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Precision = Annotated[str, typer.Option(help="fp32 or bf16.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long instead of refusing them.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Seed = Annotated[int, typer.Option(help="The number all randomness comes from.")]


def load(name: str, device: str, precision: str) -> Model:
    from bertkit.serve.predictor import load

    return load(name, device=device, precision=precision)


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False))


def readable(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {readable(part)}" for name, part in value.items() if part not in ([], None))
    if isinstance(value, list):
        return ", ".join(map(readable, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
