"""Know what tensors hold behind the sizes that calls choose, and which reductions end there: what masks say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import reassociation, static_offsets, static_sizes, static_strides
from meshweave.ir.expressions import Accumulator, Apply, Constant, Index, Load, Scalar, inputs
from meshweave.ir.ops import producer
from meshweave.lowering.nests.ends.limits import Limit, LoopEnds
from meshweave.lowering.nests.kernels import FusedKernel
from meshweave.transforms.base import walk

FLOATS = ("f32", "f64", "bf16", "f16")  # products whose sums may end early
_BELOW = (int(arith.CmpIPredicate.ult), int(arith.CmpIPredicate.slt))
_NEUTRAL = {
    "arith.addf": 0.0, "arith.addi": 0, "arith.mulf": 1.0, "arith.muli": 1,
    "arith.maximumf": float("-inf"), "arith.minimumf": float("inf"),
}  # fmt: skip
_UNKNOWN = "unknown"


@dataclass
class Behind:
    """Know what lies behind limits.

    neutral: what all elements are, by the tensor, its dim and where that ends. reductions: the loops of launches that
    reduce and may end, by the result of the launch.
    """

    kernels: Mapping[str, FusedKernel]
    ends: LoopEnds
    neutral: dict[tuple[ir.Value, int, Limit], ir.Attribute] = field(default_factory=dict)
    reductions: dict[ir.Value, dict[int, Limit]] = field(default_factory=dict)

    def learn(self, main: ir.Operation) -> None:
        """Note what all ops make behind limits, in order."""
        for op in walk(main):
            if op.name == "mw.launch":
                self._learn(op)
            elif (source := gathered(op)) is not None:
                self._learn_gathered(op, source)
            elif op.name == "tensor.extract_slice":
                self._learn_slice(op)

    def off(self, flags: ir.Value) -> list[Limit]:
        """Return the limits behind which the elements of a tensor of one dim are all false, or 0."""
        return [
            limit
            for (value, _, limit), element in self.neutral.items()
            if value == flags and value.type.rank == 1 and not element.value
        ]

    def _kernel(self, op: ir.Operation) -> FusedKernel:
        return self.kernels[op.attributes["kernel"].value]

    def conditions(self, op: ir.Operation) -> dict[int, tuple[int, Limit]]:
        """Return the nodes of a launch's kernel that compare a loop with a size: the loop, and where it ends."""
        kernel, found = self._kernel(op), {}
        for number, node in enumerate(kernel.code):
            if not isinstance(node, Apply) or node.name != "arith.cmpi":
                continue
            predicate = node.attribute("predicate")
            index, end = (kernel.code[k] for k in node.operands)
            begin: ir.Value | None = None
            if isinstance(index, Apply) and index.name == "arith.addi":
                index, offset = (kernel.code[k] for k in index.operands)
                begin = op.operands[offset.source] if isinstance(offset, Scalar) else None
                if begin is None or begin not in self.ends.begins.values():
                    continue
            if predicate is None or predicate.value not in _BELOW:
                continue
            if not isinstance(index, Index) or not isinstance(end, Scalar):
                continue
            loop, formula = index.form.dim, self.ends.formula(op.operands[end.source])
            if loop is not None and formula is not None and formula.terms:
                found[number] = (loop, Limit(formula, begin))
        return found

    def _learn(self, op: ir.Operation) -> None:
        """Note what the results of a launch hold behind a size, and which of its reductions end there."""
        kernel, conditions = self._kernel(op), self.conditions(op)
        known = dict.fromkeys(conditions.values())
        for node in kernel.code:
            if not isinstance(node, Load):
                continue
            for d, form in enumerate(node.access.indices):
                loop = form.dim
                for value, dim, limit in self.neutral:
                    if loop is not None and (value, dim) == (op.operands[node.access.operand], d):
                        known[loop, limit] = None
        reductions = self.reductions.setdefault(op.results[0], {})
        for loop, limit in known:
            if kernel.sizes[loop] == 1:
                continue
            behind = self._behind(op, loop, limit, conditions)
            if loop in kernel.reductions:
                held = [
                    isinstance(b, Accumulator) and b.number == k
                    for k, b in enumerate(behind[output.value] for output in kernel.outputs)
                ]
                if all(held) and loop not in reductions and _sums_may_end(kernel):
                    reductions[loop] = limit
                continue
            for output, result in zip(kernel.outputs, op.results):
                value = behind[output.value]
                dims = [d for d, form in enumerate(output.access) if form.dim == loop]
                if isinstance(value, Constant) and len(dims) == 1:
                    self.neutral[result, dims[0], limit] = value.value

    def _learn_slice(self, op: ir.Operation) -> None:
        """Note what the first places of a tensor hold behind a size."""
        if len(static_sizes(op)) != len(op.results[0].type.shape):
            return
        for (value, dim, limit), element in list(self.neutral.items()):
            first = (
                static_offsets(op)[dim] == 0 and static_strides(op)[dim] == 1
                if value == op.operands[0]
                else False
            )
            if first:
                self.neutral[op.results[0], dim, limit] = element

    def _learn_gathered(self, op: ir.Operation, source: Gathered) -> None:
        """Note what a tensor that is put together of the blocks of ranks holds behind a size."""
        begin = self.ends.begin(source.group, source.block)
        result = op.results[0]
        for (value, dim, limit), element in list(self.neutral.items()):
            if value != source.value:
                continue
            if dim == source.dim and limit.begin == begin:
                self.neutral[result, dim, Limit(limit.end)] = element
            elif dim != source.dim:
                self.neutral[result, dim, limit] = element

    def _behind(
        self, op: ir.Operation, loop: int, limit: Limit, conditions: Mapping[int, tuple[int, Limit]]
    ) -> list[object]:
        """Return what each node is where a loop is behind a limit: a constant, an accumulator, or not known."""
        kernel, found = self._kernel(op), list[object]()
        for number, node in enumerate(kernel.code):
            found.append(self._value(op, number, node, (loop, limit), conditions, found))
        return found

    def _value(
        self,
        op: ir.Operation,
        number: int,
        node: object,
        place: tuple[int, Limit],
        conditions: Mapping[int, tuple[int, Limit]],
        found: Sequence[object],
    ) -> object:
        if conditions.get(number) == place:
            kind = ir.IntegerType.get_signless(1)
            return Constant(ir.IntegerAttr.get(kind, 0), kind)
        if isinstance(node, Constant | Accumulator):
            return node
        if isinstance(node, Load):
            for d, form in enumerate(node.access.indices):
                key = (op.operands[node.access.operand], d, place[1])
                if form.dim == place[0] and key in self.neutral:
                    return Constant(self.neutral[key], node.type)
            return _UNKNOWN
        if not isinstance(node, Apply):
            return _UNKNOWN
        return _folded(node, [found[k] for k in node.operands])

    def guarded(self, op: ir.Operation) -> dict[int, dict[int, Limit]]:
        """Return for each node that only masks read the loops behind whose limit they take something else."""
        kernel, conditions = self._kernel(op), self.conditions(op)
        readers: dict[int, list[dict[int, Limit]]] = {}
        for node in kernel.code:
            for place, read in enumerate(inputs(node)):
                masks = place == 1 and isinstance(node, Apply) and node.name == "arith.select"
                held = self._held(kernel, inputs(node)[0], conditions) if masks else {}
                readers.setdefault(read, []).append(held)
        results = {output.value for output in kernel.outputs}
        return {
            read: {
                loop: limit
                for loop, limit in all_[0].items()
                if all(h.get(loop) == limit for h in all_)
            }
            for read, all_ in readers.items()
            if read not in results
        }

    def _held(
        self, kernel: FusedKernel, number: int, conditions: Mapping[int, tuple[int, Limit]]
    ) -> dict[int, Limit]:
        """Return the limits that a condition holds loops to."""
        if number in conditions:
            loop, limit = conditions[number]
            return {loop: limit}
        node = kernel.code[number]
        if isinstance(node, Apply) and node.name == "arith.andi":
            one, other = (self._held(kernel, k, conditions) for k in node.operands)
            return {**one, **other}
        return {}


