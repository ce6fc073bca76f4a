"""Find how much of each tensor is read, from the results of the program back to its arguments.

Of a dim that is nothing, what lies before a limit, or all of it. Loops that no result needs any further may end there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from meshweave.dialects.dist import LENGTHS, LayoutAttr
from meshweave.dialects.mw import MASKED
from meshweave.ir.bindings import ir
from meshweave.ir.build import (
    DYNAMIC,
    reassociation,
    static_offsets,
    static_sizes,
    static_strides,
)
from meshweave.ir.expressions import Apply, Gather, Load, Scalar
from meshweave.ir.expressions import Index as IndexNode
from meshweave.ir.ops import body_of, producer, terminator
from meshweave.layout.layout import Layout
from meshweave.layout.lengths import Formula
from meshweave.lowering.nests.ends.behind import Behind, Gathered, gathered, gathers, may_end
from meshweave.lowering.nests.ends.limits import Limit, LoopEnds
from meshweave.lowering.nests.ends.rounds import BlockRow, multiple_of
from meshweave.lowering.nests.kernels import FusedKernel
from meshweave.lowering.nests.linear import Linear
from meshweave.transforms.base import port_attrs

WHOLE = "whole"
Wanted = Limit | str | None
"""What of a dim is read: nothing that is known of yet, what lies before a limit, or WHOLE."""
_TIMES = 16  # that more may be wanted of a tensor: in a loop it may grow on and on


@dataclass
class WantedParts:
    """Know what is wanted of tensors.

    rounds: where loops of the program end that do nothing from there on. blocks: in which ways loops put their results
    together of blocks.
    """

    main: ir.Operation
    kernels: Mapping[str, FusedKernel]
    ends: LoopEnds
    behind: Behind
    rounds: Mapping[ir.Operation, Limit]
    blocks: Mapping[ir.Operation, Sequence[frozenset[BlockRow]]]
    _wanted: dict[ir.Value, list[Wanted]] = field(default_factory=dict)
    _times: Counter[ir.Value] = field(default_factory=Counter)
    _changed: bool = True

    def find(self) -> None:
        """Go back from the results until nothing more is wanted: loops carry it from round to round."""
        block = body_of(self.main)
        while self._changed:
            self._changed = False
            self._results(terminator(block))
            self._block(block)

    def of(self, value: ir.Value) -> list[Wanted]:
        """Return what is wanted of each dim of a tensor."""
        return self._wanted.get(value, [None] * len(value.type.shape))

    def limits(self, op: ir.Operation) -> dict[int, Limit]:
        """Return where the loops of a launch end."""
        kernel, found = self._kernel(op), dict(self.behind.reductions.get(op.results[0], {}))
        if not may_end(kernel):
            return {}
        for loop, size in enumerate(kernel.sizes):
            scanned = any(f.dim == loop for o in kernel.outputs for f in o.access)
            if size == 1 or (loop in kernel.reductions and not scanned):
                continue
            end: Wanted = None
            for output, result in zip(kernel.outputs, op.results):
                dims = [d for d, form in enumerate(output.access) if form.dim == loop]
                others = [f for f in output.access if f.dim != loop and loop in dict(f.terms)]
                alone = len(dims) == 1 and not others
                end = _joined(end, self.of(result)[dims[0]] if alone else WHOLE)
            if isinstance(end, Limit):
                found[loop] = end
        return found

    def block_end(self, op: ir.Operation) -> tuple[Limit, int] | None:
        """Return before what a loop puts blocks that somebody reads, and how long a block is; None for no end."""
        found = set[tuple[Limit, int]]()
        for rows, result in zip(self.blocks.get(op, ()), op.results):
            wanted = self.of(result)
            ends = [
                (end, size) for dim, size in sorted(rows) if isinstance(end := wanted[dim], Limit)
            ]
            if not ends:
                return None
            found.add(ends[0])
        return found.pop() if len(found) == 1 else None

    def _kernel(self, op: ir.Operation) -> FusedKernel:
        return self.kernels[op.attributes["kernel"].value]

    def _want(self, value: ir.Value, dims: Sequence[Wanted]) -> None:
        if not isinstance(value.type, ir.RankedTensorType):
            return
        before = self._wanted.get(value, [None] * len(dims))
        after = [_joined(one, other) for one, other in zip(before, dims, strict=True)]
        if after == before and value in self._wanted:
            return
        self._times[value] += 1
        if self._times[value] > _TIMES:
            after = [one if one == other else WHOLE for one, other in zip(before, after)]
        self._wanted[value], self._changed = after, True

    def _want_all(self, value: ir.Value) -> None:
        if isinstance(value.type, ir.RankedTensorType):
            self._want(value, [WHOLE] * len(value.type.shape))

    def _results(self, end: ir.Operation) -> None:
        """Want of each result the elements that there are; all of a dim that ranks share."""
        for value, mark in zip(end.operands, port_attrs(self.main, "res_attrs")):
            names = [name.value for name in mark.get(LENGTHS, ())]
            if not names:
                self._want_all(value)
                continue
            layout = LayoutAttr(mark["dist.layout"]).layout if "dist.layout" in mark else None
            wanted: list[Wanted] = []
            for d, name in enumerate(names):
                axes, formula = () if layout is None else layout.axes_of(d), Formula(0)
                begin = None
                if axes and layout is not None and _is_plain(layout):
                    begin = self.ends.along(axes, value.type.shape[d])
                if name:
                    formula = Formula.parse(name)
                known = formula.terms and self.ends.is_known(formula)
                there = known and (begin is not None or not axes)
                wanted.append(Limit(formula, begin) if there else WHOLE)
            self._want(value, wanted)

    def _block(self, block: ir.Block) -> None:
        for view in reversed(list(block.operations)):
            self._op(view.operation)

    def _op(self, op: ir.Operation) -> None:
        """Want what an op reads for what is wanted of its results."""
        name = op.name
        if name == "mw.launch":
            self._launch(op)
        elif name == "scf.for":
            self._loop(op)
        elif name == "scf.if":
            self._choice(op)
        elif name in ("tensor.empty", "func.return", "arith.constant", "scf.yield"):
            return
        elif name == "tensor.extract":
            self._want(op.operands[0], [self._until(index) for index in list(op.operands)[1:]])
        elif name == "tensor.extract_slice":
            self._slice(op)
        elif name == "tensor.insert_slice":
            self._insertion(op)
        elif (source := gathered(op)) is not None:
            self._gather(op, source)
        elif name in ("tensor.collapse_shape", "tensor.expand_shape"):
            self._reshape(op)
        elif name == "mw.collective" and gathers(op) and not self._is_wanted(op.results[0]):
            return  # what reads it wants of the blocks of ranks
        elif adds_up(op):
            for value in op.operands:
                self._want(value, self.of(op.results[0]))
        else:
            for value in op.operands:
                self._want_all(value)
            for region in op.regions:
                for inner in region.blocks:
                    for value in terminator(inner).operands:
                        self._want_all(value)
                    self._block(inner)

    def _is_wanted(self, value: ir.Value) -> bool:
        return any(wanted is not None for wanted in self.of(value))

    def _gather(self, op: ir.Operation, source: Gathered) -> None:
        """Want of the block of a rank what is wanted of the whole there."""
        wanted = self.of(op.results[0])
        end = wanted[source.dim]
        if isinstance(end, Limit):
            begin = self.ends.begin(source.group, source.block)
            wanted = [*wanted]
            wanted[source.dim] = Limit(end.plain().end, begin) if end.begin is None else WHOLE
        self._want(source.value, wanted)

    def _loop(self, op: ir.Operation) -> None:
        block = body_of(op)
        carried = list(block.arguments)[1:]
        starts, ends = list(op.operands)[3:], list(terminator(block).operands)
        for argument, end, result in zip(carried, ends, op.results):
            if isinstance(result.type, ir.RankedTensorType):
                self._want(end, self.of(result))
                self._want(end, self.of(argument))
        self._block(block)
        for start, argument, result in zip(starts, carried, op.results):
            if isinstance(result.type, ir.RankedTensorType):
                self._want(start, self.of(argument))
                self._want(start, self.of(result))

    def _choice(self, op: ir.Operation) -> None:
        for region in op.regions:
            for block in region.blocks:
                for value, result in zip(terminator(block).operands, op.results):
                    if isinstance(result.type, ir.RankedTensorType):
                        self._want(value, self.of(result))
                self._block(block)

    # Parts of tensors.

    def _slice(self, op: ir.Operation) -> None:
        """Want of a tensor what is wanted of its slice, from where that begins."""
        large, small = op.operands[0], op.results[0]
        wanted = _along(static_sizes(op), small.type.shape, self.of(small))
        if wanted is None:
            self._want_all(large)
            return
        found: list[Wanted] = []
        places = zip(self._offsets(op, 1), static_sizes(op), static_strides(op), wanted)
        for offset, extent, step, want in places:
            begin = self._formula(offset)
            if step == 1 and begin is not None and isinstance(want, Limit):
                found.append(want.moved(begin))
            elif step == 1 and extent != DYNAMIC and not isinstance(offset, int):
                more = 0 if _is_masked(offset) else extent - 1
                found.append(_moved(self._until(offset), more))
            else:
                found.append(WHOLE)
        self._want(large, found)

    def _insertion(self, op: ir.Operation) -> None:
        """Want of what is put into a tensor, and of that tensor, what is wanted of the result."""
        source, into = list(op.operands)[:2]
        wanted = self.of(op.results[0])
        self._want(into, wanted)
        found = list[Wanted]()
        for offset, step, want in zip(self._offsets(op, 2), static_strides(op), wanted):
            begin = self._formula(offset)
            if step == 1 and begin is not None and isinstance(want, Limit):
                found.append(want.moved(begin, -1))
            else:
                found.append(WHOLE)
        extents = static_sizes(op)
        if len(extents) == len(source.type.shape):
            self._want(source, found)
            return
        wide = [want for want, extent in zip(found, extents) if extent != 1]
        own = [d for d, extent in enumerate(source.type.shape) if extent != 1]
        if len(wide) != len(own):
            self._want_all(source)
            return
        rest = dict(zip(own, wide))
        self._want(source, [rest.get(d, WHOLE) for d in range(source.type.rank)])

    def _offsets(self, op: ir.Operation, first: int) -> list[ir.Value | int]:
        """Return where each dim of a slice begins. first: the operand with the first offset that is computed."""
        given = iter(list(op.operands)[first:])
        return [next(given) if offset == DYNAMIC else offset for offset in static_offsets(op)]

    def _formula(self, offset: ir.Value | int) -> Formula | None:
        return Formula(offset) if isinstance(offset, int) else self.ends.formula(offset)

    def _until(self, index: ir.Value) -> Wanted:
        """Return a limit that an index is always before; WHOLE where none is known."""
        formula = self.ends.formula(index)
        if formula is not None:
            return Limit(formula.plus(Formula(1))) if formula.terms else WHOLE
        op = producer(index)
        for count in [index] if op is None else list(op.operands):
            if (loop := _loop_of(count)) is not None:
                limit = self.rounds.get(loop) if op is None else None
                end = self.block_end(loop)
                if end is not None and multiple_of(index, count) == end[1]:
                    limit = end[0] if _is_masked(index) else _last_block(*end)
                if limit is not None:
                    return limit
        if op is None:
            return WHOLE
        if op.name == "arith.index_cast":
            return self._until(op.operands[0])
        return _clamped(op.name, [self._until(value) for value in op.operands], list(op.operands))

    def _reshape(self, op: ir.Operation) -> None:
        """Want what is wanted of a reshape, in dims that it leaves alone, and of merged ones in the major."""
        source, result = op.operands[0], op.results[0]
        fine = result if op.name == "tensor.expand_shape" else source
        wanted, found = self.of(result), list[Wanted]([WHOLE] * len(source.type.shape))
        for coarse, group in enumerate(reassociation(op)):
            wide = [d for d in group if fine.type.shape[d] != 1]
            major = wide[0] if wide else group[0]
            minor = prod(fine.type.shape[d] for d in wide[1:])
            if fine is result:
                found[coarse] = _times(wanted[major], minor)
            else:
                found[major] = _divided(wanted[coarse], minor)
        self._want(source, found)

    # Kernels.

    def _launch(self, op: ir.Operation) -> None:
        """Want what a kernel reads in the iterations that its loops have."""
        kernel, limits = self._kernel(op), self.limits(op)
        guarded = self.behind.guarded(op)
        for number, node in enumerate(kernel.code):
            if isinstance(node, Load):
                ends = {**guarded.get(number, {}), **limits}
                read = [self._read(op, form, ends) for form in node.access.indices]
                self._want(op.operands[node.access.operand], read)
            elif isinstance(node, Gather):
                read = [self._computed(op, kernel, k, limits) for k in node.operands]
                self._want(op.operands[node.access.operand], read)
        count = op.attributes["outs"].value
        for out, result in zip(list(op.operands)[-count:], op.results):
            self._want(out, self.of(result))

    def _read(self, op: ir.Operation, form: Linear, ends: Mapping[int, Limit]) -> Wanted:
        """Return what an access reads of a dim, where loops end at `ends`."""
        terms = [(k, factor) for k, factor in form.terms if k < 0 or k in ends]
        if len(terms) != 1 or terms[0][1] != 1:
            return WHOLE
        ((dim, _),) = terms
        more, sizes = form.const, self._kernel(op).sizes
        masked = dim < 0 and _is_masked(op.operands[-1 - dim])
        for other, factor in () if masked else form.terms:
            if other != dim:
                more += max(0, factor * (sizes[other] - 1))
        return _moved(ends[dim] if dim >= 0 else self._until(op.operands[-1 - dim]), more)

    def _computed(
        self, op: ir.Operation, kernel: FusedKernel, number: int, ends: Mapping[int, Limit]
    ) -> Wanted:
        """Return a limit that a place which a kernel computes is always before; WHOLE where none is known."""
        node = kernel.code[number]
        if isinstance(node, IndexNode):
            return self._read(op, node.form, ends)
        if isinstance(node, Scalar):
            return self._until(op.operands[node.source])
        if not isinstance(node, Apply):
            return WHOLE
        read = [self._computed(op, kernel, k, ends) for k in node.operands]
        if node.name == "arith.index_cast":
            return read[0]
        return _clamped(node.name, read, [kernel.code[k] for k in node.operands])


def _is_masked(start: ir.Value) -> bool:
    """Tell whether nothing is used of a tile that begins there behind the end of its size."""
    op = producer(start)
    return op is not None and MASKED in op.attributes


def _last_block(end: Limit, size: int) -> Limit:
    """Return a limit that blocks of `size` which begin before `end` begin before."""
    if size == 1 or end.begin is not None or end.up > 1:
        return end.plain()
    return replace(end, up=size, more=1 - size)


def _loop_of(value: ir.Value) -> ir.Operation | None:
    """Return the loop whose rounds a value counts."""
    if not isinstance(value.owner, ir.Block) or value.arg_number != 0:
        return None
    loop = value.owner.owner.operation
    return loop if loop.name == "scf.for" else None


def adds_up(op: ir.Operation) -> bool:
    """Tell whether an op reduces a tensor over ranks, element by element."""
    return op.name == "mw.collective" and str(op.attributes["what"].value) == "all_reduce"


def _is_plain(layout: Layout) -> bool:
    """Tell whether a rank holds the block that its place along the axes says."""
    plain = layout.is_block and not layout.partial and layout.without_order() == layout
    return plain and layout.uneven == "flat"


def _joined(one: Wanted, other: Wanted) -> Wanted:
    if isinstance(one, Limit) and isinstance(other, Limit):
        return one.joined(other) or WHOLE
    if one is None or one == other:
        return other
    return one if other is None else WHOLE


def _moved(wanted: Wanted, by: int) -> Wanted:
    return wanted.moved(Formula(by)) if isinstance(wanted, Limit) else wanted


def _times(wanted: Wanted, number: int) -> Wanted:
    """Return what is wanted of a dim, of each place of which there are a number in another one."""
    if number == 1 or not isinstance(wanted, Limit) or wanted.begin is not None:
        return wanted if number == 1 else WHOLE
    return Limit(wanted.plain().end.times(Formula(number)))


def _divided(wanted: Wanted, number: int) -> Wanted:
    """Return the opposite of `_times`."""
    if number == 1 or not isinstance(wanted, Limit) or wanted.begin is not None:
        return wanted if number == 1 else WHOLE
    end = wanted.plain().end
    factors = [end.const, *[factor for _, factor in end.terms]]
    if any(factor % number for factor in factors):
        return WHOLE
    terms = tuple([(names, factor // number) for names, factor in end.terms])
    return Limit(Formula(end.const // number, terms))


def _along(
    extents: Sequence[int], shape: Sequence[int], wanted: Sequence[Wanted]
) -> list[Wanted] | None:
    """Return what is wanted along each dim of a slice, of which dims of 1 may be gone; None where that is not clear."""
    if len(extents) == len(shape):
        return list(wanted)
    wide = [want for want, extent in zip(wanted, shape) if extent != 1]
    if len(wide) != sum(extent != 1 for extent in extents):
        return None
    left = iter(wide)
    return [next(left) if extent != 1 else WHOLE for extent in extents]


def _clamped(name: str, limits: Sequence[Wanted], operands: Sequence[object]) -> Wanted:
    """Return a limit for the lesser, or greater, of two places."""
    known = [limit for limit in limits if isinstance(limit, Limit)]
    if name in ("arith.minsi", "arith.minui"):
        return known[0] if known else WHOLE
    if name == "arith.maxsi" and len(known) == 1:
        ((limit, other),) = [(one, o) for one, o in zip(limits, reversed(operands)) if one in known]
        # A size is 1 at least, so that place 0 is before it.
        return limit if limit.begin is None and limit.end.dim and _is_zero(other) else WHOLE
    return WHOLE


def _is_zero(value: object) -> bool:
    op = producer(value) if isinstance(value, ir.Value) else None
    attr = getattr(value, "value", None) if op is None else op.attributes.get("value", None)
    return isinstance(attr, ir.IntegerAttr) and attr.value == 0
