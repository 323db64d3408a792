"""Reads records from files: each format into rows of named cells, each row into a record.

.csv           a header line, then rows, separated by commas, semicolons or tabs; cells may be quoted
.tsv, .txt     a header line, then one row per line; quotes are ordinary characters, as in GLUE's files
.jsonl         one object per line; .parquet and a Hugging Face `datasets` folder likewise
.json, qa      SQuAD's layout
else, tagging  CoNLL's columns: word first, label last, a blank line between sentences

An unusable row raises an error with its file and line or, with bad="skip", is left out and counted.
"""

import csv
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from bertkit.data.records import AnyRecord, Choice, Question, Record, Words
from bertkit.errors import DataError, check_choice, did_you_mean, import_extra, short
from bertkit.text.corpus import flaw

TASKS = ("classification", "multilabel", "regression", "similarity", "tagging", "qa", "choice")
NEED_PAIR = ("similarity", "qa", "choice")
USUAL = {  # column names to look for, in this order, if the user gives none
    "text": "text sentence1 question1 premise anchor question prompt sent1 ctx words tokens sentence review content",
    "pair": "pair sentence2 question2 hypothesis positive context passage options endings choices ending0 sentence",
    "negative": "negative",
    "label": "label labels gold_label answers answer tags ner_tags class category score target",
    "id": "id index idx guid",
}
MAX_CELL = 2**28  # characters; the csv module's default limit would reject a long document

