"""Replace the `dist` ops of one rank's program by collectives of an engine."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshweave.bundle import ExchangeInfo
from meshweave.dialects.dist import COLLECTIVES, LayoutAttr, axes_of
from meshweave.errors import CompileError, MeshweaveError
from meshweave.exchange.table import Table
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64
from meshweave.ir.locations import location_text
from meshweave.ir.ops import replace_op
from meshweave.ir.sorting import Order
from meshweave.layout.mesh import Mesh
from meshweave.lowering.buffers.steps import element_bytes
from meshweave.lowering.communication.exchange import block_table, exchange_of
from meshweave.lowering.communication.merge import KeyNumbers, merge_whole, packed, unpacked
from meshweave.lowering.communication.reshape import Reshaper
from meshweave.lowering.cpu.collectives.objects import LIMIT, Collective
from meshweave.plan.cost import received
from meshweave.targets import EngineTraits
from meshweave.transforms.base import ops_of
from meshweave.transforms.communication.overlap import MARK
from meshweave.transforms.partitioning.neutral import neutral_attr

MOST_MEMBERS = 64  # beyond, MPI's own algorithms in fewer rounds move blocks that are packed first
MERGE_COLUMNS, MERGE_WORDS = 4096, 8  # of a merge by messages: see library/mpi/merge.mlir
LEAST_RUN = 16  # bytes; shorter ones would be a part of each cache line that all members read


Axes = tuple[str, ...]


class Collectives:
    """Hold the collectives of a program. Groups and exchanges are numbered as they appear."""

    target = "cpu"

    def __init__(self, module: ir.Module, mesh: str, engine: EngineTraits) -> None:
        """Replace the dist ops of `module`, whose mesh is that of the text, for an engine."""
        self.reads_peers = engine.reads_peers
        self.mesh = Mesh.parse(mesh)  # no text: one rank
        self.groups: tuple[tuple[str, ...], ...] = ()
        self.exchanges: tuple[ExchangeInfo, ...] = ()
        self._tickets = 0
        self._wait: ir.Operation | None = None  # what ends the op at work, if that is started early
        for op in ops_of(module, "dist.merge"):
            if not self._merges(op.operation):
                merge_whole(op.operation, self.mesh)
        for op in ops_of(module, "dist.axis_index", *COLLECTIVES):
            self._replace(op.operation)
        for op in ops_of(module, "dist.mesh"):
            op.operation.erase()

    # One op.

    def _replace(self, op: ir.Operation) -> None:
        make = _MAKERS.get(op.name)
        where = location_text(op.location)
        if make is None and op.name != "dist.merge":
            raise CompileError(f"{op.name}: no lowering for this op on target {self.target}", where)
        axes, self._wait = axes_of(op), None
        try:
            members = math.prod(self.mesh.size(axis) for axis in axes)
            if members == 1 and op.name not in ("dist.axis_index", "dist.exchange"):
                results = list(op.operands)
                for dim, extent in enumerate(op.results[0].type.shape):  # padding is cut off
                    results = [Reshaper(op).cut(result, dim, extent) for result in results]
            elif make is None:  # it has several results
                results = self._merge(op, axes)
            else:
                results = [make(self, op, axes, members)]
                kind = op.attributes.get("kind")
                if kind is not None and kind.value == "avg":
                    results = [Reshaper(op).divided(results[0], members)]
        except MeshweaveError as error:
            raise CompileError(error.message, error.location or where) from None
        if self._wait is not None:
            _move_behind(self._wait, op)
        replace_op(op, results)

    def _group(self, axes: Axes) -> int:
        if axes not in self.groups:
            self.groups = (*self.groups, axes)
        return self.groups.index(axes)

    def _number(self, exchange: ExchangeInfo) -> int:
        if exchange not in self.exchanges:
            self.exchanges = (*self.exchanges, exchange)
        return self.exchanges.index(exchange)

    def _member(self, op: ir.Operation, axes: Axes) -> ir.Value:
        """Return this rank's member index in the group over `axes`."""
        b = OpBuilder.before(op)
        if math.prod(self.mesh.size(a) for a in axes) == 1:
            return b.index(0)
        return b.one("mw.member", ir.IndexType.get(), group=i64(self._group(axes)))

    def _call(
        self, op: ir.Operation, collective: Collective, axes: Axes, sent: ir.Value, shape: Sequence[int],
        arguments: tuple[int | str, ...], unit: int, exchange: ExchangeInfo | None = None,
        runs: frozenset[int] = frozenset(), scratch: int = 0,
    ) -> ir.Value:  # fmt: skip
        """Make the `mw.collective` that sends `sent` and gives a tensor of `shape`, or the start and wait of one.

        unit: bytes, as in `plan.cost.received`. runs: see `Call`. scratch: bytes of memory of its own.
        """
        if collective.kind:
            collective.checked()
        members = math.prod(self.mesh.size(a) for a in axes)
        what = "relayout" if collective.op == "relayout" else op.name.removeprefix("dist.")
        given = op.operands[0].type
        size = "x".join(map(str, given.shape)) or "scalar"
        within = f"[{','.join(axes)}]" if axes else ""
        attributes = {
            "symbol": ir.StringAttr.get(collective.symbol),
            "group": i64(self._group(axes) if axes else 0),
            "arguments": ir.ArrayAttr.get([_argument(a) for a in arguments]),
            "what": ir.StringAttr.get(what),
            "axes": ir.ArrayAttr.get([ir.StringAttr.get(a) for a in axes]),
            "bytes": i64(received(what, unit, members)),
            "title": ir.StringAttr.get(f"{what}{within} {given.element_type} {size}"),
        }
        if runs:
            attributes["runs"] = ir.DenseI64ArrayAttr.get(sorted(runs))
        if exchange is not None:
            attributes["exchange"] = i64(self._number(exchange))
            if exchange.staging:
                attributes["scratch"] = i64(exchange.staging)
        elif scratch:
            attributes["scratch"] = i64(scratch)
        type_ = ir.RankedTensorType.get(list(shape), sent.type.element_type)
        b = OpBuilder.before(op)
        empty = b.empty(type_)
        early = _nbytes(sent) if MARK in op.attributes and axes else 0
        if not early:
            return b.one("mw.collective", type_, sent, empty, **attributes)
        ticket = i64(self._tickets)
        self._tickets += 1
        attributes |= {"ticket": ticket, "sent": i64(early)}
        started = b.one("mw.start", type_, sent, empty, **attributes)
        self._wait = b.op("mw.wait", [type_], [sent, started], ticket=ticket)
        return self._wait.result

    def _axis_index(self, op: ir.Operation, axes: Axes, members: int) -> ir.Value:
        return self._member(op, axes)

    def _all_slice(self, op: ir.Operation, axes: Axes, members: int) -> ir.Value:
        dim, x = op.attributes["dim"].value, op.operands[0]
        piece = -(-x.type.shape[dim] // members)
        at = Reshaper(op)
        x = at.padded(x, dim, piece * members, None)
        return at.slice_at(x, dim, self._member(op, axes), piece)

    def _all_gather(self, op: ir.Operation, axes: Axes, members: int) -> ir.Value:
        dim, x = op.attributes["dim"].value, op.operands[0]
        shape, nbytes = list(x.type.shape), _nbytes(x)
        wanted = list(op.results[0].type.shape)
        row, whole = (_nbytes(v) // max(math.prod(shape[:dim]), 1) for v in (x, op.results[0]))
        plain = math.prod(shape[:dim]) == 1 and whole == members * row
        if self._direct(row, members) and not plain:
            box = (math.prod(shape[:dim]), row, whole)
            if self.reads_peers:
                collective, runs = Collective("all_gather_box"), _lengths(row, whole)
                return self._call(op, collective, axes, x, wanted, box, nbytes, runs=runs)
            table = block_table(self.mesh, axes, wanted, None, dim)
            if table.source.local_shape(self.mesh, wanted) == tuple(shape):
                return self._exchanged(op, axes, table, nbytes)
        e = self._call(op, Collective("all_gather"), axes, x, [members, *shape], (nbytes,), nbytes)
        at = Reshaper(op)
        return at.cut(at.from_front(e, dim), dim, wanted[dim])

    def _all_reduce(self, op: ir.Operation, axes: Axes, members: int) -> ir.Value:
        x, kind = op.operands[0], op.attributes["kind"].value
        count = math.prod(x.type.shape)
        collective = Collective("all_reduce", _summed(kind), str(x.type.element_type))
        return self._call(op, collective, axes, x, list(x.type.shape), (count,), _nbytes(x))

    def _reduce_scatter(self, op: ir.Operation, axes: Axes, members: int) -> ir.Value:
        dim, x, kind = op.attributes["dim"].value, op.operands[0], op.attributes["kind"].value
        piece = -(-x.type.shape[dim] // members)
        element = x.type.element_type
        rows, inner = math.prod(x.type.shape[:dim]), math.prod(x.type.shape[dim + 1 :])
        size, width = x.type.shape[dim], element_bytes(element)
        if (
            self.reads_peers
            and self._direct(piece * inner * width)
            and (rows != 1 or size != piece * members)
        ):
            collective = Collective("reduce_scatter_box", _summed(kind), str(element))
            shape = list(op.results[0].type.shape)
            box = (rows, piece * inner, size * inner)
            unit = math.prod(shape) * width
            return self._call(op, collective, axes, x, shape, box, unit)
        at = Reshaper(op)
        x = at.padded(x, dim, piece * members, neutral_attr(kind, element))
        x = at.to_front(x, dim, members)
        shape = list(x.type.shape)[1:]
        count = math.prod(shape)
        collective = Collective("reduce_scatter", _summed(kind), str(element))
        return self._call(op, collective, axes, x, shape, (count,), count * width)

    def _all_to_all(self, op: ir.Operation, axes: Axes, members: int) -> ir.Value:
        split, concat = (op.attributes[n].value for n in ("split_dim", "concat_dim"))
        x = op.operands[0]
        piece = -(-x.type.shape[split] // members)
        box, run = _boxed(op, split, concat, piece)
        given, made = list(x.type.shape), list(op.results[0].type.shape)
        if self._direct(run, members):
            block = _nbytes(x) // max(given[split], 1) * piece
            if self.reads_peers:
                collective = Collective("all_to_all_box")
                runs = _lengths(*(box[7:9] if split < concat else box[5:7]))
                return self._call(op, collective, axes, x, made, box, block, runs=runs)
            whole = [made[k] if k == concat else given[k] for k in range(len(given))]
            table = block_table(self.mesh, axes, whole, split, concat)
            ends = [la.local_shape(self.mesh, whole) for la in (table.source, table.target)]
            if ends == [tuple(given), tuple(made)]:
                return self._exchanged(op, axes, table, block)
        at = Reshaper(op)
        x = at.to_front(at.padded(x, split, piece * members, None), split, members)
        block = _nbytes(x) // members
        y = self._call(op, Collective("all_to_all"), axes, x, list(x.type.shape), (block,), block)
        return at.cut(at.from_front(y, concat), concat, op.results[0].type.shape[concat])

    def _direct(self, run: int, members: int = 1) -> bool:
        """Tell whether members read runs of `run` bytes out of each other's tensors, instead of packing them first.

        Where they may have to send messages it is an exchange of blocks: only for few members.
        """
        return run >= LEAST_RUN and (self.reads_peers or members <= MOST_MEMBERS)

    def _permute(self, op: ir.Operation, axes: Axes, members: int) -> ir.Value:
        x, nbytes = op.operands[0], _nbytes(op.operands[0])
        sources = [s if isinstance(s, int) else s.value for s in op.attributes["sources"]]
        if sorted(sources) != list(range(members)):
            raise CompileError(
                f"dist.permute: sources {sources} are no permutation of {members} members"
            )
        targets = [0] * members
        for k, source in enumerate(sources):
            targets[source] = k
        tables = tuple("table:" + ",".join(map(str, t)) for t in (sources, targets))
        shape = list(x.type.shape)
        return self._call(op, Collective("permute"), axes, x, shape, (nbytes, *tables), nbytes)

    def _exchange(self, op: ir.Operation, axes: Axes, members: int) -> ir.Value:
        source, target = (LayoutAttr(op.attributes[n]).layout for n in ("source", "target"))
        table = Table(source, target, self.mesh, tuple(op.attributes["shape"]))
        return self._exchanged(op, axes if members > 1 else (), table, None)

    def _merges(self, op: ir.Operation) -> bool:
        """Tell whether there is a function that merges so much; the MPI library counts in 32 bits."""
        return sum(_nbytes(v) for v in op.operands) * 8 < LIMIT

    def _merge(self, op: ir.Operation, axes: Axes) -> list[ir.Value]:
        b, values, how = OpBuilder.before(op), list(op.operands), Order.of(op)
        x, width = packed(b, values, how)
        dim, shape = op.attributes["dim"].value, list(values[0].type.shape)
        numbers = KeyNumbers.of(values[0].type.element_type, how, 8 * width).arguments
        sizes = (math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))
        collective, made = Collective(f"merge_{width}"), list(x.type.shape)
        given = (len(values), *sizes, *numbers)
        scratch = self._merge_scratch(sizes, axes, _nbytes(x))
        y = self._call(op, collective, axes, x, made, given, _nbytes(x), scratch=scratch)
        return unpacked(b, y, values)

    def _merge_scratch(self, sizes: tuple[int, int, int], axes: Axes, nbytes: int) -> int:
        """Return the bytes that members which may have to send messages need: see library/mpi/merge.mlir."""
        members = math.prod(self.mesh.size(axis) for axis in axes)
        columns = sizes[0] * sizes[2]
        some = min(columns, MERGE_COLUMNS)
        words = MERGE_WORDS * some * (members + 1)
        return 8 if self.reads_peers else 8 * words + 2 * nbytes * some // max(columns, 1)

    def _exchanged(self, op: ir.Operation, axes: Axes, table: Table, unit: int | None) -> ir.Value:
        """Make the call of an exchange. unit: see `_call`; None: of an exchange."""
        x, shape = op.operands[0], list(op.results[0].type.shape)
        messages = bool(axes) and not self.reads_peers
        made = exchange_of(table, axes, element_bytes(x.type.element_type), messages)
        collective = Collective("exchange" if axes else "relayout")
        unit, sent = made.received if unit is None else unit, (_nbytes(x),)
        return self._call(op, collective, axes, x, shape, sent, unit, made.info, made.runs)


_MAKERS = {
    "dist.axis_index": Collectives._axis_index, "dist.all_slice": Collectives._all_slice,
    "dist.all_gather": Collectives._all_gather, "dist.all_reduce": Collectives._all_reduce,
    "dist.reduce_scatter": Collectives._reduce_scatter, "dist.all_to_all": Collectives._all_to_all,
    "dist.permute": Collectives._permute, "dist.exchange": Collectives._exchange,
}  # fmt: skip


def _boxed(op: ir.Operation, split: int, concat: int, piece: int) -> tuple[tuple[int, ...], int]:
    """Return the numbers that a direct all_to_all takes, in bytes, and the length of a run: 0 where nothing moves.

    library/all_to_all_box.mlir says what the numbers are.
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


def _lengths(step: int, end: int) -> frozenset[int]:
    """Return the lengths of the pieces of `step` that there are before `end`: the last one may be shorter."""
    return frozenset({min(step, end), end % step})


def _summed(kind: str) -> str:
    """Return the kind that members reduce by: an average is a sum, divided afterwards."""
    return "sum" if kind == "avg" else kind


def _nbytes(value: ir.Value) -> int:
    shape: list[int] = value.type.shape
    return math.prod(shape) * element_bytes(value.type.element_type)


def _argument(value: int | str) -> ir.Attribute:
    return i64(value) if isinstance(value, int) else ir.StringAttr.get(value)


def _move_behind(wait: ir.Operation, op: ir.Operation) -> None:
    """Move `wait`, and all that follows it before `op`, to right before the first reader of `op` in its block.

    Where there is no reader, it moves to the end of the block.
    """
    ops = [view.operation for view in op.block.operations]
    own = ops.index(op)
    readers = {_in_block(use.owner.operation, op.block) for use in op.results[0].uses}
    first = next((o for o in ops[own + 1 :] if o in readers), ops[-1])
    for moved in ops[ops.index(wait) : own]:
        moved.move_before(first)


def _in_block(op: ir.Operation, block: ir.Block) -> ir.Operation:
    """Return the op of `block` that `op` is, or is in."""
    while op.block != block:
        op = op.parent.operation
    return op
