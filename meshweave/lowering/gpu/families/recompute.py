"""Compute again what rows that fit no registers would leave in memory for later nests.

A softmax over a long row then reads its operand for the maximum, for the sum and for the result, and stores nothing
but that. The bits stay: a value is rounded to the type that it would have been stored in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshweave.ir.expressions import Load, needed, renumber
from meshweave.lowering.buffers.steps import Root
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.nests.bind import LoopNest, NestNode, Store
from meshweave.lowering.nests.rows import KernelUnit

MOST_NODES = 24  # of a map that is computed again


def recomputed(unit: KernelUnit, rows: int, facts: Facts) -> KernelUnit:
    """Return the unit without the maps along its rows whose results nobody else reads: their readers compute them."""
    roots, nests, steps, number = unit.pointers.roots, list(unit.nests), list(unit.steps), 0
    dead = {roots[k] for k in facts.dead}
    while number < len(nests):
        readers = _readers(nests, number, rows, roots, dead)
        if readers:
            store = nests[number].stores[0]
            for k in readers:
                nests[k] = _within(nests[k], nests[number], store)
            del nests[number], steps[number]
        else:
            number += 1
    return replace(unit, nests=nests, steps=steps)


def _readers(
    nests: Sequence[LoopNest], number: int, rows: int, roots: Sequence[Root], dead: set[Root]
) -> list[int]:
    """Return the later nests that read what a map stores; none where they cannot compute it instead."""
    nest = nests[number]
    if nest.reductions or len(nest.sizes) == rows or len(nest.stores) != 1 or nest.gathers:
        return []
    store = nest.stores[0]
    if store.reads or store.initial is not None or nest.accumulates:
        return []
    if len(needed(nest.code, [store.value])) > MOST_NODES:
        return []
    root, found, over = roots[store.access.pointer], list[int](), False
    for k in range(number + 1, len(nests)):
        later = nests[k]
        if any(roots[gather.access.pointer] is root for gather in later.gathers):
            return []
        reads = [n for n in later.loads if roots[n.access.pointer] is root]
        alike = all((n.access, n.type) == (store.access, store.type) for n in reads)
        if not alike or (reads and later.sizes != nest.sizes):
            return []
        found += [k] if reads else []
        stores = [s for s in later.stores if roots[s.access.pointer] is root]
        if any(s.access != store.access or s.reads for s in stores) or (
            stores and (later.sizes != nest.sizes or later.reductions)
        ):
            return []
        if stores:
            over = True
            break
    if not found or not (over or root in dead):
        return []
    return found if _lasts(nests, number, found[-1], roots) else []


def _lasts(nests: Sequence[LoopNest], number: int, last: int, roots: Sequence[Root]) -> bool:
    """Tell whether what a map reads is there as long as its readers are, to the last of them.

    That one may write an element over what it has just read of it.
    """
    sources = {roots[load.access.pointer] for load in nests[number].loads}
    for k in range(number + 1, last + 1):
        for store in nests[k].stores:
            root = roots[store.access.pointer]
            if root not in sources:
                continue
            same = all(
                load.access == store.access
                for load in nests[number].loads
                if roots[load.access.pointer] is root
            )
            if k < last or not same or nests[k].sizes != nests[number].sizes:
                return False
            if nests[k].reductions:
                return False
    return True


def _within(reader: LoopNest, nest: LoopNest, store: Store) -> LoopNest:
    """Return a nest that computes what it reads of a map's result."""
    code: list[NestNode] = []
    ours: dict[int, int] = {}
    for old in sorted(needed(nest.code, [store.value])):
        ours[old] = len(code)
        code.append(renumber(nest.code[old], [ours.get(k, -1) for k in range(len(nest.code))]))
    theirs: list[int] = []
    for node in reader.code:
        if isinstance(node, Load) and node.access == store.access:
            theirs.append(ours[store.value])
            continue
        theirs.append(len(code))
        code.append(renumber(node, [*theirs, *[-1] * (len(reader.code) - len(theirs))]))
    stores = tuple(
        replace(
            each,
            value=theirs[each.value],
            initial=None if each.initial is None else theirs[each.initial],
        )
        for each in reader.stores
    )
    return replace(reader, code=tuple(code), stores=stores)
