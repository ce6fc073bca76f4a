"""Forms of StableHLO on which upstream crashes: we refuse them in a line, or rewrite them first.

Each test that upstream crashes runs its parser and passes alone in a process of their own. When one of them fails,
upstream is mended: what we do about the form can go.
"""

# ruff: noqa: E501 (lines of MLIR text)
import subprocess
import sys

import numpy as np
import pytest
from depth import sampled

import meshweave as mw
from meshweave.dialects import context
from meshweave.errors import CompileError
from meshweave.frontends.load import load_module
from meshweave.frontends.stablehlo import refusals

QUANTISED = "!quant.uniform<i8:f32, 0.5:-3>"
WEIGHTS = "!quant.uniform<i8:f32, 0.5>"


def program(line, argument="tensor<4xf32>", result=None):
    return (
        f"func.func @main(%a: {argument}) -> {result or argument} {{\n  {line}\n"
        f"  return %0 : {result or argument}\n}}\n"
    )


FORMS = {
    "stablehlo\\.all_to_all": program(
        '%0 = "stablehlo.all_to_all"(%a) <{split_dimension = 0 : i64, concat_dimension = 0 : i64, '
        "split_count = 2 : i64, replica_groups = dense<> : tensor<0x0xi64>}> : (tensor<4xf32>) -> tensor<4xf32>"
    ),
    "dense_resource<": program(
        "%c = stablehlo.constant dense_resource<q> : tensor<2xi1>\n"
        "%b = stablehlo.constant dense<[1, 2]> : tensor<2xi8>\n"
        "%d = stablehlo.constant dense<[3, 4]> : tensor<2xi8>\n"
        "%0 = stablehlo.select %c, %b, %d : tensor<2xi1>, tensor<2xi8>",
        "tensor<2xi8>",
    ),
}
"""By the beginning of the pattern in `refusals.CRASHES`."""

SELECTED = """func.func @main(%operand: tensor<4x2xui32>, %source: tensor<2x2xui32>, %start: tensor<ui32>) -> tensor<4x2xui32> {
  %0 = "stablehlo.select_and_scatter"(%operand, %source, %start) ({
    ^bb0(%a: tensor<ui32>, %b: tensor<ui32>):
      %1 = stablehlo.compare GE, %a, %b : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
  }, {
    ^bb0(%a: tensor<ui32>, %b: tensor<ui32>):
      %1 = stablehlo.add %a, %b : tensor<ui32>
      stablehlo.return %1 : tensor<ui32>
  }) {window_dimensions = array<i64: 3, 1>, window_strides = array<i64: 2, 1>,
      padding = dense<[[0, 1], [0, 0]]> : tensor<2x2xi64>
  } : (tensor<4x2xui32>, tensor<2x2xui32>, tensor<ui32>) -> tensor<4x2xui32>
  return %0 : tensor<4x2xui32>
}
"""


def gather(vector, batching):
    """A gather of rows of 2 from (2, 3, 4, 2), with batching and vectors along these dims of the indices."""
    sizes = [5, 3, 6]
    sizes[batching] = 2
    sizes[vector] = 2
    indices = f"tensor<{'x'.join(map(str, sizes))}xi32>"
    batch = [size for dim, size in enumerate(sizes) if dim != vector]
    result = f"tensor<{'x'.join(map(str, batch))}x2xi64>"
    text = f"""func.func @main(%operand: tensor<2x3x4x2xi64>, %indices: {indices}) -> {result} {{
  %0 = "stablehlo.gather"(%operand, %indices) {{
    dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [1, 2],
      operand_batching_dims = [0], start_indices_batching_dims = [{batching}],
      start_index_map = [2, 1], index_vector_dim = {vector}>,
    slice_sizes = array<i64: 1, 1, 1, 2>, indices_are_sorted = false
  }} : (tensor<2x3x4x2xi64>, {indices}) -> {result}
  return %0 : {result}
}}
"""
    return text, sizes


