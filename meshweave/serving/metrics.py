"""Count what a server does, in the text format of Prometheus."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from meshweave.errors import RankError, UsageError

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


def needed(package: str) -> Any:
    """Import a part of the extra `serve`. Raises UsageError when it is not installed."""
    try:
        return import_module(package)
    except ImportError:
        name = package.partition(".")[0]
        raise UsageError(
            f"meshweave serve needs {name}, which is not installed: pip install 'meshweave[serve]'"
        ) from None


class ServerMetrics:
    """Hold the counters of one server. Raises UsageError when prometheus_client is not installed."""

    def __init__(self) -> None:
        self._package = make = needed("prometheus_client")
        self._registry = make.CollectorRegistry()
        self._home = home = {"namespace": "meshweave", "registry": self._registry}
        self.requests = make.Counter(
            "requests", "Requests, by route and status.", ("route", "status"), **home
        )
        self.tokens = make.Counter(
            "tokens", "Tokens of prompts that were read, and tokens made.", ("kind",), **home
        )
        self.seconds = make.Histogram(
            "request_seconds", "How long requests took.", ("route",), buckets=_SECONDS, **home
        )
        self.first = make.Histogram(
            "first_token_seconds", "How long the first token took.", buckets=_SECONDS, **home
        )
        self.lost = make.Counter("rank_failures", "Times that a rank failed.", **home)
        for kind in ("prompt", "completion"):
            self.tokens.labels(kind)

    def watch(self, waiting: Callable[[], int], running: Callable[[], int]) -> None:
        """Show how many jobs wait and run, by functions that return it."""
        gauge = self._package.Gauge
        gauge("queue_length", "Jobs that wait.", **self._home).set_function(waiting)
        gauge("running", "Jobs that run.", **self._home).set_function(running)

    def rank_failed(self, error: RankError) -> None:
        """Count a failure of a rank, and say it on standard error."""
        self.lost.inc()
        print(f"meshweave serve: {' '.join(str(error).split())}; starting again", file=sys.stderr)

    def text(self) -> tuple[str, bytes]:
        """Return the content type and the text."""
        return str(self._package.CONTENT_TYPE_LATEST), bytes(
            self._package.generate_latest(self._registry)
        )

    def count_tokens(self, read: int, made: int) -> None:
        """Count tokens of prompts, and tokens made."""
        self.tokens.labels("prompt").inc(read)
        self.tokens.labels("completion").inc(made)
