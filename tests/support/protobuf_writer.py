"""Writes protocol buffers and SentencePiece's .model files, so that their readers can be tested on any content."""

import struct
from pathlib import Path


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number: int, value: int | float | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def write_sentencepiece(file: Path, pieces: list[tuple[str, float]], unk: int, charsmap: bytes = b"", kind: int = 1) -> None:
    """Pieces of score 0 go without it, as a field left at its default does."""
    rows = (field(1, piece.encode()) + (field(2, score) if score else b"") for piece, score in pieces)
    trainer, normalizer = field(3, kind) + field(40, unk), field(1, b"made for tests") + field(2, charsmap)
    file.write_bytes(b"".join(field(1, row) for row in rows) + field(2, trainer) + field(3, normalizer))
