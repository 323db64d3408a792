"""gelu(x + bias) and gelu(x) · gate as Triton kernels at memory speed: torch's error function takes longer than reading and
writing the values.

GELU is x Φ(x), where 1 - Φ(|x|) is a polynomial in 1 / (1 + p |x|) times exp(-x² / 2), accurate to 7.5e-8 (Hastings, 1955).
The gradient Φ(x) + x φ(x) needs the same exponential. Half precision has two to three digits, so nothing is lost. The bias's
gradient is summed on the way, without reading x's gradient again. model/feedforward.py has the plain torch version.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import register_autograd, register_fake

from bertkit.model.kernels import operator

ROWS, COLUMNS = tl.constexpr(8), tl.constexpr(512)  # of a tile
GATED_ROWS = tl.constexpr(4)  # a gate needs twice the registers
ROWS8 = 2  # if the gradient is written in fp8 too: with more rows, other threads would write it than compute it
SPAN = tl.constexpr(128)  # rows over which one program sums the bias's gradient


@triton.jit
def _normal(x):
    """Returns the normal distribution Φ(x), and the slope Φ(x) + x φ(x) of GELU."""
    e = tl.exp2(x * x * -0.7213475204444817)
    t = 1.0 / (1.0 + 0.23164188822844 * tl.abs(x))
    above = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t * (0.5 * e)
    below = tl.where(x < 0, above, 1 - above)
    return below, below + x * e * 0.3989422804014327


@triton.jit
def _tile(width: tl.constexpr):
    """Returns the program's row of tiles and its columns [1, COLUMNS]; successive programs are side by side."""
    across: tl.constexpr = (width + COLUMNS - 1) // COLUMNS
    return tl.program_id(0) // across, (tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS))[None, :]


@triton.jit
def _gelu_forward(x, bias, out, count, width: tl.constexpr, factor: tl.constexpr):
    tile, column = _tile(width)
    row = (tile * ROWS + tl.arange(0, ROWS))[:, None]
    at, inside = row.to(tl.int64) * width + column, (row < count) & (column < width)
    values = tl.load(x + at, inside, 0.0).to(tl.float32) + tl.load(bias + column, column < width, 0.0).to(tl.float32)
    tl.store(out + at, (values * _normal(values)[0] * factor).to(out.dtype.element_ty), inside)


@triton.jit
def _gelu_backward(
    x, bias, upper, out, sums, out8, again, count, width: tl.constexpr, factor: tl.constexpr, rows: tl.constexpr
):
    """Writes x's gradient to out, and its sum over the program's rows to a row of sums; with a factor, also the gradient
    times it in fp8, and the forward output."""
    tile, column = _tile(width)
    there = column < width
    b, total = tl.load(bias + column, there, 0.0).to(tl.float32), tl.zeros([rows, COLUMNS], tl.float32)
    for start in range(0, SPAN, rows):
        row = (tile * SPAN + start + tl.arange(0, rows))[:, None]
        at, inside = row.to(tl.int64) * width + column, (row < count) & there
        values = tl.load(x + at, inside, 0.0).to(tl.float32) + b
        below, slope = _normal(values)
        found = tl.load(upper + at, inside, 0.0).to(tl.float32) * slope
        tl.store(out + at, found.to(out.dtype.element_ty), inside)
        if factor > 0:
            tl.store(out8 + at, tl.clamp(found * factor, -57344.0, 57344.0).to(out8.dtype.element_ty), inside)
            tl.store(again + at, (values * below).to(again.dtype.element_ty), inside)
        total += found
    tl.store(sums + tile * width + column, tl.sum(total, 0)[None, :], there)


@triton.jit
def _halves(count, width: tl.constexpr):
    """Returns a tile's offsets in [count, width], those of x and the gate in [count, 2 width], and which of them exist."""
    tile, column = _tile(width)
    row = (tile * GATED_ROWS + tl.arange(0, GATED_ROWS))[:, None]
    line = row.to(tl.int64) * width
    return line + column, 2 * line + column, 2 * line + width + column, (row < count) & (column < width)


@triton.jit
def _gated_forward(h, out, count, width: tl.constexpr):
    at, first, second, inside = _halves(count, width)
    x, gate = tl.load(h + first, inside, 0.0).to(tl.float32), tl.load(h + second, inside, 0.0).to(tl.float32)
    tl.store(out + at, (x * _normal(x)[0] * gate).to(out.dtype.element_ty), inside)


