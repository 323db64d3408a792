"""One layer of the encoder: attention, then feed-forward, each added to its input and normalised (post-norm)."""

from __future__ import annotations

from torch import Tensor, nn

from bertkit.model.attention import Attention
from bertkit.model.batch import Batch
from bertkit.model.config import Config
from bertkit.model.dropout import Dropout
from bertkit.model.feedforward import FeedForward
from bertkit.model.norm import Norm


class Block(nn.Module):
    """T tokens, D width."""

    def __init__(self, config: Config):
        super().__init__()
        self.attention = Attention(config)
        self.attention_norm = Norm(config.width, eps=config.norm_epsilon)
        self.feedforward = FeedForward(config)
        self.feedforward_norm = Norm(config.width, eps=config.norm_epsilon)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, batch)))
        return self.feedforward_norm(x + self.dropout(self.feedforward(x)))  # [T, D]
