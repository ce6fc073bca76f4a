"""Find products of which a condition keeps a part: rows of which each belongs to one of several matrices.

A program without an op for that repeats the rows for each matrix and puts zeros where they do not belong. A map that
does so is computed inside the product, whose kernel evaluates the condition and leaves the zeros out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    number = user.sources.index(value)
    loops = [form.dim for form in user.accesses[number]]
    if not repeats or None in loops:
        return None
    along = _along(reader, item, found.condition) & walked
    if len(along) != 1:
        return None
    other = {d for form in user.accesses[1 - number] for d, _ in form.terms}
    loop = loops[min(along)]
    return found.tensor if loop in user.reductions or loop not in other else None


class _Selected(NamedTuple):
    """Hold what a select keeps, `tensor` at `access`, where the node `condition` holds."""

    tensor: ir.Value
    access: IndexMap
    condition: int


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
    return _Selected(value, access, condition)


def _through(inner: IndexMap, access: IndexMap) -> IndexMap:
    return tuple([form.over(access) for form in inner])


def _along(reader: Reader, item: Item, root: int) -> frozenset[int]:
    """Return the loops of a map that a node depends on: through maps and copies, those that what is read lies along."""
    known: dict[ir.Value, frozenset[int]] = {}  # the dims that the elements of a tensor depend on
    # A stack of our own, and each tensor once: random numbers are chains of a thousand maps that read each other twice.
    waiting = [item.sources[k] for k in _read(item, [root])]
    while waiting:
        made = reader.made.get(waiting[-1])
        if made is None or made.kind not in _COMPUTED or waiting[-1] in known:
            waiting.pop()
            continue
        inside = [made.sources[k] for k in _read(made, made.body.results)]
        first = [v for v in inside if v not in known and _is_computed(reader, v)]
        if first:
            waiting += first
        else:
            known[waiting.pop()] = _depends(made, made.body.results, known)
    return _depends(item, [root], known)


_COMPUTED = ("map", "copy", "splat")
"""Kinds of items whose elements are looked into."""


def _is_computed(reader: Reader, value: ir.Value) -> bool:
    made = reader.made.get(value)
    return made is not None and made.kind in _COMPUTED


def _read(item: Item, roots: Iterable[int]) -> list[int]:
    """Return the numbers of the sources that nodes are computed from."""
    nodes = item.body.nodes
    found = [nodes[number] for number in needed(nodes, roots)]
    return [node.number for node in found if isinstance(node, Argument)]


def _depends(
    item: Item, roots: Iterable[int], known: Mapping[ir.Value, frozenset[int]]
) -> frozenset[int]:
    """Return the loops of an item that nodes depend on. known: dims of sources; of others all dims count."""
    found: set[int] = set()
    for number in needed(item.body.nodes, roots):
        node = item.body.nodes[number]
        if isinstance(node, Index):
            found.add(node.form)
        if isinstance(node, Argument):
            access = item.accesses[node.number]
            dims = known.get(item.sources[node.number], range(len(access)))
            found |= {d for k in dims for d, _ in access[k].terms if d >= 0}
    return frozenset(found)
