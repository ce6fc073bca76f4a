"""Bodies that select one of their elements are told from those for which it matters how parts are grouped."""

from __future__ import annotations

import pytest

from meshweave.dialects import context
from meshweave.ir.bindings import ir
from meshweave.ir.expressions import read_body
from meshweave.ir.ops import body_of, ops_named
from meshweave.ir.selections import selection_of

TEXT = """
func.func @main(%a: tensor<8x{t}>, %i: tensor<8xi32>, %b: tensor<{t}>, %j: tensor<i32>) -> (tensor<{t}>, tensor<i32>) {{
  %r:2 = linalg.reduce ins(%a, %i : tensor<8x{t}>, tensor<8xi32>) outs(%b, %j : tensor<{t}>, tensor<i32>)
    dimensions = [0]
    (%x: {t}, %p: i32, %y: {t}, %q: i32) {{
{body}
      linalg.yield %v, %w : {t}, i32
    }}
  return %r#0, %r#1 : tensor<{t}>, tensor<i32>
}}"""
FIRST_LARGEST = """
      %g = arith.cmpf ogt, %y, %x : f32
      %n = arith.cmpf une, %y, %y : f32
      %k = arith.ori %g, %n : i1
      %e = arith.cmpf oeq, %x, %y : f32
      %l = arith.cmpi slt, %q, %p : i32
      %m = arith.andi %e, %l : i1
      %o = arith.ori %k, %m : i1
      %v = arith.select %k, %y, %x : f32
      %w = arith.select %o, %q, %p : i32"""
LARGEST = """
      %k = arith.cmpi sgt, %x, %y : i32
      %v = arith.maxsi %x, %y : i32
      %w = arith.select %k, %p, %q : i32"""
SELECT = {
    "the first largest": ("f32", FIRST_LARGEST, True),
    "the largest that comes first": ("i32", LARGEST, True),
    "the largest that comes last": ("i32", LARGEST.replace("sgt", "sge"), False),
    "the place of the other": ("i32", LARGEST.replace("%p, %q", "%q, %p"), False),
    "two orders": ("i32", LARGEST.replace("sgt", "ugt"), False),
    "a sum of places": (
        "i32",
        LARGEST.replace("arith.select %k, %p, %q", "arith.addi %p, %q"),
        False,
    ),
    "a number and a place": ("i32", LARGEST.replace("sgt, %x, %y", "sgt, %x, %q"), False),
    "what lies below a number": (
        "i32",
        "      %c = arith.constant 5 : i32\n      %k = arith.cmpi slt, %x, %c : i32\n"
        "      %v = arith.select %k, %x, %y : i32\n      %w = arith.select %k, %p, %q : i32",
        False,
    ),
    "a NaN is dropped late": (
        "f32",
        "      %k = arith.cmpf ogt, %x, %y : f32\n      %v = arith.select %k, %x, %y : f32\n"
        "      %w = arith.select %k, %p, %q : i32",
        False,
    ),
}


@pytest.mark.parametrize("name", SELECT)
def test_what_selects(name: str) -> None:
    kind, body, wanted = SELECT[name]
    with context():
        module = ir.Module.parse(TEXT.format(t=kind, body=body))
        (reduction,) = ops_named(module.operation, "linalg.reduce")
        found = selection_of(read_body(body_of(reduction)))
        assert (found is not None) == wanted
        assert found is None or found.reads_plain