Row = dict[Any, Any]  # by column names; None is never a key, so row.get(None) is None
Rows = Iterator[tuple[int, Row]]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The names of columns. For None the usual names are tried; a text named without a pair stands alone. For qa, `text` is
    the question, `pair` the context, `label` the answers; for choice, the prompt and the options."""

    text: str | None = None
    pair: str | None = None
    negative: str | None = None
    label: str | None = None
    id: str | None = None
    header: tuple[str, ...] = ()  # for a file without a header line; rows may lack the last columns


Where = Path | str  # a file or folder, as users give it
Given = Where | Sequence[Row]  # a file, or in Python its rows
Named = Columns | Mapping[str, str | None] | None  # the names of columns, as users give them


class BadRow(Exception):
    """An unusable row; the table adds file and line to the message."""


def read_records(
    data: Given, task: str, columns: Named = None, *, classes: Collection[str] = (), labelled: bool = True, bad: str = "stop"
) -> "Table":
    """Reads the records of a file or of rows. A label must be one of `classes`, if given, and be there if `labelled`."""
    check_choice("task", task, TASKS)
    check_choice("bad", bad, ("stop", "skip"))
    named = columns if isinstance(columns, Columns) else Columns(**(columns or {}))  # type: ignore[arg-type]
    path = Path(data) if isinstance(data, Path | str) else Path("rows")
    table, known = Table(path, task, named, classes, labelled, bad), dict[Any, None]()
    for line, row in read_rows(table) if isinstance(data, Path | str) else _objects(table, enumerate(data, 1)):
        if not known or not row.keys() <= known.keys():  # the first row, or a JSON row with more keys
            found = find_columns(replace(table, columns=named), list(known | dict.fromkeys(row)))
            if table.columns not in (named, replace(found, id=table.columns.id)):
                more = _names(name for name in row if name not in known)
                raise DataError(f"the first row has no {more}; expected it in every row or in none", path, line)
            table.columns, known = found, known | dict.fromkeys(row)
        try:
            table.records.append(table.record(row, f"{path}:{line}"))
        except BadRow as wrong:
            name = row.get(table.columns.id)  # SQuAD's files are a single line
            table.complain(f"{wrong}{f' (id {_show(name)})' if name else ''}", line)
    if not table.records:
        left_out = f" {table.skipped:,} were skipped. {table.complaints[0]}" if table.skipped else ""
        raise DataError(f"no usable rows; expected one at least.{left_out}", path)
    return table


@dataclass
class Table:
    """The records of a file, the number of rows skipped, and messages about the first few of them."""

    path: Path
    task: str
    columns: Columns = field(default_factory=Columns)
    classes: Collection[str] = ()
    labelled: bool = True
    bad: str = "stop"
    records: list[Any] = field(default_factory=list)
    skipped: int = 0
    complaints: list[str] = field(default_factory=list)
    last: int = 0  # last line of the row read most recently

    def complain(self, message: str, line: int) -> None:
        if self.bad == "stop":
            raise DataError(f"{message} (--bad skip leaves such rows out)", self.path, line)
        self.skipped += 1
        if len(self.complaints) < 10:
            self.complaints.append(str(DataError(message, self.path, line)))

    def record(self, row: Row, place: str) -> AnyRecord:
        """Returns the task's record for a row."""
        make = {"tagging": self._words, "qa": self._question, "choice": self._choice}.get(self.task, self._sentences)
        name = row.get(self.columns.id)
        return replace(make(row), id="" if name in (None, "") else _text(str(name), "id"), place=place)

    def _sentences(self, row: Row) -> AnyRecord:
        value = self._label(row, empty=self.task == "multilabel")
        label = None if value is None else self._meaning(value)
        return Record(self._text(row), self._text(row, "pair"), label, self._text(row, "negative"))

    def _words(self, row: Row) -> AnyRecord:
        words = tuple(_text(word, "words") for word in _list(row.get(self.columns.text), "words"))
        value = self._label(row)
        labels = None if value is None else tuple(self._class(label) for label in _list(value, "labels"))
        if not words or (labels is not None and len(labels) != len(words)):
            raise BadRow(f"{len(words)} words and {len(labels or ())} labels; expected one label to each word")
        document = row.get("document")
        return Words(words, labels, document if isinstance(document, int) else len(self.records))  # by default its own

    def _question(self, row: Row) -> AnyRecord:
        context, value = _text(row.get(self.columns.pair), "context"), self._label(row, empty=True)
        impossible = str(row.get("is_impossible")).lower() in ("true", "1")
        try:
            answers = () if impossible or value is None else tuple(_answers(value, row.get("answer_start"), context))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise BadRow(f"answers that cannot be read ({error!r}); expected a list of text and answer_start") from error
        impossible = impossible or (value is not None and not answers)
        return Question(self._text(row), context, answers, impossible, str(row.get("title") or ""))

    def _choice(self, row: Row) -> AnyRecord:
        options = row.get(self.columns.pair)
        options = _endings(row) if isinstance(options, str) else _list(options, "options")
        value = self._label(row)
        if not options:
            raise BadRow(f'no options in "{self.columns.pair}"; expected a list, or columns ending0, ending1 …')
        if value is not None and str(value) not in map(str, range(len(options))):
            raise BadRow(f'label "{_show(value)}"; expected the number of an option, 0 to {len(options) - 1}')
        texts = tuple(_text(option, "options") for option in options)
        return Choice(self._text(row), texts, None if value is None else int(value))

    def _text(self, row: Row, flag: str = "text") -> Any:
        """Returns the text in a column; None if there is no such column."""
        name = getattr(self.columns, flag)
        return _text(row.get(name), name) if name else None

    def _label(self, row: Row, *, empty: bool = False) -> Any:
        """Returns the label's cell, or None if it is missing and may be; with `empty`, an empty cell is a label too."""
        value = row.get(self.columns.label)
        if value is not None and (empty or str(value).strip()):
            return value
        if self.labelled and self.columns.label:
            raise BadRow(f'no label in "{self.columns.label}"; fill it in')
        return None

    def _meaning(self, value: Any) -> str | float | tuple[str, ...]:
        """Reads a label: a class; a list, or classes separated by |; a number; for similarity a number, else a class."""
        if self.task == "multilabel":
            with suppress(ValueError, RecursionError):  # in CSV, lists are JSON, as predict writes them
                value = json.loads(value) if isinstance(value, str) and value.startswith("[") else value
            parts = value.split("|") if isinstance(value, str) else _list(value, "label")
            return tuple(dict.fromkeys(self._class(part) for part in parts if str(part).strip()))
        if self.task != "classification" and (number := _number(value)) is not None:
            return number
        if self.task == "regression":
            raise BadRow(f'label "{_show(value)}"; expected a number')
        return self._class(value)

    def _class(self, value: Any) -> str:
        if not isinstance(value, str | int | float) or value != value:
            raise BadRow(f'"{self.columns.label}" holds {_kind(value)}; expected a class')
        name = _text(str(value).lower() if isinstance(value, bool) else str(value).strip(), "label")
        if self.classes and name not in self.classes:
            raise BadRow(f'label "{_show(name)}"{did_you_mean(name, self.classes)}; expected {_names(self.classes)}')
        return name


def find_columns(table: Table, found: list[str]) -> Columns:
    """Returns the columns to read: those named, which must exist, and the usual names among those found."""
    needed = {"text": True, "pair": table.task in NEED_PAIR, "label": table.labelled and table.task != "similarity"}
    chosen = dict[str, Any]()
    for flag, usual in USUAL.items():
        name = getattr(table.columns, flag)
        if name and name not in found and (flag != "label" or table.labelled):
            raise DataError(f'no column "{name}"{did_you_mean(name, found)}; found {_names(found)}', table.path)
        alone = flag == "pair" and table.columns.text and not needed["pair"]
        free = (other for other in usual.split() if other in found and other not in chosen.values() and not alone)
        chosen[flag] = name if name in found else next(free, None)
        if needed.get(flag) and not chosen[flag]:
            cut = " (cells are cut at commas)" if len(found) == 1 and table.path.suffix.lower() == ".csv" else ""
            raise DataError(f"no usual {flag} column; found {_names(found)}{cut}; name yours with --{flag}", table.path)
    return replace(table.columns, **chosen)


