"""Whatever is wrong with a program ends in one CompileError that says where, and never in a
crash.
"""
# ruff: noqa: E501 (lines of MLIR text)

import pytest

from meshweave.dialects import context
from meshweave.errors import CompileError
from meshweave.frontends.load import load_module

PROGRAM = """module {{
  func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {{
    {}
    return %0 : tensor<4xf32>
  }}
}}
"""


def refusal(text):
    with pytest.raises(CompileError) as caught:
        load_module(text, context(), source_name="p.mlir")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("sizes", ["16777216x16777216x", "16777216x// a comment\n16777216x"])
def test_a_tensor_that_no_machine_holds_is_refused(sizes):
    made = (
        f"%1 = stablehlo.broadcast_in_dim %a, dims = [0] : (tensor<4xf32>) -> tensor<4x{sizes}f32>"
    )
    text = PROGRAM.format(f"{made} %0 = stablehlo.negate %a : tensor<4xf32>")
    assert "elements: too large for any machine" in refusal(text)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%0 = stablehlo.frobnicate %a : tensor<4xf32>", "p.mlir:3:10: "),
        ("%0 = foo.bar %a : tensor<4xf32>", "p.mlir:3:10: "),
        (
            '%0 = "foo.bar"(%a) : (tensor<4xf32>) -> tensor<4xf32> // stablehlo.',
            "p.mlir:3:10: not supported: foo.bar (1, ",
        ),
        ("%0 = stablehlo.add %a, %b : tensor<4xf32>", "p.mlir:3:"),
        ("%0 = stablehlo.add %a, %a : tensor<5xf32>", "p.mlir:3:"),
        ("%0 = stablehlo.negate %a : tensor<4xi32>", "p.mlir:3:"),
        ("%0 = call @g(%a) : (tensor<4xf32>) -> tensor<4xf32> // stablehlo.", "p.mlir:3:10"),
        (
            "%0 = call @main(%a) : (tensor<4xf32>) -> tensor<4xf32> // stablehlo.",
            "p.mlir:3:10: @main calls itself",
        ),
        ("%0 = stablehlo.cholesky %a, lower = true : tensor<4xf32>", "p.mlir:3:"),
        (
            "%1 = stablehlo.custom_call @f(%a) : (tensor<4xf32>) -> tensor<4xf32>\n"
            "    %2 = stablehlo.custom_call @f(%1) : (tensor<4xf32>) -> tensor<4xf32>\n"
            "    %0 = stablehlo.custom_call @g(%2) : (tensor<4xf32>) -> tensor<4xf32>",
            "p.mlir:3:10: not supported: stablehlo.custom_call @f (2, first at p.mlir:3:10); "
            "stablehlo.custom_call @g (1, first at p.mlir:5:10)",
        ),
        (
            "%0 = stablehlo.abs %z : (tensor<4xcomplex<i32>>) -> tensor<4xf32>",
            "p.mlir:3:39: complex numbers",
        ),
        (
            "%1 = stablehlo.complex %a, %a : tensor<4xcomplex<f32>>\n"
            "    %2 = stablehlo.bitcast_convert %1 : (tensor<4xcomplex<f32>>) -> tensor<4xf64>\n"
            "    %0 = stablehlo.convert %2 : (tensor<4xf64>) -> tensor<4xf32>",
            "p.mlir:4:10: ",
        ),
        (
            "%0 = stablehlo.negate %a : memref<4xf32>",
            "p.mlir:3:32: a StableHLO program has tensors only",
        ),
        (
            "%0 = stablehlo.iota dim = 99999999999 : tensor<4xf32>",
            "p.mlir:3:31: 99999999999 is too large",
        ),
        (  # which ended the process in upstream's verifier
            '%0 = "stablehlo.reduce_window"(%a, %a) <{padding = dense<0> : tensor<9223372036854775807x2xi64>}> ({}) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>',
            "p.mlir:3:74: 9223372036854775807 is too large",
        ),
        (
            "%1 = stablehlo.iota dim = 0 : tensor<99999x99999x99999xf32>\n    %0 = stablehlo.negate %a : tensor<4xf32>",
            "p.mlir:3:10: tensor<99999x99999x99999xf32> has 999970000299999 elements",
        ),
        (
            "%1 = stablehlo.custom_call @f(%a) : (tensor<4xf32>) -> tensor<?xf32>\n    %0 = stablehlo.convert %1 : (tensor<?xf32>) -> tensor<4xf32>",
            "p.mlir:3:10: tensor<?xf32>: a size that is open",
        ),
        (
            '%0 = "stablehlo.all_reduce"(%a) ({^bb0(%x: tensor<f32>, %y: tensor<f32>): %s = stablehlo.add %x, %y : tensor<f32>\n'
            "    stablehlo.return %s : tensor<f32>}) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} "
            ": (tensor<4xf32>) -> tensor<4xf32>",
            "p.mlir:3:10: stablehlo.all_reduce outside of a manual computation",
        ),
    ],
)
def test_one_line_with_the_place(line, says):
    assert refusal(PROGRAM.format(line)).startswith(says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "p.mlir: the program is empty"),
        ("  \n\n", "p.mlir: the program is empty"),
        ("module { // stablehlo.\n}\n", "needs one function @main; functions here: none"),
        (
            "module attributes {mhlo.num_replicas = 2 : i32} {\n  func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
            "    %0 = stablehlo.negate %a : tensor<4xf32>\n    return %0 : tensor<4xf32> } }",
            "a program of 2 replicas (pmap) is not supported",
        ),
        ("func.func @f() {\n  foo\n}", "p.mlir:2:3: "),
    ],
)
def test_whole_programs(text, says):
    assert says in refusal(text)


