"""The encoder: embeddings, then blocks; and the pooler, whose vector represents a whole sequence."""

from typing import cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertkit.model.attention import Places, Wanted
from bertkit.model.batch import Batch
from bertkit.model.block import BLOCKS, Block
from bertkit.model.config import Config
from bertkit.model.embeddings import Embeddings
from bertkit.model.feedforward import ACTIVATION
from bertkit.model.init import initialize
from bertkit.model.linear import Linear
from bertkit.model.norm import Norm
from bertkit.model.positions import POSITIONS


class Pooler(nn.Module):
    """tanh(W · h[CLS]), or a family member's variant of it."""

    def __init__(self, config: Config):
        super().__init__()
        self.dense = Linear(config.width, config.width, bias=config.bias)
        self.activation = ACTIVATION[config.summary]
        self.norm = Norm(config.width, eps=config.norm_epsilon, bias=config.bias) if config.summary_norm else nn.Identity()

    def forward(self, first: Tensor) -> Tensor:
        """Pools the vectors of first tokens [B, D]."""
        return self.norm(self.activation(self.dense(first)))


class Encoder(nn.Module):
    """Maps a packed batch to a vector for each of its T tokens, or only for the wanted ones: then the last block, after its
    attention, skips the others.

    `checkpointing` trades time for memory in training: the activations inside a block are recomputed for its gradient.
    """

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.checkpointing = False
        self.embeddings = Embeddings(config)
        self.positions = POSITIONS[config.place](config)
        kind, count = BLOCKS[config.norm], 1 if config.shared else config.layers
        self.blocks = nn.ModuleList(kind(config, layer) for layer in range(count))
        before = config.norm == "pre"
        self.norm = Norm(config.width, eps=config.norm_epsilon, bias=config.bias) if before else nn.Identity()
        self.pooler = Pooler(config) if config.pooler else None
        initialize(self, config.init_std)

    @property
    def layers(self) -> list[Block]:
        """The blocks in the order of their use; a shared one is repeated."""
        return [cast(Block, block) for block in self.blocks] * (self.config.layers // len(self.blocks))

    def forward(self, batch: Batch, wanted: Wanted = None) -> Tensor:
        x, places = self.embeddings(batch), self.positions(batch)
        *body, last = self.layers
        for block in body:
            x = self._through(block, x, batch, places)
        return self.norm(self._through(last, x, batch, places, wanted))  # [T, D], or [M, D]

    def hidden_states(self, batch: Batch) -> list[Tensor]:
        """Returns the output of the embeddings and of every layer: layers + 1 tensors [T, D]."""
        states, places = [self.embeddings(batch)], self.positions(batch)
        for block in self.layers:
            states.append(self._through(block, states[-1], batch, places))
        return [*states[:-1], self.norm(states[-1])]

    def attention_weights(self, batch: Batch) -> list[list[Tensor]]:
        """Returns the attention weights: for each layer, [H, L, L] of each sequence."""
        states, places = self.hidden_states(batch), self.positions(batch)
        return [block.weights(x, batch, places) for block, x in zip(self.layers, states, strict=False)]

    def _through(self, block: nn.Module, x: Tensor, batch: Batch, places: Places, wanted: Wanted = None) -> Tensor:
        if self.checkpointing and self.training:
            return checkpoint(block, x, batch, places, wanted, use_reentrant=False)
        return block(x, batch, places, wanted)