BITS = {
    ("complex64", 2): ("tensor<3x2xcomplex<f32>>", "tensor<3xcomplex<f64>>"),
    ("complex128", 1): ("tensor<3xcomplex<f64>>", "tensor<3x2xcomplex<f32>>"),
    ("complex64", 1): ("tensor<3xcomplex<f32>>", "tensor<3xcomplex<f32>>"),
}
"""Types of complex numbers and of those that have the same bits."""


def bits(given, made):
    """A program that takes complex numbers for others."""
    return program(f"%0 = stablehlo.bitcast_convert %a : ({given}) -> {made}", given, made)


PASSES = {
    "gather": gather(0, 1)[0],
    "complex bits": bits(*BITS["complex128", 1]),
    "quantised comparison": program(
        f"%0 = stablehlo.compare GE, %a, %a : (tensor<4x{QUANTISED}>, tensor<4x{QUANTISED}>) -> tensor<4xi1>",
        f"tensor<4x{QUANTISED}>",
        "tensor<4xi1>",
    ),
    "quantised product": program(
        f"%0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0] : (tensor<4x4x{WEIGHTS}>, tensor<4x4x{WEIGHTS}>) -> tensor<4x4x!quant.uniform<i32:f32, 0.25>>",
        f"tensor<4x4x{WEIGHTS}>",
        "tensor<4x4x!quant.uniform<i32:f32, 0.25>>",
    ),
}

UPSTREAM = """
import sys
from meshweave.dialects import context
from meshweave.ir.bindings import PassManager, ir, stablehlo
from meshweave.frontends.stablehlo import frontend
stablehlo()
ctx = context()
with ctx, ir.Location.unknown():
    PassManager.parse("builtin.module(func.func(convert-torch-to-stablehlo))").run(ir.Module.create().operation)
    module = ir.Module.parse(sys.stdin.read())
    for pipeline in (frontend._SIMPLIFY, frontend._TO_LINALG):
        frontend._run(module, pipeline)
"""


