"""Finds documents that occurred before, in memory that does not grow with the corpus.

Every document's hash is appended to one of 256 files on disk by its first byte; each file then fits into memory and is
sorted on its own. The first in the order of the corpus stays.
"""

import hashlib
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from bertkit.atomic import beside

ROW = np.dtype([("hash", "S16"), ("document", "<i8")])


def duplicate_documents(texts: Iterable[str], scratch: Path) -> set[int]:
    """The numbers of documents whose words are those of an earlier one; white space does not count."""
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
