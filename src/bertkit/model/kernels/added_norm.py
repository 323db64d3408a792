"""norm(x + dropout(y)) as one Triton kernel per direction, each reading and writing every value once. `Norm.added` has the
plain torch version; tests/model/test_kernels.py compares them.

The forward pass saves each row's mean and scale. The backward pass adds x and y again, drops the same values, and sums the
gradients of the norm's weight and bias over the many rows of a program.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import register_autograd, register_fake

from bertkit.model.kernels import operator
from bertkit.model.kernels.short import drawn, kept

FORWARD, BACKWARD = tl.constexpr(1), tl.constexpr(2)  # rows of a tile
TOGETHER = 4  # programs of the backward pass per multiprocessor


@triton.jit
def _tile(tile, count, width: tl.constexpr, rows: tl.constexpr):
    """Returns a tile's rows [rows, 1] and columns [1, D or more], the offsets of its values, and which of them exist."""
    row = (tl.arange(0, rows) + tile * rows)[:, None]
    column = tl.arange(0, triton.next_power_of_2(width))[None, :]
    return row, column, row.to(tl.int64) * width + column, (row < count) & (column < width)


@triton.jit
def _share(at, key, rate: tl.constexpr):
    """Returns dropout's factor for each value of y: 0 or 1 / (1 - rate)."""
    return tl.where(kept(drawn(at.to(tl.int32), key), 1, rate), 1 / (1 - rate), 0.0) if rate > 0 else 1.0


@triton.jit
def _sums(x, y, at, inside, share):
    """Returns x + share · y, or x if there is no y."""
    values = tl.load(x + at, inside, 0.0).to(tl.float32)
    return values if y is None else values + tl.load(y + at, inside, 0.0).to(tl.float32) * share


@triton.jit
def _added_forward(
    x, y, weight, bias, keys, out, stats, count, epsilon: tl.constexpr, rate: tl.constexpr, width: tl.constexpr
):
    row, column, at, inside = _tile(tl.program_id(0), count, width, FORWARD)
    there, values = column < width, _sums(x, y, at, inside, _share(at, tl.load(keys), rate))
    mean = tl.sum(values, 1)[:, None] / width
    apart = tl.where(there, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(apart * apart, 1) / width + epsilon)[:, None]
    normal = apart * scale * tl.load(weight + column, there, 0.0).to(tl.float32)
    if bias is not None:
        normal += tl.load(bias + column, there, 0.0).to(tl.float32)
    tl.store(out + at, normal.to(out.dtype.element_ty), inside)
    tl.store(stats + row, mean, row < count)
    tl.store(stats + count + row, scale, row < count)


@triton.jit
def _added_backward(
    x, y, weight, keys, stats, upper, dx, dy, sums, count, rate: tl.constexpr, width: tl.constexpr, ahead: tl.constexpr
):
    """Writes the gradients of x and y, and sums [programs, 2, D] of those of weight and bias."""
    column, key = tl.arange(0, triton.next_power_of_2(width)), tl.load(keys)
    there = column < width
    w = tl.load(weight + column, there, 0.0).to(tl.float32)[None, :]
    dw, db = column * 0.0, column * 0.0
    for tile in tl.range(tl.program_id(0), tl.cdiv(count, BACKWARD), tl.num_programs(0), num_stages=ahead):
        row, _, at, inside = _tile(tile, count, width, BACKWARD)
        share = _share(at, key, rate)
        values = _sums(x, y, at, inside, share)
        mean, scale = tl.load(stats + row, row < count, 0.0), tl.load(stats + count + row, row < count, 0.0)
        normal = tl.where(there[None, :], (values - mean) * scale, 0.0)
        u = tl.load(upper + at, inside, 0.0).to(tl.float32)
        g = u * w
        found = (g - (tl.sum(g, 1)[:, None] + normal * tl.sum(g * normal, 1)[:, None]) / width) * scale
        tl.store(dx + at, found.to(dx.dtype.element_ty), inside)
        if rate > 0:
            tl.store(dy + at, (found * share).to(dy.dtype.element_ty), inside)
        dw += tl.sum(u * normal, 0)
        db += tl.sum(u, 0)
    to = sums + tl.program_id(0) * (2 * width) + column
    tl.store(to, dw, there)
    tl.store(to + width, db, there)


def added_norm(
    x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor | None, key: Tensor, epsilon: float, rate: float
) -> tuple[Tensor, Tensor]:
    """Returns norm(x + dropout(y)) for x and y [T, D], where y and bias are optional, and the rows' means and scales [2, T];
    `key` seeds dropout. Has no gradient, but also no operator's overhead, which is that of several small kernels."""
    out, stats = _room(x)
    grid, how = (max(1, triton.cdiv(len(x), FORWARD.value)),), _how(x, FORWARD.value)
    _added_forward[grid](x, y, weight, bias, key, out, stats, len(x), epsilon=epsilon, rate=rate, **how)
    return out, stats


added_norm_with_gradient = operator("added_norm")(added_norm)


@operator("added_norm_backward")
def _gradient(tensors: list[Tensor], y: Tensor | None, rate: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of x and, if anything is dropped, y, and sums [programs, 2, D] of those of weight and bias."""
    x, weight, key, stats, upper = tensors
    dx, dy, sums = _gradient_room(tensors, y, rate)
    inputs = x, y, weight, key, stats, upper.contiguous(), dx, dy, sums, len(x)
    ahead = 3 if x.shape[1] <= 2048 else 1
    _added_backward[(len(sums),)](*inputs, rate=rate, ahead=ahead, **_how(x, BACKWARD.value))
    return dx, dy, sums


def _gradient_room(tensors: list[Tensor], y: Tensor | None, rate: float) -> tuple[Tensor, Tensor, Tensor]:
    x, chip = tensors[0], torch.cuda.get_device_properties(tensors[0].device)
    programs = max(1, min(chip.multi_processor_count * TOGETHER, triton.cdiv(len(x), BACKWARD.value)))
    sums = x.new_empty(programs, 2, x.shape[1], dtype=torch.float32)
    return torch.empty_like(x), torch.empty_like(x[: len(x) if rate else 0]), sums


def _how(x: Tensor, rows: int) -> dict[str, int | bool]:
    warps = max(1, min(16, rows * triton.next_power_of_2(x.shape[1]) // 1024))
    return dict(width=x.shape[1], num_warps=warps, enable_fp_fusion=True)


def _room(x: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    """Allocates normalized values [T, D], and the rows' means and scales [2, T]."""
    return torch.empty_like(x), x.new_empty(2, x.shape[0], dtype=torch.float32)


def _keep(ctx, inputs, output) -> None:
    x, y, weight, bias, key, _, ctx.rate = inputs
    ctx.biased = bias is not None
    ctx.save_for_backward(y, x, weight, key, output[1])


def _backpropagate(ctx, upper: Tensor, _):
    y, *kept = ctx.saved_tensors
    dx, dy, sums = _gradient([*kept, upper], y, ctx.rate)
    dw, db = sums.sum(0).to(kept[1].dtype)
    return dx, None if y is None else dy if ctx.rate else dx, dw, db if ctx.biased else None, None, None, None


register_fake(added_norm_with_gradient, _room)
register_fake(_gradient, _gradient_room)
register_autograd(added_norm_with_gradient, _backpropagate, setup_context=_keep)
