"""Initialization: a truncated normal distribution for matrices, zeros for biases, ones for norms."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


def initialize(module: nn.Module, std: float) -> None:
    """Initializes all layers of `module`."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Embedding) and not layer.weight.is_meta:
            truncated_normal_(layer.weight, std)
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
        if isinstance(layer, nn.LayerNorm):
            layer.reset_parameters()


@torch.no_grad()
def truncated_normal_(weight: Tensor, std: float) -> None:
    """Draws within two standard deviations by the inverse of the distribution: a quarter of the time of redrawing."""
    weight.uniform_(-math.erf(2**0.5), math.erf(2**0.5)).erfinv_().mul_(2**0.5 * std)


class Unfilled(TorchFunctionMode):
    """Skips the initialization of layers made in its context, whose weights are loaded later. On the meta device,
    initialization would also import torch's compiler, which takes a second."""

    def __torch_function__(self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping | None = None) -> Any:
        fills = getattr(function, "__module__", "") == "torch.nn.init"
        return None if fills else function(*args, **(kwargs or {}))
