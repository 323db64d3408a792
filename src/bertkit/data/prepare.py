"""Documents → sentences → ids → the store, the same store for any number of workers.

Documents are read in order and grouped into units of about a megabyte. Workers encode units in any order; units are written
in the order of the corpus, and they alone decide when a shard is full. So the store depends on the corpus and the settings
alone. A run that was stopped continues after its last complete shard.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.atomic import alone, is_empty, read_json, write_text
from bertkit.data.duplicates import duplicate_documents
from bertkit.data.engines import ENGINES
from bertkit.data.store import Piece, Shard, Store, write_manifest, write_shard
from bertkit.errors import DataError, InputError, check_choice
from bertkit.progress import bar
from bertkit.text.corpus import MAX_LINE, Corpus, Document
from bertkit.text.memo import CorpusEncoder
from bertkit.text.sentences import split_sentences
from bertkit.text.tokenizer import Tokenizer

UNIT = 2**20  # approximate characters of a unit
SHARD = 2**25  # approximate tokens of a shard
MEMO = 192 * 2**20  # bytes of chunks that a worker remembers


@dataclass(frozen=True)
class Unit:
    """Documents to encode, the number of documents read up to its end, and the documents that were left out."""

    documents: list[Document]
    read: int
    dropped: list[dict[str, str]]


@dataclass
class Progress:
    """The state of an unfinished store, from which a stopped run continues."""

    settings: dict[str, Any]
    shards: list[Shard] = field(default_factory=list)
    read: int = 0  # documents
    dropped: dict[str, int] = field(default_factory=dict)  # documents by reason
    listed: int = 0  # bytes of dropped.jsonl, which has a line for each of them


class UnitEncoder:
    """A worker: takes units, returns pieces of the store."""

    def __init__(self, tokenizer: Tokenizer):
        self.encoder = CorpusEncoder(tokenizer, memo_bytes=MEMO)
        self.dtype = id_dtype(tokenizer)

    def __call__(self, unit: Unit) -> tuple[Piece, int, list[dict[str, str]]]:
        sentences = [split_sentences(document.text) for document in unit.documents]
        blank = " " * (self.encoder.tokenizer.kind == "bpe")  # byte-level pieces include the space before a word
        ids, bounds = self.encoder.encode([blank * (i > 0) + text for texts in sentences for i, text in enumerate(texts)])
        sizes = np.diff(bounds)
        owners = np.repeat(np.arange(len(sentences)), [len(document) for document in sentences])
        counts = np.bincount(owners[sizes > 0], minlength=len(sentences))  # sentences and documents without ids do not count
        dropped = unit.dropped + [_dropped("empty", unit.documents[index]) for index in np.flatnonzero(counts == 0)]
        return Piece(ids.astype(self.dtype), sizes[sizes > 0], counts[counts > 0]), unit.read, dropped


def prepare_store(
    corpus: Corpus,
    tokenizer: Tokenizer,
    out: Path,
    *,
    workers: int = 1,
    engine: str = "local",
    min_words: int = 0,
    deduplicate: bool = False,
    shard_tokens: int = SHARD,
) -> Store:
    """Makes the store, or continues where an earlier run stopped. Leaves out documents of fewer than `min_words` words and,
    with `deduplicate`, those that repeat an earlier one."""
    check_choice("engine", engine, ENGINES)
    if workers < 1:
        raise InputError(f"workers is {workers}; expected at least 1")
    cleaning = {"min_words": min_words, "deduplicate": deduplicate}
    settings = _settings(corpus, tokenizer, cleaning, shard_tokens)
    with alone(out) if is_empty(out) or (out / "progress.json").exists() else nullcontext():
        if progress := _begin(out, tokenizer, settings):
            texts = (document.text for document in corpus.watched("comparing"))
            duplicates = duplicate_documents(texts, out) if deduplicate else set()
            with ENGINES[engine](partial(UnitEncoder, tokenizer), workers) as run:
                pieces = run(_units(corpus, min_words, duplicates, progress.read))
                _write_shards(out, progress, pieces, corpus, shard_tokens)
            _finish(out, progress, corpus, id_dtype(tokenizer))
    return Store(out)


def id_dtype(tokenizer: Tokenizer) -> np.dtype:
    return np.dtype(np.uint16 if len(tokenizer) <= 2**16 else np.uint32)


def _settings(corpus: Corpus, tokenizer: Tokenizer, cleaning: dict[str, int], shard_tokens: int) -> dict[str, Any]:
    """Returns everything that the store depends on."""
    return {
        "sources": [[file.name, file.stat().st_size] for file in corpus.files],
        "bad_lines": corpus.bad,
        "tokenizer": hashlib.sha256(tokenizer.content.encode()).hexdigest(),
        "cleaning": cleaning,
        "shard_tokens": shard_tokens,
    } | ({} if corpus.max_line == MAX_LINE else {"max_line": corpus.max_line})


def _begin(out: Path, tokenizer: Tokenizer, settings: dict[str, Any]) -> Progress | None:
    """Returns the progress to continue from; None if the store is finished."""
    finished = out / "manifest.json"
    found = finished if finished.exists() else out / "progress.json"
    content = read_json(found)
    if "settings" not in content and not is_empty(out):
        raise DataError("the folder is not empty and holds no store; give another --out", out)
    if not content.get("shards"):  # nothing is lost by starting over
        _save(out, progress := Progress(settings))
        (out / "tokenizer").mkdir(exist_ok=True)
        tokenizer.write_files(out / "tokenizer")
        return progress
    before = content["settings"]
    if differing := [name for name in before | settings if before.get(name) != settings.get(name)]:
        raise DataError(f"made with other settings ({', '.join(differing)} differ); remove it, or give another --out", found)
    if found == finished:
        return None
    return Progress(**content | {"shards": [Shard(**shard) for shard in content["shards"]]})


def _units(corpus: Corpus, min_words: int, duplicates: set[int], done: int) -> Iterator[Unit]:
    """Yields the documents after the first `done`, in units whose ends depend on the documents alone."""
    documents, size, dropped, read = list[Document](), 0, list[dict[str, str]](), done
    for read, document in enumerate(islice(corpus, done, None), start=done + 1):
        if read - 1 in duplicates:
            dropped.append(_dropped("duplicate", document))
        elif min_words and len(document.text.split()) < min_words:
            dropped.append(_dropped("short", document))
        else:
            documents.append(document)
            size += len(document.text)
        if size >= UNIT:
            yield Unit(documents, read, dropped)
            documents, size, dropped = [], 0, []
    if documents or dropped:
        yield Unit(documents, read, dropped)


def _dropped(reason: str, document: Document) -> dict[str, str]:
    return {"reason": reason, "place": f"{document.path.name}:{document.line}", "begins": document.text[:80]}


def _write_shards(out: Path, progress: Progress, pieces: Iterator[Any], corpus: Corpus, shard_tokens: int) -> None:
    waiting, read, dropped = list[Piece](), progress.read, list[dict[str, str]]()
    with bar("preparing", corpus.size, "bytes") as show:
        for piece, read, new in pieces:
            waiting.append(piece)
            dropped += new
            show(corpus.position, f"{read:,} documents")
            if sum(len(one.ids) for one in waiting) >= shard_tokens:
                _add_shard(out, progress, waiting, read, dropped)
                waiting, dropped = [], []
    _add_shard(out, progress, waiting, read, dropped)


def _add_shard(out: Path, progress: Progress, pieces: list[Piece], read: int, dropped: list[dict[str, str]]) -> None:
    """Writes a shard and the documents dropped on the way, then the progress that includes them."""
    if any(len(piece.ids) for piece in pieces):
        progress.shards.append(write_shard(out, len(progress.shards), pieces))
    with open(out / "dropped.jsonl", "ab") as stream:
        stream.truncate(progress.listed)  # removes what a stopped run listed after its last shard
        stream.write("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in dropped).encode())
        progress.listed = stream.tell()
    progress.read = read
    progress.dropped = dict(Counter(progress.dropped) + Counter(one["reason"] for one in dropped))
    _save(out, progress)


def _save(out: Path, progress: Progress) -> None:
    write_text(out / "progress.json", json.dumps(asdict(progress)))


def _finish(out: Path, progress: Progress, corpus: Corpus, dtype: np.dtype) -> None:
    if not progress.shards:
        found = f"no document was left ({corpus.skipped:,} bad lines)"
        raise DataError(f"{found}; look at the corpus and the cleaning flags", out)
    dropped = progress.dropped | {"bad lines": corpus.skipped}
    write_manifest(out, progress.shards, dtype, {"dropped": dropped, "settings": progress.settings})
    (out / "progress.json").unlink()
