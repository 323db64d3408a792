"""How long does it take to read a TensorFlow 1 checkpoint of BERT-base, with every checksum verified?"""

import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from measure import report
from support.checkpoint_writer import write_checkpoint

import bertkit
from bertkit.bundle import families, members
from bertkit.bundle.google import read_checkpoint
from bertkit.tasks.pretraining import Pretraining


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_base(folder)
        start = time.perf_counter()
        tensors = read_checkpoint(folder / "bert_model.ckpt")
        read = time.perf_counter() - start
        size = sum(tensor.nbytes for tensor in tensors.values()) / 1e6
        start = time.perf_counter()
        bertkit.load(folder)
        loaded = time.perf_counter() - start
    rows = [{"step": "check and read", "seconds": read, "MB/s": size / read}]
    rows += [{"step": "load as a model", "seconds": loaded, "MB/s": size / loaded}]
    report(f"A TensorFlow checkpoint of BERT-base, {size:.0f} MB", rows)


def write_base(folder: Path) -> None:
    """Writes BERT-base with random weights, under Google's names."""
    config = bertkit.sized("base")
    theirs = families.to_hugging_face(Pretraining(config).state_dict(), members.BERT, config.layers)[0]
    write_checkpoint(folder / "bert_model.ckpt", dict(google_variable(name, tensor) for name, tensor in theirs.items()))
    settings = families.write_config(config, members.BERT)
    (folder / "bert_config.json").write_text(
        json.dumps({key: value for key, value in settings.items() if key != "model_type"})
    )
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{index}" for index in range(config.vocabulary - 5))]
    (folder / "vocab.txt").write_text("\n".join(pieces))


def google_variable(name: str, tensor: torch.Tensor) -> tuple[str, np.ndarray]:
    """The inverse of google.hugging_face_name, for the names of a BERT."""
    values = tensor.numpy().astype("<f4")
    name = name.replace("encoder.layer.", "encoder.layer_")
    if "LayerNorm" in name:
        name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
    elif "embeddings" in name:
        name = name.removesuffix(".weight")
    elif name.startswith("cls.seq_relationship"):
        name = name.replace(".weight", ".output_weights").replace(".bias", ".output_bias")
    elif name == "cls.predictions.bias":
        name = "cls.predictions.output_bias"
    elif name.endswith(".weight"):
        name, values = name.removesuffix("weight") + "kernel", values.T
    return name.replace(".", "/"), values


if __name__ == "__main__":
    main()
