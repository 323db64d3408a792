"""Checkpoints: everything a run resumes from, without pickles.

RUN/checkpoints/00001000/00000.safetensors  state.json

One tensor file per rank if the model is sharded, else one. state.json is written last: it marks a complete checkpoint.
"""

import json
import logging
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertkit.atomic import checksum, new_file, write_text
from bertkit.errors import ArtifactError, TrainingError
from bertkit.train.distributed import World, is_shard

log = logging.getLogger("bertkit")
Tensors = dict[str, Tensor]  # weights/NAME of a parameter, optimizer/VALUE/NAME


@dataclass
class State:
    """The state of a run, apart from its tensors."""

    step: int = 0
    cursor: int = 0  # of the next example
    phase: int = 0
    elapsed: float = 0.0  # seconds of training
    tokens: int = 0
    best: float = float("-inf")  # highest score so far
    stale: int = 0  # evaluations since then
    evaluated: int = 0  # the step of the last evaluation
    window: list[float] = field(default_factory=list)  # the network's sums since the last report
    counts: list[float] = field(default_factory=list)  # their divisors since then, and the tokens last
    reported: float = 0.0  # `elapsed` at the last report


def write_checkpoint(run: Path, state: State, tensors: Tensors, keep: int, world: World) -> None:
    """Writes a checkpoint; if it is sharded, every rank writes its part. Then deletes all but this one and the complete ones
    before it, `keep` in all; those of later steps, which resuming skipped as damaged, go too."""
    folder = run / "checkpoints" / f"{state.step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    with new_file(folder / f"{world.rank:05d}.safetensors") as aside:
        save_file(_mine(tensors, world), aside)
        total = checksum(aside)
    sums = world.gather(total)
    if world.leads:
        files = {f"{rank:05d}.safetensors": one for rank, one in enumerate(sums)}
        write_text(folder / "state.json", json.dumps(asdict(state) | {"checksums": files}))
        kept = [one for one in _folders(run) if one <= folder][:keep]
        for other in {*folder.parent.iterdir()}.difference(kept):
            shutil.rmtree(other, ignore_errors=True)


def read_checkpoint(run: Path) -> tuple[State, Tensors] | None:
    """Returns the newest intact checkpoint, skipping damaged ones with a warning; None if there is no checkpoint at all."""
    for folder in _folders(run):
        try:
            content = json.loads((folder / "state.json").read_text(encoding="utf-8"))
            parts = [_read_part(folder / name, expected) for name, expected in content.pop("checksums").items()]
            return State(**content), _join(parts)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            log.warning("%s: the checkpoint is damaged (%s); going back to the one before", folder, error)
    if _folders(run):
        raise TrainingError(f"{run}: all checkpoints are damaged; restore one, or remove checkpoints/ to start over")
    return None


def _folders(run: Path) -> list[Path]:
    """Returns the folders of complete checkpoints, newest first; one without state.json was never finished."""
    return sorted((file.parent for file in (run / "checkpoints").glob("[0-9]*/state.json")), reverse=True)


def _mine(tensors: Tensors, world: World) -> Tensors:
    """Returns what this rank writes: its shards; rank 0 also writes what is not sharded."""
    shards = {name: tensor.to_local() for name, tensor in tensors.items() if is_shard(tensor)}  # type: ignore[attr-defined]
    mine = tensors | shards if world.leads else shards
    return {name: tensor.detach().cpu().contiguous() for name, tensor in mine.items()}


def _read_part(file: Path, expected: str) -> Tensors:
    if checksum(file) != expected:
        raise ArtifactError(f"{file.name} fails its checksum")
    return load_file(file)


def _join(parts: list[Tensors]) -> Tensors:
    """Returns whole tensors by name; a shard holds the rows of one rank."""
    shards = {name: [part[name] for part in parts if name in part] for name in parts[0]}
    return {name: torch.cat(found) if len(found) > 1 else found[0] for name, found in shards.items()}
