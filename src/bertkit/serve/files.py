"""Answers for files of any size, in bounded memory: rows in, the same rows with their answers out.

Rows are read as a stream and split into chunks. A chunk is answered in this process, another process or a Ray actor, and
written to a part file of its own; at the end the parts are joined. A part depends only on the file, the model and the
settings, so a run that was stopped continues after its last part and ends with the same bytes.
"""

import csv
import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate, count, islice
from pathlib import Path
from typing import Any

from bertkit.atomic import alone, new_file, read_json, write_text
from bertkit.bundle.exported import open_bundle
from bertkit.bundle.folder import Bundle
from bertkit.data.engines import ENGINES
from bertkit.data.readers import BadRow, Columns, Named, Row, Table, dialect_of, find_columns, open_text, read_rows
from bertkit.data.records import Words, texts
from bertkit.errors import DataError, InputError, import_extra
from bertkit.progress import bar
from bertkit.serve.predictor import Model, Spans, plain, word_spans

CHUNK = 2048  # rows per part
HEAD = 2**20  # bytes at the start of the input that are hashed to recognise it
FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
PREFIX = "predicted_"  # of the columns with the answers
NAMES = {  # task → the columns of its answers
    "classification": "label probability",
    "multilabel": "labels probabilities",
    "regression": "number",
    "tagging": "entities",
    "qa": "answer begin end probability null_margin best",
    "choice": "option probabilities",
    "similarity": "embedding",
}


Chunk = tuple[list[tuple[int, Row]], list[Row], bool]  # rows with line numbers, unreadable rows, whether it is the first


@dataclass
class Source(Table):
    """The input: a table read in chunks that keeps its bad rows; the raw lines of those that cannot be split into cells."""

    kept: list[Row] = field(default_factory=list)
    read: int = 0  # rows, bad ones included

    def complain(self, message: str, line: int) -> None:
        raw = next((text for at, text in self.lines if at == line), "")
        raw += "".join(text for _, text in islice(self.lines, max(0, self.last - line)))
        self.kept.append(dict(line=line, reason=message, row=raw.rstrip("\r\n")))

    @cached_property
    def lines(self) -> Iterator[tuple[int, str]]:
        """The file's lines with their numbers, read only once, as bad rows come in order."""
        with open_text(self.path, "\n" if self.path.suffix.lower() == ".jsonl" else "") as stream:
            yield from enumerate(stream, start=1)

    def chunks(self, done: int) -> Iterator[Chunk]:
        """Yields the chunks after the first `done`; where a chunk ends depends only on the number of rows."""
        number, rows = 0, read_rows(self)
        while (part := list(islice(rows, CHUNK))) or self.kept:
            bad, self.kept = self.kept, []
            self.read += len(part) + len(bad)
            if number >= done:
                yield part, bad, number == 0
            number += 1


@dataclass(frozen=True)
class Format:
    """How rows are written: as they were read, followed by the columns with the answers."""

    ending: str
    names: list[str]  # all columns
    added: list[str]
    schema: Any = None  # Parquet's
    dialect: dict[str, Any] = field(default_factory=dict)  # of .csv and .tsv

    def write(self, rows: list[Row], first: bool) -> bytes:
        """Returns the bytes of a part; the file's first one starts with the header."""
        if self.ending == ".jsonl":
            return _json_lines(rows)
        rows = [row | {name: self._cell(name, row[name]) for name in self.added} for row in rows]
        if self.ending == ".parquet":
            arrow, written = _arrow(), io.BytesIO()
            arrow.parquet.write_table(arrow.Table.from_pylist(rows, self.schema), written)
            return written.getvalue()
        lines = [self.names] * first + [[row[name] for name in self.names] for row in rows]
        return "".join(map(self._line, lines)).encode("utf-8", "surrogateescape")

    def _line(self, cells: list[Any]) -> str:
        """Returns a line that ends in a newline only, yet with cells quoted that contain a carriage return."""
        stream = io.StringIO()
        csv.writer(stream, **self.dialect).writerow(cells)
        return stream.getvalue().removesuffix("\r\n") + "\n"

    def _cell(self, name: str, value: Any) -> Any:
        """Returns a list or dict as JSON, unless its Parquet column takes lists; anything else unchanged."""
        flat = isinstance(value, list | dict) and (self.schema is None or str(self.schema.field(name).type) == "string")
        return json.dumps(value, ensure_ascii=False) if flat else value

    def join(self, parts: list[Path], out: Path) -> None:
        if self.schema is None:
            return _join(parts, out)
        with _arrow().parquet.ParquetWriter(out, self.schema) as writer:
            for part in parts:
                writer.write_table(_arrow().parquet.read_table(part))


