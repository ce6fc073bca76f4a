"""dist-donate: let results take the buffers of the arguments that are donated.

before:  func.func @main(%c: tensor<8xf32> {dist.donate = "preferred"}) -> tensor<8xf32>
after:   the result has dist.takes = 0, and the layout of the argument; `dist.donations` on the module has the reasons

A donated argument goes to the result that says so (dist.takes), else to the one that is made of it, by updates of parts
or element by element, and of the fewest others, else to the first of its type that is made of none that is donated. No
argument and no result is in two pairs, and both ends of one have one layout: where propagation may still choose that of
an end, it is that of the other one. What cannot be is refused: a remark, or an error where the donation is required.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from meshweave.dialects.dist import BITS, DONATE, DONATIONS, TAKES, UNSIGNED, LayoutAttr
from meshweave.errors import CompileError
from meshweave.hints.ledger import HONOURED, INFEASIBLE
from meshweave.ir.bindings import ir
from meshweave.ir.build import i64
from meshweave.ir.locations import location_text
from meshweave.ir.ops import body_of, producer, terminator
from meshweave.layout.layout import Layout
from meshweave.transforms.base import Pass, fail, functions, port_attrs, remark, set_port_attrs

STRENGTHS = ("preferred", "required")
OPEN, REPLICATED = "dist.open", "dist.replicated"
LAYOUT = ("dist.layout", OPEN, REPLICATED, "dist.priorities")
Entry = dict[str, ir.Attribute]


@dataclass(frozen=True)
class Donate(Pass):
    """Pair donated arguments with results."""

    name: ClassVar[str] = "dist-donate"

    def run(self, module: ir.Module) -> None:
        by_name = {f.operation.attributes["sym_name"].value: f.operation for f in functions(module)}
        main = by_name.get("main")
        if main is None or DONATIONS in module.operation.attributes:
            return
        arguments, results = port_attrs(main, "arg_attrs"), port_attrs(main, "res_attrs")
        if not any(DONATE in entry for entry in arguments):
            return
        pairs = _Donations(main, by_name, arguments, results)
        pairs.find()
        rows = [_row(main, k, arguments[k], pairs.outcome(k)) for k in pairs.donors]
        set_port_attrs(main, "arg_attrs", arguments)
        set_port_attrs(main, "res_attrs", results)
        module.operation.attributes[DONATIONS] = ir.ArrayAttr.get(rows)


def mark_donated(module: ir.Module, donated: Mapping[int, str]) -> None:
    """Mark arguments of @main as donated, by number, each with a strength. Raises CompileError for one too many."""
    main = next(f for f in functions(module) if f.operation.attributes["sym_name"].value == "main")
    entries = port_attrs(main, "arg_attrs")
    for number, strength in donated.items():
        if number >= len(entries):
            message = f"donate: @main has no argument {number}, it has {len(entries)}"
            raise CompileError(message, location_text(main.operation.location))
        entries[number][DONATE] = ir.StringAttr.get(strength)
    set_port_attrs(main, "arg_attrs", entries)


@dataclass(frozen=True)
class Found:
    """Say what became of a donation. result: which takes the buffer; -1: none."""

    outcome: str
    reason: str
    result: int = -1


def _row(main: ir.Operation, number: int, entry: Entry, found: Found) -> ir.Attribute:
    """Return the record of a donation; tell the user of one that is refused."""
    strength = entry[DONATE].value
    if found.outcome != HONOURED:
        text = (
            f"argument {number} is donated ({strength}), which is {found.outcome}: {found.reason}"
        )
        (fail if strength == "required" else remark)(main, text)
        del entry[DONATE]
    words = {"strength": strength, "outcome": found.outcome, "reason": found.reason}
    texts = {key: ir.StringAttr.get(word) for key, word in words.items()}
    return ir.DictAttr.get({"argument": i64(number), "result": i64(found.result), **texts})


class _Donations:
    """Find the result for each donated argument, and note it in the attributes of both."""

    def __init__(
        self,
        main: ir.Operation,
        by_name: Mapping[str, ir.Operation],
        arguments: Sequence[Entry],
        results: Sequence[Entry],
    ) -> None:
        self.main, self.arguments, self.results = main, arguments, results
        type_ = main.attributes["function_type"].value
        self.types = list(type_.inputs), list(type_.results)
        self.donors = [k for k, entry in enumerate(arguments) if DONATE in entry]
        for number in self.donors:
            _check_strength(main, number, arguments[number][DONATE])
        self.said = self._said()
        inputs = {value: k for k, value in enumerate(body_of(main).arguments)}
        self.made_of = [
            {inputs[v]: parts for v, parts in origins(value, by_name).items() if v in inputs}
            for value in terminator(body_of(main)).operands
        ]
        self.taken: dict[int, int] = {}  # result -> argument

    def find(self) -> None:
        """Pair what can be."""
        for number in self.donors:
            self._pair(number)

    def _said(self) -> dict[int, int]:
        """Return the result that each argument goes to, where that is said."""
        said: dict[int, int] = {}
        for result, entry in enumerate(self.results):
            if TAKES in entry:
                number = entry.pop(TAKES).value
                if number not in self.donors:
                    fail(self.main, f"result {result}: {TAKES} = {number} is no donated argument")
                said.setdefault(number, result)
        return said

    def _pair(self, number: int) -> None:
        """Give the buffer of an argument to a result, if there is one for it."""
        for result in self._candidates(number):
            if result not in self.taken and not self._reason(number, result):
                self.taken[result] = number
                entry = self.results[result]
                entry[TAKES] = i64(number)
                _one_layout(self.arguments[number], entry)
                return

    def _candidates(self, number: int) -> Iterator[int]:
        if number in self.said:
            yield self.said[number]
            return
        made = [k for k, sources in enumerate(self.made_of) if number in sources]
        yield from sorted(made, key=lambda k: (not self.made_of[k][number], len(self.made_of[k])))
        yield from (k for k, found in enumerate(self.made_of) if not {*found} & {*self.donors})

    def _reason(self, number: int, result: int) -> str:
        """Return why a result cannot take the buffer of an argument; "" where it can."""
        own, type_ = self.types[0][number], self.types[1][result]
        if own != type_:
            return f"it is {own}, result {result} is {type_}"
        ends = [self.arguments[number], self.results[result]]
        if (UNSIGNED in ends[0]) != (UNSIGNED in ends[1]):
            return f"only one of it and result {result} has integers without a sign"
        if (held := [end[BITS].value if BITS in end else "integers" for end in ends])[0] != held[1]:
            return f"its bytes are {held[0]}, those of result {result} {held[1]}"
        if any("dist.layout" not in end for end in ends) or _one_of(*ends) is not None:
            return ""
        here, there = (end["dist.layout"].value for end in ends)
        return f"it lies in {here}, result {result} in {there}"

    def outcome(self, number: int) -> Found:
        """Return what became of the donation of an argument."""
        for result, source in self.taken.items():
            if source == number:
                return Found(HONOURED, f"result {result} takes its buffer", result)
        free = [k for k in self._candidates(number) if k not in self.taken]
        alike = [k for k in free if self.types[0][number] == self.types[1][k]]
        if number in self.said and not free:
            return Found(INFEASIBLE, f"result {self.said[number]} has another buffer already")
        reasons = [self._reason(number, k) for k in (free if number in self.said else alike)]
        return Found(INFEASIBLE, reasons[0] if reasons else "no result of its type is left")


def _check_strength(main: ir.Operation, number: int, attr: ir.Attribute) -> None:
    word = getattr(attr, "value", None)
    if word not in STRENGTHS:
        known = ", ".join(STRENGTHS)
        fail(main, f"argument {number}: {DONATE} is {attr}: known are {known}")


def _one_layout(argument: Entry, result: Entry) -> None:
    """Give both ends of a pair the layout that one of them has, or that both may have."""
    for source, target in ((argument, result), (result, argument)):
        if "dist.layout" in source and "dist.layout" not in target:
            target.update({key: source[key] for key in LAYOUT if key in source})
    if "dist.layout" not in argument:
        return
    common = _one_of(argument, result)
    assert common is not None  # else they are no pair
    for end in (argument, result):
        for key in LAYOUT:
            end.pop(key, None)
        end.update(common)


def _one_of(one: Entry, other: Entry) -> Entry | None:
    """Return what is said of a layout that both ends of a pair may have; None where there is none.

    Of two that propagation may still change only the same ones meet: it then has to leave to both what each forbids.
    """
    is_open = [OPEN in end for end in (one, other)]
    layouts = [LayoutAttr(end["dist.layout"]).layout for end in (one, other)]
    if all(is_open):
        if layouts[0] != layouts[1]:
            return None
        dims = sorted({*one[OPEN]} & {*other[OPEN]})
        axes = sorted({a.value for end in (one, other) for a in end.get(REPLICATED, ())})
        found = {"dist.layout": one["dist.layout"]}
        if dims:
            found[OPEN] = ir.DenseI64ArrayAttr.get(dims)
            found[REPLICATED] = ir.ArrayAttr.get([ir.StringAttr.get(a) for a in axes])
        return found
    if any(is_open):
        base, wanted = layouts if is_open[0] else layouts[::-1]
        may = _may_become(one if is_open[0] else other, base, wanted)
    else:
        may = layouts[0] == layouts[1]
    closed = other if is_open[0] else one
    return {key: closed[key] for key in LAYOUT if key in closed} if may else None


def _may_become(said: Entry, base: Layout, wanted: Layout) -> bool:
    """Tell whether a layout whose open dims take more axes may become another one, of blocks."""
    if base == wanted:
        return True
    if not base.is_block or not wanted.is_block or base.partial != wanted.partial:
        return False
    more = set[str]()
    for dim, (own, axes) in enumerate(zip(base.block_axes(), wanted.block_axes())):
        if axes[: len(own)] != own or (axes != own and dim not in [*said[OPEN]]):
            return False
        more.update(axes[len(own) :])
    return more.isdisjoint([a.value for a in said.get(REPLICATED, ())])


def origins(value: ir.Value, by_name: Mapping[str, ir.Operation]) -> dict[ir.Value, bool]:
    """Return the arguments of its function in whose place a value may be made; True: by updates of parts alone."""
    seen, found, left = {value}, dict[ir.Value, bool](), [(value, True)]
    while left and len(seen) < MOST_VALUES:
        value, parts = left.pop()
        if isinstance(value.owner, ir.Block):
            found[value] = parts
            continue
        parts = parts and not _is_elementwise(producer(value))
        new = [v for v in _updated(value, by_name) if v not in seen]
        seen.update(new)
        left += [(v, parts) for v in new]
    return found


MOST_VALUES = 1000  # that are looked at for a result

_FIRST = (
    "tensor.collapse_shape", "tensor.expand_shape", "tensor.cast", "dist.constrain", "mw.scatter",
)  # fmt: skip


def _updated(value: ir.Value, by_name: Mapping[str, ir.Operation]) -> list[ir.Value]:
    """Return the operands in whose place `value` may be made."""
    op = producer(value)
    assert op is not None
    number = ir.OpResult(value).result_number
    if op.name in ("tensor.insert", "tensor.insert_slice"):
        return [op.operands[1]]
    if op.name in _FIRST:
        return [op.operands[number]]
    if op.name == "scf.for":
        return [op.operands[3 + number]]
    if op.name == "scf.while":
        return [op.operands[number]] if len(op.operands) == len(op.results) else []
    if op.name in ("hint.region", "scf.if"):
        return [terminator(r.blocks[0]).operands[number] for r in op.regions if r.blocks]
    if op.name == "func.call":
        return _of_call(op, number, by_name)
    if _is_elementwise(op):
        return [v for v in op.operands if v.type == value.type]
    return []


def _is_elementwise(op: ir.Operation | None) -> bool:
    return op is not None and op.name.startswith(("linalg.", "arith.", "math."))


def _of_call(op: ir.Operation, number: int, by_name: Mapping[str, ir.Operation]) -> list[ir.Value]:
    callee = by_name.get(op.attributes["callee"].value)
    if callee is None:
        return []
    arguments = list(body_of(callee).arguments)
    inner = origins(terminator(body_of(callee)).operands[number], by_name)
    return [op.operands[arguments.index(value)] for value in inner if value in arguments]
