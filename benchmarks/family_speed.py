"""How fast is each member of the family? bertkit compared with its transformers class, both compiled, in one process.

Training is masked language modelling (15%) on packed examples: forward, backward and AdamW. Inference is the encoder alone
on texts of mixed lengths. transformers pads each example to the length; padding does not count as tokens. `--window`
measures only windowed attention, from 512 tokens up.
"""

import gc
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from measure import alone, arguments, line_up, report
from support.family import counterpart
from support.reference import padded
from support.stores import made_up_store

from bertkit.bundle.members import FAMILIES
from bertkit.data.examples import NOTHING, ExampleSettings, ExampleSource
from bertkit.data.packing import Shapes, lay
from bertkit.model.attention import attend
from bertkit.model.config import MEMBERS, sized
from bertkit.model.device import autocast, compiled, wants_grids
from bertkit.tasks.pretraining import Pretraining
from bertkit.train.optimizer import Optimizers
from bertkit.train.recipe import Optimizer

MORE = {
    "albert": dict(embedding=128),
    "longformer": dict(window=256, positions=4096),
    "modernbert": dict(layers=22, feedforward=1152, window=64, global_every=3, positions=8192),
}
PIECES = 30_522


def main() -> None:
    options = arguments(
        __doc__,
        size="base",
        members=",".join(MEMBERS),
        lengths="128,512",
        tokens=32_768,
        steps=10,
        device="cuda",
        compile=1,
        window=0,
    )
    line_up()
    device = torch.device(options.device)
    if options.window:
        return report("Window attention by length", [windows(length, device) for length in (512, 1024, 2048, 4096, 8192)])
    rows = []
    for name in options.members.split(","):
        for length in map(int, options.lengths.split(",")):
            rows += measure(name, length, options, device)
            for row in rows[-2:]:
                print(row, flush=True)
    report(f"The family at {options.size} size, thousand tokens/s", rows)


def measure(name: str, length: int, options, device: torch.device) -> list[dict]:
    plain = dict(vocabulary=PIECES, pooler=False, dropout=0.0, attention_dropout=0.0)
    more = MORE.get(name, {}) if options.size == "base" else {k: v for k, v in MORE.get(name, {}).items() if k != "layers"}
    config = sized(options.size, **MEMBERS[name] | plain | more)
    rows = []
    for work, theirs in (("training", train_theirs), ("inference", read_theirs)):
        ours = train_ours if work == "training" else read_ours
        speeds = {}
        for who, run in (("bertkit", ours), ("transformers", theirs)):
            free()
            try:
                speeds[who] = run(name, config, length, options, device)
            except torch.OutOfMemoryError:
                speeds[who] = float("nan")
        ratio = speeds["bertkit"] / speeds["transformers"]
        rows.append({"member": name, "length": length, "work": work, **{k: v / 1e3 for k, v in speeds.items()}, "×": ratio})
    return rows


def examples(config, length: int, options, device: torch.device, folder: Path):
    store = made_up_store(folder / "s", 2000, pieces=PIECES, longest=400)
    grids = wants_grids(device, "bf16", config)
    source = ExampleSource(store, ExampleSettings(length=length, pairs="none"), seed=0, tokens=options.tokens, grids=grids)
    return [source.batch(source.next_row(0)[0]), source.batch(source.next_row(1)[0])]


def train_ours(name: str, config, length: int, options, device: torch.device) -> float:
    network = Pretraining(config, next_sentence=False).to(device).train()
    optimizers = Optimizers(network, Optimizer())
    forward = compiled(network) if options.compile else network
    with tempfile.TemporaryDirectory() as scratch:
        rows = [row.to(device) for row in examples(config, length, options, device, Path(scratch))]

    def step(index: int) -> None:
        row = rows[index % 2]
        with autocast(device, "bf16"):
            sums = forward(row)
        (sums[0] / row.hidden).backward()
        optimizers.step(1.0)

    return timed(step, options.steps, device, np.mean([row.tokens for row in rows]))


