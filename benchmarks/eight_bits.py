"""Does training in fp8 learn as well as in bf16? The same steps of bertkit pretrain on the same examples, losses compared.

`python benchmarks/eight_bits.py STORE --size large`. Blocks are pre-norm and trained with Muon: with the paper's blocks and
optimizer, 500 steps teach little more than piece frequencies. --plot FILE draws the curves.
"""

import argparse
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from measure import report

from bertkit.data.store import Store
from bertkit.model.device import find_device
from bertkit.recipes import find_recipe
from bertkit.tasks.pretraining import Pretraining
from bertkit.train.distributed import World
from bertkit.train.fit import fit
from bertkit.train.log import read_metrics
from bertkit.train.pretraining import pretraining_job
from bertkit.train.recipe import change

PRECISIONS = ("bf16", "fp8")
SETTINGS = (
    "phases=128:1 norm=pre optimizer.kind=muon muon_lr=1e-3 warmup=0.1 beta2=0.98 evaluate_every=100 checkpoint_every=100000"
)


def main() -> None:
    options = arguments()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch, ProcessPoolExecutor(mp_context=spawn) as pool:
        runs = [Path(scratch) / precision for precision in PRECISIONS]
        list(pool.map(partial(train, options), runs))
        curves = [curve(run) for run in runs]
    steps = [step for step in curves[0] if step % options.every == 0]
    rows = [{"step": step} | compared([curve[step] for curve in curves]) for step in steps]
    report(f"BERT-{options.size}, {options.tokens:,} tokens a step, loss in 16 and in 8 bits", rows)
    if options.plot:
        draw(curves, options)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--size", default="base")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=65_536, help="per step")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--every", type=int, default=50, help="steps between rows of the table")
    parser.add_argument("--plot", default="")
    return parser.parse_args()


def train(options: argparse.Namespace, run: Path) -> None:
    """Trains as bertkit pretrain does, without an artifact: no member of the family is pre-norm and otherwise BERT."""
    told = [*SETTINGS.split(), f"steps={options.steps}", f"lr={options.lr}", f"precision={run.name}", "log_every=10"]
    told += [f"batch_tokens={options.tokens}", f"row_tokens={options.tokens}"]
    recipe, store = change(find_recipe(f"bert-{options.size}"), told), Store(options.store)
    recipe = replace(recipe, config=recipe.config.with_(vocabulary=len(store.tokenizer)))
    torch.manual_seed(recipe.seed)
    network = Pretraining(recipe.config)
    job, _ = pretraining_job(run, recipe, store, network, find_device("auto"), World(), lambda to: None, workers=2)
    fit(job)


def curve(run: Path) -> dict[int, dict]:
    """Returns what was measured, by step."""
    found = dict[int, dict]()
    for row in read_metrics(run):
        found.setdefault(row["step"], {}).update(row)
    return found


def compared(rows: list[dict]) -> dict:
    """Returns the losses in each precision, in training and, where measured, held out."""
    both, found = list(zip(PRECISIONS, rows, strict=True)), "held_out_loss" in rows[0]
    told = {precision: f"{row['masked_loss']:.3f}" for precision, row in both}
    return told | {f"{precision}, held out": f"{row['held_out_loss']:.3f}" if found else "" for precision, row in both}


def draw(curves: list[dict[int, dict]], options: argparse.Namespace) -> None:
    from matplotlib import pyplot

    _, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for precision, found, line in zip(PRECISIONS, curves, ("-", "--"), strict=True):
        axes.plot(list(found), [row["masked_loss"] for row in found.values()], line, label=precision)
    axes.set(xlabel="step", ylabel="masked loss", title=f"BERT-{options.size}, {options.tokens:,} tokens a step")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    pyplot.savefig(options.plot)


if __name__ == "__main__":
    main()
