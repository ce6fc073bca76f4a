"""Recognise the backward of an attention: products, elementwise ops and sums along rows around one matrix of scores.

A product of queries and keys is where it is looked for. All that is made of it, element by element and by reductions
along its rows, perhaps together with further products of the same rows and columns (the gradient of the result times
the values), ends in products that add up over the rows or the columns: the gradients of queries, keys and values. The
matrices in between are read by nothing else. In which ops a derivative is written does not matter: all that is looked
for is what reads what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from meshweave.ir.bindings import ir
from meshweave.ir.build import iterator_types
from meshweave.ir.expressions import Apply, Constant, Index, Load, type_text
from meshweave.transforms.attention.expressions import (
    RESHAPES,
    ZERO,
    Coordinate,
    ElementNode,
    Expressions,
    LoopIndex,
    Opaque,
    Operand,
    added_by,
    at_loops,
    dims_of,
    loop_extents,
    loops_in,
    maps_of,
    reductions_of,
    written_at,
)
from meshweave.transforms.attention.match import FLOATS, MIN_BYTES, made_of, plain, source_of
from meshweave.transforms.attention.product import (
    MatrixProduct,
    adds_products,
    filled_with,
    product_of,
)
from meshweave.transforms.attention.softmax import NotAttention
from meshweave.transforms.base import in_block, users

REDUCES = ("arith.addf", "arith.maximumf", "arith.maxnumf", "arith.andi", "arith.ori")
"""What a row may be reduced by."""


@dataclass(frozen=True)
class ScoreProduct:
    """Describe a product that makes a matrix: its op, what it reads of rows and of columns, and the loop it adds up."""

    op: ir.Operation
    rows: Operand
    columns: Operand
    inner: int


@dataclass(frozen=True)
class RowReduction:
    """Describe a reduction along rows: `name`, from `start`, of the elements of node `of`."""

    op: ir.Operation
    name: str
    start: ir.Attribute
    of: int


@dataclass(frozen=True)
class Gradient:
    """Describe a product that ends the backward: `matrix` times `other`, added up over the loops `reduced`.

    writes: of its result, a coordinate for each dim. column: the loop of `other` that is none of the matrix; None for
    one of a single element.
    """

    op: ir.Operation
    matrix: int
    other: Operand
    writes: tuple[Coordinate, ...]
    reduced: tuple[int, ...]
    column: int | None


@dataclass
class Backward:
    """Describe the backward of an attention. Loops are numbered as the dims of the product that it was found by.

    sizes:      of all loops.
    products:   by the node that reads one, the products that make matrices; rows: the reductions along rows, each
                behind those that it reads.
    gradients:  the products that it ends in.
    visited:    all ops that it replaces or looks through.
    """

    expressions: Expressions
    sizes: dict[int, int]
    query: int
    key: int
    dtype: ir.Type
    products: dict[int, ScoreProduct] = field(default_factory=dict)
    rows: dict[int, RowReduction] = field(default_factory=dict)
    gradients: list[Gradient] = field(default_factory=list)
    visited: list[ir.Operation] = field(default_factory=list)

    @property
    def begin(self) -> ir.Operation:
        """Return the product of queries and keys that it was found by."""
        return next(iter(self.products.values())).op

    @property
    def ends(self) -> tuple[ir.Operation, ...]:
        """Return the products that it ends in."""
        return tuple([gradient.op for gradient in self.gradients])

    @property
    def ops(self) -> tuple[ir.Operation, ...]:
        """Return all ops that it is made of, and those that it looks through."""
        return (*self.ends, *self.visited)

    @property
    def batch(self) -> tuple[int, ...]:
        """Return the loops of heads: those of the matrix beside query and key."""
        count = len(self.begin.results[0].type.shape)
        return tuple(d for d in range(count) if d not in (self.query, self.key))

    def loops(self, node: int) -> frozenset[int]:
        """Return the loops that a node depends on."""
        found = frozenset[int]()
        for n in self.expressions.below(node):
            made: ElementNode = self.expressions.nodes[n]
            if isinstance(made, Load):
                found |= made.access.loops
            elif isinstance(made, Index):
                found |= dims_of(made.form)
        return found


def backward_of(
    op: ir.Operation, dtypes: Sequence[str] = FLOATS, least: int = MIN_BYTES
) -> Backward | None:
    """Return the backward that begins with the product `op` of queries and keys; None where it is of something else.

    dtypes: types that its matrices may have; least: bytes that one of them must exceed. Raises NotAttention, with the
    reason, where it is a backward that cannot be cut.
    """
    product = product_of(op)
    if product is None or len(op.results[0].type.shape) < 2:
        return None
    inside, ends = _reach(op)
    if not any(_is_exp(o) for o in inside) or len(ends) < 2:
        return None
    sides = _sides(product, [o for o in inside if reductions_of(o)])
    return None if sides is None else _Matcher(product, *sides, ends, dtypes, least).run()


def _reach(op: ir.Operation) -> tuple[list[ir.Operation], list[ir.Operation]]:
    """Return the ops that are made of a product before the next products, and those products."""
    inside: dict[ir.Operation, None] = {}
    ends: dict[ir.Operation, None] = {}
    left = [op]
    while left:
        for view in users(left.pop().results[0]):
            reader = view.operation
            if reader.block != op.block:
                raise NotAttention("the scores are read in a loop or branch")
            if reader.name == "linalg.generic" and adds_products(reader):
                ends[reader] = None
            elif reader not in inside and (
                reader.name in RESHAPES
                or (reader.name == "linalg.generic" and len(reader.results) == 1)
            ):
                inside[reader] = None
                left.append(reader)
    return [o for o in inside if o.name == "linalg.generic"], list(ends)


def _is_exp(op: ir.Operation) -> bool:
    return any(view.operation.name == "math.exp" for view in op.regions[0].blocks[0].operations)


def _sides(product: MatrixProduct, reductions: Sequence[ir.Operation]) -> tuple[int, int] | None:
    """Return the dims of queries and keys of a product's result: rows are reduced along the keys.

    Heads that share keys are dims of the queries' side too: the longest is the queries.
    """
    dims = [next(iter(dims_of(e)), -1) for e in product.writes]
    shape = product.op.results[0].type.shape
    left, right = (
        [k for k, d in enumerate(dims) if d in one.loops and d not in other.loops]
        for one, other in (product.operands, product.operands[::-1])
    )
    for rows, columns in ((left, right), (right, left)):
        keys = [k for k in columns if shape[k] != 1]
        reduced = [op for op in reductions if len(keys) == 1]
        if rows and any(_reduces(op, product.op.results[0], keys[0]) for op in reduced):
            return max(rows, key=lambda k: (shape[k], k)), keys[0]
    return None


def _reduces(op: ir.Operation, matrix: ir.Value, key: int) -> bool:
    """Tell whether an op reduces along dim `key` of a matrix that it is made of."""
    maps = maps_of(op)
    if maps is None:
        return False
    for value, entries in zip(op.operands, maps[:-1]):
        ex = Expressions()
        for read in ex.loads_below(ex.node(value, entries)).values():
            if read.value == matrix:
                return bool(dims_of(read.entries[key]) & set(reductions_of(op)))
    return False


class _Matcher:
    def __init__(
        self, anchor: MatrixProduct, query: int, key: int, ends: Sequence[ir.Operation],
        dtypes: Sequence[str], least: int,
    ) -> None:  # fmt: skip
        self.anchor, self.ends, self.dtypes, self.least = anchor.op.results[0], ends, dtypes, least
        self.ex = Expressions()
        type_ = self.anchor.type
        self.found = Backward(self.ex, dict(enumerate(type_.shape)), query, key, type_.element_type)
        self.frame = tuple(LoopIndex(d) for d in range(len(type_.shape)))

    def run(self) -> Backward | None:
        """Return the backward, None where no product adds up over its rows; or raise NotAttention."""
        found = self.found
        self._scores(self.ex.node(self.anchor, self.frame))
        found.gradients = [self._gradient(op) for op in self.ends]
        if not any(found.query in g.reduced for g in found.gradients):
            return None
        for gradient in found.gradients:
            self._below(gradient.matrix)
        self._worth()
        made = [p.op for p in found.products.values()]
        ops = [*self.ex.visited, *(r.op for r in found.rows.values()), *made]
        found.visited = list(dict.fromkeys(ops))
        self._read_by_nothing_else(made)
        gather_leaves(found)
        return found

    def _worth(self) -> None:
        sizes, element = self.found.sizes, str(self.found.dtype)
        if element not in self.dtypes:
            raise NotAttention(
                f"the scores are {element}, {' or '.join(self.dtypes)} is needed in a backward"
            )
        matrix = sizes[self.found.query] * sizes[self.found.key] * self.found.dtype.width // 8
        if matrix <= self.least:
            raise NotAttention(f"the scores are {matrix} bytes for each head: they fit the caches")

    def _new_loop(self, extent: int) -> int:
        number = len(self.found.sizes)
        self.found.sizes[number] = extent
        return number

    # the products at the end

    def _gradient(self, op: ir.Operation) -> Gradient:
        """Return a product at the end, its loops numbered as those of the matrix."""
        maps = maps_of(op)
        if maps is None or not filled_with(op.operands[2], 0.0):
            raise NotAttention("the scores are multiplied with something else in a backward")
        extents = loop_extents(op, maps)
        for which in (0, 1):
            frame = self._frame_of(Operand(op.operands[which], maps[which]))
            if frame is not None:
                break
        else:
            raise NotAttention("the scores are read by a reshape that cuts through rows")
        other = maps[1 - which]
        free = [d for d in extents if d not in frame and extents[d] != 1]
        if len(free) > 1 or (free and free[0] in reductions_of(op)):
            raise NotAttention("the scores are multiplied with something else in a backward")
        column = self._new_loop(extents[free[0]]) if free else None
        loops: list[Coordinate] = [
            frame.get(d, ZERO if column is None or d != free[0] else LoopIndex(column))
            for d in range(len(iterator_types(op)))
        ]
        reduced = tuple(
            loop for d in reductions_of(op) for loop in sorted(dims_of(loops[d])) if extents[d] != 1
        )
        node = self.ex.node(op.operands[which], at_loops(maps[which], loops))
        right = source_of(
            Operand(op.operands[1 - which], at_loops(other, loops)),
            [*sorted({self.found.query, self.found.key} & loops_in(at_loops(other, loops)))]
            + ([] if column is None else [column]),
        )
        query, key = self.found.query, self.found.key
        one = {query, key} & right.loops
        if len(one) != 1 or not one <= set(reduced) or len({query, key} & set(reduced)) != 1:
            raise NotAttention("the scores are multiplied with something else in a backward")
        made = op.results[0].type.element_type
        if made != self.found.dtype:
            raise NotAttention(f"the scores are {self.found.dtype}, a gradient made of them {made}")
        return Gradient(op, node, right, at_loops(maps[2], loops), reduced, column)

    def _frame_of(self, side: Operand) -> dict[int, Coordinate] | None:
        """Return the dim of the matrix that each loop of a product runs with; None where `side` reads none."""
        ex = Expressions()
        for read in ex.loads_below(ex.node(side.value, side.entries)).values():
            if read.value == self.anchor:
                return _loops_of(read.entries)
        return None

    # what they are made of

    def _below(self, node: int) -> None:
        """Find the products and the reductions that a node is made of."""
        found, pair = self.found, (self.found.query, self.found.key)
        for n, read in self.ex.loads_below(node).items():
            if n in found.products or n in found.rows:
                continue
            owner = read.value.owner
            made = None if isinstance(owner, ir.Block) else owner.operation
            if made is not None and set(pair) <= read.loops and product_of(made) is not None:
                self._scores(n)
            elif made is not None and (inner := self._row(read)) is not None:
                self._below(inner.of)
                found.rows[n] = inner
            else:
                plain(read.entries, pair, needed=False)
        for n in self.ex.below(node):
            made_by = self.ex.nodes[n]
            if isinstance(made_by, Apply) and made_by.name == "arith.bitcast":
                raise NotAttention("the scores are taken apart into bits")

    def _scores(self, node: int) -> None:
        """Note a product that makes a matrix."""
        load = self.ex.nodes[node]
        assert isinstance(load, Load)
        product = product_of(load.access.value.owner.operation)
        assert product is not None
        found, inner = self.found, self._new_loop(product.sizes[product.reduced])
        written = {
            **written_at(product.writes, load.access.entries),
            product.reduced: LoopIndex(inner),
        }
        loops = [written.get(k, ZERO) for k in range(len(product.sizes))]
        sides = [Operand(o.value, at_loops(o.entries, loops)) for o in product.operands]
        if found.key in sides[0].loops:
            sides = sides[::-1]
        rows, columns = sides
        wanted = [(found.query, found.key), (found.key, found.query)]
        for side, (mine, others) in zip(sides, wanted):
            if (mine not in side.loops and found.sizes[mine] != 1) or others in side.loops:
                raise NotAttention("no product of queries and keys before it")
        if type_text(load) != str(found.dtype):
            raise NotAttention(f"the scores are {found.dtype} and {type_text(load)}")
        found.products[node] = ScoreProduct(
            product.op,
            source_of(rows, [d for d in (found.query, inner) if found.sizes[d] != 1]),
            source_of(columns, [d for d in (found.key, inner) if found.sizes[d] != 1]),
            inner,
        )

    def _row(self, read: Operand) -> RowReduction | None:
        """Return the reduction along the keys that a tensor is; None for any other."""
        op = read.value.owner.operation
        if op.name != "linalg.generic" or len(op.results) != 1 or self.found.key in read.loops:
            return None
        reduced, maps = reductions_of(op), maps_of(op)
        if maps is None or not reduced or (added := added_by(op, REDUCES)) is None:
            return None
        extents = loop_extents(op, maps)
        real = [d for d in reduced if extents[d] != 1]
        if len(real) != 1 or extents[real[0]] != self.found.sizes[self.found.key]:
            return None
        start = op.operands[len(op.operands) - 1]
        if not filled_with(start, None):
            return None
        known = Expressions()
        number = known.nodes[known.node(start, [ZERO] * len(start.type.shape))]
        assert isinstance(number, Constant)
        written = written_at(maps[-1], read.entries)
        loops = [written.get(k, ZERO) for k in range(len(iterator_types(op)))]
        loops[real[0]] = LoopIndex(self.found.key)
        name = str(_last(op).name)
        try:
            of = self.ex.body(op, maps, loops, added)
        except Opaque:
            return None
        if not any(
            set(r.entries) & {LoopIndex(self.found.key)} for r in self.ex.loads_below(of).values()
        ):
            return None
        return RowReduction(op, name, number.value, of)

    def _read_by_nothing_else(self, products: Sequence[ir.Operation]) -> None:
        """Refuse where something outside reads what is made of the products."""
        inside, ends = set(self.found.visited), set(self.ends)
        for product in products:
            made, readers = made_of(product, inside)
            others = [op for op in readers if op not in ends]
            if others:
                raise NotAttention(f"the scores of a backward are read by {others[0].name} too")
            if any(g.other.value == op.results[0] for op in made for g in self.found.gradients):
                raise NotAttention("the scores are multiplied with themselves")


def _loops_of(entries: Sequence[Coordinate]) -> dict[int, Coordinate] | None:
    """Return the dim of a tensor that each loop reads as it is; None where one is read in another way."""
    found: dict[int, Coordinate] = {}
    for dim, entry in enumerate(entries):
        if isinstance(entry, LoopIndex) and entry.loop not in found:
            found[entry.loop] = LoopIndex(dim)
        elif entry != ZERO:
            return None
    return found


def _last(op: ir.Operation) -> ir.Operation:
    """Return the op that makes what a body yields."""
    block = op.regions[0].blocks[0]
    end = list(block.operations)[-1].operation
    return end.operands[0].owner.operation


def matrix_bytes(found: Backward) -> int:
    """Return the bytes of one matrix of all heads."""
    rows = prod(found.sizes[d] for d in (*found.batch, found.query))
    width: int = found.dtype.width
    return rows * found.sizes[found.key] * width // 8


def gather_leaves(found: Backward) -> None:
    """Move what a backward reads in front of the first product that it ends in.

    Raises NotAttention, and moves nothing, where something that it reads is made of what it ends in.
    """
    ends = {g.op for g in found.gradients}
    own = {*found.visited, *ends}
    first = min(ends, key=in_block)
    moved: set[ir.Operation] = set()
    left = [o for op in own for o in _operands(op)]
    while left:
        owner = left.pop().owner
        if isinstance(owner, ir.Block) or owner.operation.block != first.block:
            continue
        op = owner.operation
        if op in moved or op.is_before_in_block(first):
            continue
        if op in ends:
            raise NotAttention("the scores are made of what a backward ends in")
        if op not in own:
            moved.add(op)
            left += _operands(op)
    for op in sorted(moved, key=in_block):
        op.move_before(first)


def _operands(op: ir.Operation) -> list[ir.Value]:
    """Return what an op and those in its regions read."""
    inner = [
        view.operation for region in op.regions for b in region.blocks for view in b.operations
    ]
    return [*op.operands, *(value for o in inner for value in _operands(o))]
