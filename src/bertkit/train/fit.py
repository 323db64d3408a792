"""The training loop. A step accumulates the gradients of its rows, then updates the weights; `_train` is the loop itself."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.atomic import alone, write_text
from bertkit.data.draws import draw
from bertkit.data.loader import Step
from bertkit.data.packing import Packed
from bertkit.errors import TrainingError
from bertkit.model.device import autocast, moved, peak_flops
from bertkit.train.checkpoint import State, read_checkpoint, write_checkpoint
from bertkit.train.distributed import World, laid_like, synced, whole
from bertkit.train.graphs import Recorder
from bertkit.train.log import Log
from bertkit.train.optimizer import Optimizers, Share, full
from bertkit.train.recipe import Training, rate_factor
from bertkit.train.run import agreed

Figures = tuple[dict[str, float], float]  # metrics by name, and a score to maximise
Export = Callable[[Path], None]  # writes the network as an artifact
PAUSE = 300.0  # seconds between checkpoints by default: writing one of a large model takes a few seconds


class Feed(Protocol):
    """Where the rows come from, as a function of the run's progress and of the state's phase and cursor."""

    def step(self, progress: float, state: State) -> Step: ...
    def flops_per_token(self, state: State) -> float: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Job:
    """What to train, on which data and device, and where to save it.

    The network maps a row to sums over it, named by its `names`; those that end in "loss" are trained on, as means.
    """

    run: Path
    recipe: Training
    network: Any
    feed: Feed
    device: torch.device
    world: World
    export: Export
    begun: dict[str, Any] = field(default_factory=dict)  # what else must be equal on resuming
    evaluate: Callable[[Trainer, State], Figures] | None = None
    share: Share = full
    best: str = "best"  # folder of the best artifact; the last is saved as "model", unless this is "model"
    fork: bool = False  # continue although the recipe has changed
    shard: bool = False  # shard weights, gradients and moments over ranks
    quiet: bool = False

    @property
    def keeps_best(self) -> bool:
        """Whether the run's model is its best one, so that nothing needs the last weights once the run is over."""
        return self.evaluate is not None and self.best == "model"


def fit(job: Job) -> State:
    """Trains from the last checkpoint, or from the start, until the recipe ends or a signal arrives."""
    trainer = Trainer(job)  # raises on a faulty job before anything is written
    settings = agreed(job.run, job.recipe, begun=job.begun, fork=job.fork)
    with alone(job.run) if job.world.leads else nullcontext():
        return _train(job, trainer, settings)


def _train(job: Job, trainer: Trainer, settings: str) -> State:
    state = trainer.resume()
    job.world.wait()
    if job.world.leads:
        write_text(job.run / "recipe.json", settings)
    recipe, silent = job.recipe, not job.world.leads
    with closing(job.feed), Log(job.run, step=state.step, quiet=job.quiet, silent=silent) as log, _signals() as stop:
        while not trainer.finished(state) and not job.world.agree(bool(stop), job.device):
            with _enough_memory(recipe.row_tokens):
                trainer.step(state)
            if state.step % recipe.log_every == 0:
                trainer.report(state, log)
            if job.evaluate and state.step % recipe.evaluate_every == 0:
                trainer.evaluate(state, log)
            if trainer.is_due(state):
                trainer.checkpoint(state)
        if stop:
            log.show(f"stopped at step {state.step:,} with a checkpoint; the same command continues from there")
        elif job.evaluate and state.evaluated < state.step:
            trainer.evaluate(state, log)
    trainer.checkpoint(state, over=not stop)
    if stop:
        raise SystemExit(128 + stop[0])  # the shell's code for the signal
    if not job.keeps_best:
        trainer.export(job.run / "model")
    return state


