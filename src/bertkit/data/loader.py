"""Prepares batches ahead of training, in worker processes.

A step asks for the rows at a cursor. What the next steps will most likely ask for is started at once; if they ask for
something else (a new phase, a larger batch), it is dropped, so prefetching never changes what a step gets. Rows that were
not prefetched are prepared in this process, as are those of the first step, while the workers start.
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from bertkit.data.engines import Worker, alive, processes, work
from bertkit.data.examples import Examples, ExampleSource


@dataclass(frozen=True)
class Step:
    """The rows of a training step, and the next cursor."""

    rows: Sequence[Any]  # batches with their targets
    cursor: int


class Loader:
    """Steps from one source per phase; rank r of w takes every w-th row, starting at the r-th."""

    def __init__(self, sources: list[ExampleSource], *, workers: int = 0, rank: int = 0, world: int = 1, ahead: int = 4):
        self.sources, self.rank, self.world, self.ahead = sources, rank, world, ahead
        self.pool = processes(partial(_worker, sources), workers) if workers else None
        self._begun = deque[tuple[tuple[int, int, int], list[Future], int]]()

    @alive()
    def step(self, phase: int, rows: int, cursor: int) -> Step:
        """Returns this rank's rows of a step that has `rows` rows over all ranks."""
        if self._begun and self._begun[0][0] == (phase, rows, cursor):
            _, futures, behind = self._begun.popleft()
            self._look_ahead(phase, rows, behind)
            return Step([future.result() for future in futures], behind)
        self._drop()
        mine, behind = self._descriptors(phase, rows, cursor)
        self._look_ahead(phase, rows, behind)
        return Step([self.sources[phase].batch(examples) for examples in mine], behind)

    def _look_ahead(self, phase: int, rows: int, cursor: int) -> None:
        """Starts preparing the steps from a cursor on, if there are worker processes."""
        while self.pool and len(self._begun) < self.ahead:
            cursor = self._begun[-1][2] if self._begun else cursor
            mine, behind = self._descriptors(phase, rows, cursor)
            self._begun.append(((phase, rows, cursor), [self.pool.submit(work, (phase, one)) for one in mine], behind))

    def _descriptors(self, phase: int, rows: int, cursor: int) -> tuple[list[Examples], int]:
        """Returns the examples of this rank's rows, and the cursor after the rows of all ranks."""
        mine = []
        for row in range(rows):
            examples, cursor = self.sources[phase].next_row(cursor)
            if row % self.world == self.rank:
                mine.append(examples)
        return mine, cursor

    def _drop(self) -> None:
        for _, futures, _ in self._begun:
            for future in futures:
                future.cancel()
        self._begun.clear()

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)


def _worker(sources: list[ExampleSource]) -> Worker:
    import torch

    torch.set_num_threads(1)
    return lambda unit: sources[unit[0]].batch(unit[1])  # unit: a phase and its examples
