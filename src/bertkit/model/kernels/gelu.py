"""GELU in two Triton kernels as fast as memory: torch's error function takes longer than reading and writing does.

x Φ(x), where 1 - Φ(|x|) is a polynomial in 1 / (1 + p |x|) times exp(-x² / 2), right to 7.5e-8 (Hastings, 1955). The
gradient Φ(x) + x φ(x) needs the same exponential. Narrow types have two to three digits, so nothing is lost.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 2048, 8


@triton.jit
def _normal(x):
    """The normal distribution Φ(x), and exp(-x² / 2)."""
    e = tl.exp2(x * x * -0.7213475204444817)
    t = 1.0 / (1.0 + 0.23164188822844 * tl.abs(x))
    above = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t * (0.5 * e)
    return tl.where(x < 0, above, 1 - above), e


@triton.jit
def _forward(x, out, n, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    values = tl.load(x + at, at < n, 0.0).to(tl.float32)
    tl.store(out + at, (values * _normal(values)[0]).to(out.dtype.element_ty), at < n)


@triton.jit
def _backward(x, upper, out, n, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    values, u = tl.load(x + at, at < n, 0.0).to(tl.float32), tl.load(upper + at, at < n, 0.0).to(tl.float32)
    below, e = _normal(values)
    tl.store(out + at, (u * (below + values * e * 0.3989422804014327)).to(out.dtype.element_ty), at < n)


@torch.library.triton_op("bertkit::gelu", mutates_args=())
def quick_gelu(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    _launch(_forward, x, out)
    return out


@torch.library.triton_op("bertkit::gelu_backward", mutates_args=())
def _gradient(x: Tensor, upper: Tensor) -> Tensor:
    out = torch.empty_like(x)
    _launch(_backward, x, upper.contiguous(), out)
    return out


def _launch(kernel, x: Tensor, *tensors: Tensor) -> None:
    grid = (triton.cdiv(x.numel(), BLOCK),)
    torch.library.wrap_triton(kernel)[grid](x, *tensors, x.numel(), block=BLOCK, num_warps=WARPS)


quick_gelu.register_autograd(
    lambda ctx, upper: _gradient(*ctx.saved_tensors, upper),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
