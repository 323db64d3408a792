"""Reads SentencePiece .model files, as published with ALBERT and DeBERTa, without the sentencepiece package."""

from pathlib import Path

import numpy as np

from bertkit.errors import ArtifactError
from bertkit.text.protobuf import message

UNIGRAM = 1  # a model_type; the others are BPE, word and char


def read_sentencepiece(file: Path) -> tuple[list[tuple[str, float]], int, bytes]:
    """Returns the pieces with their scores in order of their ids, the unknown piece's id, and the compiled character
    normalization, which may be empty: from fields 1 (pieces), 2 (trainer_spec) and 3 (normalizer_spec) of a ModelProto."""
    try:
        model = message(file.read_bytes())
        trainer, normalizer = message(model[2][0]), message(model[3][0])
        pieces = [message(piece) for piece in model[1]]
        scores = np.array([piece.get(2, [0])[0] for piece in pieces], np.uint32).view(np.float32).tolist()
        names = [piece[1][0].decode() for piece in pieces]
        unk = trainer.get(40, [0])[0]
        names[unk]  # raises if there is no such piece
    except (IndexError, KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ArtifactError("no SentencePiece model, or a damaged one; fetch the file again") from error
    if trainer.get(3, [UNIGRAM])[0] != UNIGRAM:
        raise ArtifactError(f"a SentencePiece model of kind {trainer[3][0]}; expected kind {UNIGRAM}, Unigram")
    return list(zip(names, scores, strict=True)), unk, normalizer.get(2, [b""])[0]
