"""BERT's two pre-training tasks: masked language modelling and next-sentence prediction (section 3.1).

T tokens, B sequences, M masked places, D width, E width of the piece embeddings, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.data.examples import NOTHING, PretrainingBatch
from bertkit.model.config import Config
from bertkit.model.encoder import Encoder
from bertkit.model.feedforward import ACTIVATION
from bertkit.model.init import initialize
from bertkit.model.linear import Linear, linear
from bertkit.model.norm import Norm


class MaskedHead(nn.Module):
    """Scores every piece for a masked place; its decoder is tied to the piece embeddings."""

    def __init__(self, config: Config):
        super().__init__()
        self.dense = Linear(config.width, config.piece_width, bias=config.bias)
        self.activation = ACTIVATION[config.masked or config.activation]
        self.norm = Norm(config.piece_width, eps=config.norm_epsilon, bias=config.bias)
        self.bias = nn.Parameter(self.dense.weight.new_zeros(config.vocabulary))
        initialize(self, config.init_std)

    def forward(self, x: Tensor, pieces: Tensor) -> Tensor:
        x = self.norm(self.activation(self.dense(x)))  # [M, E]
        return linear(x, pieces, self.bias)  # [M, V]


class NextHead(nn.Module):
    """Two scores from the pooled vector: B follows A, B comes from elsewhere."""

    def __init__(self, config: Config):
        super().__init__()
        self.output = Linear(config.width, 2)
        initialize(self, config.init_std)

    def forward(self, pooled: Tensor) -> Tensor:
        return self.output(pooled)  # [B, 2]


class ReplacedHead(nn.Module):
    """One score per token: did the generator replace it? (ELECTRA)"""

    def __init__(self, config: Config):
        super().__init__()
        self.dense = Linear(config.width, config.width)
        self.activation = ACTIVATION[config.activation]
        self.output = Linear(config.width, 1)
        initialize(self, config.init_std)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.activation(self.dense(x))).squeeze(-1)  # [T]


class Pretraining(nn.Module):
    """An encoder with its pre-training heads: masked, next-sentence, both or none; or a discriminator's head."""

    names = ("masked_loss", "next_loss", "masked_accuracy", "next_accuracy")

    def __init__(self, config: Config, *, masked: bool = True, next_sentence: bool = True, replaced: bool = False):
        super().__init__()
        self.encoder = Encoder(config)
        self.masked = MaskedHead(config) if masked else None
        self.next = NextHead(config) if next_sentence else None
        self.replaced = ReplacedHead(config) if replaced else None

    def forward(self, data: PretrainingBatch) -> Tensor:
        """Returns sums over the batch, as in `names`: the losses, and the numbers of correct predictions."""
        x = self.encoder(data.batch, torch.cat([data.places, data.batch.firsts]))
        return self.sums(x[: len(data.places)], x[len(data.places) :], data)

    def sums(self, hidden: Tensor, firsts: Tensor, data: PretrainingBatch) -> Tensor:
        """Returns the same from the vectors of masked places [M, D] and of first tokens [B, D]."""
        found = [hidden.new_zeros((), dtype=torch.float32)] * 4
        if self.masked is not None:
            found[0], found[2] = sums(self.masked_logits(hidden), data.targets)
        if self.next is not None:
            found[1], found[3] = sums(self.next_logits(firsts), data.labels)
        return torch.stack(found)

    @property
    def kept(self) -> Pretraining:
        """The part that is saved: all of it."""
        return self

    def masked_logits(self, x: Tensor) -> Tensor:
        """Returns scores [M, V] from the vectors of masked places [M, D]."""
        assert self.masked is not None
        return self.masked(x, self.encoder.embeddings.pieces.weight)

    def next_logits(self, x: Tensor) -> Tensor:
        """Returns scores [B, 2] from the vectors of first tokens [B, D]; index 0 is "B follows A"."""
        assert self.next is not None and self.encoder.pooler is not None
        return self.next(self.encoder.pooler(x))


def sums(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the summed cross-entropy and the number of correct predictions, where there is a target."""
    loss = F.cross_entropy(logits.float(), targets, ignore_index=NOTHING, reduction="sum")
    return loss, (logits.detach().argmax(-1) == targets).sum().float()
