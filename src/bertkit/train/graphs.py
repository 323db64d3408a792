"""A row's gradients as a CUDA graph: recorded once for each shape of rows, then replayed with one launch.

With small batches a GPU waits for Python, kernel by kernel; what was recorded does not come by Python again. Parameters and
their gradients stay where they lay when it was recorded, and each row is copied to where that one lay. Dropout goes on
following torch's seed.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Backward = Callable[[Any, Tensor], Tensor]  # a row and a tensor of settings, to the row's sums; gradients are added up


@dataclass(frozen=True)
class Recording:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]  # where it reads
    sums: Tensor  # where it writes, beside the gradients


class Recorder:
    """Does what `backward` does, and records it when it meets a new shape."""

    def __init__(self, backward: Backward, parameters: Iterable[nn.Parameter]):
        self.backward, self.parameters = backward, list(parameters)
        self.recordings = dict[tuple[torch.Size, ...], Recording]()

    def __call__(self, row: Any, shares: Tensor) -> Tensor:
        tensors = [*tensors_of(row), shares]
        shape = tuple(tensor.shape for tensor in tensors)
        if shape not in self.recordings:
            self.recordings[shape] = self._record(row, shares)
        recording = self.recordings[shape]
        for mine, given in zip(recording.inputs, tensors, strict=True):
            mine.copy_(given.pin_memory(), non_blocking=True)
        recording.graph.replay()
        return recording.sums

    def _record(self, row: Any, shares: Tensor) -> Recording:
        """Runs a few times first, as whatever is set up on first use must not be recorded; that leaves no trace."""
        device = self.parameters[0].device
        row, shares = row.map(lambda tensor: tensor.to(device)), shares.to(device)
        before = [None if p.grad is None else p.grad.clone() for p in self.parameters]
        beside = torch.cuda.Stream(device)
        beside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(beside):
            for _ in range(3):
                self.backward(row, shares)
        torch.cuda.current_stream(device).wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            sums = self.backward(row, shares)
        for parameter, gradient in zip(self.parameters, before, strict=True):
            if parameter.grad is not None:
                parameter.grad.zero_() if gradient is None else parameter.grad.copy_(gradient)
        torch.manual_seed(torch.initial_seed())  # back to where the seed was
        return Recording(graph, [*tensors_of(row), shares], sums)


def tensors_of(row: Any) -> list[Tensor]:
    """All tensors of a row, always in the same order."""
    found = list[Tensor]()
    row.map(found.append)
    return found
