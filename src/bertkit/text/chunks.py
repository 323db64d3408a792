"""Splits text at white space into chunks and numbers them in numpy, with no Python object for a chunk seen before.

A chunk of up to sixteen UTF-8 bytes is its own key, two 64-bit words wide, so equal keys mean equal chunks. Longer chunks,
rare in natural text, are numbered through a dictionary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

KEY_BYTES = 16
BLOCK = 2**15  # chunks processed at a time, so that their arrays stay in the cache
LONG_CHUNK = 1024  # characters; longer chunks rarely repeat and are not remembered
# Control characters that are white space in Unicode, but that BERT's normalizer deletes.
DELETED = "\x0b\x0c\x1c\x1d\x1e\x1f\x85"
# What the normalizer treats as white space beyond ASCII: Zs, Zl, Zp.
WIDE_SPACES = "\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_UNUSUAL = re.compile(f"[{DELETED}{WIDE_SPACES}]")
_LOW_BYTES = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)  # keeps the first `size` bytes of a word
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)  # odd, with well-mixed bits


@dataclass(frozen=True)
class Chunks:
    """The byte ranges of the chunks of some texts."""

    content: bytes  # the texts, one after the other, then KEY_BYTES zeros
    begins: np.ndarray
    ends: np.ndarray
    boundaries: np.ndarray  # [texts + 1]; the chunks of text i are boundaries[i] … boundaries[i + 1]

    def part(self, places: slice) -> Chunks:
        return Chunks(self.content, self.begins[places], self.ends[places], self.boundaries)

    def texts(self, chosen: np.ndarray) -> list[str]:
        """Returns the chosen chunks as strings."""
        spans = zip(self.begins[chosen].tolist(), self.ends[chosen].tolist(), strict=True)
        return [self.content[begin:end].decode() for begin, end in spans]


def cut(texts: Sequence[str]) -> Chunks:
    """Returns the chunks of the texts, split exactly where the normalizer sees white space."""
    parts = [_UNUSUAL.sub(lambda found: "" if found[0] in DELETED else " ", text).encode() for text in texts]
    content = b"\n".join([*parts, bytes(KEY_BYTES)])
    octets = np.frombuffer(content, np.uint8)[:-KEY_BYTES]
    inside = (octets != 0x20) & (octets != 0x0A) & (octets != 0x09) & (octets != 0x0D)
    edges = np.flatnonzero(np.diff(inside, prepend=False, append=False))
    begins, ends = edges[0::2], edges[1::2]
    text_begins = np.cumsum([0, *(len(part) + 1 for part in parts)])
    return Chunks(content, begins, ends, np.searchsorted(begins, text_begins))


def _words(octets: np.ndarray) -> np.ndarray:
    """Returns a view of the eight bytes at every offset, as one number each."""
    return np.ndarray(len(octets) - 7, "<u8", octets, strides=(1,))


class Numbering:
    """Gives each distinct chunk a permanent number, 0, 1, 2, …: a hash table with linear probing and bulk operations."""

    def __init__(self) -> None:
        self.count = 0
        self._long, self._long_size = dict[str, int](), 0
        self._numbers = np.full(2 * BLOCK, -1, np.int32)  # by slot; at most half are taken
        self._low, self._high = np.zeros((2, BLOCK), np.uint64)  # keys by number, with room for as many

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return self._numbers.nbytes + self._low.nbytes + self._high.nbytes + self._long_size

    def number(self, chunks: Chunks) -> tuple[np.ndarray, list[str]]:
        """Returns each chunk's number, and the new chunks in order of their numbers."""
        numbers, new = np.empty(len(chunks.begins), np.int32), list[str]()
        for begin in range(0, len(numbers), BLOCK):
            part = chunks.part(slice(begin, begin + BLOCK))
            new += self._number_block(part, numbers[begin : begin + BLOCK])
        return numbers, new

    def _number_block(self, chunks: Chunks, numbers: np.ndarray) -> list[str]:
        """Fills in the numbers of a block of chunks and returns the new chunks."""
        if 2 * (self.count + len(numbers)) > len(self._numbers):
            self._grow()
        lengths = chunks.ends - chunks.begins
        words = _words(np.frombuffer(chunks.content, np.uint8))
        low = words[chunks.begins] & _LOW_BYTES[np.minimum(lengths, 8)]
        high = words[np.minimum(chunks.begins + 8, len(words) - 1)] & _LOW_BYTES[(lengths - 8).clip(0, 8)]
        short = lengths <= KEY_BYTES
        first = self._number_short(low, high, numbers, np.flatnonzero(short))
        return chunks.texts(first) + self._number_long(numbers, np.flatnonzero(~short), chunks)

    def _grow(self) -> None:
        """Moves the numbers into a table of twice the size."""
        known = self._numbers[self._numbers >= 0]
        self._low, self._high = np.concatenate([[self._low, self._high], np.zeros((2, len(self._low)), np.uint64)], axis=1)
        self._numbers = np.full(2 * len(self._numbers), -1, np.int32)
        self._number_short(self._low, self._high, np.empty(len(self._low), np.int32), known, moving=True)

    def _number_short(
        self, low: np.ndarray, high: np.ndarray, numbers: np.ndarray, places: np.ndarray, *, moving: bool = False
    ) -> np.ndarray:
        """Looks up or inserts the keys (low, high) at the given places; returns the first place of each new key.

        All keys probe at once. A free slot goes to one of the keys that want it; a key that meets a different one moves on
        to the next slot. With `moving`, for a grown table, each key's place is the number it has already.
        """
        slots, new = self._slots(low, high), [np.empty(0, np.int64)]
        while len(places):
            there = slots[places]
            free = self._numbers[there] < 0
            if free.any():
                wanting, wanted = places[free], there[free]
                self._numbers[wanted] = wanting  # the last write wins
                winners = wanting[self._numbers[wanted] == wanting]
                given = winners if moving else self._fresh(len(winners))
                self._numbers[slots[winners]] = given
                self._low[given], self._high[given] = low[winners], high[winners]
                new.append(winners)
            held = self._numbers[there]
            found = (self._low[held] == low[places]) & (self._high[held] == high[places])
            numbers[places[found]] = held[found]
            places = places[~found]
            slots[places] = (slots[places] + 1) & (len(self._numbers) - 1)
        return np.concatenate(new)

    def _number_long(self, numbers: np.ndarray, places: np.ndarray, chunks: Chunks) -> list[str]:
        new = []
        for place, text in zip(places.tolist(), chunks.texts(places), strict=True):
            number = self._long.get(text)
            if number is None:
                number = int(self._fresh(1)[0])
                new.append(text)
                if len(text) <= LONG_CHUNK:
                    self._long[text] = number
                    self._long_size += 150 + len(text)  # a string and its dictionary slot
            numbers[place] = number
        return new

    def _fresh(self, many: int) -> np.ndarray:
        self.count += many
        return np.arange(self.count - many, self.count, dtype=np.int32)

    def _slots(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        mixed = low * _FACTORS[0] ^ high * _FACTORS[1]
        mixed ^= mixed >> np.uint64(32)
        return (mixed * _FACTORS[0] >> np.uint64(65 - len(self._numbers).bit_length())).astype(np.int64)
