"""Join what ranks look up in their own blocks of a tensor: all of them together look it up in the whole.

sum over x of (p in 4*x .. 4*x + 3 ? t[4*x + (p - 4*x)] : 0)   =   t[p]
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from meshweave.verification.terms.arith import predicate_of
from meshweave.verification.terms.indices import Expr, Var, bounds, of_var, plus, variables
from meshweave.verification.terms.masks import is_plain
from meshweave.verification.terms.nodes import is_neutral
from meshweave.verification.terms.orders import first_of_blocks, place_of
from meshweave.verification.terms.parts import is_apart, within
from meshweave.verification.terms.terms import (
    MixedError,
    Node,
    Term,
    Terms,
    dims_values,
    view_variables,
)

_BELOW = (("predicate", "6 : i64"),)  # ult
_OPS = {"arith.minsi": min, "arith.maxsi": max}


class _Block(NamedTuple):
    """Say that a place is looked for in `size` places from `begin` on."""

    place: Term
    begin: Expr
    size: int

    def offset(self, terms: Terms) -> Term:
        """Return how far behind its first place the block has it."""
        return terms.apply("arith.subi", (), "index", [self.place, terms.iota(self.begin)])

    def condition(self, terms: Terms) -> Term:
        """Return whether the block has it."""
        ends = [self.offset(terms), terms.iota(Expr(self.size))]
        return terms.apply("arith.cmpi", _BELOW, "i1", ends)

    def inner(self, terms: Terms) -> Term:
        """Return where the block has it, or any place of the block."""
        reads = [self.condition(terms), self.offset(terms), terms.iota(Expr(0))]
        return terms.apply("arith.select", (), "index", reads)


def looked_up(
    terms: Terms, kind: str, view: Term, bound: Sequence[Var]
) -> tuple[Term, list[Var]] | None:
    """Return what is read of a whole tensor, where `view` is what its blocks have of it, to be added up over `bound`.

    With it come the variables over which that is to be added up. Where the blocks together are a larger block, it is
    what is read of that. None for any other view, and where a place might lie in none of the blocks: there the sum is
    0, and the whole tensor has nothing.
    """
    if terms.nodes[view.node].op != "arith.select" or view.fills.count(None) < len(view.fills):
        return None
    condition, yes, no = _reads(terms, view._replace(guards=()))
    if terms.nodes[yes.node].op != "gather" or yes.fills.count(None) < len(yes.fills):
        return None
    guards = {*view.guards, *yes.guards}
    if not is_neutral(terms, no, kind):
        return None
    table, *indices = _reads(terms, yes._replace(guards=()))
    left, conditions = set(bound), conditions_of(terms, condition)
    for number, index in enumerate(indices):
        block = _block(terms, index)
        if block is None or not block.begin.terms:
            found = _in_parts(terms, table, number, index, conditions, left)
            if found is not None:
                table, indices[number], held, parts = found
                conditions.remove(held)
                left -= set(parts)
            continue
        held = block.condition(terms)
        if held not in conditions or not variables(block.begin) & left:
            continue
        joined = _joined(terms, table, number, block, left)
        if joined is None:
            return None
        table, larger = joined
        conditions.remove(held)
        if larger.begin.terms:
            conditions.append(larger.condition(terms))
            indices[number] = larger.inner(terms)
        else:
            indices[number] = block.place
        left -= variables(block.begin)
    own = set(bound) - left
    read_by = [view_variables(v) for v in (table, no, *indices, *conditions)]
    if not own or any(read & own for read in (*read_by, *[variables(e) for e, _ in guards])):
        return None
    try:
        made = gather(terms, table, indices)
    except MixedError:
        return None
    if conditions:
        made = terms.apply(
            "arith.select", (), terms.type_of(no), [all_of(terms, conditions), made, no]
        )
    return terms.composed(made, {}, sorted(guards)), [v for v in bound if v in left]


def put_in_block(
    terms: Terms, into: Term, value: Term, place: Var, begin: Term
) -> tuple[Term, Term, Term] | None:
    """Return what is put, the place of an element and the one where it is put, as in the whole; None for anything else.

    So where a block puts a value at a place that it has, and what is there at another one. `into` is read at `place`.
    """
    block = _block(terms, begin)
    if block is None or terms.nodes[value.node].op != "arith.select":
        return None
    here = plus(of_var(place), block.begin)
    # What is there is read at any place of the block: where that has padding too, it is not what is put.
    sizes = [n for e, n in zip(into.exprs, terms.sizes[into.node]) if e == here and n is not None]
    guards = [
        g for g in value.guards if g not in {(block.begin, n - block.size + 1) for n in sizes}
    ]
    condition, new, old = _reads(terms, value._replace(guards=()))
    there = terms.composed(into, {place: of_var(Var("g", "0", place.size))})
    try:
        kept = gather(terms, there, [begin])
    except MixedError:
        return None
    if condition != block.condition(terms) or old != kept or place.size != block.size:
        return None
    return terms.composed(new, {}, guards), terms.iota(here), block.place


def all_of(terms: Terms, conditions: Sequence[Term]) -> Term:
    """Return whether all of some conditions hold."""
    held = conditions[0]
    for condition in conditions[1:]:
        held = terms.apply("arith.andi", (), "i1", [held, condition])
    return held


def gather(terms: Terms, table: Term, indices: Sequence[Term]) -> Term:
    """Return what is read of a table at computed places, which variables "g" 0, 1, .. stand for in it.

    A place in an order is within its dim: bounds and types of it say nothing.

    Raises MixedError where parts of the table are read at sums of such a place and another.
    """
    indices = [place_of(terms, index) or index for index in indices]
    first = first_of_blocks(terms, table, indices)
    if first is not None:
        return first
    bound = frozenset(v for e in table.exprs for v in variables(e) if v.kind == "g")
    found = terms.free([table, *indices], bound)
    node = Node("gather", (), found.views, terms.type_of(table))
    return terms.view(terms.put(node, found.sizes), found.exprs, (), found.guards)


def _reads(terms: Terms, view: Term) -> list[Term]:
    values = dims_values(view.exprs)
    return [terms.composed(r, values, view.guards) for r in terms.nodes[view.node].reads]


def conditions_of(terms: Terms, condition: Term) -> list[Term]:
    """Return the conditions that all hold where this one does."""
    if terms.nodes[condition.node].op != "arith.andi" or not is_plain(condition):
        return [condition]
    return [c for part in _reads(terms, condition) for c in conditions_of(terms, part)]


def _block(terms: Terms, index: Term) -> _Block | None:
    """Read `place - begin < size ? place - begin : any` as a place in a block."""
    if terms.nodes[index.node].op != "arith.select" or not is_plain(index):
        return None
    condition, there, _ = _reads(terms, index)
    test, moved = terms.nodes[condition.node], terms.nodes[there.node]
    if test.op != "arith.cmpi" or predicate_of(test.detail) != 6 or not is_plain(condition):
        return None
    compared, end = _reads(terms, condition)
    size = _number(terms, end)
    if compared != there or size is None or moved.op != "arith.subi" or not is_plain(there):
        return None
    place, begin = _reads(terms, there)
    if terms.nodes[begin.node].op != "iota" or begin.guards:
        return None
    block = _Block(place, begin.exprs[0], size)
    return block if block.inner(terms) == index else None


def _in_parts(
    terms: Terms,
    table: Term,
    number: int,
    index: Term,
    conditions: Sequence[Term],
    bound: set[Var],
) -> tuple[Term, Term, Term, list[Var]] | None:
    """Read `part has place ? where : any` as a place in parts that are no blocks, each of which has its own places.

    Return the whole table, the place, the condition, and the variables that number the parts; None for anything else.
    """
    if terms.nodes[index.node].op != "arith.select" or not is_plain(index):
        return None
    held, here, _ = _reads(terms, index)
    dims = [
        (d, v)
        for d, e in enumerate(table.exprs)
        for v in variables(e)
        if (v.kind, v.name) == ("g", str(number))
    ]
    if held not in conditions or len(dims) != 1:
        return None
    ((dim, inner),) = dims
    over = sorted(variables(table.exprs[dim]) & bound)
    size = terms.sizes[table.node][dim]
    others = [e for d, e in enumerate(table.exprs) if d != dim]
    if size is None or not over or any(variables(e) & set(over) for e in others):
        return None
    for place in within(terms, held):
        low, high = _range(terms, place)
        if terms.nodes[place.node].op in _OPS and low >= 0 and high < size:
            whole = inner, table.exprs[dim], size
            if not is_apart(terms, (held, here), place, whole, over):
                return None
            exprs = list(table.exprs)
            exprs[dim] = of_var(Var("g", str(number), size))
            return terms.view(table.node, exprs, table.fills, table.guards), place, held, over
    return None


def _number(terms: Terms, view: Term) -> int | None:
    """Return an index that is known."""
    known = terms.nodes[view.node].op == "iota" and not view.guards and not view.exprs[0].terms
    return view.exprs[0].const if known else None


def _joined(
    terms: Terms, table: Term, number: int, block: _Block, bound: set[Var]
) -> tuple[Term, _Block] | None:
    """Return a table and the block of it that blocks side by side are, one for each choice of bound variables."""
    small = Var("g", str(number), block.size)
    dims = [d for d, e in enumerate(table.exprs) if e == plus(block.begin, of_var(small))]
    own = [t for t in block.begin.terms if variables(Expr(0, (t,))) & bound]
    taken = {small, *variables(Expr(0, tuple(own)))}
    others = [e for d, e in enumerate(table.exprs) if d not in dims]
    if len(dims) != 1 or any(variables(e) & taken for e in others):
        return None
    (dim,), size = dims, block.size
    for atom, coefficient in sorted(own, key=lambda t: t[1]):  # each weighs all before it
        if coefficient != size or not isinstance(atom, Var):
            return None
        size *= atom.size
    rest = tuple([t for t in block.begin.terms if t not in own])
    larger = _Block(block.place, Expr(block.begin.const, rest), size)
    whole, exprs = terms.sizes[table.node][dim], list(table.exprs)
    if not rest:
        size = size if whole is None else min(size, whole)
        low, high = _range(terms, block.place)
        if block.begin.const or low < 0 or high >= size:
            return None
    exprs[dim] = plus(larger.begin, of_var(Var("g", str(number), size)))
    return terms.view(table.node, exprs, table.fills, table.guards), larger


def _range(terms: Terms, view: Term) -> tuple[float, float]:
    """Return between which numbers a place is held."""
    node = terms.nodes[view.node]
    if node.op == "iota" and not view.guards:
        return bounds(view.exprs[0])
    if node.op not in _OPS or not is_plain(view):
        return -inf, inf
    ends = [_range(terms, r) for r in _reads(terms, view)]
    chosen = _OPS[node.op]
    return chosen(e[0] for e in ends), chosen(e[1] for e in ends)