def read_rows(table: Table) -> Rows:
    """Returns the rows of a file with their line numbers, in the format given by its ending."""
    path, ending = table.path, table.path.suffix.lower()
    if path.is_dir():
        return _dataset_rows(path)
    if not path.is_file():
        raise DataError("no such file", path)
    if ending in (".jsonl", ".parquet"):
        return _objects(table, _json_rows(table)) if ending == ".jsonl" else _parquet_rows(path)
    if table.task == "tagging":
        if ending in (".csv", ".json"):
            raise DataError("expected for tagging .jsonl, .parquet or CoNLL's columns, as in train.txt or train.conll", path)
        return _conll_rows(table)
    if ending in (".csv", ".tsv", ".txt"):
        return _delimited_rows(table)
    if ending == ".json" and table.task == "qa":
        return _squad_rows(path)
    raise DataError("expected .csv, .tsv, .jsonl or .parquet; for qa also .json in SQuAD's layout", path)


def open_text(path: Path, newline: str = "\n") -> IO[str]:
    """Opens a text file. A byte that is not UTF-8 becomes a lone surrogate, which is reported where it is used."""
    return open(path, encoding="utf-8-sig", errors="surrogateescape", newline=newline)


def _delimited_rows(table: Table) -> Rows:
    """Yields rows keyed by the header: the first row, unless a header was given."""
    names = given = table.columns.header
    for line, cells in _cells(table):
        if not names:
            names = tuple(name.strip() for name in cells)
            if found := flaw("".join(names)) or "the same name twice; rename one" * (len(set(names)) < len(names)):
                raise DataError(f"the header holds {found}", table.path, line)
        elif len(cells) > len(names) or (len(cells) < len(names) and not given):
            table.complain(f"{len(cells)} columns, expected {len(names)} ({_names(names)}); fix the row", line)
        else:
            yield line, dict(zip(names, cells, strict=False))


def _cells(table: Table) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(MAX_CELL)
    with open_text(table.path, newline="") as lines:
        reader, cells = csv.reader(lines, **dialect_of(table.path), strict=True), list[str]()
        while cells is not None:
            begin = reader.line_num + 1
            try:
                if cells := next(reader, None):  # type: ignore[arg-type]
                    table.last = reader.line_num
                    yield begin, cells
            except csv.Error as error:
                if "end of data" in str(error):  # no later row can be read
                    raise DataError("a quoted cell begins here and never ends; close it", table.path, begin) from error
                table.last = reader.line_num
                table.complain(f"not CSV up to line {table.last} ({error}); double the quotes inside a cell", begin)


def dialect_of(path: Path) -> dict[str, Any]:
    """Returns how cells are separated and quoted: in CSV by commas, semicolons or tabs, whichever the header has most."""
    if path.suffix.lower() != ".csv":
        return dict(delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None)
    with open_text(path, newline="") as lines:
        return dict(delimiter=max(",;\t", key=lines.readline(MAX_CELL).count))


def _json_rows(table: Table) -> Iterator[tuple[int, Any]]:
    with open_text(table.path) as lines:
        for number, line in ((number, line) for number, line in enumerate(lines, start=1) if line.strip()):
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                table.complain(f"JSON that is cut off or wrong ({error}); expected one object a line", number)


def _objects(table: Table, rows: Iterable[tuple[int, Any]]) -> Rows:
    for number, row in rows:
        if isinstance(row, dict):
            yield number, row
        else:
            table.complain(f"{_show(row)}; expected an object, in braces, of cells by the names of columns", number)


def _squad_rows(path: Path) -> Rows:
    text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    try:
        line, place = 1, 0
        for article in json.loads(text)["data"]:
            for paragraph in article["paragraphs"]:
                for row in paragraph["qas"]:
                    at = text.find(json.dumps(row.get("id")), place)
                    line, place = line + text.count("\n", place, max(at, place)), at if at >= 0 else len(text)
                    yield line, {"title": article.get("title"), "context": paragraph["context"], **row}
    except json.JSONDecodeError as error:
        raise DataError(f"the JSON is cut off or wrong ({error}); fetch the file again", path, error.lineno) from error
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"expected SQuAD's layout: data, paragraphs, qas and context ({error!r})", path) from error