def train_theirs(name: str, config, length: int, options, device: torch.device) -> float:
    kind = FAMILIES[name].classes["masked",]
    model = counterpart(name, Pretraining(config, next_sentence=False), kind, attn_implementation="sdpa").to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(model) if options.compile else model
    with tempfile.TemporaryDirectory() as scratch:
        grids = [grid_of(row, name) for row in examples(config, length, options, torch.device("cpu"), Path(scratch))]
    grids = [{key: value.to(device) for key, value in grid.items()} for grid in grids]

    def step(index: int) -> None:
        with autocast(device, "bf16"):
            loss = forward(**grids[index % 2]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return timed(step, options.steps, device, float(np.mean([int(grid["attention_mask"].sum()) for grid in grids])))


def grid_of(row, name: str) -> dict[str, torch.Tensor]:
    """Returns a row's examples in the form that transformers takes."""
    bounds = row.batch.boundaries.unique().tolist()
    ends = [bound for bound in bounds if bound <= row.tokens]
    told = torch.full_like(row.batch.ids, NOTHING)
    told[row.places[: row.hidden]] = row.targets[: row.hidden]
    ids = [row.batch.ids[a:b].numpy() for a, b in pairwise(ends)]
    labels = [told[a:b].numpy() for a, b in pairwise(ends)]
    grid = padded(ids, [np.zeros_like(one) for one in ids])
    grid["labels"] = torch.full_like(grid["input_ids"], NOTHING)
    for index, one in enumerate(labels):
        grid["labels"][index, : len(one)] = torch.from_numpy(one)
    del grid["token_type_ids"]
    return grid


def texts(length: int, tokens: int) -> list[np.ndarray]:
    """Returns texts of mixed lengths, from an eighth of `length` to all of it."""
    draw = np.random.default_rng(0)
    sizes = draw.integers(length // 8, length + 1, tokens // (length // 2))
    return [draw.integers(5, PIECES, size) for size in sizes]


def read_ours(name: str, config, length: int, options, device: torch.device) -> float:
    network = Pretraining(config, masked=False, next_sentence=False).to(device).eval()
    several = texts(length, options.tokens)
    total = sum(map(len, several))
    shapes = Shapes(-(-total // 128) * 128, (length,), crowding=(len(several) + 0.5) * length / total)
    batch = lay(several, None, shapes).map(torch.from_numpy).to(device)
    encoder = compiled(network.encoder) if options.compile else network.encoder

    @torch.no_grad()
    def step(index: int) -> None:
        with autocast(device, "bf16"):
            encoder(batch)

    return timed(step, options.steps, device, total)


def read_theirs(name: str, config, length: int, options, device: torch.device) -> float:
    network = Pretraining(config, masked=False, next_sentence=False)
    model = counterpart(name, network, attn_implementation="sdpa").to(device).eval()
    several = texts(length, options.tokens)
    grid = padded(several, [np.zeros_like(one) for one in several])
    del grid["token_type_ids"]
    grid = {key: value.to(device) for key, value in grid.items()}
    forward = torch.compile(model) if options.compile else model

    @torch.no_grad()
    def step(index: int) -> None:
        with autocast(device, "bf16"):
            forward(**grid)

    return timed(step, options.steps, device, sum(map(len, several)))


def windows(length: int, device: torch.device) -> dict:
    """Times forward and backward of windowed attention over 32,768 tokens."""
    batch = lay([np.ones(length, np.int64)] * (32_768 // length)).map(torch.from_numpy).to(device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    qkv = torch.randn(32_768, 3, 12, 64, device=device, dtype=dtype, requires_grad=True)
    row = dict[str, float](length=length)
    for name, window in (("window 64", 64), ("window 256", 256), ("full", 0)):

        def step(index: int, window: int = window) -> None:
            attend(qkv, batch, 0.0, window=window).sum().backward()

        row[f"{name}, ms"] = 32_768 / timed(step, 5, device, 32_768) * 1000
    return row


def timed(step, steps: int, device: torch.device, tokens: float) -> float:
    """Returns tokens per second: the best of three measurements, after warm-up."""
    step(0)  # compiles
    with alone():
        seconds(step, 4, device)
        return float(tokens * steps / min(seconds(step, steps, device) for _ in range(3)))


def seconds(step, steps: int, device: torch.device) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else int
    wait()
    begin = time.perf_counter()
    for index in range(steps):
        step(index)
    wait()
    return time.perf_counter() - begin


def free() -> None:
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
