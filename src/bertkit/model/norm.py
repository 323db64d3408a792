"""Layer norm that gives back the type it was given: between blocks, values stay as narrow as autocast made them."""

import torch
from torch import Tensor, nn

from bertkit.model.dropout import Dropout, random_key

WIDEST = 4096  # values of a row that a kernel holds at once


class Norm(nn.LayerNorm):
    """Computed in 32 bits where autocast is on; narrow values in, narrow values out. Those of a GPU take one kernel each
    way, unless a compiler does as well."""

    def forward(self, x: Tensor) -> Tensor:
        if self._quick(x) and not torch.compiler.is_compiling():
            return self._quickly(x, None, 0.0)
        return super().forward(x).to(x.dtype)

    def added(self, x: Tensor, y: Tensor, dropout: Dropout) -> Tensor:
        """norm(x + dropout(y)), where a compiler does as well if no gradient is wanted."""
        quick = self._quick(x) and x.dtype == y.dtype and self.bias is not None
        if not quick or (torch.compiler.is_compiling() and not torch.is_grad_enabled()):
            return self(x + dropout(y))
        return self._quickly(x, y, dropout.rate if dropout.training else 0.0)

    def _quick(self, x: Tensor) -> bool:
        return x.is_cuda and x.dtype != torch.float32 and x.dim() == 2 and x.shape[1] <= WIDEST

    def _quickly(self, x: Tensor, y: Tensor | None, rate: float) -> Tensor:
        from bertkit.model.kernels.added_norm import added_norm, added_norm_with_gradient  # Triton is there with CUDA only

        key = random_key(x.device) if rate else self.weight
        compute = added_norm_with_gradient if torch.is_grad_enabled() else added_norm
        return compute(x, y, self.weight, self.bias, key, self.eps, rate)[0]


def narrow(x: Tensor) -> Tensor:
    """x in the type that autocast computes in, if it is on."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x
