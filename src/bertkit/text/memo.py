"""The fast way to encode a corpus: every white-space-separated chunk is encoded once and remembered.

Chunks of natural text repeat, and in WordPiece a chunk's pieces do not depend on its neighbours: the normaliser works
character by character and the pre-tokenizer always splits at white space. So a corpus is a look-up per chunk and one
numpy expansion per batch, with the library called only for chunks not seen before. The ids are the library's own. Other
kinds of tokenizer look beyond white space, and go through the library's batch call.
"""

from array import array
from collections.abc import Sequence
from itertools import chain

import numpy as np

from bertkit.text.chunks import Numbering, cut
from bertkit.text.tokenizer import Tokenizer, checked


class CorpusEncoder:
    """Texts to ids, many times faster than the library's batch call, within about `memo_bytes` of memory."""

    def __init__(self, tokenizer: Tokenizer, *, memo_bytes: int = 512 * 2**20):
        self.tokenizer = tokenizer
        self.memo_bytes = memo_bytes
        self._forget()

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """All ids in one row [T] int32, and the boundaries [len(texts) + 1] int64 of the texts in it."""
        if self.tokenizer.kind != "wordpiece":
            rows = self.tokenizer.ids(texts)
            bounds = np.cumsum([0, *map(len, rows)])
            return np.fromiter(chain.from_iterable(rows), np.int32, bounds[-1]), bounds
        if self.used_bytes > self.memo_bytes:
            self._forget()
        with checked(texts):
            chunks = cut(texts)
        numbers, new = self._numbering.number(chunks)
        self._learn(new)
        ends = np.asarray(self._bounds)[numbers + 1]
        sizes = ends - np.asarray(self._bounds)[numbers]
        row_ends = np.cumsum(sizes)
        source = np.repeat(ends - row_ends, sizes) + np.arange(sizes.sum())
        return np.asarray(self._ids)[source], np.append(0, row_ends)[chunks.boundaries]

    @property
    def used_bytes(self) -> int:
        """The memo's size, about; it is emptied before a batch that finds it over `memo_bytes`."""
        return self._numbering.size + 8 * len(self._bounds) + 4 * len(self._ids)

    def _learn(self, new: list[str]) -> None:
        """Encodes new chunks as one text, and appends their pieces to the tables, in order of their numbers."""
        ids, places = self.tokenizer.ids_and_places(" ".join(new))
        ends = np.cumsum(np.fromiter(map(len, new), np.int64, len(new)) + 1)
        sizes = np.bincount(np.searchsorted(ends, places, side="right"), minlength=len(new))
        self._bounds.frombytes((len(self._ids) + np.cumsum(sizes)).tobytes())
        self._ids.frombytes(ids.tobytes())

    def _forget(self) -> None:
        self._numbering = Numbering()
        # They grow without a copy each time: the pieces of chunk n are ids[bounds[n] : bounds[n + 1]].
        self._ids, self._bounds = array("i"), array("q", [0])
