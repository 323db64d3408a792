"""Runs units of work in this process, in worker processes or on a Ray cluster. Results come in order."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from itertools import cycle
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from bertkit.errors import InputError, import_extra

Worker = Callable[[Any], Any]
Run = Callable[[Iterable[Any]], Iterator[Any]]


MANY = 256  # texts at which a thread starts to pay off


@contextmanager
def local(make: Callable[[], Worker], workers: int) -> Iterator[Run]:
    """Yields a runner with one worker in this process, or several in their own processes; each is made once."""
    if workers == 1:
        worker = make()
        yield lambda units: map(worker, units)
        return
    pool = processes(make, workers)
    try:
        with alive():
            yield lambda units: map(Future.result, _begun(units, lambda unit: pool.submit(work, unit), 2 * workers))
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def alive() -> Iterator[None]:
    """Turns the death of a worker process into an InputError that says what to do."""
    try:
        yield
    except BrokenProcessPool as error:
        raise InputError("a worker was killed, perhaps for memory; run again with fewer --workers") from error


class _Process(SpawnProcess):
    """Ends by SIGKILL, because it blocks SIGTERM."""

    terminate = SpawnProcess.kill


class _Context(SpawnContext):
    Process = _Process


def processes(make: Callable[[], Worker], workers: int) -> ProcessPoolExecutor:
    """Starts processes that each make one worker; `work` calls it."""
    pool = ProcessPoolExecutor(workers, mp_context=_Context(), initializer=_start, initargs=(make,))
    with _deaf():
        for _ in range(workers):
            pool.submit(int)  # starts a process
    return pool


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes started in this block ignore Ctrl-C and SIGTERM, which are sent to all processes of a job: their parent,
    which receives the signal after the block, ends them."""
    if os.name == "nt":  # Windows has no signal masks
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def ray(make: Callable[[], Worker], workers: int) -> Iterator[Run]:
    """Yields a runner with actors on the Ray cluster given by RAY_ADDRESS or `ray start`; else on a local cluster."""
    library = import_extra("ray", "ray", "--engine ray")
    mine = not library.is_initialized()
    if mine:
        library.init(log_to_driver=False, logging_level="error")
    actor = library.remote(num_cpus=1)(_Actor)
    actors = [actor.remote(make) for _ in range(workers)]
    turns = cycle(actors)
    try:
        yield lambda units: map(library.get, _begun(units, lambda unit: next(turns).work.remote(unit), 2 * workers))
    finally:
        for each in actors:
            library.kill(each)
        if mine:
            library.shutdown()


ENGINES: dict[str, Callable[[Callable[[], Worker], int], AbstractContextManager[Run]]] = {"local": local, "ray": ray}


def threads_for(device: Any) -> int:
    """Returns 2 for a GPU, to compute one batch while another's results are fetched; 1 for a CPU, which one batch fills."""
    return 2 if "cuda" in str(device) else 1


_thread = threading.local()  # its attribute `many`: whether it is one of several that use units


def one_of_many() -> bool:
    """Whether this thread is one of several that `ahead` started to use units, so that one core is its share."""
    return getattr(_thread, "many", False)


def ahead(lay: Worker, use: Worker, units: Iterable[Any], *, texts: int, threads: int = 1) -> Iterator[tuple[Any, Any]]:
    """Yields each unit with `use(lay(unit))`, in order. With many texts, a thread lays out the next unit while one is used;
    several threads do both."""
    if texts < MANY:
        yield from ((unit, use(lay(unit))) for unit in units)
        return
    there, here = (lambda unit: use(lay(unit)), lambda found: found) if threads > 1 else (lay, use)
    with ThreadPoolExecutor(threads, initializer=setattr, initargs=(_thread, "many", threads > 1)) as pool:
        begun = _begun(units, lambda unit: (unit, pool.submit(there, unit)), threads + 1)
        yield from ((unit, here(future.result())) for unit, future in begun)


def _begun(units: Iterable[Any], begin: Worker, window: int) -> Iterator[Any]:
    """Yields `begin(unit)` for each unit, in order, with at most `window` of them in flight, so memory stays bounded."""
    under_way = deque[Any]()
    for unit in units:
        under_way.append(begin(unit))
        if len(under_way) >= window:
            yield under_way.popleft()
    while under_way:
        yield under_way.popleft()


class _Actor:
    """A worker on a Ray node."""

    def __init__(self, make: Callable[[], Worker]):
        self.worker = make()

    def work(self, unit: Any) -> Any:
        return self.worker(unit)


_made = list[Worker]()  # this process's worker


def _start(make: Callable[[], Worker]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _made.append(make())


def _end_with_parent() -> None:
    """Exits when the parent dies: a worker whose parent was killed would wait for work forever."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def work(unit: Any) -> Any:
    return _made[0](unit)
