"""Find why a program moves data: which argument, op or constraint made a value lie as it does, and who wants otherwise.

`note_said` notes, before layouts are chosen, what the user has said; `note_constraints` before constraints go; and
`find_reasons`, once each redistribute has its plan, follows the axes that are moved: back from the redistribute to the
argument or constraint that they come from, and on to the constraint, result or op that wants them elsewhere. It gives
each redistribute a number in its location, which the collectives that it becomes keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from meshweave.dialects.dist import LayoutAttr
from meshweave.ir.bindings import ir
from meshweave.ir.build import i64
from meshweave.ir.locations import location_text, numbered
from meshweave.layout import Layout, Mesh
from meshweave.layout.layout import AxisFactor
from meshweave.report import Cause, Reason
from meshweave.see.obstacles import Dims, Readers, dims_over, has_windows, layouts_of
from meshweave.see.remedies import MovePrices, MoveStep, microseconds
from meshweave.see.words import OpName, argument_name
from meshweave.transforms.base import functions, mesh_of_module, ops_of, port_attrs, walk
from meshweave.transforms.propagation.rules.table import RuleTable
from meshweave.transforms.propagation.values import item_bytes
from meshweave.transforms.redistribution.plans import MOVE

SAID, CONSTRAINTS = "see.said", "see.constraints"  # what is noted on ops and functions
_MOST_LINKS = 12  # of a chain, which a loop of ops must not make endless
_MOST_STEPS = 200
_MOST_VISITS = 2000  # of values on the way back


def note_said(module: ir.Module) -> None:
    """Note on each function which of its arguments and results have a layout that the user has said."""
    with module.context:
        for f in functions(module):
            said = [
                ["dist.layout" in entry for entry in port_attrs(f, key)]
                for key in ("arg_attrs", "res_attrs")
            ]
            rows = [ir.ArrayAttr.get([ir.BoolAttr.get(b) for b in row]) for row in said]
            f.operation.attributes[SAID] = ir.ArrayAttr.get(rows)


def note_constraints(module: ir.Module) -> None:
    """Note constraints where they are about: on the op that makes the value, on the function for an argument."""
    with module.context:
        for view in ops_of(module, "dist.constrain"):
            op = view.operation
            value = op.operands[0]
            while _is_constraint(value):
                value = value.owner.operands[0]
            if isinstance(value.owner, ir.Block):
                holder, number = value.owner.owner.operation, -1 - value.arg_number
            else:
                holder, number = value.owner.operation, value.result_number
            layout = ir.DictAttr(op.attributes["dist.layouts"])["results"][0]
            row = ir.ArrayAttr.get([i64(number), ir.StringAttr.get(location_text(op)), layout])
            old = list(holder.attributes[CONSTRAINTS]) if CONSTRAINTS in holder.attributes else []
            holder.attributes[CONSTRAINTS] = ir.ArrayAttr.get([*old, row])


def find_reasons(module: ir.Module, names: Sequence[str] = ()) -> tuple[Reason, ...]:
    """Return why each redistribute that moves data does so; its location then has its number in this tuple.

    names: of the program's arguments, where they have any, and behind them those of all its results.
    """
    mesh = mesh_of_module(module)
    if mesh is None:
        return ()
    with module.context:
        known, found = _Causes(module, mesh, names), list[Reason]()
        for view in ops_of(module, MOVE):
            op = view.operation
            reason = known.reason(op)
            if reason is not None:
                op.location = numbered(op.location, len(found))
                found.append(reason)
        for op in walk(module.operation):
            for name in (SAID, CONSTRAINTS):
                if name in op.attributes:
                    del op.attributes[name]
        return tuple(found)


def _is_constraint(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == "dist.constrain"


def axes_of(layout: Layout) -> tuple[str, ...]:
    """Return the axes that a layout cuts dims over, in order."""
    return tuple(f.name for dim in layout.dims for f in dim if isinstance(f, AxisFactor))


def _partial_axes(layout: Layout) -> tuple[str, ...]:
    return tuple(axis for part in layout.partial for axis in part.axes)


@dataclass
class _Causes:
    """Know a module between legalisation and partition."""

    module: ir.Module
    mesh: Mesh
    names: Sequence[str]
    readers: Readers = field(init=False)
    callers: dict[str, list[ir.Operation]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.readers = Readers(self.mesh, RuleTable(windows=True))
        for view in ops_of(self.module, "func.call"):
            name = view.operation.attributes["callee"].value
            self.callers.setdefault(name, []).append(view.operation)

    def reason(self, op: ir.Operation) -> Reason | None:
        """Return why a redistribute is there; None where it moves nothing between ranks."""
        steps = [MoveStep.read(entry) for entry in op.attributes.get("plan", ())]
        if not any(step.moves for step in steps):
            return None
        source, target = (LayoutAttr(op.attributes[n]).layout for n in ("source", "target"))
        partial = _partial_axes(source)
        moved = partial or tuple(
            dict.fromkeys(a for step in steps if step.moves for a in step.axes)
        )
        given = tuple(self.back(op.operands[0], moved, bool(partial)))
        dims = {} if partial else dims_over(source, moved)
        here = op.operands[0]
        said = _owner(here) is None or self._constraint(here, moved) is not None
        only = said and len(list(here.uses)) == 1  # others would move it then
        wanted, wish, alone = self.ahead(op, target, moved, dims)
        type_ = ir.RankedTensorType(op.operands[0].type)
        prices = MovePrices(
            source, target, self.mesh, tuple(type_.shape), item_bytes(type_.element_type)
        )
        nbytes, bound, following = prices.next_best(steps)
        plan = tuple((s.op, s.axes, s.nbytes) for s in steps)
        return Reason(
            tensor="x".join(map(str, (*type_.shape, type_.element_type))),
            source=str(source),
            target=str(target),
            where=location_text(op),
            steps=plan,
            microseconds=microseconds(plan, self.mesh),
            nbytes=nbytes,
            lower_bound=bound,
            given=given,
            wanted=wanted,
            following=following,
            remedy=prices.remedy(given if only else (), wanted if alone else (), moved, wish),
        )

    # Backwards: where the axes come from.

    def back(self, value: ir.Value, moved: tuple[str, ...], partial: bool) -> Iterator[Cause]:
        """Yield what made a value lie over these axes, the nearest first: the shortest way to what was said.

        Ops that one expression has become are one link.
        """
        last = ("", "")
        for cause in self._back(value, moved, partial):
            if (here := (cause.text, _line_of(cause.where))) != last:
                yield cause
            last = here

    def _back(self, value: ir.Value, moved: tuple[str, ...], partial: bool) -> Iterator[Cause]:
        path, owner = self._path(value, moved, partial), ""
        for step in path[:-1]:
            if step.own is None or step.own.name in (MOVE, "func.call", *_CONTROL):
                continue
            name = OpName.of(step.own)
            if step is path[0] or not name.owner or name.owner != owner or _sums(step, moved):
                yield _link_back(step, name, moved, "works", short=step is not path[0])
            owner = name.owner
        last = path[-1]
        if said := self._constraint(last.value, moved):
            yield said
        elif last.own is None:
            yield self._argument(last.value)
        else:
            yield _link_back(last, OpName.of(last.own), moved, "is shared out", short=False)

    def _path(self, value: ir.Value, moved: tuple[str, ...], partial: bool) -> list[_Visit]:
        """Return the shortest way back to an argument or constraint over these axes, else to what begins with them."""
        queue = [_Visit(value, _owner(value), None)]
        seen, best = {value}, None
        for visit in queue:  # it grows meanwhile
            argument = visit.own is None and self._outside(visit.value) is None
            if argument or self._constraint(visit.value, moved) is not None:
                return visit.way()
            following = self._before(visit, moved)
            if not following and best is None:
                best = visit
            for each in following:
                if each not in seen and len(seen) < _MOST_VISITS:
                    seen.add(each)
                    queue.append(_Visit(each, _owner(each), visit))
        return (best or queue[0]).way()

    def _before(self, visit: _Visit, moved: tuple[str, ...]) -> list[ir.Value]:
        """Return the values over these axes that one is made of."""
        if visit.own is None:
            outside = self._outside(visit.value)
            return [] if outside is None else [outside]
        return self._operands_over(visit.own, visit.value, moved)

    def _operands_over(
        self, op: ir.Operation, result: ir.Value, moved: tuple[str, ...]
    ) -> list[ir.Value]:
        """Return the operands of an op that lie over these axes, the largest first."""
        if op.name == "func.call":
            returned = self._returned(op, result)
            return [] if returned is None else [returned]
        if op.name in _CONTROL:
            return _made_of(op, result.result_number)
        if op.name == MOVE:
            layout = LayoutAttr(op.attributes["source"]).layout
            over = set(axes_of(layout) + layout.partial_axes()) & set(moved)
            return [op.operands[0]] if over else []
        found = [
            value
            for value, layout in zip(op.operands, layouts_of(op, "operands"))
            if layout is not None
            and set(axes_of(layout) + layout.partial_axes()) & set(moved)
            and not _is_new(value)
        ]
        return sorted(found, key=_elements, reverse=True)

    def _returned(self, call: ir.Operation, result: ir.Value) -> ir.Value | None:
        """Return what the function that is called returns."""
        name = call.attributes["callee"].value
        for f in functions(self.module):
            if f.operation.attributes["sym_name"].value == name:
                block = f.operation.regions[0].blocks[0]
                end = list(block.operations)[-1].operation
                value: ir.Value = end.operands[result.result_number]
                return value
        return None

    def _outside(self, value: ir.Value) -> ir.Value | None:
        """Return what the first call of a function gives an argument; None for one of the program."""
        f, number = value.owner.owner.operation, value.arg_number
        if f.name == "scf.for" and number > 0:
            return f.operands[2 + number]
        if f.name != "func.func":
            return f.operands[number] if number < len(f.operands) else None
        calls = self.callers.get(f.attributes["sym_name"].value, ())
        return calls[0].operands[number] if calls else None

    def _argument(self, value: ir.Value) -> Cause:
        f, number = value.owner.owner.operation, value.arg_number
        layout = port_attrs(f, "arg_attrs")[number].get("dist.layout")
        lies = f'lies in "{LayoutAttr(layout).layout}"' if layout is not None else "is here"
        how = "as it was said" if _said(f, 0, number) else "where propagation has put it"
        where = location_text(value)
        # A program that was traced has no place in its source, but its argument may have a name.
        file, _, column = where.rpartition(":")
        place = where if "." in file and column.isdigit() else ""
        return Cause("argument", f"argument {self.name(value, number)} {lies}, {how}", place)

    def name(self, value: ir.Value, number: int) -> str:
        """Return what the user calls an argument."""
        if number < len(self.names):
            return self.names[number]
        return argument_name(value) or f"{number}"

    def _constraint(self, value: ir.Value, moved: tuple[str, ...]) -> Cause | None:
        for where, layout in _constraints(value):
            if set(axes_of(layout)) & set(moved):
                return Cause("constraint", f'constraint "{layout}"', where)
        return None

    # Forwards: who wants them elsewhere.

    def ahead(
        self, move: ir.Operation, target: Layout, moved: tuple[str, ...], dims: Dims
    ) -> tuple[tuple[Cause, ...], str, bool]:
        """Return who wants the value as `target`: the ops on the way to the nearest that needs it so, of all readers.

        With it come the layout that would let its dims stay cut, of the result or constraint that comes last, "" for
        none; and whether no other reader needs it so. dims: that are cut now; none for a sum.
        """
        for where, layout in _constraints(move.operands[0]):
            if layout == target:
                return (Cause("constraint", f'constraint "{layout}"', where),), "", True
        windows = has_windows(target)
        pending = LayoutAttr(move.attributes["source"]).layout.partial
        kind = pending[0].kind if pending else "sum"
        ends = list(self._ends(move.results[0], moved, dims, windows, kind))
        if not ends:
            return (), "", True
        forcing = [end for end in ends if end.forces]
        end = (forcing or ends)[0]
        count = len({each.reader for each in forcing})
        links = _shortened(end.links)
        if count > 1:
            many = f"{count} of its {len({each.reader for each in ends})} readers need it so; of the nearest:"
            links = (Cause("op", many, ""), *links)
        return (*links, *end.beside), end.wish, count < 2

    def _ends(
        self, value: ir.Value, moved: tuple[str, ...], dims: Dims, windows: bool, kind: str
    ) -> Iterator[_WayEnd]:
        """Yield where each way from a value to those that need it so ends, the nearest first.

        windows: whether it is wanted in windows, which ops that read their neighbours' elements need. kind: of the
        reduction that is pending.
        """
        queue, seen = [_WayAhead(value, dims, kind=kind)], {value}
        for reading in queue:  # it grows meanwhile
            uses = [(use.owner.operation, use.operand_number) for use in reading.value.uses]
            ops = list[ir.Operation]()
            for op, number in uses[::-1]:  # MLIR lists the last one first
                if op in ops:
                    continue
                ops.append(op)
                at = reading.by(len(ops))
                end = self._window(at, op, number) if windows else None
                found = end or self._read(at, op, number, moved, bool(dims))
                if isinstance(found, _WayEnd):
                    yield found
                    continue
                for each in found:
                    if each.value not in seen and len(seen) < _MOST_STEPS:
                        seen.add(each.value)
                        queue.append(each)

    def _window(self, at: _WayAhead, op: ir.Operation, number: int) -> _WayEnd | None:
        """Return the end of a way at an op that reads elements of other ranks beside its own; None for others."""
        text = self.readers.reaches(op, number, at.dims)
        links = (*at.links, Cause("op", text, location_text(op)))
        return _WayEnd(at.reader, links) if text else None

    def _read(
        self, at: _WayAhead, op: ir.Operation, number: int, moved: tuple[str, ...], begun: bool
    ) -> Sequence[_WayAhead] | _WayEnd:
        """Return what a reader makes of a value: others that are read on, or the end of the way.

        begun: whether dims were cut when the way began, and not a sum pending.
        """
        if op.name == "func.return":
            following = self._returned_to(op, number)
            if following is not None:
                return [at.to(following)]
            wish = self._wish(op, number, at.dims) if begun and at.links else ""
            links = (*at.links, self._result(op, number))
            return _WayEnd(at.reader, links, wish, forces=_said(op.parent.operation, 1, number))
        if op.name == "func.call":
            inside = self._inside(op, number)
            return [] if inside is None else [at.to(inside)]
        if op.name == MOVE:
            return [at.to(op.results[0])]
        if op.name in _CONTROL:
            return [at.to(value) for value in _handed_on(op, number)]
        other = self._other_over(op, number, moved)
        if other is not None:
            beside, layout = other
            text = f"{OpName.of(op)} reads it beside an operand that lies as {layout}"
            links = (*at.links, Cause("op", text, location_text(op)))
            return _WayEnd(at.reader, links, beside=tuple(self.back(beside, moved, False)))
        if not at.dims:
            passes, dims = self.readers.hands_on(op, number), at.dims
            done = "added up" if at.kind == "sum" else "reduced"
            does = "hands it on" if passes else f"reads it {done} over {' and '.join(moved)}"
            text = f"{OpName.of(op)} {does}"
        else:
            stop = self.readers.obstacle(op, number, at.dims)
            text, passes, dims = stop.text, stop.dims is not None, stop.dims or {}
        links = (*at.links, Cause("op", text, location_text(op)))
        if not passes or not len(op.results):
            return _WayEnd(at.reader, links, forces=not passes)
        for where, layout in _constraints(op.results[0]):
            if not set(axes_of(layout)) & set(moved):
                links = (*links, Cause("constraint", f'constraint "{layout}"', where))
                return _WayEnd(at.reader, links, _with_dims(layout, dims) if begun else "")
        return [replace(at, value=op.results[0], dims=dims, links=links)]

    def _wish(self, op: ir.Operation, number: int, dims: Dims) -> str:
        """Return the layout of a result of the program that would let dims stay cut."""
        layout = port_attrs(op.parent.operation, "res_attrs")[number].get("dist.layout")
        return "" if layout is None else _with_dims(LayoutAttr(layout).layout, dims)

    def _other_over(
        self, op: ir.Operation, number: int, moved: tuple[str, ...]
    ) -> tuple[ir.Value, Layout] | None:
        """Return another operand of an op that lies over one of these axes."""
        found = [
            (value, layout)
            for k, (value, layout) in enumerate(zip(op.operands, layouts_of(op, "operands")))
            if value != op.operands[number]
            and layout is not None
            and set(axes_of(layout)) & set(moved)
            and not _is_new(value)
        ]
        return max(found, key=lambda pair: _elements(pair[0]), default=None)

    def _returned_to(self, op: ir.Operation, number: int) -> ir.Value | None:
        """Return the result of the first call of a function that returns here; None in the program's own."""
        name = op.parent.operation.attributes["sym_name"].value
        calls = self.callers.get(name, ())
        value: ir.Value | None = calls[0].results[number] if calls else None
        return value

    def _inside(self, call: ir.Operation, number: int) -> ir.Value | None:
        name = call.attributes["callee"].value
        for f in functions(self.module):
            if f.operation.attributes["sym_name"].value == name:
                value: ir.Value = f.operation.regions[0].blocks[0].arguments[number]
                return value
        return None

    def _result(self, op: ir.Operation, number: int) -> Cause:
        f = op.parent.operation
        layout = port_attrs(f, "res_attrs")[number].get("dist.layout")
        lies = f'"{LayoutAttr(layout).layout}"' if layout is not None else "its layout"
        how = "as it was said" if _said(f, 1, number) else "as propagation has chosen"
        named = self.names[len(f.regions[0].blocks[0].arguments) :]
        several = 1 < len(named) == len(op.operands)
        name = named[number] if several else f"result {number}"
        return Cause("result", f"{name} is wanted in {lies}, {how}", location_text(op))


