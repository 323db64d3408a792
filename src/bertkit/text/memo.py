"""The fast way to encode a corpus: every white-space-separated chunk is encoded once and remembered.

Chunks of natural text repeat, and a chunk's pieces do not depend on its neighbours: the normaliser works character by
character and the pre-tokenizer always splits at white space. So a corpus is a look-up per chunk and one numpy
expansion per batch, with the library called only for chunks not seen before. The ids are the library's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertkit.text.tokenizer import Tokenizer

LONG_CHUNK = 256  # characters; longer chunks hardly repeat and are not remembered
CHUNK_COST = 120  # bytes of a remembered chunk beside its characters and ids: string header, dict slot, tables
# Control characters at which str.split() cuts, but which the normaliser deletes.
DELETED = "\x0b\x0c\x1c\x1d\x1e\x1f\x85"


class CorpusEncoder:
    """Texts to ids, several times faster than the library's batch call, within `memo_bytes` of memory."""

    def __init__(self, tokenizer: Tokenizer, *, memo_bytes: int = 512 * 2**20):
        self.tokenizer = tokenizer
        self.memo_bytes = memo_bytes
        self._forget()

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """All ids in one row [T] int32, and the boundaries [len(texts) + 1] int64 of the texts in it."""
        if self.used_bytes > self.memo_bytes:
            self._forget()
        chunks = [self._look_up(text) for text in texts]
        self._learn()
        places = np.concatenate([*chunks, np.zeros(0, np.int32)])
        sizes = self._sizes[places]
        ends = np.cumsum(sizes)
        source = np.repeat(self._begins[places] - (ends - sizes), sizes) + np.arange(sizes.sum())
        boundaries = np.append(0, ends)[np.append(0, np.cumsum([len(chunk) for chunk in chunks], dtype=np.int64))]
        return self._ids[source], boundaries

    @property
    def used_bytes(self) -> int:
        """The memo's size, about; it is emptied before a batch that finds it over `memo_bytes`."""
        return self._known.size

    def _look_up(self, text: str) -> np.ndarray:
        """The places of a text's chunks in the tables; unknown chunks get the next places."""
        for character in DELETED:
            if character in text:
                text = text.replace(character, "")
        chunks = text.split()
        return np.fromiter(map(self._known.__getitem__, chunks), np.int32, len(chunks))

    def _learn(self) -> None:
        """Encodes the chunks that were new in this batch, as one text, and appends their pieces to the tables."""
        new, self._known.new = self._known.new, []
        if not new:
            return
        ids, begins = self.tokenizer.ids_and_places(" ".join(new))
        ends = np.cumsum(np.fromiter(map(len, new), np.int64, len(new)) + 1)
        sizes = np.bincount(np.searchsorted(ends, begins, side="right"), minlength=len(new))
        self._begins.append(self._ids.used + np.cumsum(sizes) - sizes)
        self._sizes.append(sizes)
        self._ids.append(ids)
        self._known.size += 4 * len(ids)

    def _forget(self) -> None:
        self._known = _Known()
        self._ids, self._sizes, self._begins = _Growing(np.int32), _Growing(np.int64), _Growing(np.int64)


class _Known(dict[str, int]):
    """chunk → its place in the tables; a new chunk takes the next place and waits in `new`."""

    def __init__(self) -> None:
        super().__init__()
        self.new = list[str]()
        self.places = 0
        self.size = 0  # bytes, about

    def __missing__(self, chunk: str) -> int:
        place = self.places
        self.places += 1
        self.new.append(chunk)
        self.size += CHUNK_COST
        if len(chunk) <= LONG_CHUNK:
            self[chunk] = place
            self.size += len(chunk)
        return place


class _Growing:
    """A one-dimensional array that grows at its end without being copied each time."""

    def __init__(self, dtype: type):
        self.values: np.ndarray = np.zeros(1024, dtype)
        self.used = 0

    def append(self, values: np.ndarray) -> None:
        needed = self.used + len(values)
        if needed > len(self.values):
            grown = np.zeros(max(needed, 2 * len(self.values)), self.values.dtype)
            grown[: self.used] = self.values[: self.used]
            self.values = grown
        self.values[self.used : needed] = values
        self.used = needed

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        return self.values[places]
