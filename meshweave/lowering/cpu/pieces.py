"""Cut the work of a kernel into pieces that the cores of a rank do in any order, each a kernel over a part of one loop.

A piece is the kernel itself with fewer iterations of a parallel loop, on pointers that are moved to where the piece
begins. How a kernel is cut depends on the kernel alone, never on the number of cores: who does a piece does not show
in its results, and one core does the same pieces one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from meshweave.ir.bindings import ir
from meshweave.ir.expressions import Gather, Index, Load
from meshweave.ir.sorting import SWITCH
from meshweave.lowering.buffers.steps import Root, element_bytes
from meshweave.lowering.cpu.products.blas import by_class, classes_of
from meshweave.lowering.cpu.reuse import LARGE, reads_once, shape_of, volume
from meshweave.lowering.nests.bind import (
    Access,
    Counter,
    LoopNest,
    NestNode,
    Pointers,
    merged,
    restrided,
)
from meshweave.lowering.nests.rows import KernelUnit, loop_order

GRAIN = 1 << 16  # iterations that are worth a piece: they take longer than to hand a piece over
MOST = 32  # pieces
# Multiplications that are worth two pieces, each of which reads an operand again.
LEAST_PRODUCT = 1 << 22
LINE = 64  # elements of a row that a piece has at least where it cuts rows
RUN_BYTES = 8 << 10  # of rows that are added up: shorter runs come from memory at half of its rate


class PointerStride(NamedTuple):
    """Say where a pointer of a piece begins: at the kernel's `pointer`, and `nbytes` further with each iteration."""

    pointer: int
    nbytes: int


@dataclass(frozen=True)
class Pieces:
    """Describe a kernel in pieces: `count` of `step` iterations, of which the last has fewer where there is a `rest`.

    moves: of the pointers of a piece, in order. counts: whether its last scalar is the number of its first iteration.
    limit: the kernel's scalar at which the loop that is cut ends, None for one that runs to its size. There are then as
    many pieces as `fewer` says, (from how many iterations on, pieces), of a multiple of `multiple` iterations. They
    have a scalar more, behind the kernel's: how many iterations the piece has.
    """

    whole: KernelUnit
    rest: KernelUnit | None
    count: int
    step: int
    moves: tuple[PointerStride, ...]
    counts: bool
    limit: int | None = None
    fewer: tuple[tuple[int, int], ...] = ()
    multiple: int = 1


def pieces_of(unit: KernelUnit) -> Pieces | None:
    """Return a kernel in pieces; None where it is too small, or its iterations depend on each other."""
    unit = _arranged(unit)
    for loop, wanted in _candidates(unit):
        size = unit.nests[0].sizes[loop]
        multiple = _whole_lines(unit, loop)
        step = _step(size, wanted, multiple)
        if step < size and _apart(unit, loop):
            return _cut(unit, loop, step, multiple)
    return None


def _arranged(unit: KernelUnit) -> KernelUnit:
    """Return the unit with the loops of a product merged by their class, as a library takes them."""
    if not _is_product(unit):
        return unit
    return replace(unit, nests=[merged(by_class(unit.nests[0]))])


def _is_product(unit: KernelUnit) -> bool:
    nest = unit.nests[0]
    return len(unit.nests) == 1 and not unit.rows and nest.contraction and len(nest.accesses) == 3