@dataclass(frozen=True)
class _WayAhead:
    """Hold a value on the way ahead.

    dims: that are still cut; reader: places of the uses up to the first op; links: what ops on the way do; kind: of the
    reduction that is pending.
    """

    value: ir.Value
    dims: Dims
    reader: tuple[int, ...] = ()
    links: tuple[Cause, ...] = ()
    kind: str = "sum"

    def by(self, place: int) -> _WayAhead:
        """Return the way to a use of the value, by its place among its uses."""
        return self if self.links else replace(self, reader=(*self.reader, place))

    def to(self, value: ir.Value) -> _WayAhead:
        """Return the same way, as it goes on in another function or behind a move."""
        return replace(self, value=value)


@dataclass(frozen=True)
class _WayEnd:
    """Hold the end of a way ahead.

    beside: why what stands beside the value there lies as it does; wish: see `_Causes.ahead`; forces: whether what is
    there needs the value so.
    """

    reader: tuple[int, ...]
    links: tuple[Cause, ...]
    wish: str = ""
    beside: tuple[Cause, ...] = ()
    forces: bool = True


@dataclass(frozen=True)
class _Visit:
    """Hold a value on the way back from another. own: the op that makes it; None for what enters a block."""

    value: ir.Value
    own: ir.Operation | None
    after: _Visit | None

    def way(self) -> list[_Visit]:
        """Return the visits from the first one to this."""
        found: list[_Visit] = []
        visit: _Visit | None = self
        while visit is not None:
            found.append(visit)
            visit = visit.after
        return found[::-1]


