"""How fast is a pre-training step of BERT? bertkit and transformers' BertForPreTraining, in one process on one GPU.

Both get the same examples (next-sentence pairs, 15% masked), bf16 autocast, torch.compile, fused AdamW and clipping; bertkit
is also measured with its blocks' matrix multiplications in fp8. A step is the paper's 131,072 tokens for all, in as many
rows or batches as that takes.
transformers pads each example to the length and tries the batch sizes of --peer_tokens; its best one counts. Tokens are
those of the examples, without padding and filler. Several such processes started together compile in parallel and take turns
on the GPU, with its memory in use by one of them at a time.
"""

import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import transformers
from measure import alone, arguments, line_up, report
from support.stores import made_up_store

from bertkit.data.examples import NOTHING, ExampleSettings, ExampleSource, PretrainingBatch
from bertkit.model.config import Config, sized
from bertkit.model.device import compiled, flops_per_token, peak_flops
from bertkit.model.eight import in_eight_bits
from bertkit.tasks.pretraining import Pretraining
from bertkit.train.optimizer import Optimizers
from bertkit.train.recipe import Optimizer

DEVICE, PEER = torch.device("cuda"), "transformers, compiled"
STEP = 131_072  # tokens


def main() -> None:
    options = arguments(
        __doc__,
        size="base",
        steps=20,
        row_tokens=131_072,
        peer_tokens="16384,32768,65536,131072",
        lengths="128,512",
        dropouts="0.0,0.1",
        precisions="bf16,fp8",
    )
    line_up()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        store = made_up_store(Path(scratch) / "s", 4000, pieces=30_522, longest=400)
        for length in map(int, options.lengths.split(",")):
            source = ExampleSource(store, ExampleSettings(length=length), seed=0, tokens=options.row_tokens, grids=False)
            data = draw(source, 4)
            for dropout in map(float, options.dropouts.split(",")):
                config = sized(options.size, dropout=dropout, attention_dropout=dropout)
                found = {
                    f"bertkit, {precision}": measure_ours(config, data, options.steps, precision)
                    for precision in options.precisions.split(",")
                }
                found[PEER] = max(
                    (
                        measure_theirs(config, data, length, int(tokens), options.steps)
                        for tokens in options.peer_tokens.split(",")
                    ),
                    key=lambda result: result[0],
                )
                for name, (speed, memory) in found.items():
                    flops = flops_per_token(config, length, 0.15) * speed / (peak_flops(DEVICE) or 1)
                    row = {"length": length, "dropout": dropout, "model": name, "M tokens/s": speed / 1e6}
                    rows.append(row | {"of peak": f"{flops:.0%}", "GiB": memory, "×": speed / found[PEER][0]})
                    print(rows[-1], flush=True)
    report(f"Pre-training BERT-{options.size} on {torch.cuda.get_device_name()}, one step", rows)


def draw(source: ExampleSource, count: int) -> list[PretrainingBatch]:
    rows, cursor = [], 0
    for _ in range(count):
        examples, cursor = source.next_row(cursor)
        rows.append(source.batch(examples))
    return rows


def timed(step, steps: int, tokens: float) -> tuple[float, float]:
    """Returns tokens per second, the best of three measurements after warm-up, and the peak memory in GiB."""
    begin = time.perf_counter()
    compile_step(step)
    print(f"the first step took {time.perf_counter() - begin:.1f} s", flush=True)
    torch.cuda.reset_peak_memory_stats()
    with alone():
        seconds(step, 5)
        best = min(seconds(step, steps) for _ in range(3))
        torch.cuda.empty_cache()
    return tokens * steps / best, torch.cuda.max_memory_allocated() / 2**30


def compile_step(step, tries: int = 240) -> None:
    """Runs the first step, retrying while other processes hold the memory, and gives cached memory back."""
    for left in reversed(range(tries)):
        try:
            step(0)
            break
        except torch.OutOfMemoryError:
            if not left:
                raise
        torch.cuda.empty_cache()
        time.sleep(1)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def seconds(step, steps: int) -> float:
    """Times the steps with CUDA events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for index in range(steps):
        step(index)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000


def measure_ours(config: Config, data: list[PretrainingBatch], steps: int, precision: str) -> tuple[float, float]:
    free()
    step, tokens = measured_step(config, data, precision)
    started = time.perf_counter()
    result = timed(step, steps, tokens)
    print(f"bertkit, {precision}: {result[0]:,.0f} tokens/s, start to end {time.perf_counter() - started:.0f} s", flush=True)
    return result


def measured_step(config: Config, data: list[PretrainingBatch], precision: str) -> tuple[Callable[[int], None], float]:
    """Returns a step, and the number of tokens it reads on average."""
    torch.manual_seed(0)
    network = Pretraining(replace(config, vocabulary=30_522)).to(DEVICE).train()
    if precision == "fp8":
        in_eight_bits(network)
    optimizers = Optimizers(network, Optimizer())
    forward = compiled(network)
    rows, parts = [row.to(DEVICE) for row in data], max(1, STEP // len(data[0].batch.ids))

    def step(index: int) -> None:
        for part in range(parts):
            row = rows[(index + part) % len(rows)]
            with torch.autocast("cuda", torch.bfloat16):
                sums = forward(row)
            ((sums[0] / row.hidden + sums[1] / row.pairs) / parts).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizers.step(1.0)

    return step, parts * float(np.mean([row.tokens for row in data]))


def measure_theirs(
    config: Config, data: list[PretrainingBatch], length: int, batch_tokens: int, steps: int
) -> tuple[float, float]:
    free()
    sequences, parts = batch_tokens // length, max(1, STEP // batch_tokens)
    settings = transformers.BertConfig(
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=config.feedforward,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.attention_dropout,
        attn_implementation="sdpa",
    )
    model = transformers.BertForPreTraining(settings).to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    forward = torch.compile(model)
    grids = [padded(data[index % len(data)], length, sequences) for index in range(4)]
    tokens = parts * float(np.mean([int(grid["attention_mask"].sum()) for grid in grids]))

    def step(index: int) -> None:
        for part in range(parts):
            with torch.autocast("cuda", torch.bfloat16):
                loss = forward(**grids[(index + part) % len(grids)]).loss
            (loss / parts).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    result = timed(step, steps, tokens)
    print(f"transformers with {sequences} sequences: {result[0]:,.0f} tokens/s", flush=True)
    return result


def padded(row: PretrainingBatch, length: int, sequences: int) -> dict[str, torch.Tensor]:
    """Returns the first sequences of a row in the form that transformers takes."""
    bounds = row.batch.boundaries.tolist()
    targets = torch.full_like(row.batch.ids, NOTHING)
    targets[row.places[: row.hidden]] = row.targets[: row.hidden]
    grid = {
        name: torch.zeros(sequences, length, dtype=torch.int64) for name in ("input_ids", "token_type_ids", "attention_mask")
    }
    grid["labels"] = torch.full((sequences, length), NOTHING)
    for index in range(sequences):
        span = slice(bounds[index], bounds[index + 1])
        size = bounds[index + 1] - bounds[index]
        grid["input_ids"][index, :size] = row.batch.ids[span]
        grid["token_type_ids"][index, :size] = row.batch.segments[span]
        grid["attention_mask"][index, :size] = 1
        grid["labels"][index, :size] = targets[span]
    grid["next_sentence_label"] = row.labels[:sequences]
    return {name: tensor.to(DEVICE) for name, tensor in grid.items()}


def free() -> None:
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
