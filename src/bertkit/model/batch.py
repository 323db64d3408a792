"""A packed batch: all tokens of all sequences in one row, and where each sequence begins and ends.

It is built in numpy and used by torch, or by ONNX Runtime where there is no torch; `map` converts it.

T tokens, B sequences; a bucket has n sequences and length L.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Bucket:
    """Sequences of similar length, as a grid. Only attention uses this view of a batch."""

    tokens: Tensor  # [n, L] indices into the row; beyond a sequence's end, any valid index
    inside: Tensor | None  # [n, 1, 1, L] whether the token belongs to the sequence; None if all do

    @property
    def there(self) -> Tensor:
        """`inside` as [n, L], never None."""
        return self.tokens >= 0 if self.inside is None else self.inside[:, 0, 0]


def stepped(count: int) -> int:
    """Rounds a row's length up to one of eight steps between a power of two and the next, and to a multiple of eight."""
    step = max(8, 1 << (count - 1).bit_length() >> 4)
    return -(-count // step) * step


@dataclass(frozen=True)
class Batch:
    """The input of an encoder, built by data.packing. Nothing is padded, except the end of the row on request."""

    ids: Tensor  # [T]
    segments: Tensor  # [T]
    positions: Tensor  # [T] 0, 1, 2, … within each sequence
    boundaries: Tensor  # [B + 1] int32: sequence b is row[boundaries[b] : boundaries[b + 1]]
    longest: int  # at least the longest sequence's length
    buckets: tuple[Bucket, ...]  # the sequences as grids, in order of length
    order: Tensor  # [T] index of each token in the flattened, concatenated buckets

    @property
    def sequences(self) -> int:
        return len(self.boundaries) - 1

    @property
    def firsts(self) -> Tensor:
        """[B] the index of each sequence's first token, [CLS]."""
        return self.boundaries[:-1].clamp(max=len(self.ids) - 1)  # a fixed shape's empty sequences begin at the row's end

    def stepped(self) -> Self:
        """Returns a batch of arrays filled up at the end of the row, so that there are few row lengths."""
        if not (fill := stepped(len(self.ids)) - len(self.ids)):
            return self
        names = ("ids", "segments", "positions", "order")
        rows: Any = {name: np.append(getattr(self, name), np.zeros(fill, np.int64)) for name in names}
        return replace(self, **rows, boundaries=np.append(self.boundaries, np.int32(len(rows["ids"]))))  # type: ignore[arg-type]

    def to(self, device: torch.device | str) -> Self:
        """Returns the batch on another device."""
        return self.map(lambda tensor: tensor.to(device))

    def map(self, change: Callable[[Any], Any]) -> Self:
        """Returns a copy with each tensor or array changed."""
        rows = {name: change(getattr(self, name)) for name in ("ids", "segments", "positions", "boundaries", "order")}
        grids = (Bucket(change(b.tokens), None if b.inside is None else change(b.inside)) for b in self.buckets)
        return replace(self, **rows, buckets=tuple(grids))  # type: ignore[arg-type]
