"""W x + b. In fp32 on AMD's processors with AVX-512 torch's own product takes twice the time of oneDNN's, which comes with
torch too: it is that of Intel's library, which uses AVX-512 on Intel's processors alone.

oneDNN keeps a kernel of some 0.6 MB for each number of rows that it meets, and makes it in half a millisecond. So rows are
filled up to few lengths: `Batch.stepped` for those of tokens, here for what heads read.

T tokens, N outputs, K inputs.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.model.batch import stepped


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns x wᵀ + b [T, N], of x [T, K] and w [N, K]."""
    if x.is_cuda or torch.compiler.is_compiling() or not (slow_product() and _in_fp32(x, weight)):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return _Linear.apply(x, weight, bias)
    return _product(_filled(x), weight, bias)[: len(x)]


@cache
def slow_product() -> bool:
    """Whether this is a processor on which torch's own product is slow."""
    able: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return "AMD" in able.get("cpu_name", "") and able.get("avx512_f", False) and torch.backends.mkldnn.is_available()


def wants_steps(device: torch.device, precision: str) -> bool:
    """Whether products are oneDNN's, by torch in bf16 and here in fp32, so that row lengths should be few."""
    return device.type == "cpu" and (precision == "bf16" or slow_product())


def _in_fp32(x: Tensor, weight: Tensor) -> bool:
    """Whether there is something to multiply on the CPU that is to stay in fp32; exports trace torch's own operators."""
    if torch.jit.is_tracing() or torch.is_autocast_enabled("cpu"):
        return False
    return x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32 and x.numel() > 0


def _filled(x: Tensor) -> Tensor:
    """Returns x with rows of zeros at its end, up to one of few numbers of rows."""
    fill = stepped(len(x)) - len(x)
    return F.pad(x, (0, 0, 0, fill)) if fill else x


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.rows, x = len(x), _filled(x)
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)[: ctx.rows]

    @staticmethod
    def backward(ctx: Any, upper: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), wanted, upper = ctx.saved_tensors, ctx.needs_input_grad, _filled(upper)
        dx = _product(upper, weight.T)[: ctx.rows] if wanted[0] else None
        dw = _product(upper.T, x.T) if wanted[1] else None
        return dx, dw, upper.sum(0) if wanted[2] else None
