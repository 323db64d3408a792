"""Packs sequences into batches: as many as fit a budget of tokens, one after the other, without padding.

A compiled model wants few shapes. Given `Shapes`, every row is filled up to the budget with filler tokens that belong to no
text, and everything else in the batch gets a fixed size too: one shape for each length.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from bertkit.data.engines import ahead
from bertkit.errors import InputError
from bertkit.model.batch import Batch, Bucket

BUDGET, GPU_BUDGET = 4096, 65_536  # tokens of a batch
SMALL = 4096  # scores per head that splitting a grid must save, as another grid costs time too

Sequences = Sequence[np.ndarray]  # of ids, or of segments


def budget_for(device: str, precision: str, *, filled: bool = False) -> int:
    """Returns the tokens of a batch on a kind of device: enough to keep a GPU busy while Python prepares the next. Half as
    many do in fp32, and for rows that are always filled up, so that a single text does not wait for a large one."""
    return BUDGET if device == "cpu" else GPU_BUDGET // (1 + (precision == "fp32")) // (1 + filled)


@dataclass(frozen=True)
class Shapes:
    """The only shapes that a compiled model sees: rows of `budget` tokens, and one grid for each length."""

    budget: int = BUDGET
    lengths: tuple[int, ...] = (32, 64, 128, 256, 512)
    crowding: float = 2.0  # sequences a row may hold, relative to the full-length ones that would fill it

    def length_for(self, longest: int) -> int:
        """Returns the shortest of the lengths that holds `longest`."""
        fitting = [length for length in self.lengths if longest <= length <= self.budget]
        if not fitting:
            raise InputError(f"a sequence of {longest} tokens fits none of the lengths {self.lengths}")
        return min(fitting)

    def sequences(self, length: int) -> int:
        """Returns how many sequences a row may hold: by default, enough to fill it with sequences of half the length."""
        return int(self.crowding * self.budget) // length


Fixed = Shapes | None  # None: rows of any shape


@dataclass(frozen=True)
class Packed:
    """A batch with further tensors or arrays, such as its targets."""

    batch: Batch

    def to(self, device: Any) -> Self:
        return self.map(lambda tensor: tensor.to(device))

    def map(self, change: Callable[[Any], Any]) -> Self:
        """Returns a copy with each tensor or array changed."""
        batch, beside = self.batch.map(change), {name: v for name, v in vars(self).items() if hasattr(v, "shape")}
        return replace(self, batch=batch, **{name: change(value) for name, value in beside.items()})


def lay(ids: Sequences, segments: Sequences | None = None, shapes: Fixed = None, *, grids: bool = True) -> Batch:
    """Packs the sequences into one batch of arrays, in order."""
    sizes = np.array([len(sequence) for sequence in ids], np.int64)
    if not len(sizes) or not sizes.all():
        raise InputError("a batch needs at least one sequence, and each sequence at least one token")
    row = np.concatenate(ids)
    return lay_row(row, np.zeros_like(row) if segments is None else np.concatenate(segments), sizes, shapes, grids=grids)


def lay_row(ids: np.ndarray, segments: np.ndarray, sizes: np.ndarray, shapes: Fixed = None, *, grids: bool = True) -> Batch:
    """Packs sequences that are already concatenated; without grids, only the packed kernels can use the batch."""
    longest = shapes.length_for(int(sizes.max())) if shapes else int(sizes.max())
    fill = shapes.budget - len(ids) if shapes else 0
    if shapes and (fill < 0 or len(sizes) > shapes.sequences(longest)):
        raise InputError(f"{len(sizes)} sequences of {len(ids)} tokens do not fit a row of {shapes.budget}")
    ends = np.cumsum(sizes)
    positions = np.arange(len(ids)) - np.repeat(ends - sizes, sizes)
    buckets, places = _buckets(sizes, ends - sizes, longest, shapes) if grids else ((), ends)
    return Batch(
        ids=_row(ids, fill),
        segments=_row(segments, fill),
        positions=_row(positions, fill),
        boundaries=_boundaries(ends, longest, len(ids) + fill, shapes),  # type: ignore[arg-type]
        longest=longest,
        buckets=buckets,
        order=_row(np.repeat(places, sizes) + positions, fill) if grids else _row(ids[:0], 0),
    )


def batches(
    ids: Sequences,
    segments: Sequences | None = None,
    use: Callable[[Batch], Any] = lambda batch: batch,
    *,
    budget: int = BUDGET,
    shapes: Fixed = None,
    grids: bool = True,
    threads: int = 1,
) -> Iterator[tuple[np.ndarray, Any]]:
    """Yields batches of similar lengths, longest first, as arrays or as what `use` makes of them, each after the indices of
    its sequences. Up to `threads` of them are in use at once."""
    sizes = np.array([len(sequence) for sequence in ids], np.int64)

    def laid(members: np.ndarray) -> Batch:
        part = None if segments is None else [segments[index] for index in members]
        return lay([ids[index] for index in members], part, shapes, grids=grids)

    groups = group_by_length(sizes, shapes.budget if shapes else budget, shapes)
    return ahead(laid, use, groups, texts=len(sizes), threads=threads)


def _buckets(sizes: np.ndarray, begins: np.ndarray, longest: int, shapes: Fixed) -> tuple[tuple[Bucket, ...], np.ndarray]:
    """Returns the sequences as grids (one if the shape is fixed), and where each sequence begins in the flattened grids."""
    buckets, places, before = list[Bucket](), np.zeros(len(sizes), np.int64), 0
    for members in [np.arange(len(sizes))] if shapes else _cut(np.argsort(sizes, kind="stable"), sizes):
        length, rows = (longest, shapes.sequences(longest)) if shapes else (int(sizes[members[-1]]), len(members))
        # Rows beyond the members repeat the row's first token and are never read.
        lengths, first = filled(sizes[members], rows, 1), filled(begins[members], rows, 0)
        column = np.arange(length)
        tokens, inside = first[:, None] + np.minimum(column, lengths[:, None] - 1), column < lengths[:, None]
        full = inside.all() and rows == len(members)
        buckets.append(Bucket(tokens, None if full else inside[:, None, None, :]))  # type: ignore[arg-type]
        places[members] = before + length * np.arange(len(members))
        before += length * rows
    return tuple(buckets), places


def _cut(members: np.ndarray, sizes: np.ndarray) -> Iterator[np.ndarray]:
    """Splits sequences sorted by length where that saves most scores, and each part again, until it saves too little."""
    lengths, counts = sizes[members], np.arange(1, len(members) + 1)
    scores = counts * lengths**2 + (len(members) - counts) * lengths[-1] ** 2  # of both grids, by size of the first
    if scores[-1] - scores.min() <= SMALL:
        yield members
    else:
        best = int(scores.argmin()) + 1
        yield from _cut(members[:best], sizes)
        yield from _cut(members[best:], sizes)


def _boundaries(ends: np.ndarray, longest: int, total: int, shapes: Fixed) -> np.ndarray:
    """Returns where sequences begin and end. Filler is cut into sequences too; a fixed shape ends with empty ones."""
    filler = np.arange(ends[-1] + longest, total + longest, longest).clip(max=total)
    bounds = np.concatenate([[0], ends, filler])
    if shapes:
        most = 1 + shapes.sequences(longest) + -(-total // longest)  # of both sequences and filler
        bounds = filled(bounds, most, total)
    return bounds.astype(np.int32)


def _row(values: np.ndarray, fill: int) -> Any:
    return np.concatenate([values, np.zeros(fill, np.int64)], dtype=np.int64)


def filled(values: np.ndarray, size: int, filler: float) -> Any:
    """Returns the values, filled up to a size."""
    return np.concatenate([values, np.full((size - len(values), *values.shape[1:]), filler, values.dtype)])


def group_by_length(sizes: np.ndarray, budget: int, shapes: Fixed = None) -> Iterator[np.ndarray]:
    """Yields the indices of sequences that share a batch, by length, longest first."""
    order = np.argsort(-sizes, kind="stable")
    return (order[part] for part in cut_rows(sizes[order], budget, shapes))


def cut_rows(sizes: np.ndarray, budget: int, shapes: Fixed = None) -> Iterator[slice]:
    """Yields slices that fit the budget and, with shapes, the number of sequences allowed at the first one's length."""
    ends, begin = np.cumsum(sizes), 0
    while begin < len(sizes):
        end = int(np.searchsorted(ends, ends[begin] - sizes[begin] + budget, side="right"))
        if shapes:
            end = min(end, begin + shapes.sequences(shapes.length_for(int(sizes[begin]))))
        end = max(end, begin + 1)
        yield slice(begin, end)
        begin = end
