"""Layer norm that gives back the type it was given: between blocks, values stay as narrow as autocast made them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Norm(nn.LayerNorm):
    """Computed in 32 bits where autocast is on; narrow values in, narrow values out."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(x.dtype)


def narrow(x: Tensor) -> Tensor:
    """x in the type that autocast computes in, if it is on."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x
