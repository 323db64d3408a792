"""Dynamic batching: requests from many clients share calls of the model, each with many texts.

Worker threads ask the model. Each takes the oldest request, with others that ask the same question, up to the model's token
budget, as soon as the budget is full or the oldest has waited long enough.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import accumulate, chain
from threading import Condition, Thread
from typing import Any

from bertkit.errors import BertkitError, InputError
from bertkit.serve.predictor import Model


class Busy(BertkitError):
    """Raised when a request is not accepted: the queue is closed or full."""


class QueueFull(Busy):
    """Raised when the queue has no room for the request's texts."""


@dataclass(eq=False)
class _Request:
    """Columns of texts, with one answer per row; requests with the same question share a call."""

    question: tuple[Any, ...]  # method, number of columns, settings
    columns: tuple[Sequence[Any], ...]
    tokens: int
    answers: Future[Sequence[Any]] = field(default_factory=Future)
    born: float = field(default_factory=time.monotonic)

    @property
    def rows(self) -> int:
        return len(self.columns[0])


class Batcher:
    """A model behind a queue of at most `queue` texts, asked by `workers` threads; `seen` is called with the size of every
    batch."""

    def __init__(
        self,
        model: Model,
        *,
        queue: int = 1024,
        wait: float = 0.004,
        workers: int = 1,
        seen: Callable[[int], Any] = lambda texts: None,
    ):
        self.model, self.queue, self.wait, self.seen = model, queue, wait, seen
        self.model.quiet = True
        self._requests, self._changed, self._closed = list[_Request](), Condition(), False
        self._workers = [Thread(target=self._work, name="bertkit-batches", daemon=True) for _ in range(workers)]
        for worker in self._workers:
            worker.start()

    @property
    def waiting(self) -> int:
        """The number of texts in the queue."""
        return sum(request.rows for request in self._requests)

    def ask(self, method: str, *columns: Sequence[Any], tokens: int, **settings: Any) -> Future[Sequence[Any]]:
        """Queues a call of one of the model's methods; if cancelled before its batch starts, it costs nothing."""
        request = _Request((method, len(columns), *sorted(settings.items())), columns, tokens)
        if any(len(column) != request.rows for column in columns):
            raise InputError(f"pairs are {len(columns[1])} for {request.rows} texts; give one partner to each")
        with self._changed:
            if self._closed:
                raise Busy("the server is shutting down; ask another, or this one when it is back")
            if self.waiting + request.rows > self.queue:
                raise QueueFull(f"{self.waiting} texts wait and {self.queue} may; ask again in a moment")
            self._requests.append(request)
            self._changed.notify()
        request.answers.add_done_callback(lambda answers: self._drop([request]) if answers.cancelled() else None)
        return request.answers

    def close(self) -> None:
        """Accepts no more requests, and returns when all accepted ones are answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.join()

    def _drop(self, requests: Sequence[_Request]) -> None:
        gone = set(requests)
        with self._changed:
            self._requests = [request for request in self._requests if request not in gone]

    def _work(self) -> None:
        while batch := self._next():
            if begun := [request for request in batch if request.answers.set_running_or_notify_cancel()]:
                self.seen(sum(request.rows for request in begun))
                self._answer(begun)

    def _next(self) -> list[_Request]:
        """Waits for a batch and returns it; it is empty when the queue is closed and empty."""
        with self._changed:
            while self._requests or not self._closed:
                left = self._requests[0].born + self.wait - time.monotonic() if self._requests else None
                full = sum(request.tokens for request in self._requests) >= self.model.budget
                if left is not None and (left <= 0 or full or self._closed):
                    return self._take()
                self._changed.wait(left)
        return []

    def _take(self) -> list[_Request]:
        """Removes and returns the oldest request and those with the same question, up to the budget."""
        same = [request for request in self._requests if request.question == self._requests[0].question]
        totals = list(accumulate(request.tokens for request in same))
        batch = same[: max(1, bisect_right(totals, self.model.budget))]
        self._drop(batch)
        return batch

    def _answer(self, requests: list[_Request]) -> None:
        """Answers each request; if one is bad, the batch is halved until the error is that request's alone."""
        method, _, *settings = requests[0].question
        columns = zip(*(request.columns for request in requests), strict=True)
        try:
            found = getattr(self.model, method)(*(list(chain(*parts)) for parts in columns), **dict(settings))
        except Exception as error:
            if len(requests) == 1:
                return requests[0].answers.set_exception(error)
            middle = len(requests) // 2
            self._answer(requests[:middle])
            return self._answer(requests[middle:])
        for request in requests:
            request.answers.set_result(found[: request.rows])
            found = found[request.rows :]
