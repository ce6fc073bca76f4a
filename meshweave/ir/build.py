"""Build ops: the one place that wraps `ir.Operation.create`.

An `OpBuilder` makes ops at an insertion point, all with one location. Below it are the attributes
that several dialects share (index maps, iterators, static offsets) and the functions that read them
back. Predicates of comparisons are upstream's enums, `arith.CmpIPredicate` and `arith.CmpFPredicate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from meshweave.ir.bindings import arith, ir, linalg

DYNAMIC: int = ir.ShapedType.get_dynamic_size()
"""What `static_offsets`, `static_sizes` and shapes hold where a number is known at run time only."""

Index: TypeAlias = int | ir.Value
"""A number known now, or a value of type index."""

Values: TypeAlias = Sequence[ir.Value]

_create = ir.Operation.create


class IteratorType(Enum):
    """Name the kind of a loop of a `linalg` op."""

    PARALLEL = "parallel"
    REDUCTION = "reduction"


class ForLoop(NamedTuple):
    """Hold an `scf.for` whose body is still open: the builder `body` is at its end.

    index:   the induction variable, of the type of the lower bound.
    carried: the values that the loop carries, as its body sees them.
    """

    op: ir.Operation
    body: OpBuilder
    index: ir.Value
    carried: list[ir.Value]


class OpBuilder:
    """Make ops one after another at an insertion point, all with one location."""

    __slots__ = ("ip", "loc")

    def __init__(self, ip: ir.InsertionPoint, loc: ir.Location) -> None:
        self.ip, self.loc = ip, loc

    @classmethod
    def before(cls, op: ir.Operation) -> OpBuilder:
        """Build in front of `op`, at its location."""
        return cls(ir.InsertionPoint(op), op.location)

    @classmethod
    def after(cls, op: ir.Operation) -> OpBuilder:
        """Build behind `op`, at its location."""
        return cls(ir.InsertionPoint.after(op), op.location)

    def at_end(self, block: ir.Block) -> OpBuilder:
        """Build at the end of `block`, which has no terminator yet, with the same location."""
        return OpBuilder(ir.InsertionPoint(block), self.loc)

    def block(
        self, region: ir.Region, types: Sequence[ir.Type] = ()
    ) -> tuple[OpBuilder, list[ir.Value]]:
        """Append a block to `region`; return the builder at its end and its arguments."""
        block = region.blocks.append(*types, arg_locs=[self.loc] * len(types))
        return self.at_end(block), list(block.arguments)

    def op(
        self,
        name: str,
        types: Sequence[ir.Type] = (),
        operands: Values = (),
        regions: int = 0,
        **attributes: ir.Attribute,
    ) -> ir.Operation:
        """Make an op. `regions` counts its regions, which have no blocks yet."""
        # The operands of another op crash as they are: the bindings take lists.
        return _create(name, types, list(operands), attributes, None, regions, self.loc, self.ip)

    def one(
        self, name: str, type_: ir.Type, *operands: ir.Value, **attributes: ir.Attribute
    ) -> ir.Value:
        """Make an op with one result, and return that."""
        return _create(name, (type_,), operands, attributes, None, 0, self.loc, self.ip).result

    # Numbers

    def constant(self, attr: ir.Attribute, type_: ir.Type | None = None) -> ir.Value:
        """Make an `arith.constant`. type_: of the result, where it is not that of `attr`."""
        return self.one("arith.constant", type_ or attr.type, value=attr)

    def integer(self, number: int, type_: ir.Type) -> ir.Value:
        """Make a constant of an integer type, or of type index."""
        return self.one("arith.constant", type_, value=ir.IntegerAttr.get(type_, number))

    def index(self, number: Index) -> ir.Value:
        """Return `number` as a value of type index: a constant, or the value that it is."""
        return self.integer(number, ir.IndexType.get()) if isinstance(number, int) else number

    def binary(self, name: str, a: ir.Value, b: ir.Value) -> ir.Value:
        """Make `arith.<name>` of two values of one type, which the result has too."""
        return self.one(f"arith.{name}", a.type, a, b)

    def times(self, a: ir.Value, factor: int) -> ir.Value:
        """Multiply an index value by a number."""
        return a if factor == 1 else self.binary("muli", a, self.index(factor))

    def compare(
        self, predicate: arith.CmpIPredicate | arith.CmpFPredicate, a: ir.Value, b: ir.Value
    ) -> ir.Value:
        """Compare two integers, indices or floats (the predicate says which); return an i1."""
        name = "arith.cmpi" if isinstance(predicate, arith.CmpIPredicate) else "arith.cmpf"
        return self.one(name, ir.IntegerType.get_signless(1), a, b, predicate=i64(predicate))

    def select(self, condition: ir.Value, yes: ir.Value, no: ir.Value) -> ir.Value:
        """Return `yes` where the i1 `condition` holds, else `no`."""
        return self.one("arith.select", yes.type, condition, yes, no)

    # Tensors

    def empty(self, type_: ir.Type) -> ir.Value:
        """Make a `tensor.empty`."""
        return self.one("tensor.empty", type_)

    def fill(self, scalar: ir.Value, type_: ir.Type) -> ir.Value:
        """Make a tensor of `type_` with `scalar` everywhere."""
        operands = [scalar, self.empty(type_)]
        op = self.op("linalg.fill", [type_], operands, 1, operandSegmentSizes=segments(1, 1))
        linalg.fill_builtin_region(op)
        return op.result

    def element(self, tensor: ir.Value, indices: Values = ()) -> ir.Value:
        """Read one element of a tensor."""
        return self.one("tensor.extract", tensor.type.element_type, tensor, *indices)

    def put_element(self, scalar: ir.Value, tensor: ir.Value, indices: Values) -> ir.Value:
        """Return `tensor` with one element replaced."""
        return self.one("tensor.insert", tensor.type, scalar, tensor, *indices)

    def scalar_tensor(self, scalar: ir.Value) -> ir.Value:
        """Return a scalar as a tensor without dims."""
        return self.one("tensor.from_elements", tensor_type([], scalar.type), scalar)

    def extract_slice(
        self,
        tensor: ir.Value,
        type_: ir.Type,
        offsets: Sequence[Index],
        sizes: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> ir.Value:
        """Return the part of `tensor` at `offsets` that has the type `type_`.

        sizes: of the part, one a dim of `tensor`, where dims of extent 1 that `type_` lacks are not
        the leading ones. strides: all 1 where None. All of a tensor is itself, a part without elements a
        `tensor.empty`.
        """
        sizes = _with_leading_ones(type_, len(offsets)) if sizes is None else sizes
        if type_ == tensor.type and all(isinstance(o, int) and o == 0 for o in offsets):
            return tensor
        if 0 in sizes:  # no offset is within a dim without elements
            return self.empty(type_)
        moving = _moving(offsets)
        attributes = _slice_attributes([1], len(moving), offsets, sizes, strides)
        return self.one("tensor.extract_slice", type_, tensor, *moving, **attributes)

    def insert_slice(
        self,
        part: ir.Value,
        tensor: ir.Value,
        offsets: Sequence[Index],
        sizes: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> ir.Value:
        """Return `tensor` with `part` at `offsets`. sizes, strides: as in `extract_slice`."""
        sizes = _with_leading_ones(part.type, len(offsets)) if sizes is None else sizes
        if 0 in sizes:
            return tensor
        moving = _moving(offsets)
        attributes = _slice_attributes([1, 1], len(moving), offsets, sizes, strides)
        return self.one("tensor.insert_slice", tensor.type, part, tensor, *moving, **attributes)

    def collapse_shape(
        self, tensor: ir.Value, type_: ir.Type, groups: Sequence[Sequence[int]]
    ) -> ir.Value:
        """Merge the dims of each group into one."""
        attr = reassociation_attr(groups)
        return self.one("tensor.collapse_shape", type_, tensor, reassociation=attr)

    def expand_shape(
        self, tensor: ir.Value, type_: ir.Type, groups: Sequence[Sequence[int]]
    ) -> ir.Value:
        """Split each dim of `tensor` into the dims of its group. All extents are static."""
        return self.one(
            "tensor.expand_shape",
            type_,
            tensor,
            reassociation=reassociation_attr(groups),
            static_output_shape=i64_array(type_.shape),
        )

    def pad(self, tensor: ir.Value, shape: Sequence[int], with_: ir.Attribute) -> ir.Value:
        """Pad `tensor` at the end of its dims up to `shape`, with a constant."""
        old = tensor.type
        op = self.op(
            "tensor.pad",
            [tensor_type(shape, old.element_type)],
            [tensor],
            1,
            operandSegmentSizes=segments(1, 0, 0),
            static_low=i64_array([0] * len(shape)),
            static_high=i64_array([n - m for n, m in zip(shape, old.shape, strict=True)]),
        )
        inner, _ = self.block(op.regions[0], [ir.IndexType.get()] * len(shape))
        inner.op("tensor.yield", [], [inner.constant(with_)])
        return op.result

    def generic(
        self,
        inputs: Values,
        outputs: Values,
        maps: Sequence[ir.AffineMap],
        iterators: Sequence[IteratorType],
        body: Callable[[OpBuilder, list[ir.Value]], Values],
        **attributes: ir.Attribute,
    ) -> ir.Operation:
        """Make a `linalg.generic` on tensors.

        maps: one for each input, then each output.
        body: makes the ops of the body from its arguments, returns what it yields.
        """
        op = self.op(
            "linalg.generic",
            [v.type for v in outputs],
            [*inputs, *outputs],
            1,
            indexing_maps=ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
            iterator_types=iterator_types_attr(iterators),
            operandSegmentSizes=segments(len(inputs), len(outputs)),
            **attributes,
        )
        inner, arguments = self.block(
            op.regions[0], [getattr(v.type, "element_type", v.type) for v in (*inputs, *outputs)]
        )
        inner.op("linalg.yield", [], body(inner, arguments))
        return op

    def elementwise(
        self,
        inputs: Values,
        output: ir.Value,
        body: Callable[[OpBuilder, list[ir.Value]], ir.Value],
        dims: Mapping[int, Sequence[int]] | None = None,
    ) -> ir.Value:
        """Make a `linalg.generic` without reductions, whose loops are the dims of `output`.

        dims: by the number of an input, which loops its dims run with, where they are not all loops in order.
        """
        ndim = len(output.type.shape)
        every = range(ndim)
        given = dims or {}
        maps = [dims_map(ndim, given.get(i, every)) for i in range(len(inputs))]
        maps.append(ir.AffineMap.get_identity(ndim))
        kinds = [IteratorType.PARALLEL] * ndim
        return self.generic(inputs, [output], maps, kinds, lambda b, args: [body(b, args)]).result

    def loop_index(self, number: int) -> ir.Value:
        """Return the index of loop `number`, inside the body of a `linalg` op."""
        return self.one("linalg.index", ir.IndexType.get(), dim=i64(number))

    # Control flow

    def for_loop(self, low: Index, high: Index, step: Index, carried: Values) -> ForLoop:
        """Begin an `scf.for` from `low` to below `high`. Its body has to end in `scf.yield`."""
        bounds = [self.index(n) for n in (low, high, step)]
        types = [v.type for v in carried]
        op = self.op("scf.for", types, [*bounds, *carried], 1)
        body, (index, *inside) = self.block(op.regions[0], [bounds[0].type, *types])
        return ForLoop(op, body, index, inside)

    def loop(
        self,
        low: Index,
        high: Index,
        carried: Values,
        body: Callable[[OpBuilder, ir.Value, list[ir.Value]], Values],
        step: Index = 1,
    ) -> list[ir.Value]:
        """Make an `scf.for`; return its results.

        body: makes the ops of one round from the index and the carried values; returns the next ones.
        """
        made = self.for_loop(low, high, step, carried)
        made.body.op("scf.yield", [], body(made.body, made.index, made.carried))
        return list(made.op.results)

    def loops(
        self,
        shape: Sequence[int],
        carried: Values,
        body: Callable[[OpBuilder, list[ir.Value], Values], Values],
    ) -> list[ir.Value]:
        """Make one `scf.for` for each dim of `shape` of more than one element, nested; return what the last one gives.

        body: as in `loop`, from the indices of all loops.
        """

        def level(b: OpBuilder, outer: list[ir.Value], values: Values) -> Values:
            if len(outer) == len(shape):
                return body(b, outer, values)
            if shape[len(outer)] == 1:
                return level(b, [*outer, b.index(0)], values)
            return b.loop(
                0, shape[len(outer)], values, lambda inner, i, v: level(inner, [*outer, i], v)
            )

        return list(level(self, [], carried))

    def if_else(
        self,
        condition: ir.Value,
        types: Sequence[ir.Type],
        yes: Callable[[OpBuilder], Values],
        no: Callable[[OpBuilder], Values],
    ) -> list[ir.Value]:
        """Make an `scf.if` with both branches; return its results, of these types."""
        op = self.op("scf.if", types, [condition], 2)
        for region, branch in zip(op.regions, (yes, no), strict=True):
            inner, _ = self.block(region)
            inner.op("scf.yield", [], branch(inner))
        return list(op.results)


def tensor_type(shape: Sequence[int], element: ir.Type) -> ir.Type:
    """Return the type of a tensor of `shape`."""
    return ir.RankedTensorType.get(shape, element)


def i64(number: int) -> ir.Attribute:
    """Return an integer attribute of 64 bits."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)


