"""Disentangled attention, with separate scores for content and relative position (DeBERTa; He et al., 2021).

D width, H heads, K head width, S distances to each side; a bucket has n sequences and length L.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.model.attention import Attention, Places, in_grids, spans
from bertkit.model.batch import Batch, Bucket
from bertkit.model.config import Config
from bertkit.model.dropout import Dropout
from bertkit.model.positions import bucket_distances


class DisentangledAttention(Attention):
    """Scores are content-to-content + content-to-position + position-to-content, through the same linear maps."""

    def __init__(self, config: Config, layer: int):
        super().__init__(config, layer)
        self.rows = partial(bucket_distances, buckets=config.buckets, positions=config.positions)
        self.scale = (3 * self.head_width) ** -0.5  # for the sum of three kinds of scores
        self.dropout = Dropout(config.dropout)

    def mixed(self, x: Tensor, batch: Batch, places: Places) -> Tensor:
        assert places is not None
        qkv, of_places = self._qkv(x, None), self._qkv(self.dropout(places), None)  # [T, 3, H, K], [2 S, 3, H, K]
        return in_grids(partial(self._attend, of_places), qkv, batch)  # [T, H, K]

    def _attend(self, of_places: Tensor, grid: Tensor, bucket: Bucket) -> Tensor:
        """Returns the outputs of a grid [n, H, L, K]."""
        q, k, v = grid
        bias = self._bias(q, k, of_places) * self.scale
        if bucket.inside is not None:
            bias = bias.masked_fill(~bucket.inside, float("-inf"))
        rate = self.rate if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=rate, scale=self.scale)

    def _bias(self, q: Tensor, k: Tensor, of_places: Tensor) -> Tensor:
        """Returns the position scores [n, H, L, L]: queries with keys of relative positions, and keys with their queries."""
        length = q.shape[2]
        ahead = torch.arange(2 * length, device=q.device) - (length - 1)  # [2 L]
        place_q, place_k, _ = of_places.unbind(1)  # [2 S, H, K] each
        to_place = torch.einsum("nhlk,dhk->nhld", q, place_k[self.rows(-ahead)])
        from_place = torch.einsum("nhlk,dhk->nhld", k, place_q[self.rows(ahead)])
        return skewed(to_place) + skewed(from_place).transpose(2, 3)

    def weights(self, x: Tensor, batch: Batch, places: Places) -> list[Tensor]:
        assert places is not None
        q, k, _ = self._qkv(x, None).permute(1, 2, 0, 3)[:, None]  # 3 × [1, H, T, K]
        of_places = self._qkv(places, None)
        parts = [(q[:, :, s], k[:, :, s]) for s in spans(batch)]
        return [((a @ b.mT + self._bias(a, b, of_places)) * self.scale).softmax(-1)[0] for a, b in parts]


def skewed(x: Tensor) -> Tensor:
    """Returns y[i, j] = x[i, j - i + L - 1], from [n, H, L, 2 L] to [n, H, L, L]: viewing rows as one shorter shifts each by
    one more than the last. This needs no index, and its gradient no scattered additions."""
    n, heads, length, _ = x.shape
    row = 2 * length - 1
    flat = x.flatten(2)[..., length - 1 :][..., : length * row]
    return flat.view(n, heads, length, row)[..., :length]
