"""The ops of a function as the lowering sees them: each read once, classified, with who reads what.

Kinds: "map" (elementwise, may be computed inside its readers), "copy" (a map that only moves:
transpose, broadcast), "view" (reshape or slice), "splat" (one scalar everywhere), "contract"
(multiply-add with reuse), "reduce" (any other linalg op), "other" (stays as it is: its operands
must exist as tensors).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from meshweave.bindings import ir
from meshweave.errors import CompileError
from meshweave.fast_paths import LIBRARIES, ROUNDED, SWITCHES
from meshweave.locations import location_text
from meshweave.lowering import linear
from meshweave.lowering.linear import Linear
from meshweave.lowering.payload import Payload, Ref, constant_of, contracted, exact, read_payload

CARRIER = "mw.call"  # attribute of a linalg.generic that stands for a kernel, collective or call: left alone
FUNCTION = "mw.function"  # besides, where it stands for a call
KERNEL = "mw.kernel"  # attribute of a linalg op: the fast path that select-kernels chose for it
Access = tuple[Linear, ...]
VIEWS = ("tensor.expand_shape", "tensor.collapse_shape", "tensor.extract_slice")


@dataclass
class Item:
    """One op. `accesses` are of its tensor inputs, over loop dims; `sources` the values they read
    (tensors and scalars).
    """

    op: Any
    kind: str
    number: int
    block: Any
    payload: Payload = field(default_factory=Payload)
    sources: list[Any] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    outs: list[Any] = field(default_factory=list)
    out_accesses: list[Access] = field(default_factory=list)
    sizes: tuple[int, ...] = ()
    reductions: frozenset[int] = frozenset()
    exists: bool = True  # whether its result is made as a tensor
    library: bool = True  # whether a library may do it
    switches: frozenset[str] = frozenset()  # kernels off and on for it: "-rows"
    cost: float = 0.0  # price of one element, with everything that could be computed inside

    @property
    def elements(self) -> int:
        """Iterations of the op."""
        return math.prod(self.sizes)

    @property
    def where(self) -> str:
        """Its place in the source, for messages."""
        return location_text(self.op.location)


class Symbols:
    """Values that are known only when the program runs, numbered (see linear.py)."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def form(self, value: Any) -> Linear:
        """The linear form that is `value`, an SSA value of index type; constants are their number."""
        known = constant_of(value)
        if known is not None:
            return Linear(known.value)
        number = self._numbers.setdefault(value, len(self._numbers))
        if number == len(self.values):
            self.values.append(value)
        return linear.symbol(number)


class Reader:
    """Reads the ops of a function into items, in program order, nested blocks included."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.made: dict[Any, Item] = {}  # result value -> the item that makes it
        self.uses: dict[Any, list[tuple[Item, int]]] = {}  # value -> (reader, operand number)
        self.symbols = Symbols()
        self._maps: dict[Any, Access | None] = {}
        self._known_loops: dict[Any, tuple[int, frozenset[int]]] = {}

    def read(self, block: Any) -> None:
        """Read a block and everything nested in it."""
        for view in block.operations:
            op = view.operation
            item = self._item(op, block)
            self.items.append(item)
            for result in op.results:
                self.made[result] = item
            for number, value in enumerate(op.operands):
                self.uses.setdefault(value, []).append((item, number))
            for tensor in item.payload.captured:
                self.uses.setdefault(tensor, []).append((item, -1))
            if item.kind == "other":
                for inner in _blocks(op):
                    self.read(inner)

    def access(self, attr: Any, item: Any) -> Access:
        """The access of an affine map; CompileError when it is not linear."""
        if attr not in self._maps:
            self._maps[attr] = linear.from_map(attr)
        found = self._maps[attr]
        if found is None:
            raise CompileError(
                f"{item.name}: the indexing map {attr} is not linear", location_text(item.location)
            )
        return found

    def _item(self, op: Any, block: Any) -> Item:
        name = op.name
        if name == "linalg.generic" and CARRIER not in op.attributes:
            return self._generic(op, block)
        if name in VIEWS:
            return Item(op, "view", len(self.items), block, sources=[op.operands[0]])
        if name == "arith.constant" and isinstance(op.results[0].type, ir.RankedTensorType):
            value = op.attributes["value"]
            if isinstance(value, ir.DenseElementsAttr) and value.is_splat:
                return self._splat(op, block, ("constant", value.get_splat_value()))
        if name == "tensor.splat" and len(op.operands) == 1:
            return self._splat(op, block, ("value", op.operands[0]))
        if name == "tensor.generate" and not len(op.operands):
            return self._generate(op, block)
        return Item(op, "other", len(self.items), block)

    def _splat(self, op: Any, block: Any, scalar: Ref) -> Item:
        shape = tuple(op.results[0].type.shape)
        item = Item(op, "splat", len(self.items), block, Payload(yields=(scalar,)), sizes=shape)
        item.out_accesses = [linear.identity(len(shape))]
        return item

    def _generate(self, op: Any, block: Any) -> Item:
        shape = tuple(op.results[0].type.shape)
        payload = read_payload(op.regions[0].blocks[0])
        item = Item(op, "map", len(self.items), block, payload, sizes=shape)
        item.out_accesses = [linear.identity(len(shape))]
        return item

    def _loops(self, types: Any) -> tuple[int, frozenset[int]]:
        """How many loops there are, and which reduce; read once for equal iterator types."""
        if types not in self._known_loops:
            kinds = [str(kind) for kind in types]
            reduced = frozenset(i for i, kind in enumerate(kinds) if "parallel" not in kind)
            self._known_loops[types] = (len(kinds), reduced)
        return self._known_loops[types]

    def _generic(self, op: Any, block: Any) -> Item:
        maps = [self.access(a, op) for a in op.attributes["indexing_maps"]]
        ndim, reductions = self._loops(op.attributes["iterator_types"])
        operands = list(op.operands)
        inputs = len(operands) - len(op.results)
        item = Item(op, "reduce", len(self.items), block, read_payload(op.regions[0].blocks[0]))
        item.sources, item.accesses = operands[:inputs], maps[:inputs]
        item.outs, item.out_accesses = operands[inputs:], maps[inputs:]
        item.reductions = reductions
        item.sizes = _sizes(op, operands, maps, ndim)
        item.kind = _kind(item, inputs)
        chosen = op.attributes[KERNEL].value if KERNEL in op.attributes else ""
        item.library = chosen in ("", *LIBRARIES)
        said = op.attributes[SWITCHES].value.split() if SWITCHES in op.attributes else ()
        item.switches = frozenset(said) | ({ROUNDED} if chosen == ROUNDED[1:] else set())
        if chosen == "reference":
            item.payload.steps = [exact(step) for step in item.payload.steps]
        else:
            contracted(item.payload, [("arg", inputs + k) for k in range(len(item.outs))])
        if item.kind in ("map", "copy", "splat"):
            _in_result_order(item)
        return item


def _blocks(op: Any) -> Iterator[Any]:
    for region in op.regions:
        yield from region.blocks


def _sizes(op: Any, operands: list[Any], maps: list[Access], ndim: int) -> tuple[int, ...]:
    """Trip counts of the loops of a linalg op, read off its operands' shapes."""
    sizes: list[int | None] = [None] * ndim
    for value, access in zip(operands, maps):
        if isinstance(value.type, ir.RankedTensorType):
            for extent, form in zip(value.type.shape, access):
                if form.dim is not None:
                    sizes[form.dim] = extent
    if any(size is None for size in sizes):
        raise CompileError(f"{op.name}: a loop has no size", location_text(op.location))
    return tuple(sizes)  # type: ignore[arg-type]


