"""Keep the ledger in the IR: an attribute of the module, and numbers on the regions and ops that it is about.

`hint.ledger` on the module, `hint.id` on a region under hints, `hint.op` on each op in one. Behind hint-verify an op
still says by its location, `loc("hint.region=2"("file.mlir":3:8))`, in which region it stood.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

from meshweave.hints.keys import REQUIRED
from meshweave.hints.ledger import Ledger, Outcome, Refusal, StatedHint
from meshweave.ir.bindings import ir
from meshweave.transforms.base import PassFailure, at, functions, ops_of, remark, walk

LEDGER, REGION, OP = "hint.ledger", "hint.id", "hint.op"
WHOLE = "hint.hints"  # on a function: the hints of a region around all of it
WHOLE_REGION = (
    "hint.whole"  # on a function: the number of the region that its `hint.hints` have made
)
CHOSEN = "hint.chosen"  # on a region: its time axes, with the numbers of slices that hint-budget chose; "": none
HELD = "hint.held"  # on an op: the mesh axes that stand on a dim with a time axis, by the factor that they cut
_FUSE = "hint.fuse="  # of the name in a location, with what the region around says of fusion
_STREAM = "hint.stream="  # of the name in a location, with the number of the stream that the region around asks for
_STOOD_IN = "hint.region="  # of the name in a location


def read_ledger(module: ir.Module) -> Ledger:
    """Return the module's ledger; an empty one where hint-apply has not run."""
    attr = module.operation.attributes.get(LEDGER)
    if attr is None:
        return Ledger.empty()
    with at(module):
        return Ledger.from_value(_value(attr))


def write_ledger(module: ir.Module, ledger: Ledger) -> None:
    """Put the ledger on the module."""
    module.operation.attributes[LEDGER] = _attr(ledger.to_value())


def _value(attr: ir.Attribute) -> Any:  # JSON: its parts are checked by those who read them
    if isinstance(attr, ir.DictAttr):
        return {named.name: _value(named.attr) for named in attr}
    if isinstance(attr, ir.ArrayAttr):
        return [_value(a) for a in attr]
    return getattr(attr, "value", None)


def _attr(value: object) -> ir.Attribute:
    if isinstance(value, Mapping):
        return ir.DictAttr.get({k: _attr(v) for k, v in value.items()})
    if isinstance(value, list):
        return ir.ArrayAttr.get([_attr(v) for v in value])
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def number(op: ir.Operation, name: str) -> int:
    """Return the number that `hint.id` or `hint.op` gives an op; -1 where there is none."""
    attr = op.attributes.get(name)
    return int(attr.value) if isinstance(attr, ir.IntegerAttr) else -1


def set_number(op: ir.Operation, name: str, value: int) -> None:
    """Give an op its number."""
    op.attributes[name] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def hold_axes(op: ir.Operation, factor: int, axes: Sequence[str]) -> None:
    """Let a factor of `op` be cut along `axes` of the mesh, whatever else would cost less."""
    held = {**dict(held_axes(op)), factor: tuple(axes)}
    op.attributes[HELD] = _attr([{"factor": f, "axes": list(a)} for f, a in sorted(held.items())])


