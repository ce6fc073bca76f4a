"""Stages in place: what a stage makes of each element of a tensor that nobody reads later may lie where that was."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from meshweave.transforms.bodies import ELEMENTWISE


def is_elementwise(op: Any) -> bool:
    """Does `op` make each element of its result from the elements there of its operands?"""
    if op.name in ("linalg.map", "linalg.generic"):
        kinds = op.attributes.get("iterator_types")
        return kinds is None or all("parallel" in str(kind) for kind in kinds)
    return op.name.startswith(("arith.", "math.")) or op.name in ELEMENTWISE


def in_place(
    ops: Sequence[Any], kept: Sequence[Any], held: Mapping[Any, Any], later: Collection[Any]
) -> dict[Any, Any]:
    """By value of `kept`, which the stage `ops` makes: the value of `held` whose place it may take.

    held: what stages before left, by value. later: what stages behind this one read. A row of a softmax is read whole
    before it is written.
    """
    if not all(is_elementwise(op) or op.name == "linalg.softmax" for op in ops):
        return {}
    free = [v for op in ops for v in op.operands if v in held and v not in later]
    found: dict[Any, Any] = {}
    for value in kept:
        place = next((v for v in free if v.type == value.type), None)
        if place is not None:
            found[value] = place
            free = [v for v in free if v != place]
    return found
