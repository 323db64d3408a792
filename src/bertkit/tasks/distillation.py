"""A student learns from its teacher's outputs and from the labels (Hinton et al., 2015; DistilBERT: Sanh et al., 2019).

T tokens, M places, D width. The teacher is not a submodule of the trained network: it is neither saved nor changed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.data.examples import NOTHING, PretrainingBatch
from bertkit.data.inputs import TaskBatch
from bertkit.tasks.network import classes, in_groups, picks
from bertkit.tasks.pretraining import sums

TEMPERATURE = 2.0
log_softmax = partial(F.log_softmax, dim=-1)


class Taught(nn.Module):
    """A student, which is kept, and its teacher."""

    def __init__(self, student: Any, teacher: Any):
        super().__init__()
        self.kept, self.teachers = student, [teacher.eval().requires_grad_(False)]


class Distilled(Taught):
    """Pre-training on the masked pieces, the teacher's distributions over them, and the directions of its vectors."""

    names = ("masked_loss", "soft_loss", "token_loss", "masked_accuracy")
    emphasis: ClassVar = {"masked_loss": 2.0, "soft_loss": 5.0}

    def forward(self, data: PretrainingBatch) -> Tensor:
        teacher, x = self.teachers[0], self.kept.encoder(data.batch)
        logits = self.kept.masked_logits(x.index_select(0, data.places))
        with torch.no_grad():
            wise = teacher.encoder(data.batch)
            soft = teacher.masked_logits(wise.index_select(0, data.places))
        known = data.targets != NOTHING
        inside = torch.arange(len(x), device=x.device) < data.size
        loss, right = sums(logits, data.targets)
        return torch.stack([loss, (divergence(logits, soft) * known).sum(), (apart(x, wise) * inside).sum(), right])


class DistilledTask(Taught):
    """Fine-tuning on the task's own loss, the teacher's logits, and the directions of its vectors."""

    names = ("loss", "accuracy", "soft_loss", "token_loss")

    def forward(self, data: TaskBatch) -> Tensor:
        teacher, x = self.teachers[0], self.kept.read(data)
        logits = self.kept.told(x, data)
        with torch.no_grad():
            wise = teacher.read(data)
            soft = teacher.told(wise, data)
        chances: dict[Any, Any] = {classes: log_softmax, picks: lambda one: in_groups(one, data)[0]}
        told = chances.get(self.kept.loss)
        each = divergence(logits, soft, told) if told else (logits - soft).square().mean(-1)
        return torch.stack([*self.kept.loss(logits, data, self.kept), each.sum(), apart(x, wise).sum()])


def divergence(student: Tensor, teacher: Tensor, chances: Callable[[Tensor], Tensor] = log_softmax) -> Tensor:
    """Returns the KL divergence between teacher and student, both softened by the temperature [M]."""
    ours, theirs = (chances(logits.float() / TEMPERATURE) for logits in (student, teacher))
    return TEMPERATURE**2 * F.kl_div(ours, theirs, reduction="none", log_target=True).sum(-1)


def apart(x: Tensor, y: Tensor) -> Tensor:
    """Returns 1 - cosine of each pair of vectors [T]; zero if their widths differ."""
    if x.shape != y.shape:
        return x.new_zeros(len(x), dtype=torch.float32)
    return 1 - F.cosine_similarity(x.float(), y.float(), dim=-1)
