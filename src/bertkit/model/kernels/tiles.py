"""Attention for longer sequences as Triton kernels that read the packed row, tile by tile (Dao et al., 2022).

A program holds some queries and loops over all keys of their sequence, or the other way round for the gradient of keys and
values. Nothing is accumulated in memory, so the same input gives the same bits. After a sequence's last token, a tile
repeats that token: it is loaded without a check, and gets no weight. Up to 128 tokens `short.attend_short` is faster.
`attention._attend_in_grids` is the plain torch version; tests/model/test_kernels.py compares them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import register_autograd, register_fake

from bertkit.model.kernels import operator
from bertkit.model.kernels.short import LOG2E, drawn, kept, room

TILES = {  # queries and keys per tile, warps, pipeline stages
    "forward": (64, 64, 4, 3),
    "keys": (32, 64, 4, 3),
    "queries": (64, 32, 4, 3),
}


@triton.jit
def _span(bounds, tiles, size: tl.constexpr):
    """Returns this program's tile, the beginning and length of its sequence, and the number of its first row for dropout."""
    sequence, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    begin = tl.load(bounds + sequence).to(tl.int64)
    number = (sequence * tl.num_programs(1) + tl.program_id(1)) * size
    return tile, begin, (tl.load(bounds + sequence + 1) - begin).to(tl.int32), number


@triton.jit
def _drawn_quickly(place, key):
    """Returns a random odd number by half of the hash of `drawn`, which suffices for one of two factors."""
    h = (place + key).to(tl.uint32) * 2246822507
    return (h ^ (h >> 15)) | 1


@triton.jit
def _scores(q, k, row, column, start, n, causal: tl.constexpr):
    """Returns q kᵀ [rows, columns], -inf where a query may not see a key; checked only where that can happen."""
    scores = tl.dot(q, tl.trans(k))
    if causal:
        scores = tl.where(column[None, :] <= row[:, None], scores, float("-inf"))
    if start + column.shape[0] > n:
        scores = tl.where((column < n)[None, :], scores, float("-inf"))
    return scores


