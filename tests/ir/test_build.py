"""The op builder: what it makes verifies, and its readers give back what was built."""

from collections.abc import Iterator

import pytest
from depth import sampled

from meshweave.dialects import context
from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import (
    DYNAMIC,
    IteratorType,
    OpBuilder,
    dims_map,
    iterator_types,
    predicate,
    reassociation,
    static_offsets,
    static_sizes,
    static_strides,
    tensor_type,
)


class Function:
    """A function of a tensor<4x6xf32> and an index, to build in."""

    def __init__(self) -> None:
        self.module = ir.Module.parse(
            "func.func @f(%a: tensor<4x6xf32>, %i: index) { return }", context()
        )
        block = self.module.body.operations[0].regions[0].blocks[0]
        self.tensor, self.index = block.arguments
        self.b = OpBuilder.before(block.operations[0].operation)

    @property
    def text(self) -> str:
        assert self.module.operation.verify()
        return str(self.module)


@pytest.fixture
def f() -> Iterator[Function]:
    made = Function()
    with made.module.context, ir.Location.unknown():
        yield made


def mixed_offsets(op: ir.Operation) -> list[int | ir.Value]:
    """Return the offsets of a slice op, each a number or the operand that it is."""
    counts = list(op.attributes["operandSegmentSizes"])
    first = sum(counts[:-3])  # the last three groups are offsets, sizes and strides
    moving = iter(list(op.operands)[first : first + counts[-3]])
    return [next(moving) if o == DYNAMIC else o for o in static_offsets(op)]


def test_a_slice_reads_back_its_mixed_offsets(f: Function) -> None:
    row = tensor_type([6], ir.F32Type.get())
    part = f.b.extract_slice(f.tensor, row, [f.index, 0])
    back = f.b.insert_slice(part, f.tensor, [f.index, 0])
    assert "tensor.insert_slice" in f.text
    for value in (part, back):
        op = value.owner
        assert static_offsets(op) == [DYNAMIC, 0]
        assert mixed_offsets(op) == [f.index, 0]
        assert static_sizes(op) == [1, 6]
        assert static_strides(op) == [1, 1]


def test_all_of_a_tensor_is_itself_and_nothing_is_an_empty_one(f: Function) -> None:
    assert f.b.extract_slice(f.tensor, f.tensor.type, [0, 0]) == f.tensor
    none = f.b.extract_slice(f.tensor, tensor_type([0, 6], ir.F32Type.get()), [f.index, 0])
    assert none.owner.name == "tensor.empty"
    assert f.b.insert_slice(none, f.tensor, [f.index, 0]) == f.tensor


def test_a_generic_has_the_iterators_it_was_given(f: Function) -> None:
    f32 = ir.F32Type.get()
    start = f.b.fill(f.b.constant(ir.FloatAttr.get(f32, 0.0)), tensor_type([4], f32))
    kinds = [IteratorType.PARALLEL, IteratorType.REDUCTION]
    maps = [dims_map(2, [0, 1]), dims_map(2, [0])]
    op = f.b.generic(
        [f.tensor], [start], maps, kinds, lambda b, xs: [b.binary("addf", xs[1], xs[0])]
    )
    assert iterator_types(op) == tuple(kinds)
    assert "arith.addf" in f.text


def test_a_padded_and_reshaped_tensor(f: Function) -> None:
    f32 = ir.F32Type.get()
    wide = f.b.pad(f.tensor, [4, 8], ir.FloatAttr.get(f32, 0.0))
    groups = [[0], [1, 2]]
    apart = f.b.expand_shape(wide, tensor_type([4, 2, 4], f32), groups)
    again = f.b.collapse_shape(apart, wide.type, groups)
    assert reassociation(apart.owner) == reassociation(again.owner) == groups
    assert "high[0, 2]" in f.text


@sampled(1)
@pytest.mark.parametrize("kind", [*arith.CmpIPredicate, *arith.CmpFPredicate], ids=str)
def test_a_comparison_reads_back_its_predicate(f: Function, kind: arith.CmpIPredicate) -> None:
    floats = isinstance(kind, arith.CmpFPredicate)
    x = f.b.element(f.tensor, [f.index, f.index]) if floats else f.index
    compared = f.b.compare(kind, x, x)
    assert predicate(compared.owner) is kind
    assert f.text


def test_loops_and_branches(f: Function) -> None:
    zero = f.b.element(f.tensor, [f.index, f.index])

    def body(b: OpBuilder, indices: list[ir.Value], values: list[ir.Value]) -> list[ir.Value]:
        x = b.element(f.tensor, indices)
        positive = b.compare(arith.CmpFPredicate.OGT, x, zero)
        return b.if_else(
            positive,
            [x.type],
            lambda yes: [yes.binary("addf", values[0], x)],
            lambda no: [no.select(positive, x, values[0])],
        )

    f.b.scalar_tensor(f.b.loops([4, 6], [zero], body)[0])
    assert f.text.count("scf.for") == 2
