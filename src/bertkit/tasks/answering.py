"""Answers records in order, holding the logits of no more than one chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bertkit.data.engines import ahead, threads_for
from bertkit.data.inputs import TaskBatch, lay_units
from bertkit.data.packing import budget_for, group_by_length
from bertkit.data.windows import Input
from bertkit.progress import Show, show_nothing
from bertkit.tasks.task import Task
from bertkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

Tell = Callable[[TaskBatch], np.ndarray]  # a batch → its logits
CHUNK = 1024  # records whose logits are held at once


class Teller(Protocol):
    """Computes a task's logits: a network, or an exported one."""

    def tell(self, data: TaskBatch, device: torch.device, precision: str) -> np.ndarray: ...


def answer_records(
    networks: Sequence[Teller],
    task: Task,
    tokenizer: Tokenizer,
    records: Sequence[Any],
    device: torch.device,
    *,
    precision: str = "fp32",
    budget: int = 0,
    threads: int = 0,
    show: Show = show_nothing,
) -> Iterator[Any]:
    """Yields an answer for each record; the logits of several networks are averaged, as an ensemble."""
    budget, threads = budget or budget_for(device.type, precision), threads or threads_for(device)
    for begin, end in _chunks(task, records):
        part = records[begin:end]
        units = task.units(part, tokenizer)
        inputs = [one for unit in units for one in unit]
        tells = [partial(one.tell, device=device, precision=precision) for one in networks]
        found = [_logits(tell, task, inputs, budget, threads) for tell in tells]
        logits = iter([np.mean(each, axis=0) for each in zip(*found, strict=True)] if len(found) > 1 else found[0])
        yield from task.answers(part, units, [[next(logits) for _ in unit] for unit in units])
        show(end)


def _chunks(task: Task, records: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Yields the bounds of chunks of records; a document whose sentences are read together is not split."""
    begin = 0
    while begin < len(records):
        end = min(begin + CHUNK, len(records))
        while task.settings.context and end < len(records) and records[end].document == records[end - 1].document:
            end += 1
        yield begin, end
        begin = end


def _logits(tell: Tell, task: Task, inputs: Sequence[Input], budget: int, threads: int) -> list[np.ndarray]:
    """Returns logits [M, C] for each input, computed in batches of similar lengths."""
    logits: list[Any] = [None] * len(inputs)
    sizes = np.array([len(one) for one in inputs], np.int64)

    def laid(members: np.ndarray) -> TaskBatch:
        return lay_units([[inputs[index]] for index in members], task.layout)

    groups = group_by_length(sizes, max(budget, int(sizes.max(initial=0))))
    for members, rows in ahead(laid, tell, groups, texts=len(inputs), threads=threads):
        ends = np.cumsum([len(inputs[index].places) for index in members])
        for index, found in zip(members.tolist(), np.split(rows, ends[:-1]), strict=True):
            logits[index] = found
    return logits
