"""The position-wise half of a block."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.model.config import Config
from bertkit.model.linear import Linear
from bertkit.model.norm import narrow

Activation = Callable[[Tensor], Tensor]
ACTIVATION: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


def activated(x: Tensor, linear: nn.Linear, activation: Activation) -> Tensor:
    """Returns activation(W x + b). In half precision on a GPU, adding b and GELU are one kernel, in half the time. Without a
    gradient they are part of the multiplication: the tanh approximation, off by at most 5e-4, but on unrounded values."""
    if activation is F.gelu and linear.bias is not None and x.is_cuda and (x := narrow(x)).dtype != torch.float32:
        if not (torch.is_grad_enabled() or torch.compiler.is_compiling() or x.dtype != linear.weight.dtype):
            return torch._addmm_activation(linear.bias, x, linear.weight.T, use_gelu=True)
        from bertkit.model.kernels.gelu import quick_gelu  # Triton comes only with CUDA

        return quick_gelu(F.linear(x, linear.weight), linear.bias)
    return activation(linear(x))


def gated(h: Tensor, activation: Activation) -> Tensor:
    """Returns activation(x) · gate for h = [x, gate]; with GELU, one kernel in half precision on a GPU."""
    if activation is F.gelu and h.is_cuda and h.dtype != torch.float32:
        from bertkit.model.kernels.gelu import quick_gated_gelu

        return quick_gated_gelu(h)
    x, gate = h.chunk(2, -1)
    return activation(x) * gate


class FeedForward(nn.Module):
    """D width → F feed-forward width → D width, token by token."""

    inputs = 1  # linear maps of the input

    def __init__(self, config: Config):
        super().__init__()
        self.input = Linear(config.width, self.inputs * config.feedforward, bias=config.bias)
        self.activation = ACTIVATION[config.activation]
        self.output = Linear(config.feedforward, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(activated(x, self.input, self.activation))  # [T, D]


class GatedFeedForward(FeedForward):
    """A feed-forward whose activation is multiplied by a second linear map of the input (Shazeer, 2020)."""

    inputs = 2

    def forward(self, x: Tensor) -> Tensor:
        return self.output(gated(self.input(x), self.activation))  # [T, D]
