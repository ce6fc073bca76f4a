"""Fusion of a function on tensors: which results are made as tensors, and the carriers that stand
for the kernels.

An elementwise op is computed inside its reader when one kernel alone reads it, or when computing it
again is cheaper than storing it; transposes, broadcasts, slices and reshapes are folded into their
readers' accesses. Contractions read and write tensors, so that a library can do them; a transpose
that alone reads one is written by it.

Bufferisation sees a kernel as a *carrier*: a linalg.generic with attribute `mw.call`, the number of
the kernel, on the operands it reads and a tensor.empty to write (or the tensor it updates).
"""

from __future__ import annotations

from typing import Any

from meshweave.bindings import ir
from meshweave.lowering import linear
from meshweave.lowering.items import CARRIER, Item, Reader
from meshweave.lowering.kernels import Builder, Kernel, view_access
from meshweave.transforms.hint_ledger import stands_alone, stream_of

CHEAP = 3.0  # additions per element that are rather repeated than stored
HEAVY = 16.0  # a transcendental function
LARGEST = 160.0  # price above which a map is stored, so that no kernel grows without bound


class Fusion:
    """Decides for one function, then rewrites it. `kernels[i]` is what the carrier with `mw.call =
    i` stands for.
    """

    def __init__(self, block: Any) -> None:
        self.reader = Reader()
        self.reader.read(block)
        self.kernels: list[Kernel] = []
        # Items that hints want a kernel of their own for, and views that only show something to such.
        self._alone = {i.number for i in self.reader.items if stands_alone(i.op.location)}
        # The streams that each item is computed on: its own; a view's are those of its readers.
        self._streams = {
            i.number: set() if i.kind == "view" else {stream_of(i.op.location) or 0}
            for i in self.reader.items
        }

    def run(self) -> None:
        """Rewrite the function: afterwards its linalg ops are carriers."""
        self._price()
        self._decide()
        written: list[Item] = []  # transposes that a contraction writes
        for item in self.reader.items:
            if item.kind == "splat":
                self._make_splats(item)
            elif item.kind not in ("view", "other") and item.exists and item not in written:
                written += self._make(item)
        self._erase()

    # What an element costs with all elementwise producers inside, and how many tensors it then
    # reads.
    def _price(self) -> None:
        self._large: dict[int, set[Any]] = {}
        for item in self.reader.items:
            if item.kind not in ("map", "copy", "view", "splat"):
                continue
            item.cost = float(item.payload.cost)
            large: set[Any] = set()
            for value in item.sources:
                made = self.reader.made.get(value)
                if made is None or made.kind not in ("map", "copy", "view", "splat"):
                    large.add(value)
                    continue
                ratio = min(1.0, max(made.elements, 1) / max(item.elements, 1))
                item.cost += made.cost * (1.0 if item.kind == "view" else ratio)
                if ratio >= 0.5 or item.kind == "view":
                    large |= self._large[made.number]
            self._large[item.number] = large
            if item.kind == "view":
                shape = item.op.results[0].type.shape
                item.sizes = tuple(shape)

    def _decide(self) -> None:
        readers: dict[int, set[int]] = {}
        for item in reversed(self.reader.items):
            if item.kind not in ("map", "copy", "view", "splat"):
                continue
            kernels: set[int] = set()
            exists = False
            for user, number in self.reader.uses.get(item.op.results[0], ()):
                exists |= self._read_by(item, user, number, kernels, readers)
                exists |= self._kept_apart(item, user)
            if item.kind == "map":
                exists |= item.cost > LARGEST
                if len(kernels) > 1 and not exists:
                    exists = item.cost > CHEAP or len(self._large[item.number]) > 1
            elif item.kind == "view":
                exists |= not self._foldable(item)
            item.exists = exists
            readers[item.number] = kernels | {item.number} if exists else kernels

    def _read_by(
        self, item: Item, user: Item, number: int, kernels: set[int], readers: dict[int, set[int]]
    ) -> bool:
        """Whether this use needs the tensor; adds to `kernels` those in which the use would be
        computed.
        """
        if user.kind == "other" or number < 0:
            return True
        if user.kind == "view":
            if number == 0:
                kernels |= readers[user.number]
            return user.exists or number > 0
        value = item.op.results[0]
        if number >= len(user.op.operands) - len(user.outs) and user.outs:
            return item.kind != "splat" and self._init_needed(user, number)
        if user.kind == "contract":
            kernels.add(user.number)
            return item.kind in ("map", "splat") or self._behind(item) in ("map", "splat")
        if item.block != user.block and item.cost > 0 and item.kind == "map":
            return True
        kernels |= {user.number} if user.exists else readers.get(user.number, set())
        return item.kind == "map" and self._wasteful(item, user, value)

    def _kept_apart(self, item: Item, user: Item) -> bool:
        """Whether hints keep this use of an op's result out of other kernels."""
        if item.kind == "view":
            self._streams[item.number] |= self._streams[user.number]
            self._alone |= {item.number} if user.number in self._alone else set()
        return item.kind in ("map", "copy") and self._apart(item, user)

    def _apart(self, one: Item, other: Item) -> bool:
        """Whether hints want two items in different kernels."""
        alone = bool(self._alone & {one.number, other.number})
        return alone or not self._streams[other.number] <= self._streams[one.number]

    def _init_needed(self, user: Item, number: int) -> bool:
        """Whether a linalg op reads what its `outs` operand holds."""
        out = number - (len(user.op.operands) - len(user.outs))
        return (
            user.payload.reads(len(user.sources) + out)
            if user.kind == "reduce"
            else user.kind == "contract"
        )

    def _behind(self, item: Item) -> str:
        """Kind of what makes the tensor that a chain of views and copies shows."""
        made: Item | None = item
        while made is not None and made.kind in ("view", "copy"):
            made = self.reader.made.get(made.sources[0])
        return made.kind if made is not None else "other"

    def _wasteful(self, item: Item, user: Item, value: Any) -> bool:
        """Whether `user` would compute the same element of `item` again and again, in its inner
        loop.
        """
        if item.cost <= CHEAP:
            return False
        for source, access in zip(user.sources, user.accesses):
            if source != value:
                continue
            used = {d for form in access for d, _ in form.terms}
            missing = [d for d, size in enumerate(user.sizes) if size != 1 and d not in used]
            if missing and (item.cost >= HEAVY or missing[-1] != _last_wide(user.sizes)):
                return bool(used)
        return False

    def _foldable(self, item: Item) -> bool:
        """Whether a view can be folded into its readers' accesses."""
        if not item.op.results[0].type.has_static_shape:
            return False
        if item.op.name == "tensor.extract_slice":
            source = item.sources[0]
            return len(item.op.operands) == 1 or not isinstance(source.owner, ir.Block)
        return view_access(item, linear.identity(len(item.sizes)), self.reader) is not None

    def _make(self, item: Item) -> list[Item]:
        """Put a carrier in the place of an op; the items that it makes beside `item`."""
        kernel = Builder(self.reader, item, len(self.kernels)).build()
        self.kernels.append(kernel)
        last = self._transpose_of(item, kernel) or item
        results = list(last.op.results)
        starts = item.outs if item.outs else [None] * len(results)
        outs = [
            start if out.reads else _empty(item.op, result.type)
            for start, out, result in zip(starts, kernel.outputs, results)
        ]
        made = carrier(item.op, kernel.number, kernel.operands, outs, len(item.sizes), kernel)
        for old, new in zip(results, made.results):
            old.replace_all_uses_with(new)
            self._rename(old, new)
        return [last] if last is not item else []

    def _transpose_of(self, item: Item, kernel: Kernel) -> Item | None:
        """The transpose that alone reads a contraction; the kernel then writes that. Rows stay
        rows: the last dim keeps its place, so that a library can still write it.
        """
        uses = self.reader.uses.get(item.op.results[0], ())
        if item.kind != "contract" or len(uses) != 1 or kernel.outputs[0].reads:
            return None
        copy, out = uses[0][0], kernel.outputs[0]
        if self._apart(item, copy):
            return None
        if copy.kind != "copy" or not copy.exists or copy.block != item.block:
            return None
        order = linear.inverse(copy.accesses[0], len(copy.sizes))
        if order is None or not order or order[-1].dim != len(order) - 1:
            return None
        out.access = tuple(form.over(out.access) for form in order)
        return copy

    def _rename(self, old: Any, new: Any) -> None:
        """Later kernels read the carrier's result where they read the op's."""
        made = self.reader.made[old]
        self.reader.made[new] = made
        for user, _ in self.reader.uses.get(old, ()):
            user.sources = [new if v == old else v for v in user.sources]
            user.outs = [new if v == old else v for v in user.outs]
            user.payload.captured = [new if v == old else v for v in user.payload.captured]

    def _make_splats(self, item: Item) -> None:
        """Each reader that needs a filled tensor gets its own, right before it: it may then write
        there.
        """
        result = item.op.results[0]
        for user, number in self.reader.uses.get(result, ()):
            needed = (
                user.kind == "other"
                or (user.kind == "view" and user.exists)
                or user.kind == "contract"
            )
            if not needed or number < 0:
                continue
            if user.kind == "contract" and number >= len(user.sources):
                continue
            kernel = Builder(self.reader, item, len(self.kernels)).build()
            self.kernels.append(kernel)
            ndim = len(item.sizes)
            made = carrier(
                user.op,
                kernel.number,
                kernel.operands,
                [_empty(user.op, result.type)],
                ndim,
                kernel,
            )
            user.op.operands[number] = made.results[0]
            if number < len(user.sources):
                user.sources[number] = made.results[0]

    def _erase(self) -> None:
        for item in reversed(self.reader.items):
            op = item.op
            dead = item.kind != "other" or op.name in ("tensor.empty", "arith.constant")
            if dead and not any(True for r in op.results for _ in r.uses):
                op.erase()


