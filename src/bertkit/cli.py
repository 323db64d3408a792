"""The command line: the journey's verbs. A stage is imported only when its verb runs, so --help is quick."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertkit import __version__
from bertkit.errors import BertkitError, InputError

if TYPE_CHECKING:
    from bertkit.serve.predictor import Model

app = typer.Typer(
    name="bertkit",
    help="The whole life of a BERT: vocabulary, model, artifacts, answers.",
    epilog="--debug, anywhere, shows the traceback of an error.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ModelName = Annotated[str, typer.Option("--model", "-m", help="A model folder, a Google checkpoint, or a hub name.")]
Texts = Annotated[list[str] | None, typer.Argument(help="The texts.", metavar="TEXT", show_default=False)]
TextFile = Annotated[Path | None, typer.Option("--file", "-f", help="Read the texts from a file, one a line; - is stdin.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Precision = Annotated[str, typer.Option(help="fp32 or bf16.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long instead of refusing them.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Seed = Annotated[int, typer.Option(help="The number all randomness comes from.")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"bertkit {__version__}")
        raise typer.Exit


@app.command(epilog="Example: bertkit demo --out demo")
def demo(
    out: Annotated[Path | None, typer.Option(help="Keep the demo's files in this folder.")] = None,
    steps: Annotated[int | None, typer.Option(help="Pre-train for so many steps instead.")] = None,
    seed: Seed = 0,
) -> None:
    """Show the whole journey on embedded data, in about two minutes."""
    from bertkit.demo import run_demo

    run_demo(out, steps=steps, seed=seed)


@app.command(epilog="Example: bertkit vocab corpus/ --size 30522 --out tokenizer")
def vocab(
    corpus: Annotated[list[Path], typer.Argument(help="Files (.txt .jsonl .parquet, also .gz .xz .zst) or folders.")],
    size: Annotated[int, typer.Option(help="How many pieces to learn.")] = 30_522,
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("tokenizer"),
    cased: Annotated[bool, typer.Option("--cased", help="Keep capitals and accents.")] = False,
    bad: Annotated[str, typer.Option(help="Meet unusable lines with: stop or skip.")] = "stop",
    max_line: Annotated[int | None, typer.Option(help="The longest line to accept, in bytes.")] = None,
    as_json: Json = False,
) -> None:
    """Learn a WordPiece vocabulary from raw text, in bounded memory."""
    from bertkit.pipeline import learn_vocabulary

    learned = learn_vocabulary(corpus, size, out, cased=cased, bad=bad, max_line=max_line)
    facts = {name: value for name, value in vars(learned).items() if name != "tokenizer"}
    facts |= {"pieces": len(learned.tokenizer), "out": str(out)}
    if as_json:
        return _print_json(facts)
    print(f"{facts['pieces']:,} pieces from {learned.words:,} distinct words in {learned.documents:,} documents → {out}")
    if facts["pieces"] < size:
        print(f"the corpus is too small for {size:,} pieces")
    if learned.pruned:
        print(f"{learned.pruned:,} rare chunks dropped while counting; no count is low by more than {learned.shortfall}")
    if learned.too_long:
        print(f"{learned.too_long:,} words over the longest length left out; they will be [UNK]")
    if learned.skipped:
        print(f"{learned.skipped:,} unusable lines skipped")


@app.command(epilog="Example: bertkit prepare corpus/ --tokenizer tokenizer --out store --workers 8")
def prepare(
    corpus: Annotated[list[Path], typer.Argument(help="Files (.txt .jsonl .parquet, also .gz .xz .zst) or folders.")],
    tokenizer: Annotated[Path, typer.Option(help="A tokenizer's or model's folder.")],
    out: Annotated[Path, typer.Option(help="The store to write.")],
    workers: Annotated[int, typer.Option(help="Processes, or actors on a cluster.")] = 1,
    engine: Annotated[str, typer.Option(help="local, or ray for many machines.")] = "local",
    min_words: Annotated[int, typer.Option(help="Leave out documents with fewer words.")] = 0,
    deduplicate: Annotated[bool, typer.Option("--deduplicate", help="Leave out documents that occurred before.")] = False,
    bad: Annotated[str, typer.Option(help="Meet unusable lines with: stop or skip.")] = "stop",
    max_line: Annotated[int | None, typer.Option(help="The longest line to accept, in bytes.")] = None,
    as_json: Json = False,
) -> None:
    """Turn a corpus into a token store; run again, it goes on where it stopped."""
    from bertkit import pipeline

    cleaning: dict[str, Any] = dict(min_words=min_words, deduplicate=deduplicate, bad=bad, max_line=max_line)
    store = pipeline.prepare(corpus, tokenizer, out, workers=workers, engine=engine, **cleaning)
    facts = {name: store.manifest[name] for name in ("documents", "sentences", "tokens", "dropped")}
    if as_json:
        return _print_json(facts | {"out": str(out)})
    print(f"{facts['documents']:,} documents, {facts['sentences']:,} sentences, {facts['tokens']:,} tokens → {out}")
    for reason, count in facts["dropped"].items():
        if count:
            print(f"{count:,} left out: {reason}")
    if sum(facts["dropped"].values()) > facts["dropped"].get("bad lines", 0):
        print(f"each of them is listed in {out / 'dropped.jsonl'}")


@app.command(epilog="Example: bertkit pretrain store --recipe fast-small --out run --budget 20m --set optimizer.lr=5e-4")
def pretrain(
    store: Annotated[Path, typer.Argument(help="A store that bertkit prepare made.")],
    out: Annotated[Path, typer.Option(help="The run's folder; run again to resume. RUN/model is the artifact.")],
    recipe: Annotated[str, typer.Option(help="bert-tiny … bert-large, fast-small, fast-base, demo.")] = "bert-base",
    init: Annotated[str | None, typer.Option(help="Go on from this model instead of random weights.")] = None,
    budget: Annotated[str | None, typer.Option(help="Stop after a time, such as 90s, 20m or 1.5h.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Any setting: --set steps=300.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that prepare batches ahead.")] = None,
    fork: Annotated[bool, typer.Option("--fork", help="Resume with a changed recipe.")] = False,
    shard: Annotated[
        bool, typer.Option("--shard", help="Under torchrun: cut the model over the processes (FSDP2).")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="The number all randomness comes from.")] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Pre-train an encoder: masked pieces and next sentences."""
    from bertkit import pipeline
    from bertkit.train.log import read_metrics

    changes = [*(settings or []), *([] if seed is None else [f"seed={seed}"])]
    where: dict[str, Any] = dict(device=device, workers=workers, fork=fork, shard=shard, quiet=as_json)
    pipeline.pretrain(store, out, recipe=recipe, init=init, settings=changes, budget=budget, **where)
    last: dict[str, Any] = next((row for row in reversed(read_metrics(out)) if "held_out_loss" in row), {})
    if as_json:
        return _print_json({"model": str(out / "model"), **last})
    print(
        f"{out / 'model'}: " + ", ".join(f"{k.replace('_', ' ')} {v:.4g}" for k, v in last.items() if k.startswith("held"))
    )


