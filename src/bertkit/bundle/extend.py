"""A model for another vocabulary: pieces it knows keep their vectors, new ones begin as the mean of their old pieces."""

from __future__ import annotations

import torch
from torch import nn

from bertkit.bundle.bundle import Bundle
from bertkit.text.tokenizer import Tokenizer


def extend_vocabulary(network: nn.Module, tokenizer: Tokenizer, old: Bundle) -> None:
    """Gives a new network the old one's weights, its vocabulary's too; heads that the old one lacks stay as they are."""
    state = network.state_dict()
    known = {name: tensor for name, tensor in old.network.state_dict().items() if name in state}
    if old.tokenizer.vocabulary != tokenizer.vocabulary:
        sources = _sources(old.tokenizer, tokenizer)
        for name in ("encoder.embeddings.pieces.weight", "masked.bias"):
            if name in known:
                known[name] = torch.stack([known[name][ids].mean(0) for ids in sources])
    network.load_state_dict(state | known)


def _sources(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """For each new piece, the old pieces it was made of."""
    ids = {piece: index for index, piece in enumerate(old.vocabulary)}
    spelled = old.pieces([piece.removeprefix("##") for piece in new.vocabulary])
    return [
        [ids[piece]] if piece in ids else (pieces.ids.tolist() or [old.unk])
        for piece, pieces in zip(new.vocabulary, spelled, strict=True)
    ]
