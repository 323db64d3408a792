"""Reads TensorFlow 1 checkpoints, the format in which Google published BERT, without TensorFlow.

A checkpoint NAME consists of two kinds of file. NAME.index is a sorted table (LevelDB's format): blocks of key → entry,
an index block that locates them, a footer that locates the index block. Each entry (a protocol buffer) says where in
NAME.data-0000i-of-0000n a tensor's bytes are. Blocks and tensors carry CRC-32C checksums, which are all verified.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertkit.bundle.crc32c import masked_crc32c
from bertkit.errors import ArtifactError
from bertkit.text.protobuf import message, varints

MAGIC = 0xDB4775248B80FB57
FOOTER = 48  # bytes: the location of the meta and index blocks, zeros, the magic number
TRAILER = 5  # bytes after a block: its compression type and checksum
DTYPES = {code: np.dtype(name) for code, name in {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}.items()}
# The optimizer's variables, saved beside the weights.
SLOTS = re.compile(r"(/adam_[mv]|/Adam(_1)?|/lamb_[mv]|/Momentum|^global_step|^beta[12]_power|/ExponentialMovingAverage)$")


@dataclass(frozen=True)
class Entry:
    """A tensor's type, shape and location."""

    shape: tuple[int, ...]
    dtype: np.dtype | None  # None for types that BERT does not use
    shard: int
    offset: int
    size: int
    crc: int


def find_checkpoint(path: Path) -> Path | None:
    """Returns the checkpoint's name, without suffix, for a folder, an index file or a name; None if there is none."""
    if path.is_dir():
        found = sorted(path.glob("*.index"))
        if len(found) > 1:
            names = ", ".join(file.stem for file in found)
            chosen = path / found[-1].stem
            raise ArtifactError(f"{path}: several checkpoints here ({names}); name one of them, such as {chosen}")
        return found[0].with_suffix("") if found else None
    name = path.with_suffix("") if path.suffix == ".index" else path
    return name if name.with_name(name.name + ".index").is_file() else None


def read_checkpoint(name: Path) -> dict[str, np.ndarray]:
    """Returns the tensors as old Hugging Face files have them. The optimizer's are left out, but verified as well."""
    entries, shards = read_index(name)
    tensors = dict[str, np.ndarray]()
    for key, entry in entries.items():
        tensor = _tensor(name, key, entry, shards)
        if not SLOTS.search(key):
            tensors[hugging_face_name(key)] = tensor.T if key.endswith("/kernel") else tensor
    return tensors


def hugging_face_name(name: str) -> str:
    """Returns a variable's name in old Hugging Face files, where a kernel is a weight and transposed."""
    words = re.sub(r"\.layer_(\d+)\.", r".layer.\1.", name.replace("/", "."))
    words = re.sub(r"_embeddings$", "_embeddings.weight", words)
    words = re.sub(r"\.output_bias$", ".bias", words)
    return re.sub(r"\.(kernel|output_weights)$", ".weight", words)


def read_index(name: Path) -> tuple[dict[str, Entry], int]:
    """Returns every tensor's entry, the optimizer's included, and the number of data files."""
    file = name.with_name(name.name + ".index")
    table = file.read_bytes()
    try:
        rows = dict(_rows(table))
        header = message(rows.pop(b""))
        if header.get(2, [0])[0] != 0:
            raise ArtifactError("the checkpoint is big-endian; expected little-endian")
        entries = {key.decode(): _entry(message(value)) for key, value in rows.items()}
    except (IndexError, KeyError, ValueError, TypeError, OverflowError) as error:
        found = error if isinstance(error, ArtifactError) else "the index is damaged"
        raise ArtifactError(f"{file}: {found}; fetch the file again") from error
    return entries, header[1][0]


def _rows(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields all keys and values of a table, in order."""
    if len(table) < FOOTER or int.from_bytes(table[-8:], "little") != MAGIC:
        raise ArtifactError("the index is cut off, or no TensorFlow index at all")
    footer = table[-FOOTER:-8]
    (meta, meta_size, index, index_size), place = varints(footer, 0, 4)
    if any(footer[place:]) or index + index_size + TRAILER != len(table) - FOOTER:
        raise ArtifactError("the footer of the index is damaged")
    list(_block(table, meta, meta_size))  # empty, but verified like the others
    for _, handle in _block(table, index, index_size):
        (offset, size), _ = varints(handle, 0, 2)
        yield from _block(table, offset, size)


def _block(table: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yields the rows of a block, in which each key is stored without the prefix it shares with the one before."""
    content, trailer = table[offset : offset + size], table[offset + size : offset + size + TRAILER]
    if len(trailer) < TRAILER or masked_crc32c(content + trailer[:1]) != int.from_bytes(trailer[1:], "little"):
        raise ArtifactError("a block of the index fails its checksum")
    if trailer[0] != 0:
        raise ArtifactError(f"the index is compressed (kind {trailer[0]}); expected a plain one, as TensorFlow writes")
    restarts = int.from_bytes(content[-4:], "little")
    end, place, key = len(content) - 4 * (restarts + 1), 0, b""
    while place < end:
        (shared, fresh, length), place = varints(content, place, 3)
        key = key[:shared] + content[place : place + fresh]
        yield key, content[place + fresh : place + fresh + length]
        place += fresh + length


def _entry(fields: dict[int, list]) -> Entry:
    dimensions = message(fields.get(2, [b""])[0]).get(2, [])
    shape = tuple(message(dimension).get(1, [0])[0] for dimension in dimensions)
    number = {name: fields.get(field, [0])[0] for name, field in dict(shard=3, offset=4, size=5, crc=6).items()}
    return Entry(shape, DTYPES.get(fields.get(1, [0])[0]), **number)


def _tensor(name: Path, key: str, entry: Entry, shards: int) -> np.ndarray:
    file = name.with_name(f"{name.name}.data-{entry.shard:05d}-of-{shards:05d}")
    if entry.dtype is None or entry.size != entry.dtype.itemsize * int(np.prod(entry.shape, dtype=object)):
        raise ArtifactError(f"{file}: {key} has an unknown kind or a size that does not fit its shape {list(entry.shape)}")
    if not file.is_file():
        raise ArtifactError(f"{file}: no such file; the checkpoint's weights are missing")
    if file.stat().st_size < entry.offset + entry.size:
        raise ArtifactError(f"{file}: cut off before the end of {key}; fetch the file again")
    values = np.fromfile(file, np.uint8, entry.size, offset=entry.offset)
    if masked_crc32c(values) != entry.crc:
        raise ArtifactError(f"{file}: {key} fails its checksum; fetch the file again")
    return values.view(entry.dtype).reshape(entry.shape)
