"""Self-attention over packed sequences: every token attends to all tokens of its own sequence, and to no others.

T tokens, B sequences, D width, H heads, K head width; a bucket has n sequences and length L.

There are two ways to compute the same: on CUDA in half precision, variable-length kernels read the packed row, our own up to
512 tokens; everywhere else q, k and v are gathered into grids of sequences of similar length. Only this file and the ONNX
export ever pad.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.model.batch import Batch, Bucket
from bertkit.model.config import Config
from bertkit.model.dropout import drawn_dropout, random_key
from bertkit.model.linear import Linear
from bertkit.model.local import attend_near
from bertkit.model.positions import turned

SHORT = 128  # longest sequence that our kernel holds at once
LONG = 512  # longest sequence for which our tiled kernel was measured to be faster than flash attention
Places = Tensor | None  # position information, from model/positions.py
Wanted = Tensor | None  # indices [M] of the tokens whose vectors are needed; None: all


class Attention(nn.Module):
    """softmax(q kᵀ / √K) v in H heads, then one linear map."""

    def __init__(self, config: Config, layer: int):
        super().__init__()
        self.heads, self.head_width = config.heads, config.head_width
        self.rate, self.causal = config.attention_dropout, config.causal
        self.window = 0 if config.global_every and layer % config.global_every == 0 else config.window
        self.qkv = Linear(config.width, 3 * config.width, bias=config.bias)
        self.output = Linear(config.width, config.width, bias=config.bias)

    def forward(self, x: Tensor, batch: Batch, places: Places, wanted: Wanted = None) -> Tensor:
        return self.output(picked(self.mixed(x, batch, places).flatten(1), wanted))  # [T, D]

    def mixed(self, x: Tensor, batch: Batch, places: Places) -> Tensor:
        """Returns the output of each head [T, H, K]."""
        rate = self.rate if self.training else 0.0
        return attend(self._qkv(x, places), batch, rate, self.causal, self.window)

    def _qkv(self, x: Tensor, places: Places) -> Tensor:
        """Returns queries, keys and values [T, 3, H, K]; queries and keys are rotated if there are places."""
        qkv = self.qkv(x).view(-1, 3, self.heads, self.head_width)
        return qkv if places is None else turned(qkv, *places[int(self.window > 0)])

    def weights(self, x: Tensor, batch: Batch, places: Places) -> list[Tensor]:
        """Returns the attention weights [H, L, L] of each sequence, in the batch's order, for inspection."""
        q, k, _ = self._qkv(x, places).permute(1, 2, 0, 3)  # 3 × [H, T, K]
        scores = [q[:, s] @ k[:, s].mT * self.head_width**-0.5 for s in spans(batch)]
        return [score.masked_fill(self._hidden(score.shape[1], x.device), float("-inf")).softmax(-1) for score in scores]

    def _hidden(self, length: int, device: torch.device) -> Tensor:
        """Returns [L, L] where query i may not attend to key j."""
        distance = torch.arange(length, device=device) - torch.arange(length, device=device)[:, None]
        return (distance > 0) & self.causal | (distance.abs() > (self.window or length))


def picked(x: Tensor, wanted: Wanted) -> Tensor:
    """Returns the wanted rows of x [M, D]."""
    return x if wanted is None else x.index_select(0, wanted)


def spans(batch: Batch) -> list[slice]:
    """Returns the slice of the row that each sequence takes."""
    return [slice(begin, end) for begin, end in pairwise(batch.boundaries.tolist())]


def attend(qkv: Tensor, batch: Batch, dropout: float, causal: bool = False, window: int = 0) -> Tensor:
    """Returns attention outputs [T, H, K] for queries, keys and values [T, 3, H, K]; a window is in tokens to each side."""
    if window >= batch.longest - 1:
        window = 0
    if qkv.is_cuda and qkv.dtype in (torch.bfloat16, torch.float16):
        return _attend_packed(qkv, batch, dropout, causal, window)
    if qkv.is_cuda:
        return _attend_in_grids(qkv, batch, dropout, causal, window)
    with torch.autocast("cpu", enabled=False):  # in bf16 the gradient takes up to nine times as long on a CPU
        return _attend_in_grids(qkv.float(), batch, dropout, causal, window).to(qkv.dtype)


