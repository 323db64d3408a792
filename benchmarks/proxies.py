"""Which recipe gives most for a short budget? Short runs of each, judged by what they are for: fine-tuning.

`python benchmarks/proxies.py STORE`: every arm reads as many tokens; its held-out loss is measured with the same 15% masks
whatever it was trained on, then it is fine-tuned on small sets, one seed each. Several arms share a GPU.
"""

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from types import SimpleNamespace

import torch
from glue import tune
from measure import report

from bertkit.bundle.bundle import load_bundle
from bertkit.data.examples import ExampleSettings, ExampleSource
from bertkit.data.masking import Masking
from bertkit.data.store import Store
from bertkit.model.device import autocast, find_device, wants_grids

TASKS = "glue/cola,glue/mrpc,glue/stsb,glue/rte"
COMMON = "beta2=0.98 weight_decay=0.01 warmup=0.06 ramp=0 dropout=0 attention_dropout=0 phases=128:1 row_tokens=65536"
BERT = "fast-base batch_tokens=131072 rate=0.3"
MODERN = "modernbert-base batch_tokens=131072 rate=0.3 layers=12 feedforward=2048 positions=512 window=64 global_every=1"
MODERN += " schedule.kind=linear"
ELECTRA = "electra-base batch_tokens=131072 optimizer.lr=5e-4"
SMALL = "electra-small batch_tokens=65536"
MASKED, REPLACED = "objective=masked rate=0.25", "objective=replaced rate=0.15 mask=0.85 random=0"
TEN = "graphs=true batch_tokens=65536 layers=10 width=256 heads=4 feedforward=512"  # 14.4 M parameters
ADAMW, MUON = "optimizer.kind=adamw optimizer.lr=1e-3", "optimizer.kind=muon optimizer.lr=1e-3 muon_lr=2e-3"
ARMS = {  # a recipe, and settings
    "bert, Muon": f"{BERT} {MUON}",
    "bert, AdamW": f"{BERT} {ADAMW} optimizer.lr=5e-4",
    "modern, Muon": f"{MODERN} {MUON}",
    "modern, AdamW": f"{MODERN} {ADAMW}",
    "modern, Muon, twice the rate": f"{MODERN} {MUON} optimizer.lr=2e-3 muon_lr=4e-3",
    "modern, Muon, half the batch": f"{MODERN} {MUON} batch_tokens=65536",
    "modern, Muon, 15% masks": f"{MODERN} {MUON} rate=0.15",
    "modern, Muon, 45% masks": f"{MODERN} {MUON} rate=0.45",
    "modern, replaced, Muon": f"{MODERN} {MUON} {REPLACED}",
    "modern, replaced, AdamW": f"{MODERN} {ADAMW} {REPLACED}",
    "electra": ELECTRA,
    "electra, Muon": f"{ELECTRA} {MUON} optimizer.lr=5e-4 muon_lr=1e-3",
    "small electra, 5e-4": f"{SMALL} optimizer.lr=5e-4",
    "small electra, 1e-3": f"{SMALL} optimizer.lr=1e-3",
    "small electra, 5e-4, a quarter of the batch": f"{SMALL} optimizer.lr=5e-4 batch_tokens=16384 row_tokens=16384",
    "small": f"{SMALL} {MASKED} {ADAMW}",
    "small, Muon": f"{SMALL} {MASKED} {MUON}",
    "10 × 256, modern, Muon": f"{MODERN} {MUON} {TEN}",
    "10 × 256, modern, replaced, Muon": f"{MODERN} {MUON} {REPLACED} {TEN}",
    "6 × 384, Muon": f"{SMALL} {MASKED} {MUON} layers=6 width=384 heads=6 feedforward=1536",
}


def main() -> None:
    options = arguments()
    names = options.arms.split(";") if options.arms else list(ARMS)
    if unknown := [name for name in names if name not in ARMS]:
        sys.exit(f"no arm {unknown[0]!r}; there are {'; '.join(ARMS)}")
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.at_once) as pool:
        folders = [Path(options.keep or scratch) / str(number) for number in range(len(names))]
        rows = list(pool.map(lambda name, folder: measured(name, folder, options), names, folders))
    report(f"{options.tokens / 1e6:.0f} M tokens each, on dev", rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--arms", default="", help="some of them, with semicolons between")
    parser.add_argument("--tokens", type=float, default=100e6)
    parser.add_argument("--tasks", default=TASKS)
    parser.add_argument("--at_once", type=int, default=3, help="arms that share the device")
    parser.add_argument("--keep", default="", help="a folder for the runs")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="a setting of all arms")
    return parser.parse_args()


def measured(name: str, folder: Path, options: argparse.Namespace) -> dict:
    """One arm: its run, its held-out loss, its dev figures."""
    recipe, *settings = ARMS[name].split()
    told = dict(word.split("=", 1) for word in [*COMMON.split(), *settings, *options.settings])
    told |= {"steps": round(options.tokens / int(told["batch_tokens"])), "evaluate_every": 10**6, "checkpoint_every": 10**6}
    words = [word for setting in told.items() for word in ("--set", "=".join(map(str, setting)))]
    command = [sys.executable, "-m", "bertkit", "pretrain", options.store, "--recipe", recipe, "--out", str(folder)]
    done = subprocess.run([*command, *words, "--workers", "2"], capture_output=True, text=True)
    if done.returncode:
        print(f"{name}: {done.stderr.strip().splitlines()[-1:]}", flush=True)
        return {"arm": name, "loss at 15%": float("nan")} | dict.fromkeys([*options.tasks.split(","), "mean"], float("nan"))
    row = {"arm": name, "loss at 15%": held_out_loss(folder / "model", options.store)}
    how = SimpleNamespace(model=str(folder / "model"), settings=["dropout=0.1"], small_epochs=5)
    row |= {task: tune(task, 0, how, folder)["score"] for task in options.tasks.split(",")}
    row["mean"] = mean(row[task] for task in options.tasks.split(","))
    print(row, flush=True)
    return row


@torch.inference_mode()
def held_out_loss(model: Path, store: str) -> float:
    """Of the masked head, if it has one."""
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
