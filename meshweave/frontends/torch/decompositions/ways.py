"""Put several decompositions of one op together, or one around the op itself."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def first_of(*ways: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Try one decomposition after the other."""

    def computed(*args: object, **options: object) -> Tensor:
        found = (way(*args, **options) for way in ways)
        return next((each for each in found if each is not NotImplemented), NotImplemented)

    return computed


def around(computed: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decomposition that calls its own op, which is left as it is there."""
    within = False

    def once(*args: object, **options: object) -> Any:
        nonlocal within
        if within:
            return NotImplemented
        within = True
        try:
            return computed(*args, **options)
        finally:
            within = False

    return once
