"""norm(x + dropout(y)) as one Triton kernel each way, which read and write each value once. `Norm.added` has the same in
plain torch; tests/model/test_kernels.py holds them together.

Forward keeps a row's mean and scale. The gradient adds x and y up again, drops the same values, and sums what norm's weight
and bias get over the rows of a program; a program has many.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bertkit.model.kernels.short import drawn, kept

FORWARD, BACKWARD = 1, 2  # rows of a tile
TOGETHER = 4  # programs of the gradient on a multiprocessor


@triton.jit
def _tile(tile, count, width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr):
    """Its rows [rows, 1], the places of its values, and which there are."""
    row, column = (tile * rows + tl.arange(0, rows))[:, None], tl.arange(0, columns)[None, :]
    return row, row.to(tl.int64) * width + column, (row < count) & (column < width)


@triton.jit
def _share(at, key, rate: tl.constexpr):
    """What is left of each of y's values: nothing, or a little more than all."""
    return tl.where(kept(drawn(at.to(tl.int32), key), 1, rate), 1 / (1 - rate), 0.0) if rate > 0 else 1.0


@triton.jit
def _added_forward(
    x,
    y,
    weight,
    bias,
    keys,
    out,
    stats,
    count,
    epsilon: tl.constexpr,
    rate: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    row, at, inside = _tile(tl.program_id(0), count, width, rows, columns)
    column, there = tl.arange(0, columns)[None, :], (tl.arange(0, columns) < width)[None, :]
    left = tl.load(y + at, inside, 0.0).to(tl.float32) * _share(at, tl.load(keys), rate)
    values = tl.load(x + at, inside, 0.0).to(tl.float32) + left
    mean = tl.sum(values, 1)[:, None] / width
    apart = tl.where(there, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(apart * apart, 1) / width + epsilon)[:, None]
    w, b = tl.load(weight + column, there, 0.0).to(tl.float32), tl.load(bias + column, there, 0.0).to(tl.float32)
    tl.store(out + at, (apart * scale * w + b).to(out.dtype.element_ty), inside)
    tl.store(stats + row, mean, row < count)
    tl.store(stats + count + row, scale, row < count)


@triton.jit
def _added_backward(
    x,
    y,
    weight,
    keys,
    stats,
    upper,
    dx,
    dy,
    sums,
    count,
    rate: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    ahead: tl.constexpr,
):
    """Gradients of x and y, and sums [programs, 2, D] of those of weight and bias."""
    column, key = tl.arange(0, columns), tl.load(keys)
    there = column < width
    w = tl.load(weight + column, there, 0.0).to(tl.float32)[None, :]
    dw, db = tl.zeros([columns], tl.float32), tl.zeros([columns], tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(count, rows), tl.num_programs(0), num_stages=ahead):
        row, at, inside = _tile(tile, count, width, rows, columns)
        share = _share(at, key, rate)
        values = tl.load(x + at, inside, 0.0).to(tl.float32) + tl.load(y + at, inside, 0.0).to(tl.float32) * share
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
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, key: Tensor, epsilon: float, rate: float
) -> tuple[Tensor, Tensor]:
    """norm(x + dropout(y)) for x and y [T, D], and rows' means and scales [2, T]; key seeds dropout. Has no gradient, nor an
    operator's cost, which is that of several small kernels."""
    out, stats = _room(x)
    grid = (max(1, triton.cdiv(len(x), FORWARD)),)
    _added_forward[grid](x, y, weight, bias, key, out, stats, len(x), epsilon=epsilon, rate=rate, **_sizes(x, FORWARD))
    return out, stats


added_norm_with_gradient = torch.library.custom_op("bertkit::added_norm", added_norm, mutates_args=())


@torch.library.custom_op("bertkit::added_norm_backward", mutates_args=())
def _gradient(tensors: list[Tensor], rate: float) -> tuple[Tensor, Tensor, Tensor]:
    """Of x, of y if anything is dropped, and sums [programs, 2, D] of those of weight and bias."""
    x, y, weight, key, stats, upper = tensors
    dx, dy, sums = _gradient_room(tensors, rate)
    inputs = x, y, weight, key, stats, upper.contiguous(), dx, dy, sums
    ahead = 3 if x.shape[1] <= 2048 else 1
    _added_backward[(len(sums),)](*inputs, len(x), rate=rate, ahead=ahead, **_sizes(x, BACKWARD))
    return dx, dy, sums


def _gradient_room(tensors: list[Tensor], rate: float) -> tuple[Tensor, Tensor, Tensor]:
    x, chip = tensors[0], torch.cuda.get_device_properties(tensors[0].device)
    programs = max(1, min(chip.multi_processor_count * TOGETHER, triton.cdiv(len(x), BACKWARD)))
    sums = x.new_empty(programs, 2, x.shape[1], dtype=torch.float32)
    return torch.empty_like(x), torch.empty_like(x[: len(x) if rate else 0]), sums


def _sizes(x: Tensor, rows: int) -> dict[str, int | bool]:
    columns = triton.next_power_of_2(x.shape[1])
    warps = max(1, min(16, rows * columns // 1024))
    return dict(width=x.shape[1], rows=rows, columns=columns, num_warps=warps, enable_fp_fusion=True)


def _room(x: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    """For normalised values [T, D], and rows' means and scales [2, T]."""
    return torch.empty_like(x), x.new_empty(2, x.shape[0], dtype=torch.float32)


def _keep(ctx, inputs, output) -> None:
    x, y, weight, _, key, _, ctx.rate = inputs
    ctx.save_for_backward(x, y, weight, key, output[1])


def _backpropagate(ctx, upper: Tensor, _):
    weight = ctx.saved_tensors[2]
    dx, dy, sums = _gradient([*ctx.saved_tensors, upper], ctx.rate)
    return dx, dy if ctx.rate else dx, *sums.sum(0).to(weight.dtype), None, None, None


added_norm_with_gradient.register_fake(_room)
_gradient.register_fake(_gradient_room)
added_norm_with_gradient.register_autograd(_backpropagate, setup_context=_keep)
