"""How commands are written: the `verb` decorator, the options that verbs share, and how answers are printed.

A verb is a generator: it yields first what --json prints, then the lines for people. If a parameter's type is annotated with
a function, that function makes the value, and its own parameters become the options.
"""

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

import bertkit
from bertkit.errors import InputError
from bertkit.models import DEFAULT

app = typer.Typer(
    name="bertkit",
    help="The whole life of a BERT: vocabulary, pre-training, fine-tuning, answers.",
    epilog="--debug, anywhere, shows the traceback of an error.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Told = Iterator[Any]  # what a verb yields: the value for --json, then lines
Bad = Annotated[str | None, Option(help="What to do with bad rows: stop or skip.")]
BadLines = Annotated[str, Option(help="What to do with bad lines: stop or skip.")]
CorpusFiles = Annotated[list[Path], Argument(help="Files (.txt .jsonl .parquet, also .gz .xz .zst) or folders.")]
Device = Annotated[str, Option(help="auto, cpu, cuda or cuda:N.")]
Engine = Annotated[str, Option(help="Where workers run: local, or ray for a cluster.")]
Fork = Annotated[bool, Option("--fork", help="Continue a run although its recipe has changed.")]
Json = Annotated[bool, Option("--json", help="Print JSON for machines.")]
LabelColumn = Annotated[str | None, Option("--label", help="Column of the label, number or answers.")]
MaxLine = Annotated[int, Option(help="Longest line to accept, in bytes.")]
ModelOption = Annotated[str, Option("--model", "-m", help="Model folder, Google checkpoint or hub name.")]
ModelName = Annotated[str, Argument(help="Model folder, Google checkpoint or hub name.")]
PairColumn = Annotated[str | None, Option("--pair", help="Column of the second text, context or options.")]
Precision = Annotated[str, Option(help="fp32 or bf16.")]
Run = Annotated[Path, Option(help="Folder to write, with the model in OUT/model; run again to resume.")]
Seed = Annotated[int, Option(help="Random seed.")]
Settings = Annotated[list[str] | None, Option("--set", help="Change any setting: --set steps=300; repeatable.")]
TextColumn = Annotated[str | None, Option("--text", help="Column of the text, question or prompt.")]
Truncate = Annotated[bool, Option("--truncate", help="Truncate texts that are too long instead of refusing them.")]
Workers = Annotated[int, Option(help="Worker processes, or Ray actors.")]


def _maker(parameter: inspect.Parameter) -> Callable[..., Any] | None:
    """The function that a parameter's type is annotated with, if any."""
    mark = getattr(parameter.annotation, "__metadata__", (None,))[0]
    return mark if inspect.isfunction(mark) else None


def _options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """A function's parameters, those with a maker replaced by the maker's own."""
    found = dict[str, inspect.Parameter]()
    for name, parameter in inspect.signature(function).parameters.items():
        maker = _maker(parameter)
        found |= _options(maker) if maker else {name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)}
    return found


def _call(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Calls a function with the given options, making the parameters that have a maker."""
    makers = {name: _maker(parameter) for name, parameter in inspect.signature(function).parameters.items()}
    return function(**{name: _call(maker, given) if maker else given[name] for name, maker in makers.items()})


def verb(example: str, *, name: str | None = None, group: typer.Typer = app) -> Callable[[Any], Any]:
    """Registers a generator as a command with a --json option."""

    def enter(tell: Callable[..., Told]) -> Callable[..., Told]:
        options = _options(tell)
        options["as_json"] = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)

        def run(**given: Any) -> None:
            told = _call(tell, given)
            facts = next(told)
            for line in [_as_json(facts)] if given["as_json"] else told:
                print(line)

        run.__signature__ = inspect.Signature(list(options.values()))  # type: ignore[attr-defined]
        group.command(name or tell.__name__, help=tell.__doc__, epilog=f"Example: {example}")(run)
        return tell

    return enter


def _as_json(facts: Any) -> str:
    from bertkit.serve.predictor import plain

    return json.dumps(plain(facts), ensure_ascii=False)


def load(model: ModelOption = DEFAULT, device: Device = "auto", precision: Precision = "fp32") -> Any:
    """Loads the model."""
    return bertkit.load(model, device=device, precision=precision)


def read_texts(
    texts: Annotated[list[str] | None, Argument(help="Texts to read.", metavar="TEXT", show_default=False)] = None,
    file: Annotated[Path | None, Option("--file", "-f", help="Read texts from a file, one per line; - is stdin.")] = None,
) -> list[str]:
    """Returns the texts of the command line or of the file."""
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
    return content.removeprefix("\ufeff").removesuffix("\n").split("\n")


def name_columns(text: TextColumn = None, pair: PairColumn = None, label: LabelColumn = None) -> dict[str, str | None]:
    """Returns the columns' names by what they hold."""
    return dict(text=text, pair=pair, label=label)


Loaded = Annotated["bertkit.Model", load]
Texts = Annotated[list[str], read_texts]
ColumnNames = Annotated[dict[str, str | None], name_columns]


def name_files(
    columns: ColumnNames,
    train: Annotated[Path | None, Option(help="Training file: CSV, TSV, JSONL, Parquet, SQuAD or CoNLL.")] = None,
    dev: Annotated[Path | None, Option(help="File to evaluate on; default: a tenth of the training file.")] = None,
    data_dir: Annotated[Path | None, Option(help="Folder with a dataset's files.")] = None,
) -> dict[str, Any]:
    """Returns the options that name a task's data."""
    return dict(train=train, dev=dev, data_dir=data_dir, columns=columns)


TaskFiles = Annotated[dict[str, Any], name_files]


def readable(value: Any) -> str:
    """Formats a value: integers with thousands separators, lists and dicts without brackets."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {readable(part)}" for name, part in value.items() if part not in ([], None))
    if isinstance(value, list):
        return ", ".join(map(readable, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
