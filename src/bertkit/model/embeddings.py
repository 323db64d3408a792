"""The input of the first block: piece + segment + position embeddings, normalized (section 3.2).

T tokens, D width, E width of the piece embeddings: D, unless they are factorized.
"""

from torch import Tensor, nn

from bertkit.model.batch import Batch
from bertkit.model.config import Config
from bertkit.model.dropout import Dropout
from bertkit.model.linear import Linear
from bertkit.model.norm import Norm, narrow


class Embeddings(nn.Module):
    """Has the tables that the configuration asks for: pieces, segments (where B may share A's row), positions."""

    def __init__(self, config: Config):
        super().__init__()
        width, self.first = config.piece_width, config.first_position
        self.pieces = nn.Embedding(config.vocabulary, width)
        self.segments = nn.Embedding(config.segments, width) if config.segments else None
        self.positions = nn.Embedding(config.positions + self.first, width) if config.place == "learned" else None
        self.norm = Norm(width, eps=config.norm_epsilon, bias=config.bias)
        self.dropout = Dropout(config.dropout)
        self.widen = Linear(width, config.width) if config.embedding else nn.Identity()

    def forward(self, batch: Batch) -> Tensor:
        x = self.pieces(batch.ids)  # [T, E]
        if self.segments is not None:
            x = x + self.segments(batch.segments.clamp(max=self.segments.num_embeddings - 1))
        if self.positions is not None:
            x = x + self.positions(batch.positions + self.first)
        return self.widen(self.dropout(narrow(self.norm(x))))  # [T, D]