class Answerer:
    """A worker: takes a chunk, returns the bytes of its part and its bad rows."""

    def __init__(self, bundle: Bundle, source: Table, form: Format, device: str, precision: str, threads: int):
        self.model = Model(bundle, device=device, precision=precision, threads=threads)
        self.model.quiet = True
        self.task, self.source, self.form = _task(bundle), source, form

    def __call__(self, chunk: Chunk) -> tuple[bytes, list[Row]]:
        (rows, bad, first), told = chunk, list[Row]()
        records = [self._record(line, row) for line, row in rows]
        answers = iter(self._answers([record for record in records if not isinstance(record, BadRow)]))
        for (line, row), record in zip(rows, records, strict=True):
            found = record if isinstance(record, BadRow) else next(answers)
            if isinstance(found, Exception):
                bad.append(dict(line=line, reason=str(found), row=row))
            else:
                told.append(row | {name: plain(_value(name, found), 6) for name in self.form.added})
        return self.form.write(told, first), sorted(bad, key=lambda one: one["line"])

    def _record(self, line: int, row: Row) -> Any:
        """Returns a row's record, or what is wrong with it. A sentence without a document number is its own document."""
        table, document = self.source, row.get("document")
        if self.task == "tagging" and isinstance(row.get(table.columns.text), list):
            table, row = replace(table, task="tagging"), row | {"document": document if type(document) is int else -line}
        try:
            if clash := [name for name in self.form.added if name in row]:
                raise BadRow(f'the column "{clash[0]}" is there already; rename it')
            return table.record(row, f"{table.path}:{line}")
        except BadRow as wrong:
            return wrong

    def _answers(self, records: Sequence[Any]) -> list[Any]:
        """Returns the answers in order, or an error for a record that cannot be answered: halving the records finds it."""
        ask = {"tagging": self._tag, "similarity": self._embed}.get(self.task, self.model.answer)
        try:
            return ask(records)
        except InputError as error:
            half = len(records) // 2
            return self._answers(records[:half]) + self._answers(records[half:]) if half else [error]

    def _embed(self, records: Sequence[Any]) -> list[Any]:
        return self.model.embed([record.text for record in records], truncate=True).tolist()

    def _tag(self, records: Sequence[Any]) -> list[Any]:
        """Returns the entities of texts, or of sentences given as words, which are joined with spaces."""
        given = [texts(record)[0] for record in records]
        both = zip(records, self.model.tokenizer.pieces(given), given, strict=True)
        spans = [_spans(one.words) if isinstance(one, Words) else word_spans(pieces, text) for one, pieces, text in both]
        documents = [getattr(record, "document", ~number) for number, record in enumerate(records)]
        return self.model.tag_words(given, spans, documents)