def ends_the_process(text):
    """Whether upstream crashes, or writes errors without end."""
    command = [sys.executable, "-c", UPSTREAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(text.encode())
        process.stdin.close()
        if len(process.stderr.read(1 << 20)) == 1 << 20:
            process.kill()
    return process.returncode < 0


def refusal(text):
    with pytest.raises(CompileError) as caught:
        load_module(text + "// stablehlo.\n", context(), source_name="p.mlir")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_pattern_has_a_form():
    patterns = [word.pattern for word in refusals.CRASHES]
    assert len(patterns) == len(FORMS)
    for name, pattern in zip(FORMS, patterns, strict=True):
        assert pattern.startswith(name)


@pytest.mark.parametrize("name", FORMS)
def test_upstream_crashes_and_we_say_why(name):
    assert ends_the_process(FORMS[name])
    (reason,) = (text for word, text in refusals.CRASHES.items() if word.pattern.startswith(name))
    assert refusal(FORMS[name]).startswith("p.mlir:") and reason in refusal(FORMS[name])


@sampled(1)
@pytest.mark.parametrize("name", PASSES)
def test_the_passes_crash(name):
    assert ends_the_process(PASSES[name])


@pytest.mark.parametrize("name", [name for name in PASSES if name.startswith("quantised")])
def test_quantised_numbers_are_refused(name):
    says = refusal(PASSES[name])
    assert says.startswith("p.mlir:2:") and "not supported: quantised numbers (" in says


@pytest.mark.parametrize(
    ("line", "argument", "says"),
    [
        ("%0 = stablehlo.add %a, %a : T", f"tensor<4x{QUANTISED}>", "quantised numbers (3"),
        (
            f"%1 = stablehlo.uniform_quantize %a : (tensor<4xf32>) -> tensor<4x{QUANTISED}>\n"
            f"%0 = stablehlo.uniform_dequantize %1 : (tensor<4x{QUANTISED}>) -> tensor<4xf32>",
            "tensor<4xf32>",
            "quantised numbers (2, first at p.mlir:2:8)",
        ),
        ("%0 = stablehlo.after_all %a : T", "!stablehlo.token", "stablehlo.after_all (1"),
        ("%0 = stablehlo.after_all %a : T", "!stablehlo.token", "tokens (3, first at p.mlir:2:8)"),
    ],
)
def test_types_that_nothing_lowers_are_refused(line, argument, says):
    assert says in refusal(program(line.replace(": T", f": {argument}"), argument))


@pytest.mark.parametrize("groups", ["dense<> : tensor<0x2xi64>", "dense<0> :\n tensor<0x2xi64>"])
def test_no_groups_in_other_words(groups):
    text = FORMS["stablehlo\\.all_to_all"].replace("dense<> : tensor<0x0xi64>", groups)
    assert "all_to_all without groups" in refusal(text.replace("{split", "{\n split"))


def test_a_declaration_is_no_program():
    assert refusal("func.func private @f(tensor<4xf32>)\n") == "p.mlir:1:1: @f has no body"


@sampled(1)
@pytest.mark.parametrize("vector", range(3))
@pytest.mark.parametrize("batching", range(3))
def test_gathers_with_batches_on_either_side_of_the_vectors(vector, batching):
    if vector == batching:
        return
    text, sizes = gather(vector, batching)
    rng = np.random.default_rng(vector)
    operand = rng.integers(0, 99, (2, 3, 4, 2))
    indices = rng.integers(-1, 5, sizes).astype(np.int32)
    vectors = np.moveaxis(indices, vector, -1)
    at = batching - (batching > vector)
    batch = np.arange(2)
    batch = batch.reshape([-1 if dim == at else 1 for dim in range(2)])
    column, row = np.clip(vectors[..., 0], 0, 3), np.clip(vectors[..., 1], 0, 2)
    with mw.from_stablehlo(text) as loaded:
        assert np.array_equal(loaded(operand, indices)[0], operand[batch, row, column])


def test_select_and_scatter_of_unsigned_numbers():
    operand = np.array([[1, 5], [2, 5], [3, 6], [2**32 - 4, 4]], np.uint32)
    source, start = np.array([[5, 6], [7, 8]], np.uint32), np.uint32(2**31)
    with mw.from_stablehlo(SELECTED) as loaded:
        (found,) = loaded(operand, source, start)
    right = np.array([[0, 0], [0, 0], [5, 14], [7, 0]], np.uint32) + start
    assert np.array_equal(found, right)


def test_composites_are_what_they_are_made_of():
    text = """module {
  func.func @main(%a: tensor<3xf32>) -> tensor<3xf32> {
    %0 = stablehlo.composite "my.twice" %a {decomposition = @twice} : (tensor<3xf32>) -> tensor<3xf32>
    %1 = stablehlo.composite "my.twice" %0 {decomposition = @twice} : (tensor<3xf32>) -> tensor<3xf32>
    return %1 : tensor<3xf32>
  }
  func.func private @twice(%a: tensor<3xf32>) -> tensor<3xf32> {
    %0 = stablehlo.add %a, %a : tensor<3xf32>
    return %0 : tensor<3xf32>
  }
}
"""
    with mw.from_stablehlo(text) as loaded:
        assert loaded(np.arange(3, dtype=np.float32))[0].tolist() == [0, 4, 8]


@pytest.mark.parametrize("given", BITS)
def test_complex_numbers_keep_their_bits(given):
    dtype, wide = given
    x = (np.arange(3 * wide) + 0.1j).astype(dtype).reshape((3, 2) if wide == 2 else 3)
    text = bits(*BITS[given])
    with mw.compile(text) as compiled:
        (made,) = map(np.asarray, compiled(x))
    assert made.tobytes() == x.tobytes()
