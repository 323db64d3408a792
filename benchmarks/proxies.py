"""Which recipe is best for a short budget? Short runs of each, compared by what they are for: fine-tuning.

`python benchmarks/proxies.py STORE`: every arm trains for the same time. Its held-out loss is measured with the same 15%
masks whatever its objective, then it is fine-tuned on small sets, with one seed each.
"""

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean

import torch
from glue import tune
from measure import report

from bertkit.bundle.bundle import load_bundle
from bertkit.data.examples import ExampleSettings, ExampleSource
from bertkit.data.masking import Masking
from bertkit.data.store import Store
from bertkit.model.device import autocast, find_device, wants_grids

COMMON = "phases=128:1 warmup=0.06 steps=10000000 evaluate_every=1000000 checkpoint_every=1000000"
TASKS = "glue/cola,glue/mrpc,glue/stsb,glue/rte"
ARMS = {  # changes to the recipe, or to another one that is named; the values are meant for fast-small
    "as it is": "",
    "masked pieces alone": "objective=masked rate=0.25 mask=0.8 random=0.1",
    "replaced pieces alone": "objective=replaced rate=0.15",
    "more hidden": "rate=0.3",
    "AdamW": "optimizer.kind=adamw",
    "half the learning rate": "optimizer.lr=5e-4 muon_lr=5e-4",
    "twice the learning rate": "optimizer.lr=2e-3 muon_lr=2e-3",
    "half the batch": "batch_tokens=16384 row_tokens=16384",
    "twice the batch": "batch_tokens=65536",
    "BERT's blocks": "bert-small pairs=none rate=0.25 layers=12 width=256 heads=4 feedforward=1024 optimizer.lr=5e-4",
    "ELECTRA": "electra-small",
}


def main() -> None:
    options = arguments()
    names = options.arms.split(";") if options.arms else list(ARMS)
    if unknown := [name for name in names if name not in ARMS]:
        sys.exit(f"no arm {unknown[0]!r}; there are {'; '.join(ARMS)}")
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.at_once) as pool:
        folders = [Path(options.keep or scratch) / str(number) for number in range(len(names))]
        rows = list(pool.map(lambda name, folder: measured(name, folder, options), names, folders))
    report(f"{options.recipe}, {options.budget} each, on dev", rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--arms", default="", help="semicolon-separated arms instead of all")
    parser.add_argument("--recipe", default="fast-small")
    parser.add_argument("--budget", default="3m", help="for each arm")
    parser.add_argument("--tasks", default=TASKS)
    parser.add_argument("--at_once", type=int, default=1, help="arms that share the device")
    parser.add_argument("--keep", default="", help="a folder for the runs")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="a setting for all arms")
    return parser.parse_args()


def measured(name: str, folder: Path, options: argparse.Namespace) -> dict:
    """Runs one arm, and returns its held-out loss and dev scores."""
    words = ARMS[name].split()
    recipe = next((word for word in words if "=" not in word), options.recipe)
    told = [*COMMON.split(), *(word for word in words if "=" in word), *options.settings]
    command = [sys.executable, "-m", "bertkit", "pretrain", options.store, "--recipe", recipe, "--out", str(folder)]
    command += ["--budget", options.budget, "--workers", "2", *(word for one in told for word in ("--set", one))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{name}: {done.stderr.strip().splitlines()[-1:]}", flush=True)
        return {"arm": name, "loss at 15%": float("nan")} | dict.fromkeys([*options.tasks.split(","), "mean"], float("nan"))
    row = {"arm": name, "loss at 15%": held_out_loss(folder / "model", options.store)}
    how = argparse.Namespace(model=str(folder / "model"), tune=[], small_epochs=5, long_epochs=0, log="")
    scores = {task: tune(task, "", 0, how, folder)["score"] for task in options.tasks.split(",")}
    row |= scores | {"mean": mean(scores.values())}
    print(row, flush=True)
    return row


@torch.inference_mode()
def held_out_loss(model: Path, store: str) -> float:
    """Returns the held-out loss of the masked head; NaN without one."""
    device, network = find_device("auto"), load_bundle(model).network.eval()
    if network.masked is None:
        return float("nan")
    network.to(device)
    settings = ExampleSettings(pairs="none", length=128, masking=Masking(rate=0.15), short=0.0)
    grids = wants_grids(device, "bf16", network.encoder.config)
    source = ExampleSource(Store(store), settings, seed=1, tokens=16_384, grids=grids, held_out=0.005, evaluation=True)
    total, hidden = 0.0, 0
    with autocast(device, "bf16"):
        for examples in source.first(2048):
            row = source.batch(examples)
            total, hidden = total + float(network(row.to(device))[0]), hidden + row.hidden
    return total / hidden


if __name__ == "__main__":
    main()
