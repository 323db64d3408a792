"""Writes TensorFlow 1 checkpoints, so that the reader can be tested on any content."""

import json
from pathlib import Path

import numpy as np

from bertkit.bundle.crc32c import masked_crc32c
from bertkit.bundle.google import DTYPES, MAGIC
from bertkit.text.tokenizer import SPECIALS
from support.protobuf_writer import field, varint

WORDS = ["all", "work", "and", "no", "play", "makes", "jack", "a", "dull", "boy"]
CONFIG = {
    "vocab_size": 15,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}


def write_google_folder(folder: Path) -> None:
    """A tiny BERT as Google publishes it: config, vocabulary and checkpoint."""
    folder.mkdir(exist_ok=True)
    write_checkpoint(folder / "bert_model.ckpt", variables())
    (folder / "bert_config.json").write_text(json.dumps(CONFIG))
    (folder / "vocab.txt").write_text("\n".join([*SPECIALS, *WORDS]))


def variables(seed: int = 0) -> dict[str, np.ndarray]:
    """The variables of a BERT as Google names them, with random values and optimiser slots."""
    draw, width, inner = np.random.default_rng(seed), CONFIG["hidden_size"], CONFIG["intermediate_size"]
    shapes = {
        f"bert/embeddings/{name}_embeddings": (size, width)
        for name, size in (("word", 15), ("position", 16), ("token_type", 2))
    }
    norms, dense = ["bert/embeddings/LayerNorm", "cls/predictions/transform/LayerNorm"], {}
    for layer in range(CONFIG["num_hidden_layers"]):
        root = f"bert/encoder/layer_{layer}"
        norms += [f"{root}/attention/output/LayerNorm", f"{root}/output/LayerNorm"]
        dense |= {f"{root}/attention/self/{name}": (width, width) for name in ("query", "key", "value")}
        dense |= {f"{root}/attention/output/dense": (width, width), f"{root}/intermediate/dense": (width, inner)}
        dense |= {f"{root}/output/dense": (inner, width)}
    dense |= {"bert/pooler/dense": (width, width), "cls/predictions/transform/dense": (width, width)}
    for name, shape in dense.items():
        shapes |= {f"{name}/kernel": shape, f"{name}/bias": shape[1:]}
    for name in norms:
        shapes |= {f"{name}/gamma": (width,), f"{name}/beta": (width,)}
    shapes |= {"cls/predictions/output_bias": (15,), "cls/seq_relationship/output_weights": (2, width)}
    shapes |= {"cls/seq_relationship/output_bias": (2,)}
    weights = {name: draw.normal(size=shape).astype("<f4") for name, shape in shapes.items()}
    slots = {f"{name}/adam_{moment}": draw.normal(size=shapes[name]).astype("<f4") for name in shapes for moment in "mv"}
    return weights | slots | {"global_step": np.array(7, "<i8")}


def write_checkpoint(name: Path, tensors: dict[str, np.ndarray], rows_per_block: int = 16) -> None:
    """NAME.index and NAME.data-00000-of-00001 with the given tensors, keys sorted as TensorFlow does."""
    rows, offset = [(b"", field(1, 1) + field(3, field(1, 1)))], 0
    with open(name.with_name(name.name + ".data-00000-of-00001"), "wb") as data:
        for key, tensor in sorted(tensors.items()):
            content = np.ascontiguousarray(tensor).tobytes()
            shape = b"".join(field(2, field(1, size)) for size in tensor.shape)
            entry = field(1, CODES[tensor.dtype]) + field(2, shape) + field(4, offset) + field(5, len(content))
            entry += varint(6 << 3 | 5) + masked_crc32c(content).to_bytes(4, "little")
            rows.append((key.encode(), entry))
            data.write(content)
            offset += len(content)
    name.with_name(name.name + ".index").write_bytes(_table(rows, rows_per_block))


def _table(rows: list[tuple[bytes, bytes]], rows_per_block: int) -> bytes:
    table, handles = b"", []
    for begin in range(0, len(rows), rows_per_block):
        block = rows[begin : begin + rows_per_block]
        table, handle = _append(table, block)
        handles.append((block[-1][0] + b"~", handle))
    table, meta = _append(table, [])
    table, index = _append(table, handles)
    return table + (meta + index).ljust(40, b"\0") + MAGIC.to_bytes(8, "little")


def _append(table: bytes, rows: list[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    content, last = b"", b""
    for key, value in rows:
        shared = next((i for i, (a, b) in enumerate(zip(key, last, strict=False)) if a != b), min(len(key), len(last)))
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    content += bytes(4) + (1).to_bytes(4, "little")
    handle = varint(len(table)) + varint(len(content))
    return table + content + b"\0" + masked_crc32c(content + b"\0").to_bytes(4, "little"), handle
