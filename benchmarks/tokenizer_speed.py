"""How fast is a corpus encoded? The corpus encoder compared with the library's two batch calls on one thread."""

import os

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import time
from collections.abc import Callable

import numpy as np
from measure import arguments, data, report, texts

from bertkit import CorpusEncoder, Tokenizer

BATCH = 64  # documents


def main() -> None:
    options = arguments(__doc__, megabytes=330.0)
    documents = list(texts(options.megabytes))
    size = sum(len(text.encode()) for text in documents) / 1e6
    for name in ("bert-base-uncased", "bert-base-cased"):
        tokenizer = Tokenizer.load(data() / "weights" / "vocabs" / name)
        report(f"Encoding {size:.0f} MB with {name}, one thread", compare(tokenizer, documents, size))


def compare(tokenizer: Tokenizer, documents: list[str], size: float) -> list[dict]:
    encoder, backend = CorpusEncoder(tokenizer), tokenizer._backend

    def ids_of(call: Callable) -> Callable[[list[str]], np.ndarray]:
        return lambda batch: np.concatenate([np.array(e.ids, np.int32) for e in call(batch, add_special_tokens=False)])

    ways = {
        "corpus encoder, cold": lambda batch: encoder.encode(batch)[0],
        "corpus encoder, warm": lambda batch: encoder.encode(batch)[0],
        "encode_batch": ids_of(backend.encode_batch),
        "encode_batch_fast": ids_of(backend.encode_batch_fast),
    }
    found = {name: run(way, documents) for name, way in ways.items()}
    assert len({checksum for _, checksum, _ in found.values()}) == 1, "the ways differ in their ids"
    slow = found["encode_batch"][0]
    return [
        {"way": name, "MB/s": size / seconds, "M pieces/s": pieces / seconds / 1e6, "× encode_batch": slow / seconds}
        for name, (seconds, _, pieces) in found.items()
    ]


def run(way: Callable[[list[str]], np.ndarray], documents: list[str]) -> tuple[float, int, int]:
    """Returns the seconds, a checksum of all ids in order, and their number."""
    seconds, checksum, pieces = 0.0, 0, 0
    for begin in range(0, len(documents), BATCH):
        start = time.perf_counter()
        ids = way(documents[begin : begin + BATCH])
        seconds += time.perf_counter() - start
        checksum = hash((checksum, ids.tobytes()))
        pieces += len(ids)
    return seconds, checksum, pieces


if __name__ == "__main__":
    main()
