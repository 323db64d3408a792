"""Packs inputs into batches, and decides the order in which fine-tuning sees them.

An epoch is a random order of units. A unit is the inputs that must stay together: the options of a question, the texts of a
pair, else one input. A step is the next `batch` units; if they do not fit one row, they are split over several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.data.draws import EPOCH, permute
from bertkit.data.packing import Packed, Shapes, cut_rows, filled, lay_row
from bertkit.data.windows import NOTHING, Input, Layout, known

if TYPE_CHECKING:
    from torch import Tensor

Unit = Sequence[Input]


@dataclass(frozen=True)
class TaskBatch(Packed):
    """A packed batch with targets at some of its tokens. Capacities may be fixed; unused slots have no target."""

    places: Tensor  # [M] positions in the row
    groups: Tensor  # [M] the sequence or unit that each place belongs to
    targets: Tensor  # in the task's own shape, NOTHING or NaN where there is none
    known: int  # number of actual targets
    tokens: int
    features: Tensor | None = None  # [T, n, D] precomputed by a frozen encoder

    def count(self, name: str) -> int:
        """Returns the divisor that turns a network's sum of this name into a mean."""
        return self.tokens if name.startswith("token_") else self.known


def pack_units(
    units: Sequence[Unit], layout: Layout, shapes: Shapes | None = None, *, stepped: bool = False, **how: Any
) -> TaskBatch:
    """Packs the inputs of all units into one batch, in order; `how` is passed to lay_row."""
    import torch  # not at the top: lay_units must work without torch

    data = lay_units(units, layout, shapes, **how)
    return (replace(data, batch=data.batch.stepped()) if stepped and not shapes else data).map(torch.from_numpy)


def lay_units(units: Sequence[Unit], layout: Layout, shapes: Shapes | None = None, **how: Any) -> TaskBatch:
    """Does the same in numpy arrays."""
    inputs = [one for unit in units for one in unit]
    sizes = np.array([len(one) for one in inputs], np.int64)
    begins = np.cumsum(sizes) - sizes
    ids, segments = (np.concatenate([getattr(one, name) for one in inputs]) for name in ("ids", "segments"))
    batch = lay_row(ids, segments, sizes, shapes, **how)
    together = units if layout.by_unit else [[one] for one in inputs]
    counts = [sum(len(one.places) for one in group) for group in together]
    places = np.concatenate([one.places + begin for one, begin in zip(inputs, begins, strict=True)])
    groups = np.repeat(np.arange(len(counts)), counts)
    targets = _targets([group[0].targets for group in together], layout, np.cumsum(counts) - counts)
    told = known(targets)
    count = int((told.any(1) if told.ndim > 1 else told).sum())
    if shapes:
        room = int(layout.capacity * shapes.budget) or batch.sequences
        places, groups = filled(places, room, 0), filled(groups, room, batch.sequences)
        filler = float("nan") if targets.dtype.kind == "f" else NOTHING
        targets = filled(targets, batch.sequences if layout.picks else room, filler)
    places, groups, targets = map(np.ascontiguousarray, (places, groups, targets))
    return TaskBatch(batch, places, groups, targets, count, len(ids))  # type: ignore[arg-type]


def _targets(each: list[np.ndarray], layout: Layout, begins: np.ndarray) -> np.ndarray:
    """Returns the targets of all places or units, or for each group the indices of the places to pick."""
    if not layout.picks:
        return np.concatenate(each)
    picked = np.stack(each).astype(np.int64)
    return np.where(picked == NOTHING, NOTHING, picked + begins[:, None])


class InputFeed:
    """Endless steps of `batch` units, in a new order each epoch; rows hold `row_tokens`, or the longest unit."""

    stepped = False  # whether rows without a fixed shape are filled up to one of few lengths

    def __init__(self, units: Sequence[Unit], layout: Layout, *, batch: int, seed: int, row_tokens: int, grids: bool):
        self.units, self.layout, self.batch, self.seed, self.grids = units, layout, batch, seed, grids
        self.sizes = np.array([sum(map(len, unit)) for unit in units], np.int64)
        self.row_tokens = max(row_tokens, int(self.sizes.max()))
        self.steps = -(-len(units) // batch)  # per epoch
        self.shapes = list[Shapes]()
        self.features: Callable[[np.ndarray], Tensor] | None = None  # precomputed, by units' indices
        self._order = (-1, np.zeros(0, np.int64))  # an epoch, and the order of its units

    def rows(self, cursor: int) -> tuple[list[TaskBatch], int]:
        """Returns the rows of the step at a cursor, and the next cursor."""
        epoch, index = divmod(cursor, EPOCH)
        members = self._members(epoch, index)
        behind = cursor + len(members) if index + len(members) < len(self.units) else (epoch + 1) * EPOCH
        return [self._pack(part) for part in self._parts(members)], behind

    def _members(self, epoch: int, index: int) -> np.ndarray:
        if self._order[0] != epoch:
            self._order = (epoch, permute(np.arange(len(self.units)), len(self.units), self.seed, epoch))
        return self._order[1][index : index + self.batch]

    def _parts(self, members: np.ndarray) -> Iterator[np.ndarray]:
        """Splits a step's units into rows."""
        return (members[part] for part in cut_rows(self.sizes[members], self.row_tokens))

    def fix_shapes(self) -> None:
        """Chooses two row sizes that fit nearly all steps; a step beyond the larger one is split over several rows."""
        steps = range(0, self.steps, max(1, self.steps // 256))
        totals = [self.sizes[part].sum() for step in steps for part in self._parts(self._members(0, step * self.batch))]
        longest = 2 ** max(4, (max(len(one) for unit in self.units for one in unit) - 1).bit_length())
        floor = max(longest, int(self.sizes.max()))
        sizes = {-(-max(floor, int(size)) // 128) * 128 for size in np.quantile(totals, [0.6, 0.98])}
        inputs = self.batch * max(map(len, self.units)) + 0.5
        self.shapes = [Shapes(size, (longest,), crowding=inputs * longest / size) for size in sorted(sizes)]
        self.row_tokens = min(self.row_tokens, max(sizes))

    def _pack(self, members: np.ndarray) -> TaskBatch:
        fitting = next((shapes for shapes in self.shapes if shapes.budget >= self.sizes[members].sum()), None)
        units = [self.units[index] for index in members]
        batch = pack_units(units, self.layout, fitting, stepped=self.stepped, grids=self.grids)
        return replace(batch, features=self.features(members)) if self.features else batch
