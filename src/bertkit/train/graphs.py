"""Gradients of a row as a CUDA graph: recorded once for each shape of row, then replayed with one launch.

With small batches a GPU waits for Python, kernel by kernel; a replay runs without Python. A graph's addresses are fixed:
parameters stay in place, each row is copied to where the recorded row lay, and its gradients overwrite those of the previous
replay; those of a step's earlier rows are then added. Dropout still follows torch's seed.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Backward = Callable[[Any, Tensor], Tensor]  # a row and the weights of its sums → the sums; adds to the gradients
Gradient = Tensor | None


@dataclass(frozen=True)
class Recording:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]  # the tensors it reads
    sums: Tensor  # the tensor it writes
    gradients: list[Gradient]  # which it writes too


class Recorder:
    """Does what `backward` does, recording a graph for each new shape of row."""

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
        """Takes the gradients off the parameters and returns them; the next ones are then written, not added."""
        found = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        return found

    def _record(self, row: Any, shares: Tensor) -> Recording:
        """Runs a few times before recording, so that set-up on first use is not recorded; those gradients are dropped."""
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
        torch.manual_seed(torch.initial_seed())  # restart the seed's sequence
        return Recording(graph, [*tensors_of(row), shares], sums, self._taken())


def tensors_of(row: Any) -> list[Tensor]:
    """Returns all tensors of a row, always in the same order."""
    found = list[Tensor]()
    row.map(found.append)
    return found