def _last_wide(sizes: tuple[int, ...]) -> int:
    return max((d for d, size in enumerate(sizes) if size != 1), default=-1)


def _empty(before: Any, type_: Any) -> Any:
    return ir.Operation.create(
        "tensor.empty", results=[type_], loc=before.location, ip=ir.InsertionPoint(before)
    ).result


def carrier(
    before: Any, call: int, inputs: list[Any], outs: list[Any], ndim: int, kernel: Kernel
) -> Any:
    """A linalg.generic with `mw.call` before `before`, on `inputs` and `outs`, over `ndim` loops."""
    maps = _carrier_maps(inputs, outs, ndim, kernel)
    op = _marked(before, call, inputs, outs, maps, ndim)
    reads = [output.reads for output in kernel.outputs]
    _fill_body(op, [*inputs, *outs], len(inputs), reads)
    return op


def marked(before: Any, number: int, inputs: list[Any], outs: list[Any], mark: str) -> Any:
    """A carrier of something else than a kernel, which reads all inputs and writes all outs."""
    maps = [
        _constant_map(0, v.type.rank if isinstance(v.type, ir.ShapedType) else 0)
        for v in (*inputs, *outs)
    ]
    op = _marked(before, number, inputs, outs, maps, 0)
    op.attributes[mark] = ir.UnitAttr.get()
    _fill_body(op, [*inputs, *outs], len(inputs), [False] * len(outs))
    return op


