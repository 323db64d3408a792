"""The token store: a corpus as ids, with its sentences and documents, on disk and mapped into memory.

    STORE/manifest.json     counts, settings, sources, and every shard's sizes and checksums
    STORE/tokenizer/        the tokenizer that made the ids
    STORE/00000.ids         uint16 where the vocabulary allows it, else uint32
    STORE/00000.sentences   uint32: where each sentence ends, in tokens of the shard
    STORE/00000.documents   uint32: where each document ends, in sentences of the shard

A document lies within one shard. Places are token positions, counted across all shards.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.atomic import checksum, new_file, write_text
from bertkit.errors import DataError
from bertkit.progress import bar
from bertkit.text.tokenizer import Tokenizer

FORMAT = 1
PARTS = ("ids", "sentences", "documents")


@dataclass(frozen=True)
class Piece:
    """Some documents as ids: what a worker returns, and what shards are made of."""

    ids: np.ndarray
    sentences: np.ndarray  # tokens of each sentence
    documents: np.ndarray  # sentences of each document


@dataclass(frozen=True)
class Shard:
    """The manifest's entry for a shard."""

    name: str
    tokens: int
    sentences: int
    documents: int
    checksums: dict[str, str] = field(default_factory=dict)


class Store:
    """A finished store, opened for reading."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        manifest = self.path / "manifest.json"
        if not manifest.is_file():
            raise DataError("no finished store here (manifest.json is missing); make one with bertkit prepare", self.path)
        try:
            self.manifest: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))
            self.shards = [Shard(**shard) for shard in self.manifest["shards"]]
            self.tokens, self.documents = self.manifest["tokens"], self.manifest["documents"]
            self.dtype = np.dtype(self.manifest["dtype"])
            known = self.manifest["format"] == FORMAT
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"the manifest is damaged ({error}); prepare the store again", manifest) from error
        if not known:
            raise DataError(f"store format {self.manifest['format']}; expected {FORMAT}: prepare it again", manifest)
        self._check_sizes()

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out memory-mapped arrays; another process maps the files itself."""
        return {name: getattr(self, name) for name in ("path", "manifest", "shards", "tokens", "documents", "dtype")}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        found = Tokenizer.load(self.path / "tokenizer")
        known = self.manifest["settings"].get("tokenizer")
        if known and known != hashlib.sha256(found.content.encode()).hexdigest():
            raise DataError("the tokenizer is not the one that the store was made with; prepare it again", self.path)
        return found

    @cached_property
    def begins(self) -> np.ndarray:
        """[shards + 1] the position of each shard's first token, and the end."""
        return np.cumsum([0, *(shard.tokens for shard in self.shards)])

    def part(self, shard: int, part: str) -> np.ndarray:
        """Returns one file of a shard, mapped into memory."""
        dtype = self.dtype if part == "ids" else np.dtype(np.uint32)
        return np.memmap(self._file(shard, part), dtype, "r")

    @cached_property
    def sentence_bounds(self) -> np.ndarray:
        """[sentences + 1] the position at which each sentence begins, and the end."""
        ends = [self.part(i, "sentences").astype(np.int64) + self.begins[i] for i in range(len(self.shards))]
        return np.concatenate([[0], *ends])

    @cached_property
    def document_bounds(self) -> np.ndarray:
        """[documents + 1] the index of each document's first sentence, and the end."""
        before = np.cumsum([0, *(shard.sentences for shard in self.shards)])
        ends = [self.part(i, "documents").astype(np.int64) + before[i] for i in range(len(self.shards))]
        return np.concatenate([[0], *ends])

    def ids_at(self, places: np.ndarray) -> np.ndarray:
        """Returns the ids at the given positions."""
        if len(self._ids) == 1:
            return self._ids[0][places]
        ids, owners = np.empty(places.shape, self.dtype), np.searchsorted(self.begins, places, side="right") - 1
        for shard in np.flatnonzero(np.bincount(owners.ravel())):
            mine = owners == shard
            ids[mine] = self._ids[shard][places[mine] - self.begins[shard]]
        return ids

    @cached_property
    def unknown(self) -> float:
        """The share of tokens that are the unknown piece."""
        return sum(int(np.count_nonzero(ids == self.tokenizer.unk)) for ids in self._ids) / self.tokens

    def describe(self) -> dict[str, Any]:
        """Verifies the checksum of every file and returns the store's figures."""
        files = {self._file(i, part): shard.checksums.get(part) for i, shard in enumerate(self.shards) for part in PARTS}
        with bar("checking", len(files)) as show:
            for done, (file, expected) in enumerate(files.items(), start=1):
                if checksum(file) != expected:
                    raise DataError("the file fails its checksum; prepare the store again", file)
                show(done)
        told = {name: value for name, value in self.manifest.items() if name not in ("format", "shards")}
        sizes = {"vocabulary": len(self.tokenizer), "unknown": round(self.unknown, 4), "shards": len(self.shards)}
        return told | sizes | {"checksums": "right"}

    @cached_property
    def _ids(self) -> list[np.ndarray]:
        return [self.part(index, "ids") for index in range(len(self.shards))]

    def _file(self, shard: int, part: str) -> Path:
        return self.path / f"{self.shards[shard].name}.{part}"

    def _check_sizes(self) -> None:
        for index, shard in enumerate(self.shards):
            sizes = (self.dtype.itemsize * shard.tokens, 4 * shard.sentences, 4 * shard.documents)
            for part, size in zip(PARTS, sizes, strict=True):
                file = self._file(index, part)
                found = file.stat().st_size if file.is_file() else None
                if found != size:
                    raise DataError(f"has {found} bytes, the manifest says {size}; prepare the store again", file)


def write_shard(folder: Path, index: int, pieces: list[Piece]) -> Shard:
    """Writes a shard's files, each atomically."""
    name = f"{index:05d}"
    ids = np.concatenate([piece.ids for piece in pieces])
    sentences = np.cumsum(np.concatenate([piece.sentences for piece in pieces]), dtype=np.uint32)
    documents = np.cumsum(np.concatenate([piece.documents for piece in pieces]), dtype=np.uint32)
    checksums = {}
    for part, values in zip(PARTS, (ids, sentences, documents), strict=True):
        with new_file(folder / f"{name}.{part}") as aside:
            values.tofile(aside)
            checksums[part] = checksum(aside)
    return Shard(name, len(ids), len(sentences), len(documents), checksums)


def write_manifest(folder: Path, shards: list[Shard], dtype: np.dtype, facts: dict[str, Any]) -> None:
    """Writes the manifest, which makes the store complete."""
    counts = {name: sum(getattr(shard, name) for shard in shards) for name in ("documents", "sentences", "tokens")}
    content = {"format": FORMAT, **counts, "dtype": dtype.name, **facts, "shards": [asdict(shard) for shard in shards]}
    write_text(folder / "manifest.json", json.dumps(content, indent=2) + "\n")
