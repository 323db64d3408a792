"""The position-wise half of a block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.model.config import Config


def gelu(x: Tensor) -> Tensor:
    """torch's; compiled, on narrow values of a GPU, a kernel that gives the same in half the time."""
    if not torch.compiler.is_compiling() or not x.is_cuda or x.dtype == torch.float32 or not x.is_contiguous():
        return F.gelu(x)
    from bertkit.model.kernels.gelu import quick_gelu  # Triton is there with CUDA only

    return quick_gelu(x)


ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class FeedForward(nn.Module):
    """D width → F feed-forward width → D width, token by token."""

    inputs = 1  # maps of the input

    def __init__(self, config: Config):
        super().__init__()
        self.input = nn.Linear(config.width, self.inputs * config.feedforward, bias=config.bias)
        self.activation = ACTIVATION[config.activation]
        self.output = nn.Linear(config.feedforward, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.activation(self.input(x)))  # [T, D]


class GatedFeedForward(FeedForward):
    """What is activated is multiplied with a second map of the input (Shazeer, 2020)."""

    inputs = 2

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.input(x).chunk(2, -1)  # [T, F] each
        return self.output(self.activation(x) * gate)  # [T, D]