def _attend_packed(qkv: Tensor, batch: Batch, dropout: float, causal: bool, window: int) -> Tensor:
    """Attention on the packed row. The public varlen_attn has no dropout, but the operator under it does."""
    if batch.longest <= LONG and not window and qkv.shape[-1] in (16, 32, 64, 128):
        from bertkit.model.kernels.short import attend_short  # Triton comes only with CUDA
        from bertkit.model.kernels.tiles import attend_tiles

        inputs = qkv, batch.boundaries, random_key(qkv.device) if dropout else batch.boundaries
        if batch.longest <= SHORT:
            return attend_short(*inputs, batch.longest, dropout, causal)
        return attend_tiles(*inputs, batch.longest, dropout, causal)[0]
    q, k, v = qkv.unbind(1)  # 3 × [T, H, K]
    ends, longest = batch.boundaries, batch.longest
    sides = {"window_size_left": window, "window_size_right": window} if window else {}
    operator = torch.ops.aten._flash_attention_forward
    return operator(q, k, v, ends, ends, longest, longest, dropout, causal, False, **sides)[0]


def _attend_in_grids(qkv: Tensor, batch: Batch, dropout: float, causal: bool, window: int) -> Tensor:
    """Attention bucket by bucket. Causal attention never sees padding, which is at the end."""

    def mixed(grid: Tensor, bucket: Bucket) -> Tensor:
        q, k, v = grid
        if window:
            return attend_near(q, k, v, bucket.there, window, dropout)
        if dropout and not (qkv.is_cuda or causal):
            return _attend_dropping(q, k, v, bucket.there, dropout)
        inside = None if causal else bucket.inside
        return F.scaled_dot_product_attention(q, k, v, attn_mask=inside, dropout_p=dropout, is_causal=causal)

    return in_grids(mixed, qkv, batch)


def _attend_dropping(q: Tensor, k: Tensor, v: Tensor, there: Tensor, rate: float) -> Tensor:
    """Attention with dropout [n, H, L, K] on a CPU, in half the time of torch, which draws a number per score and checks for
    queries that see no key."""
    n, heads, length, width = q.shape
    queries, keys, values = (x.flatten(0, 1) for x in (q, k, v))  # [n·H, L, K] each
    hidden = torch.where(there, 0.0, -1e30)[:, None, None].expand(n, heads, length, length)
    seen = torch.baddbmm(hidden.flatten(0, 1), queries, keys.mT, alpha=width**-0.5).softmax(-1)
    return torch.bmm(drawn_dropout(seen, rate), values).unflatten(0, (n, heads))


def in_grids(mixed: Callable[[Tensor, Bucket], Tensor], qkv: Tensor, batch: Batch) -> Tensor:
    """Returns the outputs [T, H, K] for a row [T, 3, H, K], where `mixed` maps the grid of a bucket 3 × [n, H, L, K] to its
    outputs [n, H, L, K]. One gather serves all grids, so that its gradient is one operation too."""
    laid = qkv.index_select(0, torch.cat([bucket.tokens.flatten() for bucket in batch.buckets]))
    values = []
    for bucket, part in zip(batch.buckets, laid.split([bucket.tokens.numel() for bucket in batch.buckets]), strict=True):
        grid = part.view(*bucket.tokens.shape, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)  # 3 × [n, H, L, K]
        values.append(mixed(grid, bucket).transpose(1, 2).flatten(0, 1))  # [n·L, H, K]
    return torch.cat(values).index_select(0, batch.order)
