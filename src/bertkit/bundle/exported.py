"""Runs a network as an ONNX graph with ONNX Runtime: arrays in, arrays out, without torch.

bundle/onnx.py writes the graph. Its inputs are a packed batch, the positions whose vectors are wanted (places), and which of
those vectors the heads read (told):

    ids, segments [T]  boundaries [B + 1]  places [M]  told [N]  →  vectors [M, D]  logits, masked, next [N, …]
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.atomic import checksum
from bertkit.bundle.folder import Bundle, Facts, read_facts
from bertkit.bundle.hub import find_model
from bertkit.data.engines import one_of_many
from bertkit.errors import ArtifactError, BertkitError, InputError, import_extra
from bertkit.model.batch import Batch
from bertkit.text import protobuf

GRAPH = "model.onnx"
WEIGHTS = ("*.safetensors*", "pytorch_model*", "*.ckpt*")  # with these beside it, a graph is only a copy of the model
SHARE = 256  # tokens of a batch per core: their activations stay in its cache
PARTS = {  # where tensors can occur in a graph's messages: message → field → message
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},  # of external_data, which names the file of its data
}


def open_bundle(name: Path | str) -> Bundle:
    """Reads an exported folder or any other model."""
    path = find_model(name)
    if is_export(path):
        facts = read_facts(path)
        return ExportedBundle(Exported(facts), facts.read_tokenizer(), facts.family, facts.provenance, facts.task)
    from bertkit.bundle.bundle import load_bundle

    return load_bundle(name)


def is_export(folder: Path) -> bool:
    """Returns whether bertkit exported the folder, and it has no weights but the graph's."""
    ours = (folder / GRAPH).is_file() and (folder / "bertkit.json").is_file()
    return ours and not any(file for kind in WEIGHTS for file in folder.glob(kind))


class ExportedBundle(Bundle):
    """A bundle whose network is an `Exported`, which runs as it is."""

    def start(self, device: str, precision: str = "fp32", compile: bool = False, threads: int = 0) -> Exported:
        if device not in ("auto", "cpu") or precision != "fp32" or compile:
            raise InputError(f"device {device!r}, precision {precision!r}: an exported model runs as it is, on the CPU")
        return Exported(self.network.facts, threads) if threads not in (0, self.network.threads) else self.network

    def device(self, name: str) -> str:
        return "cpu"

    def content(self) -> Iterator[bytes]:
        yield repr((self.network.config, self.task and self.task.settings, self.network.checksums())).encode()

    def save(self, folder: Path | str) -> None:
        raise ArtifactError("this model was exported; copy its folder, or save the model it was made of")


