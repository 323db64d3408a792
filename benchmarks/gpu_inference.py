"""How fast does a GPU turn texts into vectors? bertkit compared with transformers with SDPA, compiled and not.

Encoded texts in, mean-pooled vectors out, in bf16, on the same real texts of mixed lengths: sentences of SST-2 and MRPC,
paragraphs of SQuAD. transformers gets them sorted by length, padded to a multiple of 64, in the best of three batch sizes.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from measure import alone, arguments, line_up, minilm, mixed_texts, report

from bertkit.bundle.runner import Runner
from bertkit.data.engines import threads_for
from bertkit.data.packing import Shapes, batches
from bertkit.model.config import sized
from bertkit.tasks.pretraining import Pretraining
from bertkit.text.tokenizer import Tokenizer

PIECES, LONGEST = 30_522, 512
SHAPES = {"MiniLM": dict(layers=6, width=384, heads=12, feedforward=1536), "base": {}}
Read = Callable[[list[np.ndarray]], object]


def main() -> None:
    options = arguments(__doc__, sizes="MiniLM,base", texts=16_384, rounds=3, budget=0, tokenizer="")
    line_up()
    tokenizer = Tokenizer.load(options.tokenizer or minilm())
    texts = [np.asarray(one.ids) for one in tokenizer.encode_batch(mixed_texts(options.texts), max_length=LONGEST)]
    tokens, rows = sum(map(len, texts)), []
    for size in options.sizes.split(","):
        systems = make_systems(size, texts, options.budget)
        for read in systems.values():
            read(texts)  # compiles, and warms up
        speeds = {name: tokens / min(seconds(read, texts) for _ in range(options.rounds)) for name, read in systems.items()}
        peer = speeds["transformers, compiled"]
        rows += [{"size": size, "system": name, "M tokens/s": v / 1e6, "×": v / peer} for name, v in speeds.items()]
        print(*rows[-len(speeds) :], sep="\n", flush=True)
    mean = tokens / len(texts)
    report(f"{len(texts):,} texts of {mean:.0f} pieces on average, on {torch.cuda.get_device_name()}, bf16", rows)


def make_systems(size: str, texts: list[np.ndarray], budget: int) -> dict[str, Read]:
    config = sized("base", vocabulary=PIECES, pooler=False, **SHAPES[size])
    network = Pretraining(config, masked=False, next_sentence=False)
    theirs = transformers.BertModel(
        transformers.BertConfig(
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.feedforward,
            attn_implementation="sdpa",
        ),
        add_pooling_layer=False,
    )
    theirs = theirs.cuda().eval().bfloat16()
    fast = torch.compile(theirs, dynamic=True)
    return {
        "transformers": best(theirs, texts),
        "transformers, compiled": best(fast, texts),
        "bertkit": ours(Runner(network, "cuda", "bf16"), budget),
        "bertkit, compiled": ours(Runner(network, "cuda", "bf16", compile=True), budget),
    }


def ours(runner: Runner, budget: int) -> Read:
    """Returns a function that embeds texts in batches of `budget` tokens, or of the runner's own budget if it is 0."""
    budget = budget or runner.budget
    shapes = Shapes(budget, (32, 64, 128, 256, LONGEST), 3.0) if runner.compiled else None
    cut: dict[str, Any] = dict(budget=budget, shapes=shapes, grids=runner.grids, threads=threads_for(runner.device))
    return lambda texts: list(batches(texts, None, lambda batch: runner.pooled(batch, "mean"), **cut))


def best(model, texts: list[np.ndarray]) -> Read:
    """Returns a function that embeds texts with transformers, in the fastest of three batch sizes."""
    some = texts[:: max(1, len(texts) // 1024)]
    found = {}
    for size in (32, 128, 512):
        padded(model, some, size)
        found[size] = seconds(partial(padded, model, size=size), some)
    chosen = min(found, key=lambda size: found[size])
    return lambda texts: padded(model, texts, chosen)


@torch.inference_mode()
def padded(model, texts: list[np.ndarray], size: int) -> list[torch.Tensor]:
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    vectors = []
    for begin in range(0, len(order), size):
        members = [texts[index] for index in order[begin : begin + size]]
        length = min(LONGEST, -(-len(members[0]) // 64) * 64)
        ids, mask = np.zeros((len(members), length), np.int64), np.zeros((len(members), length), np.int64)
        for row, one in enumerate(members):
            ids[row, : len(one)], mask[row, : len(one)] = one, 1
        seen = torch.from_numpy(mask).cuda(non_blocking=True)
        states = model(input_ids=torch.from_numpy(ids).cuda(non_blocking=True), attention_mask=seen).last_hidden_state
        vectors.append(((states * seen[..., None]).sum(1) / seen.sum(1, keepdim=True)).float().cpu())
    return vectors


def seconds(read: Read, texts: list[np.ndarray]) -> float:
    with alone():
        torch.cuda.synchronize()
        begin = time.perf_counter()
        read(texts)
        torch.cuda.synchronize()
        return time.perf_counter() - begin


if __name__ == "__main__":
    main()
