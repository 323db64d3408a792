"""How much memory and time does learning a vocabulary take? For the real corpus, and for 50 million distinct words."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import arguments, report


def main() -> None:
    options = arguments(__doc__, words=50_000_000)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        if folder := os.environ.get("BERTKIT_DATA"):
            rows.append({"corpus": "real corpus", **learn(Path(folder) / "corpus", Path(scratch))})
        distinct = Path(scratch) / "distinct.txt"
        write_distinct(distinct, options.words)
        rows.append({"corpus": f"{options.words:,} distinct words", **learn(distinct, Path(scratch))})
    report("Learning a vocabulary of 30,522 pieces", rows)


def write_distinct(file: Path, words: int) -> None:
    """Writes every word once: a number scattered over 40 bits, in hexadecimal."""
    with open(file, "w") as stream:
        for begin in range(0, words, 10_000):
            line = (f"w{index * 2654435761 % 2**40:x}" for index in range(begin, min(begin + 10_000, words)))
            stream.write(" ".join(line) + "\n\n")


def learn(corpus: Path, scratch: Path) -> dict:
    """Runs the command as a user would, and returns its time and its peak memory."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "bertkit", "vocab", str(corpus), "--out", str(scratch / "tokenizer")]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0
    return {"seconds": time.perf_counter() - start, "peak MB": usage.ru_maxrss / 1e3}


if __name__ == "__main__":
    main()
