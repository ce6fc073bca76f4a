"""A function that is called many times is read once, and what is proven of it holds at each call."""

import pytest
from verify.pairs import compared, mesh

from meshweave.dialects import context
from meshweave.ir.bindings import ir
from meshweave.ir.locations import parse_module
from meshweave.verification.answer import Answer
from meshweave.verification.check import verify

T, PART = "tensor<8x8xf32>", "tensor<8x4xf32>"
WHOLE_LAYER = f"""func.func private @layer(%x: {T}, %w: {T}) -> {T} {{
  %z = arith.constant dense<0.0> : {T}
  %m = linalg.matmul ins(%x, %w : {T}, {T}) outs(%z : {T}) -> {T}
  %e = math.exp %m : {T}
  %r = arith.addf %e, %x : {T}
  return %r : {T}
}}
"""
LOCAL_LAYER = f"""func.func private @layer(%x: {T}, %w: {PART}) -> {T} {{
  %z = arith.constant dense<0.0> : {PART}
  %m = linalg.matmul ins(%x, %w : {T}, {PART}) outs(%z : {PART}) -> {PART}
  %e = math.exp %m : {PART}
  %g = "dist.all_gather"(%e) {{axes = ["x"], dim = 1 : i64}} : ({PART}) -> {T}
  %r = arith.addf %g, %x : {T}
  return %r : {T}
}}
"""
COLUMNS = '{dist.layout = #dist.layout<"[_, x]">}'


def model(body: str, kind: str, reads: list[str], layer: str = WHOLE_LAYER) -> str:
    """A function of two matrices and a module with it; `kind` is the type of the second."""
    lines, last = [], "%x"
    for k, weight in enumerate(reads):
        lines.append(f"  %{k} = call @layer({last}, {weight}) : ({T}, {kind}) -> {T}")
        last = f"%{k}"
    return (
        mesh("x=2")
        + layer
        + f"func.func public @main(%x: {T}, %a: {kind} {COLUMNS}, %b: {kind} {COLUMNS}) -> {T} {{\n"
        + "\n".join([*lines, body.replace("LAST", last)])
        + "\n}\n"
    )


def layers(reads: list[str], layer: str = LOCAL_LAYER, most: int = 1000) -> Answer:
    """What is found of a rank's program that reads these weights, where the whole reads %a, %b, %a, ..."""
    whole = model(f"  return LAST : {T}", T, [("%a", "%b")[k % 2] for k in range(len(reads))])
    local = model(f"  return LAST : {T}", PART, reads, layer)
    with context() as ctx, ir.Location.unknown():
        modules = [parse_module(text, ctx, "layers") for text in (whole, local)]
        return verify(*modules, most=most)


@pytest.mark.parametrize("count", [1, 6, 50])
def test_a_layer_is_read_once(count: int) -> None:
    """Each further call adds one term, and is one op of each program."""
    assert layers(["%a", "%b"] * count, most=20 + 2 * count).status == 0


def test_calls_with_other_arguments_are_refuted() -> None:
    found = layers(["%a", "%a"])
    assert found.status == 1 and "instead of" in found.refuted[0].reason


def test_a_wrong_layer_is_refuted() -> None:
    wrong = LOCAL_LAYER.replace("arith.addf %g, %x", "arith.subf %g, %x")
    assert layers(["%a"], wrong).status == 1


def test_a_limit_leaves_the_rest_unproven() -> None:
    found = layers(["%a", "%b"], most=5)
    assert found.status == 3 and found.unproven[0].reason == "the limit of 5 terms"
    assert found.unproven[0].value == "@main result 0"


def test_ops_that_are_a_call_elsewhere_are_proven() -> None:
    """The whole program calls the function once and writes it out once; a rank's program calls it twice."""
    inline = WHOLE_LAYER[WHOLE_LAYER.index("\n") :].rstrip("}\n")
    inline = inline.replace("%x", "%0").replace("%w", "%b")
    whole = model(inline, T, ["%a"])
    local = model(f"  return LAST : {T}", PART, ["%a", "%b"], LOCAL_LAYER)
    assert compared(whole, local).status == 0