def test_files_that_are_no_text(tmp_path):
    for name, data, says in (
        ("a.mlir", b"ML\xefR\x06MLIR20\x00", "is MLIR bytecode: export the program as text"),
        ("b.mlir", bytes(range(128, 256)), "is not text: byte 0x80 at offset 0"),
        ("c.mlir", b"module {\0}", "is not text: byte 0x00 at offset 8"),
        ("d.mlir", b"", "the program is empty"),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(CompileError) as caught:
            load_module(path, context())
        assert str(caught.value).startswith(f"{path}: {says}")
    with pytest.raises(CompileError, match="cannot be read: No such file"):
        load_module(tmp_path / "none.mlir", context())
    with pytest.raises(CompileError, match="cannot be read"):
        load_module(tmp_path, context())


def test_plain_mlir_is_taken_as_it_is():
    text = 'module {\n  func.func @f(%arg0: tensor<4xf32> {dist.layout = #dist.layout<"[x]">}) -> tensor<4xf32> {\n'
    text += "    return %arg0 : tensor<4xf32>\n  }\n}\n"
    assert str(load_module(text, context())) == text


@pytest.mark.parametrize("dims", ["[1, 0 0]", "[a]", "1", "[1,]", "[99999999999999999999]", "["])
def test_lists_of_dims_that_are_none(dims):
    line = "%0 = linalg.transpose ins(%a : tensor<4xf32>) outs(%a : tensor<4xf32>) permutation = "
    said = "a list of numbers, [0, 1], is right here"
    assert refusal(PROGRAM.format(line + dims)) == f"p.mlir:3:{len(line) + 4}: {said}"
    for right in ("[0]", "[ 0 ]"):
        load_module(PROGRAM.format(f"{line}{right} // outs(%a) dimensions = x"), context())


def test_a_function_that_does_not_end_in_a_return() -> None:
    """MLIR takes an op that it does not know for one that may end a block."""
    text = """
func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @f(%a) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = stablehlo.abs %0 : tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func private @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0:2 = "sdy.manual_computation"(%a, %a) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
}
"""
    assert "@f ends in sdy.manual_computation, not in a return" in refusal(text)


@pytest.mark.parametrize("name", ["in_shardings", "out_shardings", "manual_axes"])
def test_a_manual_computation_without_an_attribute_names_it(name: str) -> None:
    texts = {
        "in_shardings": '#sdy.sharding_per_value<[<@mesh, [{"x"}]>]>',
        "out_shardings": '#sdy.sharding_per_value<[<@mesh, [{"x"}]>]>',
        "manual_axes": '#sdy<manual_axes{"x"}>',
    }
    given = ", ".join(f"{key} = {text}" for key, text in texts.items() if key != name)
    text = f"""
sdy.mesh @mesh = <["x"=2]>
func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {{
  %0 = "sdy.manual_computation"(%a) ({{
  ^bb0(%b: tensor<2xf32>):
    "sdy.return"(%b) : (tensor<2xf32>) -> ()
  }}) {{{given}}} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}}
"""
    assert refusal(text) == f'p.mlir:4:8: sdy.manual_computation: it has no attribute "{name}"'