def predict_file(
    model: Path | str,
    data: Path | str,
    out: Path | str,
    *,
    columns: Named = None,
    all_classes: bool = False,
    bad: str = "stop",
    fresh: bool = False,
    engine: str = "local",
    workers: int = 1,
    device: str = "auto",
    precision: str = "fp32",
) -> dict[str, Any]:
    """Writes the rows of `data` with a model's answers to `out`; run again, it continues where it was stopped."""
    data, out, begin = Path(data), Path(out).resolve(), time.monotonic()
    _check(data, out, bad, engine, workers)
    bundle, parts = open_bundle(model), out.with_name(f"{out.name}.parts")
    source, form = _open(bundle, data, columns, bad, all_classes)
    settings = _settings(bundle, source, form) | {"device": bundle.device(device), "precision": precision}
    threads = max(1, (os.cpu_count() or 1) // workers) if workers > 1 else 0
    make = partial(Answerer, bundle, replace(source), form, device, precision, threads)
    with alone(parts):
        there = done = _begin(parts, out, settings, fresh)
        with bar("predicting", _count(data)) as show, ENGINES[engine](make, workers) as run:
            for there, (content, unusable) in enumerate(run(source.chunks(done)), start=done + 1):
                _write(parts / f"{there - 1:08}", content, unusable, source)
                rate = (there - done) * CHUNK / (time.monotonic() - begin)
                show(min(there * CHUNK, source.read), f"{rate:,.0f} rows/s")
        left = _finish([parts / f"{number:08}.part" for number in range(there)], out, form)
    told = {"out": str(out), "rows": source.read - left, "bad": left, "resumed": min(done * CHUNK, source.read)}
    return told | {"seconds": round(time.monotonic() - begin, 1)}


def _check(data: Path, out: Path, bad: str, engine: str, workers: int) -> None:
    if data.suffix.lower() not in FORMATS or not data.is_file():
        lacks = "" if data.is_file() else "no such file; "
        raise DataError(f"{lacks}expected a file that ends in {', '.join(FORMATS)}", data)
    if out.is_dir() or out == data.resolve():
        raise InputError(f"{out} is {'a folder' if out.is_dir() else 'the input'}; expected a file to write")
    if out.suffix.lower() != data.suffix.lower():
        raise InputError(f"{out}: expected a name that ends in {data.suffix}, the input's format")
    if engine not in ENGINES or bad not in ("stop", "skip") or workers < 1:
        known = f"engine {' or '.join(ENGINES)}, bad stop or skip, and at least 1 worker"
        raise InputError(f"engine {engine!r}, bad {bad!r} and {workers} workers; expected {known}")


def _task(bundle: Bundle) -> str:
    """Returns the model's task; a model without one gives vectors, as for similarity."""
    return bundle.task.settings.task if bundle.task else "similarity"


def _open(bundle: Bundle, data: Path, columns: Any, bad: str, all_classes: bool) -> tuple[Source, Format]:
    """Returns the input, with its columns found, and the format of the output."""
    named = columns if isinstance(columns, Columns) else Columns(**(columns or {}))
    task, alone = _task(bundle), _task(bundle) in ("tagging", "similarity")  # these read one text per row
    if alone and named.pair:
        raise InputError(f'a {task} model reads one text a row; expected no pair, found the column "{named.pair}"')
    source = Source(data, "classification" if alone else task, named, labelled=False, bad=bad)
    _, first = next(read_rows(source), (0, None))
    if not first:
        raise DataError("no usable rows; expected one at least", data)
    found = find_columns(source, list(first))
    source = replace(source, columns=Columns(text=found.text, pair=None if alone else found.pair), kept=[])
    labels = bundle.task.settings.labels if bundle.task else ()
    shown = labels if all_classes and task in ("classification", "multilabel") else ()
    added = [PREFIX + name for name in (*NAMES[task].split(), *(f"probability_{label}" for label in shown))]
    if clash := [name for name in added if name in first]:
        raise DataError(f'the column "{clash[0]}" is there already; rename it', data)
    ending, uncut = data.suffix.lower(), [label for label in labels if set(label) & set("\t\r\n")]
    if ending == ".tsv" and uncut:
        raise InputError(f"the label {uncut[0]!r} does not fit into a cell of a .tsv; give the rows as .csv")
    return source, Format(ending, [*first, *added], added, _schema(data, added), dialect_of(data))


def _schema(data: Path, added: list[str]) -> Any:
    """Returns the Parquet schema of the input with the answers' columns added; None for other formats."""
    if data.suffix.lower() != ".parquet":
        return None
    arrow = _arrow()
    kinds = dict.fromkeys(("label", "labels", "probabilities", "answer", "entities", "best"), arrow.string())
    kinds |= dict.fromkeys(("begin", "end", "option"), arrow.int64()) | {"embedding": arrow.list_(arrow.float32())}
    fields = [arrow.field(name, kinds.get(name.removeprefix(PREFIX), arrow.float64())) for name in added]
    return arrow.schema([*arrow.parquet.read_schema(data), *fields])


def _arrow() -> Any:
    import_extra("pyarrow.parquet", "parquet", "writing .parquet")
    return import_extra("pyarrow", "parquet", "writing .parquet")


def _count(data: Path) -> int:
    """Returns the number of rows; for text formats the number of lines, which may be slightly higher."""
    if data.suffix.lower() == ".parquet":
        return _arrow().parquet.read_metadata(data).num_rows
    with open(data, "rb") as stream:
        return sum(block.count(b"\n") for block in iter(partial(stream.read, HEAD), b""))


def _settings(bundle: Bundle, source: Source, form: Format) -> dict[str, Any]:
    """Returns what the answers depend on."""
    facts, model = source.path.stat(), hashlib.sha256(bundle.tokenizer.content.encode())
    for part in bundle.content():
        model.update(part)
    with open(source.path, "rb") as stream:
        head = hashlib.sha256(stream.read(HEAD)).hexdigest()
    given = {"input size": facts.st_size, "input time": facts.st_mtime_ns, "input head": head, "model": model.hexdigest()}
    return given | {"text": source.columns.text, "pair": source.columns.pair, "answers": form.added, "chunk": CHUNK}


def _begin(parts: Path, out: Path, settings: dict[str, Any], fresh: bool) -> int:
    """Returns the number of finished parts; those of another run are refused, or removed with `fresh`."""
    told = parts / "settings.json"
    if fresh or not any(parts.glob("*.part")):
        if out.exists() and not fresh:
            shutil.rmtree(parts, ignore_errors=True)
            raise InputError(f"{out} exists; give another --out, or --fresh to replace it")
        for old in parts.glob("[!.]*"):  # all but the lock
            old.unlink()
        write_text(told, json.dumps(settings))
    found = read_json(told, InputError)
    if differing := ", ".join(name for name in settings if found.get(name) != settings[name]):
        raise InputError(f"{parts} was made with another {differing}; give another --out, or --fresh to start over")
    return next(number for number in count() if not (parts / f"{number:08}.part").exists())


def _write(name: Path, content: bytes, bad: list[Row], source: Source) -> None:
    """Writes the bad rows, then the part, whose existence means that its chunk is done."""
    if bad and source.bad == "stop":
        raise DataError(f"{bad[0]['reason']} (--bad skip leaves such rows out)", source.path, bad[0]["line"])
    for ending, written in ((".bad", _json_lines(bad)), (".part", content)):
        with new_file(name.with_suffix(ending)) as aside:
            aside.write_bytes(written)


def _finish(names: list[Path], out: Path, form: Format) -> int:
    """Joins and removes the parts; the output appears last, and complete. Returns the number of bad rows."""
    parts = names[0].parent
    if sorted(parts.glob("*.part")) != names:
        raise InputError(f"{parts} lost parts, or holds those of another run; --fresh starts over")
    bad = out.with_name(f"{out.name}.bad.jsonl")
    with new_file(parts / "bad.jsonl") as aside:
        _join([name.with_suffix(".bad") for name in names], aside)
    with new_file(parts / "whole") as aside:
        form.join(names, aside)
    rows = _count(parts / "bad.jsonl")
    (parts / "bad.jsonl").replace(bad) if rows else bad.unlink(missing_ok=True)
    (parts / "whole").replace(out)
    shutil.rmtree(parts, ignore_errors=True)
    return rows


def _join(parts: list[Path], out: Path) -> None:
    with open(out, "wb") as stream:
        for part in parts:
            stream.write(part.read_bytes())


def _json_lines(rows: list[Row]) -> bytes:
    """Returns rows as JSON lines; a lone surrogate becomes an escape."""
    lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    return "".join(lines).encode("utf-8", "backslashreplace")


def _value(name: str, found: Any) -> Any:
    """Returns an answer's value for a column; some answers are a single value."""
    name = name.removeprefix(PREFIX)
    if not isinstance(found, tuple):
        return found
    if name.startswith("probability_"):
        return found.probabilities[name.removeprefix("probability_")]  # type: ignore[attr-defined]
    return getattr(found, "text" if name == "answer" else name)


def _spans(words: Sequence[str]) -> Spans:
    """Returns the character spans of words joined with spaces."""
    ends = [end - 1 for end in accumulate(len(word) + 1 for word in words)]
    return [(end - len(word), end) for word, end in zip(words, ends, strict=True)]
