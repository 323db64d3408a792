"""What every benchmark needs: real data, the machine's name, a table, and a JSON line."""

import argparse
import fcntl
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the checkpoint writer


def data() -> Path:
    """The folder with real tasks, corpus and weights; without it a benchmark on real data cannot run."""
    folder = os.environ.get("BERTKIT_DATA")
    if not folder:
        print(f"{Path(sys.argv[0]).name}: skipped, needs real data: set BERTKIT_DATA to a folder with corpus/ and weights/")
        sys.exit(0)
    return Path(folder)


def texts(megabytes: float) -> Iterator[str]:
    """Documents of the real corpus, a file at a time in turn, up to a size in UTF-8."""
    from bertkit.text.corpus import Corpus

    left = megabytes * 1e6
    for document in Corpus([data() / "corpus"]):
        yield document.text
        left -= len(document.text.encode())
        if left <= 0:
            return


def machine() -> str:
    """Processor, cores and versions, for the head of a result."""
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


@contextmanager
def alone() -> Iterator[None]:
    """A turn on the accelerator: benchmarks started together compile side by side, and are timed one after the other."""
    with (Path(tempfile.gettempdir()) / "bertkit-benchmark.turn").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield


def arguments(description: str, **defaults: float | str) -> argparse.Namespace:
    """Numbers that may be changed on the command line."""
    parser = argparse.ArgumentParser(description=description)
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    return parser.parse_args()
