"""One layer of the encoder: attention, then feed-forward, each with a residual connection and a norm.

T tokens, D width.
"""

from typing import cast

from torch import Tensor, nn
from torch.compiler import nested_compile_region

from bertkit.model.attention import Attention, Places, Wanted, picked
from bertkit.model.batch import Batch
from bertkit.model.config import Config
from bertkit.model.disentangled import DisentangledAttention
from bertkit.model.dropout import Dropout
from bertkit.model.feedforward import FeedForward, GatedFeedForward
from bertkit.model.longformer import LongAttention
from bertkit.model.norm import Norm


class Block(nn.Module):
    """The paper's block, with a norm after each half. Attention reads all tokens; the rest computes only the wanted ones."""

    def __init__(self, config: Config, layer: int):
        super().__init__()
        kind = DisentangledAttention if config.place == "relative" else LongAttention if config.global_tokens else Attention
        self.attention = kind(config, layer)
        self.attention_norm = Norm(config.width, eps=config.norm_epsilon, bias=config.bias)
        self.feedforward = (GatedFeedForward if config.gated else FeedForward)(config)
        self.feedforward_norm = Norm(config.width, eps=config.norm_epsilon, bias=config.bias)
        self.dropout = Dropout(config.dropout)

    @nested_compile_region  # compiled once for all layers
    def forward(self, x: Tensor, batch: Batch, places: Places, wanted: Wanted = None) -> Tensor:
        x = self.attention_norm.added(picked(x, wanted), self.attention(x, batch, places, wanted), self.dropout)
        return self.feedforward_norm.added(x, self.feedforward(x), self.dropout)  # [T, D]

    def weights(self, x: Tensor, batch: Batch, places: Places) -> list[Tensor]:
        """Returns the attention weights [H, L, L] of each sequence."""
        return self.attention.weights(x, batch, places)


class PreNormBlock(Block):
    """A block with a norm before each half; the first block's input is already normalized."""

    def __init__(self, config: Config, layer: int):
        super().__init__(config, layer)
        if layer == 0:
            self.attention_norm = cast(Norm, nn.Identity())

    @nested_compile_region  # compiled once for all layers
    def forward(self, x: Tensor, batch: Batch, places: Places, wanted: Wanted = None) -> Tensor:
        x = picked(x, wanted) + self.dropout(self.attention(self.attention_norm(x), batch, places, wanted))
        return x + self.dropout(self.feedforward(self.feedforward_norm(x)))  # [T, D]

    def weights(self, x: Tensor, batch: Batch, places: Places) -> list[Tensor]:
        return self.attention.weights(self.attention_norm(x), batch, places)


BLOCKS = {"post": Block, "pre": PreNormBlock}
