"""Layer norm that gives back the type it was given: between blocks, values stay as narrow as autocast made them."""

import torch
from torch import Tensor, nn

from bertkit.model.dropout import Dropout, random_key

WIDEST = 4096  # values of a row that a kernel holds at once


class Norm(nn.LayerNorm):
    """Computed in 32 bits where autocast is on; narrow values in, narrow values out."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(x.dtype)

    def added(self, x: Tensor, y: Tensor, dropout: Dropout) -> Tensor:
        """norm(x + dropout(y)); narrow values of a GPU in one kernel each way, unless a compiler does as well: it does where
        no gradient is wanted."""
        learning = torch.is_grad_enabled()
        quick = x.is_cuda and x.dtype == y.dtype != torch.float32 and self.bias is not None and x.shape[-1] <= WIDEST
        if not quick or (torch.compiler.is_compiling() and not learning):
            return self(x + dropout(y))
        from bertkit.model.kernels.added_norm import added_norm, added_norm_with_gradient  # Triton is there with CUDA only

        rate = dropout.rate if dropout.training else 0.0
        key = random_key(x.device) if rate else self.weight
        compute = added_norm_with_gradient if learning else added_norm
        return compute(x, y, self.weight, self.bias, key, self.eps, rate)[0]


def narrow(x: Tensor) -> Tensor:
    """x in the type that autocast computes in, if it is on."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x
