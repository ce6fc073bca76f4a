"""Let elementwise ops whose result is moved to windows run on these: what they read comes in windows, in their place.

before:  s = map(slice(redistribute(a, ..)), slice(redistribute(a, ..)));  c = redistribute(s, "[x*_{250,1,250}]")
after:   c = map(slice(redistribute(a, ..)), slice(redistribute(a, ..)))    with other windows of `a`

A stencil that is put back a row further than its first row was computed, as `u.at[1:-1].set(..)` does, is computed
where it will lie: only the edges of what it reads move. It applies where the moves of the operands take less time than
those of before and that of the result, and a rank computes no more than an eighth of its part again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from meshweave.dialects.dist import LayoutAttr
from meshweave.errors import MeshweaveError
from meshweave.ir.bindings import ir, linalg
from meshweave.ir.build import OpBuilder
from meshweave.ir.expressions import Gather, Index
from meshweave.ir.ops import producer, replace_op
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.transforms.base import erase, unused, users
from meshweave.transforms.propagation.bodies import body_of, is_tensor
from meshweave.transforms.propagation.padding import padding_safe
from meshweave.transforms.propagation.symbolic import is_given
from meshweave.transforms.propagation.values import is_made_free
from meshweave.transforms.redistribution.plans import MOVE, Plans
from meshweave.transforms.redistribution.through_slices import SLICE, read_for

INSERT = "tensor.insert_slice"
Move = tuple[ir.Value, ir.Attribute, ir.Attribute]  # value, source, target


@dataclass
class _Maps:
    """Hold elementwise ops that are to run in the layout `target`, and what they read from outside.

    ends: whether who reads the result is to see where it ends: not who puts it into a whole.
    slices: slices that only they read, with the layout in which these are to read.
    others: values that are to come in the target, with the layout in which they come now.
    before, after: the moves of what is read, as they are and as they would be.
    """

    target: ir.Attribute
    ends: bool
    ops: list[ir.Operation] = field(default_factory=list)
    slices: dict[ir.Operation, ir.Attribute] = field(default_factory=dict)
    others: dict[ir.Value, ir.Attribute] = field(default_factory=dict)
    before: set[Move] = field(default_factory=set)
    after: set[Move] = field(default_factory=set)

    def read(self, value: ir.Value, now: ir.Attribute, mesh: Mesh) -> None:
        """Note a value that one of the ops reads, in the layout `now`."""
        made = producer(value)
        if made is not None and made.name == SLICE and _only(value, self.ops):
            records = _record(made)
            if made in self.slices:
                return
            if records is not None and records["results"][0] == now:
                lies = records["operands"][0]
                wanted = read_for(made, _layout(lies), _layout(self.target), mesh, self.ends)
                if wanted is not None and not is_made_free(made.operands[0]):
                    self.slices[made] = LayoutAttr.make(wanted)
                    self._moves(made.operands[0], lies, self.slices[made])
                    return
        self.others[value] = now
        self._moves(value, now, self.target)

    def _moves(self, value: ir.Value, now: ir.Attribute, wanted: ir.Attribute) -> None:
        origin, start = _origin(value, now)
        if start != now:
            self.before.add((origin, start, now))
        if start != wanted:
            self.after.add((origin, start, wanted))


def run_in_windows(op: ir.Operation, plans: Plans) -> bool:
    """Let what makes the operand of the redistribute `op` run on the windows of its target. Return whether it does."""
    source, target = op.attributes["source"], op.attributes["target"]
    maps = _maps_before(op, target)
    if not maps.ops or not _is_near(op.results[0].type, source, target, plans.mesh):
        return False
    results = {made.results[0] for made in maps.ops}
    for made in maps.ops:
        records = _record(made)
        assert records is not None
        for value, now in zip(made.operands, records["operands"]):
            if is_tensor(value.type) and value not in results and not is_made_free(value):
                maps.read(value, now, plans.mesh)
    moved = _seconds(maps.before, plans) + plans.seconds(op.results[0].type, source, target)
    if not _seconds(maps.after, plans) < moved:
        return False
    _emit(maps)
    replace_op(op, [op.operands[0]])
    for value in {origin for origin, *_ in maps.before}:
        for user in users(value):
            move = user.operation
            if move.name == MOVE and unused(move) and not is_given(move):
                erase(move)
    return True


def _maps_before(op: ir.Operation, target: ir.Attribute) -> _Maps:
    """Return the elementwise ops that make the operand of `op` and are read by nothing else."""
    ends = any(user.operation.name != INSERT for user in users(op.results[0]))
    maps, source = _Maps(target, ends), op.attributes["source"]
    layouts = [_layout(source), _layout(target)]
    windows = any(layouts[1].window(dim) is not None for dim in range(layouts[1].ndim))
    if not windows or any(layout.partial or layout.order for layout in layouts):
        return maps
    waiting = [op.operands[0]]
    while waiting:
        value = waiting.pop()
        made = producer(value)
        if made is None or made in maps.ops or made.block != op.block:
            continue
        if _is_elementwise(made, source) and _only(value, [op, *maps.ops]):
            maps.ops.append(made)
            waiting += made.operands
    return maps


def _is_elementwise(op: ir.Operation, layout: ir.Attribute) -> bool:
    """Tell whether an op computes each element of its result from those of its operands, all in this layout."""
    records = _record(op)
    if op.name not in ("linalg.map", "linalg.generic") or len(op.results) != 1 or records is None:
        return False
    maps = [a.value for a in linalg.get_indexing_maps(op.opview)]
    if any(m != ir.AffineMap.get_identity(m.n_dims) for m in maps):
        return False
    found = [*records["operands"], *records["results"]]
    if any(each != layout for each in found) or len(records["operands"]) != len(op.operands):
        return False
    body = body_of(op)
    return (
        body is not None
        and padding_safe(body)
        and not any(isinstance(node, Index | Gather) for node in body.nodes)
    )


def _is_near(type_: ir.Type, source: ir.Attribute, target: ir.Attribute, mesh: Mesh) -> bool:
    """Tell whether a rank has hardly more elements in the target than in the source."""
    shape = tuple(type_.shape)
    try:
        now, then = (prod(_layout(a).local_shape(mesh, shape)) for a in (source, target))
    except MeshweaveError:
        return False
    return 8 * then <= 9 * now


def _only(value: ir.Value, ops: Iterable[ir.Operation]) -> bool:
    """Tell whether these ops alone read a value."""
    known = list(ops)
    return all(user.operation in known for user in users(value))


def _record(op: ir.Operation) -> dict[str, list[ir.Attribute]] | None:
    """Return the layouts of an op's operands and results; None where it has none, or hands on others."""
    record = op.attributes.get("dist.layouts")
    if record is None or "values" in ir.DictAttr(record):
        return None
    return {name: list(ir.DictAttr(record)[name]) for name in ("operands", "results")}


