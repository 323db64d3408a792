"""Where does a pre-training step of BERT spend its time? Each kernel's time by part, and the best that the GPU can do.

The step is that of pretrain_throughput.py, or with --recipe a step of the training loop by that recipe, optimizer included.
The best rates of matrix multiplications and copies are measured on the step's own shapes.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import torch
from measure import alone, arguments, line_up, report
from pretrain_throughput import DEVICE, draw, measured_step, seconds
from support.stores import made_up_store

from bertkit.data.examples import ExampleSettings, ExampleSource
from bertkit.data.loader import Step
from bertkit.data.store import Store
from bertkit.model.config import Config, sized
from bertkit.model.device import tokens_at_once
from bertkit.pipeline import begin_with
from bertkit.recipes import find_recipe
from bertkit.train.checkpoint import State
from bertkit.train.distributed import World
from bertkit.train.fit import Feed, Trainer
from bertkit.train.pretraining import pretraining_job
from bertkit.train.recipe import with_rows

PARTS = {  # part → substrings of its kernels' names; the first match counts
    "attention": ("_short_", "_tiles_", "flash"),
    "GELU with its bias or gate": ("_gelu_", "_gated_"),
    "matrix products": ("nvjet", "gemm", "matmul", "cublas", "cutlass", "splitKreduce"),
    "vocabulary's loss": ("softmax", "nll_loss", "argmax"),
    "embeddings": ("embedding", "index"),
    "norms, residuals, dropout, biases' gradients": ("_added_", "layer_norm", "_sum"),
    "optimiser and clipping": ("multi_tensor", "foreach", "adam"),
}
STEPS = 4


def main() -> None:
    options = arguments(__doc__, size="base", length=128, dropout=0.1, row_tokens=131_072, recipe="", precision="bf16")
    line_up()
    with tempfile.TemporaryDirectory() as scratch:
        store = made_up_store(Path(scratch) / "s", 4000, pieces=30_522, longest=400)
        if options.recipe:
            step, tokens, config = recipe_step(options.recipe, options.precision, store, Path(scratch) / "run")
        else:
            config = sized(options.size, dropout=options.dropout, attention_dropout=options.dropout)
            settings = ExampleSettings(length=options.length)
            source = ExampleSource(store, settings, seed=0, tokens=options.row_tokens, grids=False)
            step, tokens = measured_step(config, draw(source, 4), options.precision)
        for index in range(10):
            step(index)
        with alone():
            wall = min(seconds(step, 10) for _ in range(3)) / 10
            kernels = profiled(step)
            products, copies = ceilings(config, options.row_tokens)
    shares = by_part(kernels).items()
    rows = [
        {"part": part, "ms": ms, "ns a token": ms / tokens * 1e6, "share": f"{ms / wall / 10:.0f}%"} for part, ms in shares
    ]
    print(f"a step: {wall * 1000:.1f} ms, {tokens / wall / 1e6:.3f} M tokens/s")
    print(f"at best: matrix products {products / 1e12:.0f} TFLOP/s, copies {copies / 1e12:.2f} TB/s")
    report(
        f"A step of {options.recipe or f'BERT-{options.size}'} on {torch.cuda.get_device_name()}, {options.precision}", rows
    )
    for name, ms in sorted(kernels.items(), key=lambda kernel: -kernel[1])[:25]:
        print(f"{ms:8.3f} ms {part_of(name):44} {name[:100]}")


def recipe_step(name: str, precision: str, store: Store, run: Path) -> tuple[Callable[[int], None], float, Config]:
    """Returns a step of the training loop, the number of tokens it reads, and the configuration of the model."""
    recipe = replace(find_recipe(name), precision=precision, held_out=0.0)
    _, network, recipe = begin_with(recipe, store, None, None)
    recipe = with_rows(recipe, tokens_at_once(DEVICE, precision, recipe.config))
    job, _ = pretraining_job(run, recipe, store, network, DEVICE, World(), lambda to: None, workers=0)
    trainer, state = Trainer(replace(job, feed=Again(job.feed))), State()
    trainer.step(state)
    return lambda index: trainer.step(state), float(state.tokens), recipe.config


class Again:
    """A feed that repeats its first steps, so that nothing waits for it."""

    def __init__(self, feed: Feed, count: int = 4):
        state, steps = State(), []
        for _ in range(count):
            steps.append(feed.step(0.0, state))
            state.cursor = steps[-1].cursor
        self.steps, self.flops_per_token, self.close = cycle(steps), feed.flops_per_token, feed.close

    def step(self, progress: float, state: State) -> Step:
        return next(self.steps)


def profiled(step) -> dict[str, float]:
    """Returns the milliseconds per step of every kernel."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for index in range(STEPS):
            step(index)
        torch.cuda.synchronize()
    return {event.key: event.self_device_time_total / 1000 / STEPS for event in profile.key_averages()}


def by_part(kernels: dict[str, float]) -> dict[str, float]:
    found = dict.fromkeys([*PARTS, "rest"], 0.0)
    for name, ms in kernels.items():
        found[part_of(name)] += ms
    return dict(sorted(found.items(), key=lambda part: -part[1])) | {"all": sum(found.values())}


def part_of(name: str) -> str:
    return next((part for part, marks in PARTS.items() if any(mark in name for mark in marks)), "rest")


def ceilings(config: Config, tokens: int) -> tuple[float, float]:
    """Returns FLOP/s of the feed-forward's first matrix multiplication, and bytes/s of copying its result."""
    x, weight = (torch.randn(n, config.width, device=DEVICE, dtype=torch.bfloat16) for n in (tokens, config.feedforward))
    product = x @ weight.T
    flops = 2 * tokens * config.width * config.feedforward
    times = [
        min(seconds(lambda _, run=run: run(), 20) for _ in range(3)) / 20 for run in (lambda: x @ weight.T, product.clone)
    ]
    return flops / times[0], 2 * product.nbytes / times[1]


if __name__ == "__main__":
    main()
