"""Does a run survive kills? A tiny one is killed with SIGKILL at ten random moments; it must end as if never stopped."""

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from measure import arguments, report
from safetensors.torch import load_file
from support.runs import metrics
from support.stores import made_up_store

CODE = """
import sys
from dataclasses import replace
import torch, bertkit
from support.runs import SMALL_RUN
torch.set_num_threads(1)
recipe = replace(SMALL_RUN, steps=600, checkpoint_every=17, evaluate_every=100, log_every=10)
bertkit.pretrain(sys.argv[1], sys.argv[2], recipe=recipe, device="cpu", quiet=True)
"""


def main() -> None:
    options = arguments(__doc__, kills=10, seed=0)
    draw, kills = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        store = made_up_store(folder / "s", 300).path
        finish(store, folder / "whole")
        while kills < options.kills:
            before = mark(folder / "run")
            child = start(store, folder / "run")
            while mark(folder / "run") == before and child.poll() is None:
                time.sleep(0.005)
            time.sleep(draw.random() * 0.6)
            if child.poll() is None:
                child.kill()
                kills += 1
            child.wait()
            if (folder / "run" / "model").exists():
                break
        finish(store, folder / "run")
        ours, whole = (load_file(folder / name / "model" / "model.safetensors") for name in ("run", "whole"))
        weights = ours.keys() == whole.keys() and all(torch.equal(ours[name], whole[name]) for name in ours)
        lines = metrics(folder / "run") == metrics(folder / "whole")
    report(
        "A run of 600 steps killed at random moments",
        [{"kills": kills, "weights bit-equal": weights, "metrics equal": lines}],
    )
    sys.exit(not (weights and lines))


def mark(run: Path) -> int:
    """Returns a number that changes when training starts, as the log is then written anew."""
    file = run / "metrics.jsonl"
    return file.stat().st_ino if file.exists() else 0


def start(store: Path, run: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", CODE, str(store), str(run)], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )


def finish(store: Path, run: Path) -> None:
    assert start(store, run).wait() == 0


if __name__ == "__main__":
    main()
