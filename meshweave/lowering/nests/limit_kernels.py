"""limit-kernels: loops along a size that each call chooses end there.

before:  mw.kernel @k0 {sizes = [4096, 64], ..};  %1 = "mw.launch"(%a, %e) {kernel = @k0, ..}
after:   mw.kernel @k0 {sizes = [4096, 64], limits = [0, 1], ..};  %1 = "mw.launch"(%a, %n, %e) {kernel = @k0, ..}

Of the result n rows are read. A parallel loop ends where nobody reads what lies further on. A loop that reduces ends
where the body takes the neutral element from, because of its mask or because that is what the operands hold there; the
mask then goes. A kernel that is left with nothing but a copy goes too. A loop of the program ends where its rounds do
nothing any more, such as those of a scatter. Elsewhere loops run to their sizes, which is right as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from meshweave.dialects.mw import TIMES
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64
from meshweave.ir.expressions import Apply, Load, NodeTable, inputs, needed, renumber
from meshweave.ir.ops import functions_of
from meshweave.lowering.host.program_op import engine_of
from meshweave.lowering.nests import linear
from meshweave.lowering.nests.ends.behind import Behind
from meshweave.lowering.nests.ends.limits import Limit, LoopEnds
from meshweave.lowering.nests.ends.rounds import block_rows, idle_rounds, rounds_of
from meshweave.lowering.nests.ends.wanted import WantedParts, adds_up
from meshweave.lowering.nests.kernel_ops import KernelWriter, read_kernels
from meshweave.lowering.nests.kernels import ElementRef, FusedKernel, KernelNode
from meshweave.targets import Goal
from meshweave.transforms.base import Pass, walk


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
        goal = Goal.of(engine=engine_of(module))
        ends = LoopEnds.of(module, main) if goal.target == "cpu" else None
        return kernels if ends is None else _Limiting(module, main, kernels, ends).run()


@dataclass
class _Limiting:
    module: ir.Module
    main: ir.Operation
    kernels: dict[str, FusedKernel]
    ends: LoopEnds

    def __post_init__(self) -> None:
        self.behind = Behind(self.kernels, self.ends)
        self.behind.learn(self.main)
        self.rounds = idle_rounds(self.main, self.behind)
        known = self.main, self.kernels, self.ends, self.behind, self.rounds
        self.wanted = WantedParts(*known, block_rows(self.main))

    def run(self) -> dict[str, FusedKernel]:
        """Decide, then rewrite the launches and the loops around them."""
        self.wanted.find()
        launches = [op for op in walk(self.main) if op.name == "mw.launch"]
        writer = KernelWriter(self.module)
        writer.names = {kernel: name for name, kernel in self.kernels.items()}
        for op in walk(self.main):
            if adds_up(op):
                self._shorten(op)
        # All are decided first: what is rewritten changes what is wanted.
        decided = [(op, self.wanted.limits(op)) for op in launches]
        blocks = [(op, self.wanted.block_end(op)) for op in self.wanted.blocks]
        for op, limits in decided:
            if limits:
                self._rewrite(op, limits, writer)
        for op, limit in self.rounds.items():
            op.operands[1] = self.ends.value(limit, rounds_of(op) or 0)
        for op, end in blocks:
            if end is not None:
                op.operands[1] = self.ends.blocks(end[0], rounds_of(op) or 0, end[1])
        return self._used({name: kernel for kernel, name in writer.names.items()})

    def _used(self, kernels: dict[str, FusedKernel]) -> dict[str, FusedKernel]:
        """Return the kernels that are launched, and erase all others."""
        launches = [op for op in walk(self.module.operation) if op.name == "mw.launch"]
        used = {op.attributes["kernel"].value for op in launches}
        for op in walk(self.module.operation):
            if op.name == "mw.kernel" and op.attributes["sym_name"].value not in used:
                op.erase()
        return {name: kernel for name, kernel in kernels.items() if name in used}

    # What is written.

    def _rewrite(self, op: ir.Operation, limits: Mapping[int, Limit], writer: KernelWriter) -> None:
        """Replace a launch by one whose loops end, or by what it would copy."""
        kernel = self.kernels[op.attributes["kernel"].value]
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
                value = self.ends.value(limit, kernel.sizes[loop])
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
        shape, wanted = value.type.shape, self.wanted.of(value)
        wide = next((d for d, size in enumerate(shape) if size != 1), None)
        end = None if wide is None else wanted[wide]
        if (
            not isinstance(end, Limit)
            or end.begin is not None
            or end.up > 1
            or end.end.dim is None
            or not isinstance(count, ir.IntegerAttr)
        ):
            return
        number = self.ends.sizes[end.end.dim].owner.operands[0].owner.operands[0].arg_number
        text = f"{TIMES}{number}*{count.value // shape[wide]}"
        op.attributes["arguments"] = ir.ArrayAttr.get([ir.StringAttr.get(text)])

    def _replace(self, op: ir.Operation, values: Sequence[ir.Value]) -> None:
        for old, new in zip(op.results, values, strict=True):
            old.replace_all_uses_with(new)
        op.erase()

    def _stripped(self, op: ir.Operation, limits: Mapping[int, Limit]) -> FusedKernel:
        """Return the kernel of a launch without the masks that hold in all iterations that are left."""
        kernel, conditions = self.kernels[op.attributes["kernel"].value], self.behind.conditions(op)
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


def _copied(kernel: FusedKernel) -> int | None:
    """Return the operand that a kernel copies, element by element; None for any other kernel."""
    if len(kernel.outputs) != 1 or kernel.reductions or len(kernel.code) != 1:
        return None
    (node,), (output,) = kernel.code, kernel.outputs
    if not isinstance(node, Load) or node.access.indices != output.access:
        return None
    return None if output.reads else node.access.operand