def held_axes(op: ir.Operation) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Return what `hold_axes` said of an op."""
    attr = op.attributes.get(HELD)
    entries = _value(attr) if isinstance(attr, ir.ArrayAttr) else []
    return tuple((entry["factor"], tuple(entry["axes"])) for entry in entries)


def whole_region(module: ir.Module) -> int | None:
    """Return the number of the region around all of @main; None where no hints are around it."""
    main = main_of(module)
    return (
        number(main, WHOLE_REGION) if main is not None and WHOLE_REGION in main.attributes else None
    )


def main_of(module: ir.Module) -> ir.Operation | None:
    """Return the function @main, if there is one."""
    found = (f.operation for f in functions(module))
    return next((f for f in found if f.attributes["sym_name"].value == "main"), None)


def regions_of(root: ir.Operation) -> list[ir.Operation]:
    """Return the regions under hints in and below `root`, outer ones first."""
    return [view.operation for view in ops_of(root, "hint.region")]


def ops_met(root: ir.Operation, ledger: Ledger) -> list[int]:
    """Return the numbers of the ops below `root` that the ledger knows, each once, in program order."""
    if not ledger.ops:
        return []
    numbers = (number(op, OP) for op in walk(root))
    return list(dict.fromkeys(n for n in numbers if 0 <= n < len(ledger.ops)))


def settle(
    ledger: Ledger,
    said: Iterable[StatedHint],
    ops: Iterable[int],
    outcome: Outcome,
    where: ir.Operation,
) -> None:
    """Close the pairs of these hints and ops.

    A required hint that is not obeyed ends the compilation at `where`; for another one the user gets a remark.
    """
    numbers = list(ops)
    for one in said:
        for op in numbers:
            ledger.close(one.number, op, outcome)
        if outcome.kind in ("infeasible", "unsupported"):
            tell(one, outcome, where)


def tell(said: StatedHint, outcome: Outcome, where: ir.Operation) -> None:
    """Raise an error for a required hint that is not obeyed; remark on another one."""
    refusal = Refusal(said.hint, outcome)
    if said.hint.strength == REQUIRED:
        raise PassFailure((where.location, str(refusal)), refusal=refusal)
    remark(where, str(refusal))


def mark_region(
    region: ir.Operation, which: int, fuse: str = "", stream: int | None = None
) -> None:
    """Let the locations of `region` and of all in it say that they are of region number `which`.

    fuse: what it says of fusion, "" for nothing; stream: the one that it asks for.
    """
    names = [f"{_STOOD_IN}{which}", *([f"{_FUSE}{fuse}"] if fuse else [])]
    names += [f"{_STREAM}{stream}"] if stream is not None else []
    for op in walk(region):
        for name in names:
            op.location = ir.Location.name(name, op.location)


def set_apart(location: ir.Location) -> ir.Location:
    """Return a location for an op there that wants a kernel of its own."""
    return ir.Location.name(f"{_FUSE}never", location)


_Read = TypeVar("_Read")


def _once(
    read: Callable[["HintMarks", ir.Location], _Read],
) -> Callable[["HintMarks", ir.Location], _Read]:
    """Keep what a method of HintMarks reads off a location."""

    @wraps(read)
    def kept(self: "HintMarks", location: ir.Location) -> _Read:
        key = (read, location.attr)  # locations that are equal have one attribute, but not one hash
        if key not in self._known:
            self._known[key] = read(self, location)
        found: _Read = self._known[key]
        return found

    return kept


class HintMarks:
    """Read what hints have marked locations with, each part of a location once.

    A traced op has the calls that led to it in its location, a hundred parts, and shares most with its neighbours.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._known: dict[tuple[object, ir.Attribute], Any] = {}

    @_once
    def stands_alone(self, location: ir.Location) -> bool:
        """Tell whether hints want a kernel of its own for an op at `location`.

        The innermost region that says anything of fusion decides.
        """
        if isinstance(location, ir.NameLoc):
            if location.name_str.startswith(_FUSE):
                return bool(location.name_str == f"{_FUSE}never")
            return self.stands_alone(location.child_loc)
        if isinstance(location, ir.CallSiteLoc):
            return self.stands_alone(location.callee)
        return isinstance(location, ir.FusedLoc) and any(map(self.stands_alone, location.locations))

    @_once
    def stream(self, location: ir.Location) -> int | None:
        """Return the stream that hints want for an op at `location`; None where they want none.

        The innermost region that asks for one decides.
        """
        if isinstance(location, ir.NameLoc):
            if location.name_str.startswith(_STREAM):
                return int(location.name_str.removeprefix(_STREAM))
            return self.stream(location.child_loc)
        below: list[ir.Location] = []
        if isinstance(location, ir.CallSiteLoc):
            below = [location.callee, location.caller]
        elif isinstance(location, ir.FusedLoc):
            below = list(location.locations)
        return next((found for one in below if (found := self.stream(one)) is not None), None)

    @_once
    def regions(self, location: ir.Location) -> frozenset[int]:
        """Return the numbers of the regions that a location, or one that it is made of, says it is in."""
        if isinstance(location, ir.NameLoc):
            below = self.regions(location.child_loc)
            which = location.name_str.removeprefix(_STOOD_IN)
            return below | {int(which)} if which.isdecimal() else below
        if isinstance(location, ir.CallSiteLoc):
            return self.regions(location.callee) | self.regions(location.caller)
        if isinstance(location, ir.FusedLoc):
            return frozenset[int]().union(*map(self.regions, location.locations))
        return frozenset()

    def keep_apart(self, one: ir.Location, other: ir.Location) -> bool:
        """Tell whether hints keep ops at these two locations out of one kernel."""
        return (
            self.stands_alone(one)
            or self.stands_alone(other)
            or (self.stream(one) or 0) != (self.stream(other) or 0)
        )
