"""The ops of a function as the lowering sees them: each read once, classified, with who reads what.

Kinds: "map" (elementwise, may be computed inside its readers), "copy" (a map that only moves:
transpose, broadcast), "view" (reshape or slice), "splat" (one scalar everywhere), "contract"
(multiply-add with reuse), "attention" (`mw.attention`, `mw.reduced_scores`), "reduce" (any other linalg op), "other"
(stays as it is: its operands must exist as tensors).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from meshweave.errors import CompileError, UsageError
from meshweave.hints.fast_paths import (
    BF16,
    KERNEL,
    LIBRARIES,
    PANELS,
    REFERENCE,
    ROUNDED,
    SWITCHES,
    known,
)
from meshweave.ir.bindings import ir
from meshweave.ir.build import DYNAMIC, IteratorType, iterator_types, static_offsets
from meshweave.ir.expressions import (
    EMPTY,
    Apply,
    Argument,
    Body,
    Constant,
    Expression,
    Index,
    Scalar,
    read_body,
)
from meshweave.ir.locations import location_text
from meshweave.ir.scores.attention import ATTENTION, AttentionForm
from meshweave.ir.scores.reduced import REDUCED_SCORES, ReducedForm
from meshweave.lowering.nests import linear
from meshweave.lowering.nests.attention import attention_body, reduced_body
from meshweave.lowering.nests.bodies import (
    computes_nothing,
    constant_of,
    contracted,
    exact,
    gathered_tensors,
)
from meshweave.lowering.nests.linear import IndexMap, Linear

PRODUCTS = ("contract", "attention")
"""Kinds that read and write tensors: nothing is computed inside of them."""
VIEWS = ("tensor.expand_shape", "tensor.collapse_shape", "tensor.extract_slice")


@dataclass
class Item:
    """Describe one op.

    `accesses` are of its tensor inputs, over loop dims; `sources` the values they read (tensors and
    scalars).
    """

    op: ir.Operation
    kind: str
    number: int
    block: ir.Block
    body: Body = EMPTY
    sources: list[ir.Value] = field(default_factory=list)
    accesses: list[IndexMap] = field(default_factory=list)
    outs: list[ir.Value] = field(default_factory=list)
    out_accesses: list[IndexMap] = field(default_factory=list)
    sizes: tuple[int, ...] = ()
    reductions: frozenset[int] = frozenset()
    exists: bool = True  # whether its result is made as a tensor
    library: bool = True  # whether a library may do it
    switches: frozenset[str] = frozenset()  # kernels off and on for it: "-rows"
    cost: float = 0.0  # price of one element, with everything that could be computed inside

    @property
    def elements(self) -> int:
        """Count the iterations of the op."""
        return math.prod(self.sizes)

    def reads(self, number: int) -> bool:
        """Tell whether it reads what the tensor holds that its output `number` is written to."""
        used = self.kind == "reduce" and len(self.sources) + number in self.body.used
        return used or self.kind == "contract"


class Symbols:
    """Number the values that are known only when the program runs (see linear.py)."""

    def __init__(self) -> None:
        self.values: list[ir.Value] = []
        self._numbers: dict[ir.Value, int] = {}

    def form(self, value: ir.Value) -> Linear:
        """Return the linear form that is `value`, an SSA value of index type; constants are their number."""
        known = constant_of(value)
        if known is not None:
            return Linear(known.value)
        number = self._numbers.setdefault(value, len(self._numbers))
        if number == len(self.values):
            self.values.append(value)
        return linear.symbol(number)

    def offsets(self, op: ir.Operation) -> list[Linear]:
        """Return the offsets of an op that takes a slice of its first operand."""
        dynamic = iter(list(op.operands)[1:])
        return [self.form(next(dynamic)) if o == DYNAMIC else Linear(o) for o in static_offsets(op)]


class Reader:
    """Read the ops of a function into items, in program order, nested blocks included."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.made: dict[ir.Value, Item] = {}  # result value -> the item that makes it
        self.uses: dict[ir.Value, list[tuple[Item, int]]] = {}  # value -> (reader, operand number)
        self.symbols = Symbols()
        self._loops: dict[tuple[object, ...], Loops] = {}

    def read(self, block: ir.Block) -> None:
        """Read a block and everything nested in it."""
        for view in block.operations:
            op = view.operation
            item = self._item(op, block)
            self.items.append(item)
            for result in op.results:
                self.made[result] = item
            for number, value in enumerate(op.operands):
                self.uses.setdefault(value, []).append((item, number))
            for tensor in gathered_tensors(item.body):
                self.uses.setdefault(tensor, []).append((item, -1))
            if item.kind == "other":
                for inner in _blocks(op):
                    self.read(inner)

    def _item(self, op: ir.Operation, block: ir.Block) -> Item:
        name = op.name
        if name == "linalg.generic":
            return self._generic(op, block)
        if name == ATTENTION:
            return self._attention(op, block)
        if name == REDUCED_SCORES:
            return self._reduced(op, block)
        if name in VIEWS:
            return Item(op, "view", len(self.items), block, sources=[op.operands[0]])
        if name == "arith.constant" and isinstance(op.results[0].type, ir.RankedTensorType):
            value = op.attributes["value"]
            if isinstance(value, ir.DenseElementsAttr) and value.is_splat:
                scalar = value.get_splat_value()
                return self._splat(op, block, Constant(scalar, scalar.type))
        if name == "tensor.splat" and len(op.operands) == 1:
            return self._splat(op, block, Scalar(op.operands[0], op.operands[0].type))
        if name == "tensor.generate" and not len(op.operands):
            return self._generate(op, block)
        return Item(op, "other", len(self.items), block)

    def _splat(
        self, op: ir.Operation, block: ir.Block, scalar: Constant | Scalar[ir.Value]
    ) -> Item:
        shape = tuple(op.results[0].type.shape)
        body: Body = Expression((scalar,), (0,))
        item = Item(op, "splat", len(self.items), block, body, sizes=shape)
        item.out_accesses = [linear.identity(len(shape))]
        return item

    def _generate(self, op: ir.Operation, block: ir.Block) -> Item:
        shape = tuple(op.results[0].type.shape)
        body = read_body(op.regions[0].blocks[0])
        item = Item(op, "map", len(self.items), block, body, sizes=shape)
        item.out_accesses = [linear.identity(len(shape))]
        return item

    def _attention(self, op: ir.Operation, block: ir.Block) -> Item:
        form, count = AttentionForm.of(op), len(op.attributes["sizes"])
        reduced = range(count - 2, count)
        return self._on_scores(op, block, attention_body(op, form), form.sizes, reduced)

    def _reduced(self, op: ir.Operation, block: ir.Block) -> Item:
        form = ReducedForm.of(op)
        reduced = range(form.batch + 2, len(form.sizes))
        return self._on_scores(op, block, reduced_body(op, form), form.sizes, reduced)

    def _on_scores(
        self, op: ir.Operation, block: ir.Block, body: Body, sizes: tuple[int, ...], reduced: range
    ) -> Item:
        item = Item(op, "attention", len(self.items), block, body)
        *item.accesses, written = (_access(attr) for attr in op.attributes["maps"])
        item.sources, item.out_accesses = list(op.operands), [written]
        item.sizes, item.reductions = sizes, frozenset(reduced)
        return item

    def _generic(self, op: ir.Operation, block: ir.Block) -> Item:
        operands, attributes = list(op.operands), op.attributes
        inputs = len(operands) - len(op.results)
        types = [value.type for value in operands]
        key = (attributes["indexing_maps"], attributes["iterator_types"], *types)
        if key not in self._loops:
            self._loops[key] = _loops(op, types)
        sizes, reductions, maps, order = self._loops[key]
        item = Item(op, "reduce", len(self.items), block, read_body(op.regions[0].blocks[0]))
        item.sources, item.accesses = operands[:inputs], list(maps[:inputs])
        item.outs, item.out_accesses = operands[inputs:], list(maps[inputs:])
        item.sizes, item.reductions = sizes, reductions
        item.kind = _kind(item, inputs, order)
        chosen = _chosen(op)
        item.library = chosen in ("", *LIBRARIES)
        said = attributes[SWITCHES].value.split() if SWITCHES in attributes else ()
        item.switches = frozenset(said) | {s for s in (ROUNDED, PANELS, BF16) if chosen == s[1:]}
        if chosen == REFERENCE:
            item.body = exact(item.body)
        else:
            item.body = contracted(item.body, range(inputs, len(operands)))
        if item.kind in ("map", "copy", "splat"):
            assert order is not None
            _in_result_order(item, order)
        return item


