"""List the ops of a whole program, once layouts are chosen and moves are planned: what a page shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from meshweave.dialects.dist import LayoutAttr
from meshweave.ir.bindings import ir
from meshweave.ir.locations import location_text, numbers_in
from meshweave.layout import Layout, Mesh
from meshweave.report import OpRow
from meshweave.see.words import OpName
from meshweave.transforms.base import functions, mesh_of_module, ops_of
from meshweave.transforms.redistribution.plans import MOVE
from meshweave.transforms.slicing.ledger import REGION, number

_AROUND = ("hint.region", "scf.")
_LEFT_OUT = ("tensor.empty", "linalg.fill", "arith.constant", "dist.mesh", "func.return")


def outline(module: ir.Module) -> tuple[OpRow, ...]:
    """Return the ops of a module between legalisation and partition, the program's own first, then those it calls."""
    mesh = mesh_of_module(module) or Mesh()
    calls = _calls(module)
    found = []
    for f in functions(module):
        name = f.operation.attributes["sym_name"].value
        for op, around in _inside(f.operation, _Surroundings()):
            row = _row(op, name, calls.get(name, 1), mesh)
            if row is not None:
                found.append((replace(row, region=around.region, rounds=around.rounds), op))
    found.sort(key=lambda pair: pair[0].function != "main")
    numbers = {result: n for n, (_, op) in enumerate(found) for result in op.results}
    return tuple(
        replace(row, reads=tuple(dict.fromkeys(numbers[v] for v in op.operands if v in numbers)))
        for row, op in found
    )


@dataclass(frozen=True)
class _Surroundings:
    """Hold what stands around an op: the number of a region of hints, and the rounds of loops."""

    region: int = -1
    rounds: int = 1

    def within(self, op: ir.Operation) -> _Surroundings:
        """Return what stands around the ops of a region or a loop."""
        if op.name == "hint.region":
            return replace(self, region=number(op, REGION))
        return replace(self, rounds=self.rounds * _rounds(op))


def _inside(
    op: ir.Operation, around: _Surroundings
) -> Iterator[tuple[ir.Operation, _Surroundings]]:
    """Yield the ops within one, those of regions of hints and of control flow in the place of these."""
    for region in op.regions:
        for block in region.blocks:
            for view in block.operations:
                inner = view.operation
                if inner.name.startswith(_AROUND):
                    yield from _inside(inner, around.within(inner))
                else:
                    yield inner, around


def _rounds(op: ir.Operation) -> int:
    """Return how often a loop runs, once for what no numbers say."""
    if op.name != "scf.for":
        return 1
    bounds = [_number(value) for value in list(op.operands)[:3]]
    if None in bounds:
        return 1
    low, high, step = (bound or 0 for bound in bounds)
    return max(1, -(-(high - low) // max(1, step)))


def _number(value: ir.Value) -> int | None:
    owner = getattr(value.owner, "operation", None)  # none of an argument of a block
    if owner is None or owner.name != "arith.constant":
        return None
    number: int = ir.IntegerAttr(owner.attributes["value"]).value
    return number


def _calls(module: ir.Module) -> Counter[str]:
    """Count how often a step calls each function, of calls that no loop repeats."""
    names = [view.operation.attributes["callee"].value for view in ops_of(module, "func.call")]
    return Counter(names)


def _row(op: ir.Operation, function: str, times: int, mesh: Mesh) -> OpRow | None:
    if op.name in _LEFT_OUT or not len(op.results):
        return None
    type_ = op.results[0].type
    if not isinstance(type_, ir.RankedTensorType):
        return None
    shape = tuple(type_.shape)
    layout = _layout(op, len(shape))
    numbers = numbers_in(op.location) if op.name == MOVE else ()
    callee = op.attributes["callee"].value if op.name == "func.call" else ""
    name = OpName.of(op)
    return OpRow(
        *(
            function,
            times,
            f"call of {callee}" if callee else name.kind,
            "x".join(map(str, (*shape, type_.element_type))),
            shape,
        ),
        *(str(layout), location_text(op), _work(op, layout, mesh)),
        numbers[0] if numbers else None,
        *(callee, name.owner, name.primitive or name.code),
    )


def _layout(op: ir.Operation, ndim: int) -> Layout:
    if op.name == MOVE:
        found: Layout = LayoutAttr(op.attributes["target"]).layout
        return found
    record = op.attributes.get("dist.layouts")
    results = list(ir.DictAttr(record)["results"]) if record is not None else []
    if len(results) and not isinstance(results[0], ir.UnitAttr):
        own: Layout = LayoutAttr(results[0]).layout
        return own
    return Layout.replicated(ndim)


def _work(op: ir.Operation, layout: Layout, mesh: Mesh) -> int:
    """Count the iterations of the loops of an op on a rank, once for what stands in a loop."""
    if not op.name.startswith(("linalg.", "math.", "arith.")):
        return 0
    result = ir.RankedTensorType(op.results[0].type)
    whole = _iterations(op) if "indexing_maps" in op.attributes else prod(result.shape)
    axes = {axis for dim in range(layout.ndim) for axis in layout.axes_of(dim)}
    axes |= {axis for part in layout.partial for axis in part.axes}
    names = [name for name in mesh.names if name in axes]
    return -(-whole // max(1, prod(mesh.axis_count([name]) for name in names)))


def _iterations(op: ir.Operation) -> int:
    """Count the iterations of a linalg.generic, of all ranks together."""
    sizes: dict[int, int] = {}
    for value, attr in zip(op.operands, op.attributes["indexing_maps"]):
        if not isinstance(value.type, ir.RankedTensorType):
            continue
        for expression, size in zip(ir.AffineMapAttr(attr).value.results, value.type.shape):
            if isinstance(expression, ir.AffineDimExpr):
                sizes[expression.position] = size
    return prod(sizes.values())
