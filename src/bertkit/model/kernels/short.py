"""Attention of short sequences as one Triton kernel each way: a program holds a whole head of a whole sequence.

General kernels cut long sequences into tiles and pay for it on short ones: scores' maxima are kept for the gradient, the
gradient of the queries is summed up in memory, and three gradients are copied into one. Up to 128 tokens all of it fits one
tile: the gradient computes the scores again, needs nothing but q, k and v, and is written where the linear map wants it.
`attention._attend_in_grids` is the same in plain torch; tests/model/test_cuda.py holds them together.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E = 1.4426950408889634  # exponentials are powers of two


@triton.jit
def _drawn(place, key):
    """A random odd number for a place, by the hash of dropout.py."""
    h = (place ^ key).to(tl.uint32) * 2246822507
    return ((h ^ (h >> 15)) * 3266489909) | 1


@triton.jit
def kept(row, column, key, rate: tl.constexpr):
    """Which weights dropout keeps: a product of two random numbers, the row's and the column's, decides in one step.
    Any two decisions are independent of each other. What is kept is scaled up by the caller."""
    product = _drawn(row, key) * _drawn(column, ~key)
    return product.to(tl.int32, bitcast=True) >= int(rate * 4294967296) - 2147483648


@triton.jit
def _weights(q, k, n, key, scale: tl.constexpr, size: tl.constexpr, causal: tl.constexpr, rate: tl.constexpr):
    """Softmax [size, size] of one head, and what dropout leaves of it, not yet scaled up."""
    row, column = tl.arange(0, size)[:, None], tl.arange(0, size)[None, :]
    seen = (column < n) & (column <= row) if causal else column < n
    scores = tl.where(seen, tl.dot(q, tl.trans(k)) * scale, float("-inf"))
    e = tl.exp2(scores - tl.max(scores, 1)[:, None])
    weights = e * (1.0 / tl.sum(e, 1))[:, None]
    if rate == 0:
        return weights, weights
    first = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * size
    return weights, tl.where(kept(first + row, column, key, rate), weights, 0.0)


@triton.jit
def _short_forward(
    qkv,
    out,
    bounds,
    keys,
    scale: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    size: tl.constexpr,
    causal: tl.constexpr,
    rate: tl.constexpr,
):
    sequence, head = tl.program_id(0), tl.program_id(1)
    begin = tl.load(bounds + sequence).to(tl.int64)
    n = (tl.load(bounds + sequence + 1) - begin).to(tl.int32)
    if n > 0:
        row, inside = tl.arange(0, size)[:, None], tl.arange(0, size)[:, None] < n
        at = qkv + (begin + row) * (3 * heads * width) + head * width + tl.arange(0, width)[None, :]
        q, k = tl.load(at, inside, 0.0), tl.load(at + heads * width, inside, 0.0)
        v = tl.load(at + 2 * heads * width, inside, 0.0)
        _, dropped = _weights(q, k, n, tl.load(keys), scale, size, causal, rate)
        mixed = tl.dot(dropped.to(v.dtype), v) * (1 / (1 - rate))
        tl.store(
            out + (begin + row) * (heads * width) + head * width + tl.arange(0, width)[None, :], mixed.to(v.dtype), inside
        )


@triton.jit
def _short_backward(
    qkv,
    upper,
    out,
    bounds,
    keys,
    scale: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    size: tl.constexpr,
    causal: tl.constexpr,
    rate: tl.constexpr,
):
    """out [T, 3, H, K] from the gradient `upper` [T, H, K] of the mixed values."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    begin = tl.load(bounds + sequence).to(tl.int64)
    n = (tl.load(bounds + sequence + 1) - begin).to(tl.int32)
    if n > 0:
        row, inside = tl.arange(0, size)[:, None], tl.arange(0, size)[:, None] < n
        places = (begin + row) * (3 * heads * width) + head * width + tl.arange(0, width)[None, :]
        at, to = qkv + places, out + places
        q, k = tl.load(at, inside, 0.0), tl.load(at + heads * width, inside, 0.0)
        v = tl.load(at + 2 * heads * width, inside, 0.0)
        do = tl.load(upper + (begin + row) * (heads * width) + head * width + tl.arange(0, width)[None, :], inside, 0.0)
        weights, dropped = _weights(q, k, n, tl.load(keys), scale, size, causal, rate)
        tl.store(to + 2 * heads * width, (tl.dot(tl.trans(dropped.to(do.dtype)), do) * (1 / (1 - rate))).to(v.dtype), inside)
        dp = tl.dot(do, tl.trans(v))
        weighted = dropped * dp  # weight × its gradient
        ds = (weighted - weights * tl.sum(weighted, 1)[:, None]).to(q.dtype)
        natural = scale * 0.6931471805599453 / (1 - rate)  # scale is that of powers of two
        tl.store(to, (tl.dot(ds, k) * natural).to(q.dtype), inside)
        tl.store(to + heads * width, (tl.dot(tl.trans(ds), q) * natural).to(q.dtype), inside)


@torch.library.custom_op("bertkit::attend_short", mutates_args=())
def attend_short(qkv: Tensor, bounds: Tensor, key: Tensor, longest: int, rate: float, causal: bool) -> Tensor:
    """Mixed values [T, H, K] of q, k and v [T, 3, H, K], sequences of at most 128 tokens; key seeds dropout."""
    out = room(qkv)
    _launch(_short_forward, (qkv, out), bounds, key, longest, rate, causal)
    return out


@torch.library.custom_op("bertkit::attend_short_backward", mutates_args=())
def _gradient(qkv: Tensor, upper: Tensor, bounds: Tensor, key: Tensor, longest: int, rate: float, causal: bool) -> Tensor:
    out = torch.empty_like(qkv)
    _launch(_short_backward, (qkv, upper.contiguous(), out), bounds, key, longest, rate, causal)
    return out


def room(qkv: Tensor, *settings: object) -> Tensor:
    """For mixed values [T, H, K]."""
    return qkv.new_empty(qkv.shape[0], *qkv.shape[2:])


def _launch(kernel, tensors, bounds: Tensor, key: Tensor, longest: int, rate: float, causal: bool) -> None:
    heads, width = tensors[0].shape[2:]
    size = max(16, triton.next_power_of_2(longest))
    settings = dict(scale=width**-0.5 * LOG2E, heads=heads, width=width, size=size, causal=causal, rate=rate)
    grid = (bounds.shape[0] - 1, heads)
    kernel[grid](*tensors, bounds, key, **settings, num_warps=8 if size == 128 else 4, enable_fp_fusion=True)


def _keep(ctx, inputs, output) -> None:
    qkv, bounds, key, *ctx.settings = inputs
    ctx.save_for_backward(qkv, bounds, key)


def _backpropagate(ctx, upper: Tensor):
    qkv, bounds, key = ctx.saved_tensors
    return _gradient(qkv, upper, bounds, key, *ctx.settings), None, None, None, None, None


attend_short.register_fake(room)
_gradient.register_fake(lambda qkv, *_: torch.empty_like(qkv))
attend_short.register_autograd(_backpropagate, setup_context=_keep)
