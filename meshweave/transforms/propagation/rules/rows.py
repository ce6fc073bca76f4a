"""Read the rules of ops of this project that work on rows or matrices, and of collectives along time."""

from __future__ import annotations

import math

from meshweave.ir.bindings import ir
from meshweave.ir.fft import Transform
from meshweave.ir.routines import RoutineCall
from meshweave.ir.scans import Scan
from meshweave.ir.scatters import Scatter
from meshweave.ir.wanted import FEW
from meshweave.layout.factors import (
    JOINED,
    ORDERED,
    PARALLEL,
    PLACED,
    REDUCTION,
    SORTED,
    WHOLE,
    Dims,
    Factor,
    Rule,
)
from meshweave.transforms.propagation.bodies import (
    Captured,
    body_of,
    scan_combiner,
    scatter_combiner,
)
from meshweave.transforms.propagation.padding import padding_safe
from meshweave.transforms.propagation.rules.basic import (
    make_rule,
    own_dims,
    whole_rule,
)


def scan_rule(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of a scan: the dims go through, but ranks wait for those before them along the scanned one.

    What these have made must be known without their elements: it is whole unless the body says how it combines.
    """
    if captured:
        return whole_rule(op, captured)
    what, shape = Scan(op), list(op.results[0].type.shape)
    ordered = WHOLE if scan_combiner(op) is None else ORDERED
    factors = [
        Factor(extent, ordered if d == what.dim else PARALLEL) for d, extent in enumerate(shape)
    ]
    whole: Dims = tuple((d,) for d in range(len(shape)))
    rest: Dims = tuple((d,) for d in what.kept)
    dims: list[Dims | None] = [*[whole] * what.count, *[rest] * what.count, *[whole] * what.count]
    types, results = [v.type for v in op.operands], [r.type for r in op.results]
    return make_rule(op.name, factors, types, results, dims, padding_safe=padding_safe(body_of(op)))


def order_rule(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of an order: rows go through, the dim is whole, and so are its places.

    Where few places are wanted each rank may find as many of its own, of which all find the first.
    """
    (given,), (made,) = [v.type for v in op.operands], [r.type for r in op.results]
    along = op.attributes["dim"].value
    few = FEW * made.shape[along] <= given.shape[along] and given.shape[along] < 1 << 31
    kind = JOINED if few else WHOLE
    factors = [Factor(n, kind if d == along else PARALLEL) for d, n in enumerate(given.shape)]
    factors.append(Factor(made.shape[along], WHOLE))
    mine: Dims = tuple((d,) for d in range(len(given.shape)))
    theirs: Dims = tuple((len(given.shape) if d == along else d,) for d in range(len(given.shape)))
    even = (along,) if few else ()
    return make_rule(op.name, factors, [given], [made], [mine, theirs], even=even)


def sort_rule(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of a sort: rows go through, of which ranks may have parts, before and after."""
    types, results = [v.type for v in op.operands], [r.type for r in op.results]
    along, shape = op.attributes["dim"].value, list(types[0].shape)
    plain = all(isinstance(t.element_type, (ir.FloatType, ir.IntegerType)) for t in types)
    kind = SORTED if plain and 0 < math.prod(shape) < 1 << 31 else WHOLE
    factors = [Factor(n, kind if d == along else PARALLEL) for d, n in enumerate(shape)]
    row: Dims = tuple((d,) for d in range(len(shape)))
    dims: list[Dims | None] = [row] * (len(types) + len(results))
    return make_rule(op.name, factors, types, results, dims)


def lapack_rule(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of a LAPACK routine: each matrix of the batch apart, its dims whole but for those that are free."""
    call = RoutineCall.of(op)
    ndim, free = len(call.batch), call.row.free
    factors = [Factor(n, PARALLEL) for n in (*call.batch, *call.extents(free))]
    dims: list[Dims | None] = []
    for letters in call.row.tensors:
        mine = [(d,) for d in range(ndim)]
        for letter in letters:
            if letter in free:
                mine.append((ndim + free.index(letter),))
            else:
                mine.append((len(factors),))
                factors.append(Factor(call.sizes[letter], WHOLE))
        dims.append(tuple(mine))
    given, made = [v.type for v in op.operands], [r.type for r in op.results]
    return make_rule(op.name, factors, given, made, dims)


def fft_rule(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of a transform: all dims go through but its own, which is whole on each side, and that of parts."""
    dim, kept = Transform.of(op).dim, list(Transform.of(op).shape)
    factors = [Factor(1 if d == dim else n, PARALLEL) for d, n in enumerate(kept)]
    factors[dim] = Factor(1, WHOLE)
    given, made = [v.type for v in op.operands], [r.type for r in op.results]
    dims: list[Dims | None] = []
    for type_ in (*given, *made):
        mine = [(d,) for d in range(len(kept))]
        factors.append(Factor(type_.shape[dim], WHOLE))
        mine[dim] = (len(factors) - 1,)
        if len(type_.shape) > len(kept):
            factors.append(Factor(type_.shape[-1], WHOLE))
            mine.append((len(factors) - 1,))
        dims.append(tuple(mine))
    return make_rule(op.name, factors, given, made, dims)


def host_rule(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of a function of Python: it sees whole tensors, and gives whole ones."""
    given, made = [v.type for v in op.operands], [r.type for r in op.results]
    factors = list[Factor]()
    dims = [own_dims(type_, factors, WHOLE) for type_ in (*given, *made)]
    return make_rule(op.name, factors, given, made, dims)


def scatter_rule(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of a scatter: loops of dims go through, others are reduced; ranks leave out places of others."""
    if captured:
        return whole_rule(op, captured)
    what, kind = Scatter(op), scatter_combiner(op)
    others = WHOLE if kind is None else REDUCTION
    factors = [Factor(n, PARALLEL if k in what.to else others) for k, n in enumerate(what.sizes)]
    shape = op.results[0].type.shape
    factors += [Factor(shape[d], PLACED) for d in what.dims.values()]
    types, results = [v.type for v in op.operands], [r.type for r in op.results]
    rows = [*what.rows, *[what.to] * (2 * what.count)]
    dims: list[Dims | None] = [tuple((k,) for k in row) for row in rows]
    inits = tuple(range(len(types) - what.count, len(types)))
    safe = padding_safe(body_of(op))
    return make_rule(
        op.name, factors, types, results, dims, reduction=kind, inits=inits, padding_safe=safe
    )


def collective_rule(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of a collective of the local view, seen along an axis that it does not name: a time axis.

    Dims that it cuts or concatenates must be whole, the others go through.
    """
    source, result = op.operands[0].type, op.results[0].type
    named = [op.attributes.get(n) for n in ("dim", "split_dim", "concat_dim")]
    whole = {a.value for a in named if a is not None}
    factors, mine, theirs = [], [], []
    for d, n in enumerate(source.shape):
        factors.append(Factor(n, WHOLE if d in whole else PARALLEL))
        mine.append((len(factors) - 1,))
        if d in whole:
            factors.append(Factor(result.shape[d], WHOLE))
        theirs.append((len(factors) - 1,))
    return make_rule(op.name, factors, [source], [result], [tuple(mine), tuple(theirs)])