@app.command(epilog='Example: bertkit fill "Paris is the [MASK] of France." --model bert-base-uncased')
def fill(
    model: ModelName,
    texts: Texts = None,
    file: TextFile = None,
    top: Annotated[int, typer.Option(help="How many candidates for each [MASK].")] = 5,
    truncate: Truncate = False,
    device: Device = "auto",
    precision: Precision = "fp32",
    as_json: Json = False,
) -> None:
    """Fill in each [MASK] of a text."""
    given = _given(texts, file)
    answers = _load(model, device, precision).fill(given, top=top, truncate=truncate)
    if as_json:
        pairs = zip(given, answers, strict=True)
        return _print_json([{"text": t, "masks": [[c._asdict() for c in mask] for mask in masks]} for t, masks in pairs])
    for text, masks in zip(given, answers, strict=True):
        print(text)
        for number, candidates in enumerate(masks, start=1):
            for candidate in candidates:
                label = f"[{number}] " if len(masks) > 1 else ""
                print(
                    f"  {label}{candidate.piece:<16} {candidate.probability:6.1%}  {'█' * round(candidate.probability * 40)}"
                )


@app.command(epilog='Example: bertkit embed "A first text." "A second one." --model M --out vectors.npy')
def embed(
    model: ModelName,
    texts: Texts = None,
    file: TextFile = None,
    pooling: Annotated[str, typer.Option(help="mean (over the pieces) or cls.")] = "mean",
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale every vector to length 1.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the vectors to this .npy file.")] = None,
    truncate: Truncate = False,
    device: Device = "auto",
    precision: Precision = "fp32",
    as_json: Json = False,
) -> None:
    """Turn each text into a vector."""
    given = _given(texts, file)
    vectors = _load(model, device, precision).embed(given, pooling=pooling, normalize=normalize, truncate=truncate)
    if out:
        _write_numpy(out, ".npy", vectors)
    if as_json:
        return _print_json({"out": str(out), "shape": vectors.shape} if out else {"vectors": vectors.tolist()})
    for text, vector in zip(given[:10], vectors, strict=False):
        print(f"{' '.join(f'{value:+.3f}' for value in vector[:6])} …  {_short(text)}")
    print(
        f"{len(vectors)} × {vectors.shape[1]} numbers" + (f" → {out}" if out else "; --out keeps them, --json prints them")
    )


