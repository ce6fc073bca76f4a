"""Find products of which a condition keeps a part: rows of which each belongs to one of several matrices.

A program without an op for that repeats the rows for each matrix and puts zeros where they do not belong. A map that
does so is computed inside the product, whose kernel evaluates the condition and leaves the zeros out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from meshweave.ir.bindings import ir
from meshweave.ir.expressions import Apply, Argument, Constant, Index, Scalar, is_number, needed
from meshweave.lowering.nests.bodies import constant_of
from meshweave.lowering.nests.items import Item, Reader
from meshweave.lowering.nests.linear import IndexMap


def kept_of(reader: Reader, item: Item, user: Item, value: ir.Value) -> ir.Value | None:
    """Return the tensor of which `item` keeps a part for a product; None where the product is none of those.

    value: what the product reads of `item`. The tensor is repeated along a loop of the product, and the condition
    depends on that loop and on one of those that walk the tensor, over rows or over the depth.
    """
    if item.kind != "map" or user.kind != "contract" or not user.library:
        return None
    if item.block != user.block or user.sources.count(value) != 1:
        return None
    if {_dtype(v) for v in (*user.sources, *user.outs)} not in ({"f32"}, {"f64"}):
        return None
    found = _selected(reader, item)
    if found is None:
        return None
    walked = {d for form in found.access for d, _ in form.terms}
    repeats = any(size != 1 and d not in walked for d, size in enumerate(item.sizes))
    number, along = user.sources.index(value), found.depends & walked
    loops = [form.dim for form in user.accesses[number]]
    if not repeats or len(along) != 1 or None in loops:
        return None
    other = {d for form in user.accesses[1 - number] for d, _ in form.terms}
    loop = loops[min(along)]
    return found.tensor if loop in user.reductions or loop not in other else None


class _Selected(NamedTuple):
    """Hold what a select keeps where its condition holds: `tensor` at `access`, and the loops the condition needs."""

    tensor: ir.Value
    access: IndexMap
    depends: frozenset[int]


def _dtype(value: ir.Value) -> str:
    return str(value.type.element_type) if isinstance(value.type, ir.RankedTensorType) else ""


def _selected(reader: Reader, item: Item) -> _Selected | None:
    """Return what a map keeps, zeros elsewhere; None where it does anything else."""
    nodes = item.body.nodes
    last = nodes[item.body.results[0]]
    if not isinstance(last, Apply) or last.name != "arith.select":
        return None
    condition, tensor, other = last.operands
    kept, zero = nodes[tensor], nodes[other]
    made = reader.made.get(item.sources[zero.number]) if isinstance(zero, Argument) else None
    if made is not None and made.kind == "splat":
        zero = made.body.nodes[0]
    if isinstance(zero, Scalar):
        zero = Constant(constant_of(zero.source), zero.type)
    if not isinstance(kept, Argument) or not is_number(zero, 0.0):
        return None
    value, access = item.sources[kept.number], item.accesses[kept.number]
    while (made := reader.made.get(value)) is not None and made.kind == "copy":
        value, access = made.sources[0], _through(made.accesses[0], access)
    if made is not None and made.kind == "splat":
        return None
    return _Selected(value, access, _depends(reader, item, [condition]))


def _through(inner: IndexMap, access: IndexMap) -> IndexMap:
    return tuple([form.over(access) for form in inner])


def _depends(reader: Reader, item: Item, roots: Iterable[int]) -> frozenset[int]:
    """Return the loops of a map that nodes depend on: through maps and copies, those that what is read lies along."""
    found: set[int] = set()
    for number in needed(item.body.nodes, roots):
        node = item.body.nodes[number]
        if isinstance(node, Index):
            found.add(node.form)
        if isinstance(node, Argument):
            access = item.accesses[node.number]
            made = reader.made.get(item.sources[node.number])
            inner = frozenset(range(len(access)))
            if made is not None and made.kind in ("map", "copy", "splat"):
                inner = _depends(reader, made, made.body.results)
            found |= {d for k in inner for d, _ in access[k].terms if d >= 0}
    return frozenset(found)
