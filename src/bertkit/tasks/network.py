"""An encoder with a task's head, and the losses. Fine-tuning adds only a linear layer at the task's places.

T tokens, M places, D width, C outputs, G groups of places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.data.inputs import TaskBatch
from bertkit.data.windows import NOTHING
from bertkit.errors import InputError
from bertkit.model.attention import Wanted, picked
from bertkit.model.batch import Batch
from bertkit.model.config import Config
from bertkit.model.device import autocast, fetched, moved
from bertkit.model.dropout import Dropout
from bertkit.model.encoder import Encoder
from bertkit.model.init import initialize
from bertkit.model.linear import wants_steps
from bertkit.tasks.pretraining import sums
from bertkit.tasks.task import Task


class TaskNetwork(nn.Module):
    """Maps a batch to the sums of its loss and of its correct answers; a task decodes the `logits`."""

    names = ("loss", "accuracy")
    weights: Tensor  # of the classes

    def __init__(self, config: Config, task: Task):
        super().__init__()
        self.encoder = Encoder(encoder_config(config, task))
        self.dropout = Dropout(config.dropout)
        layers, below = len(task.settings.features) if task.settings.mix == "concat" else 1, task.settings.lstm
        width = config.width * max(1, layers)  # of a token's vector
        self.lstm = nn.LSTM(width, below, num_layers=2, bidirectional=True, batch_first=True) if below else None
        judged = 3 * config.width if task.loss == "vectors" else 2 * below if below else width  # similarity: (u, v, |u - v|)
        self.output = nn.Linear(judged, task.outputs)
        told = config.summary_of if task.pooled and self.encoder.pooler is not None else "cls"
        self.pooling = task.settings.pooling if task.loss == "vectors" else told
        self.loss, self.objective = LOSSES[task.loss], task.settings.objective
        self.smoothing = 0.0
        self.register_buffer("weights", torch.ones(task.outputs), persistent=False)
        initialize(self.output, config.init_std)

    @property
    def kept(self) -> TaskNetwork:
        """The part that is saved: all of it."""
        return self

    def forward(self, data: TaskBatch) -> Tensor:
        return torch.stack(self.loss(self.logits(data), data, self))  # [2]

    def logits(self, data: TaskBatch) -> Tensor:
        """[M, C]"""
        if self.pooling == "cls":
            return self.judged(self.read(data, data.places))
        return self.told(self.read(data), data)

    @torch.inference_mode()
    def tell(self, data: TaskBatch, device: torch.device, precision: str) -> np.ndarray:
        """Returns the logits of a batch of arrays, as an array."""
        data = replace(data, batch=data.batch.stepped()) if wants_steps(device, precision) else data
        with autocast(device, precision):
            return fetched(self.logits(data.map(lambda array: moved(torch.from_numpy(array), device))))

    def told(self, x: Tensor, data: TaskBatch) -> Tensor:
        """Returns the logits from the vectors of all tokens [T, D]."""
        return self.judged(pool(x, data, self.pooling))

    def judged(self, x: Tensor) -> Tensor:
        """Returns the logits from the vectors of the places [M, D]."""
        if self.encoder.pooler is not None:
            x = self.encoder.pooler(x)
        return self.output(self.dropout(x)).float()

    def read(self, data: TaskBatch, wanted: Wanted = None) -> Tensor:
        """Returns the vectors of the wanted tokens [M, D], or of all tokens [T, D]."""
        if self.lstm is None:
            return self.encoder(data.batch, wanted)
        return picked(self.in_order(self.encoder(data.batch), data.batch), wanted)

    def in_order(self, x: Tensor, batch: Batch) -> Tensor:
        """Applies the LSTM to each sequence."""
        assert self.lstm is not None
        sequences = x.split(batch.boundaries.diff().tolist())
        packed, _ = self.lstm(nn.utils.rnn.pack_sequence(list(sequences), enforce_sorted=False))
        return torch.cat(nn.utils.rnn.unpack_sequence(packed))


def encoder_config(config: Config, task: Task) -> Config:
    """Returns the encoder's config for a task: with a pooler or without, and which tokens have global attention, if any."""
    pooler = (task.pooled or config.summary_norm) and not task.settings.features and not task.settings.lstm
    pooler = pooler or (task.loss == "vectors" and config.pooler)  # unused, but kept
    picks = "options" if task.layout.by_unit else "question"
    looks = picks if task.loss == "picks" else "first" if task.pooled else "none"
    return config.with_(pooler=pooler, global_tokens=looks if config.global_tokens else "")


class SimilarityNetwork(TaskNetwork):
    """Maps texts to pooled vectors; the layer that compares them is only for training."""

    def judged(self, x: Tensor) -> Tensor:
        """Returns the vector of each text itself [M, D]."""
        return x.float()


class FeatureNetwork(TaskNetwork):
    """The feature-based approach (section 5.3): the encoder is frozen, and the head reads chosen layers of it."""

    def __init__(self, config: Config, task: Task):
        super().__init__(config, task)
        self.layers = task.settings.features
        self.shares = nn.Parameter(torch.zeros(len(self.layers))) if task.settings.mix == "weighted" else None
        self.encoder.requires_grad_(False)

    def read(self, data: TaskBatch, wanted: Wanted = None) -> Tensor:
        x = (self.features(data.batch) if data.features is None else data.features).to(self.output.weight.dtype)  # [T, n, D]
        x = x.flatten(1) if self.shares is None else torch.einsum("tnd,n->td", x, self.shares.softmax(0))
        return picked(x if self.lstm is None else self.in_order(x, data.batch), wanted)

    @torch.no_grad()
    def features(self, batch: Batch) -> Tensor:
        """Returns the frozen encoder's hidden states at the chosen layers, without dropout [T, n, D]."""
        states = self.encoder.eval().hidden_states(batch)
        return torch.stack([states[layer] for layer in self.layers], 1)


