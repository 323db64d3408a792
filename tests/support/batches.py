"""Batches of sequences that a test makes up."""

import torch

from bertkit.data.packing import Sequences, Shapes, lay
from bertkit.model.batch import Batch


def pack(ids: Sequences, segments: Sequences | None = None, shapes: Shapes | None = None) -> Batch:
    """One batch of all the given sequences, in their order."""
    return lay(ids, segments, shapes).map(torch.from_numpy)
