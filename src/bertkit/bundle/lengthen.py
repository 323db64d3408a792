"""A model for long documents out of one for short: window attention, its positions over and over (Beltagy et al., 2020)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bertkit.bundle.bundle import Bundle
from bertkit.bundle.members import FAMILIES
from bertkit.errors import InputError
from bertkit.tasks.pretraining import Pretraining


def lengthen(bundle: Bundle, positions: int, window: int) -> Bundle:
    """BERT's or RoBERTa's weights as a Longformer's; global queries, keys and values begin as the local ones."""
    if bundle.family.name not in ("bert", "roberta") or bundle.task:
        found = f"{bundle.family.name}{', fine-tuned' if bundle.task else ''}"
        raise InputError(f"this model ({found}) cannot be lengthened; expected BERT or RoBERTa before fine-tuning")
    old, first = bundle.network.encoder.config, bundle.tokenizer.pad + 1
    config = old.with_(positions=positions, window=window, first_position=first, global_tokens="none")
    network = Pretraining(config, masked=bundle.network.masked is not None, next_sentence=False)
    state = {name: tensor for name, tensor in bundle.network.state_dict().items() if not name.startswith("next.")}
    name = "encoder.embeddings.positions.weight"
    state[name] = _repeated(state[name][old.first_position :], positions, first)
    for key in [key for key in state if ".attention.qkv." in key]:
        state[key.replace("qkv", "global_qkv")] = state[key].clone()
    network.load_state_dict(state)
    return replace(bundle, network=network.eval(), family=FAMILIES["longformer"])


def _repeated(table: Tensor, positions: int, first: int) -> Tensor:
    """Positions 0, 1, 2, … from a shorter table, behind `first` rows that nobody reads."""
    rows = torch.arange(positions) % len(table)
    return torch.cat([table.new_zeros(first, table.shape[1]), table[rows]])