def _owner(value: ir.Value) -> ir.Operation | None:
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


_CONTROL = (
    *("scf.for", "scf.while", "scf.if", "scf.yield", "scf.condition"),
    *("hint.region", "hint.yield"),
)
_BOUNDS = 3  # operands of an scf.for before the values that its iterations hand on


def _handed_on(op: ir.Operation, number: int) -> list[ir.Value]:
    """Return what operand `number` of control flow is inside of it, in the next iteration or behind it."""
    if op.name == "scf.if":
        return []
    if op.name in ("scf.for", "scf.while", "hint.region"):
        # The first argument of the body of an scf.for is its counter.
        place = number - (_BOUNDS - 1) * (op.name == "scf.for")
        arguments = list(op.regions[0].blocks[0].arguments)
        return arguments[place:][:1] if place > 0 or op.name != "scf.for" else []
    around, place = op.parent.operation, number - (op.name == "scf.condition")
    if place < 0:
        return []
    if op.name == "scf.condition":
        return [around.regions[1].blocks[0].arguments[place], around.results[place]]
    if around.name == "scf.while":
        return [around.regions[0].blocks[0].arguments[place]]
    again = [around.regions[0].blocks[0].arguments[1 + place]] if around.name == "scf.for" else []
    return [*again, around.results[place]]


