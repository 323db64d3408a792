"""Layer norm that returns its input's type, so that values between blocks stay in autocast's half precision."""

import torch
from torch import Tensor, nn

from bertkit.model.dropout import Dropout, random_key

WIDEST = 4096  # values of a row that a kernel can hold at once


class Norm(nn.LayerNorm):
    """Computes in fp32 under autocast, but returns its input's type. Half precision on a GPU takes one kernel per direction,
    except where the compiler is as fast."""

    def forward(self, x: Tensor) -> Tensor:
        if self._quick(x) and not torch.compiler.is_compiling():
            return self._quickly(x, None, 0.0)
        return super().forward(x).to(x.dtype)

    def added(self, x: Tensor, y: Tensor, dropout: Dropout) -> Tensor:
        """Returns norm(x + dropout(y)). Without a gradient it is left to the compiler, which is as fast there."""
        quick = self._quick(x) and x.dtype == y.dtype and self.bias is not None
        if not quick or (torch.compiler.is_compiling() and not torch.is_grad_enabled()):
            return self(x + dropout(y))
        return self._quickly(x, y, dropout.rate if dropout.training else 0.0)

    def _quick(self, x: Tensor) -> bool:
        return x.is_cuda and x.dtype != torch.float32 and x.dim() == 2 and x.shape[1] <= WIDEST

    def _quickly(self, x: Tensor, y: Tensor | None, rate: float) -> Tensor:
        from bertkit.model.kernels.added_norm import added_norm, added_norm_with_gradient  # Triton comes only with CUDA

        key = random_key(x.device) if rate else self.weight
        compute = added_norm_with_gradient if torch.is_grad_enabled() else added_norm
        return compute(x, y, self.weight, self.bias, key, self.eps, rate)[0]


def narrow(x: Tensor) -> Tensor:
    """Casts x to autocast's type, if autocast is on."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x
