"""transformers' BERT with our weights, on padded batches: what the packed encoder is compared with."""

import numpy as np
import torch
import transformers

from bertkit.bundle import families
from bertkit.bundle.members import BERT
from bertkit.tasks.pretraining import Pretraining


def reference_of(network: Pretraining) -> transformers.BertForPreTraining:
    """transformers' model with the weights of a network that has both heads."""
    config = network.encoder.config
    settings = {k: v for k, v in families.write_config(config, BERT).items() if k != "model_type"}
    model = transformers.BertForPreTraining(transformers.BertConfig(**settings, attn_implementation="eager"))
    tensors = families.to_hugging_face(network.state_dict(), BERT, config.layers)[0]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert all(name.startswith("cls.predictions.decoder") for name in missing)
    model.tie_weights()
    return model.train(network.training)


def padded(sequences: list[np.ndarray], segments: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """The same sequences as a padded grid with its attention mask."""
    length = max(map(len, sequences))

    def grid(rows: list[np.ndarray]) -> torch.Tensor:
        return torch.tensor(np.stack([np.pad(row, (0, length - len(row))) for row in rows])).long()

    ones = [np.ones(len(row), np.int64) for row in sequences]
    return {"input_ids": grid(sequences), "token_type_ids": grid(segments), "attention_mask": grid(ones)}


def unpadded(values: torch.Tensor, sequences: list[np.ndarray]) -> torch.Tensor:
    """[B, L, …] → [T, …]"""
    return torch.cat([row[: len(sequence)] for row, sequence in zip(values, sequences, strict=True)])


def draw_sequences(
    sizes: list[int], vocabulary: int, segments: int = 2, seed: int = 0
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Random ids and segments of the given lengths; never id 0, whose embedding transformers gives no gradient."""
    draw = np.random.default_rng(seed)
    ids = [draw.integers(1, vocabulary, size) for size in sizes]
    return ids, [np.sort(draw.integers(0, segments, size)) for size in sizes]
