"""Checkpoints: everything a run goes on from, written aside and renamed, without pickles.

RUN/checkpoints/00001000/weights.safetensors  optimizer.safetensors  state.json
"""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertkit.atomic import checksum, new_folder
from bertkit.errors import ArtifactError

log = logging.getLogger("bertkit")


@dataclass
class State:
    """Where a run stands: all of it that is not weights."""

    step: int = 0
    cursor: int = 0  # the next example
    phase: int = 0
    elapsed: float = 0.0  # seconds of training
    tokens: int = 0
    best: float = float("inf")  # lowest held-out loss so far
    window: list[float] = field(default_factory=lambda: [0.0] * 4)  # sums since the last report
    counts: list[float] = field(default_factory=lambda: [0.0] * 3)  # hidden pieces, pairs and tokens since then
    reported: float = 0.0  # elapsed at the last report


@dataclass(frozen=True)
class Checkpoint:
    state: State
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]


def write_checkpoint(run: Path, checkpoint: Checkpoint, keep: int) -> None:
    """Writes a checkpoint and then removes all but the newest `keep`."""
    with new_folder(run / "checkpoints" / f"{checkpoint.state.step:08d}", marker="state.json") as aside:
        save_file(_contiguous(checkpoint.weights), aside / "weights.safetensors")
        save_file(_contiguous(checkpoint.optimizer), aside / "optimizer.safetensors")
        sums = {name: checksum(aside / f"{name}.safetensors") for name in ("weights", "optimizer")}
        (aside / "state.json").write_text(json.dumps(asdict(checkpoint.state) | {"checksums": sums}), encoding="utf-8")
    for old in _folders(run)[keep:]:
        shutil.rmtree(old, ignore_errors=True)


def read_checkpoint(run: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; damaged ones are passed over with a warning. None if there is none."""
    for folder in _folders(run):
        try:
            content = json.loads((folder / "state.json").read_text(encoding="utf-8"))
            sums = content.pop("checksums")
            for name, expected in sums.items():
                if checksum(folder / f"{name}.safetensors") != expected:
                    raise ArtifactError(f"{name}.safetensors fails its checksum")
            weights, optimizer = (load_file(folder / f"{name}.safetensors") for name in ("weights", "optimizer"))
            return Checkpoint(State(**content), weights, optimizer)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            log.warning("%s: the checkpoint is damaged (%s); going back to the one before", folder, error)
    return None


def _folders(run: Path) -> list[Path]:
    """The checkpoints' folders, newest first."""
    return sorted((run / "checkpoints").glob("[0-9]*"), reverse=True)


def _contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
