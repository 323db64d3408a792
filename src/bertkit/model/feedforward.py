"""The position-wise half of a block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.model.config import Config

ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """D width → F feed-forward width → D width, token by token."""

    def __init__(self, config: Config):
        super().__init__()
        self.input = nn.Linear(config.width, config.feedforward)
        self.activation = ACTIVATION[config.activation]
        self.output = nn.Linear(config.feedforward, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.activation(self.input(x)))  # [T, D]
