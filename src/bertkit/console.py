"""How a verb is written: what makes a command of it, the options that mean the same everywhere, and how things are printed.

A verb is a generator: it yields what --json prints, and then the lines for people. A parameter whose type is marked with a
function is made by it, and that function's parameters are the options.
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

Told = Iterator[Any]  # by a verb: what --json prints, then lines
Bad = Annotated[str | None, Option(help="Meet unusable rows with: stop or skip.")]
BadLines = Annotated[str, Option(help="Meet unusable lines with: stop or skip.")]
CorpusFiles = Annotated[list[Path], Argument(help="Files (.txt .jsonl .parquet, also .gz .xz .zst) or folders.")]
Device = Annotated[str, Option(help="auto, cpu, cuda or cuda:N.")]
Engine = Annotated[str, Option(help="local, or ray for many machines.")]
Fork = Annotated[bool, Option("--fork", help="Resume with a changed recipe.")]
Json = Annotated[bool, Option("--json", help="Print JSON for machines.")]
LabelColumn = Annotated[str | None, Option("--label", help="The column of the label, number or answers.")]
MaxLine = Annotated[int, Option(help="The longest line to accept, in bytes.")]
ModelOption = Annotated[str, Option("--model", "-m", help="A model folder, a Google checkpoint, or a hub name.")]
ModelName = Annotated[str, Argument(help="A model folder, a Google checkpoint, or a hub name.")]
PairColumn = Annotated[str | None, Option("--pair", help="The column of the second text, context or options.")]
Precision = Annotated[str, Option(help="fp32 or bf16.")]
Run = Annotated[Path, Option(help="The run's folder; run again to resume. RUN/model is the artifact.")]
Seed = Annotated[int, Option(help="The number all randomness comes from.")]
Settings = Annotated[list[str] | None, Option("--set", help="Any setting: --set steps=300.")]
TextColumn = Annotated[str | None, Option("--text", help="The column of the text, question or prompt.")]
Truncate = Annotated[bool, Option("--truncate", help="Cut texts that are too long instead of refusing them.")]
Workers = Annotated[int, Option(help="Processes, or actors on a cluster.")]


def _maker(parameter: inspect.Parameter) -> Callable[..., Any] | None:
    """The function that a parameter's type is marked with."""
    mark = getattr(parameter.annotation, "__metadata__", (None,))[0]
    return mark if inspect.isfunction(mark) else None


def _options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What a function's parameters are, or are made of."""
    found = dict[str, inspect.Parameter]()
    for name, parameter in inspect.signature(function).parameters.items():
        maker = _maker(parameter)
        found |= _options(maker) if maker else {name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)}
    return found


def _call(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Calls a function with the options that were given."""
    makers = {name: _maker(parameter) for name, parameter in inspect.signature(function).parameters.items()}
    return function(**{name: _call(maker, given) if maker else given[name] for name, maker in makers.items()})


def verb(example: str, *, name: str | None = None, group: typer.Typer = app) -> Callable[[Any], Any]:
    """Enters a generator as a command with --json."""

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
    """The model that is asked."""
    return bertkit.load(model, device=device, precision=precision)


def read_texts(
    texts: Annotated[list[str] | None, Argument(help="The texts.", metavar="TEXT", show_default=False)] = None,
    file: Annotated[Path | None, Option("--file", "-f", help="Read the texts from a file, one a line; - is stdin.")] = None,
) -> list[str]:
    """Those of the command line, or of a file."""
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
    """Which column of a file holds what."""
    return dict(text=text, pair=pair, label=label)


Loaded = Annotated["bertkit.Model", load]
Texts = Annotated[list[str], read_texts]
ColumnNames = Annotated[dict[str, str | None], name_columns]


def name_files(
    columns: ColumnNames,
    train: Annotated[Path | None, Option(help="The file to learn from: CSV, TSV, JSONL, Parquet, SQuAD or CoNLL.")] = None,
    dev: Annotated[Path | None, Option(help="The file to measure on; without it, a tenth of the training file.")] = None,
    data_dir: Annotated[Path | None, Option(help="The folder of a named set.")] = None,
) -> dict[str, Any]:
    """What a task is learned from."""
    return dict(train=train, dev=dev, data_dir=data_dir, columns=columns)


TaskFiles = Annotated[dict[str, Any], name_files]


def readable(value: Any) -> str:
    """Numbers with commas, lists and tables without brackets."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {readable(part)}" for name, part in value.items() if part not in ([], None))
    if isinstance(value, list):
        return ", ".join(map(readable, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