def i64_array(numbers: Sequence[int]) -> ir.Attribute:
    """Return `array<i64: ...>`."""
    return ir.DenseI64ArrayAttr.get(numbers)


def segments(*counts: int) -> ir.Attribute:
    """Return `operandSegmentSizes`: how many operands each group has."""
    return ir.DenseI32ArrayAttr.get(counts)


def dims_map(ndim: int, dims: Sequence[int]) -> ir.AffineMap:
    """Return the map from `ndim` loops to those numbered `dims`."""
    return ir.AffineMap.get(ndim, 0, [ir.AffineDimExpr.get(d) for d in dims])


def iterator_types_attr(iterators: Sequence[IteratorType]) -> ir.Attribute:
    """Return the attribute that `linalg.generic` keeps its iterators in."""
    return ir.ArrayAttr.get(
        [ir.Attribute.parse(f"#linalg.iterator_type<{kind.value}>") for kind in iterators]
    )


def reassociation_attr(groups: Sequence[Sequence[int]]) -> ir.Attribute:
    """Return the attribute that reshapes keep their groups of dims in."""
    return ir.ArrayAttr.get([ir.ArrayAttr.get([i64(d) for d in group]) for group in groups])


def _moving(offsets: Sequence[Index]) -> list[ir.Value]:
    """Return the offsets that are values."""
    return [o for o in offsets if not isinstance(o, int)]


