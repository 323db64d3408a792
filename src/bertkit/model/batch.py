"""A packed batch: all tokens of all sequences in one row, and where each sequence begins and ends.

It is built in numpy and used by torch, or by ONNX Runtime where there is no torch; `map` converts it.

T tokens, B sequences; a bucket has n sequences and length L.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

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

    def to(self, device: torch.device | str) -> Self:
        """Returns the batch on another device."""
        return self.map(lambda tensor: tensor.to(device))

    def map(self, change: Callable[[Any], Any]) -> Self:
        """Returns a copy with each tensor or array changed."""
        rows = {name: change(getattr(self, name)) for name in ("ids", "segments", "positions", "boundaries", "order")}
        grids = (Bucket(change(b.tokens), None if b.inside is None else change(b.inside)) for b in self.buckets)
        return replace(self, **rows, buckets=tuple(grids))  # type: ignore[arg-type]
