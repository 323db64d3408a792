"""Progress bars with the time left, on standard error, if it is a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Show = Callable[..., None]  # takes the amount done so far and an optional note


def show_nothing(done: float, note: str = "") -> None:
    """Does nothing, where there is no terminal."""


@contextmanager
def bar(title: str, total: float | None = None, unit: str = "") -> Iterator[Show]:
    """Yields a function that takes the amount of `total` done so far; bytes are shown with their rate. Without a total, the
    bar only moves."""
    if not sys.stderr.isatty():
        yield show_nothing
        return
    from rich import progress
    from rich.console import Console

    of_bytes = [progress.DownloadColumn(), progress.TransferSpeedColumn()]
    done = of_bytes if unit == "bytes" else [progress.MofNCompleteColumn()]
    times = [progress.TimeElapsedColumn(), progress.TextColumn("eta"), progress.TimeRemainingColumn()]
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), *done, *times)
    with progress.Progress(*columns, console=Console(stderr=True)) as live:
        task = live.add_task(title, total=total)
        yield lambda done, note="": live.update(task, completed=done, description=f"{title} {note}".rstrip())
