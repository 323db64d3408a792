"""W x + b. In fp32 on AMD's processors with AVX-512 torch's own product takes twice the time of oneDNN's, which comes with
torch too: it is that of Intel's library, which uses AVX-512 on Intel's processors alone.

T tokens, N outputs, K inputs.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns x wᵀ + b [T, N], of x [T, K] and w [N, K]."""
    if x.is_cuda or torch.compiler.is_compiling() or not (slow_product() and _in_fp32(x, weight)):
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias) if torch.is_grad_enabled() else _product(x, weight, bias)


@cache
def slow_product() -> bool:
    """Whether this is a processor on which torch's own product is slow."""
    able: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return "AMD" in able.get("cpu_name", "") and able.get("avx512_f", False) and torch.backends.mkldnn.is_available()


def _in_fp32(x: Tensor, weight: Tensor) -> bool:
    """Whether there is something to multiply on the CPU that is to stay in fp32; exports trace torch's own operators."""
    if torch.jit.is_tracing() or torch.is_autocast_enabled("cpu"):
        return False
    return x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32 and x.numel() > 0


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, upper: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), wanted = ctx.saved_tensors, ctx.needs_input_grad
        dx = _product(upper, weight.T) if wanted[0] else None
        dw = _product(upper.T, x.T) if wanted[1] else None
        return dx, dw, upper.sum(0) if wanted[2] else None