class Exported:
    """The counterpart of bundle/runner.py's Runner, without inner layers and attention weights, which are not exported."""

    device = "cpu"
    grids = False  # the graph builds its own

    def __init__(self, facts: Facts, threads: int = 0):
        self.facts, self.config, self.threads = facts, facts.config, threads or _cores()
        self.budget = SHARE * self.threads
        self.session = start(facts.folder / GRAPH, self.threads)
        if all(one.name != "boundaries" for one in self.session.get_inputs()):
            raise ArtifactError(f"{facts.folder / GRAPH} asks for other inputs; expected one that bertkit export made")
        self.outputs = {output.name for output in self.session.get_outputs()}

    def __reduce__(self) -> Any:
        return Exported, (self.facts, self.threads)

    @cached_property
    def narrow(self) -> Any:
        """A session on one core, for batches that are computed side by side: one on all cores leaves them idle in part."""
        return start(self.facts.folder / GRAPH, 1) if self.threads > 1 else self.session

    def bulk(self, budget: int) -> dict[str, int]:
        """Returns how many batches of many texts to compute at once, and the tokens of each."""
        _ = self.narrow  # made now, once: otherwise each of the threads would make it
        return {"threads": self.threads, "budget": budget // self.threads}

    def can(self, head: str) -> bool:
        """Returns whether the network was exported with that head."""
        return head in self.outputs

    def parameters(self) -> dict[str, int]:
        """Returns the number of parameters by part, as counted before the export."""
        return self.facts.provenance.get("parameters", {})

    def checksums(self) -> list[str]:
        return [checksum(file) for file in sorted(self.facts.folder.glob(f"{GRAPH}*"))]

    def vectors(self, batch: Batch) -> np.ndarray:
        """Returns the last layer's vectors [T, D]."""
        return self._run("vectors", batch, np.arange(len(batch.ids)))

    def pooled(self, batch: Batch, kind: str) -> np.ndarray:
        """Returns a vector for each sequence [B, D]: the mean or maximum over its pieces, or its first one's."""
        bounds = np.asarray(batch.boundaries)
        if kind == "cls":
            return self._run("vectors", batch, bounds[:-1])
        if kind == "max":
            return np.maximum.reduceat(self.vectors(batch), bounds[:-1])
        return np.add.reduceat(self.vectors(batch), bounds[:-1]) / np.diff(bounds)[:, None]

    def masked_logits(self, batch: Batch, places: np.ndarray, rows: int) -> Iterator[np.ndarray]:
        """Yields the masked head's logits [M, V], `rows` at a time; the whole graph runs for each part."""
        for begin in range(0, len(places), rows):
            yield self._run("masked", batch, places[begin : begin + rows])

    def next_logits(self, batch: Batch) -> np.ndarray:
        """Returns the next-sentence head's logits [B, 2]."""
        return self._run("next", batch, batch.boundaries[:-1])

    def tell(self, data: Any, device: Any = None, precision: str = "fp32") -> np.ndarray:
        """Returns the logits of a task's batch [M, C], or its texts' vectors for similarity."""
        if self.can("logits"):
            return self._run("logits", data.batch, data.places)
        assert self.facts.task is not None
        return self.pooled(data.batch, self.facts.task.settings.pooling)

    def states(self, batch: Batch, layers: Sequence[int]) -> np.ndarray:
        """Returns the states of the layers [T, n, D], which can only be the last one."""
        if any(layer not in (-1, self.config.layers) for layer in layers):
            raise InputError("layers below the last were not exported; expected -1, or ask the model it was made of")
        return np.stack([self.vectors(batch)] * len(layers), 1)

    def looks(self, batch: Batch) -> list[np.ndarray]:
        raise InputError("texts cannot be looked into, attention was not exported; ask the model it was made of")

    def _run(self, output: str, batch: Batch, places: Any) -> np.ndarray:
        told = np.arange(0 if output == "vectors" else len(places))  # empty for vectors: no head is computed
        given = dict(ids=batch.ids, segments=batch.segments, boundaries=batch.boundaries, places=places, told=told)
        feed = {one.name: np.asarray(given[one.name], np.int64) for one in self.session.get_inputs()}
        return (self.narrow if one_of_many() else self.session).run([output], feed)[0]


def _cores() -> int:
    """Returns the number of threads that torch would use: OMP_NUM_THREADS, or one for each core."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return (int(told) if told.isdigit() else 0) or os.cpu_count() or 1


def start(file: Path, threads: int) -> Any:
    """Returns a session. External data must lie in the graph's folder, as a path could lead anywhere."""
    try:
        for name in outside(file.read_bytes()):
            if (file.parent / name).resolve() != file.parent.resolve() / Path(name).name:
                raise ArtifactError(f"{file} names data at {name!r}; expected a file beside it: export the model again")
        runtime = import_extra("onnxruntime", "onnx", "an exported model")
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # leaves the cores to other processes
        return runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except BertkitError:
        raise
    except Exception as error:  # the runtime raises many exception types
        raise ArtifactError(f"{file}: damaged or cut off ({str(error).splitlines()[0]}); export it again") from error


def outside(message: bytes, kind: str = "model") -> Iterator[str]:
    """Yields the names of the files that hold a graph's external tensors."""
    fields = protobuf.message(message)
    if kind == "entry" and fields.get(1, [b""])[-1] == b"location":  # the last value of a field counts
        yield fields[2][-1].decode()
    for number, part in PARTS.get(kind, {}).items():
        for inner in fields.get(number, []):
            yield from outside(inner, part)
