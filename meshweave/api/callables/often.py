"""Call in the quickest way what is called often: builtin functions take the place of those in Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from meshweave.cache import cached_object
from meshweave.runtime.local.direct import DirectCalls, direct_calls

OFTEN = 64  # calls of a kind, after which the next ones are worth a function of their own

Run = Callable[..., Any]


def called_often(
    run: Run, made: Callable[[DirectCalls], Run | None], put: Callable[[Run], None]
) -> Run:
    """Return `run` as it is called at first; later `put` is given what takes its place.

    made: makes that, or None where `run` stays for good.
    """
    calls = 0

    def counted(*values: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == OFTEN:
            how = _direct_calls()
            put((made(how) if how is not None else None) or run)
        return run(*values)

    return counted


@cache
def _direct_calls() -> DirectCalls | None:
    return direct_calls(cached_object(("direct",), _compiled))


def _compiled() -> bytes:
    from meshweave.lowering.cpu.collectives.direct import direct_object  # loads MLIR

    return direct_object()
