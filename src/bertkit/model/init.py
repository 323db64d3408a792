"""How weights begin: a truncated normal for matrices, zeros for biases, ones for norms."""

from __future__ import annotations

from torch import nn


def initialize(module: nn.Module, std: float) -> None:
    """Initialises every layer below `module`; nothing is drawn for weights that exist in name only (device meta)."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Embedding) and not layer.weight.is_meta:
            nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(layer, nn.Linear) and layer.bias is not None and not layer.bias.is_meta:
            nn.init.zeros_(layer.bias)
        if isinstance(layer, nn.LayerNorm) and not layer.weight.is_meta:
            layer.reset_parameters()