def pool(x: Tensor, data: TaskBatch, pooling: str) -> Tensor:
    """Returns, for each place, one vector of its sequence: the first token's, or the mean or maximum over the tokens."""
    if pooling == "cls":
        return x.index_select(0, data.places)
    x, bounds = x.float(), data.batch.boundaries
    owners = torch.bucketize(torch.arange(len(x), device=x.device, dtype=bounds.dtype), bounds[1:], right=True)  # [T]
    owners = owners.clamp(max=len(bounds) - 2)
    empty = x.new_zeros(len(bounds) - 1, x.shape[1])
    if pooling == "max":
        index = owners[:, None].expand_as(x)
        pooled = empty.scatter_reduce(0, index, x, "amax", include_self=False)
    else:
        pooled = empty.index_add(0, owners, x) / bounds.diff().clamp(min=1)[:, None]
    return pooled.index_select(0, owners.index_select(0, data.places))


Loss = Callable[[Tensor, TaskBatch, TaskNetwork], tuple[Tensor, Tensor]]  # the summed loss, and the number correct


def classes(logits: Tensor, data: TaskBatch, network: TaskNetwork) -> tuple[Tensor, Tensor]:
    """One class per place."""
    options = {"ignore_index": NOTHING, "reduction": "sum", "label_smoothing": network.smoothing}
    loss = F.cross_entropy(logits, data.targets, network.weights, **options)  # type: ignore[arg-type]
    return loss, (logits.argmax(-1) == data.targets).sum().float()


def flags(logits: Tensor, data: TaskBatch, network: TaskNetwork) -> tuple[Tensor, Tensor]:
    """Any number of classes per place; an answer is correct if all of them are."""
    known, targets = ~data.targets.isnan(), data.targets.nan_to_num()
    each = F.binary_cross_entropy_with_logits(logits, targets, pos_weight=network.weights, reduction="none")
    right = ((logits > 0) == (targets > 0.5)).all(1) & known.all(1)
    return (each * known).mean(1).sum(), right.sum().float()


def numbers(logits: Tensor, data: TaskBatch, network: TaskNetwork) -> tuple[Tensor, Tensor]:
    """One number per place; an answer is correct if it is off by less than one half."""
    return squares(logits, data.targets, 0.5)


def squares(found: Tensor, targets: Tensor, within: float) -> tuple[Tensor, Tensor]:
    """Returns the sum of squared errors, and how many errors are below `within`; skips missing targets."""
    known = ~targets.isnan()
    off = torch.where(known, found - targets.nan_to_num(), 0)
    return off.square().sum(), ((off.abs() < within) & known).sum().float()


def picks(logits: Tensor, data: TaskBatch, network: TaskNetwork) -> tuple[Tensor, Tensor]:
    """Picks one place per group and output: a softmax over the group's places."""
    chances, above = in_groups(logits, data)
    known, at = data.targets != NOTHING, data.targets.clamp(min=0)  # [G, C]
    right = (above.gather(0, at) >= 0).all(1) & known.all(1)
    return torch.where(known, -chances.gather(0, at), 0).mean(1).sum(), right.sum().float()


def in_groups(logits: Tensor, data: TaskBatch) -> tuple[Tensor, Tensor]:
    """Returns each place's log-probability within its group, and its logit minus the group's highest [M, C]."""
    groups = len(data.targets) + 1  # one more for places in no group
    index = data.groups.clamp(max=groups - 1)[:, None].expand_as(logits)
    top = logits.new_full((groups, logits.shape[1]), -1e30).scatter_reduce(0, index, logits.detach(), "amax")
    above = logits - top.gather(0, index)
    total = torch.zeros_like(top).scatter_add(0, index, above.exp()).clamp(min=1e-30).log()
    return above - total.gather(0, index), above


def vectors(logits: Tensor, data: TaskBatch, network: TaskNetwork) -> tuple[Tensor, Tensor]:
    """Similarity of pairs or triplets. Correct: closer than the others, the right class, or a cosine off by under 0.1."""
    targets = data.targets  # [G]
    first, second, *third = logits.view(len(targets), -1, logits.shape[1]).unbind(1)  # [G, D] each
    if network.objective == "classes":
        scores = network.output(torch.cat([first, second, (first - second).abs()], 1))
        return sums(scores, targets.nan_to_num(NOTHING).long())
    if network.objective == "triplet":
        near, far = (first - second).norm(dim=1), (first - third[0]).norm(dim=1)
        return (near - far + 1).relu().sum(), (near < far).sum().float()
    if network.objective == "cosine":
        return squares(F.cosine_similarity(first, second), targets, 0.1)
    scores = 20 * F.normalize(first) @ F.normalize(torch.cat([second, *third])).T  # [G, G or 2 G]
    return sums(scores, torch.arange(len(scores), device=scores.device))


LOSSES: dict[str, Loss] = {"classes": classes, "flags": flags, "numbers": numbers, "picks": picks, "vectors": vectors}


def build_network(config: Config, task: Task) -> TaskNetwork:
    if layers := task.settings.features:
        if bad := [layer for layer in layers if not -config.layers - 1 <= layer <= config.layers]:
            raise InputError(f"features has layer {bad[0]}; expected 0 (embeddings) to {config.layers}, or from -1 on")
        return FeatureNetwork(config, task)
    return (SimilarityNetwork if task.loss == "vectors" else TaskNetwork)(config, task)
