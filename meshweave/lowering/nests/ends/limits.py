"""Know where the sizes that calls choose end loops: formulas of these sizes, and values that begin the function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from meshweave.dialects.dist import LENGTH, LENGTHS
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.ops import body_of, is_used, producer, replace_op
from meshweave.layout.lengths import Formula, Sizes
from meshweave.lowering.host.program_op import program_op
from meshweave.transforms.base import port_attrs, walk


@dataclass(frozen=True)
class Limit:
    """Say where a loop ends: at `end`, less where the block of a rank begins.

    up: what `end` is rounded up to a multiple of; more: what is added to that then.
    """

    end: Formula
    begin: ir.Value | None = None
    up: int = 1
    more: int = 0

    def moved(self, by: Formula, times: int = 1) -> Limit:
        """Return the end of a loop that has `by` rounds more, or `times` as many more."""
        if self.up > 1 and not by.terms:
            return replace(self, more=self.more + times * by.const)
        plain = self.plain()
        return Limit(plain.end.plus(by, times), plain.begin)

    def plain(self) -> Limit:
        """Return an end that is nowhere before this one, and not rounded."""
        return Limit(self.end.plus(Formula(self.up - 1 + self.more)), self.begin)

    def joined(self, other: Limit) -> Limit | None:
        """Return the later of two ends; None where each is, in some calls."""
        begins = [one.begin for one in (self, other)]
        known = [begin for begin in begins if begin is not None]
        if len(known) == 1 or (known and known[0] != known[1]) or self.end.terms != other.end.terms:
            return None
        if (self.end, self.up, self.more) == (other.end, other.up, other.more):
            return self
        for one, least in ((self, other), (other, self)):
            if least.up == 1 and least.end.const <= one.end.const and one.more >= 0:
                return one
        return max(self.plain(), other.plain(), key=lambda one: one.end.const)


@dataclass
class LoopEnds:
    """Know the sizes of a call, and where the block of a rank begins, as values that begin the function.

    sizes: indices, by name. names: of the arguments that are sizes. bounds: the most that each may be. groups: the axes
    of each group of ranks. last: the op behind which values may be made. begins: where blocks begin, by the number of a
    group and the size of a block.
    """

    sizes: dict[str, ir.Value]
    names: dict[ir.Value, str]
    bounds: Sizes
    groups: Sequence[tuple[str, ...]]
    last: ir.Operation
    begins: dict[tuple[int, int], ir.Value] = field(default_factory=dict)
    _made: dict[tuple[Limit, int], ir.Value] = field(default_factory=dict)

    @classmethod
    def of(cls, module: ir.Module, main: ir.Operation) -> LoopEnds | None:
        """Put the sizes, and where blocks begin, where the function begins, each once; None where there are none."""
        marks = zip(body_of(main).arguments, port_attrs(main, "arg_attrs"))
        names = {value: mark[LENGTH].value for value, mark in marks if LENGTH in mark}
        if not names:
            return None
        sizes = {name: _index(main, value) for value, name in names.items()}
        program = program_op(module)
        groups = () if program is None else program.attributes["groups"]
        last = next(iter(sizes.values())).owner
        axes = [tuple(a.value for a in names) for names in groups]
        made = cls(sizes, names, _bounds(main), axes, last)
        for op in walk(main):
            if op.name != "arith.muli" or op.parent != main:
                continue
            member, number = (producer(value) for value in op.operands)
            if member is None or number is None or number.name != "arith.constant":
                continue
            if member.name == "mw.member":
                group, block = member.attributes["group"].value, number.attributes["value"].value
                replace_op(op, [made.begin(group, block)])
        return made

    def begin(self, group: int, block: int) -> ir.Value:
        """Return where the block of this member of a group begins."""
        if (group, block) not in self.begins:
            index = ir.IndexType.get()
            number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), group)
            member = self._op("mw.member", [], group=number)
            size = self._op("arith.constant", [], value=ir.IntegerAttr.get(index, block))
            self.begins[group, block] = self._op("arith.muli", [member, size])
        return self.begins[group, block]

    def along(self, axes: Sequence[str], block: int) -> ir.Value | None:
        """Return where the block of a rank along some axes begins; None where no group has them."""
        if tuple(axes) not in self.groups:
            return None
        return self.begin(self.groups.index(tuple(axes)), block)

    def is_known(self, formula: Formula) -> bool:
        """Tell whether a formula is a number of the sizes of a call."""
        return all(len(names) == 1 and names[0] in self.sizes for names, _ in formula.terms)

    def formula(self, value: ir.Value) -> Formula | None:
        """Return what a number is computed as, from the sizes of the call; None for any other number."""
        op = producer(value)
        if op is not None and op.name == "tensor.extract":
            name = self.names.get(op.operands[0])
            return None if name is None else Formula.product(1, [name])
        if op is None or op.name not in _COMPUTED:
            return None
        if op.name == "arith.constant":
            number = op.attributes["value"]
            return Formula(number.value) if isinstance(number, ir.IntegerAttr) else None
        parts = [self.formula(operand) for operand in op.operands]
        known = [part for part in parts if part is not None]
        return _COMPUTED[op.name](*known) if len(known) == len(parts) else None

    def value(self, limit: Limit, size: int) -> ir.Value:
        """Return where a loop of `size` rounds ends, as an index of 0 to `size`."""
        name = limit.end.dim
        plain = limit.begin is None and limit.up == 1
        if plain and name is not None and self.bounds.get(name, size + 1) <= size:
            return self.sizes[name]
        if (limit, size) not in self._made:
            total = self._total(limit.end)
            if limit.up > 1:
                ups = self._op("arith.ceildivsi", [total, self._number(limit.up)])
                total = self._op("arith.muli", [ups, self._number(limit.up)])
            if limit.more:
                total = self._op("arith.addi", [total, self._number(limit.more)])
            if limit.begin is not None:
                total = self._op("arith.subi", [total, limit.begin])
            least = self._op("arith.maxsi", [total, self._number(0)])
            self._made[limit, size] = self._op("arith.minsi", [least, self._number(size)])
        return self._made[limit, size]

    def blocks(self, limit: Limit, count: int, size: int) -> ir.Value:
        """Return how many of `count` blocks of `size` begin before a limit."""
        end = self.value(limit, count * size)
        return end if size == 1 else self._op("arith.ceildivsi", [end, self._number(size)])

    def _total(self, formula: Formula) -> ir.Value:
        total: ir.Value | None = None
        for (name,), factor in formula.terms:
            part = self.sizes[name]
            part = part if factor == 1 else self._op("arith.muli", [part, self._number(factor)])
            total = part if total is None else self._op("arith.addi", [total, part])
        if total is None or formula.const:
            const = self._number(formula.const)
            total = const if total is None else self._op("arith.addi", [total, const])
        return total

    def _number(self, number: int) -> ir.Value:
        return self._op("arith.constant", [], value=ir.IntegerAttr.get(ir.IndexType.get(), number))

    def _op(self, name: str, operands: Sequence[ir.Value], **attributes: ir.Attribute) -> ir.Value:
        made = OpBuilder.after(self.last).op(name, [ir.IndexType.get()], operands, **attributes)
        self.last = made
        return made.results[0]


def _cast(one: Formula) -> Formula:
    return one


_COMPUTED: dict[str, Callable[..., Formula]] = {
    "arith.constant": Formula,  # of its attribute
    "arith.index_cast": _cast,
    "arith.addi": Formula.plus,
    "arith.subi": lambda one, other: one.plus(other, -1),
    "arith.muli": Formula.times,
}
"""Ops that compute numbers from sizes."""


def _index(main: ir.Operation, argument: ir.Value) -> ir.Value:
    """Return a size as an index that begins the function, and let all that read it as one read this."""
    reads = [op for u in argument.uses if (op := u.owner.operation).name == "tensor.extract"]
    casts = [use.owner.operation for op in reads for use in op.results[0].uses]
    b = OpBuilder(ir.InsertionPoint.at_block_begin(body_of(main)), main.location)
    size = b.one("arith.index_cast", ir.IndexType.get(), b.element(argument))
    for op in casts:
        if op.name == "arith.index_cast" and op.results[0].type == size.type:
            replace_op(op, [size])
    for op in reads:
        if not is_used(op.results[0]):
            op.erase()
    return size


def _bounds(main: ir.Operation) -> dict[str, int]:
    """Return the most that each size may be, as the dims of arguments say."""
    found: dict[str, int] = {}
    for value, mark in zip(body_of(main).arguments, port_attrs(main, "arg_attrs")):
        shape = mark["dist.global"].value.shape if "dist.global" in mark else value.type.shape
        for name, size in zip(mark.get(LENGTHS, ()), shape):
            found[name.value] = size
    return found
