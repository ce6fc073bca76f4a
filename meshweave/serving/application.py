"""What every server has: limits, errors as JSON, /health and /metrics, and an end in which nothing is lost.

The routes that do the work are in `array_routes` and `completion_routes`. aiohttp is imported when an Application is
made, for it is an optional extra.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from meshweave.errors import MeshweaveError, RankError, UsageError
from meshweave.serving.metrics import ServerMetrics, needed
from meshweave.serving.work import (
    Job,
    JobQueue,
    QueueFullError,
    ServerClosedError,
    ServerLimits,
    TookTooLongError,
)

Request: TypeAlias = Any  # of aiohttp, which may not be installed
Response: TypeAlias = Any
Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
Told: TypeAlias = Callable[[object], None]

_LOCAL = ("localhost", "127.0.0.1", "::1")
_MOST_WAIT = 60  # seconds that Retry-After says at most
_KINDS = {400: "invalid_request_error", 429: "rate_limit_error"}
GONE = 499  # what metrics call a request whose client has left


class Service(Protocol):
    """What works on jobs: its queue, and how many run now."""

    @property
    def queue(self) -> JobQueue[Any]:
        """Return the jobs that wait."""

    @property
    def running(self) -> int:
        """Return how many jobs run."""

    def close(self) -> None:
        """End, and free what the jobs run on."""


class Application:
    """Answer requests by routes; `stopping` refuses new ones, `active` counts those that are not done."""

    def __init__(
        self, service: Service, limits: ServerLimits, metrics: ServerMetrics, parallel: int = 1
    ) -> None:
        """Set up without routes for work. parallel: jobs that the service does at a time."""
        self.web: Any = needed("aiohttp.web")
        self.service, self.limits, self._parallel = service, limits, parallel
        self.metrics = metrics
        metrics.watch(lambda: len(service.queue), lambda: service.running)
        self.stopping, self.active = False, 0
        self.hosts: tuple[str, ...] | None = None  # what clients may call us; None: anything
        self._usual = 0.1  # seconds of a request, about

        async def guarded(request: Request, handler: Handler) -> Response:
            return await self._guarded(request, handler)

        self.inner = self.web.Application(
            client_max_size=limits.body, middlewares=[self.web.middleware(guarded)]
        )
        self.inner.router.add_get("/health", self._health)
        self.inner.router.add_get("/metrics", self._metrics)

    def add_work(self, path: str, handler: Handler) -> None:
        """Add a route whose requests the service works on."""

        async def work(request: Request) -> Response:
            if self.stopping:
                raise ServerClosedError("the server is stopping")
            began = time.monotonic()
            self.active += 1
            try:
                return await handler(request)
            finally:
                self.active -= 1
                taken = time.monotonic() - began
                self._usual += 0.1 * (taken - self._usual)
                self.metrics.seconds.labels(path).observe(taken)

        self.inner.router.add_post(path, work)

    async def body(self, request: Request) -> object:
        """Return the JSON that a request carries. Raises UsageError."""
        if request.content_type != "application/json":
            raise UsageError(f"Content-Type {request.content_type}: application/json is right")
        try:
            data = await asyncio.wait_for(request.read(), self.limits.seconds)
        except asyncio.TimeoutError:
            raise self.took_too_long() from None
        return await asyncio.to_thread(_parsed, data)

    def took_too_long(self) -> TookTooLongError:
        """Return the error of a request that ran out of time."""
        return TookTooLongError(f"not done within {self.limits.seconds:g} s, the most there is")

    def json(
        self, value: object, status: int = 200, headers: dict[str, str] | None = None
    ) -> Response:
        """Return a response of one line of JSON."""
        return self.web.json_response(value, status=status, headers=headers, dumps=written)

    def refused(self, error: Exception) -> Response:
        """Return what a request is told that failed."""
        status = status_of(error)
        headers = {"Retry-After": str(self._wait())} if status in (429, 503) else None
        return self.json(error_json(error, status), status, headers)

    def _wait(self) -> int:
        """Return the seconds after which a place in the queue is likely to be free."""
        ahead = len(self.service.queue) / self._parallel
        return min(_MOST_WAIT, max(1, math.ceil(self._usual * ahead)))

    async def _guarded(self, request: Request, handler: Handler) -> Response:
        """Answer a request; whatever goes wrong is one line of JSON."""
        status = GONE
        try:
            response = await self._answered(request, handler)
            status = response.status
            return response
        finally:
            resource = request.match_info.route.resource
            route = "other" if resource is None else resource.canonical
            self.metrics.requests.labels(route, str(status)).inc()

    async def _answered(self, request: Request, handler: Handler) -> Response:
        try:
            self._check_host(request)
            return await handler(request)
        except self.web.HTTPException as error:
            said = f"{request.method} {request.path}: {error.reason}"
            if error.status == 413:
                said = f"the body has more than {self.limits.body} bytes"
            kept = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
            return self.json(error_json(MeshweaveError(said), error.status), error.status, kept)
        except MeshweaveError as error:
            return self.refused(error)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:  # a defect, which keeps its traceback
            traceback.print_exc(file=sys.stderr)
            return self.refused(error)

    def _check_host(self, request: Request) -> None:
        """Refuse a request for another host: a page that a browser shows may have sent it here."""
        name = request.url.host
        if self.hosts is not None and name not in self.hosts:
            raise self.web.HTTPForbidden(reason=f"the host {name!r:.60} is not this server")

    async def _health(self, request: Request) -> Response:
        if self.stopping:
            return self.json({"status": "stopping"}, 503)
        return self.json(
            {"status": "ok", "queue": len(self.service.queue), "running": self.service.running}
        )

    async def _metrics(self, request: Request) -> Response:
        kind, text = self.metrics.text()
        return self.web.Response(body=text, headers={"Content-Type": kind})


class Inbox:
    """Hand what a thread tells to a handler, which waits for it until its time is over."""

    def __init__(self, application: Application) -> None:
        self._loop, self._told = asyncio.get_running_loop(), asyncio.Queue[Any]()
        self._application = application
        self._end = self._loop.time() + application.limits.seconds

    def tell(self, what: object) -> None:
        """Put something in. Called by any thread."""
        self._loop.call_soon_threadsafe(self._told.put_nowait, what)

    async def get(self) -> Any:
        """Return the next thing. Raises TookTooLongError."""
        try:
            return await asyncio.wait_for(self._told.get(), self._end - self._loop.time())
        except asyncio.TimeoutError:
            raise self._application.took_too_long() from None


def hosts_for(host: str) -> tuple[str, ...] | None:
    """Return the names by which a server on this address may be called; None where others can reach it."""
    return _LOCAL if host in _LOCAL else None


def give_up(jobs: list[Job]) -> None:
    """Note that nobody waits for these jobs any more."""
    for job in jobs:
        job.given_up = True


def status_of(error: Exception) -> int:
    """Return the status that a failed request gets."""
    if isinstance(error, QueueFullError):
        return 429
    if isinstance(error, RankError | ServerClosedError):
        return 503
    if isinstance(error, TookTooLongError):
        return 504
    return 400 if isinstance(error, UsageError) else 500


def error_json(error: Exception, status: int) -> dict[str, Any]:
    """Return an error as clients read it. What is no error of ours is not shown to them."""
    known = isinstance(error, MeshweaveError)
    said = (
        " ".join(str(error).split()) if known else "an internal error; the server's log says more"
    )
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": said, "type": kind, "code": status}}


def written(value: object) -> str:
    """Return JSON in one line."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _parsed(data: bytes) -> object:
    try:
        return json.loads(data, parse_constant=_no_constant)
    except RecursionError:
        raise UsageError("the body is nested too deep") from None
    except ValueError as error:  # also of UTF-8, and of numbers that are too long
        raise UsageError(f"the body is no JSON: {error}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f'{name} is no JSON: "{name.lower().replace("infinity", "inf")}" is right')
