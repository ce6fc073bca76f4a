"""Say what was new about calls that compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from meshweave.api.signature import differences
from meshweave.frontends.python.program import ArgumentSpec
from meshweave.plan import search_info


class Miss(NamedTuple):
    """Record a call that compiled, for `explain_misses`."""

    specs: tuple[ArgumentSpec, ...]
    names: tuple[str, ...]
    rest: tuple[Any, ...]  # structure, static arguments, kernels
    seconds: float
    plans: str  # of redistributions, where there were any new ones


def plans_since(hits: int, misses: int) -> str:
    """Count the plans made since `search_info` had these counts: taken from other shapes, and searched."""
    now = search_info()
    reused, searched = now.hits - hits, now.misses - misses
    if not reused + searched:
        return ""
    return f"; plans: {reused} from other shapes, {searched} searched"


def why_missed(miss: Miss, before: Sequence[Miss]) -> str:
    """Say what is new about a call."""
    if not before:
        return "the first call"
    alike = [m for m in before if m.rest[:2] == miss.rest[:2] and len(m.specs) == len(miss.specs)]
    if not alike:
        same = any(m.rest[0] == miss.rest[0] for m in before)
        return "other static arguments" if same else "arguments of another structure"
    changes = [differences(miss.specs, m.specs, miss.names) for m in alike]
    nearest = min(changes, key=len)
    return (
        "; ".join(nearest)
        if nearest
        else "other kernels or floats are chosen (mw.kernels, mw.default_float)"
    )
