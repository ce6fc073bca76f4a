"""fuse-kernels: launches of fused kernels in the place of linalg ops on tensors.

before:  %1 = linalg.matmul ins(%a, %b) ..;  %2 = arith.addf %1, %c : tensor<4x8xf32>
after:   mw.kernel @k0 {..}, mw.kernel @k1 {..}
         %1 = "mw.launch"(%a, %b, %e) {kernel = @k0, outs = 1};  %2 = "mw.launch"(%1, %c, %f) {kernel = @k1, outs = 1}

An elementwise op is computed inside its reader when one kernel alone reads it, or when computing it again is
cheaper than storing it; transposes, broadcasts, slices and reshapes are folded into their readers' accesses.
Contractions read and write tensors, so that a library can do them; a transpose that alone reads one is written by
it. A launch reads its operands and writes a tensor.empty, or updates the tensor that it is given. One that makes a new
state, in the buffer of an argument, comes behind all that reads the old one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64
from meshweave.ir.expressions import Apply, Argument
from meshweave.ir.ops import ops_named
from meshweave.lowering.buffers.bufferize import run_passes
from meshweave.lowering.host.functions import erase_unreached, kept_functions, name_of
from meshweave.lowering.host.narrow import round_once
from meshweave.lowering.host.prepare import PREPARE, refuse_unknown, spell_out
from meshweave.lowering.host.program_op import engine_of
from meshweave.lowering.nests import linear
from meshweave.lowering.nests.bodies import with_tensor
from meshweave.lowering.nests.direct import read_directly
from meshweave.lowering.nests.groups import kept_of
from meshweave.lowering.nests.items import PRODUCTS, Item, Reader
from meshweave.lowering.nests.kernel_ops import KernelWriter
from meshweave.lowering.nests.kernels import FusedKernel, KernelBuilder, view_access
from meshweave.lowering.nests.prices import PRICED, Prices
from meshweave.lowering.nests.states import put_off_states
from meshweave.lowering.nests.unroll import unroll
from meshweave.targets import Goal
from meshweave.transforms.base import Pass, walk
from meshweave.transforms.kernels.generalize import decompose
from meshweave.transforms.kernels.in_memory import (
    stored_for_inside,
    stored_for_product,
    stored_for_repeats,
    stored_for_several,
)
from meshweave.transforms.slicing.ledger import HintMarks

# Ops that make floats of weights of few bits.
WIDENING = {"arith.extf", "arith.sitofp", "arith.shli", "arith.shrsi"}
FEW_ROWS = 16  # that share each element of an operand


@dataclass(frozen=True)
class FuseKernels(Pass):
    """Fuse the linalg ops of every function into kernels."""

    name: ClassVar[str] = "fuse-kernels"

    def run(self, module: ir.Module) -> None:
        fuse(module)


def fuse(module: ir.Module) -> dict[str, FusedKernel]:
    """Fuse the linalg ops of every function into kernels; return these by name, as `read_kernels` would read them."""
    context = module.operation.context
    with context, ir.Location.unknown(context):
        target = Goal.of(engine=engine_of(module)).target
        erase_unreached(module)
        decompose(module)
        run_passes(module, PREPARE)
        kept, _ = kept_functions(module)
        names = {name_of(function) for function in kept}
        writer = KernelWriter(module)
        for function in kept:
            if unroll(function):
                run_passes(module, PREPARE)
            ops = walk(function)
            refuse_unknown(ops, names, target)
            round_once(ops)
            spell_out(function, target)
            for op in ops_named(function.operation, "linalg.generic"):
                read_directly(op)
            Fusion(function.operation.regions[0].blocks[0], writer, target == "cpu").run()
            put_off_states(function)
        return {name: kernel for kernel, name in writer.names.items()}


class Fusion:
    """Decide for one function, then rewrite it; `writer` writes its kernels."""

    def __init__(self, block: ir.Block, writer: KernelWriter, loops_widen: bool) -> None:
        """loops_widen: whether loops of the target lengthen floats as they multiply them."""
        self._loops_widen = loops_widen
        self.reader = Reader()
        self.reader.read(block)
        self.writer = writer
        marks = HintMarks()
        # Items that hints want a kernel of their own for, and views that only show something to such.
        self._alone = {i.number for i in self.reader.items if marks.stands_alone(i.op.location)}
        # The streams that each item is computed on: its own; a view's are those of its readers.
        self._streams = {
            i.number: set() if i.kind == "view" else {marks.stream(i.op.location) or 0}
            for i in self.reader.items
        }
        self._whole: set[int] = set()  # what products read of which conditions keep a part

    def run(self) -> None:
        """Rewrite the function: afterwards its linalg ops are launches."""
        self._decide()
        written: list[Item] = []  # transposes that a contraction writes
        for item in self.reader.items:
            if item.kind == "splat":
                self._make_splats(item)
            elif item.kind not in ("view", "other") and item.exists and item not in written:
                written += self._make(item)
        self._erase()

    def _decide(self) -> None:
        prices = Prices(self.reader)
        readers: dict[int, set[int]] = {}
        for item in reversed(self.reader.items):
            if item.kind not in PRICED:
                continue
            kernels: set[int] = set()
            exists = False
            for user, number in self.reader.uses.get(item.op.results[0], ()):
                exists |= self._read_by(item, user, number, kernels, readers)
                exists |= self._kept_apart(item, user)
            if item.kind == "map":
                exists |= item.number in prices.full or item.number in self._whole
                reads = len(prices.large[item.number])
                exists |= stored_for_several(item.kind, item.cost, len(kernels), reads)
            elif item.kind == "view":
                exists |= not self._foldable(item)
            item.exists = exists
            readers[item.number] = kernels | {item.number} if exists else kernels

    def _read_by(
        self, item: Item, user: Item, number: int, kernels: set[int], readers: dict[int, set[int]]
    ) -> bool:
        """Tell whether this use needs the tensor; add to `kernels` those that would compute the use."""
        if user.kind == "other" or number < 0:
            return True
        if user.kind == "view":
            if number == 0:
                kernels |= readers[user.number]
            return user.exists or number > 0
        value = item.op.results[0]
        if number >= len(user.op.operands) - len(user.outs) and user.outs:
            out = number - (len(user.op.operands) - len(user.outs))
            return item.kind != "splat" and user.reads(out)
        if user.kind in PRODUCTS:
            if self._keeps_a_part(item, user, value):
                return False
            kernels.add(user.number)
            if self._widened_once(item, user, value):
                return False
            return stored_for_product(item.kind, self._behind(item))
        if item.block != user.block and stored_for_inside(item.kind, item.cost):
            return True
        kernels |= {user.number} if user.exists else readers.get(user.number, set())
        used = [
            {d for form in access for d, _ in form.terms}
            for source, access in zip(user.sources, user.accesses)
            if source == value
        ]
        return any(stored_for_repeats(item.kind, item.cost, user.sizes, each) for each in used)

    def _keeps_a_part(self, item: Item, user: Item, value: ir.Value) -> bool:
        """Tell whether a product leaves out what a map puts zeros for; what the map reads is then a tensor."""
        kept = kept_of(self.reader, item, user, value) if self._loops_widen else None
        made = None if kept is None else self.reader.made.get(kept)
        while made is not None and made.kind in ("view", "copy"):
            made = self.reader.made.get(made.sources[0])
        self._whole |= set() if made is None else {made.number}
        return kept is not None

    def _widened_once(self, item: Item, user: Item, value: ir.Value) -> bool:
        """Tell whether a product of few rows may lengthen the floats of an operand itself, as it reads them.

        Elsewhere a copy of them is for a library, or for kernels that read it often.
        """
        made = self._maker(item) if item.kind in ("map", "copy") else None
        if not self._loops_widen or made is None or user.sources.count(value) != 1:
            return False
        computed = [node for node in made.body.nodes if not isinstance(node, Argument)]
        names = [node.name if isinstance(node, Apply) else "" for node in computed]
        if not names or not set(names) <= WIDENING or made.block != user.block:
            return False
        used = {d for form in user.accesses[user.sources.index(value)] for d, _ in form.terms}
        again = [size for d, size in enumerate(user.sizes) if d not in used]
        return math.prod(again) <= FEW_ROWS < item.elements

    def _kept_apart(self, item: Item, user: Item) -> bool:
        """Tell whether hints keep this use of an op's result out of other kernels."""
        if item.kind == "view":
            self._streams[item.number] |= self._streams[user.number]
            self._alone |= {item.number} if user.number in self._alone else set()
        return item.kind in ("map", "copy") and self._apart(item, user)

    def _apart(self, one: Item, other: Item) -> bool:
        """Tell whether hints want two items in different kernels."""
        alone = bool(self._alone & {one.number, other.number})
        return alone or not self._streams[other.number] <= self._streams[one.number]

    def _maker(self, item: Item) -> Item | None:
        """Return what makes the tensor that a chain of views and copies shows; None where an argument is shown."""
        made: Item | None = item
        while made is not None and made.kind in ("view", "copy"):
            made = self.reader.made.get(made.sources[0])
        return made

    def _behind(self, item: Item) -> str:
        """Return the kind of what makes the tensor that a chain of views and copies shows."""
        made = self._maker(item)
        return made.kind if made is not None else "other"

    def _foldable(self, item: Item) -> bool:
        """Tell whether a view can be folded into its readers' accesses."""
        if not item.op.results[0].type.has_static_shape:
            return False
        if item.op.name == "tensor.extract_slice":
            source = item.sources[0]
            return len(item.op.operands) == 1 or not isinstance(source.owner, ir.Block)
        return view_access(item, linear.identity(len(item.sizes)), self.reader) is not None

    def _make(self, item: Item) -> list[Item]:
        """Put a launch in the place of an op; return the items that it makes beside `item`."""
        builder = KernelBuilder(self.reader, item)
        last, kernel = self._with_transpose(item, builder.build())
        results = list(last.op.results)
        starts = item.outs if item.outs else [None] * len(results)
        outs = [
            start if out.reads else OpBuilder.before(item.op).empty(result.type)
            for start, out, result in zip(starts, kernel.outputs, results)
        ]
        made = self._launch(item.op, kernel, builder.operands, outs)
        for old, new in zip(results, made.results):
            old.replace_all_uses_with(new)
            self._rename(old, new)
        return [last] if last is not item else []

    def _with_transpose(self, item: Item, kernel: FusedKernel) -> tuple[Item, FusedKernel]:
        """Let a contraction write the transpose that alone reads it.

        Return the op whose results are written, and the kernel. Rows stay rows: the last dim keeps
        its place, so that a library can still write it.
        """
        uses = self.reader.uses.get(item.op.results[0], ())
        if item.kind not in PRODUCTS or len(uses) != 1 or kernel.outputs[0].reads:
            return item, kernel
        (copy, _), out = uses[0], kernel.outputs[0]
        if self._apart(item, copy):
            return item, kernel
        if copy.kind != "copy" or not copy.exists or copy.block != item.block:
            return item, kernel
        order = linear.inverse(copy.accesses[0], len(copy.sizes))
        if order is None or not order or order[-1].dim != len(order) - 1:
            return item, kernel
        access = tuple([form.over(out.access) for form in order])
        return copy, replace(kernel, outputs=(replace(out, access=access),))

    def _rename(self, old: ir.Value, new: ir.Value) -> None:
        """Let later kernels read the launch's result where they read the op's."""
        made = self.reader.made[old]
        self.reader.made[new] = made
        for user, _ in self.reader.uses.get(old, ()):
            user.sources = [new if v == old else v for v in user.sources]
            user.outs = [new if v == old else v for v in user.outs]
            user.body = with_tensor(user.body, old, new)

    def _make_splats(self, item: Item) -> None:
        """Give each reader that needs a filled tensor its own, right before it, so that it may write there."""
        result = item.op.results[0]
        for user, number in self.reader.uses.get(result, ()):
            gathered = number < 0
            needed = (
                user.kind == "other"
                or (user.kind == "view" and user.exists)
                or (user.kind in PRODUCTS and number < len(user.sources))
            )
            if not (needed or gathered):
                continue
            builder = KernelBuilder(self.reader, item)
            outs = [OpBuilder.before(user.op).empty(result.type)]
            made = self._launch(user.op, builder.build(), builder.operands, outs).results[0]
            if gathered:
                self.reader.made[made] = item
                user.body = with_tensor(user.body, result, made)
                continue
            user.op.operands[number] = made
            if number < len(user.sources):
                user.sources[number] = made

    def _launch(
        self,
        before: ir.Operation,
        kernel: FusedKernel,
        inputs: Sequence[ir.Value],
        outs: Sequence[ir.Value],
    ) -> ir.Operation:
        """Put a launch of a kernel before an op."""
        return OpBuilder.before(before).op(
            "mw.launch",
            [value.type for value in outs],
            [*inputs, *outs],
            kernel=ir.FlatSymbolRefAttr.get(self.writer.name(kernel)),
            outs=i64(len(outs)),
        )

    def _erase(self) -> None:
        for item in reversed(self.reader.items):
            op = item.op
            dead = item.kind != "other" or op.name in ("tensor.empty", "arith.constant")
            if dead and not any(True for r in op.results for _ in r.uses):
                op.erase()
