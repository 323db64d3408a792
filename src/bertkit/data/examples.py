"""Pre-training examples, drawn from the store while training: example i is a function of (store, settings, seed, i).

An epoch's examples are planned as spans of the store and visited in random order; a row takes as many consecutive examples
as fit its tokens. A cursor, epoch · 2^40 + the index of the next example, is the only state.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertkit.data.draws import EPOCH, draw, permute, uniform
from bertkit.data.masking import Masking, Row, choose, replace
from bertkit.data.packing import Packed, Shapes, filled, lay_row
from bertkit.data.pairs import Spans, plan_spans
from bertkit.data.store import Store
from bertkit.data.windows import NOTHING
from bertkit.errors import DataError
from bertkit.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class ExampleSettings:
    """Settings of the examples."""

    pairs: str = "next"
    length: int = 128
    short: float = 0.1
    masking: Masking = field(default_factory=Masking)
    causal: bool = False  # predict the next piece instead of masked pieces


@dataclass(frozen=True)
class Examples:
    """Some examples of an epoch, by their indices in its plan."""

    epoch: int
    numbers: np.ndarray
    late: bool = False  # in the second half of their epoch: time to plan the next


@dataclass(frozen=True)
class PretrainingBatch(Packed):
    """A packed batch with the targets of its two tasks. Capacities are fixed; unused slots have the target NOTHING."""

    places: Tensor  # [M] positions in the row at which pieces are to be predicted
    targets: Tensor  # [M]
    labels: Tensor  # [B] 0: B follows A
    size: Tensor  # [] tokens of examples; the rest of the row is filler
    hidden: int  # number of targets, without NOTHING
    pairs: int  # number of labels, without NOTHING
    tokens: int  # of examples, without filler

    def count(self, name: str) -> int:
        """Returns the divisor that turns a network's sum of this name into a mean: pairs, all tokens, or masked pieces."""
        return {"next": self.pairs, "token": self.tokens}.get(name.split("_")[0], self.hidden)


