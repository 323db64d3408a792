"""The command line: the journey's verbs. A stage is imported only when its verb runs, so --help is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit import __version__
from bertkit.console import (
    Bad,
    Device,
    Json,
    LabelColumn,
    PairColumn,
    Seed,
    Settings,
    TextColumn,
    app,
    load,
    print_json,
    readable,
)
from bertkit.errors import BertkitError


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
    kind: Annotated[str, typer.Option(help="wordpiece (BERT's), bpe (RoBERTa's) or unigram (ALBERT's).")] = "wordpiece",
    cased: Annotated[bool, typer.Option("--cased", help="Keep capitals and accents; bpe always does.")] = False,
    bad: Annotated[str, typer.Option(help="Meet unusable lines with: stop or skip.")] = "stop",
    max_line: Annotated[int | None, typer.Option(help="The longest line to accept, in bytes.")] = None,
    as_json: Json = False,
) -> None:
    """Learn a vocabulary from raw text, in bounded memory."""
    from bertkit.pipeline import learn_vocabulary

    learned = learn_vocabulary(corpus, size, out, kind=kind, cased=cased, bad=bad, max_line=max_line)
    facts = {name: value for name, value in vars(learned).items() if name != "tokenizer"}
    facts |= {"pieces": len(learned.tokenizer), "out": str(out)}
    if as_json:
        return print_json(facts)
    print(f"{facts['pieces']:,} pieces from {learned.words:,} distinct words in {learned.documents:,} documents → {out}")
    if facts["pieces"] < size:
        print(f"the corpus is too small for {size:,} pieces")
    if learned.pruned:
        print(f"{learned.pruned:,} rare chunks dropped while counting; no count is low by more than {learned.shortfall}")
    if learned.too_long:
        print(f"{learned.too_long:,} words over the longest length left out; to WordPiece they are [UNK]")
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
        return print_json(facts | {"out": str(out)})
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
    recipe: Annotated[str, typer.Option(help="bert-tiny … bert-large, fast-base, roberta-base, demo …")] = "bert-base",
    init: Annotated[str | None, typer.Option(help="Go on from this model instead of random weights.")] = None,
    budget: Annotated[str | None, typer.Option(help="Stop after a time, such as 90s, 20m or 1.5h.")] = None,
    settings: Settings = None,
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
        return print_json({"model": str(out / "model"), **last})
    print(
        f"{out / 'model'}: " + ", ".join(f"{k.replace('_', ' ')} {v:.4g}" for k, v in last.items() if k.startswith("held"))
    )


@app.command(
    epilog="Example: bertkit finetune classification --model M --train reviews.csv --text review --label stars --out run"
)
def finetune(
    what: Annotated[
        str,
        typer.Argument(
            metavar="TASK-OR-SET", help="classification … similarity, or a set such as glue/mrpc, squad/v2, swag, conll2003."
        ),
    ],
    model: Annotated[str, typer.Option("--model", "-m", help="The model to begin from.")],
    out: Annotated[Path, typer.Option(help="The run's folder; run again to resume. RUN/model is the artifact.")],
    train: Annotated[
        Path | None, typer.Option(help="The file to learn from: CSV, TSV, JSONL, Parquet, SQuAD or CoNLL.")
    ] = None,
    dev: Annotated[
        Path | None, typer.Option(help="The file to measure on; without it, a tenth of the training file.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="The folder of a named set.")] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    epochs: Annotated[float | None, typer.Option(help="How often to go through the records.")] = None,
    batch: Annotated[int | None, typer.Option(help="Records of a step.")] = None,
    lr: Annotated[float | None, typer.Option(help="The peak learning rate, for a width of 768.")] = None,
    search: Annotated[str | None, typer.Option(help='Try a grid: "paper", or such as "lr=2e-5,5e-5 batch=16,32".')] = None,
    restarts: Annotated[int, typer.Option(help="Try so many seeds; the best on dev stays.")] = 1,
    ensemble: Annotated[int, typer.Option(help="Let so many models answer together.")] = 1,
    freeze: Annotated[bool, typer.Option("--freeze", help="Train the head alone.")] = False,
    bad: Bad = None,
    settings: Settings = None,
    fork: Annotated[bool, typer.Option("--fork", help="Resume with a changed recipe.")] = False,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Fine-tune a model for a task, on a published set or on your own files."""
    from bertkit import pipeline
    from bertkit.data.readers import Columns

    given = {"epochs": epochs, "batch": batch, "lr": lr, "seed": seed or None, "freeze": -1 if freeze else None}
    changes = [*(settings or []), *(f"{name}={value}" for name, value in given.items() if value is not None)]
    data: dict[str, Any] = dict(
        train=train, dev=dev, data_dir=data_dir, columns=Columns(text=text, pair=pair, label=label), bad=bad
    )
    plan: dict[str, Any] = dict(settings=changes, search=search, restarts=restarts, ensemble=ensemble, fork=fork)
    results = pipeline.finetune(what, model, out, **data, **plan, device=device, quiet=as_json)
    if as_json:
        return print_json({"model": str(out / "model"), "metrics": results["metrics"], "intervals": results["intervals"]})
    if results["skipped"]:
        print(f"{results['skipped']:,} bad rows of the training file were left out")
    print(f"measured on {results['data']['dev']['rows']:,} records, {results['data']['dev']['file']}")
    _print_figures(results)
    print(f"{out / 'model'} is ready; {out / 'report.html'} tells more")


