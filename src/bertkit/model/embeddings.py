"""What goes into the first block: piece + segment + position, normalised (section 3.2)."""

from __future__ import annotations

from torch import Tensor, nn

from bertkit.model.batch import Batch
from bertkit.model.config import Config
from bertkit.model.dropout import Dropout
from bertkit.model.norm import Norm, narrow


class Embeddings(nn.Module):
    """T tokens, D width."""

    def __init__(self, config: Config):
        super().__init__()
        self.pieces = nn.Embedding(config.vocabulary, config.width)
        self.segments = nn.Embedding(config.segments, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        self.norm = Norm(config.width, eps=config.norm_epsilon)
        self.dropout = Dropout(config.dropout)

    def forward(self, batch: Batch) -> Tensor:
        x = self.pieces(batch.ids) + self.segments(batch.segments) + self.positions(batch.positions)  # [T, D]
        return self.dropout(narrow(self.norm(x)))
