"""THE loop. A step is: rows of examples, their gradients, one step of the optimiser. `fit` shows all that is periodic."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.data.draws import draw
from bertkit.data.examples import ExampleSettings, ExampleSource, PretrainingBatch
from bertkit.data.loader import Loader, Step
from bertkit.data.store import Store
from bertkit.errors import TrainingError
from bertkit.model.device import autocast, flops_per_token, peak_flops
from bertkit.tasks.pretraining import Pretraining
from bertkit.train.checkpoint import Checkpoint, State, read_checkpoint, write_checkpoint
from bertkit.train.distributed import World, laid_like, synced, whole
from bertkit.train.log import Log
from bertkit.train.optimizer import Optimizers
from bertkit.train.recipe import Recipe, rate_factor
from bertkit.train.report import filled_samples, write_report
from bertkit.train.run import open_run


@dataclass(frozen=True)
class Job:
    """What is trained, on what, where, and where it is kept."""

    run: Path
    recipe: Recipe
    store: Store
    network: Pretraining
    device: torch.device
    world: World
    export: Callable[[Path], None]  # writes the network as an artifact
    init: str = ""  # the model it began from
    fork: bool = False  # go on though the recipe has changed
    shard: bool = False  # cut weights, gradients and moments over the ranks
    workers: int = 0
    quiet: bool = False


def fit(job: Job) -> State:
    """Trains from the last checkpoint, or from the beginning, to the end of the recipe or a signal."""
    trainer = Trainer(job)  # finds what is wrong with the job before anything is written
    if job.world.leads:
        open_run(job.run, job.recipe, store=job.store, init=job.init, fork=job.fork)
    job.world.wait()
    state = trainer.resume()
    recipe = job.recipe
    with (
        trainer.loader,
        Log(job.run, step=state.step, quiet=job.quiet, silent=not job.world.leads) as log,
        _signals() as stop,
    ):
        while not trainer.finished(state) and not job.world.agree(bool(stop), job.device):
            trainer.step(state)
            if state.step % recipe.log_every == 0:
                trainer.report(state, log)
            if trainer.held_out and state.step % recipe.evaluate_every == 0:
                trainer.evaluate(state, log)
            if state.step % recipe.checkpoint_every == 0:
                trainer.checkpoint(state)
        if stop:
            log.show(f"stopped at step {state.step:,} with a checkpoint; the same command goes on from there")
        elif trainer.held_out and state.step % recipe.evaluate_every:
            trainer.evaluate(state, log)
    trainer.checkpoint(state)
    if stop:
        raise Interrupted(stop[0], state.step)
    trainer.export(job.run / "model")
    if job.world.leads:
        write_report(job.run, samples=trainer.samples(state))
    return state


class Interrupted(SystemExit):
    """The run was told to stop, and did so with a checkpoint; the exit code is the shell's for the signal."""

    def __init__(self, number: int, step: int):
        super().__init__(128 + number)
        self.step = step


