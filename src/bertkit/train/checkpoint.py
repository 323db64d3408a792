"""Checkpoints: everything a run goes on from, without pickles.

RUN/checkpoints/00001000/00000.safetensors  state.json

One file a rank where the model is sharded, else one. state.json comes last: with it, a checkpoint is whole.
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
    """Where a run stands: all of it that is not weights."""

    step: int = 0
    cursor: int = 0  # the next example
    phase: int = 0
    elapsed: float = 0.0  # seconds of training
    tokens: int = 0
    best: float = float("-inf")  # highest score so far
    stale: int = 0  # evaluations since then
    evaluated: int = 0  # the step of the last evaluation
    window: list[float] = field(default_factory=list)  # sums since the last report
    counts: list[float] = field(default_factory=list)  # what they count, and tokens, since then
    reported: float = 0.0  # elapsed at the last report


def write_checkpoint(run: Path, state: State, tensors: Tensors, keep: int, world: World) -> None:
    """Writes a checkpoint, then keeps it and those before it, `keep` in all: none that is unfinished, and none of later
    steps, which was passed over. Of a sharded one, every rank writes its part."""
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
    """The newest checkpoint that is whole; damaged ones are passed over with a warning. None if there are none at all."""
    for folder in _folders(run):
        try:
            content = json.loads((folder / "state.json").read_text(encoding="utf-8"))
            parts = [_read_part(folder / name, expected) for name, expected in content.pop("checksums").items()]
            return State(**content), _join(parts)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            log.warning("%s: the checkpoint is damaged (%s); going back to the one before", folder, error)
    if _folders(run):
        raise TrainingError(f"{run}: all checkpoints are damaged; bring one back, or remove checkpoints/ to begin anew")
    return None


def _folders(run: Path) -> list[Path]:
    """The checkpoints' folders, newest first; one without state.json was never finished."""
    return sorted((file.parent for file in (run / "checkpoints").glob("[0-9]*/state.json")), reverse=True)


def _mine(tensors: Tensors, world: World) -> Tensors:
    """What this rank writes: its shards, and the first rank what is not sharded."""
    shards = {name: tensor.to_local() for name, tensor in tensors.items() if is_shard(tensor)}  # type: ignore[attr-defined]
    mine = tensors | shards if world.leads else shards
    return {name: tensor.detach().cpu().contiguous() for name, tensor in mine.items()}


def _read_part(file: Path, expected: str) -> Tensors:
    if checksum(file) != expected:
        raise ArtifactError(f"{file.name} fails its checksum")
    return load_file(file)


def _join(parts: list[Tensors]) -> Tensors:
    """Whole tensors by name: a shard is a rank's rows."""
    shards = {name: [part[name] for part in parts if name in part] for name in parts[0]}
    return {name: torch.cat(found) if len(found) > 1 else found[0] for name, found in shards.items()}