def _made_of(op: ir.Operation, number: int) -> list[ir.Value]:
    """Return the values that result `number` of control flow is: what its bodies end with, and what it began with."""
    ends = [
        list(region.blocks[0].operations)[-1].operation
        for region in op.regions
        if len(region.blocks)
    ]
    if op.name == "scf.while":
        return [ends[0].operands[1 + number]]
    begun = [op.operands[_BOUNDS + number]] if op.name == "scf.for" else []
    return [*(end.operands[number] for end in ends), *begun]


def _link_back(step: _Visit, name: OpName, moved: tuple[str, ...], does: str, short: bool) -> Cause:
    """Say what an op on the way back does. short: name the layer alone, where it has one."""
    assert step.own is not None
    over = " and ".join(moved)
    if _sums(step, moved):
        given = [layout for layout in layouts_of(step.own, "operands") if layout is not None]
        values = zip(step.own.operands, given) if len(given) == len(step.own.operands) else ()
        if any(set(of.partial_axes()) & set(moved) and not _is_new(v) for v, of in values):
            text = f"{name} hands the addends on: it may run before they are added up"
        elif any(
            part.kind != "sum"
            for of in layouts_of(step.own, "results")
            if of
            for part in of.partial
        ):
            text = f"{name} reduces over a dim that lies over {over}: each rank has a part of it"
        else:
            text = f"{name} sums over a dim that lies over {over}: each rank has an addend"
    else:
        text = f"{name.owner if short and name.owner else name} {does} over {over}"
    return Cause("op", text, location_text(step.own))