@dataclass(eq=False)
class ExampleSource:
    """Rows of examples from a store."""

    store: Store
    settings: ExampleSettings
    _: KW_ONLY
    seed: int
    tokens: int  # of a row
    grids: bool = True
    fixed: bool = True  # one shape for all rows; in grids, short examples are then padded
    held_out: float = 0.0  # share of documents kept for evaluation
    evaluation: bool = False  # use the held-out documents instead of the others

    def __post_init__(self) -> None:
        if self.tokens < (length := self.settings.length):
            found = f"a row of {self.tokens} tokens is shorter than an example of {length}"
            raise DataError(f"{found}; set row_tokens to that or more, batch_tokens to a multiple of it", self.store.path)
        self._plans = dict[int, Future[Spans]]()
        usual = float(self.plan(0).sizes.mean())
        self.shapes = Shapes(self.tokens, (length,), crowding=1.2 * length / usual)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the plans, so that sending it to another process is fast; that process plans by itself."""
        kept = (*(one.name for one in fields(self)), "shapes")
        return {name: getattr(self, name) for name in kept} | {"_plans": {}}

    @property
    def tokenizer(self) -> Tokenizer:
        return self.store.tokenizer

    @cached_property
    def _ordinary(self) -> np.ndarray:
        special = (self.tokenizer.pad, self.tokenizer.unk, self.tokenizer.cls, self.tokenizer.sep, self.tokenizer.mask)
        return np.setdiff1d(np.arange(len(self.tokenizer)), special)

    def plan(self, epoch: int) -> Spans:
        """Returns an epoch's examples in the order of the store."""
        self._begin_plan(epoch)
        return self._plans[epoch].result()

    def _begin_plan(self, epoch: int) -> None:
        """Plans an epoch in a thread before it is needed: a large store takes seconds. Keeps the last two plans."""
        if epoch not in self._plans:
            kept = max(self._plans, default=epoch)
            self._plans = {number: plan for number, plan in self._plans.items() if number == kept}
            self._plans[epoch] = ThreadPoolExecutor(1).submit(self._make_plan, epoch)

    def _make_plan(self, epoch: int) -> Spans:
        s = self.settings
        plan = plan_spans(self.store, kind=s.pairs, length=s.length, short=s.short, seed=self.seed, epoch=epoch)
        if not len(plan):
            raise DataError(
                "no document has two sentences to tell the order of; expected some, or set pairs=none", self.store.path
            )
        plan = plan[self._belongs(plan)]
        if not len(plan):
            what = f"{self.store.documents} documents, too few to train on and to hold {self.held_out:.1%} out"
            advice = "separate documents with blank lines, or set held_out=0 to train without evaluation"
            raise DataError(f"the store has {what}; {advice}", self.store.path)
        return plan

    def _belongs(self, plan: Spans) -> np.ndarray:
        """Returns which examples to use: held-out documents only in evaluation; training never sees them, not even as B."""
        ends = self.store.sentence_bounds[self.store.document_bounds]
        held = uniform(draw(0, 6, np.arange(self.store.documents))) < self.held_out
        if self.held_out:
            held[-1] = True  # always, so that at least one is held out
        a_held = held[np.searchsorted(ends, plan.a_begin, side="right") - 1]
        b_held = held[np.searchsorted(ends, plan.b_begin, side="right").clip(max=len(held)) - 1] & (plan.b_size > 0)
        alone = self.settings.pairs == "next" and held.any() and np.count_nonzero(~held) == 1  # no document can give a B
        return a_held if self.evaluation else ~(a_held | b_held | alone)

    def next_row(self, cursor: int) -> tuple[Examples, int]:
        """Returns the examples of the row at a cursor, and the next cursor. An epoch's last row may be short."""
        epoch, index = divmod(cursor, EPOCH)
        if index >= len(plan := self.plan(epoch)):  # after a fork, whose epochs are shorter
            return self.next_row((epoch + 1) * EPOCH)
        most = min(self.shapes.sequences(self.settings.length), len(plan) - index)
        numbers = permute(np.arange(index, index + most), len(plan), self.seed, epoch)
        fitting = int(np.searchsorted(np.cumsum(plan[numbers].sizes), self.shapes.budget, side="right"))
        behind, late = index + fitting, 2 * index > len(plan) and not self.evaluation
        if late:
            self._begin_plan(epoch + 1)
        return Examples(epoch, numbers[:fitting], late), cursor + fitting if behind < len(plan) else (epoch + 1) * EPOCH

    def first(self, count: int) -> Iterator[Examples]:
        """Yields rows of the first `count` examples; they are the same for any row size."""
        cursor = 0
        while count > 0 and cursor < EPOCH:
            examples, cursor = self.next_row(cursor)
            yield Examples(0, examples.numbers[:count])
            count -= len(examples.numbers)

    def batch(self, examples: Examples) -> PretrainingBatch:
        """Returns the examples as tensors, with pieces masked."""
        if examples.late:
            self._begin_plan(examples.epoch + 1)
        spans = self.plan(examples.epoch)[examples.numbers]
        row, segments = self._row(spans)
        if self.settings.causal:
            places = np.flatnonzero(np.append(row.owners[1:] == row.owners[:-1], False))
            ids, targets = row.ids, row.ids[places + 1]
        else:
            masking, which = self.settings.masking, (examples.epoch, examples.numbers[row.owners], row.positions)
            chosen = choose(row, masking, draw(self.seed, 4, *which))
            ids = replace(row, chosen, masking, draw(self.seed, 5, *which), self.tokenizer.mask, self._ordinary)
            places, targets = np.flatnonzero(chosen), row.ids[chosen]
        packed = lay_row(ids, segments, spans.sizes, self.shapes if self.fixed else None, grids=self.grids)
        labels = spans.label if self.settings.pairs != "none" else np.full(len(spans), NOTHING)
        arrays = PretrainingBatch(
            batch=packed,
            places=filled(places, self._capacity(), 0),
            targets=filled(targets, self._capacity(), NOTHING),
            labels=filled(labels, packed.sequences, NOTHING),
            size=np.array(len(row.ids)),  # type: ignore[arg-type]
            hidden=len(places),
            pairs=int((labels != NOTHING).sum()),
            tokens=len(row.ids),
        )
        return arrays.map(torch.from_numpy)

    def _row(self, spans: Spans) -> tuple[Row, np.ndarray]:
        """Returns [CLS] A [SEP] B [SEP] of each example, one after the other; and the segments."""
        sizes = spans.sizes
        owners = np.repeat(np.arange(len(spans)), sizes)
        positions = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        a_size = spans.a_size[owners]
        in_b = positions > a_size + 1
        special = (positions == 0) | (positions == a_size + 1) | (positions == sizes[owners] - 1)
        places = np.where(in_b, (spans.b_begin - spans.a_size - 2)[owners], (spans.a_begin - 1)[owners]) + positions
        ids = np.where(positions == 0, self.tokenizer.cls, self.tokenizer.sep)
        ids[~special] = self.store.ids_at(places[~special])
        starts = self.tokenizer.begins_word[ids]
        after = np.append(True, special[:-1])
        return Row(ids, owners, positions, special, starts | after, sizes), in_b.astype(np.int64)

    def _capacity(self) -> int:
        """Returns the most targets a row can have: its share of masked tokens, plus rounding for each example."""
        if self.settings.causal:
            return self.shapes.budget
        rate = self.settings.masking.rate
        return -(-int(self.shapes.budget * rate + self.shapes.sequences(self.settings.length)) // 64) * 64
