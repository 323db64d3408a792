"""A smaller model out of a larger one: some of its blocks, spread evenly from the first to the last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bertkit.bundle.bundle import Bundle
from bertkit.errors import InputError
from bertkit.tasks.network import build_network
from bertkit.tasks.pretraining import Pretraining


def shrink(bundle: Bundle, layers: int) -> Bundle:
    """The same model with so many layers; of 12 to 6: 0, 2, 4, 7, 9, 11, as DistilBERT takes them."""
    network, config = bundle.network, bundle.network.encoder.config
    if not 1 <= layers <= config.layers or config.shared:
        raise InputError(f"{layers} of {config.layers} layers cannot be chosen; expected fewer, and none that are shared")
    chosen = np.linspace(0, config.layers - 1, layers).round().astype(int)
    state = {name: tensor for name, tensor in network.state_dict().items() if ".blocks." not in name}
    for to, at in enumerate(chosen):
        begins = f"encoder.blocks.{at}."
        state |= {
            f"encoder.blocks.{to}.{name.removeprefix(begins)}": tensor
            for name, tensor in network.state_dict().items()
            if name.startswith(begins)
        }
    smaller = _empty(bundle, config.with_(layers=layers))
    smaller.load_state_dict({name: tensor.clone() for name, tensor in state.items()})
    return replace(bundle, network=smaller.eval())


def _empty(bundle: Bundle, config: Any) -> torch.nn.Module:
    if bundle.task:
        return build_network(config, bundle.task)
    heads = {name: getattr(bundle.network, name) is not None for name in ("masked", "next", "replaced")}
    return Pretraining(config, masked=heads["masked"], next_sentence=heads["next"], replaced=heads["replaced"])
