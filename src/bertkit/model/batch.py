"""A packed batch: all tokens of all sequences in one row, and where each sequence begins and ends.

It is laid out in numpy and computed in torch, or by ONNX Runtime where there is no torch; `map` takes it there.

T tokens, B sequences, n sequences of a bucket, L its length.
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
    """Sequences of about one length, as a grid. Only attention looks at a batch this way."""

    tokens: Tensor  # [n, L] places in the row; beyond a sequence's end, any place
    inside: Tensor | None  # [n, 1, 1, L] whether the place belongs to the sequence; None if all do

    @property
    def there(self) -> Tensor:
        """The same as [n, L], in any case."""
        return self.tokens >= 0 if self.inside is None else self.inside[:, 0, 0]


@dataclass(frozen=True)
class Batch:
    """What an encoder takes. Built by data.packing; nothing in it is padded, except by choice at the row's end."""

    ids: Tensor  # [T]
    segments: Tensor  # [T]
    positions: Tensor  # [T] 0, 1, 2, … within each sequence
    boundaries: Tensor  # [B + 1] int32: sequence b is row[boundaries[b] : boundaries[b + 1]]
    longest: int  # at least the longest sequence's length
    buckets: tuple[Bucket, ...]  # the sequences as grids, in order of length
    order: Tensor  # [T] where each token is found in the flattened, concatenated buckets

    @property
    def sequences(self) -> int:
        return len(self.boundaries) - 1

    @property
    def firsts(self) -> Tensor:
        """[B] the place of each sequence's first token, [CLS]."""
        return self.boundaries[:-1].clamp(max=len(self.ids) - 1)  # empty sequences of a fixed shape lie at the end

    def to(self, device: torch.device | str) -> Self:
        """The same batch on another device."""
        return self.map(lambda tensor: tensor.to(device))

    def map(self, change: Callable[[Any], Any]) -> Self:
        """The same batch with each of its tensors or arrays changed."""
        rows = {name: change(getattr(self, name)) for name in ("ids", "segments", "positions", "boundaries", "order")}
        grids = (Bucket(change(b.tokens), None if b.inside is None else change(b.inside)) for b in self.buckets)
        return replace(self, **rows, buckets=tuple(grids))  # type: ignore[arg-type]
