"""Reads raw text: files and folders in, documents out, one at a time.

Reads .txt (blank lines between documents), .jsonl (one object per line, with "text") and .parquet (a column "text"), plain
or as .gz, .xz or .zst. Only one document is in memory at a time; one longer than MAX_LINE bytes comes in parts.
"""

import gzip
import io
import json
import lzma
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from bertkit.errors import DataError, InputError, check_choice, import_extra
from bertkit.progress import bar

MAX_LINE = 8 * 2**20  # bytes; the longest novels have about 6 million
FOREIGN = ("tokenizer.json", "dropped.jsonl")  # mark tokenizers, models and stores, whose .txt and .jsonl are no corpus


class Document(NamedTuple):
    """A contiguous text, and the file and line where it begins."""

    text: str
    path: Path
    line: int


class Corpus:
    """Documents of files and folders, in the order given; the files of a folder in sorted order.

    An unusable line (invalid UTF-8 or JSON, a NUL, too long) raises an error with its file and line. With bad="skip" it is
    skipped instead: counted in `skipped`, the first few described in `complaints`.
    """

    def __init__(self, paths: Sequence[Path | str], *, bad: str = "stop", max_line: int = MAX_LINE):
        check_choice("bad", bad, ("stop", "skip"))
        if isinstance(paths, str | Path) or not paths or max_line < 1:
            expected = "expected a list of files and folders, one at least, and 1 byte at least"
            raise InputError(f"a corpus of {paths!r}, lines of {max_line} bytes at most; {expected}")
        self.files = [file for path in paths for file in _files(Path(path))]
        self.size = sum(file.stat().st_size for file in self.files)  # bytes on disk, for the progress bar
        self.bad, self.max_line = bad, max_line
        self.skipped, self.complaints = 0, list[str]()
        self._read_before = 0
        self._stream: IO[bytes] | None = None

    def watched(self, title: str) -> Iterator[Document]:
        """Yields the documents and shows a progress bar."""
        with bar(title, self.size, "bytes") as show:
            for document in self:
                yield document
                show(self.position)

    @property
    def position(self) -> int:
        """Bytes read from disk so far; of a compressed file, compressed bytes."""
        return self._read_before + (self._stream.tell() if self._stream and not self._stream.closed else 0)

    def __iter__(self) -> Iterator[Document]:
        self.skipped, self.complaints, self._read_before = 0, [], 0
        for path in self.files:
            try:
                with open(path, "rb") as raw:
                    self._stream = raw
                    stream = PACKINGS[path.suffix.lower()](raw) if _packed(path) else raw
                    yield from READERS[_kind(path)](self, stream, path)
            except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
                if isinstance(error, OSError) and error.errno:  # an error of the system, not of the file's content
                    raise
                raise DataError(f"the compressed file is damaged or cut off ({error}); fetch it again", path) from error
            self._read_before += path.stat().st_size

    def _blank_separated(self, stream: IO[bytes], path: Path) -> Iterator[Document]:
        lines, begin, size = list[str](), 1, 0
        for number, line in self._lines(stream, path):
            if lines and (not line.strip() or size > self.max_line):
                yield Document("\n".join(lines), path, begin)
                lines, size = [], 0
            if line.strip():
                begin = begin if lines else number
                lines.append(line)
                size += len(line)
        if lines:
            yield Document("\n".join(lines), path, begin)

    def _json_lines(self, stream: IO[bytes], path: Path) -> Iterator[Document]:
        for number, line in self._lines(stream, path):
            if not line.strip():
                continue
            try:
                text = json.loads(line)["text"]
            except (ValueError, KeyError, TypeError, RecursionError):
                self._complain('expected a JSON object with a key "text"', path, number)
                continue
            yield from self._checked(text, path, number)

    def _parquet_rows(self, stream: IO[bytes], path: Path) -> Iterator[Document]:
        arrow = import_extra("pyarrow", "parquet", "reading .parquet")
        parquet = import_extra("pyarrow.parquet", "parquet", "reading .parquet")
        with tempfile.TemporaryFile() as seekable:
            if _packed(path):
                shutil.copyfileobj(stream, seekable)
            try:
                table = parquet.ParquetFile(seekable if _packed(path) else path)
                if "text" not in table.schema_arrow.names:
                    raise DataError(f'no column "text"; found {", ".join(table.schema_arrow.names)}', path)
                rows = (row for part in table.iter_batches(1024, columns=["text"]) for row in part.column(0))
                for number, row in enumerate(rows, start=1):
                    yield from self._checked(row.as_py(), path, number)
            except (OSError, arrow.ArrowInvalid) as error:
                raise DataError(f"not a readable parquet file ({str(error).splitlines()[0]})", path) from error

    def _checked(self, text: object, path: Path, number: int) -> Iterator[Document]:
        """Yields the document if its text is a string without flaws."""
        if not isinstance(text, str):
            return self._complain(f'"text" is {type(text).__name__}, expected a string', path, number)
        if found := flaw(text):
            return self._complain(f'"text" holds {found}', path, number)
        yield Document(text, path, number)

    def _lines(self, stream: IO[bytes], path: Path) -> Iterator[tuple[int, str]]:
        """Yields decoded lines with their numbers, in bounded memory for lines of any length."""
        number = 0
        while raw := stream.readline(self.max_line + 1):
            number += 1
            if len(raw) > self.max_line and not raw.endswith(b"\n"):
                while raw and not raw.endswith(b"\n"):
                    raw = stream.readline(self.max_line)
                expected = f"expected at most {self.max_line:,} bytes; break it up, or raise --max-line"
                self._complain(f"the line is too long: {expected}", path, number)
                continue
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                bad = f"byte 0x{error.object[error.start]:02x} at column {error.start + 1} is not UTF-8"
                self._complain(f"{bad}; convert the file to UTF-8, or skip such lines", path, number)
                continue
            if "\0" in line:
                self._complain("a NUL byte; expected text in UTF-8", path, number)
            else:
                yield number, line

    def _complain(self, message: str, path: Path, line: int) -> None:
        if self.bad == "stop":
            raise DataError(f"{message} (--bad skip leaves such lines out)", path, line)
        self.skipped += 1
        if len(self.complaints) < 10:
            self.complaints.append(str(DataError(message, path, line)))