@triton.jit
def _gated_backward(h, upper, out, count, width: tl.constexpr):
    at, first, second, inside = _halves(count, width)
    x, gate = tl.load(h + first, inside, 0.0).to(tl.float32), tl.load(h + second, inside, 0.0).to(tl.float32)
    u = tl.load(upper + at, inside, 0.0).to(tl.float32)
    below, slope = _normal(x)
    tl.store(out + first, (u * gate * slope).to(out.dtype.element_ty), inside)
    tl.store(out + second, (u * x * below).to(out.dtype.element_ty), inside)


@operator("gelu")
def quick_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """Returns gelu(x + bias) for x [T, F] and bias [F]."""
    out = torch.empty_like(x)
    _launch(_gelu_forward, ROWS, x.shape, x, bias, out, factor=1.0)
    return out


@operator("gelu_backward")
def _gelu_gradient(x: Tensor, bias: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(x)
    return out, _backwards(x, bias, upper, out, out, out, 0.0)


def gelu8(x: Tensor, bias: Tensor, factor: float) -> Tensor:
    """Returns gelu(x + bias) times factor in fp8."""
    out = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    _launch(_gelu_forward, ROWS, x.shape, x, bias, out, factor=factor)
    return out


@operator("gelu8_backward")
def gelu8_gradient(x: Tensor, bias: Tensor, upper: Tensor, factor: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns x's gradient, the same times factor in fp8, gelu(x + bias), and the bias's gradient."""
    out, out8, again = torch.empty_like(x), torch.empty_like(x, dtype=torch.float8_e5m2), torch.empty_like(x)
    return out, out8, again, _backwards(x, bias, upper, out, out8, again, factor)


def _backwards(x: Tensor, bias: Tensor, upper: Tensor, out: Tensor, out8: Tensor, again: Tensor, factor: float) -> Tensor:
    """Fills out, out8 and again, and returns the bias's gradient."""
    sums = x.new_empty(triton.cdiv(len(x), SPAN.value), x.shape[1], dtype=torch.float32)
    rows = ROWS8 if factor else ROWS.value
    _launch(_gelu_backward, SPAN, x.shape, x, bias, upper.contiguous(), out, sums, out8, again, rows=rows, factor=factor)
    return sums.sum(0).to(bias.dtype)


@operator("gated_gelu")
def quick_gated_gelu(h: Tensor) -> Tensor:
    """Returns gelu(x) · gate for h = [x, gate], [T, 2 F]."""
    out = h.new_empty(len(h), h.shape[1] // 2)
    _launch(_gated_forward, GATED_ROWS, out.shape, h, out)
    return out


@operator("gated_gelu_backward")
def _gated_gradient(h: Tensor, upper: Tensor) -> Tensor:
    out = torch.empty_like(h)
    _launch(_gated_backward, GATED_ROWS, upper.shape, h, upper.contiguous(), out)
    return out


def _launch(kernel, span: tl.constexpr, shape: torch.Size, *tensors: Tensor, **settings: float) -> None:
    """Launches a program for every `span` rows and COLUMNS columns of the shape."""
    count, width = shape
    grid = (triton.cdiv(count, span.value) * triton.cdiv(width, COLUMNS.value),)
    kernel[grid](*tensors, count, width=width, **settings, num_warps=4, enable_fp_fusion=True)


def _keep(ctx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


register_fake(quick_gelu, lambda x, bias: torch.empty_like(x))
register_fake(_gelu_gradient, lambda x, bias, upper: (torch.empty_like(x), torch.empty_like(bias)))
register_fake(
    gelu8_gradient,
    lambda x, bias, *_: (
        *(torch.empty_like(x, dtype=kind) for kind in (None, torch.float8_e5m2, None)),
        torch.empty_like(bias),
    ),
)
register_fake(quick_gated_gelu, lambda h: h.new_empty(h.shape[0], h.shape[1] // 2))
register_fake(_gated_gradient, lambda h, upper: torch.empty_like(h))
register_autograd(quick_gelu, lambda ctx, upper: _gelu_gradient(*ctx.saved_tensors, upper), setup_context=_keep)
register_autograd(quick_gated_gelu, lambda ctx, upper: _gated_gradient(*ctx.saved_tensors, upper), setup_context=_keep)