def _with_leading_ones(type_: ir.Type, ndim: int) -> list[int]:
    """Return the shape of `type_` with extents of 1 in front, up to `ndim` dims."""
    return [1] * (ndim - len(type_.shape)) + list(type_.shape)


def _slice_attributes(
    tensors: list[int],
    moving: int,
    offsets: Sequence[Index],
    sizes: Sequence[int],
    strides: Sequence[int] | None,
) -> dict[str, ir.Attribute]:
    """Return the attributes of a slice op with these operands: tensors, then `moving` offsets."""
    return {
        "operandSegmentSizes": segments(*tensors, moving, 0, 0),
        "static_offsets": i64_array([o if isinstance(o, int) else DYNAMIC for o in offsets]),
        "static_sizes": i64_array(sizes),
        "static_strides": i64_array(strides or [1] * len(sizes)),
    }


# What ops say, read back.


def static_offsets(op: ir.Operation) -> list[int]:
    """Return the offsets of a slice op, DYNAMIC where one is an operand."""
    return list(op.attributes["static_offsets"])


def mixed_offsets(op: ir.Operation, tensors: int) -> list[Index]:
    """Return the offsets of a slice op, numbers or values. tensors: how many operands stand before them."""
    values = iter(list(op.operands)[tensors:])
    return [next(values) if offset == DYNAMIC else offset for offset in static_offsets(op)]


