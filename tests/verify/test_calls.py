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
    """Each further call adds two terms, and is one op of each program."""
    assert layers(["%a", "%b"] * count, most=20 + 4 * count).status == 0


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


def loop(trips: int, body: str, columns: int) -> str:
    """A loop that carries a matrix of 8 rows and reads another, `%w`."""
    kind = f"tensor<8x{columns}xf32>"
    return (
        mesh("x=2")
        + f"""
func.func @main(%x: {kind} {COLUMNS}, %w: {kind} {COLUMNS}) -> ({kind} {COLUMNS}) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = arith.constant {trips} : index
  %r = scf.for %t = %c0 to %n step %c1 iter_args(%s = %x) -> ({kind}) {{
{body.replace("KIND", kind).replace("N", str(columns))}
  }}
  return %r : {kind}
}}
"""
    )


ROW = """    %row = tensor.extract_slice %w[%at, 0] [1, N] [1, 1] : KIND to tensor<1xNxf32>
    %flat = tensor.collapse_shape %row [[0, 1]] : tensor<1xNxf32> into tensor<Nxf32>
    %e = tensor.empty() : KIND
    %b = linalg.broadcast ins(%flat : tensor<Nxf32>) outs(%e : KIND) dimensions = [0]
    %p = arith.mulf %s, %b : KIND
    %q = math.exp %p : KIND
"""
SCAN = "    %c8 = arith.constant 8 : index\n    %at = arith.remui %t, %c8 : index\n" + ROW
NESTED = """    %q = scf.for %u = %c0 to %m step %c1 iter_args(%v = %s) -> (KIND) {
      %y = arith.addf %v, %s : KIND
      %z = math.sin %y : KIND
      scf.yield %z : KIND
    }
"""


def loops(trips: int, body: str, local: str | None = None, most: int = 1000) -> Answer:
    """What is found of a loop over columns of halves of the matrices. local: the body there, where it differs."""
    end = "    scf.yield %q : KIND"
    whole = loop(trips, body + end, 8)
    part = loop(trips, (local or body) + end, 4)
    part = part.replace(
        COLUMNS, '{dist.global = tensor<8x8xf32>, dist.layout = #dist.layout<"[_, x]">}'
    )
    with context() as ctx, ir.Location.unknown():
        modules = [parse_module(text, ctx, "loops") for text in (whole, part)]
        return verify(*modules, most=most)


@pytest.mark.parametrize("trips", [2, 8, 200])
def test_the_body_of_a_loop_is_read_once(trips: int) -> None:
    assert loops(trips, SCAN, most=60 + 3 * trips).status == 0


def test_a_body_that_reads_another_row_is_refuted() -> None:
    found = loops(3, SCAN, SCAN.replace("%at, 0]", "%c1, 0]"))
    assert found.status == 1 and "instead of" in found.refuted[0].reason


@pytest.mark.parametrize("inner", ["%c8", "%t"])
def test_a_loop_in_a_loop_reads_what_is_around_it(inner: str) -> None:
    """Its number of trips may be that of the trip around it: these are written out."""
    body = "    %c8 = arith.constant 8 : index\n" + NESTED.replace("%m", inner)
    assert loops(3, body).status == 0
    assert loops(3, body, body.replace("%v, %s", "%v, %v")).status == 1