class Trainer:
    """What the loop calls: step, report, evaluate, checkpoint, export."""

    def __init__(self, job: Job):
        self.job, recipe = job, job.recipe
        self.network = (deepcopy(job.network) if job.shard else job.network).to(job.device).train()
        self.names: tuple[str, ...] = job.network.names
        self.forward = job.world.spread(self.network, job.device, compile=recipe.compile, shard=job.shard)
        self.optimizers = Optimizers(self.network, recipe.optimizer, share=job.share)
        self.backward = Recorder(self._backward, self.network.parameters()) if recipe.graphs else self._backward
        self.phase, self.started, self.untimed = -1, 0.0, 0.0  # a phase's first step compiles, so it is not timed
        self.kept = time.monotonic()  # when the last checkpoint was written
        self.window = torch.zeros(len(self.names), device=job.device)
        self.bad = torch.full((), -1, device=job.device)
        self.norm = torch.zeros((), device=job.device)

    def resume(self) -> State:
        """Restores weights and optimiser from the newest checkpoint and returns its state, or a new one if there is none."""
        found = read_checkpoint(self.job.run)
        if found is None:
            return State()
        state, tensors = found
        if not tensors:  # the run is over
            if not self.finished(state):
                raise TrainingError(
                    f"{self.job.run} is over and kept its best model alone; give another --out to train longer"
                )
            return state
        mine = {f"weights/{name}": parameter for name, parameter in self.network.named_parameters()}
        kept = {name: tensor.shape for name, tensor in tensors.items() if name.startswith("weights/")}
        if other := kept.items() ^ {name: parameter.shape for name, parameter in mine.items()}.items():
            name = min(name for name, _ in other).removeprefix("weights/")
            raise TrainingError(f"{self.job.run} trains another network: {name} differs; give another --out")
        with torch.no_grad():
            for name, parameter in mine.items():
                parameter.copy_(laid_like(tensors[name], parameter))
        self.optimizers.restore(tensors)
        self.window = torch.tensor(state.window, device=self.job.device)
        return state

    def progress(self, state: State) -> float:
        """Returns the run's progress, 0 to 1: in steps, or in time if the budget ends it sooner."""
        recipe = self.job.recipe
        in_time = min(1.0, state.elapsed / recipe.budget) if recipe.budget else 0.0
        return max((state.step + 0.5) / recipe.steps, in_time)

    def finished(self, state: State) -> bool:
        recipe = self.job.recipe
        over = bool(recipe.budget) and state.elapsed >= recipe.budget
        stale = bool(recipe.patience) and state.stale >= recipe.patience
        return state.step >= recipe.steps or stale or self.job.world.agree(over, self.job.device)

    def step(self, state: State) -> None:
        """One step: accumulates the gradients of all rows of the batch, as if it were one row, then updates the weights."""
        progress = self.progress(state)
        step = self.job.feed.step(progress, state)
        counts = self._counts(step)
        sums = self._gradients(step, counts, state.step)
        self.norm = self.optimizers.clip(self.job.recipe.optimizer.clip)
        self.optimizers.step(rate_factor(self.job.recipe.schedule, progress))
        self.window += sums
        self.bad = torch.where((self.bad < 0) & ~sums.isfinite().all(), state.step, self.bad)
        state.counts = [a + b for a, b in zip(state.counts or [0.0] * len(counts), counts, strict=True)]
        state.step, state.cursor, state.tokens = state.step + 1, step.cursor, state.tokens + int(counts[-1])
        if state.phase != self.phase:
            self.phase, self.started, self.untimed = state.phase, time.monotonic() - state.elapsed, counts[-1]
        state.elapsed = time.monotonic() - self.started

    def _counts(self, step: Step) -> list[float]:
        """Returns the divisor of each sum over all ranks, then tokens. Losses are means, however the batch is split."""
        counts = torch.tensor([[*map(row.count, self.names), row.tokens] for row in step.rows], dtype=torch.float64).sum(0)
        if self.job.world.size > 1:
            counts = self.job.world.sum(counts.to(self.job.device))
        return counts.tolist()

    def _gradients(self, step: Step, counts: list[float], number: int) -> Tensor:
        sums = torch.zeros(len(self.names), device=self.job.device)
        shares = [self._share(name) / max(1.0, count) for name, count in zip(self.names, counts, strict=False)]
        for index, row in enumerate(step.rows):
            seed = draw(self.job.recipe.seed, 7, number, index, self.job.world.rank)[0]
            torch.manual_seed(int(seed >> np.uint64(1)))
            with synced(self.forward, last=index == len(step.rows) - 1):
                sums += self.backward(row, torch.tensor(shares))
        return self.job.world.sum(sums)

    def _share(self, name: str) -> float:
        """Returns a sum's weight in training, 0 unless it is a loss; times the ranks, which average gradients."""
        emphasis: dict[str, float] = getattr(self.job.network, "emphasis", {})
        return self.job.world.size * emphasis.get(name, 1.0) if name.endswith("loss") else 0.0

    def _backward(self, row: Packed, shares: Tensor) -> Tensor:
        """Adds a row's gradients to the accumulated ones and returns its sums."""
        sums = self.sums(self.forward, row)
        (sums * shares.to(self.job.device)).sum().backward()
        return sums.detach()

    def sums(self, network: nn.Module, row: Packed) -> Tensor:
        """Returns the network's sums over a row in the recipe's precision; the row is copied while the device computes."""
        device = self.job.device
        with autocast(device, self.job.recipe.precision):
            return network(row.map(lambda tensor: moved(tensor, device)))

    def report(self, state: State, log: Log) -> None:
        """Logs the means since the last report; raises if a loss is no longer finite."""
        self._check(state)
        *counts, tokens = state.counts
        means = {n: v / c for n, v, c in zip(self.names, self.window.tolist(), counts, strict=True) if c}
        seconds, state.reported = state.elapsed - state.reported, state.elapsed
        speed, self.untimed = (tokens - self.untimed) / max(1e-9, seconds), 0.0
        factor = rate_factor(self.job.recipe.schedule, self.progress(state))
        row = {"step": state.step, "phase": state.phase, **means, "lr": self.job.recipe.optimizer.lr * factor}
        row |= {"gradient_norm": float(self.norm), "tokens": state.tokens, "elapsed": state.elapsed}
        if speed:  # 0 if only a phase's first step was done
            row["tokens_per_second"] = speed
        if speed and (peak := peak_flops(self.job.device)):
            row["flop_utilisation"] = speed / self.job.world.size * self.job.feed.flops_per_token(state) / peak
        log.write(**row)
        log.show(self._line(state, row))
        self.window.zero_()
        state.counts = []

    def _line(self, state: State, row: dict[str, Any]) -> str:
        left = state.elapsed * max(0.0, 1 / max(1e-9, self.progress(state)) - 1)
        steps = "" if self.job.recipe.budget else f"/{self.job.recipe.steps:,}"
        parts = [f"step {state.step:,}{steps}", f"loss {row[self.names[0]]:.3f}"]
        parts += [f"{name.replace('_', ' ')} {row[name]:.0%}" for name in self.names if name in row and "loss" not in name]
        if "tokens_per_second" in row:
            parts.append(f"{row['tokens_per_second']:,.0f} tokens/s")
        if "flop_utilisation" in row:
            parts.append(f"{row['flop_utilisation']:.0%} of peak")
        if state.elapsed:
            parts.append(f"eta {int(left // 3600)}:{int(left // 60 % 60):02d}:{int(left % 60):02d}")
        return " · ".join(parts)

    @torch.no_grad()
    def evaluate(self, state: State, log: Log) -> None:
        """Logs metrics on held-out data, and exports the network if it is the best so far."""
        assert self.job.evaluate is not None
        self._check(state)
        self.network.eval()
        figures, score = self.job.evaluate(self, state)
        self.network.train()
        log.write(step=state.step, phase=state.phase, **figures, elapsed=state.elapsed)
        shown = (f"{name.replace('_', ' ')} {value:.4g}" for name, value in figures.items())
        log.show(" · ".join([f"step {state.step:,}", *shown]))
        state.evaluated, state.stale = state.step, state.stale + 1
        if score > state.best:
            state.best, state.stale = score, 0
            self.export(self.job.run / self.job.best)

    def is_due(self, state: State) -> bool:
        """Whether it is time for a checkpoint."""
        if every := self.job.recipe.checkpoint_every:
            return state.step % every == 0
        return self.job.world.agree(time.monotonic() - self.kept > PAUSE, self.job.device)

    def checkpoint(self, state: State, *, over: bool = False) -> None:
        """Writes a checkpoint; once the run is over, without tensors if its best model is what is kept."""
        self._check(state)
        state.window = self.window.tolist()
        tensors = {f"weights/{name}": parameter for name, parameter in self.network.named_parameters()}
        tensors = {} if over and self.job.keeps_best else tensors | self.optimizers.state()
        writers = self.job.world if self.job.shard else World()
        if self.job.shard or self.job.world.leads:
            write_checkpoint(self.job.run, state, tensors, self.job.recipe.keep, writers)
        self.job.world.wait()
        self.kept = time.monotonic()

    def export(self, to: Path) -> None:
        """Writes the network as an artifact; a sharded one is gathered first, tensor by tensor."""
        if self.job.shard:
            plain = dict(self.job.network.named_parameters())
            with torch.no_grad():
                for name, parameter in self.network.named_parameters():
                    plain[name].copy_(whole(parameter))
        if self.job.world.leads:
            self.job.export(to)

    @torch.no_grad()
    def _check(self, state: State) -> None:
        """Raises if a loss or a weight is not finite, before anything is saved: the last checkpoint stays good."""
        if not whole(nn.utils.get_total_norm([*self.network.parameters()])).isfinite():
            self.bad = torch.where(self.bad < 0, state.step, self.bad)
        if (step := int(self.bad)) >= 0:
            (self.job.run / "nan.json").write_text(json.dumps({"step": step, "seen_at": state.step, "cursor": state.cursor}))
            advice = "Lower optimizer.lr or clip, and run again (nan.json has the record)"
            raise TrainingError(f"the loss is not finite since step {step}; the last checkpoint is good. {advice}")


@contextmanager
def _enough_memory(row_tokens: int) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        advice = f"compute less at once: --set row_tokens={row_tokens // 2} --fork"
        raise TrainingError(f"rows of {row_tokens:,} tokens are more than the device's memory holds; {advice}") from error


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Yields a list that collects SIGTERM and SIGINT; the loop checks it between steps."""
    received: list[int] = []
    both = signal.SIGTERM, signal.SIGINT
    before = {number: signal.signal(number, lambda caught, _: received.append(caught)) for number in both}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