def _layout(attr: ir.Attribute) -> Layout:
    return LayoutAttr(attr).layout


def _origin(value: ir.Value, now: ir.Attribute) -> tuple[ir.Value, ir.Attribute]:
    """Return what a value is moved from, and its layout there; the value itself where it is not moved."""
    made = producer(value)
    if made is not None and made.name == MOVE and not is_given(made):
        return made.operands[0], made.attributes["source"]
    return value, now


def _seconds(moves: Iterable[Move], plans: Plans) -> float:
    return sum(plans.seconds(value.type, source, target) for value, source, target in moves)


def _emit(maps: _Maps) -> None:
    """Let the ops run in the target, and what they read come in it."""
    for made, wanted in maps.slices.items():
        records = _record(made)
        assert records is not None
        made.operands[0] = _moved(made.operands[0], records["operands"][0], wanted, made)
        _say(made, [wanted, *records["operands"][1:]], [maps.target])
    for op in maps.ops:
        for i, value in enumerate(op.operands):
            if value in maps.others:
                op.operands[i] = _moved(value, maps.others[value], maps.target, op)
        _say(op, [maps.target] * len(op.operands), [maps.target])


def _moved(
    value: ir.Value, now: ir.Attribute, wanted: ir.Attribute, reader: ir.Operation
) -> ir.Value:
    """Return a value in the layout `wanted`, moved from where it was before any move."""
    origin, start = _origin(value, now)
    if start == wanted:
        return origin
    b = OpBuilder.before(reader)
    return b.one(MOVE, value.type, origin, source=start, target=wanted)


def _say(op: ir.Operation, operands: list[ir.Attribute], results: list[ir.Attribute]) -> None:
    entry = {"operands": ir.ArrayAttr.get(operands), "results": ir.ArrayAttr.get(results)}
    op.attributes["dist.layouts"] = ir.DictAttr.get(entry)