@app.command(epilog="Example: bertkit distill run/model classification --train reviews.csv --layers 3 --out small")
def distill(
    teacher: Annotated[str, typer.Argument(help="The model to learn from, fine-tuned or not.")],
    what: Annotated[str, typer.Argument(metavar="TASK-OR-SET-OR-STORE", help="What the teacher was made for, or a store.")],
    out: Annotated[Path, typer.Option(help="The run's folder; run again to resume. RUN/model is the artifact.")],
    layers: Annotated[int | None, typer.Option(help="Layers to keep of the teacher; without it, half of them.")] = None,
    student: Annotated[str | None, typer.Option(help="Begin from this model instead of the teacher's layers.")] = None,
    recipe: Annotated[str, typer.Option(help="On a store: what to train with.")] = "distilbert-base",
    train: Annotated[Path | None, typer.Option(help="The file to learn from.")] = None,
    dev: Annotated[Path | None, typer.Option(help="The file to measure on.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="The folder of a named set.")] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    settings: Settings = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Make a smaller, faster model that answers like a larger one."""
    from bertkit import pipeline
    from bertkit.data.readers import Columns

    columns = Columns(text=text, pair=pair, label=label)
    files: dict[str, Any] = dict(train=train, dev=dev, data_dir=data_dir, columns=columns)
    chosen: dict[str, Any] = dict(layers=layers, student=student, recipe=recipe, settings=settings or [], device=device)
    rows = pipeline.distill(teacher, what, out, **chosen, **files, quiet=as_json)
    if as_json:
        return print_json(rows)
    for row in rows:
        print(" · ".join(f"{name} {value:,.4g}" if isinstance(value, float) else f"{value}" for name, value in row.items()))
    print(f"{out / 'model'} is ready; {out / 'report.html'} tells more")


@app.command(epilog="Example: bertkit evaluate run/model test.csv --text review --label stars")
def evaluate(
    model: Annotated[str, typer.Argument(help="A fine-tuned model.")],
    data: Annotated[str, typer.Argument(help="A file of its task, or a set and its folder: glue/mrpc=DIR.")],
    split: Annotated[str, typer.Option(help="Of a named set: train, dev, test, gold.")] = "dev",
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    bad: Bad = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Measure a fine-tuned model with the official metrics."""
    from bertkit import pipeline
    from bertkit.data.readers import Columns

    columns = Columns(text=text, pair=pair, label=label)
    results = pipeline.evaluate(model, data, split=split, columns=columns, bad=bad or "stop", device=device)
    if as_json:
        return print_json({"metrics": results["metrics"], "intervals": results["intervals"]})
    _print_figures(results)


data_app = typer.Typer(help="Look at data before training.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command(epilog="Example: bertkit data check train.csv dev.csv --task classification --text review --label stars")
def check(
    files: Annotated[list[Path], typer.Argument(help="Files of one task, the training file first.")],
    task: Annotated[
        str, typer.Option(help="classification, multilabel, regression, tagging, qa, choice or similarity.")
    ] = "classification",
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Whose tokenizer counts; without it, lengths are in words.")
    ] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    max_length: Annotated[int, typer.Option(help="Pieces that a sequence may have.")] = 128,
    as_json: Json = False,
) -> None:
    """Report rows, labels, lengths, duplicates, leaks between files, and bad rows."""
    from bertkit import pipeline
    from bertkit.data.check import describe_check
    from bertkit.data.readers import Columns

    report = pipeline.check_data(
        files, task, model, columns=Columns(text=text, pair=pair, label=label), max_length=max_length
    )
    if as_json:
        return print_json(report)
    print("\n".join(describe_check(report)))


@app.command(epilog="Example: bertkit compare run-a run-b")
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders that bertkit finetune made.")], as_json: Json = False
) -> None:
    """Put fine-tuning runs side by side."""
    from rich.console import Console

    from bertkit.train.compare import compare_runs, comparison_table

    rows = compare_runs(runs)
    if as_json:
        return print_json(rows)
    Console().print(comparison_table(rows))


def _print_figures(results: dict[str, Any]) -> None:
    for name, value in results["metrics"].items():
        interval = results["intervals"].get(name)
        print(f"{name:<20} {value:.4f}" + (f"  (95% between {interval[0]:.4f} and {interval[1]:.4f})" if interval else ""))


@app.command(epilog="Example: bertkit convert uncased_L-12_H-768_A-12 bert-base")
def convert(
    source: Annotated[str, typer.Argument(help="A Google checkpoint, a model folder, or a hub name.")],
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    positions: Annotated[int, typer.Option(help="Make a Longformer of it, for texts of so many pieces.")] = 0,
    window: Annotated[int, typer.Option(help="Pieces that its tokens see to each side.")] = 256,
    as_json: Json = False,
) -> None:
    """Turn anybody's checkpoint into an artifact that bertkit and transformers read."""
    from bertkit.pipeline import convert as convert_model

    facts = convert_model(source, out, positions=positions, window=window).describe()
    if as_json:
        return print_json(facts | {"out": str(out)})
    print(f"{facts['parameters']['total']:,} parameters → {out}")


@app.command(epilog="Example: bertkit export run/model --to onnx --int8 --sample dev.csv --out fast")
def export(
    model: Annotated[str, typer.Argument(help="A model folder, a Google checkpoint, or a hub name.")],
    out: Annotated[Path, typer.Option(help="The folder to write; every verb that asks a model takes it.")],
    to: Annotated[str, typer.Option(help="onnx, which runs without torch.")] = "onnx",
    int8: Annotated[bool, typer.Option("--int8", help="Compute in 8 bits, for speed.")] = False,
    sample: Annotated[Path | None, typer.Option(help="A file of the task: what it tells must stay as good.")] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    bad: Bad = None,
    as_json: Json = False,
) -> None:
    """Write a model for fast answers on a processor, without torch."""
    from bertkit import pipeline
    from bertkit.data.readers import Columns

    columns = Columns(text=text, pair=pair, label=label)
    facts = pipeline.export(model, out, to=to, int8=int8, sample=sample, columns=columns, bad=bad or "stop")
    if as_json:
        return print_json(facts)
    for name, value in facts.items():
        print(f"{name:<20} {f'{value:.4g}' if isinstance(value, float) else readable(value)}")


@app.command(epilog="Example: bertkit info bert-base")
def info(
    model: Annotated[str, typer.Argument(help="A model folder, a Google checkpoint, or a hub name.")], as_json: Json = False
) -> None:
    """Look inside a model: sizes, parameters by part, vocabulary, provenance."""
    facts = load(model, "cpu", "fp32").describe()
    if as_json:
        return print_json(facts)
    for name, value in facts.items():
        print(f"{name:<12} {readable(value)}")


from bertkit import asking, serving  # noqa: E402, F401 (their verbs come after these)


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
