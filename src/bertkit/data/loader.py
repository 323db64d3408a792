"""Batches prepared ahead, in processes beside the one that trains.

A step asks for the rows at a cursor. What the next steps will most likely ask for is begun at once; if they ask for
something else (a new phase, a larger batch), it is dropped. So looking ahead never changes what a step gets. What nobody
began is prepared here, as is the first step, while the processes start.
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
    """What a training step sees, and the cursor behind it."""

    rows: Sequence[Any]  # batches with what is to be told of them
    cursor: int


class Loader:
    """Steps from sources, one source for each phase; rank r of w takes every w-th row from the r-th on."""

    def __init__(self, sources: list[ExampleSource], *, workers: int = 0, rank: int = 0, world: int = 1, ahead: int = 4):
        self.sources, self.rank, self.world, self.ahead = sources, rank, world, ahead
        self.pool = processes(partial(_worker, sources), workers) if workers else None
        self._begun = deque[tuple[tuple[int, int, int], list[Future], int]]()

    @alive()
    def step(self, phase: int, rows: int, cursor: int) -> Step:
        """The rows of a step: `rows` of them over all ranks."""
        if self._begun and self._begun[0][0] == (phase, rows, cursor):
            _, futures, behind = self._begun.popleft()
            self._look_ahead(phase, rows, behind)
            return Step([future.result() for future in futures], behind)
        self._drop()
        mine, behind = self._descriptors(phase, rows, cursor)
        self._look_ahead(phase, rows, behind)
        return Step([self.sources[phase].batch(examples) for examples in mine], behind)

    def _look_ahead(self, phase: int, rows: int, cursor: int) -> None:
        """Begins the steps from a cursor on, in the processes if there are any."""
        while self.pool and len(self._begun) < self.ahead:
            cursor = self._begun[-1][2] if self._begun else cursor
            mine, behind = self._descriptors(phase, rows, cursor)
            self._begun.append(((phase, rows, cursor), [self.pool.submit(work, (phase, one)) for one in mine], behind))

    def _descriptors(self, phase: int, rows: int, cursor: int) -> tuple[list[Examples], int]:
        """The examples of this rank's rows, and the cursor behind the rows of all ranks."""
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
    return lambda unit: sources[unit[0]].batch(unit[1])  # a phase, and examples of it
