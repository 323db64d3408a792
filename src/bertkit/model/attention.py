"""Self-attention over packed sequences: every token looks at all tokens of its own sequence, and at no other.

T tokens, B sequences, D width, H heads, K head width, n sequences of a bucket, L its length.

Two ways to the same numbers: on CUDA in half precision variable-length kernels work on the packed row as it is, our own
on short sequences; everywhere else q, k and v are laid into grids of about one length. This file and the ONNX export alone
ever pad.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.model.batch import Batch, Bucket
from bertkit.model.config import Config
from bertkit.model.dropout import drawn_dropout, random_key
from bertkit.model.local import attend_near
from bertkit.model.positions import turned

SHORT = 128  # tokens that our own kernel holds at once
LONG = 512  # tokens up to which our own tiles were seen to be faster than flash attention
Places = Tensor | None  # what model/positions.py tells of places
Wanted = Tensor | None  # the tokens [M] whose vectors are asked for; all, if none are named


class Attention(nn.Module):
    """softmax(q kᵀ / √K) v in H heads, then one linear map."""

    def __init__(self, config: Config, layer: int):
        super().__init__()
        self.heads, self.head_width = config.heads, config.head_width
        self.rate, self.causal = config.attention_dropout, config.causal
        self.window = 0 if config.global_every and layer % config.global_every == 0 else config.window
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.output = nn.Linear(config.width, config.width, bias=config.bias)

    def forward(self, x: Tensor, batch: Batch, places: Places, wanted: Wanted = None) -> Tensor:
        return self.output(picked(self.mixed(x, batch, places).flatten(1), wanted))  # [T, D]

    def mixed(self, x: Tensor, batch: Batch, places: Places) -> Tensor:
        """The values each token looked at, head by head [T, H, K]."""
        rate = self.rate if self.training else 0.0
        return attend(self._qkv(x, places), batch, rate, self.causal, self.window)

    def _qkv(self, x: Tensor, places: Places) -> Tensor:
        """Queries, keys and values [T, 3, H, K], the first two turned where places are rotations."""
        qkv = self.qkv(x).view(-1, 3, self.heads, self.head_width)
        return qkv if places is None else turned(qkv, *places[int(self.window > 0)])

    def weights(self, x: Tensor, batch: Batch, places: Places) -> list[Tensor]:
        """Who looks at whom, for looking inside: [H, L, L] for each sequence, in the batch's order."""
        q, k, _ = self._qkv(x, places).permute(1, 2, 0, 3)  # 3 × [H, T, K]
        scores = [q[:, s] @ k[:, s].mT * self.head_width**-0.5 for s in spans(batch)]
        return [score.masked_fill(self._hidden(score.shape[1], x.device), float("-inf")).softmax(-1) for score in scores]

    def _hidden(self, length: int, device: torch.device) -> Tensor:
        """Where query i may not look at key j [L, L]."""
        distance = torch.arange(length, device=device) - torch.arange(length, device=device)[:, None]
        return (distance > 0) & self.causal | (distance.abs() > (self.window or length))


def picked(x: Tensor, wanted: Wanted) -> Tensor:
    """The wanted of x's rows [M, D]."""
    return x if wanted is None else x.index_select(0, wanted)


def spans(batch: Batch) -> list[slice]:
    """Where each sequence lies in the row."""
    return [slice(begin, end) for begin, end in pairwise(batch.boundaries.tolist())]


def attend(qkv: Tensor, batch: Batch, dropout: float, causal: bool = False, window: int = 0) -> Tensor:
    """Mixed values [T, H, K] of queries, keys and values [T, 3, H, K]; a window reaches so many tokens to each side."""
    if window >= batch.longest - 1:
        window = 0
    if qkv.is_cuda and qkv.dtype in (torch.bfloat16, torch.float16):
        return _attend_packed(qkv, batch, dropout, causal, window)
    if qkv.is_cuda:
        return _attend_in_grids(qkv, batch, dropout, causal, window)
    with torch.autocast("cpu", enabled=False):  # in 16 bits a processor's gradient takes up to nine times as long
        return _attend_in_grids(qkv.float(), batch, dropout, causal, window).to(qkv.dtype)


def _attend_packed(qkv: Tensor, batch: Batch, dropout: float, causal: bool, window: int) -> Tensor:
    """Over the row as it is. The public varlen_attn has no dropout, the operator under it does."""
    if batch.longest <= LONG and not window and qkv.shape[-1] in (16, 32, 64, 128):
        from bertkit.model.kernels.short import attend_short  # Triton is there with CUDA only
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
    """Attention bucket by bucket. Who looks back never sees what pads."""

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
    """Attention [n, H, L, K] on a processor in half of torch's time, which draws a number a score and looks for rows that
    see nothing."""
    n, heads, length, width = q.shape
    queries, keys, values = (x.flatten(0, 1) for x in (q, k, v))  # [n·H, L, K] each
    hidden = torch.where(there, 0.0, -1e30)[:, None, None].expand(n, heads, length, length)
    seen = torch.baddbmm(hidden.flatten(0, 1), queries, keys.mT, alpha=width**-0.5).softmax(-1)
    return torch.bmm(drawn_dropout(seen, rate), values).unflatten(0, (n, heads))


def in_grids(mixed: Callable[[Tensor, Bucket], Tensor], qkv: Tensor, batch: Batch) -> Tensor:
    """The mixed values [T, H, K] of a row [T, 3, H, K], where `mixed` takes a bucket's grid of sequences of about one length
    3 × [n, H, L, K] to its values [n, H, L, K]. The row is picked for all grids at once, as their gradient then is."""
    laid = qkv.index_select(0, torch.cat([bucket.tokens.flatten() for bucket in batch.buckets]))
    values = []
    for bucket, part in zip(batch.buckets, laid.split([bucket.tokens.numel() for bucket in batch.buckets]), strict=True):
        grid = part.view(*bucket.tokens.shape, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)  # 3 × [n, H, L, K]
        values.append(mixed(grid, bucket).transpose(1, 2).flatten(0, 1))  # [n·L, H, K]
    return torch.cat(values).index_select(0, batch.order)
