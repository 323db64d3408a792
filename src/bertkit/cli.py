"""The command line. A verb imports what it needs only when it runs, so --help is fast."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

import bertkit
from bertkit import console
from bertkit.console import Told, app, readable, verb
from bertkit.errors import BertkitError, MissingExtra
from bertkit.models import DEFAULT
from bertkit.text.corpus import MAX_LINE

TASKS = ("classification", "multilabel", "regression", "tagging", "qa", "choice", "similarity")
SETS = "glue/mrpc, squad/v2, swag, conll2003"


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"bertkit {bertkit.__version__}")
        raise typer.Exit


@app.command(epilog="Example: bertkit demo --out demo")
def demo(
    out: Annotated[Path | None, Option(help="Keep the models and reports in this folder.")] = None,
    epochs: Annotated[int, Option(help="Passes over the training records.")] = 10,
    seed: console.Seed = 0,
) -> None:
    """Try the packaged model and fine-tune it, in under a minute."""
    from bertkit.demo import run_demo

    run_demo(out, epochs=epochs, seed=seed)


@verb("bertkit vocab corpus/ --size 30522 --out tokenizer")
def vocab(
    corpus: console.CorpusFiles,
    size: Annotated[int, Option(help="Size of the vocabulary, in pieces.")] = 30_522,
    out: Annotated[Path, Option(help="Folder to write.")] = Path("tokenizer"),
    kind: Annotated[str, Option(help="wordpiece (BERT's), bpe (RoBERTa's) or unigram (ALBERT's).")] = "wordpiece",
    cased: Annotated[bool, Option("--cased", help="Keep case and accents; bpe always does.")] = False,
    bad: console.BadLines = "stop",
    max_line: console.MaxLine = MAX_LINE,
) -> Told:
    """Learn a vocabulary from raw text in bounded memory."""
    learned = bertkit.learn_vocabulary(corpus, size, out, kind=kind, cased=cased, bad=bad, max_line=max_line)
    facts = {name: value for name, value in vars(learned).items() if name != "tokenizer"}
    pieces = len(learned.tokenizer)
    yield facts | {"pieces": pieces, "out": str(out)}
    yield f"{pieces:,} pieces from {learned.words:,} distinct words in {learned.documents:,} documents → {out}"
    if pieces < size:
        yield f"the corpus is too small for {size:,} pieces"
    if learned.pruned:
        yield f"{learned.pruned:,} rare chunks dropped while counting; no count is low by more than {learned.shortfall}"
    if learned.too_long:
        yield f"{learned.too_long:,} words over the longest length left out; to WordPiece they are [UNK]"
    if learned.skipped:
        yield f"{learned.skipped:,} unusable lines skipped"


@verb("bertkit prepare corpus/ --tokenizer tokenizer --out store --workers 8")
def prepare(
    corpus: console.CorpusFiles,
    tokenizer: Annotated[str, Option(help="Folder of a tokenizer or a model, or a hub name.")],
    out: Annotated[Path, Option(help="Store to write; run again to resume.")],
    workers: console.Workers = 1,
    engine: console.Engine = "local",
    min_words: Annotated[int, Option(help="Drop documents with fewer words.")] = 0,
    deduplicate: Annotated[bool, Option("--deduplicate", help="Drop documents that occurred before.")] = False,
    bad: console.BadLines = "stop",
    max_line: console.MaxLine = MAX_LINE,
) -> Told:
    """Turn a corpus into a token store, ready for pre-training."""
    cleaning: dict[str, Any] = dict(min_words=min_words, deduplicate=deduplicate, bad=bad, max_line=max_line)
    store = bertkit.prepare(corpus, tokenizer, out, workers=workers, engine=engine, **cleaning)
    facts = {name: store.manifest[name] for name in ("documents", "sentences", "tokens", "dropped")}
    yield facts | {"unknown": store.unknown, "out": str(out)}
    yield f"{facts['documents']:,} documents, {facts['sentences']:,} sentences, {facts['tokens']:,} tokens → {out}"
    if store.unknown:
        yield f"{store.unknown:.2%} of the tokens are unknown to the tokenizer"
    yield from (f"{count:,} left out: {reason}" for reason, count in facts["dropped"].items() if count)
    if sum(facts["dropped"].values()) > facts["dropped"].get("bad lines", 0):
        yield f"each of them is listed in {out / 'dropped.jsonl'}"


@verb("bertkit pretrain store --recipe fast-small --out run --budget 20m --set optimizer.lr=5e-4")
def pretrain(
    store: Annotated[Path, Argument(help="Token store that bertkit prepare made.")],
    out: console.Run,
    recipe: Annotated[str, Option(help="bert-tiny … bert-large, fast-small, fast-base, roberta-base, demo …")] = "bert-base",
    init: Annotated[str | None, Option(help="Start from this model instead of random weights.")] = None,
    budget: Annotated[str | None, Option(help="Stop after this much training time: 90s, 20m, 1.5h.")] = None,
    settings: console.Settings = None,
    workers: Annotated[int | None, Option(min=0, help="Processes that prepare batches in advance.")] = None,
    fork: console.Fork = False,
    shard: Annotated[bool, Option("--shard", help="Under torchrun: shard the model over its processes (FSDP2).")] = False,
    seed: Annotated[int | None, Option(help="Random seed.")] = None,
    device: console.Device = "auto",
    as_json: console.Json = False,
) -> Told:
    """Pre-train a model on a token store."""
    from bertkit.train.log import read_metrics

    changes = [*(settings or []), *([] if seed is None else [f"seed={seed}"])]
    where: dict[str, Any] = dict(device=device, workers=workers, fork=fork, shard=shard, quiet=as_json)
    made = bertkit.pretrain(store, out, recipe=recipe, init=init, settings=changes, budget=budget, **where)
    last: dict[str, Any] = next((row for row in reversed(read_metrics(out)) if "held_out_loss" in row), {})
    yield {"model": str(made), **last}
    held = {name.replace("_", " "): value for name, value in last.items() if name.startswith("held")}
    yield f"{made}: " + (", ".join(f"{name} {value:.4g}" for name, value in held.items()) or "nothing was held out")


@verb("bertkit finetune classification --train reviews.csv --text review --label stars --out run")
def finetune(
    what: Annotated[str, Argument(metavar="TASK-OR-SET", help=f"A task ({', '.join(TASKS)}) or a dataset ({SETS} …).")],
    out: console.Run,
    data: console.TaskFiles,
    model: Annotated[str, Option("--model", "-m", help="Model to start from.")] = DEFAULT,
    epochs: Annotated[float | None, Option(help="Passes over the training records.")] = None,
    batch: Annotated[int | None, Option(help="Records per step.")] = None,
    lr: Annotated[float | None, Option(help="Peak learning rate at width 768; scaled for other widths.")] = None,
    search: Annotated[str | None, Option(help='Search a grid: "paper", or e.g. "lr=2e-5,5e-5 batch=16,32".')] = None,
    restarts: Annotated[int, Option(min=1, help="Train with this many seeds; keep the best on dev.")] = 1,
    ensemble: Annotated[int, Option(min=1, help="Also score an ensemble of this many models.")] = 1,
    freeze: Annotated[bool, Option("--freeze", help="Freeze the encoder and train only the head.")] = False,
    bad: console.Bad = None,
    settings: console.Settings = None,
    fork: console.Fork = False,
    seed: console.Seed = 0,
    device: console.Device = "auto",
    as_json: console.Json = False,
) -> Told:
    """Fine-tune a model for a task, on a dataset or your own files."""
    given = {"epochs": epochs, "batch": batch, "lr": lr, "seed": seed or None, "freeze": -1 if freeze else None}
    changes = [*(settings or []), *(f"{name}={value}" for name, value in given.items() if value is not None)]
    plan: dict[str, Any] = dict(settings=changes, search=search, restarts=restarts, ensemble=ensemble, fork=fork)
    results = bertkit.finetune(what, model, out, **data, bad=bad, **plan, device=device, quiet=as_json)
    yield {"model": str(out / "model"), **{name: results.get(name) for name in ("metrics", "intervals", "ensemble")}}
    yield from (f"{d['skipped']:,} bad rows of {d['file']} were left out" for d in results["data"].values() if d["skipped"])
    yield f"measured on {results['data']['dev']['rows']:,} records, {results['data']['dev']['file']}"
    yield from _figures(results)
    if together := results.get("ensemble"):
        yield from _figures(results | {"metrics": {f"together: {n}": v for n, v in together["metrics"].items()}})
    yield f"{out / 'model'} is ready; {out / 'report.html'} tells more"


@verb("bertkit distill run/model classification --train reviews.csv --layers 3 --out small")
def distill(
    teacher: Annotated[str, Argument(help="Model to learn from, fine-tuned or not.")],
    what: Annotated[str, Argument(metavar="TASK-OR-SET-OR-STORE", help="The teacher's task or dataset, or a token store.")],
    out: console.Run,
    data: console.TaskFiles,
    layers: Annotated[int | None, Option(min=1, help="Layers of the teacher to keep; default: half of them.")] = None,
    student: Annotated[str | None, Option(help="Start from this model instead of the teacher's layers.")] = None,
    recipe: Annotated[str, Option(help="Recipe for training on a store.")] = "distilbert-base",
    settings: console.Settings = None,
    device: console.Device = "auto",
    as_json: console.Json = False,
) -> Told:
    """Distill a model into a smaller, faster one."""
    chosen: dict[str, Any] = dict(layers=layers, student=student, recipe=recipe, settings=settings or [], device=device)
    rows = bertkit.distill(teacher, what, out, **chosen, **data, quiet=as_json)
    yield rows
    for row in rows:
        yield " · ".join(f"{name} {value:,.4g}" if isinstance(value, float) else f"{value}" for name, value in row.items())
    yield f"{out / 'model'} is ready; {out / 'report.html'} tells more"


@verb("bertkit evaluate run/model test.csv --text review --label stars")
def evaluate(
    model: Annotated[str, Argument(help="Fine-tuned model.")],
    data: Annotated[str, Argument(help="File of its task, or a dataset and its folder: glue/mrpc=DIR.")],
    columns: console.ColumnNames,
    split: Annotated[str, Option(help="Split of a dataset: train, dev, test or gold.")] = "dev",
    bad: console.Bad = None,
    device: console.Device = "auto",
) -> Told:
    """Evaluate a fine-tuned model with the official metrics."""
    results = bertkit.evaluate(model, data, split=split, columns=columns, bad=bad or "stop", device=device)
    yield {name: results[name] for name in ("metrics", "intervals", "rows", "skipped")}
    yield f"measured on {results['rows']:,} records; {results['skipped']:,} bad rows were left out"
    yield from _figures(results)


def _figures(results: dict[str, Any]) -> Told:
    for name, value in results["metrics"].items():
        interval = results["intervals"].get(name)
        yield f"{name:<20} {value:.4f}" + (f"  (95% between {interval[0]:.4f} and {interval[1]:.4f})" if interval else "")


data_app = typer.Typer(help="Check data before training.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@verb("bertkit data check train.csv dev.csv --task classification --text review --label stars", group=data_app)
def check(
    files: Annotated[list[Path], Argument(help="Files of one task, training file first.")],
    columns: console.ColumnNames,
    task: Annotated[str, Option(help=f"{', '.join(TASKS[:-1])} or {TASKS[-1]}.")] = "classification",
    model: Annotated[str | None, Option("--model", "-m", help="Count pieces with its tokenizer; default: words.")] = None,
    max_length: Annotated[int, Option(help="Longest sequence; longer rows are reported.")] = 128,
) -> Told:
    """Report rows, labels, lengths, duplicates, leaks and bad rows."""
    from bertkit import pipeline
    from bertkit.data.check import describe_check

    report = pipeline.check_data(files, task, model, columns=columns, max_length=max_length)
    yield report
    yield from describe_check(report)


@verb("bertkit compare run-a run-b")
def compare(runs: Annotated[list[Path], Argument(help="Folders that bertkit finetune wrote.")]) -> Told:
    """Compare fine-tuning runs side by side."""
    from rich.console import Console

    from bertkit.train.compare import compare_runs, comparison_table

    rows = compare_runs(runs)
    yield rows
    Console().print(comparison_table(rows))


@verb("bertkit convert uncased_L-12_H-768_A-12 bert-base")
def convert(
    source: Annotated[str, Argument(help="Google checkpoint, model folder or hub name.")],
    out: Annotated[Path, Argument(help="Folder to write.")],
    positions: Annotated[int, Option(help="Make it a Longformer with this many positions.")] = 0,
    window: Annotated[int, Option(help="Its attention window: pieces to each side of a token.")] = 256,
    half: Annotated[bool, Option("--half", help="Save the weights in fp16, at half the size.")] = False,
) -> Told:
    """Convert a checkpoint into one that bertkit and transformers read."""
    facts = bertkit.convert(source, out, positions=positions, window=window, half=half).describe()
    yield facts | {"out": str(out)}
    yield f"{facts['parameters']['total']:,} parameters → {out}"


@verb("bertkit export run/model --to onnx --int8 --sample dev.csv --out fast")
def export(
    model: console.ModelName,
    out: Annotated[Path, Option(help="Folder to write; fill, classify, serve … accept it as a model.")],
    columns: console.ColumnNames,
    to: Annotated[str, Option(help="Format: onnx.")] = "onnx",
    int8: Annotated[bool, Option("--int8", help="Quantize to int8, for speed.")] = False,
    sample: Annotated[Path | None, Option(help="Records on which the export must score as well.")] = None,
    bad: console.Bad = None,
) -> Told:
    """Export a model to ONNX, for fast CPU inference without torch."""
    facts = bertkit.export(model, out, to=to, int8=int8, sample=sample, columns=columns, bad=bad or "stop")
    yield facts
    for name, value in facts.items():
        yield f"{name:<20} {f'{value:.4g}' if isinstance(value, float) else readable(value)}"


@verb("bertkit info bert-base")
def info(model: Annotated[str, Argument(help="Model folder, Google checkpoint, hub name, or token store.")]) -> Told:
    """Describe a model, or a token store after verifying its files."""
    from bertkit.data.store import Store

    stored = Path(model, "manifest.json").is_file() and not Path(model, "config.json").exists()
    facts = (Store(model) if stored else bertkit.load(model, device="cpu")).describe()
    yield facts
    for name, value in facts.items():
        yield f"{name:<12} {readable(value)}"


from bertkit import asking  # noqa: E402, F401 (lists its verbs after these)


def main() -> None:
    """Runs the command line. An expected error prints one line and exits with 2; --debug shows its traceback."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        code = typer.main.get_command(app).main(arguments, prog_name="bertkit", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            error = MissingExtra("this verb needs torch: pip install torch")
        usage = getattr(error, "format_message", None)  # the parser's errors, whose class has changed names
        if debug or not (usage or isinstance(error, BertkitError | OSError)):
            raise
        named = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        code = _complain(usage() if usage else named, 2)
    sys.exit(_complain("interrupted", 130) if code == 130 else code or 0)


def _complain(message: str, code: int) -> int:
    if message:  # empty where the parser has printed the help
        print(f"bertkit: {' '.join(message.split())}", file=sys.stderr)
    return code