@app.command(epilog='Example: bertkit features "A text." --model M --layers -1,-2,-3,-4 --out features.npz')
def features(
    model: ModelName,
    texts: Texts = None,
    file: TextFile = None,
    layers: Annotated[str, typer.Option(help="Layers, with commas: 0 is the embeddings, -1 the last.")] = "-1",
    out: Annotated[
        Path | None, typer.Option(help="Write pieces, offsets, vectors and boundaries to this .npz file.")
    ] = None,
    truncate: Truncate = False,
    device: Device = "auto",
    precision: Precision = "fp32",
    as_json: Json = False,
) -> None:
    """Give every piece's vectors at chosen layers."""
    import numpy as np

    given, chosen = _given(texts, file), _numbers(layers)
    found = _load(model, device, precision).features(given, layers=chosen, truncate=truncate)
    if out:
        _write_numpy(
            out,
            ".npz",
            pieces=np.array([piece for one in found for piece in one.pieces]),
            offsets=np.concatenate([one.offsets for one in found]),
            vectors=np.concatenate([one.vectors for one in found], axis=1),
            boundaries=np.cumsum([0, *(len(one.pieces) for one in found)]),
        )
    if as_json:
        rows = [{"pieces": one.pieces, "offsets": one.offsets.tolist(), "vectors": one.vectors.tolist()} for one in found]
        return _print_json({"out": str(out), "texts": len(found)} if out else rows)
    for text, one in zip(given[:10], found, strict=False):
        print(f"{len(one.pieces)} pieces × {len(chosen)} layers × {one.vectors.shape[2]}  {_short(text)}")
    print(f"→ {out}" if out else "--out keeps the vectors, --json prints them")


@app.command(name="next", epilog='Example: bertkit next "He went to the shop." "He bought milk." --model M')
def next_sentence(
    model: ModelName,
    a: Annotated[str, typer.Argument(help="The first text.")],
    b: Annotated[str, typer.Argument(help="The text that may follow it.")],
    truncate: Truncate = False,
    device: Device = "auto",
    precision: Precision = "fp32",
    as_json: Json = False,
) -> None:
    """Tell whether B follows A."""
    chance = _load(model, device, precision).next(a, b, truncate=truncate)
    if as_json:
        return _print_json({"a": a, "b": b, "probability": chance})
    print(f"{'B follows A' if chance >= 0.5 else 'B does not follow A'}: {chance:.1%}")


@app.command(epilog="Example: bertkit convert uncased_L-12_H-768_A-12 bert-base")
def convert(
    source: Annotated[str, typer.Argument(help="A Google checkpoint, a model folder, or a hub name.")],
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    as_json: Json = False,
) -> None:
    """Turn anybody's checkpoint into an artifact that bertkit and transformers read."""
    from bertkit.pipeline import convert as convert_model

    facts = convert_model(source, out).describe()
    if as_json:
        return _print_json(facts | {"out": str(out)})
    print(f"{facts['parameters']['total']:,} parameters → {out}")


@app.command(epilog="Example: bertkit info bert-base")
def info(
    model: Annotated[str, typer.Argument(help="A model folder, a Google checkpoint, or a hub name.")], as_json: Json = False
) -> None:
    """Look inside a model: sizes, parameters by part, vocabulary, provenance."""
    facts = _load(model, "cpu", "fp32").describe()
    if as_json:
        return _print_json(facts)
    for name, value in facts.items():
        print(f"{name:<12} {_readable(value)}")


def main() -> None:
    """Runs the command line: an error of ours is one line and exit code 2; --debug shows its traceback."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    try:
        code = typer.main.get_command(app).main(arguments, prog_name="bertkit", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = _complain("interrupted", 130)
    except Exception as error:
        usage = getattr(error, "format_message", None)  # what the parser raises, under a name that changes
        if debug or not (usage or isinstance(error, BertkitError | OSError)):
            raise
        code = _complain(usage() if usage else str(error), 2)
    sys.exit(code or 0)


def _complain(message: str, code: int) -> int:
    print(f"bertkit: {' '.join(message.split())}", file=sys.stderr)
    return code


def _load(name: str, device: str, precision: str) -> Model:
    from bertkit.serve.predictor import load

    return load(name, device=device, precision=precision)


def _given(texts: list[str] | None, file: Path | None) -> list[str]:
    """The texts of the command line, or of a file."""
    if bool(texts) == bool(file):
        raise InputError("give texts, or --file with one text a line; not both, not neither")
    if texts:
        return texts
    try:
        content = sys.stdin.read() if str(file) == "-" else Path(str(file)).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: byte {error.start} is not UTF-8; convert the file to UTF-8") from error
    if not content.strip():
        raise InputError(f"{file}: holds no text; expected one text a line")
    return content.removesuffix("\n").split("\n")


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"layers are {text!r}; expected whole numbers with commas, such as -1,-2") from error


def _write_numpy(path: Path, ending: str, *array: Any, **arrays: Any) -> None:
    import numpy as np

    from bertkit.atomic import new_file

    if path.suffix != ending:
        raise InputError(f"{path}: expected a name that ends in {ending}")
    with new_file(path) as aside, open(aside, "wb") as stream:
        np.savez(stream, **arrays) if arrays else np.save(stream, array[0])


def _print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False))


def _readable(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_readable(part)}" for name, part in value.items() if part not in ([], None))
    if isinstance(value, list):
        return ", ".join(map(_readable, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
