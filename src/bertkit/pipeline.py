"""READ THIS FIRST: the journey, a function a stage.

text ─learn_vocabulary→ tokenizer ─create→ a model with random weights
somebody's checkpoint ─convert→ the artifact ─bertkit.load→ answers
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import InputError

if TYPE_CHECKING:
    from bertkit.serve.predictor import Model
    from bertkit.text.tokenizer import Tokenizer
    from bertkit.text.vocabulary import Learned


def learn_vocabulary(
    corpus: Sequence[Path | str],
    size: int,
    out: Path | str,
    *,
    cased: bool = False,
    bad: str = "stop",
    max_line: int | None = None,
) -> Learned:
    """Learns a WordPiece vocabulary of `size` pieces from files and folders, and saves its tokenizer to `out`."""
    from bertkit.text import corpus as reader
    from bertkit.text import vocabulary

    if not corpus:
        raise InputError("no corpus given; expected at least one file or folder")
    documents = reader.Corpus(corpus, bad=bad, max_line=max_line or reader.MAX_LINE)
    learned = vocabulary.learn_vocabulary(documents, size, cased=cased)
    learned.tokenizer.save(out)
    return learned


def create(size: str, tokenizer: Tokenizer, *, seed: int = 0, **changes: Any) -> Model:
    """A new model of a named size (tiny … large) with random weights, the same for the same seed."""
    import torch

    from bertkit.bundle.bundle import Bundle
    from bertkit.model.config import sized
    from bertkit.serve.predictor import Model
    from bertkit.tasks.pretraining import Pretraining

    config = sized(size, **{"vocabulary": len(tokenizer), **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Pretraining(config)
    return Model(Bundle(network, tokenizer, provenance={"source": f"random weights, seed {seed}"}), device="cpu")


def convert(source: Path | str, out: Path | str) -> Model:
    """Reads anybody's checkpoint (Hugging Face, Google) and writes it as an artifact."""
    from bertkit.serve.predictor import load

    model = load(source, device="cpu")
    model.save(out)
    return model
