"""How fast does text become a store, and a store batches? The whole real corpus with one worker, then rows of examples."""

import os
import tempfile
import time
from pathlib import Path

from measure import arguments, data, report

from bertkit import Corpus, Tokenizer
from bertkit.data.examples import ExampleSettings, ExampleSource, Masking
from bertkit.data.prepare import prepare_store
from bertkit.data.store import Store


def main() -> None:
    options = arguments(__doc__, rows=60, row_tokens=16_384)
    tokenizer = Tokenizer.load(data() / "weights" / "vocabs" / "bert-base-uncased")
    with tempfile.TemporaryDirectory() as scratch:
        size = sum(len(document.text.encode()) for document in Corpus([data() / "corpus"])) / 1e6
        start = time.perf_counter()
        store, peak = prepared(tokenizer, Path(scratch) / "store")
        seconds = time.perf_counter() - start
        row = {"raw MB": size, "seconds": seconds, "MB/s": size / seconds, "peak MB": peak, "M tokens": store.tokens / 1e6}
        report("Preparing the whole corpus: reading, sentences, ids, store; one worker", [row])
        report("Ready pre-training batches from it, one core", list(batches(store, options.rows, options.row_tokens)))


def prepared(tokenizer: Tokenizer, out: Path) -> tuple[Store, float]:
    """Prepares the store in a process of its own, and returns it with the process's peak memory in MB."""
    child = os.fork()
    if child == 0:
        prepare_store(Corpus([data() / "corpus"]), tokenizer, out)
        os._exit(0)
    _, status, usage = os.wait4(child, 0)
    assert status == 0
    return Store(out), usage.ru_maxrss / 1e3


def batches(store: Store, rows: int, row_tokens: int):
    for length in (128, 512):
        for pairs, scheme in (("next", "piece"), ("next", "whole-word"), ("next", "span"), ("none", "piece")):
            settings = ExampleSettings(
                pairs=pairs, length=length, short=0.1 if pairs == "next" else 0.0, masking=Masking(scheme=scheme)
            )
            start = time.perf_counter()
            source = ExampleSource(store, settings, seed=0, tokens=row_tokens, grids=False)
            planning = time.perf_counter() - start
            start, tokens, cursor = time.perf_counter(), 0, 0
            for _ in range(rows):
                examples, cursor = source.next_row(cursor)
                tokens += source.batch(examples).tokens
            speed = tokens / (time.perf_counter() - start) / 1e6
            fill = tokens / (rows * row_tokens)
            yield {
                "length": length,
                "pairs": pairs,
                "masks": scheme,
                "M tokens/s": speed,
                "row filled": f"{fill:.1%}",
                "epoch planned in s": planning,
            }


if __name__ == "__main__":
    main()
