"""What the encoder reads of a record: one sequence, several to choose from, or windows of a long one. No torch here."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from bertkit.errors import InputError
from bertkit.text.tokenizer import Encoding, Pieces, Tokenizer

NOTHING = -100  # a target that counts for no loss


@dataclass(frozen=True)
class Input:
    """One sequence, and what is to be told of it at some of its tokens."""

    ids: np.ndarray  # [T]
    segments: np.ndarray  # [T]
    places: np.ndarray  # [M] tokens at which something is told: [CLS], the first pieces of words, or all
    targets: np.ndarray  # the task's own, NOTHING or no number where nothing is known
    origin: Any = None  # what decoding needs: word numbers, or characters of the text

    @classmethod
    def of(cls, encoding: Encoding, targets: Any) -> Self:
        """A sequence that is judged by its first token."""
        return cls(encoding.ids, encoding.segments, np.zeros(1, np.int64), np.asarray(targets))

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Layout:
    """How a task's inputs lie in a batch."""

    by_unit: bool = False  # places are grouped by unit, else by input
    picks: bool = False  # a target is the number of a place in its group, else each place has its own
    capacity: float = 0.0  # places for each token of a fixed row; 0: one for each sequence


def known(targets: np.ndarray) -> np.ndarray:
    """Where there is a target: numbers that are no number, and classes that are NOTHING, are none."""
    return ~np.isnan(targets) if targets.dtype.kind == "f" else targets != NOTHING


def cut_windows(count: int, room: int, stride: int) -> Iterator[slice]:
    """Parts of at most `room` that begin every `stride`, up to one that reaches the end."""
    if room < 1 or not 1 <= stride <= room:
        raise InputError(f"windows of {room} pieces every {stride}; expected room for one, and a stride of 1 to that many")
    for begin in range(0, max(1, count - room + stride), stride):
        yield slice(begin, min(begin + room, count))


def text_windows(tokenizer: Tokenizer, a: Pieces, b: Pieces | None, length: int, stride: int) -> list[Encoding]:
    """A text, or a pair, in windows over its longer part; with no stride it is cut off instead."""
    room = length - (2 if b is None else 2 + tokenizer.between)
    if not stride or len(a) + (0 if b is None else len(b)) <= room:
        return [tokenizer.join(a, b, max_length=length)]
    if b is None:
        return [tokenizer.join(a[part]) for part in cut_windows(len(a), room, min(stride, room))]
    short_first = len(a) <= len(b)
    short, long = (a, b) if short_first else (b, a)
    short = short[: room // 2]
    room -= len(short)
    parts = [long[part] for part in cut_windows(len(long), room, min(stride, room))]
    return [tokenizer.join(short, part) if short_first else tokenizer.join(part, short) for part in parts]