@triton.jit
def _tiles_forward(
    qkv,
    out,
    totals,
    bounds,
    keys,
    tokens,
    tiles,
    heads: tl.constexpr,
    width: tl.constexpr,
    size: tl.constexpr,
    causal: tl.constexpr,
    rate: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    """Writes out [T, H, K], and to totals [H, T] the log2 of the softmax's denominators."""
    tile, begin, n, number = _span(bounds, tiles, size)
    head, key = tl.program_id(1), tl.load(keys)
    if tile * rows < n:
        row, across = tile * rows + tl.arange(0, rows), tl.arange(0, width)[None, :]
        inside = (row < n)[:, None]
        at = qkv + begin * (3 * heads * width) + head * width + across
        q = tl.load(at + row[:, None] * (3 * heads * width), inside, 0.0)
        scale: tl.constexpr = LOG2E * width**-0.5
        top = tl.full([rows], float("-inf"), tl.float32)
        total, mixed = tl.zeros([rows], tl.float32), tl.zeros([rows, width], tl.float32)
        mark = drawn(number + row, key)
        stop = tl.minimum(n, (tile + 1) * rows) if causal else n
        for start in range(0, stop, columns):
            column = start + tl.arange(0, columns)
            of_key = at + heads * width + tl.minimum(column, n - 1)[:, None] * (3 * heads * width)
            k, v = tl.load(of_key), tl.load(of_key + heads * width)
            scores = _scores(q, k, row, column, start, n, causal)
            higher = tl.maximum(top, tl.max(scores, 1))
            e, shrink = tl.exp2(scores * scale - (higher * scale)[:, None]), tl.exp2((top - higher) * scale)
            total = total * shrink + tl.sum(e, 1)
            if rate > 0:
                keep = kept(mark[:, None], _drawn_quickly(column, key)[None, :], rate)
                e *= tl.where(keep, 1.0, 0.0)  # a select would be moved after the cast, to half a word each
            mixed = tl.dot(e.to(v.dtype), v, mixed * shrink[:, None])
            top = higher
        to = out + (begin + row[:, None]) * (heads * width) + head * width + across
        tl.store(to, (mixed / (total * (1 - rate))[:, None]).to(q.dtype), inside)
        tl.store(totals + head * tokens + begin + row, top * scale + tl.log2(total), row < n)


@triton.jit
def _tiles_backward_queries(
    qkv,
    upper,
    values,
    out,
    totals,
    deltas,
    bounds,
    keys,
    tokens,
    tiles,
    heads: tl.constexpr,
    width: tl.constexpr,
    size: tl.constexpr,
    causal: tl.constexpr,
    rate: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    """Writes the gradient of queries to out [T, 3, H, K], from the gradient `upper` [T, H, K] of the outputs `values`; and
    to deltas [H, T] the dot products of both, which the gradient of keys needs too."""
    tile, begin, n, number = _span(bounds, tiles, size)
    head, key = tl.program_id(1), tl.load(keys)
    if tile * rows < n:
        row, across = tile * rows + tl.arange(0, rows), tl.arange(0, width)[None, :]
        inside = row < n
        of_token: tl.constexpr = 3 * heads * width
        scale: tl.constexpr = LOG2E * width**-0.5
        natural: tl.constexpr = width**-0.5 / (1 - rate)
        first = begin * of_token + head * width
        places = first + row[:, None] * of_token + across
        q = tl.load(qkv + places, inside[:, None], 0.0)
        ends = (begin + row[:, None]) * (heads * width) + head * width + across
        du, mixed = tl.load(upper + ends, inside[:, None], 0.0), tl.load(values + ends, inside[:, None], 0.0)
        total = tl.load(totals + head * tokens + begin + row, inside, float("inf"))
        delta = tl.sum(du.to(tl.float32) * mixed.to(tl.float32), 1) * (1 - rate)
        tl.store(deltas + head * tokens + begin + row, delta, inside)
        dq = tl.zeros([rows, width], tl.float32)
        mark = drawn(number + row, key)
        stop = tl.minimum(n, (tile + 1) * rows) if causal else n
        for start in range(0, stop, columns):
            column = start + tl.arange(0, columns)
            of_key = qkv + first + heads * width + tl.minimum(column, n - 1)[:, None] * of_token + across
            k, v = tl.load(of_key), tl.load(of_key + heads * width)
            weights = tl.exp2(_scores(q, k, row, column, start, n, causal) * scale - total[:, None])
            dw = tl.dot(du, tl.trans(v))
            if rate > 0:
                dw = tl.where(kept(mark[:, None], _drawn_quickly(column, key)[None, :], rate), dw, 0.0)
            dq = tl.dot((weights * (dw - delta[:, None])).to(k.dtype), k, dq)
        tl.store(out + places, (dq * natural).to(q.dtype), inside[:, None])


@triton.jit
def _tiles_backward_keys(
    qkv,
    upper,
    out,
    totals,
    deltas,
    bounds,
    keys,
    tokens,
    tiles,
    heads: tl.constexpr,
    width: tl.constexpr,
    size: tl.constexpr,
    causal: tl.constexpr,
    rate: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    """Writes the gradients of keys and values to out [T, 3, H, K]."""
    tile, begin, n, number = _span(bounds, tiles, size)
    head, key = tl.program_id(1), tl.load(keys)
    if tile * columns < n:
        column, across = tile * columns + tl.arange(0, columns), tl.arange(0, width)[None, :]
        there = (column < n)[:, None]
        of_token: tl.constexpr = 3 * heads * width
        natural: tl.constexpr = width**-0.5 / (1 - rate)
        first = begin * of_token + head * width
        places = first + column[:, None] * of_token + across
        k = tl.load(qkv + places + heads * width, there, 0.0)
        v = tl.load(qkv + places + 2 * heads * width, there, 0.0)
        dk, dv = tl.zeros([columns, width], tl.float32), tl.zeros([columns, width], tl.float32)
        mark = _drawn_quickly(column, key)
        start_at = tile * columns // rows * rows if causal else 0
        for start in range(start_at, n, rows):
            row = start + tl.arange(0, rows)
            last = tl.minimum(row, n - 1)
            q = tl.load(qkv + first + last[:, None] * of_token + across)
            du = tl.load(upper + (begin + last[:, None]) * (heads * width) + head * width + across)
            total, delta = tl.load(totals + head * tokens + begin + last), tl.load(deltas + head * tokens + begin + last)
            total = tl.where(row < n, total, float("inf"))
            weights = tl.exp2(tl.dot(k, tl.trans(q)) * (LOG2E * width**-0.5) - total[None, :])  # [columns, rows]
            if causal:
                weights = tl.where(column[:, None] <= row[None, :], weights, 0.0)
            dw = tl.dot(v, tl.trans(du))
            if rate > 0:
                keep = kept(drawn(number + row, key)[None, :], mark[:, None], rate)
                dv = tl.dot((weights * tl.where(keep, 1.0, 0.0)).to(du.dtype), du, dv)
                dw = tl.where(keep, dw, 0.0)
            else:
                dv = tl.dot(weights.to(du.dtype), du, dv)
            dk = tl.dot((weights * (dw - delta[None, :])).to(q.dtype), q, dk)
        tl.store(out + places + heads * width, (dk * natural).to(k.dtype), there)
        tl.store(out + places + 2 * heads * width, (dv * (1 / (1 - rate))).to(k.dtype), there)


@operator("attend_tiles")
def attend_tiles(qkv: Tensor, bounds: Tensor, key: Tensor, longest: int, rate: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Returns attention outputs [T, H, K] for qkv [T, 3, H, K], and softmax denominators [H, T]; key seeds dropout."""
    out, totals = _room(qkv)
    _launch(_tiles_forward, "forward", (qkv, out, totals), bounds, key, longest, rate, causal)
    return out, totals


@operator("attend_tiles_backward")
def _gradient(tensors: list[Tensor], longest: int, rate: float, causal: bool) -> Tensor:
    """Returns the gradient of q, k and v, from what `_keep` saved and the gradient of the outputs."""
    qkv, out, totals, bounds, key, upper = tensors
    upper, found, deltas = upper.contiguous(), torch.empty_like(qkv), torch.empty_like(totals)
    settings = bounds, key, longest, rate, causal
    _launch(_tiles_backward_queries, "queries", (qkv, upper, out, found, totals, deltas), *settings)
    _launch(_tiles_backward_keys, "keys", (qkv, upper, found, totals, deltas), *settings)
    return found


def _room(qkv: Tensor, *settings: object) -> tuple[Tensor, Tensor]:
    """Allocates attention outputs [T, H, K], and softmax's denominators [H, T]."""
    return room(qkv), qkv.new_empty(qkv.shape[2], qkv.shape[0], dtype=torch.float32)


def _launch(kernel, kind: str, tensors, bounds: Tensor, key: Tensor, longest: int, rate: float, causal: bool) -> None:
    tokens, _, heads, width = tensors[0].shape
    rows, columns, warps, stages = TILES[kind]
    tiles, size = triton.cdiv(longest, columns if kind == "keys" else rows), triton.next_power_of_2(longest)
    settings = dict(heads=heads, width=width, size=size, causal=causal, rate=rate, rows=rows, columns=columns)
    how = dict(num_warps=warps, num_stages=stages, enable_fp_fusion=True)
    kernel[(tiles * (bounds.shape[0] - 1), heads)](*tensors, bounds, key, tokens, tiles, **settings, **how)


def _keep(ctx, inputs, output) -> None:
    qkv, bounds, key, *ctx.settings = inputs
    ctx.save_for_backward(qkv, *output, bounds, key)


def _backpropagate(ctx, upper: Tensor, _):
    return _gradient([*ctx.saved_tensors, upper], *ctx.settings), None, None, None, None, None


register_fake(attend_tiles, _room)
register_fake(_gradient, lambda tensors, *_: torch.empty_like(tensors[0]))
register_autograd(attend_tiles, _backpropagate, setup_context=_keep)
