"""How much a run of the tests tries: `make test` a part, `make test-deep` all."""

import os
from collections.abc import Iterable
from typing import Any

import pytest

DEEP = os.environ.get("MESHWEAVE_TESTS") == "deep"

deep = pytest.mark.deep
"""A test that takes long beside others of its kind, which stay."""


def examples(count: int) -> int:
    """Return how many of `count` random examples this run tries: all, or the first fifth."""
    return count if DEEP else -(-count // 5)


def sampled(every: int) -> pytest.MarkDecorator:
    """Mark a test of which each `every`-th case, from the first on, is run by every run: together they take long."""
    return pytest.mark.sampled(every)


def some(values: Iterable[Any], every: int) -> list[Any]:
    """Return the values of a parameter of which each `every`-th, from the first on, is tried in every run."""
    return [
        pytest.param(value, marks=() if place % every == 0 else deep)
        for place, value in enumerate(values)
    ]
