"""Build `mw.scan`, and read one back: frontends make them, transforms cut them, the lowering makes loops of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshweave.ir.bindings import ir
from meshweave.ir.build import IteratorType, OpBuilder, Values, dims_map, i64
from meshweave.ir.ops import body_of, clone_body

Combine = Callable[[OpBuilder, list[ir.Value]], Values]
"""Build what is combined by then: from one value for each input of what is combined so far, then an element of each."""

SCAN = "mw.scan"


@dataclass(frozen=True)
class Scan:
    """Hold what an `mw.scan` says."""

    op: ir.Operation

    @property
    def count(self) -> int:
        """Return how many tensors are scanned together."""
        return len(self.op.results)

    @property
    def inputs(self) -> list[ir.Value]:
        """Return the tensors that are scanned."""
        return list(self.op.operands)[: self.count]

    @property
    def starts(self) -> list[ir.Value]:
        """Return what each begins with."""
        return list(self.op.operands)[self.count :]

    @property
    def dim(self) -> int:
        """Return the dim along which the elements are combined."""
        return int(self.op.attributes["dim"].value)

    @property
    def reverse(self) -> bool:
        """Tell whether it runs from the last element to the first."""
        return "reverse" in self.op.attributes

    @property
    def size(self) -> int:
        """Return the number of elements along the dim."""
        return int(self.op.operands[0].type.shape[self.dim])

    @property
    def kept(self) -> list[int]:
        """Return the other dims."""
        return [d for d in range(len(self.op.operands[0].type.shape)) if d != self.dim]

    def combine(self, b: OpBuilder, scalars: list[ir.Value]) -> list[ir.Value]:
        """Copy the body to where `b` builds, on `scalars`."""
        return clone_body(body_of(self.op), scalars, b.ip)


def scan(
    b: OpBuilder,
    inputs: Values,
    starts: Values,
    dim: int,
    combine: Combine,
    reverse: bool = False,
) -> list[ir.Value]:
    """Make an `mw.scan` along `dim`; starts: a tensor without that dim for each input."""
    attributes: dict[str, ir.Attribute] = {"dim": i64(dim)}
    if reverse:
        attributes["reverse"] = ir.UnitAttr.get()
    op = b.op(SCAN, [v.type for v in inputs], [*inputs, *starts], 1, **attributes)
    kinds = [v.type.element_type for v in (*inputs, *starts)]
    inner, arguments = b.block(op.regions[0], kinds)
    inner.op("mw.yield", [], combine(inner, arguments))
    return list(op.results)


def generic_scan(op: ir.Operation) -> list[ir.Value]:
    """Make the linalg.generic of a scan: loops over its dims, of which the scanned one is a reduction in order.

    It gives what is combined in the end, then the results. Return these.
    """
    what, b = Scan(op), OpBuilder.before(op)
    ndim, shape = len(what.kept) + 1, op.results[0].type.shape
    kinds = [
        IteratorType.REDUCTION if d == what.dim else IteratorType.PARALLEL for d in range(ndim)
    ]
    exprs = [ir.AffineDimExpr.get(d) for d in range(ndim)]
    if what.reverse:
        exprs[what.dim] = shape[what.dim] - 1 - exprs[what.dim]
    here, rest = ir.AffineMap.get(ndim, 0, exprs), dims_map(ndim, what.kept)
    maps = [here] * what.count + [rest] * what.count + [here] * what.count
    outs = [*what.starts, *[b.empty(r.type) for r in op.results]]

    def body(inner: OpBuilder, arguments: list[ir.Value]) -> Values:
        elements, combined = arguments[: what.count], arguments[what.count : 2 * what.count]
        made = what.combine(inner, [*combined, *elements])
        return [*made, *made]

    made = b.generic(what.inputs, outs, maps, kinds, body)
    return list(made.results)[what.count :]


def by_doubling(op: ir.Operation) -> list[ir.Value]:
    """Make elementwise ops of a scan: each element with that 1, 2, 4, ... places before, in log2(size) rounds.

    For targets whose kernels have no order; n log n steps in all.
    """
    what, b = Scan(op), OpBuilder.before(op)
    values, step = what.inputs, 1
    while step < what.size:
        values = _doubled(b, what, values, step)
        step *= 2
    every = [list(range(len(what.kept) + 1))] * what.count
    return _mapped(b, what, [what.kept] * what.count + every, [*what.starts, *values])


def _doubled(b: OpBuilder, what: Scan, values: Values, step: int) -> list[ir.Value]:
    """Combine each element with that `step` places before it."""
    shape = list(values[0].type.shape)
    shape[what.dim] -= step
    first, later = [[at if d == what.dim else 0 for d in range(len(shape))] for at in (0, step)]
    begin, end = (later, first) if what.reverse else (first, later)

    def part(value: ir.Value, at: Sequence[int]) -> ir.Value:
        return b.extract_slice(
            value, ir.RankedTensorType.get(shape, value.type.element_type), at, shape
        )

    pairs = [*[part(v, begin) for v in values], *[part(v, end) for v in values]]
    every = [range(len(shape))] * len(pairs)
    made = _mapped(b, what, every, pairs)
    return [b.insert_slice(m, v, end, shape) for m, v in zip(made, values, strict=True)]


def _mapped(
    b: OpBuilder, what: Scan, dims: Sequence[Sequence[int]], given: Values
) -> list[ir.Value]:
    """Apply the body of a scan to each element of tensors. dims: the loops that the dims of each run with."""
    ndim = len(what.kept) + 1
    outs = [b.empty(v.type) for v in given[what.count :]]
    maps = [dims_map(ndim, d) for d in dims] + [ir.AffineMap.get_identity(ndim)] * len(outs)
    kinds = [IteratorType.PARALLEL] * ndim
    body: Combine = lambda inner, arguments: what.combine(inner, arguments[: len(given)])  # noqa: E731
    return list(b.generic(given, outs, maps, kinds, body).results)
