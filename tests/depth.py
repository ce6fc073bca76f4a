"""How much a run of the tests tries: `make test` a part, `make test-deep` all."""

import os
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

DEEP = os.environ.get("MESHWEAVE_TESTS") == "deep"
FEWER = 3  # `make test` tries so many times fewer cases than tests name: it is to take ten minutes on two cores

Value = TypeVar("Value")

deep = pytest.mark.deep
"""A test that takes long beside others of its kind, which stay."""


def examples(count: int) -> int:
    """Return how many of `count` random examples this run tries: all, or the first fifteenth, but four at least.

    The first that Hypothesis draws is the least of all: alone it shows little.
    """
    return count if DEEP else max(min(count, 4), -(-count // (5 * FEWER)))


def sampled(every: int) -> pytest.MarkDecorator:
    """Mark a test whose cases take long together: of each `every` times FEWER of them a run takes one.

    Of the first ones that is the first, of the next the second, and so on.
    """
    return pytest.mark.sampled(every * FEWER)


def thinned(values: Iterable[Value], every: int) -> list[Value]:
    """Return those of the alike values of one test that a run tries: all, or each `every`-th, from the first on."""
    return list(values)[:: 1 if DEEP else every]


def some(values: Iterable[Any], every: int) -> list[Any]:
    """Return the values of a parameter of which each `every`-th, from the first on, is tried in every run."""
    return [
        pytest.param(value, marks=() if place % every == 0 else deep)
        for place, value in enumerate(values)
    ]
