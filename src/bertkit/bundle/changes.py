"""Models derived from another: with a new vocabulary, with fewer layers, for longer texts."""

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from bertkit.bundle.bundle import Bundle, empty_network, heads_of
from bertkit.bundle.members import FAMILIES
from bertkit.errors import InputError
from bertkit.tasks.pretraining import Pretraining
from bertkit.text.tokenizer import Tokenizer


def extend_vocabulary(network: nn.Module, tokenizer: Tokenizer, old: Bundle) -> None:
    """Copies the old model's weights into a new network; heads that the old one lacks keep their initial weights.

    Pieces in the old vocabulary keep their vectors; a new piece starts as the mean of the old pieces it was made of.
    """
    state = network.state_dict()
    known = {name: tensor for name, tensor in old.network.state_dict().items() if name in state}
    if old.tokenizer.vocabulary != tokenizer.vocabulary:
        sources = _sources(old.tokenizer, tokenizer)
        for name in ("encoder.embeddings.pieces.weight", "masked.bias"):
            if name in known:
                known[name] = torch.stack([known[name][ids].mean(0) for ids in sources])
    network.load_state_dict(state | known)


def _sources(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """Returns for each new piece the ids of the old pieces it was made of: special ones by role, others by their text."""
    known = {piece: [index] for index, piece in enumerate(old.vocabulary if old.kind == new.kind else ())}
    known |= {name: [getattr(old, role)] for role, name in new.specials.items()}
    both = zip(new.vocabulary, old.pieces(new.texts), strict=True)
    return [known.get(piece) or pieces.ids.tolist() or [old.unk] for piece, pieces in both]


def shrink(bundle: Bundle, layers: int) -> Bundle:
    """Returns the model with evenly spaced layers, first and last included: 6 of 12 are 0, 2, 4, 7, 9 and 11, as in
    DistilBERT."""
    network, config = bundle.network, bundle.network.encoder.config
    if not 1 <= layers <= config.layers or config.shared:
        raise InputError(f"{layers} of {config.layers} layers cannot be chosen; expected fewer, and none that are shared")
    smaller = empty_network(config.with_(layers=layers), bundle.task, heads_of(network))
    smaller.load_state_dict(network.state_dict(), strict=False)
    for block, at in zip(smaller.encoder.blocks, np.linspace(0, config.layers - 1, layers).round(), strict=True):
        block.load_state_dict(network.encoder.blocks[int(at)].state_dict())
    return replace(bundle, network=smaller.eval())


def lengthen(bundle: Bundle, positions: int, window: int) -> Bundle:
    """Returns a Longformer (Beltagy et al., 2020) with BERT's or RoBERTa's weights: windowed attention, the position
    embeddings repeated to the new length; global queries, keys and values start as copies of the local ones."""
    if bundle.family.name not in ("bert", "roberta", "xlm-roberta", "camembert") or bundle.task:
        found = f"{bundle.family.name}{', fine-tuned' if bundle.task else ''}"
        raise InputError(f"this model ({found}) cannot be lengthened; expected BERT or RoBERTa before fine-tuning")
    old, first = bundle.network.encoder.config, bundle.tokenizer.pad + 1
    if bundle.network.masked is not None and (old.masked or old.activation) != "gelu":
        raise InputError(f"this model's masked head is by {old.masked or old.activation}; a Longformer's is by gelu")
    config = old.with_(positions=positions, window=window, first_position=first, global_tokens="none")
    network = Pretraining(config, masked=bundle.network.masked is not None, next_sentence=False)
    state = {name: tensor for name, tensor in bundle.network.state_dict().items() if not name.startswith("next.")}
    name = "encoder.embeddings.positions.weight"
    table = state[name][old.first_position :]  # repeated, after `first` unused rows
    state[name] = torch.cat([table.new_zeros(first, table.shape[1]), table[torch.arange(positions) % len(table)]])
    for key in [key for key in state if ".attention.qkv." in key]:
        state[key.replace("qkv", "global_qkv")] = state[key].clone()
    network.load_state_dict(state)
    return replace(bundle, network=network.eval(), family=FAMILIES["longformer"])
