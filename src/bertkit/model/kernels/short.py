"""Attention for short sequences as one Triton kernel per direction: a program holds a whole head of a whole sequence.

General kernels split long sequences into tiles, which costs time on short ones: maxima of scores are saved for the gradient,
the gradient of the queries is accumulated in memory, and three gradients are copied into one. Up to 128 tokens everything
fits into one tile: the backward pass recomputes the scores from q, k and v alone, and writes the gradient as the linear
layer needs it. A program processes many heads one after the other, and loads the next ones while it computes.
`attention._attend_in_grids` is the plain torch version; tests/model/test_kernels.py compares them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import register_autograd, register_fake

from bertkit.model.kernels import operator

LOG2E = tl.constexpr(1.4426950408889634)  # exponentials are computed as powers of two


@triton.jit
def drawn(place, key):
    """Returns a random odd number for a position, by the hash of dropout.py."""
    h = (place ^ key).to(tl.uint32) * 2246822507
    return ((h ^ (h >> 15)) * 3266489909) | 1


@triton.jit
def kept(row, column, rate: tl.constexpr):
    """Returns which weights dropout keeps: the product of two random odd numbers, of the row and the column, decides in one
    step. Any two decisions are independent of each other. The caller scales up what is kept."""
    return (row * column).to(tl.int32, bitcast=True) >= int(rate * 4294967296) - 2147483648


@triton.jit
def _weights(q, k, n, first, key, size: tl.constexpr, causal: tl.constexpr, rate: tl.constexpr):
    """Returns the softmax [size, size] of one head before and after dropout, not yet scaled up; `first` numbers its rows."""
    row, column = tl.arange(0, size)[:, None], tl.arange(0, size)[None, :]
    seen = (column < n) & (column <= row) if causal else column < n
    scale: tl.constexpr = LOG2E * q.shape[1] ** -0.5
    scores = tl.where(seen, tl.dot(q, tl.trans(k)), float("-inf"))
    e = tl.exp2(scores * scale - (tl.max(scores, 1) * scale)[:, None])
    weights = e * (1.0 / tl.sum(e, 1))[:, None]
    if rate == 0:
        return weights, weights
    return weights, tl.where(kept(drawn(first + row, key), drawn(column, ~key), rate), weights, 0.0)


@triton.jit
def _filled(bounds, sequences):
    """Returns how many sequences have tokens; empty ones come last."""
    end, found = tl.load(bounds + sequences), 0
    for first in range(0, sequences, 1024):
        at = first + tl.arange(0, 1024)
        found += tl.sum((tl.load(bounds + at, at < sequences, end) < end).to(tl.int32))
    return found


@triton.jit
def _head(bounds, item, heads: tl.constexpr, width: tl.constexpr, size: tl.constexpr):
    """Returns the offsets of one head's tokens in [T, 3, H, K] and in [T, H, K], which of them exist, and how many."""
    begin = tl.load(bounds + item // heads).to(tl.int64)
    n = (tl.load(bounds + item // heads + 1) - begin).to(tl.int32)
    row, across = tl.arange(0, size)[:, None], item % heads * width + tl.arange(0, width)[None, :]
    return (begin + row) * (3 * heads * width) + across, (begin + row) * (heads * width) + across, row < n, n


@triton.jit
def _short_forward(
    qkv,
    out,
    bounds,
    keys,
    sequences,
    heads: tl.constexpr,
    width: tl.constexpr,
    size: tl.constexpr,
    causal: tl.constexpr,
    rate: tl.constexpr,
    ahead: tl.constexpr,
):
    items, key = _filled(bounds, sequences) * heads, tl.load(keys)
    for item in tl.range(tl.program_id(0), items, tl.num_programs(0), num_stages=ahead):
        places, ends, inside, n = _head(bounds, item, heads, width, size)
        q, k = tl.load(qkv + places, inside, 0.0), tl.load(qkv + places + heads * width, inside, 0.0)
        v = tl.load(qkv + places + 2 * heads * width, inside, 0.0)
        _, dropped = _weights(q, k, n, item * size, key, size, causal, rate)
        tl.store(out + ends, (tl.dot(dropped.to(v.dtype), v) * (1 / (1 - rate))).to(v.dtype), inside)


@triton.jit
def _short_backward(
    qkv,
    upper,
    out,
    bounds,
    keys,
    sequences,
    heads: tl.constexpr,
    width: tl.constexpr,
    size: tl.constexpr,
    causal: tl.constexpr,
    rate: tl.constexpr,
    ahead: tl.constexpr,
):
    """Writes the gradient of qkv to out [T, 3, H, K], from the gradient `upper` [T, H, K] of the output."""
    items, key = _filled(bounds, sequences) * heads, tl.load(keys)
    for item in tl.range(tl.program_id(0), items, tl.num_programs(0), num_stages=ahead):
        places, ends, inside, n = _head(bounds, item, heads, width, size)
        q, k = tl.load(qkv + places, inside, 0.0), tl.load(qkv + places + heads * width, inside, 0.0)
        v, du = tl.load(qkv + places + 2 * heads * width, inside, 0.0), tl.load(upper + ends, inside, 0.0)
        weights, dropped = _weights(q, k, n, item * size, key, size, causal, rate)
        dv = tl.dot(tl.trans(dropped.to(du.dtype)), du)
        tl.store(out + places + 2 * heads * width, (dv * (1 / (1 - rate))).to(v.dtype), inside)
        weighted = dropped * tl.dot(du, tl.trans(v))  # weight × its gradient
        ds = (weighted - weights * tl.sum(weighted, 1)[:, None]).to(q.dtype)
        natural: tl.constexpr = width**-0.5 / (1 - rate)
        tl.store(out + places, (tl.dot(ds, k) * natural).to(q.dtype), inside)
        tl.store(out + places + heads * width, (tl.dot(tl.trans(ds), q) * natural).to(q.dtype), inside)


@operator("attend_short")
def attend_short(qkv: Tensor, bounds: Tensor, key: Tensor, longest: int, rate: float, causal: bool) -> Tensor:
    """Returns attention outputs [T, H, K] for q, k and v [T, 3, H, K], sequences of up to 128 tokens; key seeds dropout."""
    out = room(qkv)
    _launch(_short_forward, (qkv, out), bounds, key, longest, rate, causal)
    return out


@operator("attend_short_backward")
def _gradient(qkv: Tensor, upper: Tensor, bounds: Tensor, key: Tensor, longest: int, rate: float, causal: bool) -> Tensor:
    out = torch.empty_like(qkv)
    _launch(_short_backward, (qkv, upper.contiguous(), out), bounds, key, longest, rate, causal)
    return out


def room(qkv: Tensor, *settings: object) -> Tensor:
    """Allocates attention outputs [T, H, K]."""
    return qkv.new_empty(qkv.shape[0], *qkv.shape[2:])


def _launch(kernel, tensors, bounds: Tensor, key: Tensor, longest: int, rate: float, causal: bool) -> None:
    heads, width = tensors[0].shape[2:]
    sequences, size = bounds.shape[0] - 1, max(16, triton.next_power_of_2(longest))
    chip = torch.cuda.get_device_properties(bounds.device)
    together, ahead, limits = _fitting(size, width, len(tensors) - 1, chip.shared_memory_per_multiprocessor)
    settings = dict(heads=heads, width=width, size=size, causal=causal, rate=rate, ahead=ahead)
    grid = (min(chip.multi_processor_count * together, sequences * heads),)
    kernel[grid](*tensors, bounds, key, sequences, **settings, **limits, enable_fp_fusion=True)


def _fitting(size: int, width: int, weights: int, memory: int) -> tuple[int, int, dict[str, int]]:
    """Returns programs per multiprocessor, heads that each loads ahead, its warps and registers. A program holds `weights`
    tiles [size, size], one forward and two backward, beside the tokens' [size, width] (timings: docs/lab-notes.md)."""
    if size < 64:
        return 8, 3, dict(num_warps=2)
    together = max(1, 2**14 // (size * max(64, width)) // weights)
    left = memory // together - 1024 - weights * size**2
    ahead = min(3, max(1, left // ((weights + 2) * 2 * size * width)))  # q, k, v and `upper`, of 2 bytes a value
    return together, ahead, dict(num_warps=size // 16, maxnreg=min(255, 2**16 // (2 * size * together)))


def _keep(ctx, inputs, output) -> None:
    qkv, bounds, key, *ctx.settings = inputs
    ctx.save_for_backward(qkv, bounds, key)


def _backpropagate(ctx, upper: Tensor):
    qkv, bounds, key = ctx.saved_tensors
    return _gradient(qkv, upper, bounds, key, *ctx.settings), None, None, None, None, None


register_fake(attend_short, room)
register_fake(_gradient, lambda qkv, *_: torch.empty_like(qkv))
register_autograd(attend_short, _backpropagate, setup_context=_keep)