def _access(attr: ir.AffineMapAttr) -> IndexMap:
    access = linear.from_map(attr)
    assert access is not None, f"{attr} is a sum of loops: its verifier has said so"
    return access


def _chosen(op: ir.Operation) -> str:
    """Return the kernel that select-kernels chose for a linalg op; "" for none. Raises CompileError for no kernel."""
    attr = op.attributes.get(KERNEL)
    if attr is None:
        return ""
    try:
        return known(str(attr.value), KERNEL)
    except UsageError as error:
        raise CompileError(error.message, location_text(op.location)) from None


def _blocks(op: ir.Operation) -> Iterator[ir.Block]:
    for region in op.regions:
        yield from region.blocks


class Loops(NamedTuple):
    """Hold the loops of a linalg op, alike for equal maps, iterators and operand types.

    order: each loop as a form over the dims of the first result; None where that is no permutation of them.
    """

    sizes: tuple[int, ...]
    reductions: frozenset[int]
    maps: tuple[IndexMap, ...]
    order: IndexMap | None


def _loops(op: ir.Operation, types: Sequence[ir.Type]) -> Loops:
    """Read the loops of a linalg op. Raises CompileError for a map that is not linear, or a loop without a size."""
    where, maps = location_text(op.location), []
    kinds = iterator_types(op)
    sizes = [-1] * len(kinds)
    for attr, type_ in zip(op.attributes["indexing_maps"], types):
        access = linear.from_map(attr)
        if access is None:
            raise CompileError(f"{op.name}: the indexing map {attr} is not linear", where)
        maps.append(access)
        if isinstance(type_, ir.RankedTensorType):
            for extent, form in zip(type_.shape, access):
                if form.dim is not None:
                    sizes[form.dim] = extent
                elif form.const == extent - 1 and [f for _, f in form.terms] == [-1]:
                    sizes[form.terms[0][0]] = extent  # from the last to the first
    if -1 in sizes:
        raise CompileError(f"{op.name}: a loop has no size", where)
    reduced = frozenset(i for i, kind in enumerate(kinds) if kind is IteratorType.REDUCTION)
    order = linear.inverse(maps[len(maps) - len(op.results)], len(sizes))
    return Loops(tuple(sizes), reduced, tuple(maps), order)


