"""Collectives through fusion and bufferisation: each `dist` op becomes tensor ops around a
*carrier*.

A carrier is a linalg.generic with `mw.call = i` and `mw.collective`, from the tensor sent to a
tensor.empty received; the step function calls collective i there. Data that a collective does not
find or leave back to back is moved around it: the member dim goes first (`to_front`), or from the
front to where it belongs (`from_front`), as transposes and reshapes that fusion folds into what is
next to them. Uneven dims are padded before and cut after.

A collective that dist-overlap has marked `dist.early` is two carriers: one that starts it, where it
stands, and one right before the first reader, `mw.wait`, which updates what the first made and reads
what it sends: so both buffers stay until then, and nobody looks before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meshweave.bindings import ir
from meshweave.bundle import CollectiveInfo, OpInfo
from meshweave.dialects.dist import COLLECTIVES, LayoutAttr, axes_of
from meshweave.errors import CompileError, MeshweaveError
from meshweave.layout.mesh import Mesh
from meshweave.locations import location_text
from meshweave.lowering.collectives import Collective
from meshweave.lowering.emit import Call
from meshweave.lowering.exchange import Box, Data, data_of, data_of_boxes
from meshweave.lowering.items import CARRIER
from meshweave.lowering.reshape import Reshaper
from meshweave.lowering.steps import EARLY, SCRATCH, WAIT, element_bytes
from meshweave.lowering.trips import trips_around
from meshweave.plan.cost import received
from meshweave.plan.exchange import Table
from meshweave.transforms.base import ops_of, walk
from meshweave.transforms.neutral import neutral_attr
from meshweave.transforms.overlap import MARK

COLLECTIVE = "mw.collective"
MOST_MEMBERS = 64  # the table of a direct move has a piece for each pair of members
MOST_LISTED = 1024  # entries of the manifest for one collective; of more only the sum of the bytes
LEAST_RUN = 16  # bytes; shorter ones would be a part of each cache line that all members read
_INDEX = "mw_member_"  # function that stands for a member index until everything is inlined


class Collectives:
    """The collectives of a program. Number i of the carriers is `calls[i]`; groups are numbered as
    they appear.
    """

    target = "cpu"

    def __init__(self, module: Any, mesh: str, engine: str = "local") -> None:
        """Replaces the dist ops of `module`, whose mesh is that of the text, for an engine."""
        self.engine = engine
        self.mesh = Mesh.parse(mesh)  # no text: one rank
        self.groups: tuple[tuple[str, ...], ...] = ()
        self.calls: list[Call] = []
        self.infos: list[CollectiveInfo] = []
        self.ops: list[OpInfo] = []
        self.sources: list[OpInfo] = []  # of `infos`, once numbered
        self._module = module
        self._declared: set[int] = set()
        self._wait: Any = None  # what ends the op at work, if that is started early
        for op in ops_of(module, "dist.axis_index", *COLLECTIVES):
            self._replace(op.operation)
        for op in ops_of(module, "dist.mesh"):
            op.operation.erase()
        self._refuse_others()

    @property
    def in_place(self) -> frozenset[int]:
        """The calls whose two buffers may be one."""
        return frozenset(
            k for k, c in enumerate(self.calls) if c.symbol.startswith("mw_all_reduce")
        )

    def renumber(self, functions: Sequence[tuple[Any, int]]) -> None:
        """Number the collectives left in `functions` in program order: op numbers begin at 1. Call
        it when nothing is inlined or removed any more. With each function, how often a step runs
        it; in a loop of a known number of trips a collective is listed as often as it runs.
        """
        calls, infos, ops, sources = [], [], [], []
        for function, times in functions:
            for op in ops_of(function, "linalg.generic"):
                attributes = op.operation.attributes
                if WAIT in attributes:  # of a call that stands before it
                    attributes[CARRIER] = op.operation.operands[1].owner.attributes[CARRIER]
                if COLLECTIVE not in attributes:
                    continue
                old = attributes[CARRIER].value
                attributes[CARRIER] = _i64(len(calls))
                op_id = len(calls) + 1
                calls.append(replace(self.calls[old], op_id=op_id))
                listed = _listed(self.infos[old], times * trips_around(op.operation))
                infos += listed
                ops.append(replace(self.ops[old], id=op_id))
                sources += [ops[-1]] * len(listed)
        self.calls, self.infos, self.ops, self.sources = calls, infos, ops, sources

    def indices(self, function: Any) -> list[int]:
        """Make the member indices that `function` asks for arguments at its end; the group of each."""
        block = function.operation.regions[0].blocks[0]
        arguments: dict[str, Any] = {}
        for op in ops_of(function, "func.call"):
            name = op.operation.attributes["callee"].value
            if name.startswith(_INDEX):
                if name not in arguments:
                    arguments[name] = block.add_argument(ir.IndexType.get(), op.operation.location)
                op.operation.results[0].replace_all_uses_with(arguments[name])
                op.operation.erase()
        return [int(name[len(_INDEX) :]) for name in arguments]

    # One op.

    def _replace(self, op: Any) -> None:
        make = _MAKERS.get(op.name)
        where = location_text(op.location)
        if make is None:
            raise CompileError(f"{op.name}: no lowering for this op on target {self.target}", where)
        axes, self._wait = axes_of(op), None
        try:
            members = math.prod(self.mesh.size(axis) for axis in axes)
            if members == 1 and op.name not in ("dist.axis_index", "dist.exchange"):
                result = op.operands[0]
                for dim, extent in enumerate(op.results[0].type.shape):  # padding is cut off
                    result = Reshaper(op).cut(result, dim, extent)
            else:
                result = make(self, op, Reshaper(op), axes, members)
        except MeshweaveError as error:
            raise CompileError(error.message, error.location or where) from None
        if self._wait is not None:
            _move_behind(self._wait, op)
        op.results[0].replace_all_uses_with(result)
        op.erase()

    def _group(self, axes: tuple[str, ...]) -> int:
        if axes not in self.groups:
            self.groups = (*self.groups, axes)
        return self.groups.index(axes)

    def _member(self, op: Any, axes: tuple[str, ...]) -> Any:
        """This rank's member index in the group over `axes`."""
        index = ir.IndexType.get()
        if math.prod(self.mesh.size(a) for a in axes) == 1:
            return ir.Operation.create(
                "arith.constant", results=[index], attributes={"value": ir.IntegerAttr.get(index, 0)},
                loc=op.location, ip=ir.InsertionPoint(op),
            ).result  # fmt: skip
        group = self._group(axes)
        name = f"{_INDEX}{group}"
        if group not in self._declared:
            self._declared.add(group)
            self._module.body.append(ir.Operation.parse(f"func.func private @{name}() -> index"))
        return ir.Operation.create(
            "func.call", results=[index], attributes={"callee": ir.FlatSymbolRefAttr.get(name)},
            loc=op.location, ip=ir.InsertionPoint(op),
        ).result  # fmt: skip

    def _carry(
        self, op: Any, collective: Collective, axes: tuple[str, ...], sent: Any, shape: Sequence[int],
        arguments: tuple[int | str, ...], unit: int, data: Data | None = None,
        runs: frozenset[int] = frozenset(),
    ) -> Any:  # fmt: skip
        """The carrier of a call that sends `sent` and gives a tensor of `shape`. unit: bytes, as
        plan.cost.received. data: of an exchange. runs: as of `Call`, unless there are data.
        """
        if collective.kind:
            collective.checked()
        element = sent.type.element_type
        members = math.prod(self.mesh.size(a) for a in axes)
        what = "relayout" if collective.op == "relayout" else op.name.removeprefix("dist.")
        self.infos.append(CollectiveInfo(what, axes, received(what, unit, members)))
        given = op.operands[0].type
        size = "x".join(map(str, given.shape)) or "scalar"
        within = f"[{','.join(axes)}]" if axes else ""
        name = f"{what}{within} {given.element_type} {size}"
        self.ops.append(OpInfo(0, name, location_text(op.location)))
        group = self._group(axes) if axes else 0
        words, runs = (data.words, data.runs) if data is not None else (b"", runs)
        early = _nbytes(sent) if MARK in op.attributes and axes else 0
        self.calls.append(Call(collective.symbol, group, 0, arguments, words, early, runs))
        type_ = ir.RankedTensorType.get(list(shape), element)
        empty = ir.Operation.create(
            "tensor.empty", results=[type_], loc=op.location, ip=ir.InsertionPoint(op)
        ).result
        number, unit_attr = _i64(len(self.calls) - 1), ir.UnitAttr.get()
        attributes = {CARRIER: number, COLLECTIVE: unit_attr}
        if data is not None and data.staging:
            attributes[SCRATCH] = _i64(data.staging)
        if not early:
            return _generic(op, sent, empty, attributes).results[0]
        started = _generic(op, sent, empty, attributes | {EARLY: unit_attr})
        self._wait = _generic(op, sent, started.results[0], {CARRIER: number, WAIT: unit_attr})
        return self._wait.results[0]

    def _axis_index(self, op: Any, at: Reshaper, axes: Any, members: int) -> Any:
        return self._member(op, axes)

    def _all_slice(self, op: Any, at: Reshaper, axes: Any, members: int) -> Any:
        dim, x = op.attributes["dim"].value, op.operands[0]
        piece = -(-x.type.shape[dim] // members)
        x = at.padded(x, dim, piece * members, None)
        return at.slice_at(x, dim, self._member(op, axes), piece)

    def _all_gather(self, op: Any, at: Reshaper, axes: Any, members: int) -> Any:
        dim, x = op.attributes["dim"].value, op.operands[0]
        shape, nbytes = list(x.type.shape), _nbytes(x)
        wanted = list(op.results[0].type.shape)
        row, whole = (_nbytes(v) // max(math.prod(shape[:dim]), 1) for v in (x, op.results[0]))
        plain = math.prod(shape[:dim]) == 1 and whole == members * row
        if self._direct(row, members) and not plain:
            box = (math.prod(shape[:dim]), row, whole)
            return self._moved(op, axes, wanted, "all_gather_box", box, nbytes)
        e = self._carry(op, Collective("all_gather"), axes, x, [members, *shape], (nbytes,), nbytes)
        whole = at.from_front(e, dim)
        return at.cut(whole, dim, op.results[0].type.shape[dim])

    def _all_reduce(self, op: Any, at: Reshaper, axes: Any, members: int) -> Any:
        x, kind = op.operands[0], op.attributes["kind"].value
        count = math.prod(x.type.shape)
        collective = Collective("all_reduce", _summed(kind), str(x.type.element_type))
        y = self._carry(op, collective, axes, x, list(x.type.shape), (count,), _nbytes(x))
        return at.divided(y, members) if kind == "avg" else y

    def _reduce_scatter(self, op: Any, at: Reshaper, axes: Any, members: int) -> Any:
        dim, x, kind = op.attributes["dim"].value, op.operands[0], op.attributes["kind"].value
        piece = -(-x.type.shape[dim] // members)
        element = x.type.element_type
        rows, inner = math.prod(x.type.shape[:dim]), math.prod(x.type.shape[dim + 1 :])
        size, width = x.type.shape[dim], element_bytes(element)
        local = self.engine == "local"
        if local and self._direct(piece * inner * width) and (rows != 1 or size != piece * members):
            collective = Collective("reduce_scatter_box", _summed(kind), str(element))
            shape = list(op.results[0].type.shape)
            box = (rows, piece * inner, size * inner)
            unit = math.prod(shape) * width
            y = self._carry(op, collective, axes, x, shape, box, unit)
            return at.divided(y, members) if kind == "avg" else y
        x = at.padded(x, dim, piece * members, neutral_attr(kind, element))
        x = at.to_front(x, dim, members)
        shape = list(x.type.shape)[1:]
        count = math.prod(shape)
        collective = Collective("reduce_scatter", _summed(kind), str(element))
        unit = count * element_bytes(element)
        y = self._carry(op, collective, axes, x, shape, (count,), unit)
        return at.divided(y, members) if kind == "avg" else y

    def _all_to_all(self, op: Any, at: Reshaper, axes: Any, members: int) -> Any:
        split, concat = (op.attributes[n].value for n in ("split_dim", "concat_dim"))
        x = op.operands[0]
        piece = -(-x.type.shape[split] // members)
        box, run = _boxed(op, split, concat, piece)
        if self._direct(run, members):
            shape = list(op.results[0].type.shape)
            block = _nbytes(x) // max(x.type.shape[split], 1) * piece
            return self._moved(op, axes, shape, "all_to_all_box", box, block)
        x = at.to_front(at.padded(x, split, piece * members, None), split, members)
        block = _nbytes(x) // members
        y = self._carry(op, Collective("all_to_all"), axes, x, list(x.type.shape), (block,), block)
        return at.cut(at.from_front(y, concat), concat, op.results[0].type.shape[concat])

    def _direct(self, run: int, members: int = 1) -> bool:
        """Whether members read runs of so many bytes out of each other's tensors, instead of packing
        them first. Where they may have to send messages, a table says what: a small one.
        """
        return run >= LEAST_RUN and (self.engine == "local" or members <= MOST_MEMBERS)

    def _moved(
        self, op: Any, axes: tuple[str, ...], shape: Sequence[int], name: str,
        numbers: tuple[int, ...], unit: int,
    ) -> Any:  # fmt: skip
        """The carrier of a direct move, told by its numbers; or of the exchange that does the same."""
        x = op.operands[0]
        box = _gathered if name == "all_gather_box" else _scattered
        if self.engine == "local":
            members = math.prod(self.mesh.size(axis) for axis in axes)
            runs = frozenset(box(numbers, k, k).run for k in range(members))
            return self._carry(op, Collective(name), axes, x, shape, numbers, unit, runs=runs)
        data = data_of_boxes(self.mesh, axes, lambda k, j: box(numbers, k, j), True)
        sent = (_nbytes(x),)
        return self._carry(op, Collective("exchange"), axes, x, shape, sent, unit, data)

    def _permute(self, op: Any, at: Reshaper, axes: Any, members: int) -> Any:
        x, nbytes = op.operands[0], _nbytes(op.operands[0])
        sources = [s if isinstance(s, int) else s.value for s in op.attributes["sources"]]
        if sorted(sources) != list(range(members)):
            raise CompileError(
                f"dist.permute: sources {sources} are no permutation of {members} members"
            )
        targets = [sources.index(k) for k in range(members)]
        tables = tuple("table:" + ",".join(map(str, t)) for t in (sources, targets))
        shape = list(x.type.shape)
        return self._carry(op, Collective("permute"), axes, x, shape, (nbytes, *tables), nbytes)

    def _exchange(self, op: Any, at: Reshaper, axes: Any, members: int) -> Any:
        x, shape = op.operands[0], list(op.results[0].type.shape)
        source, target = (LayoutAttr(op.attributes[n]).layout for n in ("source", "target"))
        table = Table(source, target, self.mesh, tuple(op.attributes["shape"]))
        within = axes if members > 1 else ()
        width = element_bytes(x.type.element_type)
        data = data_of(table, within, width, self.engine == "mpi" and members > 1)
        collective = Collective("exchange" if within else "relayout")
        return self._carry(
            op, collective, within, x, shape, (_nbytes(x),), data.received, data=data
        )

    def _refuse_others(self) -> None:
        for op in walk(self._module):
            if op.name.startswith(("dist.", "hint.", "stablehlo.", "sdy.", "chlo.")):
                raise CompileError(
                    f"{op.name}: no lowering for this op on target {self.target}",
                    location_text(op.location),
                )


_MAKERS = {
    "dist.axis_index": Collectives._axis_index, "dist.all_slice": Collectives._all_slice,
    "dist.all_gather": Collectives._all_gather, "dist.all_reduce": Collectives._all_reduce,
    "dist.reduce_scatter": Collectives._reduce_scatter, "dist.all_to_all": Collectives._all_to_all,
    "dist.permute": Collectives._permute, "dist.exchange": Collectives._exchange,
}  # fmt: skip


def _listed(info: CollectiveInfo, times: int) -> list[CollectiveInfo]:
    """An entry for each time it runs; one of all their bytes where they would be too many."""
    if times <= MOST_LISTED:
        return [info] * times
    return [replace(info, bytes=info.bytes * times)]


def _boxed(op: Any, split: int, concat: int, piece: int) -> tuple[tuple[int, ...], int]:
    """What a direct all_to_all is told of its tensors, in bytes (lowering/local.py), and the length
    of a run: 0 where there is nothing to move.
    """
    given, made = list(op.operands[0].type.shape), list(op.results[0].type.shape)
    low, high = min(split, concat), max(split, concat)
    width = element_bytes(op.operands[0].type.element_type)
    outer, last = math.prod(given[:low]), math.prod(given[high + 1 :]) * width
    middle = math.prod(given[low + 1 : high])
    inner_source, inner_target = given[high] * last, made[high] * last
    outer_source = given[low] * middle * inner_source
    outer_target = made[low] * middle * inner_target
    if split < concat:
        cut = (piece * middle * inner_source, outer_source, inner_source, inner_target)
        run = inner_source
    else:
        cut = (piece * last, inner_source, given[low] * middle * inner_target, outer_target)
        run = piece * last
    numbers = (outer, outer_source, outer_target, inner_source, inner_target)
    empty = 0 in given or 0 in made
    return (*numbers, *cut, int(split < concat)), 0 if empty else run


def _part(number: int, step: int, end: int) -> int:
    """Of piece `number` of pieces of `step`, as much as there is before `end`."""
    return min(max(end - number * step, 0), step)


def _gathered(numbers: Sequence[int], me: int, member: int) -> Box:
    """What `mw_all_gather_box` with these numbers copies from a member."""
    rows, row, whole = numbers
    return Box(0, member * row, _part(member, row, whole), ((rows, row, whole),))


def _scattered(numbers: Sequence[int], me: int, member: int) -> Box:
    """What `mw_all_to_all_box` with these numbers copies from a member."""
    outer, inner, (split, end, joined, joined_end, first) = (
        (numbers[0], numbers[1], numbers[2]), numbers[3:5], numbers[5:],
    )  # fmt: skip
    own, theirs = _part(me, split, end), _part(member, joined, joined_end)
    run, span, step = (theirs, own, inner[0]) if first else (own, theirs, inner[1])
    levels = ((span // step, *inner), outer)
    return Box(me * split, member * joined, run, levels)


def _summed(kind: str) -> str:
    """An average is a sum, divided afterwards."""
    return "sum" if kind == "avg" else kind


def _nbytes(value: Any) -> int:
    return math.prod(value.type.shape) * element_bytes(value.type.element_type)


def _i64(value: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _generic(op: Any, sent: Any, start: Any, attributes: dict[str, Any]) -> Any:
    """A carrier from `sent` to what it makes of `start`: a linalg.generic that any upstream pass
    keeps as it is (its body means nothing).
    """
    type_, ip = start.type, ir.InsertionPoint(op)
    ndim, element = type_.rank, type_.element_type
    zero = ir.AffineMap.get(ndim, 0, [ir.AffineConstantExpr.get(0)] * sent.type.rank)
    maps = [zero, ir.AffineMap.get_identity(ndim)]
    carrier = ir.Operation.create(
        "linalg.generic",
        results=[type_],
        operands=[sent, start],
        attributes={
            "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
            "iterator_types": ir.ArrayAttr.get(
                [ir.Attribute.parse("#linalg.iterator_type<parallel>")] * ndim
            ),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1]),
            **attributes,
        },
        regions=1,
        loc=op.location,
        ip=ip,
    )
    block = carrier.regions[0].blocks.append(element, element)
    with ir.InsertionPoint(block), op.location:
        name = "arith.addi" if isinstance(element, (ir.IntegerType, ir.IndexType)) else "arith.addf"
        value = ir.Operation.create(name, results=[element], operands=list(block.arguments))
        ir.Operation.create("linalg.yield", operands=[value.result])
    return carrier


def _move_behind(wait: Any, op: Any) -> None:
    """Move `wait`, and all that follows it before `op`, to right before the first reader of `op` in
    its block: at its end where there is none.
    """
    ops = [view.operation for view in op.block.operations]
    own = ops.index(op)
    readers = {_in_block(use.owner.operation, op.block) for use in op.results[0].uses}
    first = next((o for o in ops[own + 1 :] if o in readers), ops[-1])
    for moved in ops[ops.index(wait) : own]:
        moved.move_before(first)


def _in_block(op: Any, block: Any) -> Any:
    """The op of `block` that `op` is, or is in."""
    while op.block != block:
        op = op.parent.operation
    return op
