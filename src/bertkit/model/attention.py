"""Self-attention over packed sequences: every token looks at all tokens of its own sequence, and at no other.

T tokens, B sequences, D width, H heads, K head width, n sequences of a bucket, L its length.

Two ways to the same numbers: on CUDA in half precision variable-length kernels work on the packed row as it is, our own
on short sequences; everywhere else q, k and v are laid into grids of about one length. This file and the ONNX export alone
ever pad.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.model.batch import Batch
from bertkit.model.config import Config
from bertkit.model.dropout import random_key

SHORT = 128  # tokens that our own kernel holds at once


class Attention(nn.Module):
    """softmax(q kᵀ / √K) v in H heads, then one linear map."""

    def __init__(self, config: Config):
        super().__init__()
        self.heads, self.head_width = config.heads, config.head_width
        self.rate, self.causal = config.attention_dropout, config.causal
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.output = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        qkv = self.qkv(x).view(-1, 3, self.heads, self.head_width)  # [T, 3, H, K]
        mixed = attend(qkv, batch, self.rate if self.training else 0.0, self.causal)  # [T, H, K]
        return self.output(mixed.flatten(1))  # [T, D]

    def weights(self, x: Tensor, batch: Batch) -> list[Tensor]:
        """Who looks at whom, for looking inside: [H, L, L] for each sequence, in the batch's order."""
        q, k, _ = self.qkv(x).view(-1, 3, self.heads, self.head_width).permute(1, 2, 0, 3)  # 3 × [H, T, K]
        bounds = batch.boundaries.tolist()
        spans = [slice(begin, end) for begin, end in pairwise(bounds)]
        scores = [q[:, s] @ k[:, s].mT * self.head_width**-0.5 for s in spans]
        if self.causal:
            scores = [score + score.new_full(score.shape[-2:], float("-inf")).triu(1) for score in scores]
        return [score.softmax(-1) for score in scores]


def attend(qkv: Tensor, batch: Batch, dropout: float, causal: bool = False) -> Tensor:
    """Mixed values [T, H, K] of queries, keys and values [T, 3, H, K]."""
    if qkv.is_cuda and qkv.dtype in (torch.bfloat16, torch.float16):
        return _attend_packed(qkv, batch, dropout, causal)
    return _attend_in_grids(qkv, batch, dropout, causal)


def _attend_packed(qkv: Tensor, batch: Batch, dropout: float, causal: bool) -> Tensor:
    """Over the row as it is. The public varlen_attn has no dropout, the operator under it does."""
    if batch.longest <= SHORT and qkv.shape[-1] in (16, 32, 64, 128):
        from bertkit.model.kernels import attend_short  # Triton is there with CUDA only

        key = random_key(qkv.device) if dropout else batch.boundaries
        return attend_short(qkv, batch.boundaries, key, batch.longest, dropout, causal)
    q, k, v = qkv.unbind(1)  # 3 × [T, H, K]
    ends, longest = batch.boundaries, batch.longest
    return torch.ops.aten._flash_attention_forward(q, k, v, ends, ends, longest, longest, dropout, causal, False)[0]


def _attend_in_grids(qkv: Tensor, batch: Batch, dropout: float, causal: bool) -> Tensor:
    """Attention bucket by bucket: a grid [n, L] of sequences of about one length. Who looks back never sees what pads."""
    mixed = []
    for bucket in batch.buckets:
        grid = qkv.index_select(0, bucket.tokens.flatten()).view(*bucket.tokens.shape, *qkv.shape[1:])  # [n, L, 3, H, K]
        q, k, v = grid.permute(2, 0, 3, 1, 4)  # 3 × [n, H, L, K]
        inside = None if causal else bucket.inside
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=inside, dropout_p=dropout, is_causal=causal)  # [n, H, L, K]
        mixed.append(a.transpose(1, 2).flatten(0, 1))  # [n·L, H, K]
    return torch.cat(mixed).index_select(0, batch.order)  # [T, H, K]
