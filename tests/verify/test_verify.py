"""The check proves what the passes make, and refutes what is wrong."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from verify.pairs import EXAMPLES, PROGRAMS, answer, compared, matmul, mesh, texts

import meshweave as mw
from meshweave.api.verify import MOST_TERMS
from meshweave.dialects import context
from meshweave.ir.bindings import ir
from meshweave.ir.locations import parse_module
from meshweave.verification.check import verify


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_proven(name: str) -> None:
    found = answer(PROGRAMS[name])
    assert found.status == 0, found


@pytest.mark.parametrize("name", ["mlp", "attention", "block", "gpt2l"])
def test_examples_are_proven(name: str) -> None:
    found = answer((EXAMPLES / name / f"{name}.mlir").read_text())
    assert found.status == 0, found


@pytest.mark.parametrize("name", ["mlp", "attention", "block", "gpt2l"])
def test_what_both_programs_write_alike_needs_no_rules_of_arithmetic(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: object) -> None:
        raise AssertionError("rules of arithmetic are asked for")

    monkeypatch.setattr("meshweave.verification.terms.scalars._algebra", asked)
    assert answer((EXAMPLES / name / f"{name}.mlir").read_text()).status == 0


@pytest.mark.parametrize("axes", ["dp=2", "tp=2", "dp=4, tp=1", "dp=1, tp=4"])
def test_an_example_is_proven_on_other_meshes(axes: str) -> None:
    said = {"dp": "_", "tp": "_"} | {
        a.split("=")[0].strip(): a.split("=")[0].strip() for a in axes.split(",")
    }
    text = matmul(axes, f"[{said['dp']}, _]", f"[_, {said['tp']}]", f"[{said['dp']}, {said['tp']}]")
    assert answer(text).status == 0


SUM = """
func.func @main(%a: tensor<12x4xf32> {dist.layout = #dist.layout<"[x, _]">})
    -> (tensor<4xf32> {dist.layout = #dist.layout<"[_]">}) {
  %z = arith.constant dense<0.0> : tensor<4xf32>
  %r = linalg.reduce { arith.addf } ins(%a : tensor<12x4xf32>) outs(%z : tensor<4xf32>) dimensions = [0]
  return %r : tensor<4xf32>
}
"""
SUM_IN_SLICES = """
func.func @main(%a: tensor<6x4xf32> {dist.layout = #dist.layout<"[x, _]">})
    -> (tensor<4xf32> {dist.layout = #dist.layout<"[_]">}) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %z = arith.constant dense<0.0> : tensor<4xf32>
  %r = scf.for %t = %c0 to %c3 step %c1 iter_args(%s = %z) -> (tensor<4xf32>) {
    %n = scf.for %u = %c0 to %c1 step %c1 iter_args(%v = %s) -> (tensor<4xf32>) {
      %at = arith.muli %t, %c2 : index
      %p = tensor.extract_slice %a[%at, 0] [2, 4] [1, 1] : tensor<6x4xf32> to tensor<2x4xf32>
      %w = linalg.reduce { arith.addf } ins(%p : tensor<2x4xf32>) outs(%v : tensor<4xf32>) dimensions = [0]
      scf.yield %w : tensor<4xf32>
    }
    scf.yield %n : tensor<4xf32>
  }
  %f = "dist.all_reduce"(%r) {axes = ["x"], kind = "sum"} : (tensor<4xf32>) -> tensor<4xf32>
  return %f : tensor<4xf32>
}
"""


def test_a_sum_carried_over_slices_is_proven() -> None:
    assert compared(mesh("x=2") + SUM, mesh("x=2") + SUM_IN_SLICES).status == 0


def test_a_sum_carried_once_too_often_is_refuted() -> None:
    """The inner loop adds the same slice again: its axis is none of the value's."""
    twice = SUM_IN_SLICES.replace("%u = %c0 to %c1", "%u = %c0 to %c2")
    found = compared(mesh("x=2") + SUM, mesh("x=2") + twice)
    assert found.status == 1 and "instead of" in found.refuted[0].reason


def test_a_sum_that_is_still_pending_is_refuted() -> None:
    pending = SUM_IN_SLICES.replace('axes = ["x"]', "axes = []")
    found = compared(mesh("x=2") + SUM, mesh("x=2") + pending)
    assert found.status == 1 and "reduce sum (6,) at [6*x, i0]" in found.refuted[0].reason


def test_padding_without_a_neutral_element_is_not_proven() -> None:
    whole, local = texts(matmul("x=2", "[_, x]", "[x, _]", "[_, _]", (4, 7, 3)))
    assert compared(whole, local).status == 0
    for wrong in (
        local.replace("0.000000e+00 : f32", "1.000000e+00 : f32"),
        local.replace("ult,", "ule,"),
    ):
        assert wrong != local and compared(whole, wrong).status != 0


def test_another_layout_than_promised_is_refuted() -> None:
    whole, local = texts(matmul("x=2", "[x, _]", "[_, _]", "[x, _]"))
    found = compared(whole, local.replace('"[x, _]"', '"[_*x, _]"'))
    assert found.status == 1 and "expected layout [x, _], is [_*x, _]" in found.refuted[0].reason


def test_a_program_of_one_rank_from_elsewhere_is_checked() -> None:
    """A body of JAX's shard_map, as StableHLO has it, beside the function of whole arrays."""
    head = 'sdy.mesh @mesh = <["x"=2]>\nfunc.func public @main(%a: tensor<8x4xf32>) -> tensor<4xf32> {\n'
    whole = (
        head + "%z = stablehlo.constant dense<0.0> : tensor<f32>\n"
        "%r = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0] : "
        "(tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>\n"
        "return %r : tensor<4xf32> }"
    )
    local = (
        head
        + """%r = sdy.manual_computation(%a) in_shardings=[<@mesh, [{"x"}, {}]>]
      out_shardings=[<@mesh, [{}]>] manual_axes={"x"} (%b: tensor<4x4xf32>) {
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %p = stablehlo.reduce(%b init: %z) applies stablehlo.add across dimensions = [0]
      : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    %s = "stablehlo.all_reduce"(%p) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>,
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %t = stablehlo.add %x, %y : tensor<f32>
      stablehlo.return %t : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    sdy.return %s : tensor<4xf32>
  } : (tensor<8x4xf32>) -> tensor<4xf32>
return %r : tensor<4xf32> }"""
    )
    assert mw.verify(whole, local).proven == ("@main result 0",)
    found = mw.verify(whole, local.replace("[[0, 1]]", "[[0], [1]]").replace("1x2xi64", "2x1xi64"))
    assert found.status != 0


def test_programs_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(mw.MeshweaveError, match="takes other arguments"):
        mw.verify(
            "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }",
            "func.func @main() -> () { return }",
        )


FOLD = """
func.func @main(%a: tensor<1x4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>],
    iterator_types = ["reduction", "parallel"]} ins(%a : tensor<1x4xf32>) outs(%b : tensor<4xf32>) {
  ^bb0(%x: f32, %o: f32):
    %g = arith.cmpf ogt, %x, %o : f32
    %s = arith.select %g, %x, %o : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  return %r : tensor<4xf32>
}
"""
FOLDED = """
func.func @main(%a: tensor<1x4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %c = tensor.collapse_shape %a [[0, 1]] : tensor<1x4xf32> into tensor<4xf32>
  %g = arith.cmpf ogt, %c, %b : tensor<4xf32>
  %s = arith.select %g, %c, %b : tensor<4xi1>, tensor<4xf32>
  return %s : tensor<4xf32>
}
"""


def test_a_fold_of_one_element_is_its_body() -> None:
    assert compared(FOLD, FOLDED).status == 0
    for right, wrong in (
        ("ogt", "olt"),
        ("%g, %c, %b", "%g, %b, %c"),
        ("ogt, %c, %b", "ogt, %b, %c"),
    ):
        assert compared(FOLD, FOLDED.replace(right, wrong)).status != 0


ROLL = (
    mesh("x=2")
    + """
func.func @main(%a: tensor<8x3xf32>, %b: tensor<8x3xf32>, %at: tensor<index>)
    -> (tensor<8x3xf32> {dist.layout = #dist.layout<"[_, _]">}) {
  %k = tensor.extract %at[] : tensor<index>
  %two = tensor.concat dim(0) %a, %a : (tensor<8x3xf32>, tensor<8x3xf32>) -> tensor<16x3xf32>
  %r = tensor.extract_slice %two[%k, 0] [8, 3] [1, 1] : tensor<16x3xf32> to tensor<8x3xf32>
  return %r : tensor<8x3xf32>
}
"""
)


def test_a_roll_by_a_number_that_is_not_known_is_proven_and_another_is_not() -> None:
    whole, local = texts(ROLL)
    assert len(compared(whole, local).proven) == 1
    for old, new in (
        ("dim(0) %arg0, %arg0", "dim(0) %arg0, %arg1"),
        ("dim(0) %arg0, %arg0", "dim(0) %arg1, %arg1"),
    ):
        assert old in local
        assert not compared(whole, local.replace(old, new)).proven


FIRST = (
    mesh("x=2")
    + """
func.func @main(%a: tensor<4x6xf32> {dist.layout = #dist.layout<"[x, _]">})
    -> (tensor<4x3xi64> {dist.layout = #dist.layout<"[x, _]">}) {
  %low = arith.constant dense<0xFF800000> : tensor<4x3xf32>
  %none = arith.constant dense<-1> : tensor<4x3xi64>
  %window = tensor.empty() : tensor<2xf32>
  %one = arith.constant 1 : index
  %two = arith.constant 2 : index
  %not = arith.constant -1 : i64
  %most = linalg.generic {indexing_maps = [affine_map<(n, w, k) -> (n, 2 * w + k)>, affine_map<(n, w, k) -> (k)>,
                                           affine_map<(n, w, k) -> (n, w)>],
                          iterator_types = ["parallel", "parallel", "reduction"]}
    ins(%a, %window : tensor<4x6xf32>, tensor<2xf32>) outs(%low : tensor<4x3xf32>) {
  ^bb0(%v: f32, %u: f32, %out: f32):
    %r = arith.maximumf %v, %out : f32
    linalg.yield %r : f32
  } -> tensor<4x3xf32>
  %places = linalg.generic {indexing_maps = [affine_map<(n, w, k) -> (n, w)>, affine_map<(n, w, k) -> (k)>,
                                             affine_map<(n, w, k) -> (n, w)>],
                            iterator_types = ["parallel", "parallel", "reduction"]}
    ins(%most, %window : tensor<4x3xf32>, tensor<2xf32>) outs(%none : tensor<4x3xi64>) {
  ^bb0(%m: f32, %u: f32, %out: i64):
    %n = linalg.index 0 : index
    %w = linalg.index 1 : index
    %k = linalg.index 2 : index
    %begin = arith.muli %w, %two : index
    %at = arith.addi %begin, %k : index
    %v = tensor.extract %a[%n, %at] : tensor<4x6xf32>
    %same = arith.cmpf oeq, %v, %m : f32
    %place = arith.index_cast %at : index to i64
    %found = arith.select %same, %place, %out : i64
    %first = arith.cmpi eq, %out, %not : i64
    %r = arith.select %first, %found, %out : i64
    linalg.yield %r : i64
  } -> tensor<4x3xi64>
  return %places : tensor<4x3xi64>
}
"""
)
"""Where in each window the maximum comes first, as max-pooling notes it for its gradient."""


def test_a_fold_that_reads_another_tensor_is_proven_and_another_is_not() -> None:
    whole, local = texts(FIRST)
    assert compared(whole, local).status == 0
    for right, wrong in (
        ("extract %a[%n, %at]", "extract %a[%n, %begin]"),
        ("extract %a[%n, %at]", "extract %a[%k, %at]"),
        ("muli %w, %two", "muli %w, %one"),
        ("index_cast %at", "index_cast %begin"),
        ("oeq, %v, %m", "olt, %v, %m"),
        ("select %first, %found, %out", "select %first, %out, %found"),
        ("-1 : i64", "-2 : i64"),
    ):
        assert right in FIRST
        assert compared(whole, texts(FIRST.replace(right, wrong))[1]).status != 0, wrong


def _spread(a: Any, b: Any) -> Any:
    """What a batch norm behind a bias squares: the mean holds the bias as often as there are elements."""
    y = a + b[:, None]
    d = y - mw.mean(y, axis=(0, 2), keepdims=True)
    return mw.mean(d * d, axis=(0, 2))


def _of_steps(a: Any, g: Any) -> Any:
    """The gradient of weights that all steps share: the ranks cut steps and rows together, within a step."""

    def flat(x: Any) -> Any:
        return mw.constrain(mw.reshape(mw.transpose(x, (1, 0, 2)), (-1, x.shape[2])), "[x, _]")

    return flat(a).T @ flat(g)


def _widened(a: Any) -> Any:
    """A sum over rows, and over places at which they are the same; the ranks have parts of the rows."""
    return mw.exp(mw.sum(mw.broadcast_to(mw.tanh(a)[:, :, None], (400, 2, 5)), axis=(0, 2)))


def _differences(a: Any) -> Any:
    """A window of windows, whose rows end within a rank."""
    b = a[1:] - a[:-1]
    return mw.constrain(b[1:] * b[:-1], "[x, _]")


@pytest.mark.parametrize(
    ("f", "shapes", "layouts"),
    [
        (_spread, ((4, 2, 40), (2,)), ("[x, _, _]", None)),
        (_of_steps, ((16, 25, 6), (16, 25, 3)), (None, None)),
        (_widened, ((400, 2),), ("[x, _]",)),
        (_differences, ((9, 3),), ("[x, _]",)),
    ],
)
def test_sums_over_ranks_of_what_each_adds_up_itself_are_proven(
    f: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], layouts: tuple[str | None, ...]
) -> None:
    given = [np.ones(s, "f4") for s in shapes]
    lowered = mw.jit(f, mesh="x=2", in_layouts=layouts).lower(*given)
    with context() as ctx, ir.Location.unknown():
        pair = [parse_module(lowered.as_text(side), ctx, side) for side in ("traced", "local")]
        assert verify(pair[0], pair[1], MOST_TERMS, again=False).status == 0  # as a compile does


def test_a_window_of_windows_at_another_place_is_not_proven() -> None:
    lowered = mw.jit(_differences, mesh="x=2", in_layouts=("[x, _]",)).lower(np.ones((9, 3), "f4"))
    whole, local = lowered.as_text(), lowered.as_text("local")
    assert compared(whole, local).status == 0
    slices = re.findall(r"extract_slice %\w+\[1, 0\]", local)
    assert slices
    for number in range(len(slices)):
        parts = re.split(r"(extract_slice %\w+\[1, 0\])", local)
        parts[2 * number + 1] = parts[2 * number + 1].replace("[1, 0]", "[0, 0]")
        assert compared(whole, "".join(parts)).status != 0