def _kind(item: Item, inputs: int) -> str:
    """The kind of a linalg.generic."""
    ndim, payload = len(item.sizes), item.payload
    if item.reductions:
        return "contract" if multiply_add(item) else "reduce"
    reads_out = any(payload.reads(inputs + k) for k in range(len(item.outs)))
    if len(item.outs) != 1 or reads_out or linear.inverse(item.out_accesses[0], ndim) is None:
        return "reduce"
    if not payload.steps:
        what, which = payload.yields[0]
        if what == "arg" and not isinstance(item.sources[which].type, ir.ShapedType):
            payload.yields = (("value", item.sources[which]),)
            what = "value"
        if what == "value":
            item.sources, item.accesses = [], []
            return "splat"
        if isinstance(item.sources[which].type, ir.RankedTensorType):
            item.sources, item.accesses = [item.sources[which]], [item.accesses[which]]
            payload.yields = (("arg", 0),)
            return "copy"
    return "map"


def _in_result_order(item: Item) -> None:
    """Renumber the loops of an elementwise op so that the result is written in order."""
    order = linear.inverse(item.out_accesses[0], len(item.sizes))
    assert order is not None
    if order == linear.identity(len(order)):
        return
    item.accesses = [tuple(f.over(order) for f in access) for access in item.accesses]
    sizes = [0] * len(order)
    for dim, form in enumerate(order):
        sizes[form.terms[0][0]] = item.sizes[dim]
    item.sizes = tuple(sizes)
    item.out_accesses = [linear.identity(len(order))]
    steps = item.payload.steps
    for k, step in enumerate(steps):
        if step.name == "linalg.index":
            dim = order[dict(step.attributes)["dim"].value].dim
            attr = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
            steps[k] = step._replace(attributes=(("dim", attr),))


_WIDENING = ("arith.extf", "arith.extsi", "arith.extui", "arith.sitofp", "arith.uitofp")
_PRODUCTS = {"arith.mulf": "arith.addf", "arith.muli": "arith.addi", "arith.andi": "arith.ori"}


def multiply_add(item: Item) -> bool:
    """Whether the op is out += a * b (each perhaps widened) over loops where both a and b are
    reused.
    """
    if len(item.sources) != 2 or len(item.outs) != 1:
        return False
    steps = item.payload.steps
    what, last = item.payload.yields[0]
    if what != "op" or last != len(steps) - 1 or len(steps) < 2:
        return False
    product = steps[-2]
    if _PRODUCTS.get(product.name) != steps[-1].name:
        return False
    if set(steps[-1].operands) != {("arg", 2), ("op", last - 1)}:
        return False
    widened = {("op", k): s.operands[0] for k, s in enumerate(steps[:-2]) if s.name in _WIDENING}
    if len(widened) != len(steps) - 2:
        return False
    if {widened.get(ref, ref) for ref in product.operands} != {("arg", 0), ("arg", 1)}:
        return False
    used = [{d for f in access for d, _ in f.terms} for access in item.accesses]
    dims = {d for d, size in enumerate(item.sizes) if size != 1}
    return all(dims - u for u in used)
