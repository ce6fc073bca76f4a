"""Write products of which a condition keeps a part of the rows or of the depth: one call of the library for each run.

Experts, `ragged_dot` and `torch._grouped_mm` are such products: each row has one matrix of several, and the condition
says which. In the program as written all rows meet all matrices, zeros where they do not belong:

    c[m, n] = sum over g, k of (inside(g, m) ? a[m, k] : 0) * b[g, k, n]        rows: inside(g, m)
    c[g, k, n] = sum over m of (inside(g, m) ? a[m, k] : 0) * b[m, n]           depth: inside(g, m)

For each iteration of the loops around, the condition is evaluated along the rows (the depth), and each run for which it
holds is one GEMM, or a product with a vector where it is one row. Zeros that are multiplied by what is no finite number
are left out as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from meshweave.ir.expressions import Accumulator, Apply, Load, is_number, needed
from meshweave.lowering.cpu.loops import NestLoops
from meshweave.lowering.cpu.products.blas import (
    SYMBOLS,
    Gemm,
    call,
    call_row,
    candidates,
    class_order,
    starts_at_zero,
)
from meshweave.lowering.cpu.text import FunctionWriter
from meshweave.lowering.nests.bind import LoopNest, loops_of, merged, reordered
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value


@dataclass(frozen=True)
class GroupedProduct:
    """Describe a product of which conditions keep a part.

    nest: with all that the conditions read. gemm: of the nest without them. conditions: the nodes that must all hold.
    along: the loop of the product, over rows or the depth, that the conditions depend on.
    """

    nest: LoopNest
    gemm: Gemm
    conditions: tuple[int, ...]
    along: int

    @property
    def outer(self) -> list[int]:
        """List the loops around the runs, those that do not reduce first."""
        return sorted(self.gemm.outer, key=lambda d: (d in self.nest.reductions, d))


def groups_of(nest: LoopNest) -> GroupedProduct | None:
    """Return the product that a contraction is where conditions keep a part of it; None for any other."""
    found = _factors(nest)
    if found is None:
        return None
    a, b, conditions = found
    nest = merged(reordered(nest, class_order(_whole(nest, a, b))))
    depends = frozenset[int]().union(*(loops_of(nest)[k] for k in conditions))
    made = []
    for gemm in candidates(_whole(nest, a, b)):
        along = [d for d in (gemm.m, gemm.k) if d in depends]
        if len(along) == 1 and gemm.n not in depends:
            made.append(GroupedProduct(nest, gemm, conditions, along[0]))
    return max(made, key=lambda one: one.gemm.work, default=None)


def _factors(nest: LoopNest) -> tuple[int, int, tuple[int, ...]] | None:
    """Return the loads that are multiplied, and the conditions on which they are; None without any."""
    if not nest.contraction or not nest.library or len(nest.stores) != 1:
        return None
    store, code = nest.stores[0], nest.code
    total = code[store.value]
    if str(store.type) not in SYMBOLS or not starts_at_zero(nest) or not isinstance(total, Apply):
        return None
    terms = [k for k in total.operands if not isinstance(code[k], Accumulator)]
    product = code[terms[0]] if total.name == "arith.addf" and len(terms) == 1 else None
    if not isinstance(product, Apply) or product.name != "arith.mulf":
        return None
    read, conditions = [], []
    for number in product.operands:
        node = code[number]
        if isinstance(node, Apply) and node.name == "arith.select":
            condition, number, other = node.operands
            if not is_number(code[other], 0.0):
                return None
            conditions.append(condition)
        if not isinstance(code[number], Load):
            return None
        read.append(number)
    return (read[0], read[1], tuple(conditions)) if conditions else None


def _whole(nest: LoopNest, a: int, b: int) -> LoopNest:
    """Return the product of two loads of a nest without what it is subject to."""
    store = nest.stores[0]
    first, second = nest.code[a], nest.code[b]
    total = nest.code[store.value]
    assert isinstance(total, Apply)
    start = () if store.initial is None else (nest.code[store.initial],)
    made = replace(store, initial=None if store.initial is None else 2)
    return replace(nest, code=(first, second, *start), stores=(made,))


def groups_text(name: str, unit: KernelUnit, product: GroupedProduct) -> str:
    """Write the function `name` that multiplies run after run."""
    writer = FunctionWriter(unit)
    loops = NestLoops(writer, product.nest, ())
    loops.wanted = needed(product.nest.code, product.conditions)
    gemm, nest = product.gemm, product.nest
    cleared = nest.stores[0].initial is None
    for dim in product.outer:
        if dim in nest.reductions and not cleared:
            _clear(writer, loops, gemm)
            cleared = True
        loops.place[dim] = writer.open(writer.end(nest, dim))
    if not cleared:
        _clear(writer, loops, gemm)
    _runs(writer, loops, product)
    for _ in product.outer:
        writer.close()
    return writer.text(name)


def _clear(writer: FunctionWriter, loops: NestLoops, gemm: Gemm) -> None:
    """Begin with zeros: no run may come."""
    place, kept = loops.place, list(loops.place)
    dims = [d for d in (gemm.m, gemm.n) if d >= 0]
    for dim in dims:
        place[dim] = writer.open(writer.end(gemm.nest, dim))
    zero = writer.constant(0.0, gemm.dtype)
    writer.store(zero, writer.frame.address(gemm.c, gemm.dtype, place))
    for _ in dims:
        writer.close()
    loops.place = kept


def _runs(writer: FunctionWriter, loops: NestLoops, product: GroupedProduct) -> None:
    """Find the runs of iterations for which the conditions hold, and multiply each."""
    none, end = writer.number(-1), writer.end(product.nest, product.along)
    multiply = _multiplication(writer, list(loops.place), product)
    loop = writer.open_loop(0, end, 1, [none])
    (begin,), here = loop.carried, loop.counter
    held = _holds(loops, product, here)
    going = writer.compare("sge", begin, 0)

    def inside() -> Sequence[Value]:
        return [writer.select(going, begin, here)]

    def outside() -> Sequence[Value]:
        writer.if_(going, lambda: multiply(begin, here - begin))
        return [none]

    writer.close(writer.if_(held, inside, outside, ["i64"]))
    (begin,) = loop.results
    length = writer.as_value(end, "i64") - begin
    writer.if_(writer.compare("sge", begin, 0), lambda: multiply(begin, length))


def _holds(loops: NestLoops, product: GroupedProduct, here: Value) -> Value:
    """Return whether all conditions hold in an iteration."""
    with loops.at({product.along: here}):
        first, *others = loops.compute(product.conditions)
    for other in others:
        first = first & other
    return first


def _multiplication(
    writer: FunctionWriter, place: list[Value | None], product: GroupedProduct
) -> Callable[[Value, Value], None]:
    """Return what calls the library on a run: (first iteration, how many)."""
    gemm, along = product.gemm, product.along

    def multiply(begin: Value, length: Value) -> None:
        there = list(place)
        there[along] = begin

        def run() -> None:
            call(writer, gemm, there, (along, writer.convert("arith.trunci", length, "i32")))

        if along == gemm.m:
            one = writer.compare("eq", length, 1)
            writer.if_(one, lambda: call_row(writer, gemm, there), run)
        else:
            run()

    return multiply
