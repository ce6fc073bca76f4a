"""Hold the table of rules: for each primitive how it goes back, or why it does not."""

from __future__ import annotations

from typing import Any

from meshweave.frontends.python.gradients.elementwise import ELEMENTWISE
from meshweave.frontends.python.gradients.matrices import MATRICES
from meshweave.frontends.python.gradients.moves import MOVES
from meshweave.frontends.python.gradients.products import PRODUCTS
from meshweave.frontends.python.gradients.special import SPECIAL
from meshweave.frontends.python.gradients.windows import WINDOWS

RULES: dict[str, Any] = {**ELEMENTWISE, **MOVES, **PRODUCTS, **MATRICES, **WINDOWS, **SPECIAL}
"""Primitive -> for each argument what makes its cotangent, None for one that has none.

It takes the cotangent of the result, the result, and the arguments; of several results lists.
"""

_BOOLS, _PLACES = "its results are bools", "its results are places"
REFUSED = {
    **dict.fromkeys(
        (
            *(
                "equal",
                "not_equal",
                "less",
                "less_equal",
                "greater",
                "greater_equal",
                "isnan",
                "isinf",
            ),
            *("isfinite", "signbit", "logical_and", "logical_or", "logical_xor"),
        ),
        _BOOLS,
    ),
    **dict.fromkeys(
        (
            *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_invert"),
            *("bitwise_left_shift", "bitwise_right_shift"),
        ),
        "it takes integers and bools",
    ),
    "places": _PLACES,
    "nextafter": "its steps are those between floats",
    "view": "it takes bits, not numbers",
}
"""Primitive -> why it has no derivative."""