def _marked(
    before: Any, number: int, inputs: list[Any], outs: list[Any], maps: list[Any], ndim: int
) -> Any:
    kind = ir.Attribute.parse("#linalg.iterator_type<parallel>")
    return ir.Operation.create(
        "linalg.generic",
        results=[v.type for v in outs],
        operands=[*inputs, *outs],
        attributes={
            "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
            "iterator_types": ir.ArrayAttr.get([kind] * ndim),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(inputs), len(outs)]),
            CARRIER: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number),
        },
        regions=1,
        loc=before.location,
        ip=ir.InsertionPoint(before),
    )


def _fill_body(op: Any, values: list[Any], inputs: int, reads: list[bool]) -> None:
    """The body of a carrier: an op that reads every input, and the outputs that are read, and gives
    what is yielded.
    """
    types = [getattr(v.type, "element_type", v.type) for v in values]
    block = op.regions[0].blocks.append(*types)
    used = [a for k, a in enumerate(block.arguments) if k < inputs or reads[k - inputs]]
    with ir.InsertionPoint(block):
        use = ir.Operation.create("dist.use", results=types[inputs:], operands=used)
        ir.Operation.create("linalg.yield", operands=list(use.results))


def _carrier_maps(inputs: list[Any], outs: list[Any], ndim: int, kernel: Kernel) -> list[Any]:
    """Identity maps where the kernel reads element i in iteration i (bufferisation may then let it
    write in place).
    """
    whole = linear.identity(ndim)
    accesses: dict[int, set[Any]] = {}
    for node in kernel.code:
        if node[0] in ("load", "gather"):
            accesses.setdefault(node[1], set()).add(node[2] if node[0] == "load" else None)
    plain = ir.AffineMap.get_identity(ndim)
    maps = []
    for k, value in enumerate(inputs):
        if not isinstance(value.type, ir.ShapedType):
            maps.append(ir.AffineMap.get(ndim, 0, []))
        elif accesses.get(k) == {whole}:
            maps.append(plain)
        else:
            maps.append(_constant_map(ndim, value.type.rank))
    for k, value in enumerate(outs):
        identical = kernel.outputs[k].access == whole
        maps.append(plain if identical else _constant_map(ndim, value.type.rank))
    return maps


def _constant_map(ndim: int, rank: int) -> Any:
    return ir.AffineMap.get(ndim, 0, [ir.AffineConstantExpr.get(0)] * rank)
