"""Rotary position embedding in one Triton kernel, where torch takes ten; the same kernel rotates the gradient back.
model/positions.py has the plain torch version."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import register_autograd, register_fake

from bertkit.model.kernels import operator

ROWS = tl.constexpr(32)  # tokens of a tile, which is one head wide


@triton.jit
def _turn(qkv, cosine, sine, out, count, way: tl.constexpr, heads: tl.constexpr, half: tl.constexpr):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, triton.next_power_of_2(half))[None, :]
    inside, angle = (row < count) & (column < half), row * half + column
    at = (row.to(tl.int64) * (3 * heads) + tl.program_id(1)) * (2 * half) + column
    a, b = tl.load(qkv + at, inside).to(tl.float32), tl.load(qkv + at + half, inside).to(tl.float32)
    if tl.program_id(1) < 2 * heads:  # the rest are values
        c, s = tl.load(cosine + angle, inside), tl.load(sine + angle, inside) * way
        a, b = a * c - b * s, b * c + a * s
    tl.store(out + at, a.to(out.dtype.element_ty), inside)
    tl.store(out + at + half, b.to(out.dtype.element_ty), inside)


def quick_turned(qkv: Tensor, cosine: Tensor, sine: Tensor, way: float) -> Tensor:
    """Rotates the queries and keys of [T, 3, H, K] forward or, with a way of -1, back, and copies the values. Has no
    gradient, but also no operator's overhead."""
    count, _, heads, width = qkv.shape
    qkv, out = qkv.contiguous(), torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    grid = (triton.cdiv(max(1, count), ROWS.value), 3 * heads)
    _turn[grid](qkv, cosine.contiguous(), sine.contiguous(), out, count, way=way, heads=heads, half=width // 2)
    return out


def _keep(ctx, inputs, output) -> None:
    _, cosine, sine, ctx.way = inputs
    ctx.save_for_backward(cosine, sine)


def _backpropagate(ctx, upper: Tensor):
    return turned_with_gradient(upper, *ctx.saved_tensors, -ctx.way), None, None, None


turned_with_gradient = operator("turned")(quick_turned)
register_fake(turned_with_gradient, lambda qkv, *_: torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device))
register_autograd(turned_with_gradient, _backpropagate, setup_context=_keep)
