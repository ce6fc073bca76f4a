"""Small programs by hand, each run on a mesh and compared with NumPy: what once went wrong, or easily could."""

import re

import numpy as np
import pytest

import meshweave
from meshweave.api import GLOBAL_PASSES
from meshweave.bindings import context
from meshweave.errors import MeshweaveError
from meshweave.frontends import load_module
from meshweave.pipeline import run_pipeline

GENERATOR = np.random.default_rng(0)


def run(mesh: str, text: str, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
    """The results of `text` on `mesh` ("x=2")."""
    with meshweave.compile(on(mesh, text), timeout=30) as program:
        return program(*inputs)


def on(mesh: str, text: str) -> str:
    """`text` as a module with this mesh; `{[x, _]}` in it is short for `{dist.layout = #dist.layout<"[x, _]">}`."""
    text = re.sub(r"\{(\[[^\]{}]*\][^{}]*)\}", r'{dist.layout = #dist.layout<"\1">}', text)
    return f'"dist.mesh"() {{sym_name = "mesh", axes = "{mesh}"}} : () -> ()\n{text}'


def partitioned(mesh: str, text: str) -> str:
    """The local program, with each collective that the layouts ask for."""
    passes = [name for name in GLOBAL_PASSES if name != "dist-fuse-collectives"]
    ctx = context(unregistered=True)
    with ctx:
        module = load_module(on(mesh, text), ctx)
        run_pipeline(module, ",".join(passes))
        return str(module)


def whole(*shape: int, dtype: str = "f4") -> np.ndarray:
    """Small whole numbers."""
    return GENERATOR.integers(-3, 4, shape).astype(dtype)


def equal(result: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_array_equal(result, wanted)


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


def test_a_body_that_reads_a_tensor_inside_a_branch() -> None:
    text = partitioned(
        "x=2",
        """func.func @main(%a: tensor<4xf32> {[x]}, %t: tensor<4xf32> {[x]}) -> (tensor<4xf32> {[x]}) {
             %e = tensor.empty() : tensor<4xf32>
             %three = arith.constant 3 : index
             %zero = arith.constant 0.0 : f32
             %r = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
                                  iterator_types = ["parallel"]}
               ins(%a : tensor<4xf32>) outs(%e : tensor<4xf32>) {
               ^bb0(%i: f32, %o: f32):
                 %c = arith.cmpf ogt, %i, %zero : f32
                 %d = linalg.index 0 : index
                 %v = scf.if %c -> (f32) {
                   %k = arith.subi %three, %d : index
                   %u = tensor.extract %t[%k] : tensor<4xf32>
                   scf.yield %u : f32
                 } else { scf.yield %i : f32 }
                 linalg.yield %v : f32
             } -> tensor<4xf32>
             return %r : tensor<4xf32> }""",
    )
    assert "dist.all_gather" in text  # %t is read anywhere: it must be whole


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


def test_generate_reads_a_cut_tensor() -> None:
    x = whole(4)
    (y,) = run(
        "x=2",
        """func.func @main(%a: tensor<4xf32> {[x]}) -> (tensor<4xf32> {[x]}) {
             %three = arith.constant 3 : index
             %r = tensor.generate {
               ^bb0(%i: index):
                 %k = arith.subi %three, %i : index
                 %u = tensor.extract %a[%k] : tensor<4xf32>
                 tensor.yield %u : f32
             } : tensor<4xf32>
             return %r : tensor<4xf32> }""",
        x,
    )
    equal(y, x[::-1])


def test_control_flow_between_blocks_is_refused() -> None:
    with pytest.raises(MeshweaveError, match="one block"):
        run(
            "x=2",
            """func.func @main(%a: tensor<4xf32> {[x]}) -> tensor<4xf32> {
                 cf.br ^bb1(%a : tensor<4xf32>)
               ^bb1(%b: tensor<4xf32>):
                 return %b : tensor<4xf32> }""",
            whole(4),
        )


MANUAL = """
  func.func @main(%a: tensor<4xf32> {[x]}, %b: tensor<4xf32> {[_]}) -> tensor<4xf32> {
    %two = arith.constant dense<2.0> : tensor<2xf32>
    %r = scf.execute_region -> tensor<4xf32> no_inline {
      %l = "dist.to_local"(%a) {layout = #dist.layout<"[x]">} : (tensor<4xf32>) -> tensor<2xf32>
      BODY
      %g = "dist.to_global"(%t) {layout = #dist.layout<"[x]">} : (tensor<2xf32>) -> tensor<4xf32>
      scf.yield %g : tensor<4xf32>
    } {dist.manual}
    %s = arith.addf %r, %r : tensor<4xf32>
    return %s : tensor<4xf32> }"""


def test_a_manual_body_that_reads_from_outside_is_refused() -> None:
    body = """%s = tensor.extract_slice %b[0] [2] [1] : tensor<4xf32> to tensor<2xf32>
              %t = arith.addf %l, %s : tensor<2xf32>"""
    with pytest.raises(MeshweaveError, match="outside"):
        run("x=2", MANUAL.replace("BODY", body), whole(4), whole(4))


def test_a_manual_body_that_gives_a_constant() -> None:
    (y,) = run("x=2", MANUAL.replace("BODY", "").replace("%t)", "%two)"), whole(4), whole(4))
    equal(y, np.full(4, 4, "f4"))


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


BOTH = """
  func.func @main(%a: tensor<5xf32>, %b: tensor<2xf32>) -> (tensor<5xf32>, tensor<5xf32>) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c3 = arith.constant 3 : index
    %old = arith.addf %a, %a : tensor<5xf32>
    UPDATE
    return %new, %old : tensor<5xf32>, tensor<5xf32> }"""
UPDATES = {
    "generic": """%new = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
                                        iterator_types = ["parallel"]}
                    ins(%a : tensor<5xf32>) outs(%old : tensor<5xf32>) {
                    ^bb0(%x: f32, %o: f32):
                      %s = arith.addf %x, %o : f32
                      linalg.yield %s : f32 } -> tensor<5xf32>""",
    "insert": "%new = tensor.insert_slice %b into %old[1][2][1] : tensor<2xf32> into tensor<5xf32>",
    "loop": """%new = scf.for %i = %c0 to %c3 step %c1 iter_args(%t = %old) -> tensor<5xf32> {
                 %u = tensor.insert_slice %b into %t[%i][2][1] : tensor<2xf32> into tensor<5xf32>
                 scf.yield %u : tensor<5xf32> }""",
}


@pytest.mark.parametrize("update", sorted(UPDATES))
def test_a_tensor_and_its_update_are_both_results(update: str) -> None:
    a, b = whole(5), whole(2)
    new, old = run("x=1", BOTH.replace("UPDATE", UPDATES[update]), a, b)
    wanted = 2 * a
    equal(old, wanted)
    if update == "generic":
        wanted = 3 * a
    elif update == "insert":
        wanted[1:3] = b
    else:
        wanted[:4] = b[[0, 0, 0, 1]]
    equal(new, wanted)


def test_a_branch_gives_a_slice() -> None:
    a = whole(3, 4)
    for flag in (True, False):
        (y,) = run(
            "x=2",
            """func.func @main(%a: tensor<3x4xf32> {[_, x]}, %p: tensor<i1>) -> tensor<3x2xf32> {
                 %c = tensor.extract %p[] : tensor<i1>
                 %v = arith.addf %a, %a : tensor<3x4xf32>
                 %i = scf.if %c -> (tensor<3x2xf32>) {
                   %s = tensor.extract_slice %v[0, 1] [3, 2] [1, 1] : tensor<3x4xf32> to tensor<3x2xf32>
                   scf.yield %s : tensor<3x2xf32>
                 } else {
                   %z = arith.constant dense<1.0> : tensor<3x2xf32>
                   scf.yield %z : tensor<3x2xf32>
                 }
                 return %i : tensor<3x2xf32> }""",
            a,
            np.array(flag),
        )
        equal(y, 2 * a[:, 1:3] if flag else np.ones((3, 2), "f4"))


def test_a_while_loop_keeps_one_layout() -> None:
    a, b = whole(4), whole(4)
    (y,) = run(
        "x=2",
        """func.func @main(%a: tensor<4xf32> {[_]}, %b: tensor<4xf32>) -> (tensor<4xf32> {[x]}) {
             %zero = arith.constant 0 : i32
             %one = arith.constant 1 : i32
             %r:2 = scf.while (%n = %zero, %t = %b) : (i32, tensor<4xf32>) -> (i32, tensor<4xf32>) {
               %more = arith.cmpi slt, %n, %one : i32
               scf.condition(%more) %n, %t : i32, tensor<4xf32>
             } do {
             ^bb0(%n: i32, %t: tensor<4xf32>):
               %next = arith.addi %n, %one : i32
               %v = arith.mulf %a, %a : tensor<4xf32>
               scf.yield %next, %v : i32, tensor<4xf32>
             }
             return %r#1 : tensor<4xf32> }""",
        a,
        b,
    )
    equal(y, a * a)


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
