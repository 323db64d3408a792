"""Exports a model to a folder that runs without torch, and checks that it gives the same answers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.atomic import new_folder
from bertkit.bundle.bundle import write_facts
from bertkit.bundle.exported import GRAPH, ExportedBundle, is_export, open_bundle
from bertkit.bundle.onnx import write_graph
from bertkit.data.inputs import TaskBatch
from bertkit.data.packing import lay
from bertkit.data.readers import Named, read_records
from bertkit.errors import ArtifactError, check_choice
from bertkit.model.batch import Batch
from bertkit.model.config import Config
from bertkit.serve.predictor import Model, load
from bertkit.tasks.metrics import unit
from bertkit.tasks.task import Task

EXACT = 1e-3  # how far an fp32 graph may be off
POINTS = 0.005  # how much int8 may lower the task's metric
COSINE = 0.98  # without a metric: the least mean cosine of the int8 vectors with the model's


def export(
    model: Path | str,
    out: Path | str,
    *,
    to: str = "onnx",
    int8: bool = False,
    sample: Path | str | None = None,
    columns: Named = None,
    bad: str = "stop",
) -> dict[str, Any]:
    """Writes a model as an ONNX graph; one with other answers is refused with the figures, and nothing is written."""
    check_choice("to", to, ("onnx",))
    bundle = open_bundle(model)
    if isinstance(bundle, ExportedBundle):
        raise ArtifactError(f"{model} was exported already; expected the model it was made of")
    if (Path(out) / GRAPH).exists() and not is_export(Path(out)):
        raise ArtifactError(f"{out} holds a {GRAPH}, but more than bertkit exported; give another place")
    ours = Model(bundle, device="cpu")
    told = {"exported": "int8" if int8 else "fp32", "parameters": ours.runner.parameters()}
    with new_folder(out, marker=GRAPH) as aside:
        write_graph(bundle.network, aside, int8=int8)
        write_facts(replace(bundle, provenance=bundle.provenance | told), aside)
        read = None if sample is None else partial(read_records, sample, columns=columns, bad=bad)
        figures = compare(ours, load(aside), read, exact=not int8)
        size = sum(file.stat().st_size for file in aside.rglob("*"))
    return {"out": str(out), "weights": told["exported"], "bytes": size, **figures}


def compare(ours: Model, theirs: Model, read: Callable[..., Any] | None, *, exact: bool) -> dict[str, Any]:
    """Returns what was compared and how close it is; raises an error if that is not close enough."""
    pairs = list(zip(_told(ours), _told(theirs), strict=True))
    off = max(float(np.abs(a - b).max() / max(1.0, np.abs(a).max())) for a, b in pairs)
    if exact and not off <= EXACT:
        raise ArtifactError(f"the graph is off by {off:.1e}; expected {EXACT:.0e} at most: please report this model")
    figures: dict[str, Any] = {"largest difference": off}
    if read is not None and ours.bundle.task is not None:
        return figures | _scores(ours.bundle.task, ours, theirs, read)
    compared, vectors = "vectors of drawn pieces", pairs[0]
    if read is not None:
        texts = [record.text for record in read("classification", labelled=False).records]
        compared = f"vectors of {len(texts)} texts"
        vectors = ours.embed(texts, truncate=True), theirs.embed(texts, truncate=True)
    alike = float((unit(vectors[0]) * unit(vectors[1])).sum(1).mean())
    if not alike >= COSINE:
        told = f"{compared} have a cosine of {alike:.3f} with the model's"
        raise ArtifactError(f"{told}; expected {COSINE}: export without int8")
    return figures | {"compared": compared, "cosine": alike}


def _told(model: Model) -> Iterator[np.ndarray]:
    """Yields all outputs of a model for random sequences; the vectors come first."""
    runner, (batch, places) = model.runner, _drawn(model.config)
    yield runner.vectors(batch)
    if model.bundle.task:
        data = TaskBatch(batch, places, places, places, known=0, tokens=0)  # type: ignore[arg-type]
        yield runner.tell(data, model.device, "fp32")
    elif runner.can("masked"):
        yield from runner.masked_logits(batch, places, len(places))
    if runner.can("next"):
        yield runner.next_logits(batch)


def _drawn(config: Config) -> tuple[Batch, np.ndarray]:
    """Returns random sequences of several lengths, and the position where each begins."""
    draw = np.random.default_rng(0)
    sizes = [min(size, config.positions) for size in (3, 70, 12, 33, 7, 128)]
    ids = [draw.integers(0, config.vocabulary, size) for size in sizes]
    segments = [np.sort(draw.integers(0, 2, size)) for size in sizes]
    return lay(ids, segments), np.cumsum([0, *sizes[:-1]])


def _scores(task: Task, ours: Model, theirs: Model, read: Callable[..., Any]) -> dict[str, Any]:
    """Returns the task's metric on a sample, before and after the export."""
    records = read(task.settings.task, classes=task.settings.labels).records
    before, after = (task.score(records, one.answer(records))[task.headline] for one in (ours, theirs))
    compared = f"{task.headline} on {len(records)} records"
    if not before - after <= POINTS + 1e-9:  # for rounding
        told = f"too much was lost, {compared}: before {before:.4f}, after {after:.4f}"
        raise ArtifactError(f"{told}; expected {POINTS:.3f} at most")
    return {"compared": compared, "before": before, "after": after}
