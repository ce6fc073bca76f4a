"""Small programs of one rank through the whole lowering, against NumPy: dtypes, shapes, control
flow, and what is refused.
"""

from __future__ import annotations

import numpy as np
import pytest
from depth import sampled
from lowering.harness import DTYPES, compile_text, run_text

from meshweave.dialects import context
from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.lowering.cpu.target import lower

RNG = np.random.default_rng(7)


def values(dtype, *shape):
    x = RNG.standard_normal(shape) * 8
    return x > 0 if dtype == "i1" else x.astype(DTYPES[dtype])


def tensor(shape, dtype):
    return "tensor<" + "".join(f"{n}x" for n in shape) + f"{dtype}>"


def lowered(text):
    with context() as ctx, ir.Location.unknown(ctx):
        return lower(ir.Module.parse(text))


def kernels(program):
    """The kernel calls of a program, outside loops."""
    return [e for e in program.plan.entries if hasattr(e, "nests")]


BINARY = {
    "arith.addf": np.add, "arith.subf": np.subtract, "arith.mulf": np.multiply, "arith.divf": np.divide,
    "arith.maximumf": np.maximum, "arith.minimumf": np.minimum,
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply,
    "arith.maxsi": np.maximum, "arith.minsi": np.minimum,
    "arith.andi": np.bitwise_and, "arith.ori": np.bitwise_or, "arith.xori": np.bitwise_xor,
}  # fmt: skip
FLOATS, WHOLE = ("f32", "f64", "f16"), ("i32", "i64", "i8", "i1")


@sampled(3)
@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("dtype", FLOATS + WHOLE)
def test_elementwise_ops_of_every_type(op, dtype):
    if op.endswith("f") != (dtype in FLOATS) or (
        dtype == "i1" and op[6:] not in ("andi", "ori", "xori")
    ):
        return
    t = tensor((5, 7), dtype)
    a, b = values(dtype, 5, 7), values(dtype, 5, 7)
    text = f"func.func @main(%a: {t}, %b: {t}) -> {t} {{ %0 = {op} %a, %b : {t} return %0 : {t} }}"
    np.testing.assert_array_equal(run_text(text, a, b)[0], BINARY[op](a, b))


def reduction(dtype, shape, dims, op, start):
    kept = [n for d, n in enumerate(shape) if d not in dims]
    t, r = tensor(shape, dtype), tensor(kept, dtype)
    return f"""func.func @main(%a: {t}) -> {r} {{
      %s = arith.constant {start} : {dtype}
      %e = tensor.empty() : {r}
      %f = linalg.fill ins(%s : {dtype}) outs(%e : {r}) -> {r}
      %0 = linalg.reduce {{ {op} }} ins(%a : {t}) outs(%f : {r}) dimensions = {dims}
      return %0 : {r} }}"""


@sampled(1)
@pytest.mark.parametrize("dims", [[0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]])
@pytest.mark.parametrize("shape", [(4, 5, 33), (1, 5, 1), (3, 1, 64)])
def test_sums_over_any_dims(dims, shape):
    a = values("f32", *shape)
    got = run_text(reduction("f32", shape, dims, "arith.addf", "0.0"), a)[0]
    np.testing.assert_allclose(got, a.sum(axis=tuple(dims)), rtol=1e-5, atol=1e-4)


@sampled(1)
@pytest.mark.parametrize("dtype, op, start, numpy", [
    ("f64", "arith.addf", "0.0", np.sum), ("f32", "arith.maximumf", "0xFF800000", np.max),
    ("f16", "arith.maximumf", "0xFC00", np.max), ("i32", "arith.addi", "0", np.sum),
    ("i64", "arith.minsi", "9223372036854775807", np.min), ("i8", "arith.maxsi", "-128", np.max),
    ("f32", "arith.minimumf", "0x7F800000", np.min),
])  # fmt: skip
@pytest.mark.parametrize("dims", [[0], [1]])
def test_reductions_of_every_type(dtype, op, start, numpy, dims):
    a = values(dtype, 37, 19)
    got = run_text(reduction(dtype, (37, 19), dims, op, start), a)[0]
    np.testing.assert_allclose(got, numpy(a, axis=dims[0]), rtol=1e-6)


def test_not_a_number_goes_through_maximum_and_sum():
    a = values("f32", 6, 40)
    a[2, 3], a[4, 0] = np.nan, np.inf
    for op, start, numpy in (
        ("arith.maximumf", "0xFF800000", np.max),
        ("arith.addf", "0.0", np.sum),
    ):
        got = run_text(reduction("f32", (6, 40), [1], op, start), a)[0]
        np.testing.assert_allclose(got, numpy(a, axis=1), rtol=1e-5, atol=1e-4, equal_nan=True)


# name -> (loops, maps, shapes of a, b and result, einsum)
PRODUCTS = {
    "plain": ("m n k", "m, k|k, n|m, n", (33, 65), (65, 17), (33, 17), "mk,kn->mn"),
    "a_transposed": ("m n k", "k, m|k, n|m, n", (65, 33), (65, 17), (33, 17), "km,kn->mn"),
    "b_transposed": ("m n k", "m, k|n, k|m, n", (33, 65), (17, 65), (33, 17), "mk,nk->mn"),
    "both": ("m n k", "k, m|n, k|m, n", (65, 33), (17, 65), (33, 17), "km,nk->mn"),
    "out_transposed": ("m n k", "m, k|k, n|n, m", (33, 65), (65, 17), (17, 33), "mk,kn->nm"),
    "batch": ("b m n k", "b, m, k|b, k, n|b, m, n", (3, 9, 8), (3, 8, 10), (3, 9, 10), "bmk,bkn->bmn"),
    "rows_of_two": ("b m n k", "b, m, k|k, n|b, m, n", (3, 9, 8), (8, 10), (3, 9, 10), "bmk,kn->bmn"),
    "two_depths": ("m n j k", "m, j, k|j, k, n|m, n", (9, 4, 8), (4, 8, 10), (9, 10), "mjk,jkn->mn"),
    "depths_apart": ("m n j k", "j, m, k|j, k, n|m, n", (4, 9, 8), (4, 8, 10), (9, 10), "jmk,jkn->mn"),
    "row": ("m n k", "m, k|k, n|m, n", (1, 65), (65, 170), (1, 170), "mk,kn->mn"),
    "column": ("m n k", "m, k|k, n|m, n", (33, 65), (65, 1), (33, 1), "mk,kn->mn"),
    "vector": ("m k", "m, k|k|m", (33, 65), (65,), (33,), "mk,k->m"),
    "outer": ("m n k", "m, k|k, n|m, n", (33, 1), (1, 17), (33, 17), "mk,kn->mn"),
    "heads": ("b h m n k", "b, m, h, k|b, n, h, k|b, h, m, n", (2, 9, 3, 8), (2, 7, 3, 8), (2, 3, 9, 7),
              "bmhk,bnhk->bhmn"),
}  # fmt: skip


def product(loops, maps, a, b, c, dtype, start="0.0"):
    dims = loops.split()
    kinds = ", ".join(f'"{"reduction" if d in "jk" else "parallel"}"' for d in dims)
    access = ", ".join(f"affine_map<({', '.join(dims)}) -> ({m})>" for m in maps.split("|"))
    mul, add = ("arith.mulf", "arith.addf") if dtype[0] == "f" else ("arith.muli", "arith.addi")
    t, u, v = (tensor(s, dtype) for s in (a, b, c))
    return f"""func.func @main(%a: {t}, %b: {u}) -> {v} {{
      %s = arith.constant {start} : {dtype}
      %e = tensor.empty() : {v}
      %f = linalg.fill ins(%s : {dtype}) outs(%e : {v}) -> {v}
      %0 = linalg.generic {{indexing_maps = [{access}], iterator_types = [{kinds}]}}
        ins(%a, %b : {t}, {u}) outs(%f : {v}) {{
      ^bb0(%x: {dtype}, %y: {dtype}, %z: {dtype}):
        %p = {mul} %x, %y : {dtype}
        %q = {add} %z, %p : {dtype}
        linalg.yield %q : {dtype} }} -> {v}
      return %0 : {v} }}"""


@sampled(3)
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32"])
def test_products_in_every_orientation(name, dtype):
    *shape, einsum = PRODUCTS[name]
    a, b = values(dtype, *shape[2]), values(dtype, *shape[3])
    got = run_text(product(*shape, dtype, "0" if dtype == "i32" else "0.0"), a, b)[0]
    want = np.einsum(einsum, a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-2 if dtype == "f32" else 1e-9)


def test_a_product_that_starts_from_something_adds_to_it():
    a, b = values("f32", 40, 30), values("f32", 30, 20)
    *shape, _ = ("m n k", "m, k|k, n|m, n", (40, 30), (30, 20), (40, 20), "")
    got = run_text(product(*shape, "f32", "2.5"), a, b)[0]
    np.testing.assert_allclose(got, a @ b + 2.5, rtol=1e-4, atol=1e-2)


SOFTMAX = """func.func @main(%a: tensor<64x8x96xf32>) -> tensor<64x8x96xf32> {
  %e = tensor.empty() : tensor<64x8x96xf32>
  %0 = linalg.softmax dimension(2) ins(%a : tensor<64x8x96xf32>) outs(%e : tensor<64x8x96xf32>) -> tensor<64x8x96xf32>
  return %0 : tensor<64x8x96xf32>
}"""


def test_softmax_is_one_kernel_and_needs_no_memory_but_two_numbers_a_row():
    a = values("f32", 64, 8, 96)
    e = np.exp(a - a.max(2, keepdims=True))
    np.testing.assert_allclose(run_text(SOFTMAX, a)[0], e / e.sum(2, keepdims=True), rtol=1e-4)
    program = lowered(SOFTMAX)
    assert len(kernels(program)) == 1
    assert program.plan.arena_bytes == 2 * 64 * 8 * 4


def test_a_transposed_operand_is_read_in_place():
    text = """func.func @main(%a: tensor<40x30xf32>, %b: tensor<50x30xf32>) -> tensor<40x50xf32> {
      %e = tensor.empty() : tensor<30x50xf32>
      %t = linalg.transpose ins(%b : tensor<50x30xf32>) outs(%e : tensor<30x50xf32>) permutation = [1, 0]
      %z = arith.constant 0.0 : f32
      %o = tensor.empty() : tensor<40x50xf32>
      %f = linalg.fill ins(%z : f32) outs(%o : tensor<40x50xf32>) -> tensor<40x50xf32>
      %0 = linalg.matmul ins(%a, %t : tensor<40x30xf32>, tensor<30x50xf32>)
        outs(%f : tensor<40x50xf32>) -> tensor<40x50xf32>
      return %0 : tensor<40x50xf32> }"""
    a, b = values("f32", 40, 30), values("f32", 50, 30)
    np.testing.assert_allclose(run_text(text, a, b)[0], a @ b.T, rtol=1e-4, atol=1e-3)
    program = lowered(text)
    assert len(kernels(program)) == 1 and program.plan.arena_bytes == 0


def test_inputs_are_not_written_and_may_be_results():
    text = """func.func @main(%a: tensor<6xf32>) -> (tensor<6xf32>, tensor<6xf32>, tensor<6xf32>) {
      %c1 = arith.constant 1 : index
      %x = arith.constant 9.0 : f32
      %0 = tensor.insert %x into %a[%c1] : tensor<6xf32>
      %1 = arith.addf %a, %0 : tensor<6xf32>
      return %0, %a, %1 : tensor<6xf32>, tensor<6xf32>, tensor<6xf32> }"""
    a = np.arange(6, dtype=np.float32)
    first, second, third = run_text(text, a)
    want = a.copy()
    want[1] = 9
    np.testing.assert_array_equal(first, want)
    np.testing.assert_array_equal(second, np.arange(6))
    np.testing.assert_array_equal(third, want + np.arange(6))


def test_loops_carry_several_values_that_change_places():
    text = """func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>, %n: tensor<i64>) -> (tensor<4xf32>, tensor<4xf32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %k = tensor.extract %n[] : tensor<i64>
      %m = arith.index_cast %k : i64 to index
      %r:2 = scf.for %i = %c0 to %m step %c1 iter_args(%x = %a, %y = %b) -> (tensor<4xf32>, tensor<4xf32>) {
        %s = arith.addf %x, %y : tensor<4xf32>
        scf.yield %y, %s : tensor<4xf32>, tensor<4xf32>
      }
      return %r#0, %r#1 : tensor<4xf32>, tensor<4xf32> }"""
    a, b = values("f32", 4), values("f32", 4)
    for n in (0, 1, 2, 7):
        x, y = a, b
        for _ in range(n):
            x, y = y, x + y
        got = run_text(text, a, b, np.array(n))
        np.testing.assert_allclose(got[0], x, rtol=1e-5)
        np.testing.assert_allclose(got[1], y, rtol=1e-5)


def test_a_loop_reads_what_it_starts_from_and_not_what_it_carries():
    """The carried product has a buffer of its own, which begins empty."""
    text = """func.func @main(%a: tensor<4x4xf64>) -> (tensor<4x4xf64>, tensor<f64>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c2 = arith.constant 2 : index
      %z = arith.constant dense<0.0> : tensor<4x4xf64>
      %n = arith.constant dense<0.0> : tensor<f64>
      %s = linalg.matmul ins(%a, %a : tensor<4x4xf64>, tensor<4x4xf64>) outs(%z : tensor<4x4xf64>) -> tensor<4x4xf64>
      %t = linalg.reduce { arith.addf } ins(%a : tensor<4x4xf64>) outs(%n : tensor<f64>) dimensions = [0, 1]
      %r:2 = scf.for %i = %c0 to %c2 step %c1 iter_args(%x = %s, %y = %t) -> (tensor<4x4xf64>, tensor<f64>) {
        %p = linalg.matmul ins(%s, %s : tensor<4x4xf64>, tensor<4x4xf64>) outs(%z : tensor<4x4xf64>) -> tensor<4x4xf64>
        %q = linalg.matmul ins(%p, %a : tensor<4x4xf64>, tensor<4x4xf64>) outs(%z : tensor<4x4xf64>) -> tensor<4x4xf64>
        %u = linalg.reduce { arith.addf } ins(%p : tensor<4x4xf64>) outs(%n : tensor<f64>) dimensions = [0, 1]
        %v = arith.mulf %u, %t : tensor<f64>
        scf.yield %q, %v : tensor<4x4xf64>, tensor<f64>
      }
      return %r#0, %r#1 : tensor<4x4xf64>, tensor<f64> }"""
    a = values("f64", 4, 4)
    p = a @ a @ a @ a
    got = run_text(text, a)
    np.testing.assert_allclose(got[0], p @ a)
    np.testing.assert_allclose(got[1], p.sum() * a.sum())


def test_while_and_if_on_values_known_at_run_time():
    text = """func.func @main(%a: tensor<8xf32>, %limit: tensor<f32>) -> (tensor<8xf32>, tensor<i32>) {
      %c0 = arith.constant 0 : i32
      %c1 = arith.constant 1 : i32
      %i0 = arith.constant 0 : index
      %two = arith.constant dense<2.0> : tensor<8xf32>
      %r:2 = scf.while (%x = %a, %n = %c0) : (tensor<8xf32>, i32) -> (tensor<8xf32>, i32) {
        %l = tensor.extract %limit[] : tensor<f32>
        %v = tensor.extract %x[%i0] : tensor<8xf32>
        %c = arith.cmpf olt, %v, %l : f32
        scf.condition(%c) %x, %n : tensor<8xf32>, i32
      } do {
      ^bb0(%x: tensor<8xf32>, %n: i32):
        %d = arith.mulf %x, %two : tensor<8xf32>
        %m = arith.addi %n, %c1 : i32
        scf.yield %d, %m : tensor<8xf32>, i32
      }
      %odd = arith.andi %r#1, %c1 : i32
      %is = arith.cmpi eq, %odd, %c1 : i32
      %y = scf.if %is -> tensor<8xf32> {
        %z = arith.addf %r#0, %two : tensor<8xf32>
        scf.yield %z : tensor<8xf32>
      } else {
        scf.yield %r#0 : tensor<8xf32>
      }
      %t = tensor.from_elements %r#1 : tensor<i32>
      return %y, %t : tensor<8xf32>, tensor<i32> }"""
    a = np.linspace(1, 2, 8, dtype=np.float32)
    for limit in (0.5, 5.0, 9.0, 100.0):
        x, n = a, 0
        while x[0] < limit:
            x, n = x * 2, n + 1
        got = run_text(text, a, np.array(limit, np.float32))
        np.testing.assert_allclose(got[0], x + 2 if n % 2 else x)
        assert got[1] == n


def test_slices_in_a_loop_update_the_whole_in_place():
    text = """func.func @main(%a: tensor<64x32xf32>) -> tensor<64x32xf32> {
      %c0 = arith.constant 0 : index
      %c8 = arith.constant 8 : index
      %c64 = arith.constant 64 : index
      %e = tensor.empty() : tensor<64x32xf32>
      %r = scf.for %i = %c0 to %c64 step %c8 iter_args(%x = %e) -> (tensor<64x32xf32>) {
        %s = tensor.extract_slice %a[%i, 0] [8, 32] [1, 1] : tensor<64x32xf32> to tensor<8x32xf32>
        %d = arith.mulf %s, %s : tensor<8x32xf32>
        %y = tensor.insert_slice %d into %x[%i, 0] [8, 32] [1, 1] : tensor<8x32xf32> into tensor<64x32xf32>
        scf.yield %y : tensor<64x32xf32>
      }
      return %r : tensor<64x32xf32> }"""
    a = values("f32", 64, 32)
    np.testing.assert_array_equal(run_text(text, a)[0], a * a)
    assert lowered(text).plan.arena_bytes == 0


def test_constants_pads_concats_gathers_and_reversals():
    text = """func.func @main(%a: tensor<3x4xf32>, %i: tensor<5xi32>) -> (
        tensor<5x7xf32>, tensor<3x8xf32>, tensor<5x4xf32>, tensor<2x2xbf16>, tensor<3xi1>) {
      %z = arith.constant -1.0 : f32
      %p = tensor.pad %a low[1, 2] high[1, 1] { ^bb0(%x: index, %y: index):
        tensor.yield %z : f32 } : tensor<3x4xf32> to tensor<5x7xf32>
      %c = tensor.concat dim(1) %a, %a : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x8xf32>
      %g = tensor.generate { ^bb0(%x: index, %y: index):
        %r = tensor.extract %i[%x] : tensor<5xi32>
        %k = arith.index_cast %r : i32 to index
        %v = tensor.extract %a[%k, %y] : tensor<3x4xf32>
        tensor.yield %v : f32 } : tensor<5x4xf32>
      %h = arith.constant dense<[[1.0, -2.5], [3.140625, 0.0]]> : tensor<2x2xbf16>
      %m = arith.constant dense<[true, false, true]> : tensor<3xi1>
      return %p, %c, %g, %h, %m : tensor<5x7xf32>, tensor<3x8xf32>, tensor<5x4xf32>, tensor<2x2xbf16>, tensor<3xi1> }"""
    a, i = values("f32", 3, 4), np.array([2, 0, 1, 1, 2], np.int32)
    p, c, g, h, m = run_text(text, a, i)
    np.testing.assert_array_equal(p, np.pad(a, ((1, 1), (2, 1)), constant_values=-1))
    np.testing.assert_array_equal(c, np.concatenate([a, a], 1))
    np.testing.assert_array_equal(g, a[i])
    np.testing.assert_array_equal(
        (h.astype(np.uint32) << 16).view(np.float32), [[1, -2.5], [3.140625, 0]]
    )
    np.testing.assert_array_equal(m, [True, False, True])


def bf16(x):
    """x rounded to the nearest bf16, ties to even, as bits."""
    word = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (word + 0x7FFF + (word >> 16 & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)


def test_what_a_sum_over_nothing_starts_from_is_gathered_from():
    text = """func.func @main(%a: tensor<0x3xi32>) -> tensor<3xi32> {
  %c = arith.constant 7 : i32
  %e = tensor.empty() : tensor<3xi32>
  %f = linalg.fill ins(%c : i32) outs(%e : tensor<3xi32>) -> tensor<3xi32>
  %g = linalg.generic {indexing_maps = [affine_map<(i, j) -> (j, i)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]} ins(%a : tensor<0x3xi32>) outs(%f : tensor<3xi32>) {
  ^bb0(%x: i32, %o: i32):
    %s = arith.addi %x, %o : i32
    linalg.yield %s : i32
  } -> tensor<3xi32>
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
      iterator_types = ["parallel"]} ins(%g : tensor<3xi32>) outs(%e : tensor<3xi32>) {
  ^bb0(%x: i32, %o: i32):
    %i = linalg.index 0 : index
    %v = tensor.extract %g[%i] : tensor<3xi32>
    %s = arith.addi %x, %v : i32
    linalg.yield %s : i32
  } -> tensor<3xi32>
  return %r : tensor<3xi32>
}"""
    (found,) = run_text(text, np.zeros((0, 3), np.int32))
    np.testing.assert_array_equal(found, [14, 14, 14])


def test_bf16_rounds_every_op_to_nearest_even():
    t = "tensor<65536xbf16>"
    text = f"""func.func @main(%a: {t}, %b: {t}) -> ({t}, {t}) {{
      %0 = arith.mulf %a, %b : {t}
      %1 = arith.addf %0, %b : {t}
      return %0, %1 : {t}, {t} }}"""
    a = np.arange(65536, dtype=np.uint16)
    b = RNG.permutation(65536).astype(np.uint16)
    wide = [(x.astype(np.uint32) << 16).view(np.float32) for x in (a, b)]
    with np.errstate(all="ignore"):
        product = bf16(wide[0] * wide[1])
        total = bf16((product.astype(np.uint32) << 16).view(np.float32) + wide[1])
    for got, want in zip(run_text(text, a, b), (product, total)):
        numbers = [(x.astype(np.uint32) << 16).view(np.float32) for x in (got, want)]
        same = (got == want) | (np.isnan(numbers[0]) & np.isnan(numbers[1]))
        assert same.all()


@pytest.mark.parametrize("text, message", [
    ("func.func @f() { return }", "no function @main"),
    ("func.func @main(%a: tensor<?xf32>) -> tensor<?xf32> { return %a : tensor<?xf32> }", "static shape"),
    ("func.func @main(%a: f32) -> f32 { return %a : f32 }", "arg0 is f32: only tensors"),
    ("func.func @main(%a: tensor<4xi32>) -> tensor<4xi32> {\n %0 = math.ipowi %a, %a : tensor<4xi32>\n"
     "return %0 : tensor<4xi32> }", "-:3:.*math.ipowi: no lowering"),
    ("func.func private @g(tensor<4xf32>) -> tensor<4xf32>\n func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
     "%0 = func.call @g(%a) : (tensor<4xf32>) -> tensor<4xf32>\n return %0 : tensor<4xf32> }", "-:4:.*call of @g"),
])  # fmt: skip
def test_what_cannot_be_lowered_is_an_error_with_its_place(text, message):
    with pytest.raises(CompileError, match=message):
        compile_text(text)


@sampled(4)
@pytest.mark.parametrize("shape", [(64, 96), (40, 72), (33, 50), (8, 8), (3, 100)])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i8", "i1"])
def test_transposed_operands_of_every_size(shape, dtype):
    m, n = shape
    op = "arith.xori" if dtype == "i1" else "arith.addf" if dtype[0] == "f" else "arith.addi"
    t, u = tensor((2, m, n), dtype), tensor((2, n, m), dtype)
    text = f"""func.func @main(%a: {t}, %b: {u}) -> ({u}, {t}) {{
      %e = tensor.empty() : {u}
      %0 = linalg.transpose ins(%a : {t}) outs(%e : {u}) permutation = [0, 2, 1]
      %f = tensor.empty() : {t}
      %1 = linalg.transpose ins(%b : {u}) outs(%f : {t}) permutation = [0, 2, 1]
      %2 = {op} %a, %1 : {t}
      return %0, %2 : {u}, {t} }}"""
    a, b = values(dtype, 2, m, n), values(dtype, 2, n, m)
    first, second = run_text(text, a, b)
    np.testing.assert_array_equal(first, a.swapaxes(1, 2))
    combine = np.bitwise_xor if dtype == "i1" else np.add
    np.testing.assert_array_equal(second, combine(a, b.swapaxes(1, 2)))


def test_a_product_writes_the_transpose_that_alone_reads_it():
    text = """func.func @main(%a: tensor<2x3x40x30xf32>, %b: tensor<2x3x30x20xf32>) -> tensor<2x40x60xf32> {
      %z = arith.constant 0.0 : f32
      %o = tensor.empty() : tensor<2x3x40x20xf32>
      %f = linalg.fill ins(%z : f32) outs(%o : tensor<2x3x40x20xf32>) -> tensor<2x3x40x20xf32>
      %0 = linalg.generic {indexing_maps = [
          affine_map<(b, h, m, n, k) -> (b, h, m, k)>, affine_map<(b, h, m, n, k) -> (b, h, k, n)>,
          affine_map<(b, h, m, n, k) -> (b, h, m, n)>],
          iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]}
        ins(%a, %b : tensor<2x3x40x30xf32>, tensor<2x3x30x20xf32>) outs(%f : tensor<2x3x40x20xf32>) {
      ^bb0(%x: f32, %y: f32, %w: f32):
        %p = arith.mulf %x, %y : f32
        %q = arith.addf %w, %p : f32
        linalg.yield %q : f32 } -> tensor<2x3x40x20xf32>
      %e = tensor.empty() : tensor<2x40x3x20xf32>
      %t = linalg.transpose ins(%0 : tensor<2x3x40x20xf32>) outs(%e : tensor<2x40x3x20xf32>)
        permutation = [0, 2, 1, 3]
      %c = tensor.collapse_shape %t [[0], [1], [2, 3]] : tensor<2x40x3x20xf32> into tensor<2x40x60xf32>
      return %c : tensor<2x40x60xf32> }"""
    a, b = values("f32", 2, 3, 40, 30), values("f32", 2, 3, 30, 20)
    want = (a @ b).swapaxes(1, 2).reshape(2, 40, 60)
    np.testing.assert_allclose(run_text(text, a, b)[0], want, rtol=1e-4, atol=1e-2)
    program = lowered(text)
    assert len(kernels(program)) == 1 and program.plan.arena_bytes == 0
