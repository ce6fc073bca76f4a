"""Printing with aliases: it reads back as the same module, whatever names are about."""

from typing import Any

import pytest

from meshweave.dialects import context
from meshweave.dialects.alias import hoist_aliases, module_text
from meshweave.ir.bindings import ir
from meshweave.ir.locations import parse_module

TRICKY = """\
#map = affine_map<(d0) -> (d0)>
#layout = affine_map<(d0) -> (d0 + 1)>
"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3"} : () -> ()
func.func @f(%a: tensor<8xf32> {dist.layout = #dist.layout<"[x] +sum(y)">}) -> (index, index)
    attributes {maps = [#map, #layout], note = "#dist.layout<\\"[x]\\"> -> {", dist.all = {
      operands = [#dist.layout<"[x] +sum(y)">, unit], results = [#dist.layout<"[x*y]">]}} {
  %0 = arith.constant 0 : index
  %1 = affine.apply #layout(%0)
  return %0, %1 : index, index
}
"""


@pytest.fixture
def ctx() -> Any:
    return context()


def test_it_reads_back_as_the_same_module(ctx: Any) -> None:
    module = parse_module(TRICKY, ctx, "t.mlir")
    text = module_text(module)
    again = parse_module(text, ctx, "t.mlir")
    assert str(again) == str(module)
    assert module_text(again) == text
    with ctx:
        assert str(ir.Module.parse(text)) == str(module)  # MLIR's own way in


def test_each_attribute_is_defined_once_in_order_of_appearance(ctx: Any) -> None:
    lines = module_text(parse_module(TRICKY, ctx, "t.mlir")).splitlines()
    defined = [line for line in lines if line.startswith("#layout")]
    assert defined == [
        '#layout = #dist.layout<"[x] +sum(y)">',
        '#layout1 = #dist.layout<"[x*y]">',
    ]
    assert '"#dist.layout<\\22[x]\\22> -> {"' in "\n".join(lines)


def test_names_that_are_taken_are_left_alone() -> None:
    text = (
        "#layout = affine_map<(d0) -> (d0)>\n"
        'module attributes {a = #dist.layout<"[x]">, b = #layout} {\n}\n'
    )
    assert hoist_aliases(text) == (
        "#layout = affine_map<(d0) -> (d0)>\n"
        '#layout1 = #dist.layout<"[x]">\n'
        "module attributes {a = #layout1, b = #layout} {\n}\n"
    )


def test_attributes_nest_and_arrows_close_nothing() -> None:
    text = '{a = #hint.rule<"x", (i32) -> i32, [#dist.layout<"[x]">]>, b = #hint.none}\n'
    assert hoist_aliases(text) == (
        '#rule = #hint.rule<"x", (i32) -> i32, [#dist.layout<"[x]">]>\n'
        "#none = #hint.none\n{a = #rule, b = #none}\n"
    )


def test_text_without_our_attributes_is_left_alone() -> None:
    text = (
        "#map = affine_map<(d0) -> (d0)>\n"
        'module {\n  "a.b"() {m = #map, s = "#dist.x"} : () -> ()\n}\n'
    )
    assert hoist_aliases(text) == text
