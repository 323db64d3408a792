"""The encoder: embeddings, then blocks; and the pooler, the vector that stands for a whole sequence."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertkit.model.batch import Batch
from bertkit.model.block import Block
from bertkit.model.config import Config
from bertkit.model.embeddings import Embeddings
from bertkit.model.init import initialize


class Pooler(nn.Module):
    """tanh(W · h[CLS])"""

    def __init__(self, config: Config):
        super().__init__()
        self.dense = nn.Linear(config.width, config.width)

    def forward(self, first: Tensor) -> Tensor:
        """From the vectors of first tokens [B, D]."""
        return self.dense(first).tanh()


class Encoder(nn.Module):
    """A packed batch in, a vector for each of its T tokens out.

    `checkpointing` trades time for memory in training: a block's inner values are computed again for its gradient.
    """

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.checkpointing = False
        self.embeddings = Embeddings(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.pooler = Pooler(config) if config.pooler else None
        initialize(self, config.init_std)

    def forward(self, batch: Batch) -> Tensor:
        x = self.embeddings(batch)
        for block in self.blocks:
            x = self._through(block, x, batch)
        return x  # [T, D]

    def hidden_states(self, batch: Batch) -> list[Tensor]:
        """The embeddings' output and every block's: layers + 1 times [T, D]."""
        states = [self.embeddings(batch)]
        for block in self.blocks:
            states.append(self._through(block, states[-1], batch))
        return states

    def attention_weights(self, batch: Batch) -> list[list[Tensor]]:
        """Who looks at whom: for each block, [H, L, L] for each sequence."""
        states = self.hidden_states(batch)
        attentions = [cast(Block, block).attention for block in self.blocks]
        return [attention.weights(x, batch) for attention, x in zip(attentions, states, strict=False)]

    def _through(self, block: nn.Module, x: Tensor, batch: Batch) -> Tensor:
        if self.checkpointing and self.training:
            return checkpoint(block, x, batch, use_reentrant=False)
        return block(x, batch)