class Gathered(NamedTuple):
    """Describe a tensor that is put together of the blocks of ranks: along which dim, of which group."""

    value: ir.Value
    dim: int
    block: int
    group: int


def gathers(op: ir.Operation) -> bool:
    """Tell whether an op puts the blocks of ranks together."""
    return op.name == "mw.collective" and str(op.attributes["what"].value) == "all_gather"


def gathered(op: ir.Operation) -> Gathered | None:
    """Return what blocks a tensor is put together of: by a collective, or by the reshape behind one.

    Return None for any other op.
    """
    made: ir.Operation | None = op
    if op.name == "tensor.collapse_shape":
        made = producer(op.operands[0])
    if made is None or not gathers(made):
        return None
    value, result, group = made.operands[0], op.results[0], made.attributes["group"].value
    own, whole = list(value.type.shape), list(result.type.shape)
    if op.name == "mw.collective":
        differ = [d for d, (a, b) in enumerate(zip(own, whole)) if a != b]
        if len(own) != len(whole) or len(differ) != 1:
            return None
        return Gathered(value, differ[0], own[differ[0]], group)
    members = list(made.results[0].type.shape)
    front = members[1:] == own and [list(g) for g in reassociation(op)][:1] == [[0, 1]]
    if not front or whole != [members[0] * own[0], *own[1:]]:
        return None
    return Gathered(value, 0, own[0], group)


