"""Collectives through the whole lowering, on real ranks, against NumPy: every dim, even and uneven
sizes.
"""

from __future__ import annotations

import numpy as np
import pytest
from depth import sampled
from lowering.harness import compile_text, run_ranks

from meshweave.dialects import context
from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.layout.mesh import Mesh
from meshweave.lowering.stages import lower

MESH = Mesh.parse("x=2, y=3")
SIZES = {("x",): 2, ("y",): 3, ("x", "y"): 6, ("y", "x"): 6}
RANKS = range(MESH.nranks)


def type_of(shape, dtype="f32"):
    return "tensor<" + "".join(f"{n}x" for n in shape) + f"{dtype}>"


def program(op, attributes, given, result, dtype="f32"):
    a, r = type_of(given, dtype), type_of(result, dtype)
    return f"""
    "dist.mesh"() {{sym_name = "mesh", axes = "{MESH}"}} : () -> ()
    func.func @main(%a: {a}) -> {r} {{
      %0 = "dist.{op}"(%a) {{{attributes}}} : ({a}) -> {r}
      return %0 : {r}
    }}"""


def axes_text(axes):
    return "axes = [" + ", ".join(f'"{a}"' for a in axes) + "]"


def shards(shape, dtype=np.float32):
    rng = np.random.default_rng(1)
    return [(rng.standard_normal(shape) * 50).astype(dtype) for _ in RANKS]


def run(text, values):
    return [outs[0] for outs in run_ranks(compile_text(text), [[v] for v in values])]


def members(axes, rank, values):
    return [values[r] for r in MESH.group(axes, rank)]


