"""The helpers that passes are made of."""

from typing import Any

import pytest

from meshweave.dialects import context
from meshweave.errors import LayoutError
from meshweave.ir.bindings import ir
from meshweave.ir.locations import location_text, parse_module
from meshweave.ir.ops import replace_op
from meshweave.transforms import base

TEXT = """\
func.func @f(%a: i32) -> i32 {
  %0 = arith.addi %a, %a : i32
  %1 = arith.muli %0, %0 : i32
  %2 = arith.muli %1, %0 : i32
  %3 = scf.execute_region -> i32 {
    %4 = arith.addi %0, %a : i32
    scf.yield %4 : i32
  }
  return %3 : i32
}
func.func private @g()
"""


@pytest.fixture
def module() -> Any:
    ctx = context()
    with ctx, ir.Location.unknown():
        yield parse_module(TEXT, ctx, "f.mlir")


def body(module: Any) -> Any:
    return base.functions(module)[0].entry_block


def test_walking_and_finding(module: Any) -> None:
    names = [op.name for op in base.walk(module)]
    assert names[:3] == ["builtin.module", "func.func", "arith.addi"]
    assert [op.name for op in base.walk(module, post=True)][-1] == "builtin.module"
    assert len(base.ops_of(module, "arith.addi")) == 2
    assert len(base.ops_of(module, "arith.addi", "arith.muli")) == 4
    assert len(base.functions(module)) == 1


def test_uses(module: Any) -> None:
    add, mul = base.ops_of(module, "arith.addi")[0], base.ops_of(module, "arith.muli")[0]
    assert base.use_count(add.results[0]) == 4
    assert [u.name for u in base.users(mul.results[0])] == ["arith.muli"]


def test_what_is_still_read_is_not_erased(module: Any) -> None:
    with pytest.raises(AssertionError, match="still read"):
        base.erase(base.ops_of(module, "arith.addi")[0])
    assert module.operation.verify()


def test_unused_chains_go_whole(module: Any) -> None:
    assert base.erase_unused(module, "arith.muli") == 2
    assert base.erase_unused(module, "arith.addi") == 0
    assert module.operation.verify()


def test_replace_hands_the_readers_over(module: Any) -> None:
    add = base.ops_of(module, "arith.addi")[0]
    replace_op(add, [body(module).arguments[0]])
    assert len(base.ops_of(module, "arith.addi")) == 1
    assert module.operation.verify()


def test_clones_read_the_mapped_values_in_nested_regions_too(module: Any) -> None:
    region = base.ops_of(module, "scf.execute_region")[0]
    add, argument = base.ops_of(module, "arith.addi")[0], body(module).arguments[0]
    vmap = {add.results[0]: argument}
    copy = base.clone_with(region, vmap, ir.InsertionPoint(region))
    assert vmap[region.results[0]] == copy.results[0]
    inner = base.ops_of(copy, "arith.addi")[0]
    assert list(inner.operands) == [argument, argument]


def test_a_region_of_one_block_is_spliced_in(module: Any) -> None:
    base.inline_single_block(base.ops_of(module, "scf.execute_region")[0])
    names = [op.operation.name for op in body(module).operations]
    assert names == ["arith.addi", "arith.muli", "arith.muli", "arith.addi", "func.return"]
    assert module.operation.verify()


def test_failures_carry_their_place(module: Any) -> None:
    add, mul = base.ops_of(module, "arith.addi", "arith.muli")[:2]
    with pytest.raises(base.PassFailure) as caught:
        base.fail(mul, "cannot")
    assert str(caught.value) == "f.mlir:3:8: cannot"
    base.fail_all([])
    with pytest.raises(base.PassFailure) as caught:
        base.fail_all([(add, "one"), (mul, "two")])
    assert [m for _, m in caught.value.diagnostics] == ["one", "two"]


def test_errors_of_the_core_get_a_place(module: Any) -> None:
    add = base.ops_of(module, "arith.addi")[0]
    with (
        pytest.raises(base.PassFailure, match=r'f.mlir:2:8: dist.x: no axis "z"'),
        base.at(add, "dist.x"),
    ):
        raise LayoutError('no axis "z"')


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('loc("a.mlir":3:4)', "a.mlir:3:4"),
        ('loc("name"("a.mlir":3:4))', "a.mlir:3:4"),
        ('loc("name")', "name"),
        ("loc(unknown)", "<unknown>"),
        ('loc(callsite("f"("a.mlir":3:4) at "b.mlir":1:2))', "a.mlir:3:4"),
        ('loc(fused[unknown, "b.mlir":1:2])', "b.mlir:1:2"),
        ("loc(fused[unknown])", "<unknown>"),
    ],
)
def test_locations_as_text(text: str, place: str) -> None:
    ctx = context()
    module = parse_module(f"module {{}} {text}", ctx, "f.mlir")
    assert location_text(module.operation) == place


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("func.func @f() { return }\nfunc.func @g() { return }", ["f.mlir:1:1", "f.mlir:2:1"]),
        ("// a\n\n  func.func @f() { return } // b", ["f.mlir:3:3"]),
        ("module {\n  func.func @f() { return }\n}", ["f.mlir:2:3"]),
        (
            "#m = affine_map<() -> ()>\nfunc.func @f() attributes {m = #m} { return }",
            ["f.mlir:2:1"],
        ),
        ("func.func @f() { return loc(#l) }\n#l = loc(unknown)", ["f.mlir:1:1"]),
        ("// nothing", []),
    ],
)
def test_text_is_read_under_the_name_of_its_file(text: str, places: list[str]) -> None:
    module = parse_module(text, context(), "f.mlir")
    assert [location_text(op) for op in module.body.operations] == places


def test_ops_of_finds_a_call_in_the_body_of_a_linalg_op() -> None:
    text = """func.func private @g(f32) -> f32
    func.func @f(%a: tensor<4xf32>, %o: tensor<4xf32>) -> tensor<4xf32> {
      %r = linalg.map ins(%a : tensor<4xf32>) outs(%o : tensor<4xf32>) (%x: f32, %i: f32) {
        %y = func.call @g(%x) : (f32) -> f32
        linalg.yield %y : f32
      }
      return %r : tensor<4xf32>
    }"""
    with context():
        module = ir.Module.parse(text)
        assert len(base.ops_of(module, "func.call")) == 1
        assert len(base.ops_of(module, "linalg.map", "dist.constrain")) == 1
