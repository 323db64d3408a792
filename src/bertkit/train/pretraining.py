"""Pre-training as a job for the training loop: rows of a store's examples, and metrics on held-out documents."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bertkit.data.examples import ExampleSettings, ExampleSource
from bertkit.data.loader import Loader, Step
from bertkit.data.store import Store
from bertkit.model.device import autocast, check_eight_bits, flops_per_token, wants_grids
from bertkit.model.encoder import Encoder
from bertkit.train.checkpoint import State
from bertkit.train.distributed import World
from bertkit.train.fit import Export, Figures, Job, Trainer
from bertkit.train.recipe import Recipe
from bertkit.train.report import filled_samples


class PretrainingFeed:
    """Rows of examples of the run's current phase."""

    def __init__(self, recipe: Recipe, sources: list[ExampleSource], world: World, workers: int):
        self.recipe, self.size = recipe, world.size
        self.loader = Loader(sources, workers=workers, rank=world.rank, world=world.size)

    def step(self, progress: float, state: State) -> Step:
        phase = self.recipe.phase_at(progress)
        if phase != state.phase:
            state.phase, state.cursor = phase, 0
        return self.loader.step(phase, self._rows(progress), state.cursor)

    def _rows(self, progress: float) -> int:
        """Returns the number of rows per step over all ranks; with a ramp, an eighth of it at first."""
        rows = self.recipe.batch_tokens // self.recipe.row_tokens
        if progress < self.recipe.ramp:
            rows = round(rows * (0.125 + 0.875 * progress / self.recipe.ramp))
        return max(1, round(rows / self.size)) * self.size

    def flops_per_token(self, state: State) -> float:
        return flops_per_token(self.recipe.config, self.recipe.phases[state.phase].length, self.recipe.masking.rate)

    def close(self) -> None:
        self.loader.close()


def pretraining_job(
    run: Path, recipe: Recipe, store: Store, network: Any, device: torch.device, world: World, export: Export, workers: int
) -> tuple[Job, Callable[[], list[str]]]:
    """Returns the job, and a function that fills in masked pieces of held-out examples for its report."""
    for part in network.modules():
        if isinstance(part, Encoder):
            part.checkpointing = recipe.checkpointing
    if recipe.precision == "fp8":
        check_eight_bits(device)
        from bertkit.model.eight import in_eight_bits  # needs Triton, which only CUDA has

        in_eight_bits(network)
    recipe = replace(recipe, graphs=recipe.graphs and device.type == "cuda" and world.size == 1)
    sources, held_out = phase_sources(recipe, store, device)
    feed = PretrainingFeed(recipe, sources, world, workers)
    evaluate = partial(_evaluate, held_out, recipe) if held_out else None
    job = Job(run, recipe, network, feed, device, world, export, evaluate=evaluate)

    def samples() -> list[str]:
        with autocast(device, recipe.precision):
            fills = (network.kept if network.kept.masked else network.generator).to(device)
            return filled_samples(fills, held_out[-1], device) if held_out else []

    return job, samples


def phase_sources(recipe: Recipe, store: Store, device: torch.device) -> tuple[list[ExampleSource], list[ExampleSource]]:
    """Returns, for each phase, examples to train on, and held-out ones if the recipe holds documents out. Planning takes
    seconds for a large store, so all are planned in parallel."""
    phases, kinds = range(len(recipe.phases)), (False, True) if recipe.held_out else (False,)
    with ThreadPoolExecutor() as pool:
        made = list(pool.map(lambda one: _source(recipe, store, device, *one), product(kinds, phases)))
    return made[: len(phases)], made[len(phases) :]


def _source(recipe: Recipe, store: Store, device: torch.device, evaluation: bool, phase: int) -> ExampleSource:
    base = ExampleSettings(pairs=recipe.pairs, short=recipe.short, masking=recipe.masking, causal=recipe.config.causal)
    settings = replace(base, length=recipe.phases[phase].length)
    seed = recipe.seed + 1000 * phase + (500 if evaluation else 0)
    grids = wants_grids(device, recipe.precision, recipe.config)
    shape: Any = dict(tokens=recipe.row_tokens, grids=grids, fixed=recipe.compile or recipe.graphs or not grids)
    return ExampleSource(store, settings, seed=seed, held_out=recipe.held_out, evaluation=evaluation, **shape)


def _evaluate(held_out: list[ExampleSource], recipe: Recipe, trainer: Trainer, state: State) -> Figures:
    """Returns losses and accuracies on held-out documents, on the same examples every time."""
    source = held_out[min(state.phase, len(held_out) - 1)]  # a fork may have fewer phases than before
    sums, counts = torch.zeros_like(trainer.window), torch.zeros(len(trainer.names))
    for examples in source.first(recipe.evaluate_examples):
        row = source.batch(examples)
        sums += trainer.sums(trainer.network, row)
        counts += torch.tensor([*map(row.count, trainer.names)])
    means = {n: v / c for n, v, c in zip(trainer.names, sums.tolist(), counts.tolist(), strict=True) if c}
    if (first := trainer.names[0]) not in means:  # the loss that ranks models is missing: nothing was masked
        return {}, -math.inf
    loss, own = means.pop(first), first.removesuffix("loss")
    figures = {"held_out_loss": loss} | ({"held_out_perplexity": math.exp(min(50.0, loss))} if own == "masked_" else {})
    figures |= {f"held_out_{name.removeprefix(own)}": v for name, v in means.items() if name != "next_loss"}
    return figures, -loss