class Trainer:
    """The parts of a step."""

    def __init__(self, job: Job):
        self.job, recipe = job, job.recipe
        job.network.encoder.checkpointing = recipe.checkpointing
        self.network = (deepcopy(job.network) if job.shard else job.network).to(job.device).train()
        self.forward = job.world.spread(self.network, job.device, compile=recipe.compile, shard=job.shard)
        self.optimizers = Optimizers(self.network, recipe.optimizer, fused=job.device.type == "cuda")
        self.loader = Loader(self._sources(False), workers=job.workers, rank=job.world.rank, world=job.world.size)
        self.held_out = self._sources(True) if recipe.held_out else []
        self.started: float | None = None  # the clock starts after the first step, which compiles
        self.window = torch.zeros(4, device=job.device)
        self.bad = torch.full((), -1, device=job.device)
        self.norm = torch.zeros((), device=job.device)

    def _sources(self, evaluation: bool) -> list[ExampleSource]:
        """One for each phase."""
        recipe = self.job.recipe
        grids = self.job.device.type != "cuda" or recipe.precision == "fp32"
        base = ExampleSettings(pairs=recipe.pairs, short=recipe.short, masking=recipe.masking, causal=recipe.config.causal)
        return [
            ExampleSource(
                self.job.store,
                replace(base, length=phase.length),
                seed=recipe.seed + 1000 * index + (500 if evaluation else 0),
                tokens=recipe.row_tokens,
                grids=grids,
                held_out=recipe.held_out,
                evaluation=evaluation,
            )
            for index, phase in enumerate(recipe.phases)
        ]

    def resume(self) -> State:
        """The state of the last whole checkpoint, with weights and optimiser as they were; or the beginning."""
        found = read_checkpoint(self.job.run)
        if found is None:
            return State()
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(laid_like(found.weights[name], parameter))
        self.optimizers.restore(found.optimizer)
        self.window = torch.tensor(found.state.window, device=self.job.device)
        return found.state

    def progress(self, state: State) -> float:
        """How far the run has come, 0 to 1: in time where there is a budget, else in steps."""
        recipe = self.job.recipe
        if recipe.budget:
            return min(1.0, state.elapsed / recipe.budget)
        return (state.step + 0.5) / recipe.steps

    def finished(self, state: State) -> bool:
        recipe = self.job.recipe
        over = bool(recipe.budget) and state.elapsed >= recipe.budget
        return state.step >= recipe.steps or self.job.world.agree(over, self.job.device)

    def step(self, state: State) -> None:
        """One step: gradients of all rows of the batch, as if they were one, and an update."""
        progress = self.progress(state)
        phase = self.job.recipe.phase_at(progress)
        if phase != state.phase:
            state.phase, state.cursor = phase, 0
        step = self.loader.step(phase, self._rows(progress), state.cursor)
        counts = self._counts(step)
        sums = self._gradients(step, counts, state.step)
        self.norm = whole(nn.utils.clip_grad_norm_(self.network.parameters(), self.job.recipe.optimizer.clip))
        self.optimizers.step(rate_factor(self.job.recipe.schedule, progress))
        self.window += sums
        self.bad = torch.where((self.bad < 0) & ~sums.isfinite().all(), state.step, self.bad)
        state.counts = [a + b for a, b in zip(state.counts, counts.tolist(), strict=True)]
        state.step, state.cursor, state.tokens = state.step + 1, step.cursor, state.tokens + int(counts[2])
        self.started = time.monotonic() - state.elapsed if self.started is None else self.started
        state.elapsed = time.monotonic() - self.started

    def _rows(self, progress: float) -> int:
        """Rows of a step over all ranks; with a ramp, an eighth at first."""
        recipe, size = self.job.recipe, self.job.world.size
        rows = recipe.batch_tokens // recipe.row_tokens
        if progress < recipe.ramp:
            rows = round(rows * (0.125 + 0.875 * progress / recipe.ramp))
        return max(1, round(rows / size)) * size

    def _counts(self, step: Step) -> Tensor:
        """Over all ranks: hidden pieces, pairs, tokens. Losses are means over these, however the batch is cut up."""
        counts = torch.tensor([[row.hidden, row.pairs, row.tokens] for row in step.rows], dtype=torch.float64).sum(0)
        if self.job.world.size == 1:
            return counts
        return self.job.world.sum(counts.to(self.job.device)).cpu()

    def _gradients(self, step: Step, counts: Tensor, number: int) -> Tensor:
        hidden, pairs = max(1.0, float(counts[0])), max(1.0, float(counts[1]))
        sums = torch.zeros(4, device=self.job.device)
        for index, row in enumerate(step.rows):
            seed = draw(self.job.recipe.seed, 7, number, index, self.job.world.rank)[0]
            torch.manual_seed(int(seed >> np.uint64(1)))
            last = index == len(step.rows) - 1
            with synced(self.forward, last):
                part = self._sums(self.forward, row)
                loss = part[0] / hidden + part[1] / pairs
                (loss * self.job.world.size).backward()
            sums += part.detach()
        return self.job.world.sum(sums)

    def _sums(self, network: nn.Module, row: PretrainingBatch) -> Tensor:
        """The network's sums over a row, in the recipe's precision; the row is copied while the device computes."""
        device = self.job.device
        row = row.pin_memory() if device.type == "cuda" else row
        with autocast(device, self.job.recipe.precision):
            return network(row.to(device, non_blocking=True))

    def report(self, state: State, log: Log) -> None:
        """Writes the means since the last report, and stops the run if a loss is no number any more."""
        self._check(state)
        masked, following, masked_right, next_right = self.window.tolist()
        hidden, pairs, tokens = state.counts
        factor = rate_factor(self.job.recipe.schedule, self.progress(state))
        seconds, state.reported = state.elapsed - state.reported, state.elapsed
        row = {"step": state.step, "phase": state.phase, "masked_loss": masked / max(1, hidden)}
        row |= {"masked_accuracy": masked_right / max(1, hidden)}
        if pairs:
            row |= {"next_loss": following / pairs, "next_accuracy": next_right / pairs}
        speed = tokens / max(1e-9, seconds)
        row |= {"lr": self.job.recipe.optimizer.lr * factor, "gradient_norm": float(self.norm), "tokens": state.tokens}
        row |= {"elapsed": state.elapsed, "tokens_per_second": speed} | self._utilisation(speed, state.phase)
        log.write(**row)
        log.show(self._line(state, row))
        self.window.zero_()
        state.counts = [0.0, 0.0, 0.0]

    def _line(self, state: State, row: dict) -> str:
        left = state.elapsed * max(0.0, 1 / max(1e-9, self.progress(state)) - 1)
        parts = [f"step {state.step:,}/{self.job.recipe.steps:,}", f"loss {row['masked_loss']:.3f}"]
        if "next_accuracy" in row:
            parts.append(f"next {row['next_accuracy']:.0%}")
        parts.append(f"{row['tokens_per_second']:,.0f} tokens/s")
        if "flop_utilisation" in row:
            parts.append(f"{row['flop_utilisation']:.0%} of peak")
        return " · ".join([*parts, f"eta {int(left // 3600)}:{int(left // 60 % 60):02d}:{int(left % 60):02d}"])

    def _utilisation(self, speed: float, phase: int) -> dict[str, float]:
        peak, recipe = peak_flops(self.job.device), self.job.recipe
        if peak is None:
            return {}
        flops = flops_per_token(recipe.config, recipe.phases[phase].length, recipe.masking.rate)
        return {"flop_utilisation": speed / self.job.world.size * flops / peak}

    @torch.no_grad()
    def evaluate(self, state: State, log: Log) -> None:
        """Losses and accuracies on held-out documents: the same examples every time. The best network is kept."""
        self._check(state)
        source, sums, counts = self.held_out[state.phase], torch.zeros(4, device=self.job.device), [0, 0]
        self.network.eval()
        for examples in source.first(self.job.recipe.evaluate_examples):
            row = source.batch(examples)
            sums += self._sums(self.network, row)
            counts = [counts[0] + row.hidden, counts[1] + row.pairs]
        self.network.train()
        values = sums.tolist()
        loss = values[0] / max(1, counts[0])
        result = {"held_out_loss": loss, "held_out_perplexity": math.exp(min(50.0, loss))}
        result |= {"held_out_accuracy": values[2] / max(1, counts[0])}
        if counts[1]:
            result |= {"held_out_next_accuracy": values[3] / counts[1]}
        log.write(step=state.step, phase=state.phase, **result, elapsed=state.elapsed)
        log.show(f"step {state.step:,} · held out: loss {loss:.3f} · accuracy {result['held_out_accuracy']:.1%}")
        if loss < state.best:
            state.best = loss
            self.export(self.job.run / "best")

    def samples(self, state: State) -> list[str]:
        """Some held-out examples, filled, for the report."""
        if not self.held_out:
            return []
        with autocast(self.job.device, self.job.recipe.precision):
            return filled_samples(self.job.network.to(self.job.device), self.held_out[state.phase], self.job.device)

    def checkpoint(self, state: State) -> None:
        self._check(state)
        state.window = self.window.tolist()
        content = Checkpoint(state, dict(self.network.named_parameters()), self.optimizers.state())
        if self.job.shard:
            write_checkpoint(self.job.run, content, self.job.recipe.keep, self.job.world)
        elif self.job.world.leads:
            write_checkpoint(self.job.run, content, self.job.recipe.keep)
        self.job.world.wait()

    def export(self, to: Path) -> None:
        """Writes the network as an artifact; a sharded one is put together first, tensor by tensor."""
        if self.job.shard:
            plain = dict(self.job.network.named_parameters())
            with torch.no_grad():
                for name, parameter in self.network.named_parameters():
                    plain[name].copy_(whole(parameter))
        if self.job.world.leads:
            self.job.export(to)

    def _check(self, state: State) -> None:
        """Nothing is written once a loss is no number: the last checkpoint stays good."""
        if (step := int(self.bad)) >= 0:
            (self.job.run / "nan.json").write_text(json.dumps({"step": step, "seen_at": state.step, "cursor": state.cursor}))
            raise TrainingError(
                f"the loss is no number any more since step {step}; the last checkpoint is good. "
                "Lower optimizer.lr or clip, and run again (nan.json has the record)"
            )


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Yields a list that SIGTERM and SIGINT enter; the loop looks at it between steps."""
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: received.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
