"""A row's gradients as a CUDA graph: recorded once for each shape of rows, then replayed with one launch.

With small batches a GPU waits for Python, kernel by kernel; what was recorded does not come by Python again. Parameters stay
where they lay when it was recorded, each row is copied to where that one lay, and gradients are written where that one's
were: nothing is added to them but those of a step's other rows. Dropout goes on following torch's seed.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Backward = Callable[[Any, Tensor], Tensor]  # a row and a tensor of settings, to the row's sums; gradients are added up
Gradient = Tensor | None


@dataclass(frozen=True)
class Recording:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]  # where it reads
    sums: Tensor  # where it writes
    gradients: list[Gradient]  # likewise


class Recorder:
    """Does what `backward` does, and records it when it meets a new shape."""

    def __init__(self, backward: Backward, parameters: Iterable[nn.Parameter]):
        self.backward, self.parameters = backward, list(parameters)
        self.recordings = dict[tuple[torch.Size, ...], Recording]()

    def __call__(self, row: Any, shares: Tensor) -> Tensor:
        tensors = [*tensors_of(row), shares]
        shape = tuple(tensor.shape for tensor in tensors)
        before = [None if gradient is None else gradient.clone() for gradient in self._taken()]
        if shape not in self.recordings:
            self.recordings[shape] = self._record(row, shares)
        recording = self.recordings[shape]
        for mine, given in zip(recording.inputs, tensors, strict=True):
            mine.copy_(given.pin_memory(), non_blocking=True)
        recording.graph.replay()
        for parameter, gradient, more in zip(self.parameters, recording.gradients, before, strict=True):
            parameter.grad = more if gradient is None else gradient if more is None else gradient.add_(more)
        return recording.sums

    def _taken(self) -> list[Gradient]:
        """All gradients, which the parameters lose: the next ones are written, not added to them."""
        found = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        return found

    def _record(self, row: Any, shares: Tensor) -> Recording:
        """Runs a few times first, as whatever is set up on first use must not be recorded; that leaves no trace."""
        device = self.parameters[0].device
        row, shares = row.map(lambda tensor: tensor.to(device)), shares.to(device)
        beside = torch.cuda.Stream(device)
        beside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(beside):
            for _ in range(3):
                self.backward(row, shares)
                self._taken()
        torch.cuda.current_stream(device).wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            sums = self.backward(row, shares)
        torch.manual_seed(torch.initial_seed())  # back to where the seed was
        return Recording(graph, [*tensors_of(row), shares], sums, self._taken())


def tensors_of(row: Any) -> list[Tensor]:
    """All tensors of a row, always in the same order."""
    found = list[Tensor]()
    row.map(found.append)
    return found
