"""Turns records into encoder inputs: one sequence, several options, or windows of a long text. Does not import torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from bertkit.errors import InputError
from bertkit.text.tokenizer import Encoding, Pieces, Tokenizer

NOTHING = -100  # a target that every loss ignores


@dataclass(frozen=True)
class Input:
    """One sequence, with targets at some of its tokens."""

    ids: np.ndarray  # [T]
    segments: np.ndarray  # [T]
    places: np.ndarray  # [M] positions with a prediction: [CLS], the first pieces of words, or all
    targets: np.ndarray  # in the task's own shape; NOTHING or NaN where unknown
    origin: Any = None  # what decoding needs: word indices, or character offsets

    @classmethod
    def of(cls, encoding: Encoding, targets: Any) -> Self:
        """Returns a sequence whose prediction is made at its first token."""
        return cls(encoding.ids, encoding.segments, np.zeros(1, np.int64), np.asarray(targets))

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Layout:
    """How a task's inputs lie in a batch."""

    by_unit: bool = False  # places are grouped by unit, else by input
    picks: bool = False  # a target is the index of a place in its group; else each place has a target
    capacity: float = 0.0  # places per token of a fixed row; 0: one per sequence


def known(targets: np.ndarray) -> np.ndarray:
    """Returns where there is a target: NaN, among floats, and NOTHING, among classes, mean none."""
    return ~np.isnan(targets) if targets.dtype.kind == "f" else targets != NOTHING


def cut_windows(count: int, room: int, stride: int) -> Iterator[slice]:
    """Yields slices of at most `room` that begin every `stride`, up to one that reaches the end."""
    if room < 1 or not 1 <= stride <= room:
        raise InputError(f"windows of {room} pieces every {stride}; expected room for one, and a stride of 1 to that many")
    for begin in range(0, max(1, count - room + stride), stride):
        yield slice(begin, min(begin + room, count))


def text_windows(tokenizer: Tokenizer, a: Pieces, b: Pieces | None, length: int, stride: int) -> list[Encoding]:
    """Returns a text or pair as windows over its longer part; without a stride, truncates it instead."""
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
