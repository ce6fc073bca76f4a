"""limit-kernels: loops along a size that each call chooses end there.

before:  mw.kernel @k0 {sizes = [4096, 64], ..};  %1 = "mw.launch"(%a, %e) {kernel = @k0, ..}
after:   mw.kernel @k0 {sizes = [4096, 64], limits = [0, 1], ..};  %1 = "mw.launch"(%a, %n, %e) {kernel = @k0, ..}

Of the result n rows are read. A parallel loop ends where nobody reads what lies further on. A loop that reduces ends
where the body takes the neutral element from, because of its mask or because that is what the operands hold there; the
mask then goes. A kernel that is left with nothing but a copy goes too. Elsewhere loops run to their sizes, which is
right as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

from meshweave.dialects.dist import LENGTH, LENGTHS, LayoutAttr
from meshweave.dialects.mw import TIMES
from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import (
    OpBuilder,
    i64,
    reassociation,
    static_offsets,
    static_sizes,
    static_strides,
)
from meshweave.ir.expressions import (
    Accumulator,
    Apply,
    Constant,
    Gather,
    Index,
    Load,
    NodeTable,
    Scalar,
    inputs,
    needed,
    renumber,
)
from meshweave.ir.ops import body_of, functions_of, is_used, producer, replace_op, terminator
from meshweave.layout.layout import Layout
from meshweave.lowering.host.program_op import engine_of, program_op
from meshweave.lowering.nests import linear
from meshweave.lowering.nests.kernel_ops import KernelWriter, read_kernels
from meshweave.lowering.nests.kernels import ElementRef, FusedKernel, KernelNode
from meshweave.targets import Goal
from meshweave.transforms.base import Pass, port_attrs, walk

FLOATS = ("f32", "f64", "bf16", "f16")  # products whose sums may end early
_BELOW = (int(arith.CmpIPredicate.ult), int(arith.CmpIPredicate.slt))
_NEUTRAL = {
    "arith.addf": 0.0, "arith.addi": 0, "arith.mulf": 1.0, "arith.muli": 1,
    "arith.maximumf": float("-inf"), "arith.minimumf": float("inf"),
}  # fmt: skip


@dataclass(frozen=True)
class LimitKernels(Pass):
    """End the loops of kernels where the sizes that calls choose end."""

    name: ClassVar[str] = "limit-kernels"

    def run(self, module: ir.Module) -> None:
        limit(module, read_kernels(module))


def limit(module: ir.Module, kernels: dict[str, FusedKernel]) -> dict[str, FusedKernel]:
    """Let the loops of kernels end where the sizes that calls choose do; return all kernels by name.

    Only loops of target cpu can end early.
    """
    context = module.operation.context
    with context, ir.Location.unknown(context):
        main = functions_of(module)["main"]
        sizes = _sizes(main)
        if not sizes or Goal.of(engine=engine_of(module)).target != "cpu":
            return kernels
        groups = [tuple(a.value for a in axes) for axes in _groups(module)]
        return _Limiting(module, main, kernels, sizes, _Offsets.of(main, groups, sizes)).run()


def _sizes(main: ir.Operation) -> dict[str, ir.Value]:
    """Return the sizes that calls choose, as indices that begin the function, by name."""
    found, block = {}, body_of(main)
    for argument, mark in zip(block.arguments, port_attrs(main, "arg_attrs")):
        if LENGTH not in mark:
            continue
        elements = [u.owner.operation for u in argument.uses]
        reads = [op for op in elements if op.name == "tensor.extract"]
        casts = [use.owner.operation for op in reads for use in op.results[0].uses]
        b = OpBuilder(ir.InsertionPoint.at_block_begin(block), main.location)
        size = b.one("arith.index_cast", ir.IndexType.get(), b.element(argument))
        for op in casts:
            if op.name == "arith.index_cast" and op.results[0].type == size.type:
                replace_op(op, [size])
        for op in reads:
            if not is_used(op.results[0]):
                op.erase()
        found[mark[LENGTH].value] = size
    return found


def _groups(module: ir.Module) -> Iterable[Iterable[ir.StringAttr]]:
    program = program_op(module)
    return () if program is None else program.attributes["groups"]


@dataclass
class _Offsets:
    """Know where the block of a rank begins, as values that begin the function.

    known: by the number of a group and the size of a block. last: the op behind which such values may be made.
    """

    groups: Sequence[tuple[str, ...]]
    last: ir.Operation
    known: dict[tuple[int, int], ir.Value] = field(default_factory=dict)

    @classmethod
    def of(
        cls, main: ir.Operation, groups: Sequence[tuple[str, ...]], sizes: Mapping[str, ir.Value]
    ) -> _Offsets:
        """Put those that the function has where it begins, each once."""
        made = cls(groups, next(iter(sizes.values())).owner.operation)
        for op in walk(main):
            if op.name != "arith.muli" or op.parent != main:
                continue
            member, number = (producer(value) for value in op.operands)
            if member is None or number is None or number.name != "arith.constant":
                continue
            if member.name == "mw.member":
                group, block = member.attributes["group"].value, number.attributes["value"].value
                replace_op(op, [made.value(group, block)])
        return made

    def value(self, group: int, block: int) -> ir.Value:
        """Return where the block of this member of a group begins."""
        if (group, block) not in self.known:
            index = ir.IndexType.get()
            member = self._made("mw.member", [], index, group=i64(group))
            number = ir.IntegerAttr.get(index, block)
            size = self._made("arith.constant", [], index, value=number)
            self.known[group, block] = self._made("arith.muli", [member, size], index)
        return self.known[group, block]

    def along(self, axes: Sequence[str], block: int) -> ir.Value | None:
        """Return where the block of a rank along some axes begins; None where no group has them."""
        if tuple(axes) not in self.groups:
            return None
        return self.value(self.groups.index(tuple(axes)), block)

    def _made(
        self, name: str, operands: Sequence[ir.Value], type_: ir.Type, **attributes: ir.Attribute
    ) -> ir.Value:
        self.last = OpBuilder.after(self.last).op(name, [type_], operands, **attributes)
        return self.last.results[0]

    def ended(self, limit: Limit, size: int) -> ir.Value:
        """Return a limit of a block of `size` as an index of 0 to `size`."""
        index, total = ir.IndexType.get(), limit.end
        if limit.begin is not None:
            total = self._made("arith.subi", [total, limit.begin], index)
        zero, most = (
            self._made("arith.constant", [], index, value=ir.IntegerAttr.get(index, n))
            for n in (0, size)
        )
        return self._made(
            "arith.minsi", [self._made("arith.maxsi", [total, zero], index), most], index
        )


@dataclass(frozen=True)
class Limit:
    """Say where a loop ends: at `end`, less where the block of a rank begins."""

    end: ir.Value
    begin: ir.Value | None = None


WHOLE = "whole"
Wanted = Limit | str | None
"""What of a dim is read: nothing that is known of yet, what lies before a limit, or WHOLE."""
_FALSE, _UNKNOWN = "false", "unknown"


def _joined(one: Wanted, other: Wanted) -> Wanted:
    if one is None or one == other:
        return other
    return one if other is None else WHOLE


@dataclass
class _Limiting:
    module: ir.Module
    main: ir.Operation
    kernels: dict[str, FusedKernel]
    sizes: Mapping[str, ir.Value]
    offsets: _Offsets
    ended: dict[tuple[Limit, int], ir.Value] = field(default_factory=dict)
    wanted: dict[ir.Value, list[Wanted]] = field(default_factory=dict)
    neutral: dict[tuple[ir.Value, int, Limit], ir.Attribute] = field(default_factory=dict)
    reductions: dict[ir.Value, dict[int, Limit]] = field(default_factory=dict)
    changed: bool = False

    def run(self) -> dict[str, FusedKernel]:
        """Decide, then rewrite the launches."""
        block = body_of(self.main)
        launches = [op for op in walk(self.main) if op.name == "mw.launch"]
        for op in walk(self.main):
            if op.name == "mw.launch":
                self._learn(op)
            elif (source := _gathered(op)) is not None:
                self._learn_gathered(op, source)
            elif op.name == "tensor.extract_slice":
                self._learn_slice(op)
        self.changed = True
        while self.changed:  # loops carry what is wanted from round to round
            self.changed = False
            self._results(terminator(block))
            self._block(block)
        writer = KernelWriter(self.module)
        writer.names = {kernel: name for name, kernel in self.kernels.items()}
        for op in walk(self.main):
            if _adds_up(op):
                self._shorten(op)
        # All are decided first: what is rewritten changes what is wanted.
        decided = [(op, self._limits(op)) for op in launches]
        for op, limits in decided:
            if limits:
                self._rewrite(op, limits, writer)
        return self._used({name: kernel for kernel, name in writer.names.items()})

    def _used(self, kernels: dict[str, FusedKernel]) -> dict[str, FusedKernel]:
        """Return the kernels that are launched, and erase all others."""
        launches = [op for op in walk(self.module.operation) if op.name == "mw.launch"]
        used = {op.attributes["kernel"].value for op in launches}
        for op in walk(self.module.operation):
            if op.name == "mw.kernel" and op.attributes["sym_name"].value not in used:
                op.erase()
        return {name: kernel for name, kernel in kernels.items() if name in used}

    # What masks say.

    def _kernel(self, op: ir.Operation) -> FusedKernel:
        return self.kernels[op.attributes["kernel"].value]

    def _conditions(self, op: ir.Operation) -> dict[int, tuple[int, Limit]]:
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
                if begin is None or begin not in self.offsets.known.values():
                    continue
            if predicate is None or predicate.value not in _BELOW:
                continue
            if not isinstance(index, Index) or not isinstance(end, Scalar):
                continue
            value, loop = op.operands[end.source], index.form.dim
            if loop is not None and value in self.sizes.values():
                found[number] = (loop, Limit(value, begin))
        return found

    def _learn(self, op: ir.Operation) -> None:
        """Note what the results of a launch hold behind a size, and which of its reductions end there."""
        kernel, conditions = self._kernel(op), self._conditions(op)
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

    def _learn_gathered(self, op: ir.Operation, source: _Gathered) -> None:
        """Note what a tensor that is put together of the blocks of ranks holds behind a size."""
        begin = self.offsets.value(source.group, source.block)
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
            return _FALSE
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

    # What is wanted.

    def _want(self, value: ir.Value, dims: Sequence[Wanted]) -> None:
        if not isinstance(value.type, ir.RankedTensorType):
            return
        before = self.wanted.get(value, [None] * len(dims))
        after = [_joined(one, other) for one, other in zip(before, dims)]
        if after != before or value not in self.wanted:
            self.wanted[value] = after
            self.changed = True

    def _want_all(self, value: ir.Value) -> None:
        if isinstance(value.type, ir.RankedTensorType):
            self._want(value, [WHOLE] * len(value.type.shape))

    def _of(self, value: ir.Value) -> list[Wanted]:
        return self.wanted.get(value, [None] * len(value.type.shape))

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
                axes = () if layout is None else layout.axes_of(d)
                begin = None
                if axes and layout is not None and _is_plain(layout):
                    begin = self.offsets.along(axes, value.type.shape[d])
                known = name in self.sizes and (begin is not None or not axes)
                wanted.append(Limit(self.sizes[name], begin) if known else WHOLE)
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
        elif name in ("tensor.empty", "func.return", "arith.constant"):
            return
        elif name == "tensor.extract_slice":
            self._slice(op, op.operands[0], op.results[0])
        elif (source := _gathered(op)) is not None:
            self._gather(op, source)
        elif name in ("tensor.collapse_shape", "tensor.expand_shape"):
            self._reshape(op)
        elif name == "mw.collective" and _gathers(op) and not self._is_wanted(op.results[0]):
            return  # what reads it wants of the blocks of ranks
        elif _adds_up(op):
            for value in op.operands:
                self._want(value, self._of(op.results[0]))
        else:
            for value in op.operands:
                self._want_all(value)
            for region in op.regions:
                for inner in region.blocks:
                    for value in terminator(inner).operands:
                        self._want_all(value)
                    self._block(inner)

    def _is_wanted(self, value: ir.Value) -> bool:
        return any(wanted is not None for wanted in self._of(value))

    def _gather(self, op: ir.Operation, source: _Gathered) -> None:
        """Want of the block of a rank what is wanted of the whole there."""
        wanted = self._of(op.results[0])
        end = wanted[source.dim]
        if isinstance(end, Limit):
            begin = self.offsets.value(source.group, source.block)
            wanted = [*wanted]
            wanted[source.dim] = Limit(end.end, begin) if end.begin is None else WHOLE
        self._want(source.value, wanted)

    def _loop(self, op: ir.Operation) -> None:
        block = body_of(op)
        carried = list(block.arguments)[1:]
        starts, ends = list(op.operands)[3:], list(terminator(block).operands)
        for argument, end, result in zip(carried, ends, op.results):
            if isinstance(result.type, ir.RankedTensorType):
                self._want(end, self._of(result))
                self._want(end, self._of(argument))
        self._block(block)
        for start, argument, result in zip(starts, carried, op.results):
            if isinstance(result.type, ir.RankedTensorType):
                self._want(start, self._of(argument))
                self._want(start, self._of(result))

    def _slice(self, op: ir.Operation, large: ir.Value, small: ir.Value) -> None:
        """Want of a tensor what is wanted of its slice, in dims of which it takes the first places."""
        extents, wanted = static_sizes(op), self._of(small)
        if len(extents) != len(wanted):
            self._want_all(large)
            return
        first = [offset == 0 for offset in static_offsets(op)]
        steps = [step == 1 for step in static_strides(op)]
        self._want(large, [w if a and b else WHOLE for w, a, b in zip(wanted, first, steps)])

    def _reshape(self, op: ir.Operation) -> None:
        """Want what is wanted of a reshape, in dims that it leaves alone but for dims of 1."""
        source, result = op.operands[0], op.results[0]
        fine = result if op.name == "tensor.expand_shape" else source
        wanted, found = self._of(result), list[Wanted]([WHOLE] * len(source.type.shape))
        for coarse, group in enumerate(reassociation(op)):
            wide = [d for d in group if fine.type.shape[d] != 1]
            if len(wide) > 1:
                continue
            at = wide[0] if wide else group[0]
            if fine is result:
                found[coarse] = wanted[at]
            else:
                found[at] = wanted[coarse]
        self._want(source, found)

    def _launch(self, op: ir.Operation) -> None:
        """Want what a kernel reads in the iterations that its loops have."""
        kernel, limits = self._kernel(op), self._limits(op)
        guarded = self._guarded(op)
        for number, node in enumerate(kernel.code):
            if isinstance(node, Load):
                value = op.operands[node.access.operand]
                self._want(
                    value,
                    [_read(form, limits, guarded.get(number, {})) for form in node.access.indices],
                )
            elif isinstance(node, Gather):
                self._want_all(op.operands[node.access.operand])
        count = op.attributes["outs"].value
        for out, result in zip(list(op.operands)[-count:], op.results):
            self._want(out, self._of(result))

    def _guarded(self, op: ir.Operation) -> dict[int, dict[int, Limit]]:
        """Return for each node that only masks read the loops behind whose limit they take something else."""
        kernel, conditions = self._kernel(op), self._conditions(op)
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

    def _limits(self, op: ir.Operation) -> dict[int, Limit]:
        """Return where the loops of a launch end."""
        kernel, found = self._kernel(op), dict(self.reductions.get(op.results[0], {}))
        if not _may_end(kernel):
            return {}
        for loop, size in enumerate(kernel.sizes):
            scanned = any(f.dim == loop for o in kernel.outputs for f in o.access)
            if size == 1 or (loop in kernel.reductions and not scanned):
                continue
            ends: list[Wanted] = []
            for output, result in zip(kernel.outputs, op.results):
                dims = [d for d, form in enumerate(output.access) if form.dim == loop]
                others = [f for f in output.access if f.dim != loop and loop in dict(f.terms)]
                if len(dims) != 1 or others:
                    ends.append(WHOLE)
                    continue
                ends.append(self._of(result)[dims[0]])
            if ends and isinstance(ends[0], Limit) and all(end == ends[0] for end in ends):
                found[loop] = ends[0]
        return found

    # What is written.

    def _rewrite(self, op: ir.Operation, limits: Mapping[int, Limit], writer: KernelWriter) -> None:
        """Replace a launch by one whose loops end, or by what it would copy."""
        kernel = self._kernel(op)
        stripped = self._stripped(op, limits)
        copied = _copied(stripped)
        if copied is not None and op.operands[copied].type == op.results[0].type:
            self._replace(op, [op.operands[copied]])
            return
        count = op.attributes["outs"].value
        operands, outs = list(op.operands)[:-count], list(op.operands)[-count:]
        pairs, types = [], list(stripped.operands)
        numbers: dict[tuple[Limit, int], int] = {}
        for loop, limit in sorted(limits.items(), key=lambda pair: pair[0]):
            if (limit, kernel.sizes[loop]) not in numbers:
                value = self._ended(limit, kernel.sizes[loop])
                known = operands.index(value) if value in operands else len(operands)
                if known == len(operands):
                    operands.append(value)
                    types.append(value.type)
                numbers[limit, kernel.sizes[loop]] = known
            pairs.append((loop, numbers[limit, kernel.sizes[loop]]))
        made = replace(stripped, operands=tuple(types), limits=tuple(pairs))
        new = OpBuilder.before(op).op(
            "mw.launch",
            [value.type for value in outs],
            [*operands, *outs],
            kernel=ir.FlatSymbolRefAttr.get(writer.name(made)),
            outs=i64(count),
        )
        self._replace(op, list(new.results))

    def _shorten(self, op: ir.Operation) -> None:
        """Let a sum over ranks move only the rows that there are: its count is a multiple of an argument of @main."""
        value, (count,) = op.results[0], op.attributes["arguments"]
        shape, wanted = value.type.shape, self._of(value)
        wide = next((d for d, size in enumerate(shape) if size != 1), None)
        end = None if wide is None else wanted[wide]
        if (
            not isinstance(end, Limit)
            or end.begin is not None
            or not isinstance(count, ir.IntegerAttr)
        ):
            return
        number = end.end.owner.operands[0].owner.operands[0].arg_number
        text = f"{TIMES}{number}*{count.value // shape[wide]}"
        op.attributes["arguments"] = ir.ArrayAttr.get([ir.StringAttr.get(text)])

    def _replace(self, op: ir.Operation, values: Sequence[ir.Value]) -> None:
        for old, new in zip(op.results, values, strict=True):
            old.replace_all_uses_with(new)
        op.erase()

    def _ended(self, limit: Limit, size: int) -> ir.Value:
        """Return a limit as an index of at most `size`."""
        if limit.begin is None:
            return limit.end
        if (limit, size) not in self.ended:
            self.ended[limit, size] = self.offsets.ended(limit, size)
        return self.ended[limit, size]

    def _stripped(self, op: ir.Operation, limits: Mapping[int, Limit]) -> FusedKernel:
        """Return the kernel of a launch without the masks that hold in all iterations that are left."""
        kernel, conditions = self._kernel(op), self._conditions(op)
        true = {k for k, (loop, limit) in conditions.items() if limits.get(loop) == limit}
        table: NodeTable[ElementRef, linear.Linear, int] = NodeTable()
        numbers: list[int] = []
        same: dict[int, int] = {}  # a node -> the one that it is, in old numbers
        for number, node in enumerate(kernel.code):
            if isinstance(node, Apply) and node.name == "arith.andi":
                left = [k for k in node.operands if same.get(k, k) not in true]
                if not left:
                    true.add(number)
                elif len(left) == 1:
                    same[number] = left[0]
            elif _is_held(node, same, true):
                same[number] = inputs(node)[1]
        for number in range(len(kernel.code)):
            while same.get(number, number) in same:
                same[number] = same[same[number]]
        values = [same.get(o.value, o.value) for o in kernel.outputs]
        starts = [o.initial for o in kernel.outputs if o.initial is not None]
        code = [
            renumber(node, [same.get(k, k) for k in range(len(kernel.code))])
            for node in kernel.code
        ]
        wanted = needed(code, [*values, *starts])
        for number, node in enumerate(code):
            numbers.append(table.put(renumber(node, numbers)) if number in wanted else -1)
        outputs = tuple(
            replace(o, value=numbers[v], initial=None if o.initial is None else numbers[o.initial])
            for o, v in zip(kernel.outputs, values)
        )
        return replace(kernel, code=tuple(table.nodes), outputs=outputs)


def _is_held(node: KernelNode, same: Mapping[int, int], true: Collection[int]) -> bool:
    """Tell whether a node takes what a mask lets through, where the mask holds."""
    masks = isinstance(node, Apply) and node.name == "arith.select"
    return masks and same.get(inputs(node)[0], inputs(node)[0]) in true


class _Gathered(NamedTuple):
    """Describe a tensor that is put together of the blocks of ranks: along which dim, of which group."""

    value: ir.Value
    dim: int
    block: int
    group: int


def _is_plain(layout: Layout) -> bool:
    """Tell whether a rank holds the block that its place along the axes says."""
    plain = layout.is_block and not layout.partial and layout.without_order() == layout
    return plain and layout.uneven == "flat"


def _gathers(op: ir.Operation) -> bool:
    return op.name == "mw.collective" and str(op.attributes["what"].value) == "all_gather"


def _gathered(op: ir.Operation) -> _Gathered | None:
    """Return what blocks a tensor is put together of: by a collective, or by the reshape behind one.

    Return None for any other op.
    """
    made: ir.Operation | None = op
    if op.name == "tensor.collapse_shape":
        made = producer(op.operands[0])
    if made is None or not _gathers(made):
        return None
    value, result, group = made.operands[0], op.results[0], made.attributes["group"].value
    own, whole = list(value.type.shape), list(result.type.shape)
    if op.name == "mw.collective":
        differ = [d for d, (a, b) in enumerate(zip(own, whole)) if a != b]
        if len(own) != len(whole) or len(differ) != 1:
            return None
        return _Gathered(value, differ[0], own[differ[0]], group)
    members = list(made.results[0].type.shape)
    front = members[1:] == own and [list(g) for g in reassociation(op)][:1] == [[0, 1]]
    if not front or whole != [members[0] * own[0], *own[1:]]:
        return None
    return _Gathered(value, 0, own[0], group)


def _adds_up(op: ir.Operation) -> bool:
    """Tell whether an op reduces a tensor over ranks, element by element."""
    return op.name == "mw.collective" and str(op.attributes["what"].value) == "all_reduce"


def _may_end(kernel: FusedKernel) -> bool:
    """Tell whether there is code for a kernel whose parallel loops end early, as fast as any."""
    return kernel.contraction or not any(word.endswith("order") for word in kernel.switches)


def _sums_may_end(kernel: FusedKernel) -> bool:
    """Tell whether there is code for a kernel whose reductions end early, as fast as any."""
    if not kernel.contraction:
        return _may_end(kernel)
    return all(str(node.type) in FLOATS for node in kernel.code if isinstance(node, Load))


def _read(form: linear.Linear, limits: Mapping[int, Limit], guarded: Mapping[int, Limit]) -> Wanted:
    """Return what an access reads of a dim."""
    if form.dim is None:
        return WHOLE
    return limits.get(form.dim) or guarded.get(form.dim) or WHOLE


def _folded(node: Apply, operands: Sequence[object]) -> object:
    """Return what an op makes of what its operands are; see `_behind`."""
    name = node.name
    if name == "arith.select":
        return operands[2] if operands[0] == _FALSE else _UNKNOWN
    if name == "arith.andi" and _FALSE in operands:
        return _FALSE
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


def _copied(kernel: FusedKernel) -> int | None:
    """Return the operand that a kernel copies, element by element; None for any other kernel."""
    if len(kernel.outputs) != 1 or kernel.reductions or len(kernel.code) != 1:
        return None
    (node,), (output,) = kernel.code, kernel.outputs
    if not isinstance(node, Load) or node.access.indices != output.access:
        return None
    return None if output.reads else node.access.operand
