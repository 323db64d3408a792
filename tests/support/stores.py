"""Stores made up without text: random ids, some often, most rarely, in sentences and documents of random lengths."""

from pathlib import Path

import numpy as np

from bertkit.data.store import Piece, Store, write_manifest, write_shard
from bertkit.text.tokenizer import SPECIALS, Tokenizer


def made_up_tokenizer(pieces: int = 2000) -> Tokenizer:
    """Five special pieces, then words and, every third, continuations."""
    return Tokenizer.from_vocabulary(
        [*SPECIALS, *(f"{'##' if i % 3 == 2 else ''}w{i}" for i in range(pieces - 5))], cased=False
    )


def made_up_store(
    folder: Path, documents: int, *, shards: int = 2, seed: int = 0, pieces: int = 2000, longest: int = 60
) -> Store:
    """Sentences of 3 to 60 tokens, mostly short; documents of 1 to `longest` sentences."""
    draw = np.random.default_rng(seed)
    tokenizer = made_up_tokenizer(pieces)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer").mkdir()
    tokenizer.write_files(folder / "tokenizer")
    written = []
    for index in range(shards):
        counts = np.minimum(1 + draw.geometric(3.6 / longest, documents // shards), longest)
        sizes = np.minimum(2 + draw.geometric(0.06, counts.sum()), 60)
        ids = (5 + np.minimum(draw.zipf(1.3, sizes.sum()), len(tokenizer) - 5) - 1).astype(np.uint16)
        written.append(write_shard(folder, index, [Piece(ids, sizes, counts)]))
    write_manifest(folder, written, np.dtype(np.uint16), {"settings": {}, "dropped": {}})
    return Store(folder)


def unigram_entropy(store: Store) -> float:
    """The loss, in nats, of guessing each piece by its frequency."""
    counts = np.bincount(store.ids_at(np.arange(store.tokens)), minlength=1)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