def may_end(kernel: FusedKernel) -> bool:
    """Tell whether there is code for a kernel whose parallel loops end early, as fast as any.

    There is none for convolutions.
    """
    forms = [f for node in kernel.code if isinstance(node, Load) for f in node.access.indices]
    windows = any(sum(loop >= 0 for loop, _ in form.terms) > 1 for form in forms)
    if kernel.contraction and windows:
        return False
    return kernel.contraction or not any(word.endswith("order") for word in kernel.switches)


def _sums_may_end(kernel: FusedKernel) -> bool:
    """Tell whether there is code for a kernel whose reductions end early, as fast as any."""
    if not kernel.contraction:
        return may_end(kernel)
    return all(str(node.type) in FLOATS for node in kernel.code if isinstance(node, Load))


def _folded(node: Apply, operands: Sequence[object]) -> object:
    """Return what an op makes of what its operands are; see `_behind`."""
    name = node.name
    if name == "arith.select":
        return operands[2] if _is(operands[0], 0) else _UNKNOWN
    if name == "arith.andi":
        return next((o for o in operands if _is(o, 0)), _UNKNOWN)
    neutral = _NEUTRAL.get(name)
    if neutral is not None and len(operands) == 2:
        for one, other in (operands, operands[::-1]):
            if isinstance(one, Accumulator) and _is(other, neutral):
                return one
        if name == "arith.mulf" and all(_is(o, 0.0) for o in operands):
            return operands[0]
    if name in ("arith.extf", "arith.truncf") and _is(operands[0], 0.0):
        return Constant(ir.FloatAttr.get(node.type, 0.0), node.type)
    if name in ("arith.minsi", "arith.maxsi"):
        return _extreme(name, operands)
    return _UNKNOWN


def _extreme(name: str, operands: Sequence[object]) -> object:
    for one, other in (operands, operands[::-1]):
        number = _number(other)
        if not isinstance(one, Accumulator) or number is None:
            continue
        width = one.type.width if isinstance(one.type, ir.IntegerType) else 64
        top = (1 << (width - 1)) - 1
        if number == (top if name == "arith.minsi" else -top - 1):
            return one
    return _UNKNOWN


def _number(value: object) -> float | int | None:
    attr = value.value if isinstance(value, Constant) else None
    return attr.value if isinstance(attr, ir.FloatAttr | ir.IntegerAttr) else None


def _is(value: object, number: float) -> bool:
    return _number(value) == number
