"""Layer norm that gives back the type it was given: between blocks, values stay as narrow as autocast made them."""

import torch
from torch import Tensor, nn


class Norm(nn.LayerNorm):
    """Computed in 32 bits where autocast is on; narrow values in, narrow values out."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(x.dtype)

    def added(self, x: Tensor, y: Tensor) -> Tensor:
        """norm(x + y). Narrow values of a GPU are added and normalised in one kernel, unless a gradient is wanted or a
        compiler does the same."""
        plain = torch.is_grad_enabled() or torch.compiler.is_compiling() or self.bias is None
        if plain or not x.is_cuda or x.dtype == torch.float32 or x.dtype != y.dtype:
            return self(x + y)
        from bertkit.model.kernels.added_norm import quick_added_norm  # Triton is there with CUDA only

        return quick_added_norm(x, y, self.weight, self.bias, self.eps)


def narrow(x: Tensor) -> Tensor:
    """x in the type that autocast computes in, if it is on."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x
