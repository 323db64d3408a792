"""What every request passes before its route: the key, the limits on its body, the timeout; and the log and metrics."""

import asyncio
import hmac
import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from bertkit.bundle.exported import ExportedBundle
from bertkit.errors import InputError
from bertkit.serve.batching import Batcher
from bertkit.serve.predictor import Model

REFUSALS = {
    400: "The body is not JSON.",
    401: "The key is missing or wrong.",
    408: "The body came too slowly.",
    413: "The body, the texts or their tokens are too many.",
    429: "The queue is full; Retry-After says when to ask again.",
    503: "The server is shutting down.",
    504: "The answer took too long.",
}
GONE = 499  # the client disconnected before the answer
OPEN = ("/", "/health", "/ready", "/openapi.json")  # need no key


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on a request, and on the queue."""

    texts: int = 128  # per request
    tokens: int = 16_384  # per request
    body: int = 1 << 20  # bytes per request
    queue: int = 1024  # texts waiting, per model
    wait: float = 0.004  # seconds that the first text of a batch waits for others
    timeout: float = 30.0  # seconds for the body and the answer


class Desk:
    """The served models, each with its queue, and the metrics and log of requests."""

    def __init__(self, models: Mapping[str, Model], limits: Limits, key: str, log_texts: bool):
        self.limits, self.key, self.log_texts, self.draining = limits, key, log_texts, False
        self.registry = told = CollectorRegistry()
        self.requests = Counter("bertkit_requests", "Requests.", ["route", "status"], registry=told)
        self.seconds = Histogram("bertkit_request_seconds", "Time until the answer.", ["route"], registry=told)
        sizes = [2.0**power for power in range(9)]
        batch = Histogram("bertkit_batch_texts", "Texts of a batch.", ["model"], registry=told, buckets=sizes)
        waiting = Gauge("bertkit_queue_texts", "Texts that wait.", ["model"], registry=told)
        self.batchers, self.can = dict[str, Batcher](), dict[str, list[str]]()
        for name, model in models.items():
            exported = isinstance(model.bundle, ExportedBundle)  # a second thread then uses the cores that one leaves idle
            seen = batch.labels(name).observe
            batcher = Batcher(model, queue=limits.queue, wait=limits.wait, workers=1 + exported, seen=seen)
            waiting.labels(name).set_function(partial(getattr, batcher, "waiting"))
            self.batchers[name] = batcher
            own = [verb for verb in model.answers() if verb != "features"]
            self.can[name] = [*own, "tokenize", *["attention"] * (not exported)]

    def pick(self, verb: str, name: str | None) -> tuple[str, Batcher]:
        """Returns the model of that name, or the first one that can answer."""
        chosen = name or next((name for name, verbs in self.can.items() if verb in verbs), "")
        if not chosen:
            raise InputError(f"model that can {verb} is not served; see /v1/models")
        if chosen not in self.can:
            raise InputError(f"model {chosen!r} is not served; expected one of {', '.join(self.can)}")
        if verb not in self.can[chosen]:
            raise InputError(f"model {chosen!r} cannot {verb}; it can {', '.join(self.can[chosen])}")
        return chosen, self.batchers[chosen]

    def note(self, scope: Any, status: int, seconds: float) -> None:
        """Counts and logs a request; without log_texts, only the number of its texts."""
        route = scope["route"].path if "route" in scope else "other"
        self.requests.labels(route, status).inc()
        self.seconds.labels(route).observe(seconds)
        texts, tokens = (scope.get("state", {}).get(name, empty) for name, empty in (("texts", []), ("tokens", 0)))
        said = {"said": texts} if self.log_texts else {}
        log(route=route, status=status, ms=round(seconds * 1000, 1), texts=len(texts), tokens=tokens, **said)


def log(**facts: Any) -> None:
    """Writes one line of JSON to standard error."""
    with suppress(OSError):  # standard error was closed
        print(json.dumps({"time": round(time.time(), 3), **facts}), file=sys.stderr, flush=True)


def refusal(status: int, message: str = "", **headers: str) -> Response:
    return JSONResponse({"detail": message or REFUSALS[status]}, status, headers)


class Guard:
    """ASGI middleware between the server and the routes."""

    def __init__(self, app: Any, desk: Desk):
        self.app, self.desk, self.limits = app, desk, desk.limits

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        begin, status = time.perf_counter(), 0

        async def watch(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            refused = self._refuse(scope) or await self._admit(scope, receive, watch)
            if refused and not status:
                await refused(scope, receive, watch)
        except Exception:
            status = 500
            raise
        finally:
            self.desk.note(scope, status or GONE, time.perf_counter() - begin)

    def _refuse(self, scope: Any) -> Response | None:
        """Refuses a request before its body is read: without the key, except for OPEN, or while the server drains."""
        given = dict(scope["headers"]).get(b"authorization", b"")
        known = not self.desk.key or hmac.compare_digest(given[:7].lower() + given[7:], b"bearer " + self.desk.key.encode())
        if not known and scope["path"].removeprefix(scope.get("root_path", "")) not in OPEN:
            return refusal(401, **{"WWW-Authenticate": "Bearer"})
        draining = self.desk.draining and scope["method"] == "POST"
        return refusal(503, Connection="close") if draining else None

    async def _admit(self, scope: Any, receive: Any, send: Any) -> Response | None:
        """Reads the body and runs the route, both within the timeout."""
        body = None
        try:
            async with asyncio.timeout(self.limits.timeout):
                body = await self._read(receive)
                if len(body) > self.limits.body:
                    return refusal(413, f"the body has more than {self.limits.body:,} bytes", Connection="close")
                await self._answer(scope, body, receive, send)
        except TimeoutError:
            return refusal(408, Connection="close") if body is None else refusal(504)
        return None

    async def _read(self, receive: Any) -> bytes:
        """Reads the body, but stops once it exceeds the limit."""
        body, more = bytearray(), True
        while more and len(body) <= self.limits.body:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        return bytes(body)

    async def _answer(self, scope: Any, body: bytes, receive: Any, send: Any) -> None:
        """Runs the route, and cancels it if the client disconnects, the only thing to be received after the body."""

        async def replay() -> Any:
            return {"type": "http.request", "body": body}

        work = asyncio.ensure_future(self.app(scope, replay, send))
        gone = asyncio.ensure_future(receive())
        gone.add_done_callback(lambda _: work.cancel())
        try:
            await work
        except asyncio.CancelledError:
            if not gone.done():
                raise
        finally:
            gone.cancel()