def _kind(item: Item, inputs: int, order: IndexMap | None) -> str:
    """Return the kind of a linalg.generic."""
    body = item.body
    if item.reductions:
        return "contract" if multiply_add(item) else "reduce"
    reads_out = any(inputs + k in body.used for k in range(len(item.outs)))
    if len(item.outs) != 1 or reads_out or order is None:
        return "reduce"
    if not computes_nothing(body):
        return "map"
    result = body.nodes[body.results[0]]
    if isinstance(result, Argument):
        source, access = item.sources[result.number], item.accesses[result.number]
        if isinstance(source.type, ir.RankedTensorType):
            item.sources, item.accesses = [source], [access]
            item.body = Expression((Argument(0),), (0,))
            return "copy"
        if isinstance(source.type, ir.ShapedType):
            return "map"
        result = Scalar(source, source.type)
    item.sources, item.accesses = [], []
    item.body = Expression((result,), (0,))
    return "splat"


def _in_result_order(item: Item, order: IndexMap) -> None:
    """Renumber the loops of an elementwise op so that the result is written in order."""
    if order == linear.identity(len(order)):
        return
    item.accesses = [tuple(f.over(order) for f in access) for access in item.accesses]
    sizes = [0] * len(order)
    for dim, form in enumerate(order):
        sizes[form.terms[0][0]] = item.sizes[dim]
    item.sizes = tuple(sizes)
    item.out_accesses = [linear.identity(len(order))]
    nodes = [
        Index(order[n.form].terms[0][0]) if isinstance(n, Index) else n for n in item.body.nodes
    ]
    item.body = replace(item.body, nodes=tuple(nodes))


_WIDENING = ("arith.extf", "arith.extsi", "arith.extui", "arith.sitofp", "arith.uitofp")
_PRODUCTS = {"arith.mulf": "arith.addf", "arith.muli": "arith.addi", "arith.andi": "arith.ori"}


def multiply_add(item: Item) -> bool:
    """Tell whether the op is out += a * b (each perhaps widened) over loops that reuse both a and b."""
    if len(item.sources) != 2 or len(item.outs) != 1:
        return False
    nodes = item.body.nodes
    computed = [n for n in nodes if not isinstance(n, Argument)]
    ops = [n for n in computed if isinstance(n, Apply)]
    if len(ops) != len(computed) or len(ops) < 2 or item.body.results[0] != len(nodes) - 1:
        return False
    *widenings, product, total = ops
    if _PRODUCTS.get(product.name) != total.name:
        return False
    if set(total.operands) != {2, len(nodes) - 2}:
        return False
    if any(op.name not in _WIDENING for op in widenings):
        return False
    widened = {k: op.operands[0] for k, op in enumerate(widenings, 3)}
    if {widened.get(k, k) for k in product.operands} != {0, 1}:
        return False
    used = [{d for f in access for d, _ in f.terms} for access in item.accesses]
    dims = {d for d, size in enumerate(item.sizes) if size != 1}
    return all(dims - u for u in used)
