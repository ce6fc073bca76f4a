"""Say what is known of scalar ops by their names: reductions they are a step of, neutral elements, predicates."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from math import inf, nan

COMBINES = {
    "arith.addf": "sum",
    "arith.addi": "sum",
    "arith.mulf": "prod",
    "arith.muli": "prod",
    "arith.maximumf": "max",
    "arith.maxnumf": "max",
    "arith.maxsi": "max",
    "arith.minimumf": "min",
    "arith.minnumf": "min",
    "arith.minsi": "min",
    "arith.maxui": "maxu",
    "arith.minui": "minu",
    "arith.ori": "or",
    "arith.andi": "and",
    "arith.xori": "xor",
    "complex.add": "sum",
    "complex.mul": "prod",
}
"""The reduction that an op is a step of."""
MOST_EXACT = 128
"""An integer that floats of all types hold."""
UNSIGNED = {6: 2, 7: 3, 8: 4, 9: 5}
"""The predicates of unsigned comparisons, and those that are the same for numbers that are not negative."""
_SIGNED = ("arith.extsi", "arith.sitofp", "arith.index_cast")
_BITS = {"or": "max", "and": "min"}  # of a single bit


def is_integer(type_: str) -> bool:
    """Tell whether a type is one of integers of several bits."""
    return type_[:1] == "i" and type_[1:].isdigit() and type_ != "i1"


def is_real(type_: str) -> bool:
    """Tell whether numbers of a type are taken as real numbers."""
    return "f" in type_ and "complex" not in type_


def kind_of(name: str, type_: str) -> str | None:
    """Return the reduction that an op is a step of, None for an op that is none."""
    kind = COMBINES.get(name)
    return _BITS.get(kind, kind) if type_ == "i1" and kind else kind


def step_of(kind: str, type_: str) -> str | None:
    """Return the op that is a step of a reduction of numbers, None for none."""
    names = {
        "sum": "arith.add",
        "prod": "arith.mul",
        "max": "arith.maximum",
        "min": "arith.minimum",
    }
    if is_real(type_):
        return f"{names[kind]}f" if kind in names else None
    if not is_integer(type_):
        return None
    return {"max": "arith.maxsi", "min": "arith.minsi"}.get(kind) or (
        f"{names[kind]}i" if kind in names else None
    )


@lru_cache(maxsize=1 << 10)
def neutral(kind: str, type_: str) -> Hashable:
    """Return the number that leaves a reduction as it is, as `Terms.constant` holds it; None where there is none."""
    if "complex" in type_:
        return None
    if type_ == "i1":
        return {"or": 0, "max": 0, "and": 1, "min": 1, "xor": 0, "sum": None}.get(kind)
    if kind in ("sum", "prod"):
        return float(kind == "prod") if "f" in type_ else int(kind == "prod")
    if "f" in type_:
        return {"max": -inf, "min": inf}.get(kind)
    if not type_.startswith("i") or type_ == "index":
        return None
    width = int(type_[1:])
    return {
        "max": -(2 ** (width - 1)),
        "min": 2 ** (width - 1) - 1,
        "maxu": 0,
        "minu": -1,
        "or": 0,
        "xor": 0,
        "and": -1,
    }.get(kind)


def predicate_of(detail: tuple[Hashable, ...]) -> int:
    """Return the number of the predicate of a comparison."""
    for item in detail:
        if isinstance(item, tuple) and item[0] == "predicate":
            return int(str(item[1]).split(":")[0])
    return -1


def signed(name: str, type_: str, value: Hashable) -> Hashable:
    """Return a number as an op reads it. type_: of the number: a bit that is set is -1 for an op that keeps signs."""
    return -value if type_ == "i1" and name in _SIGNED and isinstance(value, int) else value


def folded(
    name: str, detail: tuple[Hashable, ...], values: Sequence[Hashable], types: Sequence[str]
) -> Hashable | None:
    """Compute an op on constants, where that is exact and needs no table of types; None for all others.

    types: of the constants.
    """
    values = [signed(name, t, v) for t, v in zip(types, values)]
    if name == "arith.select" and len(values) == 3:
        return values[1] if values[0] else values[2]
    if len(values) == 1 and name == "arith.extsi" and isinstance(values[0], int):
        return values[0]
    if len(values) == 1 and name in ("arith.extf", "math.absf") and values[0] == 0.0:
        return 0.0
    if name == "arith.sitofp" and isinstance(values[0], int) and abs(values[0]) <= MOST_EXACT:
        return float(values[0])
    if name == "math.exp" and values[0] in (0.0, -inf):
        return 0.0 if values[0] else 1.0
    if len(values) != 2 or not all(isinstance(v, (int, float)) for v in values):
        return None
    a, b = values
    assert isinstance(a, (int, float)) and isinstance(b, (int, float))
    if nan in (a, b) or a != a or b != b:
        return None
    if name in ("arith.addf", "arith.addi", "arith.subf", "arith.subi") and a == 0 and b == 0:
        return 0.0 if name.endswith("f") else 0
    if name in ("arith.maximumf", "arith.minimumf", "arith.andi", "arith.ori") and a == b:
        return a
    return None
