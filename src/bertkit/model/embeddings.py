"""What goes into the first block: piece + segment + position, normalised (section 3.2).

T tokens, D width, E width of the pieces' vectors: D, unless they are factorised.
"""

from __future__ import annotations

from torch import Tensor, nn

from bertkit.model.batch import Batch
from bertkit.model.config import Config
from bertkit.model.dropout import Dropout
from bertkit.model.norm import Norm, narrow


class Segments(nn.Embedding):
    """Whether a token belongs to A or B; where there is one segment only, all belong to it."""

    def forward(self, batch: Batch) -> Tensor:
        return super().forward(batch.segments.clamp(max=self.num_embeddings - 1))


class Positions(nn.Embedding):
    """Where in its sequence a token stands; `first` is the row of the first position."""

    first = 0

    def forward(self, batch: Batch) -> Tensor:
        return super().forward(batch.positions + self.first)


class Embeddings(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        width = config.piece_width
        self.pieces = nn.Embedding(config.vocabulary, width)
        self.segments = Segments(config.segments, width) if config.segments else None
        self.positions = None
        if config.place == "learned":
            self.positions = Positions(config.positions + config.first_position, width)
            self.positions.first = config.first_position
        self.norm = Norm(width, eps=config.norm_epsilon, bias=config.bias)
        self.dropout = Dropout(config.dropout)
        self.widen = nn.Linear(width, config.width) if config.embedding else nn.Identity()

    def forward(self, batch: Batch) -> Tensor:
        x = self.pieces(batch.ids)  # [T, E]
        for table in (self.segments, self.positions):
            if table is not None:
                x = x + table(batch)
        return self.widen(self.dropout(narrow(self.norm(x))))  # [T, D]