def _sums(step: _Visit, moved: tuple[str, ...]) -> bool:
    """Tell whether the value of a visit is one of which each rank has an addend."""
    op = step.own
    if op is None or isinstance(step.value.owner, ir.Block) or op.name in (MOVE, "func.call"):
        return False
    layouts = layouts_of(op, "results")
    layout = layouts[step.value.result_number] if layouts else None
    return layout is not None and bool(set(layout.partial_axes()) & set(moved))


def _with_dims(layout: Layout, dims: Dims) -> str:
    """Return a layout with further axes on its dims, "" where it cannot have them."""
    if not layout.is_block or any(
        axis in layout.used_axes for axes in dims.values() for axis in axes
    ):
        return ""
    rows = [(*layout.axes_of(d), *dims.get(d, ())) for d in range(layout.ndim)]
    return str(Layout.blocks(rows, layout.partial))


def _shortened(links: Sequence[Cause]) -> tuple[Cause, ...]:
    """Return a chain without links that say what the one before says, and with the middle of a long one counted."""
    says = [(link.text, _line_of(link.where)) for link in links]
    kept = [link for k, link in enumerate(links) if k == 0 or says[k] != says[k - 1]]
    if len(kept) <= _MOST_LINKS:
        return tuple(kept)
    half = _MOST_LINKS // 2
    left = len(kept) - 2 * half
    middle = Cause("op", f"{left} more ops hand it on", "")
    return (*kept[:half], middle, *kept[-half:])


def _line_of(where: str) -> str:
    """Return a place without its column."""
    return where.rsplit(":", 1)[0]


def _is_new(value: ir.Value) -> bool:
    """Tell whether a value is only room for a result, or the same everywhere."""
    owner = value.owner
    return not isinstance(owner, ir.Block) and owner.name in ("tensor.empty", "linalg.fill")


def _elements(value: ir.Value) -> int:
    count = 1
    for size in ir.RankedTensorType(value.type).shape:
        count *= size
    return count


def _said(f: ir.Operation, side: int, number: int) -> bool:
    said = f.attributes.get(SAID)
    return said is not None and bool(said[side][number].value)


def _constraints(value: ir.Value) -> list[tuple[str, Layout]]:
    """Return the constraints on a value: place and layout."""
    if isinstance(value.owner, ir.Block):
        holder, number = value.owner.owner.operation, -1 - value.arg_number
    else:
        holder, number = value.owner.operation, value.result_number
    return [
        (where.value, LayoutAttr(layout).layout)
        for own, where, layout in holder.attributes.get(CONSTRAINTS, ())
        if own.value == number
    ]
