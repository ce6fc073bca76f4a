"""Say how each trip of a loop finds what it carries, so that the body of a loop is read once.

In the whole program that is the tensor itself. In that of one rank it is the rank's part, in the layout that
dist-partition has noted on the loop: `dist.carried`. That is only a guess: a trip that hands on something else is read
as it is, and then the body is read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from meshweave.dialects.dist import LayoutAttr
from meshweave.errors import LayoutError
from meshweave.ir.bindings import ir
from meshweave.ir.ops import body_of
from meshweave.layout.layout import Layout
from meshweave.verification.calls import Form, Forms
from meshweave.verification.said import ElementShape
from meshweave.verification.terms.indices import ZERO, Expr, substitute
from meshweave.verification.terms.ranks import Placing, Ranks, index_var, places_of, placing_of
from meshweave.verification.walk import ProgramWalk

CARRIED = "dist.carried"
"""The attribute of a loop of one rank: for each carried value `dist.global` and `dist.layout`, as for an argument."""


def forms_of_whole(walk: ProgramWalk, op: ir.Operation) -> Forms:
    """Return the forms of what a loop of the whole program carries."""
    walk.formed = True
    return [_form(kind, kind[0]) for kind in _carried(walk, op)]


def forms_of_part(walk: ProgramWalk, op: ir.Operation) -> Forms:
    """Return the forms of what a loop of one rank carries: of numbers only where nothing is noted on it."""
    kinds, noted = _carried(walk, op), op.attributes.get(CARRIED)
    said = [] if noted is None else list(map(ir.DictAttr, ir.ArrayAttr(noted)))
    if len(said) != len(kinds):
        said = [ir.DictAttr.get({})] * len(kinds)
    return [_of_layout(walk, kind, entry) for kind, entry in zip(kinds, said)]


def _carried(walk: ProgramWalk, op: ir.Operation) -> list[ElementShape]:
    return list(map(walk.shape, list(body_of(op).arguments)[1:]))


def _of_layout(walk: ProgramWalk, kind: ElementShape, entry: ir.DictAttr) -> Form | None:
    if not kind[0]:
        return _form(kind, ())
    if "dist.layout" not in entry or "dist.global" not in entry:
        return None
    shape, _ = walk.said.shape(ir.TypeAttr(entry["dist.global"]).value)
    try:
        layout = LayoutAttr(entry["dist.layout"]).layout
    except LayoutError:
        return None
    return _form_of_part(walk.ranks, kind, layout, shape)


@lru_cache(maxsize=1 << 10)
def _form_of_part(
    ranks: Ranks, kind: ElementShape, layout: Layout, shape: tuple[int, ...]
) -> Form | None:
    try:
        layout.check(ranks.mesh, shape)
        placing = placing_of(ranks, layout, shape)
        is_part = not layout.partial and placing.allocation == kind[0]
    except LayoutError:
        return None
    return _form(kind, shape, placing) if is_part else None


@lru_cache(maxsize=1 << 10)
def _form(
    kind: ElementShape, shape: tuple[int, ...], placing: Placing | None = None
) -> Form | None:
    """Return the form of a value; None for a counter, which each trip is to know as a number."""
    if kind[1].startswith("i") and all(n == 1 for n in shape):  # of integers, i1 or index
        return None
    dims = [index_var(d, n) for d, n in enumerate(shape)]
    places: Sequence[Expr] = places_of(shape)
    ones = {v: ZERO for v in dims if v.size == 1}
    owner = ones
    if placing is not None:
        found = placing.owner(dict(enumerate(places)))
        if found is None:
            return None
        places, owner = placing.indices, {v: substitute(e, ones) for v, e in found.items()}
    kept = [d for d, n in enumerate(shape) if n != 1]
    return Form(
        tuple([places[d] for d in kept]),
        tuple([shape[d] for d in kept]),
        tuple([dims[d] for d in kept]),
        tuple(owner.items()),
    )
