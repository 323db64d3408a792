"""Cuts text into white-space-separated chunks and numbers them, in numpy: no Python object is made for a chunk seen before.

A chunk of up to sixteen bytes in UTF-8 is its own key, two 64-bit words wide, so equal keys are equal chunks. Longer ones,
rare in natural text, are numbered by a dictionary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

KEY_BYTES = 16
BLOCK = 2**15  # chunks worked on at a time: their arrays stay in the cache
LONG_CHUNK = 1024  # characters; longer chunks hardly repeat and are not remembered
# Control characters at which Unicode would cut, but which BERT's normaliser deletes.
DELETED = "\x0b\x0c\x1c\x1d\x1e\x1f\x85"
# White space beyond ASCII, as the normaliser sees it (Zs, Zl, Zp), in UTF-8: two or three bytes.
WIDE_SPACES = tuple(
    chr(code).encode() for code in (0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)
)
_LOW_BYTES = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)  # the first `size` bytes of a word
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)  # odd, with their bits well mixed


@dataclass(frozen=True)
class Chunks:
    """Where the chunks of some texts lie in their bytes."""

    content: bytes  # the texts, one after the other, and KEY_BYTES zeros
    begins: np.ndarray
    ends: np.ndarray
    boundaries: np.ndarray  # [texts + 1] the chunks of text i are boundaries[i] … boundaries[i + 1]

    def part(self, places: slice) -> Chunks:
        return Chunks(self.content, self.begins[places], self.ends[places], self.boundaries)

    def texts(self, chosen: np.ndarray) -> list[str]:
        """The chosen chunks as strings."""
        spans = zip(self.begins[chosen].tolist(), self.ends[chosen].tolist(), strict=True)
        return [self.content[begin:end].decode() for begin, end in spans]


def cut(texts: Sequence[str]) -> Chunks:
    """The chunks of the texts: cut where the normaliser sees white space, and nowhere else."""
    parts = [text.encode() for text in texts]
    content = bytearray(b"\n".join([*parts, bytes(KEY_BYTES)]))
    if any(character.encode() in content for character in DELETED):
        return cut([text.translate(dict.fromkeys(map(ord, DELETED))) for text in texts])
    _widen(content)
    octets = np.frombuffer(content, np.uint8)[: len(content) - KEY_BYTES]
    inside = (octets != 0x20) & (octets != 0x0A) & (octets != 0x09) & (octets != 0x0D)
    edges = np.flatnonzero(np.diff(inside, prepend=False, append=False))
    begins, ends = edges[0::2], edges[1::2]
    text_begins = np.cumsum([0, *(len(part) + 1 for part in parts)])
    return Chunks(bytes(content), begins, ends, np.searchsorted(begins, text_begins))


def _widen(content: bytearray) -> None:
    """Overwrites white space beyond ASCII with as many blanks."""
    octets = np.frombuffer(content, np.uint8)
    leads = np.flatnonzero((octets == 0xC2) | (octets >= 0xE1) & (octets <= 0xE3))
    if not len(leads):
        return
    words = _words(octets)[leads]
    for space in WIDE_SPACES:
        size = len(space)
        for place in leads[words & _LOW_BYTES[size] == int.from_bytes(space, "little")].tolist():
            content[place : place + size] = b" " * size


def _words(octets: np.ndarray) -> np.ndarray:
    """The eight bytes from every place on, as one number each: a view, nothing is copied."""
    return np.ndarray(len(octets) - 7, "<u8", octets, strides=(1,))


class Numbering:
    """Gives each distinct chunk a number, 0, 1, 2, …, for good: a hash table with linear probing, worked on in bulk."""

    def __init__(self) -> None:
        self.count = 0
        self.size = 0  # bytes, about
        self._long = dict[str, int]()
        self._used = 0
        self._make_table(2 * BLOCK)

    def number(self, chunks: Chunks) -> tuple[np.ndarray, list[str]]:
        """Each chunk's number, and the chunks that are new, in order of their numbers."""
        numbers, new = np.empty(len(chunks.begins), np.int32), list[str]()
        for begin in range(0, len(numbers), BLOCK):
            part = chunks.part(slice(begin, begin + BLOCK))
            new += self._number_block(part, numbers[begin : begin + BLOCK])
        return numbers, new

    def _number_block(self, chunks: Chunks, numbers: np.ndarray) -> list[str]:
        """Fills in the numbers of a block of chunks; returns the new ones."""
        lengths = chunks.ends - chunks.begins
        words = _words(np.frombuffer(chunks.content, np.uint8))
        low = words[chunks.begins] & _LOW_BYTES[np.minimum(lengths, 8)]
        high = words[np.minimum(chunks.begins + 8, len(words) - 1)] & _LOW_BYTES[(lengths - 8).clip(0, 8)]
        short = lengths <= KEY_BYTES
        first = self._number_short(low, high, numbers, np.flatnonzero(short))
        return chunks.texts(first) + self._number_long(numbers, np.flatnonzero(~short), chunks)

    def _number_short(self, low: np.ndarray, high: np.ndarray, numbers: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Finds the keys (low, high) at the given places, or enters them; returns where each new one stood first.

        All look at their slot at once. A free slot goes to one of those that want it; who finds another key there moves on.
        """
        self._make_room(len(places))
        slots = self._slots(low, high)
        new = []
        while len(places):
            there = slots[places]
            free = self._numbers[there] < 0
            if free.any():
                wanting, wanted = places[free], there[free]
                self._numbers[wanted] = wanting  # the last one stays, and wins
                winners = wanting[self._numbers[wanted] == wanting]
                self._numbers[slots[winners]] = self._fresh(len(winners))
                self._low[slots[winners]], self._high[slots[winners]] = low[winners], high[winners]
                new.append(winners)
            found = (self._low[there] == low[places]) & (self._high[there] == high[places])
            numbers[places[found]] = self._numbers[there[found]]
            places = places[~found]
            slots[places] = (slots[places] + 1) & self._last
        self._used += sum(map(len, new))
        return np.concatenate([*new, np.empty(0, np.int64)])

    def _number_long(self, numbers: np.ndarray, places: np.ndarray, chunks: Chunks) -> list[str]:
        new = []
        for place, text in zip(places.tolist(), chunks.texts(places), strict=True):
            number = self._long.get(text)
            if number is None:
                number = int(self._fresh(1)[0])
                new.append(text)
                if len(text) <= LONG_CHUNK:
                    self._long[text] = number
                    self.size += 150 + len(text)  # a string and its slot in a dictionary
            numbers[place] = number
        return new

    def _fresh(self, many: int) -> np.ndarray:
        self.count += many
        return np.arange(self.count - many, self.count, dtype=np.int32)

    def _make_room(self, more: int) -> None:
        """Keeps the table at most half full: a larger one takes the numbers over."""
        if 2 * (self._used + more) <= len(self._numbers):
            return
        low, high, numbers = self._low, self._high, self._numbers
        self._make_table(2 * len(numbers))
        filled = np.flatnonzero(numbers >= 0)
        slots, waiting = self._slots(low[filled], high[filled]), np.arange(len(filled))
        while len(waiting):
            there = slots[waiting]
            free = self._numbers[there] < 0
            self._numbers[there[free]] = numbers[filled[waiting[free]]]
            settled = self._numbers[there] == numbers[filled[waiting]]
            at = filled[waiting[settled]]
            self._low[there[settled]], self._high[there[settled]] = low[at], high[at]
            waiting = waiting[~settled]
            slots[waiting] = (slots[waiting] + 1) & self._last

    def _make_table(self, slots: int) -> None:
        self._last, self._shift = slots - 1, np.uint64(64 - (slots - 1).bit_length())
        self._low, self._high = np.zeros(slots, np.uint64), np.zeros(slots, np.uint64)
        self._numbers = np.full(slots, -1, np.int32)
        self.size += 10 * slots if self._used else 20 * slots  # the table doubles

    def _slots(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        mixed = low * _FACTORS[0] ^ high * _FACTORS[1]
        mixed ^= mixed >> np.uint64(32)
        return (mixed * _FACTORS[0] >> self._shift).astype(np.int64)