def flaw(text: str) -> str:
    """Describes what makes a text unusable (a lone surrogate, a NUL); "" if nothing does."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) - 0xDC00  # the byte, if surrogateescape made this
        escaped = f"byte 0x{byte:02x}, which is not UTF-8; convert the file to UTF-8"
        return escaped if 0x80 <= byte <= 0xFF else "half of a surrogate pair; fix it"
    return "a NUL; remove it" if "\0" in text else ""


def _kind(path: Path) -> str:
    """Returns the ending of the content's format: '.jsonl' for 'a.jsonl.gz'."""
    return (Path(path.stem) if _packed(path) else path).suffix.lower()


def _packed(path: Path) -> bool:
    return path.suffix.lower() in PACKINGS


def _files(path: Path) -> list[Path]:
    """Returns the corpus files at or below `path`."""
    if path.is_dir():
        files = [file for file in sorted(_below(path)) if file.is_file() and _kind(file) in READERS]
        if not files:
            raise DataError(f"the folder holds no {', '.join(READERS)} files, plain or as {', '.join(PACKINGS)}", path)
        return files
    if not path.exists():
        raise DataError("no such file or folder", path)
    if _kind(path) not in READERS:
        raise DataError(f"expected {', '.join(READERS)}, plain or as {', '.join(PACKINGS)}", path)
    return [path]


def _below(folder: Path) -> Iterator[Path]:
    """Yields all paths below a folder, through links; skips links back up and folders that hold other text (FOREIGN)."""
    for path in folder.iterdir():
        foreign = any((path / name).exists() for name in FOREIGN)
        if path.is_dir() and not foreign and not folder.resolve().is_relative_to(path.resolve()):
            yield from _below(path)
        yield path


def _open_zst(stream: io.BufferedReader) -> IO[bytes]:
    if not stream.peek(1):
        raise EOFError("it is empty")
    arrow = import_extra("pyarrow", "zst", "reading .zst")
    return io.BufferedReader(arrow.CompressedInputStream(stream, "zstd"))


READERS = {".txt": Corpus._blank_separated, ".jsonl": Corpus._json_lines, ".parquet": Corpus._parquet_rows}
PACKINGS: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".zst": _open_zst}
