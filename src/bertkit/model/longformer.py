"""Attention for long documents (Beltagy et al., 2020): a window, and a few global tokens that see all and are seen by all.

T tokens, D width, H heads, K head width, G global tokens of a sequence; a bucket has n sequences and length L.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.model.attention import Attention, Places, in_grids, spans
from bertkit.model.batch import Batch, Bucket
from bertkit.model.config import Config
from bertkit.model.linear import Linear
from bertkit.model.local import attend_near


class LongAttention(Attention):
    """Global tokens attend to all with separate queries, keys and values; other tokens attend to their usual ones."""

    def __init__(self, config: Config, layer: int):
        super().__init__(config, layer)
        self.global_qkv = Linear(config.width, 3 * config.width)
        self.choice = config.global_tokens
        self.global_qkv.requires_grad_(self.choice != "none")

    def mixed(self, x: Tensor, batch: Batch, places: Places) -> Tensor:
        if self.choice == "none":
            return super().mixed(x, batch, places)
        return in_grids(partial(self._attend, choose_global(batch, self.choice)), self._both(x), batch)  # [T, H, K]

    def _both(self, x: Tensor) -> Tensor:
        """Returns queries, keys and values for the window, and those for global attention [T, 6, H, K]."""
        return torch.cat([self.qkv(x), self.global_qkv(x)], 1).view(-1, 6, self.heads, self.head_width)

    def _attend(self, chosen: Tensor, grid: Tensor, bucket: Bucket) -> Tensor:
        """Returns the outputs of a grid [n, H, L, K]."""
        rate = self.rate if self.training else 0.0
        q, k, v, *far = grid  # [n, H, L, K] each
        inside = bucket.there
        seen = chosen[bucket.tokens] & inside  # [n, L]
        early = torch.arange(inside.shape[1], 0, -1, device=seen.device)
        most: Any = seen.sum(1).max().clamp(min=1)  # a tensor, so that tracing records it
        at = (seen * early).topk(most, dim=1).indices  # [n, G]
        there = seen.gather(1, at)
        mixed = attend_near(q, k, v, inside & ~seen, self.window, rate, (_pick(k, at), _pick(v, at), there))
        q, k, v = far
        mask = inside[:, None, None]
        everywhere = F.scaled_dot_product_attention(_pick(q, at), k, v, attn_mask=mask, dropout_p=rate)  # [n, H, G, K]
        index = at[:, None, :, None].expand_as(everywhere)
        return mixed.scatter(2, index, torch.where(there[:, None, :, None], everywhere, _pick(mixed, at)))

    def weights(self, x: Tensor, batch: Batch, places: Places) -> list[Tensor]:
        q, k, _, global_q, global_k, _ = self._both(x).permute(1, 2, 0, 3)  # 6 × [H, T, K]
        scale = self.head_width**-0.5
        found, chosen = [], choose_global(batch, self.choice)
        for s in spans(batch):
            hidden = self._hidden(s.stop - s.start, x.device) & ~chosen[s]
            local = (q[:, s] @ k[:, s].mT * scale).masked_fill(hidden, float("-inf")).softmax(-1)
            wide = (global_q[:, s] @ global_k[:, s].mT * scale).softmax(-1)
            found.append(torch.where(chosen[s][:, None], wide, local))
        return found


def choose_global(batch: Batch, choice: str) -> Tensor:
    """Returns which tokens are global [T]: none, each sequence's first, those before the first [SEP], or those after it."""
    first, second = batch.positions == 0, batch.segments > 0
    after = torch.roll(second, -1, 0) & ~second  # the separator after the first part
    begins = second & ~torch.roll(second, 1, 0)  # the second part's first token: the second separator
    none = torch.zeros_like(first)
    return {"none": none, "first": first, "question": ~second & ~after, "options": second & ~begins}[choice]


def _pick(x: Tensor, at: Tensor) -> Tensor:
    """Returns the tokens of [n, H, L, K] at [n, G]: [n, H, G, K]."""
    return x.gather(2, at[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
