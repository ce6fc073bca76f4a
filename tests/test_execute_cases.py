"""Small programs by hand, each run on a mesh and compared with NumPy: what once went wrong, or easily could."""

import numpy as np
import pytest

import meshweave
from meshweave.errors import MeshweaveError

GENERATOR = np.random.default_rng(0)


def run(mesh: str, text: str, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
    """The results of the functions in `text` on `mesh` ("x=2"); `@` before a quote begins a layout."""
    head = f'"dist.mesh"() {{sym_name = "mesh", axes = "{mesh}"}} : () -> ()\n'
    with meshweave.compile(head + expand(text), timeout=30) as program:
        return program(*inputs)


def expand(text: str) -> str:
    """`{[x, _]}` is short for `{dist.layout = #dist.layout<"[x, _]">}`."""
    for opened, closed, before, after in (("{[", "]}", "{dist.layout = ", "}"),):
        parts = text.split(opened)
        done = [parts[0]]
        for part in parts[1:]:
            layout, _, rest = part.partition("}")
            done.append(f'{before}#dist.layout<"[{layout}">{after}{rest}')
        text = "".join(done)
    return text


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
    x, t = whole(4), whole(4)
    (y,) = run(
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
                 %v = scf.if %c -> (f32) {
                   %d = linalg.index 0 : index
                   %k = arith.subi %three, %d : index
                   %u = tensor.extract %t[%k] : tensor<4xf32>
                   scf.yield %u : f32
                 } else { scf.yield %i : f32 }
                 linalg.yield %v : f32
             } -> tensor<4xf32>
             return %r : tensor<4xf32> }""",
        x,
        t,
    )
    equal(y, np.where(x > 0, t[::-1], x))


def test_a_padding_value_that_is_the_index() -> None:
    x = whole(4, 3)
    (y,) = run(
        "x=2",
        """func.func @main(%a: tensor<4x3xf32> {[x, _]}) -> tensor<4x5xf32> {
             %r = tensor.pad %a low[0, 1] high[0, 1] {
               ^bb0(%i: index, %j: index):
                 %k = arith.index_cast %i : index to i32
                 %f = arith.sitofp %k : i32 to f32
                 tensor.yield %f : f32
             } : tensor<4x3xf32> to tensor<4x5xf32>
             return %r : tensor<4x5xf32> }""",
        x,
    )
    rows = np.arange(4, dtype="f4")[:, None]
    equal(y, np.concatenate([rows, x, rows], 1))


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


def test_a_manual_body_that_reads_from_outside_is_refused() -> None:
    with pytest.raises(MeshweaveError, match="outside"):
        run(
            "x=2",
            """func.func @main(%a: tensor<4xf32> {[x]}, %b: tensor<4xf32> {[_]}) -> tensor<4xf32> {
                 %r = "dist.manual"(%a) ({
                   ^bb0(%l: tensor<2xf32>):
                     %s = tensor.extract_slice %b[0] [2] [1] : tensor<4xf32> to tensor<2xf32>
                     %t = arith.addf %l, %s : tensor<2xf32>
                     "dist.return"(%t) : (tensor<2xf32>) -> ()
                 }) {in_layouts = [#dist.layout<"[x]">], out_layouts = [#dist.layout<"[x]">]}
                    : (tensor<4xf32>) -> tensor<4xf32>
                 return %r : tensor<4xf32> }""",
            whole(4),
            whole(4),
        )
