"""How weights begin: a truncated normal for matrices, zeros for biases, ones for norms."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


def initialize(module: nn.Module, std: float) -> None:
    """Initialises every layer below `module`."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Embedding) and not layer.weight.is_meta:
            truncated_normal_(layer.weight, std)
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
        if isinstance(layer, nn.LayerNorm):
            layer.reset_parameters()


@torch.no_grad()
def truncated_normal_(weight: Tensor, std: float) -> None:
    """A normal distribution within two deviations, by its inverse: a quarter of the time of drawing until all fit."""
    weight.uniform_(-math.erf(2**0.5), math.erf(2**0.5)).erfinv_().mul_(2**0.5 * std)


class Unfilled(TorchFunctionMode):
    """While it lasts, layers are made without what their weights begin with, as they are about to get others. On the device
    meta, filling them would import torch's compiler, which takes a second."""

    def __torch_function__(self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping | None = None) -> Any:
        fills = getattr(function, "__module__", "") == "torch.nn.init"
        return None if fills else function(*args, **(kwargs or {}))
