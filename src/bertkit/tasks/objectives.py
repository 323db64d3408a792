"""Pre-training objectives besides masked pieces and sentence pairs. Each network here trains a model that is `kept`.

T tokens, M masked places, D width, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.data.examples import NOTHING, PretrainingBatch
from bertkit.data.masking import MAX_SPAN
from bertkit.model.batch import Batch
from bertkit.model.config import Config
from bertkit.model.init import initialize
from bertkit.model.linear import Linear, linear
from bertkit.model.norm import Norm
from bertkit.tasks.pretraining import MaskedHead, Pretraining, ReplacedHead, sums


class Replaced(nn.Module):
    """ELECTRA: a small generator fills in the masked pieces; the discriminator predicts which tokens were replaced."""

    names: ClassVar[tuple[str, ...]] = ("token_loss", "token_accuracy", "generator_loss", "generator_accuracy")
    emphasis: ClassVar = {"token_loss": 50.0}

    def __init__(self, config: Config, *, generator: float = 1 / 3):
        super().__init__()
        self.kept = Pretraining(config, masked=False, next_sentence=False, replaced=True)
        self.generator = Pretraining(generator_config(config, generator), next_sentence=False)
        mine, theirs = self.generator.encoder.embeddings, self.kept.encoder.embeddings
        mine.pieces, mine.segments, mine.positions = theirs.pieces, theirs.segments, theirs.positions

    def forward(self, data: PretrainingBatch) -> Tensor:
        logits = self.generator.masked_logits(self.generator.encoder(data.batch, data.places))  # [M, V]
        batch, replaced = fill_in(data, logits.detach(), self.left(data))
        return torch.cat([self.told(self.kept.encoder(batch), replaced, data), torch.stack(sums(logits, data.targets))])

    def told(self, x: Tensor, replaced: Tensor, data: PretrainingBatch) -> Tensor:
        """Returns the discriminator's sums from its vectors [T, D]."""
        scores = self.judge(x).float()  # [T]
        inside = torch.arange(len(scores), device=scores.device) < data.size
        loss = F.binary_cross_entropy_with_logits(scores, replaced.float(), reduction="none")
        right = ((scores > 0) == replaced) & inside
        return torch.stack([(loss * inside).sum(), right.sum().float()])

    def left(self, data: PretrainingBatch) -> int:
        """Returns how many of the masked places stay masked for the discriminator: the row's first ones."""
        return 0

    def judge(self, x: Tensor) -> Tensor:
        assert self.kept.replaced is not None
        return self.kept.replaced(x)


class Both(Replaced):
    """In half of a row's texts the pieces stay masked for the discriminator, which predicts them; it is kept with this head.
    So it trains on texts like those of `fill`, and on texts without [MASK] like those of fine-tuning."""

    names = ("masked_loss", "masked_accuracy", *Replaced.names)
    emphasis: ClassVar = Replaced.emphasis | {"masked_loss": 3.0}

    def __init__(self, config: Config, **told: float):
        super().__init__(config, **told)
        self.kept.masked, self.kept.replaced = MaskedHead(config), None
        self.replaced = ReplacedHead(config)

    def left(self, data: PretrainingBatch) -> int:
        return len(data.places) // 2

    def judge(self, x: Tensor) -> Tensor:
        return self.replaced(x)

    def told(self, x: Tensor, replaced: Tensor, data: PretrainingBatch) -> Tensor:
        left, known = self.left(data), data.targets != NOTHING
        logits = self.kept.masked_logits(x.index_select(0, data.places[:left]))
        all_for_these = known.sum() / known[:left].sum().clamp(min=1)  # because the sum will be divided by all masked places
        filled = torch.stack(sums(logits, data.targets[:left])) * all_for_these
        return torch.cat([filled, super().told(x, replaced, data)])


def generator_config(config: Config, share: float) -> Config:
    """Returns a config with this share of the width, in whole heads, and piece embeddings as wide as the discriminator's."""
    heads = max(1, round(config.heads * share))
    width, pieces = heads * config.head_width, config.piece_width
    feedforward = config.feedforward * width // config.width
    feedforward -= feedforward % 64 if feedforward > 64 else 0  # suits tensor cores
    sizes = dict(width=width, heads=heads, feedforward=feedforward, pooler=False)
    return config.with_(**sizes, embedding=0 if width == pieces else pieces)


def fill_in(data: PretrainingBatch, logits: Tensor, left: int = 0) -> tuple[Batch, Tensor]:
    """Returns the batch with pieces sampled at the masked places after the first `left`, and which tokens [T] changed."""
    places, targets, logits, ids = data.places[left:], data.targets[left:], logits[left:], data.batch.ids
    noise = -torch.empty_like(logits, dtype=torch.float32).exponential_().log()  # Gumbel noise, so that argmax samples
    filled = targets != NOTHING  # filler places point at the first token, which is never masked
    drawn = torch.where(filled, (logits + noise).argmax(-1), ids.index_select(0, places))  # [M]
    replaced = torch.zeros_like(ids, dtype=torch.bool).scatter(0, places, filled & (drawn != targets))
    return replace(data.batch, ids=ids.scatter(0, places, drawn)), replaced


class Spans(nn.Module):
    """SpanBERT: a masked piece is also predicted from the two tokens around its span and its position in it."""

    names = (*Pretraining.names, "boundary_loss")

    def __init__(self, config: Config, *, next_sentence: bool = False):
        super().__init__()
        self.kept = Pretraining(config, next_sentence=next_sentence)
        self.places = nn.Embedding(MAX_SPAN * 10, config.width)
        self.first, self.second = Linear(3 * config.width, config.width), Linear(config.width, config.piece_width)
        self.first_norm, self.second_norm = (Norm(n, eps=config.norm_epsilon) for n in (config.width, config.piece_width))
        for part in (self.first, self.second, self.places):
            initialize(part, config.init_std)

    def forward(self, data: PretrainingBatch) -> Tensor:
        left, right, place = span_edges(data)
        wanted = [data.places, data.batch.firsts, left, right]
        x = self.kept.encoder(data.batch, torch.cat(wanted))
        hidden, firsts, before, behind = x.split([len(one) for one in wanted])
        h = torch.cat([before, behind, self.places(place.clamp(max=self.places.num_embeddings - 1))], -1)  # [M, 3 D]
        h = self.second_norm(F.gelu(self.second(self.first_norm(F.gelu(self.first(h))))))
        pieces = self.kept.encoder.embeddings.pieces.weight
        boundary, _ = sums(linear(h, pieces), data.targets)
        return torch.cat([self.kept.sums(hidden, firsts, data), boundary[None]])


def span_edges(data: PretrainingBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Returns, for each masked place [M], the tokens before and after its masked run, and its position in the run."""
    places, last = data.places, len(data.batch.ids) - 1
    known = data.targets != NOTHING
    follows = (places[1:] == places[:-1] + 1) & known[1:]  # is the next place the next token?
    edge = follows.new_ones(1)
    begins = torch.where(torch.cat([edge, ~follows]), places, 0).cummax(0).values
    ends = torch.where(torch.cat([~follows, edge]) & known, places, last)
    ends = ends.flip(0).cummin(0).values.flip(0)
    return (begins - 1).clamp(min=0), (ends + 1).clamp(max=last), (places - begins).clamp(min=0)


JUDGED: dict[str, Callable[..., nn.Module]] = {"replaced": Replaced, "both": Both}  # with a generator
OBJECTIVES: dict[str, Callable[..., nn.Module]] = {"masked": Pretraining, "spans": Spans} | JUDGED
