"""A smaller model out of a larger one."""

from dataclasses import replace

import pytest
import torch

from bertkit.bundle.bundle import Bundle
from bertkit.bundle.changes import shrink
from bertkit.errors import InputError
from bertkit.model.config import Config
from bertkit.tasks.pretraining import Pretraining

CONFIG = Config(vocabulary=100, width=32, heads=4, feedforward=64, positions=64)


def test_shrinking_takes_layers_from_first_to_last(tokenizer):
    network = Pretraining(replace(CONFIG, layers=12))
    smaller = shrink(Bundle(network, tokenizer), 6)
    for to, at in enumerate((0, 2, 4, 7, 9, 11)):
        for one, other in zip(
            smaller.network.encoder.blocks[to].parameters(), network.encoder.blocks[at].parameters(), strict=True
        ):
            assert torch.equal(one, other)
    assert torch.equal(smaller.network.masked.bias, network.masked.bias)
    with pytest.raises(InputError, match="13 of 12 layers cannot be chosen"):
        shrink(Bundle(network, tokenizer), 13)