def _conll_rows(table: Table) -> Rows:
    """Yields a row per sentence. Without -DOCSTART- lines, each sentence is its own document."""
    document, marked, width = 0, False, 0
    with open_text(table.path) as lines:
        cut = ((number, re.split(r"[ \t]+", line.strip(" \t\r\n"))) for number, line in enumerate(lines, start=1))
        for kind, group in groupby(cut, key=lambda line: line[1][0] if line[1][0] in ("", "-DOCSTART-") else "word"):
            if kind == "-DOCSTART-":
                document, marked = document + marked, True
            if kind != "word":
                continue
            numbers, cells = zip(*group, strict=True)
            width = width or len(cells[0])
            if wrong := next(((n, len(each)) for n, each in zip(numbers, cells, strict=True) if len(each) != width), None):
                table.complain(f"{wrong[1]} columns, expected {width}, word first, label last; fix the line", wrong[0])
            else:
                labels = {"labels": [each[-1] for each in cells]} if width > 1 else {}
                yield numbers[0], {"words": [each[0] for each in cells], "document": document, **labels}
            document += not marked


def _parquet_rows(path: Path) -> Rows:
    parquet = import_extra("pyarrow.parquet", "parquet", "reading .parquet")
    try:
        file = parquet.ParquetFile(path)
        if len(names := file.schema_arrow.names) > len(set(names)):
            raise ValueError("the same name twice; rename one")
        yield from enumerate((row for part in file.iter_batches(1024) for row in part.to_pylist()), start=1)
    except (OSError, ValueError) as error:
        raise DataError(f"not a readable parquet file ({str(error).splitlines()[0]}); fetch or fix it", path) from error


def _dataset_rows(path: Path) -> Rows:
    if splits := sorted(file.parent.name for file in path.glob("*/state.json")):
        raise DataError(f"the folder holds {_names(splits)}; name one of them, such as {path / splits[0]}", path)
    if not (path / "state.json").exists():
        raise DataError("a folder; expected a file, or a folder saved by the Hugging Face library datasets", path)
    data = import_extra("datasets", "datasets", "reading a datasets folder").load_from_disk(str(path))
    kinds = {name: getattr(kind, "feature", kind) for name, kind in data.features.items()}
    classes = {name: kind for name, kind in kinds.items() if hasattr(kind, "int2str")}
    for number, row in enumerate(data, start=1):  # -1 means an unknown class
        known = {name: kind.int2str(row[name]) for name, kind in classes.items() if row[name] not in (-1, None)}
        yield number, row | dict.fromkeys(classes) | known


def _answers(value: Any, start: Any, context: str) -> Iterator[tuple[str, int]]:
    """Yields answers with their starts, from SQuAD's list, Hugging Face's two lists or one text; finds missing starts."""
    if isinstance(value, dict):
        value = [dict(text=t, answer_start=s) for t, s in zip(value["text"], value["answer_start"], strict=True)]
    elif isinstance(value, str):
        value = [dict(text=value, answer_start=start)] if value.strip() else []
    for answer in _list(value, "answers"):
        text, at = (answer, None) if isinstance(answer, str) else (answer.get("text"), answer.get("answer_start"))
        at = context.find(_text(text, "answers")) if at in (None, "") else int(at)
        if at < 0 or not context.startswith(_text(text, "answers"), at):
            place = f'at character {at}, where "{_show(context[at:][: len(text)])}" stands' if at >= 0 else "in the context"
            raise BadRow(f'the answer "{_show(text)}" is not {place}; fix the answer or its offset')
        yield text, at


def _endings(row: Row) -> list[str]:
    """Returns SWAG's options: the beginning of the second sentence with each of its endings."""
    begin = (row.get("sent2") or "").strip()
    return [f"{begin} {_text(row[name], name)}".strip() for name in row if re.fullmatch(r"ending\d+", name)]


def _text(value: Any, name: str | None) -> str:
    """Returns the value; raises BadRow unless it is a text that is not empty and without flaws."""
    if not isinstance(value, str):
        raise BadRow(f'"{name}" holds {_kind(value)}; expected a text')
    if found := "an empty text; fill it in" if not value.strip() else flaw(value):
        raise BadRow(f'"{name}" holds {found}')
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadRow(f'"{name}" holds {_kind(value)}; expected a list')
    return value


def _kind(value: Any) -> str:
    return "nothing" if value is None or value != value else type(value).__name__


def _number(value: Any) -> float | None:
    with suppress(TypeError, ValueError):
        return float(value) if abs(float(value)) < 1e150 else None  # squares of larger numbers may overflow
    return None


def _names(names: Iterable[str]) -> str:
    names = [_show(name) or '""' for name in names]
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _show(value: Any) -> str:
    """Returns the value as text, shortened for a message, with lone surrogates replaced."""
    return short(str(value).encode(errors="replace").decode())
