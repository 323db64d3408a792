"""Finds duplicate documents, with only one part in 256 of the hashes in memory at a time.

Each document's hash is appended to one of 256 files on disk, chosen by its first byte; each file then fits into memory and
is sorted by itself. The first occurrence in the corpus is kept.
"""

import hashlib
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from bertkit.atomic import beside

ROW = np.dtype([("hash", "S16"), ("document", "<i8")])


def duplicate_documents(texts: Iterable[str], scratch: Path) -> set[int]:
    """Returns the indices of documents that equal an earlier one up to white space."""
    with beside(scratch / "hashes") as folder, ExitStack() as stack:
        folder.mkdir()
        files = [stack.enter_context(open(folder / f"{byte:02x}", "w+b")) for byte in range(256)]
        for number, text in enumerate(texts):
            digest = hashlib.blake2b(" ".join(text.split()).encode(), digest_size=16).digest()
            files[digest[0]].write(digest + number.to_bytes(8, "little"))
        later = set[int]()
        for file in files:
            file.seek(0)
            rows = np.frombuffer(file.read(), ROW)
            _, first = np.unique(rows["hash"], return_index=True)
            later.update(np.delete(rows["document"], first).tolist())
    return later