def _candidates(unit: KernelUnit) -> Iterator[tuple[int, int]]:
    """Yield loops that may be cut, the best first, each with how many pieces it should make."""
    nest = unit.nests[0]
    if any(SWITCH in each.switches for each in unit.nests):
        return
    if len(unit.nests) == 1 and not unit.rows and (runs := _of_weights(nest)) is not None:
        yield runs
        return
    work = sum(math.prod(each.sizes) for each in unit.nests)
    many = min(MOST, work // GRAIN)
    if _is_product(unit):
        yield from _of_product(nest, work, many)
        return
    loops = list(range(unit.rows)) or [d for d in loop_order(nest, 0) if d not in nest.reductions]
    if many > 1:
        yield from _outer_first(nest, loops, many)


def _of_weights(nest: LoopNest) -> tuple[int, int] | None:
    """Return the loop along which what a reduction reads once is cut, and in how many pieces; None for none.

    These are sums down columns, and products of few rows: reading takes longer than anything else. Where a row of what
    is read is cut, its parts are long, and each core has one.
    """
    shape = shape_of(nest, 0)
    if shape is None or not (shape.row is None or reads_once(nest)):
        return None
    read = max(nest.loads, key=lambda load: volume(nest, load.access))
    pieces = min(MOST, volume(nest, read.access) // LARGE)
    if shape.outer or pieces < 2:
        return None
    if abs(read.access.strides[shape.column]) == 1:
        runs = nest.sizes[shape.column] * element_bytes(read.type) // RUN_BYTES
        pieces = min(pieces, max(2, runs))
    return shape.column, 1 << (pieces.bit_length() - 1)


def _of_product(nest: LoopNest, work: int, many: int) -> Iterator[tuple[int, int]]:
    """Yield the loops of a product: those over matrices, then rows or columns, which repeat the smaller operand."""
    names = classes_of(nest)
    if work < LEAST_PRODUCT or "?" in names:
        return
    batches = [d for d, name in enumerate(names) if name == "batch" and nest.sizes[d] > 3]
    yield from _outer_first(nest, batches, many)
    few = 1 << ((work.bit_length() - LEAST_PRODUCT.bit_length()) // 5 + 1)
    sides = []
    for name, repeated in zip("mn", (1, 0)):
        repeats = volume(nest, nest.accesses[repeated])
        sides.append((repeats, [d for d, found in enumerate(names) if found == name]))
    for _, loops in sorted(sides):
        yield from _outer_first(nest, loops, min(few, many))


def _outer_first(nest: LoopNest, loops: Sequence[int], wanted: int) -> Iterator[tuple[int, int]]:
    """Yield the outermost loop that is long enough, else the longest."""
    if not loops:
        return
    enough = [d for d in loops if nest.sizes[d] >= wanted]
    yield (enough[0] if enough else max(loops, key=lambda d: nest.sizes[d])), wanted


def _whole_lines(unit: KernelUnit, loop: int) -> int:
    """Return what the iterations of a piece are a multiple of: along rows, pieces begin at lines of the cache."""
    along = not unit.rows and any(abs(a.strides[loop]) == 1 for a in unit.nests[0].accesses)
    return LINE if along else 1


def _step(size: int, wanted: int, multiple: int) -> int:
    """Return how many iterations a piece has: parts of equal size where there are such, else one is shorter."""
    step = -(-size // (wanted * multiple)) * multiple
    nearby = range(step, min(size, step + step // 4) + 1, multiple)
    return next((n for n in nearby if size % n == 0), step)


def _apart(unit: KernelUnit, loop: int) -> bool:
    """Tell whether iterations of a loop touch nothing that another one writes."""
    if unit.rows:
        return True  # this is what they share their rows for
    (nest,) = unit.nests
    written = unit.pointers.written_roots
    touched: dict[Root, set[Access]] = {root: set() for root in written}
    roots = unit.pointers.roots
    for access in nest.accesses:
        touched.get(roots[access.pointer], set()).add(access)
    if any(roots[gather.access.pointer] in written for gather in nest.gathers):
        return False
    return all(
        len(accesses) == 1 and next(iter(accesses)).strides[loop] for accesses in touched.values()
    )


def _cut(unit: KernelUnit, loop: int, step: int, multiple: int) -> Pieces:
    """Cut a loop of a unit into pieces of `step` iterations, a multiple of `multiple`."""
    size, limit = unit.nests[0].sizes[loop], unit.nests[0].limit(loop)
    moves: dict[tuple[int, int], int] = {}
    for nest in unit.nests:
        for begin in _begins(nest, loop):
            moves.setdefault(begin, len(moves))
    counts = any(
        isinstance(node, Index) and node.form.strides[loop]
        for nest in unit.nests
        for node in nest.code
    )
    places = unit.pointers.places
    given, number = unit.pointers.scalars, Counter(ir.IndexType.get())
    pointers = Pointers(
        [places[pointer] for pointer, _ in moves],
        {number for (pointer, _), number in moves.items() if pointer in unit.pointers.written},
        [*given, *([] if limit is None else [number]), *([number] if counts else [])],
    )
    own = None if limit is None else len(given)
    first = len(given) + (limit is not None)

    def part(length: int) -> KernelUnit:
        nests = [_part(nest, loop, length, moves, first, own) for nest in unit.nests]
        rows = unit.rows - (length == 1 and own is None and loop < unit.rows)
        return KernelUnit(nests, rows, pointers, unit.steps)

    return Pieces(
        part(step),
        part(size % step) if size % step and limit is None else None,
        -(-size // step),
        step,
        tuple(
            [PointerStride(pointer, stride * places[pointer].nbytes) for pointer, stride in moves]
        ),
        counts,
        limit,
        () if limit is None else _fewer(unit, size, -(-size // step)),
        multiple,
    )


def _fewer(unit: KernelUnit, size: int, count: int) -> tuple[tuple[int, int], ...]:
    """Return from how many iterations of a loop of `size` on there are how many pieces, `count` of all of them."""
    work = sum(math.prod(nest.sizes) for nest in unit.nests)
    found, pieces = [], 2
    while pieces <= count:
        worth = GRAIN * pieces
        if _is_product(unit):
            worth = LEAST_PRODUCT << 5 * (pieces.bit_length() - 2)
        found.append((-(-worth * size // work), pieces))
        pieces *= 2
    return tuple(found)


def _begins(nest: LoopNest, loop: int) -> list[tuple[int, int]]:
    """Return each pointer with its step from iteration to iteration; a gather's stays where its tensor begins."""
    along = [(access.pointer, access.strides[loop]) for access in nest.accesses]
    return along + [(gather.access.pointer, 0) for gather in nest.gathers]


def _part(
    nest: LoopNest,
    loop: int,
    length: int,
    moves: dict[tuple[int, int], int],
    scalar: int,
    limit: int | None,
) -> LoopNest:
    """Return a nest with `length` iterations of a loop.

    scalar: number of the first of them. limit: the scalar that says how many there are, None: all of them.
    """
    code: list[NestNode] = []
    for node in nest.code:
        if isinstance(node, Load):
            node = replace(node, access=_moved(node.access, loop, moves))
        elif isinstance(node, Gather):
            node = replace(node, access=node.access._replace(pointer=moves[node.access.pointer, 0]))
        elif isinstance(node, Index) and node.form.strides[loop]:
            scalars = (*node.form.scalars, (scalar, node.form.strides[loop]))
            node = Index(node.form._replace(scalars=scalars))
        code.append(node)
    stores = tuple([replace(s, access=_moved(s.access, loop, moves)) for s in nest.stores])
    sizes = (*nest.sizes[:loop], length, *nest.sizes[loop + 1 :])
    limits = tuple([(d, k if d != loop or limit is None else limit) for d, k in nest.limits])
    nest = replace(nest, sizes=sizes, code=tuple(code), stores=stores, limits=limits)
    if length > 1 or limit is not None:
        return nest
    keep = [d for d in range(len(sizes)) if d != loop]
    reductions = frozenset(k for k, d in enumerate(keep) if d in nest.reductions)
    return restrided(nest, tuple(sizes[d] for d in keep), reductions, keep)


def _moved(access: Access, loop: int, moves: dict[tuple[int, int], int]) -> Access:
    return access._replace(pointer=moves[access.pointer, access.strides[loop]])