def static_sizes(op: ir.Operation) -> list[int]:
    """Return the sizes of a slice op, DYNAMIC where one is an operand."""
    return list(op.attributes["static_sizes"])


def static_strides(op: ir.Operation) -> list[int]:
    """Return the strides of a slice op, DYNAMIC where one is an operand."""
    return list(op.attributes["static_strides"])


def reassociation(op: ir.Operation) -> list[list[int]]:
    """Return the groups of dims of a reshape."""
    return [[d.value for d in group] for group in op.attributes["reassociation"]]


def iterator_types(op: ir.Operation) -> tuple[IteratorType, ...]:
    """Return the kinds of the loops of a `linalg.generic`."""
    # one text is read faster than an attribute a loop
    return _iterator_types(str(op.attributes["iterator_types"]))


@lru_cache(maxsize=1 << 8)
def _iterator_types(text: str) -> tuple[IteratorType, ...]:
    return tuple(
        IteratorType.PARALLEL if "parallel" in kind else IteratorType.REDUCTION
        for kind in text.split(",")
        if "<" in kind
    )


def predicate(op: ir.Operation) -> arith.CmpIPredicate | arith.CmpFPredicate:
    """Return how an `arith.cmpi` or `arith.cmpf` compares."""
    return named_predicate(op.name, op.attributes["predicate"])


def named_predicate(name: str, attr: ir.Attribute) -> arith.CmpIPredicate | arith.CmpFPredicate:
    """Return how an op of this name compares whose predicate is `attr`."""
    kind = arith.CmpIPredicate if name == "arith.cmpi" else arith.CmpFPredicate
    return kind(attr.value)