def piece(value, dim, number, group):
    size = -(-value.shape[dim] // group)
    return np.take(value, range(number * size, min((number + 1) * size, value.shape[dim])), dim)


def same_where_valid(got, want, dim):
    """Equal up to where `want` ends along `dim`; the rest is padding."""
    np.testing.assert_array_equal(np.take(got, range(want.shape[dim]), dim), want)


@sampled(1)
@pytest.mark.parametrize("axes", SIZES)
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("cut", [0, 1])
def test_all_gather_concatenates_in_member_order(axes, dim, cut):
    values, result = shards((2, 3, 4)), [2, 3, 4]
    result[dim] = result[dim] * SIZES[axes] - cut
    attributes = f"{axes_text(axes)}, dim = {dim} : i64"
    got = run(program("all_gather", attributes, (2, 3, 4), result), values)
    for rank in RANKS:
        whole = np.concatenate(members(axes, rank, values), dim)
        np.testing.assert_array_equal(got[rank], np.take(whole, range(result[dim]), dim))


@sampled(1)
@pytest.mark.parametrize("axes", SIZES)
@pytest.mark.parametrize("shape", [(6, 12), (5, 7), (1, 8)])
@pytest.mark.parametrize("dim", [0, 1])
def test_all_slice_keeps_its_piece(axes, shape, dim):
    values, result = shards(shape), list(shape)
    result[dim] = -(-shape[dim] // SIZES[axes])
    got = run(program("all_slice", f"{axes_text(axes)}, dim = {dim} : i64", shape, result), values)
    for rank in RANKS:
        want = piece(values[rank], dim, MESH.group_index(axes, rank), SIZES[axes])
        same_where_valid(got[rank], want, dim)


REDUCE = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod, "avg": np.mean}


@sampled(1)
@pytest.mark.parametrize("kind", REDUCE)
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32"])
def test_all_reduce_gives_every_member_the_reduction(kind, dtype):
    if (kind, dtype) == ("avg", "i32"):
        return
    kinds = {"f32": np.float32, "f64": np.float64, "i32": np.int32}
    values, axes = shards((3, 5), kinds[dtype]), ("y",)
    text = program("all_reduce", f'{axes_text(axes)}, kind = "{kind}"', (3, 5), (3, 5), dtype)
    got = run(text, values)
    for rank in RANKS:
        want = REDUCE[kind](np.stack(members(axes, rank, values)), axis=0)
        np.testing.assert_allclose(got[rank], want, rtol=1e-5)


@sampled(5)
@pytest.mark.parametrize("axes", SIZES)
@pytest.mark.parametrize("shape", [(6, 12), (5, 7), (1, 8)])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", ["sum", "max", "avg"])
def test_reduce_scatter_reduces_then_slices(axes, shape, dim, kind):
    values, result = shards(shape), list(shape)
    result[dim] = -(-shape[dim] // SIZES[axes])
    attributes = f'{axes_text(axes)}, dim = {dim} : i64, kind = "{kind}"'
    got = run(program("reduce_scatter", attributes, shape, result), values)
    for rank in RANKS:
        whole = REDUCE[kind](np.stack(members(axes, rank, values)), axis=0)
        want = piece(whole, dim, MESH.group_index(axes, rank), SIZES[axes])
        np.testing.assert_allclose(np.take(got[rank], range(want.shape[dim]), dim), want, rtol=1e-4)


@sampled(5)
@pytest.mark.parametrize("axes", [("x",), ("y",), ("y", "x")])
@pytest.mark.parametrize("split, concat", [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)])
@pytest.mark.parametrize("shape", [(6, 12, 6), (4, 5, 7)])
def test_all_to_all_moves_the_split(axes, split, concat, shape):
    values, result, group = shards(shape), list(shape), SIZES[axes]
    result[split] = -(-shape[split] // group)
    result[concat] = shape[concat] * group - 1
    attributes = f"{axes_text(axes)}, split_dim = {split} : i64, concat_dim = {concat} : i64"
    got = run(program("all_to_all", attributes, shape, result), values)
    for rank in RANKS:
        own = MESH.group_index(axes, rank)
        parts = [piece(v, split, own, group) for v in members(axes, rank, values)]
        want = np.take(np.concatenate(parts, concat), range(result[concat]), concat)
        same_where_valid(got[rank], want, split)


@pytest.mark.parametrize(
    "sources", [(4, 2, 0, 5, 1, 3), (0, 2, 4, 1, 3, 5), (1, 2, 3, 4, 5, 0), (5, 4, 3, 2, 1, 0)]
)
def test_permute_receives_from_its_source(sources):
    values, sources = shards((3, 4)), list(sources)
    text = program("permute", f"{axes_text(('y', 'x'))}, sources = {sources}", (3, 4), (3, 4))
    got = run(text, values)
    for rank in RANKS:
        group = MESH.group(("y", "x"), rank)
        source = group[sources[MESH.group_index(("y", "x"), rank)]]
        np.testing.assert_array_equal(got[rank], values[source])


@pytest.mark.parametrize("axes", ['["x", "y"]', '["x"]'])
def test_a_permute_of_thousands_of_members_is_told_by_digits(axes):
    turned = [64 * (k % 64) + k // 64 for k in range(4096)]
    sources = turned if "y" in axes else [63, *range(63)]
    text = f"""
    "dist.mesh"() {{sym_name = "mesh", axes = "x=64, y=64"}} : () -> ()
    func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {{
      %0 = "dist.permute"(%a) {{axes = {axes}, sources = {sources}}} : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }}"""
    assert len(compile_text(text).to_bytes()) < 8 << 10


def test_an_all_reduce_of_a_computed_value_runs_in_place():
    text = """
    "dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
    func.func @main(%a: tensor<64x64xf32>) -> tensor<64x64xf32> {
      %0 = arith.addf %a, %a : tensor<64x64xf32>
      %1 = "dist.all_reduce"(%0) {axes = ["x"], kind = "sum"} : (tensor<64x64xf32>) -> tensor<64x64xf32>
      %2 = math.exp %1 : tensor<64x64xf32>
      return %2 : tensor<64x64xf32>
    }"""
    bundle = compile_text(text)
    assert bundle.manifest.arena_bytes == 0  # all three steps work in the output's buffer
    a = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    for outs in run_ranks(bundle, [[a], [2 * a]]):
        np.testing.assert_allclose(outs[0], np.exp(6 * a), rtol=1e-5)


def test_a_collective_inside_a_loop_and_a_called_function():
    text = """
    "dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
    func.func private @step(%a: tensor<8xf32>) -> tensor<8xf32> {
      %0 = "dist.all_reduce"(%a) {axes = ["x"], kind = "avg"} : (tensor<8xf32>) -> tensor<8xf32>
      %1 = arith.addf %0, %a : tensor<8xf32>
      return %1 : tensor<8xf32>
    }
    func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c3 = arith.constant 3 : index
      %r = scf.for %i = %c0 to %c3 step %c1 iter_args(%x = %a) -> (tensor<8xf32>) {
        %y = func.call @step(%x) : (tensor<8xf32>) -> tensor<8xf32>
        scf.yield %y : tensor<8xf32>
      }
      return %r : tensor<8xf32>
    }"""
    bundle = compile_text(text)
    assert [str(op) for op in bundle.manifest.ops] == ["all_reduce[x] f32 8 at -:4:12"]
    values = shards((8,))[:2]
    want = list(values)
    for _ in range(3):
        want = [(want[0] + want[1]) / 2 + w for w in want]
    for outs, expected in zip(run_ranks(bundle, [[v] for v in values]), want):
        np.testing.assert_allclose(outs[0], expected, rtol=1e-5)


def test_the_member_index_is_known_when_the_program_runs():
    text = """
    "dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3"} : () -> ()
    func.func @main(%a: tensor<4xi64>) -> tensor<4xi64> {
      %0 = "dist.axis_index"() {axes = ["y", "x"]} : () -> index
      %1 = arith.index_cast %0 : index to i64
      %2 = tensor.splat %1 : tensor<4xi64>
      %3 = arith.addi %a, %2 : tensor<4xi64>
      return %3 : tensor<4xi64>
    }"""
    got = run_ranks(compile_text(text), [[np.arange(4)] for _ in RANKS])
    for rank in RANKS:
        member = MESH.group_index(("y", "x"), rank)
        np.testing.assert_array_equal(got[rank][0], np.arange(4) + member)


def test_an_op_without_lowering_is_named_with_its_place():
    layout = '#dist.layout<"[_]">'
    text = program("redistribute", f"source = {layout}, target = {layout}", (4,), (4,))
    with pytest.raises(CompileError, match=r"-:4:12: dist.redistribute: no lowering"):
        compile_text(text)


def symbols_of(text, engine="local"):
    """The collectives that a program calls."""
    with context(), ir.Location.unknown():
        return [call.symbol for call in lower(ir.Module.parse(text), engine).collectives.calls]


DIRECT = [
    ("all_gather", "dim = 0 : i64", (2, 3, 4), (6, 3, 4), "mw_all_gather"),
    ("all_gather", "dim = 0 : i64", (2, 3, 4), (5, 3, 4), "mw_all_gather_box"),
    ("all_gather", "dim = 1 : i64", (2, 3, 4), (2, 9, 4), "mw_all_gather_box"),
    ("all_gather", "dim = 1 : i64", (2, 3, 1), (2, 9, 1), "mw_all_gather"),
    ("reduce_scatter", 'dim = 0 : i64, kind = "sum"', (6, 4), (2, 4), "mw_reduce_scatter_sum_f32"),
    ("reduce_scatter", 'dim = 0 : i64, kind = "sum"', (5, 4), (2, 4), "mw_reduce_scatter_box_sum_f32"),
    ("reduce_scatter", 'dim = 1 : i64, kind = "avg"', (4, 12), (4, 4), "mw_reduce_scatter_box_sum_f32"),
    ("reduce_scatter", 'dim = 1 : i64, kind = "sum"', (4, 6), (4, 2), "mw_reduce_scatter_sum_f32"),
    ("all_to_all", "split_dim = 0 : i64, concat_dim = 1 : i64", (6, 4), (2, 12), "mw_all_to_all_box"),
    ("all_to_all", "split_dim = 1 : i64, concat_dim = 0 : i64", (4, 12), (12, 4), "mw_all_to_all_box"),
    ("all_to_all", "split_dim = 1 : i64, concat_dim = 0 : i64", (4, 6), (12, 2), "mw_all_to_all"),
]  # fmt: skip


@sampled(1)
@pytest.mark.parametrize("op, attributes, given, result, symbol", DIRECT)
def test_ranks_that_are_threads_pack_nothing_but_short_runs(op, attributes, given, result, symbol):
    text = program(op, f"{axes_text(('y',))}, {attributes}", given, result)
    assert symbols_of(text) == [symbol]
    by_table = "box" in symbol and op in ("all_gather", "all_to_all")
    assert symbols_of(text, "mpi") == ["mw_exchange" if by_table else symbol.replace("_box", "")]


def test_a_direct_move_needs_no_memory_of_its_own():
    attributes = f"{axes_text(('y',))}, split_dim = 1 : i64, concat_dim = 0 : i64"
    text = program("all_to_all", attributes, (40, 60), (120, 20))
    assert compile_text(text).manifest.arena_bytes == 0


@sampled(1)
@pytest.mark.parametrize("cut", [0, 1, 5, 12, 13])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_all_gather_cuts_whole_members_off(dim, cut):
    values, result = shards((12, 6, 8)), [12, 6, 8]
    result[dim] = result[dim] * 3 - cut
    text = program("all_gather", f"{axes_text(('y',))}, dim = {dim} : i64", (12, 6, 8), result)
    got = run(text, values)
    for rank in RANKS:
        whole = np.concatenate(members(("y",), rank, values), dim)
        np.testing.assert_array_equal(got[rank], np.take(whole, range(result[dim]), dim))


@sampled(5)
@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "f16"])
@pytest.mark.parametrize("split, concat", [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)])
@pytest.mark.parametrize("shape, cut", [((7, 20, 33), 0), ((13, 16, 48), 9), ((1, 17, 64), 17)])
def test_all_to_all_with_padding_and_members_cut_off(split, concat, shape, cut, dtype):
    axes = ("y", "x")
    kinds = {"f32": np.float32, "f64": np.float64, "i8": np.int8, "f16": np.float16}
    values, result = shards(shape, kinds[dtype]), list(shape)
    result[split] = -(-shape[split] // 6)
    result[concat] = max(1, shape[concat] * 6 - cut)
    attributes = f"{axes_text(axes)}, split_dim = {split} : i64, concat_dim = {concat} : i64"
    got = run(program("all_to_all", attributes, shape, result, dtype), values)
    for rank in RANKS:
        parts = [
            piece(v, split, MESH.group_index(axes, rank), 6) for v in members(axes, rank, values)
        ]
        want = np.take(np.concatenate(parts, concat), range(result[concat]), concat)
        same_where_valid(got[rank], want, split)


@sampled(1)
@pytest.mark.parametrize("shape", [(5, 3000), (3, 7, 200), (40, 9, 64)])
@pytest.mark.parametrize("kind", ["sum", "min", "avg"])
def test_reduce_scatter_of_long_rows_with_padding(shape, kind):
    for dim in range(len(shape)):
        values, result = shards(shape), list(shape)
        result[dim] = -(-shape[dim] // 6)
        attributes = f'{axes_text(("x", "y"))}, dim = {dim} : i64, kind = "{kind}"'
        got = run(program("reduce_scatter", attributes, shape, result), values)
        whole = REDUCE[kind](np.stack(values), axis=0)
        for rank in RANKS:
            want = piece(whole, dim, rank, 6)
            result_here = np.take(got[rank], range(want.shape[dim]), dim)
            np.testing.assert_allclose(result_here, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("engine", ["local", "mpi"])
def test_a_collective_of_tensors_without_elements_is_not_called(engine):
    attributes = f"{axes_text(('y',))}, split_dim = 1 : i64, concat_dim = 0 : i64"
    assert symbols_of(program("all_to_all", attributes, (0, 12), (0, 4)), engine) == []
