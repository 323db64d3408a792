"""One look for all long work: a bar with the rate and the time left, on a terminal's standard error only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Show = Callable[..., None]  # takes how much is done so far, and maybe a word on it


def show_nothing(done: float, note: str = "") -> None:
    """Where nobody is watching."""


@contextmanager
def bar(title: str, total: float | None = None, unit: str = "") -> Iterator[Show]:
    """Yields a function that takes how much of `total` is done so far; bytes are shown as such. Without a total the bar only
    moves."""
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
