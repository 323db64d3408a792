"""Runs a network on a device with torch: batches of arrays in, arrays out. bundle/exported.py does it without torch."""

from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any

import numpy as np
import torch

from bertkit.data.engines import threads_for
from bertkit.data.inputs import TaskBatch
from bertkit.data.packing import budget_for
from bertkit.errors import check_choice
from bertkit.model.batch import Batch
from bertkit.model.device import PRECISIONS, compile_parts, fetched, find_device, moved, twin, wants_grids
from bertkit.model.linear import wants_steps


class Runner:
    """Computes a network's outputs; `compile` trades a slow start for faster batches."""

    def __init__(self, network: Any, device: str, precision: str, compile: bool = False, threads: int = 0):
        if threads:
            torch.set_num_threads(threads)
        check_choice("precision", precision, PRECISIONS)
        self.device = find_device(device)
        self.network: Any = network.to(self.device, PRECISIONS[precision]).eval()
        self.encoder, self.compiled, self.turn = self.network.encoder, compile, Lock()
        self.config = self.encoder.config
        if compile:  # a copy: the network itself still takes batches of any shape
            self.encoder = twin(self.encoder)
            compile_parts(self.encoder.embeddings, *self.encoder.blocks)
        self.budget = budget_for(self.device.type, precision, filled=compile)
        self.grids = wants_grids(self.device, precision, self.config)
        self.stepped = wants_steps(self.device, precision) and not compile

    def bulk(self, budget: int) -> dict[str, int]:
        """Returns how many batches of many texts to compute at once, and the tokens of each."""
        return {"threads": threads_for(self.device), "budget": budget}

    def can(self, head: str) -> bool:
        """Returns whether the network has that head, and the pooler if the head needs it."""
        pools = self.network.encoder.pooler is not None
        return getattr(self.network, head, None) is not None and (pools or head != "next")

    def encoded(self, batch: Batch, wanted: torch.Tensor | None = None) -> torch.Tensor:
        """Runs the encoder, one thread at a time: compilation is not thread-safe, and the device works in order anyway."""
        with self.turn:
            return self.encoder(batch, wanted)

    @torch.inference_mode()
    def vectors(self, batch: Batch) -> np.ndarray:
        """Returns the last layer's vectors [T, D]."""
        return fetched(self.encoded(self._here(batch)))[: len(batch.ids)]

    @torch.inference_mode()
    def pooled(self, batch: Batch, kind: str) -> np.ndarray:
        """Returns a vector for each sequence [B, D]: the mean or maximum over its pieces, or its first one's."""
        here = self._here(batch)
        if kind == "cls":
            return fetched(self.encoded(here, here.firsts))[: batch.sequences]
        lengths = here.boundaries[: 1 + np.count_nonzero(np.diff(batch.boundaries))].long().diff()  # not the empty ones
        x = self.encoded(here)[: len(batch.ids)].float()
        return fetched(torch.segment_reduce(x, kind, lengths=lengths, unsafe=True))

    @torch.inference_mode()
    def masked_logits(self, batch: Batch, places: np.ndarray, rows: int) -> Iterator[np.ndarray]:
        """Yields the masked head's logits at the places [M, V], `rows` at a time."""
        here, at = self._here(batch), torch.from_numpy(places).to(self.device)
        # Compiled code has one shape, so all tokens are computed: the number of places varies.
        x = self.encoded(here).index_select(0, at) if self.compiled else self.encoded(here, at)
        for part in x.split(rows):
            yield fetched(self.network.masked_logits(part))

    @torch.inference_mode()
    def next_logits(self, batch: Batch) -> np.ndarray:
        """Returns the next-sentence head's logits [B, 2]."""
        here = self._here(batch)
        return fetched(self.network.next_logits(self.encoded(here, here.firsts)))[: batch.sequences]

    def tell(self, data: TaskBatch, device: torch.device, precision: str) -> np.ndarray:
        """Returns the logits of a task's batch [M, C], or its texts' vectors for similarity."""
        return self.network.tell(data, device, precision)

    @torch.inference_mode()
    def states(self, batch: Batch, layers: Sequence[int]) -> np.ndarray:
        """Returns the states at the chosen layers [T, n, D]."""
        states = self.network.encoder.hidden_states(self._here(batch))
        return fetched(torch.stack([states[layer] for layer in layers], 1))[: len(batch.ids)]

    @torch.inference_mode()
    def looks(self, batch: Batch) -> list[np.ndarray]:
        """Returns the attention weights of each sequence [layers, H, L, L]."""
        layers = self.network.encoder.attention_weights(self._here(batch))
        return [fetched(torch.stack(one)) for one in zip(*layers, strict=True)][: batch.sequences]

    def parameters(self) -> dict[str, int]:
        """Returns the number of parameters by part, and in total."""
        parts = {"embeddings": 0, "blocks": 0, "pooler": 0, "heads": 0}
        for name, parameter in self.network.named_parameters():
            part = name.split(".")[1] if name.startswith("encoder.") else "heads"
            parts[part if part in parts else "blocks"] += parameter.numel()
        return parts | {"total": sum(parts.values())}

    def _here(self, batch: Batch) -> Batch:
        """Returns the batch on the device, maybe with filler behind it, which no output tells of."""
        batch = batch.stepped() if self.stepped else batch
        return batch.map(lambda array: moved(torch.from_numpy(array), self.device))
