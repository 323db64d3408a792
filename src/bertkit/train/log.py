"""What a run logs: metrics.jsonl for machines, one live line for people."""

import json
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bertkit.atomic import write_text


class Log(AbstractContextManager):
    """Appends to metrics.jsonl and shows the newest line. On resuming, rows beyond `step` are dropped."""

    def __init__(self, run: Path, *, step: int = 0, quiet: bool = False, silent: bool = False):
        self.quiet, file = quiet or silent, run / "metrics.jsonl"
        if not silent:  # only rank 0 writes
            kept = [row for row in read_metrics(run) if row["step"] <= step]
            write_text(file, "".join(json.dumps(row) + "\n" for row in kept))
        self.stream = open(os.devnull if silent else file, "a", encoding="utf-8")  # noqa: SIM115 (closed by __exit__)

    def write(self, **row: Any) -> None:
        self.stream.write(json.dumps(row) + "\n")
        self.stream.flush()

    def show(self, text: str) -> None:
        """Replaces the live line on a terminal; elsewhere prints it."""
        if not self.quiet:
            end = "\r" if sys.stderr.isatty() else "\n"
            print(f"{text}\x1b[K" if end == "\r" else text, end=end, file=sys.stderr, flush=True)

    def __exit__(self, *error: object) -> None:
        self.stream.close()
        if not self.quiet and sys.stderr.isatty():
            print(file=sys.stderr)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Returns the rows of metrics.jsonl, without a last one that a crash cut off."""
    file = run / "metrics.jsonl"
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows
