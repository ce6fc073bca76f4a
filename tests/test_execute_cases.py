"""Small programs by hand, each run on a mesh and compared with NumPy: what once went wrong, or easily could."""

import numpy as np
import pytest
from executed import equal, partitioned, run, whole


def test_a_constant_that_is_no_splat_is_cut() -> None:
    x = whole(4)
    (y,) = run(
        "x=2",
        """func.func @main(%a: tensor<4xf32> {[x]}) -> (tensor<4xf32> {[x]}) {
             %c = arith.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
             %r = arith.addf %a, %c : tensor<4xf32>
             return %r : tensor<4xf32> }""",
        x,
    )
    equal(y, x + np.arange(1, 5, dtype="f4"))


SOFTMAX = """
  func.func @main(%a: tensor<3x3xf32> {[LAYOUT]}) -> (tensor<3x3xf32>, tensor<3x3xf32>) {
    %e = tensor.empty() : tensor<3x3xf32>
    %r = linalg.softmax dimension(0) ins(%a : tensor<3x3xf32>) outs(%e : tensor<3x3xf32>) -> tensor<3x3xf32>
    %s = linalg.softmax dimension(1) ins(%a : tensor<3x3xf32>) outs(%e : tensor<3x3xf32>) -> tensor<3x3xf32>
    return %r, %s : tensor<3x3xf32>, tensor<3x3xf32> }"""


@pytest.mark.parametrize("layout", ["x, _", "_, x"])
def test_softmax_along_either_dim(layout: str) -> None:
    x = whole(3, 3)
    e = np.exp(x)
    results = run("x=2", SOFTMAX.replace("LAYOUT", layout), x)
    for dim, result in enumerate(results):
        np.testing.assert_allclose(result, e / e.sum(dim, keepdims=True), rtol=1e-5)


def test_a_splat_beside_a_padded_operand() -> None:
    b = whole(4, 7)
    (y,) = run(
        "x=2",
        """func.func @main(%b: tensor<4x7xf32> {[_, x]}) -> tensor<4x3xf32> {
             %one = arith.constant dense<2.0> : tensor<7x3xf32>
             %z = arith.constant dense<0.0> : tensor<4x3xf32>
             %r = linalg.matmul ins(%b, %one : tensor<4x7xf32>, tensor<7x3xf32>)
                                outs(%z : tensor<4x3xf32>) -> tensor<4x3xf32>
             return %r : tensor<4x3xf32> }""",
        b,
    )
    equal(y, b @ np.full((7, 3), 2, "f4"))


def test_a_reduction_of_a_function_of_its_operand_keeps_padding_out() -> None:
    x = whole(7)
    (y,) = run(
        "x=2",
        """func.func @main(%a: tensor<7xf32> {[x]}) -> tensor<f32> {
             %z = arith.constant dense<0.0> : tensor<f32>
             %one = arith.constant 1.0 : f32
             %r = linalg.reduce ins(%a : tensor<7xf32>) outs(%z : tensor<f32>) dimensions = [0]
               (%i: f32, %acc: f32) {
                 %t = arith.addf %i, %one : f32
                 %s = arith.addf %acc, %t : f32
                 linalg.yield %s : f32 }
             return %r : tensor<f32> }""",
        x,
    )
    equal(y, x.sum() + 7)


def test_a_convolution_over_padded_channels() -> None:
    x, w = whole(2, 4, 4, 3), whole(2, 2, 3, 5)
    (y,) = run(
        "x=2",
        """func.func @main(%a: tensor<2x4x4x3xf32> {[_, _, _, x]}, %w: tensor<2x2x3x5xf32> {[_, _, x, _]})
               -> tensor<2x3x3x5xf32> {
             %z = arith.constant dense<0.0> : tensor<2x3x3x5xf32>
             %r = linalg.conv_2d_nhwc_hwcf ins(%a, %w : tensor<2x4x4x3xf32>, tensor<2x2x3x5xf32>)
                    outs(%z : tensor<2x3x3x5xf32>) -> tensor<2x3x3x5xf32>
             return %r : tensor<2x3x3x5xf32> }""",
        x,
        w,
    )
    wanted = sum(
        np.einsum("nhwc,cf->nhwf", x[:, i : i + 3, j : j + 3], w[i, j])
        for i in range(2)
        for j in range(2)
    )
    equal(y, wanted)


def test_a_padding_value_that_is_the_index() -> None:
    text = partitioned(
        "x=2",
        """func.func @main(%a: tensor<4x3xf32> {[x, _]}) -> tensor<4x5xf32> {
             %r = tensor.pad %a low[0, 1] high[0, 1] {
               ^bb0(%i: index, %j: index):
                 %k = arith.index_cast %i : index to i32
                 %f = arith.sitofp %k : i32 to f32
                 tensor.yield %f : f32
             } : tensor<4x3xf32> to tensor<4x5xf32>
             return %r : tensor<4x5xf32> }""",
    )
    assert "dist.all_gather" in text  # the index in the body counts whole rows


def test_a_slice_that_drops_a_cut_dim_of_extent_one() -> None:
    x = whole(4, 1)
    (y,) = run(
        "x=3",
        """func.func @main(%a: tensor<4x1xf32> {[_, x]}) -> (tensor<4xf32> {[x]}) {
             %r = tensor.extract_slice %a[0, 0] [4, 1] [1, 1] : tensor<4x1xf32> to tensor<4xf32>
             return %r : tensor<4xf32> }""",
        x,
    )
    equal(y, x[:, 0])


SUMS = """
  func.func @main(%x: tensor<4x6xf32> {[_, tp]}, %w: tensor<6x3xf32> {[tp, _]}, %y: tensor<4x8xf32> {[_, tp]},
                  %v: tensor<8x3xf32> {[tp, _]}, %b: tensor<4x3xf32>) -> tensor<4x3xf32> {
    %z = arith.constant dense<0.0> : tensor<4x3xf32>
    %p = linalg.matmul ins(%x, %w : tensor<4x6xf32>, tensor<6x3xf32>) outs(%z : tensor<4x3xf32>) -> tensor<4x3xf32>
    %q = linalg.matmul ins(%y, %v : tensor<4x8xf32>, tensor<8x3xf32>) outs(%z : tensor<4x3xf32>) -> tensor<4x3xf32>
    BODY
    return %r : tensor<4x3xf32> }"""


BODIES = {
    "sum": ("%r = arith.addf %p, %q : tensor<4x3xf32>", 1, lambda p, q, b: p + q),
    "sum of a scaled and a shifted one": (
        """%s = arith.mulf %p, %b : tensor<4x3xf32>
           %t = arith.subf %b, %q : tensor<4x3xf32>
           %r = arith.addf %s, %t : tensor<4x3xf32>""",
        1,
        lambda p, q, b: p * b + (b - q),
    ),
    "product": ("%r = arith.mulf %p, %q : tensor<4x3xf32>", 2, lambda p, q, b: p * q),
    "larger": ("%r = arith.maximumf %p, %q : tensor<4x3xf32>", 2, lambda p, q, b: np.maximum(p, q)),
    "one of them read twice": (
        """%s = arith.addf %p, %q : tensor<4x3xf32>
           %r = arith.mulf %s, %p : tensor<4x3xf32>""",
        2,
        lambda p, q, b: (p + q) * p,
    ),
    "shifted by a number": (
        """%one = arith.constant dense<1.0> : tensor<4x3xf32>
           %s = arith.addf %p, %one : tensor<4x3xf32>
           %r = arith.addf %s, %q : tensor<4x3xf32>""",
        1,
        lambda p, q, b: p + 1 + q,
    ),
}


@pytest.mark.parametrize("body", list(BODIES))
def test_sums_over_ranks_wait_for_each_other(body: str) -> None:
    text, count, fn = BODIES[body]
    x, w, y, v, b = whole(4, 6), whole(6, 3), whole(4, 8), whole(8, 3), whole(4, 3)
    text = SUMS.replace("BODY", text)
    assert partitioned("tp=2", text).count("dist.all_reduce") == count
    (r,) = run("tp=2", text, x, w, y, v, b)
    equal(r, fn(x @ w, y @ v, b))


def test_padding_is_not_divided_by() -> None:
    """What stands in padding here makes the divisor 0."""
    a, b = whole(7, dtype="i4"), whole(7, dtype="i4")
    (y,) = run(
        "x=2",
        """func.func @main(%a: tensor<7xi32> {[x]}, %b: tensor<7xi32> {[x]}) -> (tensor<7xi32> {[x]}) {
             %large = arith.constant dense<2147483647> : tensor<7xi32>
             %d = arith.subi %b, %large : tensor<7xi32>
             %r = arith.divsi %a, %d : tensor<7xi32>
             return %r : tensor<7xi32> }""",
        a,
        b,
    )
    equal(y, np.zeros(7, "i4"))


INDEXED = """
  func.func @main(%a: tensor<4x3xf32> {[x, _]}, %t: tensor<4xf32> {[x]}, %u: tensor<5xf32> {[_]})
      -> (tensor<4x3xf32> {[x, _]}) {
    %e = tensor.empty() : tensor<4x3xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
                         iterator_types = ["parallel", "parallel"]}
      ins(%a : tensor<4x3xf32>) outs(%e : tensor<4x3xf32>) {
      ^bb0(%x: f32, %o: f32):
        %i = linalg.index 0 : index
        BODY
        %s = arith.addf %x, %v : f32
        linalg.yield %s : f32
    } -> tensor<4x3xf32>
    return %r : tensor<4x3xf32> }"""


@pytest.mark.parametrize("read", ["index", "cut tensor", "longer tensor"])
def test_a_loop_index_counts_from_where_the_block_begins(read: str) -> None:
    a, t, u = whole(4, 3), whole(4), whole(5)
    body, wanted = {
        "index": (
            """%k = arith.index_cast %i : index to i32
               %v = arith.sitofp %k : i32 to f32""",
            np.arange(4, dtype="f4"),
        ),
        "cut tensor": ("%v = tensor.extract %t[%i] : tensor<4xf32>", t),
        "longer tensor": ("%v = tensor.extract %u[%i] : tensor<5xf32>", u[:4]),
    }[read]
    (y,) = run("x=2", INDEXED.replace("BODY", body), a, t, u)
    equal(y, a + wanted[:, None])


@pytest.mark.parametrize("layout", ["_, x", "x, _"])
def test_two_accumulators_see_the_whole_row(layout: str) -> None:
    a = whole(3, 7)
    (y,) = run(
        "x=2",
        """func.func @main(%a: tensor<3x7xf32> {[LAYOUT]}) -> tensor<3xi32> {
             %z = arith.constant dense<-9.0> : tensor<3xf32>
             %p = arith.constant dense<0> : tensor<3xi32>
             %r:2 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>,
                                                     affine_map<(i, j) -> (i)>],
                                    iterator_types = ["parallel", "reduction"]}
               ins(%a : tensor<3x7xf32>) outs(%z, %p : tensor<3xf32>, tensor<3xi32>) {
               ^bb0(%x: f32, %o: f32, %q: i32):
                 %j = linalg.index 1 : index
                 %k = arith.index_cast %j : index to i32
                 %c = arith.cmpf ogt, %x, %o : f32
                 %m = arith.select %c, %x, %o : f32
                 %w = arith.select %c, %k, %q : i32
                 linalg.yield %m, %w : f32, i32
             } -> (tensor<3xf32>, tensor<3xi32>)
             return %r#1 : tensor<3xi32> }""".replace("LAYOUT", layout),
        a,
    )
    equal(y, a.argmax(1).astype("i4"))


def test_a_tensor_without_elements() -> None:
    a, b = np.zeros((0, 3), "f4"), whole(2, 3)
    x, y = run(
        "x=2",
        """func.func @main(%a: tensor<0x3xf32> {[x, _]}, %b: tensor<2x3xf32> {[x, _]})
               -> (tensor<0x3xf32>, tensor<2x3xf32>) {
             %s = arith.addf %a, %a : tensor<0x3xf32>
             %r = tensor.concat dim(0) %s, %b : (tensor<0x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
             return %s, %r : tensor<0x3xf32>, tensor<2x3xf32> }""",
        a,
        b,
    )
    assert x.shape == (0, 3)
    equal(y, b)


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_partial_arguments_and_results(kind: str) -> None:
    a = whole(5, 3)
    x, y = run(
        "x=2, y=2",
        """func.func @main(%a: tensor<5x3xf32> {[x, _] +KIND(y)})
               -> (tensor<5x3xf32> {[_, y] +KIND(x)}, tensor<5xf32>) {
             %z = arith.constant dense<1.0> : tensor<5xf32>
             %s = arith.addf %a, %a : tensor<5x3xf32>
             %r = linalg.reduce { arith.addf } ins(%a : tensor<5x3xf32>) outs(%z : tensor<5xf32>) dimensions = [1]
             return %s, %r : tensor<5x3xf32>, tensor<5xf32> }""".replace("KIND", kind),
        a,
    )
    equal(x, 2 * a)
    equal(y, a.sum(1) + 1)


def test_a_reduction_over_nothing_gives_what_it_starts_from() -> None:
    d, m = run(
        "x=2",
        """func.func @main(%a: tensor<0xf32> {[x]}, %b: tensor<2x0xf32> {[x, _]}, %c: tensor<0x3xf32>)
               -> (tensor<f32>, tensor<2x3xf32> {[x, _]}) {
             %i = arith.constant dense<1.0> : tensor<f32>
             %j = arith.constant dense<2.0> : tensor<2x3xf32>
             %d = linalg.dot ins(%a, %a : tensor<0xf32>, tensor<0xf32>) outs(%i : tensor<f32>) -> tensor<f32>
             %m = linalg.matmul ins(%b, %c : tensor<2x0xf32>, tensor<0x3xf32>)
                                outs(%j : tensor<2x3xf32>) -> tensor<2x3xf32>
             return %d, %m : tensor<f32>, tensor<2x3xf32> }""",
        np.zeros(0, "f4"),
        np.zeros((2, 0), "f4"),
        np.zeros((0, 3), "f4"),
    )
    equal(d, np.ones((), "f4"))
    equal(m, np.full((2, 3), 2, "f4"))


@pytest.mark.parametrize("kind", ["maxsi", "minsi", "addi", "muli"])
def test_integer_reductions_over_ranks(kind: str) -> None:
    a = whole(7, 3, dtype="i4")
    (y,) = run(
        "x=2",
        """func.func @main(%a: tensor<7x3xi32> {[x, _]}) -> tensor<3xi32> {
             %z = arith.constant dense<2> : tensor<3xi32>
             %r = linalg.reduce { arith.KIND } ins(%a : tensor<7x3xi32>) outs(%z : tensor<3xi32>) dimensions = [0]
             return %r : tensor<3xi32> }""".replace("KIND", kind),
        a,
    )
    fold = {"maxsi": np.maximum, "minsi": np.minimum, "addi": np.add, "muli": np.multiply}[kind]
    equal(y, fold(fold.reduce(a), np.int32(2)))
