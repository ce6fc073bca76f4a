"""Shardy's words in ours: nothing is dropped, and what cannot be said is refused with its place."""
# ruff: noqa: E501 (lines of MLIR text)

import numpy as np
import pytest

import meshweave as mw
from meshweave.dialects import context
from meshweave.errors import CompileError
from meshweave.frontends.load import load_module
from meshweave.frontends.shardy.shardings import parse_mesh, parse_sharding
from meshweave.ir.bindings import ir

MESH = 'sdy.mesh @mesh = <["x"=2, "y"=4]>'


def program(sharding, mesh=MESH, result="", kind="tensor<8x16x4xf32>"):
    return f"""module {{
  {mesh}
  func.func public @main(%a: {kind} {{sdy.sharding = #sdy.sharding<{sharding}>}}) -> ({kind} {{jax.result_info = "r"{result}}}) {{
    %0 = stablehlo.add %a, %a : {kind}
    return %0 : {kind}
  }}
}}
"""


def constrained(sharding, mesh=MESH):
    return f"""module {{
  {mesh}
  func.func public @main(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {{
    %0 = stablehlo.add %a, %a : tensor<8x16xf32>
    %1 = sdy.sharding_constraint %0 <{sharding}> : tensor<8x16xf32>
    return %1 : tensor<8x16xf32>
  }}
}}
"""


def load(text):
    return load_module(text, context(), source_name="p.mlir")


def main_of(module):
    """The module's function. Keep `module` in a variable while it is looked at: it goes with its last reference."""
    return next(op.operation for op in module.body.operations if op.operation.name == "func.func")


def argument(text):
    module = load(text)
    return str(main_of(module).attributes["arg_attrs"][0])


def refusal(text):
    with pytest.raises(CompileError) as caught:
        load(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("sharding", "wanted"),
    [
        ('@mesh, [{"x"}, {"y"}, {}]', '{dist.layout = #dist.layout<"[x, y, _]">}'),
        ('@mesh, [{"y", "x"}, {}, {}]', '{dist.layout = #dist.layout<"[y*x, _, _]">}'),
        (
            '@mesh, [{"x", ?}, {?}, {}]',
            '{dist.layout = #dist.layout<"[x, _, _]">, dist.open = array<i64: 0, 1>}',
        ),
        (
            '@mesh, [{"x"}p2, {?}, {}p1], replicated={"y"}',
            '{dist.layout = #dist.layout<"[x, _, _]">, dist.open = array<i64: 1>, '
            'dist.priorities = array<i64: 2, 0, 1>, dist.replicated = ["y"]}',
        ),
        ('@mesh, [{}, {"y":(1)2}, {}]', '{dist.layout = #dist.layout<"[_, y:(1)2, _]">}'),
        (
            '@mesh, [{"y":(2)2}, {"x"}, {}], replicated={"y":(1)2}',
            '{dist.layout = #dist.layout<"[y:(2)2, x, _]">, dist.replicated = ["y:(1)2"]}',
        ),
        (
            '@mesh, [{"x"}, {}, {}], unreduced={"y"}',
            '{dist.layout = #dist.layout<"[x, _, _] +sum(y)">}',
        ),
        ('mesh<["x"=2, "y"=4]>, [{"x"}, {}, {}]', '{dist.layout = #dist.layout<"[x, _, _]">}'),
    ],
)
def test_an_argument_keeps_all_its_sharding_says(sharding, wanted):
    assert argument(program(sharding)) == wanted


def test_the_mesh_comes_first():
    module = load(program('@mesh, [{"x"}, {}, {}]'))
    assert (
        str(module.body.operations[0])
        == '"dist.mesh"() {axes = "x=2, y=4", sym_name = "mesh"} : () -> ()'
    )


def test_an_argument_without_sharding_gets_no_layout():
    module = load(constrained('@mesh, [{"x"}, {}]'))
    assert "arg_attrs" not in main_of(module).attributes


def test_results_carry_layouts():
    text = program(
        '@mesh, [{"x"}, {}, {}]', result=', sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}, {}]>'
    )
    module = load(text)
    assert (
        str(main_of(module).attributes["res_attrs"][0])
        == '{dist.layout = #dist.layout<"[_, y, _]">}'
    )


def test_a_constraint_is_an_op_with_the_same_words():
    text = str(load(constrained('@mesh, [{"y"}p1, {?}], replicated={"x"}')))
    assert (
        '"dist.constrain"(%mapped) {layout = #dist.layout<"[y, _]">, open = array<i64: 1>, '
        'priorities = array<i64: 1, 0>, replicated = ["x"]}'
    ) in text


def test_a_constraint_nobody_reads_is_about_its_operand():
    text = str(load(constrained('@mesh, [{"x"}, {}]').replace("return %1", "return %0")))
    line = next(line for line in text.split("\n") if "return" in line and "tensor" in line)
    assert "return %1 " in line and '%1 = "dist.constrain"' in text


def test_a_constraint_in_a_function_called_twice_is_there_twice():
    text = """module {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%a: tensor<8xf32>) -> tensor<8xf32> {
    %0 = call @f(%a) : (tensor<8xf32>) -> tensor<8xf32>
    %1 = call @f(%0) : (tensor<8xf32>) -> tensor<8xf32>
    return %1 : tensor<8xf32>
  }
  func.func private @f(%a: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.tanh %a : tensor<8xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}]> : tensor<8xf32>
    return %1 : tensor<8xf32>
  }
}"""
    module = load(text)
    assert str(module).count('"dist.constrain"') == 2 and len(module.body.operations) == 2


def test_a_sharding_on_an_op_constrains_its_result():
    text = constrained("@mesh, [{}, {}]").replace(
        "stablehlo.add %a, %a :",
        'stablehlo.add %a, %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} :',
    )
    assert '{layout = #dist.layout<"[x, _]">}' in str(load(text))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (program('@other, [{"x"}, {}, {}]'), "p.mlir:3:1: sharding over @other: no such mesh"),
        (program('@mesh, [{"z"}, {}, {}]'), 'argument 0: layout [z, _, _]: no axis "z"'),
        (program('@mesh, [{"x"}, {"x"}, {}]'), "axis x"),
        (program('@mesh, [{"x"}, {}]'), "2 dims"),
        (program('@mesh, [{"x"}, {}, {}], odd={"y"}'), "a sharding has no 'odd'"),
        (
            program('@mesh, [{"x"}, {}, {}]', mesh='sdy.mesh @mesh = <["x"=2], device_ids=[1, 2]>'),
            "device_ids=[1, 2]: the numbers from 0 to 1, each once, are right",
        ),
        (
            program('@mesh, [{}, {}, {}], unreduced={"y":(1)2}'),
            "unreduced over y:(1)2, a part of an axis: a reduction is pending over whole axes only",
        ),
        (program("@mesh, [{?}p99999999999999999999, {}, {}]"), "64 bits are right"),
        (program('@mesh, [{}, {}, {}], unreduced=mean{"y"}'), "sum, max, min are known"),
        (
            constrained("")
            .replace("sdy.sharding_constraint %0 <>", "stablehlo.negate %0")
            .replace("%1 =", "sdy.sharding_group %0 group_id=3 : tensor<8x16xf32>\n    %1 ="),
            "sdy.sharding_group 3: none of its values has a sharding",
        ),
        (
            program('@mesh, [{"x"}, {}, {}]', mesh='sdy.mesh @mesh = <["x-1"=2]>').replace(
                '{"x"}', '{"x-1"}'
            ),
            "x-1",
        ),
        (
            program(
                '@mesh, [{"x"}, {}, {}]',
                result=', sdy.sharding = #sdy.sharding<mesh<["x"=4]>, [{"x"}, {}, {}]>',
            ),
            "shardings over several meshes (x=2, y=4 at p.mlir:3:1, x=4 here)",
        ),
        (
            constrained('@mesh, [{"x"}]'),
            "p.mlir:5:10: a sharding of 1 dims for a value of type tensor<8x16xf32>",
        ),
        (
            constrained("@mesh, [{x}, {}]"),
            "p.mlir:5:10: #sdy.sharding<@mesh, [{x}, {}]>: expected a string",
        ),
        (constrained('@mesh, [{"x"}, {}').replace("> :", " :"), "p.mlir:5:37: '<' is never closed"),
    ],
)
def test_what_cannot_be_said_is_refused(text, says):
    assert says in refusal(text)


@pytest.mark.parametrize("op", ["all_gather", "named_computation", "frobnicate"])
def test_unknown_sdy_ops_are_refused_at_their_place(op):
    text = constrained('@mesh, [{"x"}, {}]').replace("sdy.sharding_constraint", f"sdy.{op}")
    assert refusal(text).startswith(f"p.mlir:5:10: sdy.{op}")


def test_an_op_that_says_nothing_is_refused_at_its_place():
    text = """module {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%a: tensor<8xf32>) -> tensor<8xf32> {
    %0 = "sdy.sharding_constraint"(%a) : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}"""
    assert refusal(text) == 'p.mlir:4:10: sdy.sharding_constraint: it has no attribute "sharding"'


def test_gspmd_annotations_are_refused_unless_replicated():
    body = """module {
  func.func public @main(%a: tensor<8xf32> {mhlo.sharding = "SHARDING"}) -> tensor<8xf32> {
    %0 = stablehlo.negate %a : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}"""
    assert "GSPMD" in refusal(body.replace("SHARDING", "{devices=[2]<=[2]}"))
    assert (
        argument(body.replace("SHARDING", "{replicated}")) == '{dist.layout = #dist.layout<"[_]">}'
    )


def test_two_meshes_of_the_same_axes_are_one():
    text = program('@mesh, [{"x"}, {}, {}]', mesh=MESH + "\n  " + MESH.replace("@mesh", "@again"))
    assert "dist.mesh" in str(load(text))


def test_texts_round_trip_as_values():
    sharding = parse_sharding(
        '#sdy.sharding<@m, [{"a", "b":(2)4, ?}p3, {}], replicated={"c"}, unreduced={"d"}>'
    )
    assert sharding.axes == (("a", "b:(2)4"), ()) and sharding.open_dims == (0,)
    assert sharding.priorities == (3, None) and sharding.named_axes == {"a", "b", "c", "d"}
    assert sharding.layout() == "[a*b:(2)4, _] +sum(d)"
    assert parse_mesh('<["a"=2], device_ids=[1, 0]>').device_ids == (1, 0)


def test_the_context_is_left_as_it_was():
    ctx = context()
    load_module(program('@mesh, [{"x"}, {}, {}]'), ctx)
    assert not ctx.allow_unregistered_dialects
    with pytest.raises(ir.MLIRError), ctx:
        ir.Module.parse('"foo.bar"() : () -> ()')


FORMS = {
    "a mesh in full": (MESH.replace("= <", "= #sdy.mesh<"), '<@mesh, [{"x"}, {}]>', "[x, _]"),
    "a sharding in full": (MESH, '#sdy.sharding<@mesh, [{"x"}, {}]>', "[x, _]"),
    "a maximum": (MESH, '<@mesh, [{"x"}, {}], unreduced=max{"y"}>', "[x, _] +max(y)"),
    "one device": (MESH + "\n  sdy.mesh @one = <[], device_ids=[3]>", "<@one, []>", "[_, _]"),
    "other devices": (MESH.replace("]>", "], device_ids=[7, 6, 5, 4, 0, 1, 2, 3]>"), '<@mesh, [{"x"}, {}]>', "[x, _]"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_meshes_and_shardings(form):
    mesh, sharding, wanted = FORMS[form]
    text = constrained("@mesh, []", mesh).replace("<@mesh, []>", sharding)
    found = str(load(text))
    assert '"dist.constrain"' in found and f'{{layout = #dist.layout<"{wanted}">}}' in found


def test_forms_of_shardings_on_ops_and_calls():
    long = '#sdy.sharding_per_value<[#sdy.sharding<@mesh, [{"x"}, {}]>]>'
    op = constrained("@mesh, [{}, {}]").replace(
        "stablehlo.add %a, %a :", f"stablehlo.add %a, %a {{sdy.sharding = {long}}} :"
    )
    call = f"""module {{
  {MESH}
  func.func public @main(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {{
    %0 = func.call @f(%a) {{sdy.sharding = {long}}} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    return %0 : tensor<8x16xf32>
  }}
  func.func private @f(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {{
    %0 = stablehlo.tanh %a : tensor<8x16xf32>
    return %0 : tensor<8x16xf32>
  }}
}}"""
    for text in (op, call):
        assert '{layout = #dist.layout<"[x, _]">}' in str(load(text))


def test_values_of_a_group_share_a_sharding_and_a_barrier_is_passed():
    text = f"""module {{
  {MESH}
  func.func public @main(%a: tensor<8x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{"y"}}]>}}) -> tensor<8x16xf32> {{
    %0 = stablehlo.tanh %a : tensor<8x16xf32>
    sdy.sharding_group %a group_id=0 : tensor<8x16xf32>
    sdy.sharding_group %0 group_id=0 : tensor<8x16xf32>
    %1 = sdy.propagation_barrier %0 allowed_direction=NONE : tensor<8x16xf32>
    %2 = stablehlo.negate %1 : tensor<8x16xf32>
    return %2 : tensor<8x16xf32>
  }}
}}"""
    said = "allowed_direction=FORWARD {sdy.sharding=#sdy.sharding_per_value<[<@mesh, [{}, {}]>]>}"
    assert "[_, _]" in str(load(text.replace("allowed_direction=NONE", said)))
    found = str(load(text))
    assert found.count('"dist.constrain"') == 1 and '{layout = #dist.layout<"[x, y]">}' in found
    assert "sdy" not in found
    on_op = text.replace(' {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}', "").replace(
        "tanh %a", 'tanh %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}'
    )
    assert str(load(on_op)).count('{layout = #dist.layout<"[x, _]">}') == 2  # and on the argument


ORDERED = """module {
  sdy.mesh @mesh = <["x"=2, "y"=2], device_ids=[DEVICES]>
  func.func public @main(%a: tensor<4x4xi32>) -> tensor<4x4xi32> {
    %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{"x"}, {"y"}]>] out_shardings=[<@mesh, [{"x"}, {"y"}]>] manual_axes={"x", "y"} (%b: tensor<2x2xi32>) {
      %1 = "stablehlo.all_reduce"(%b) <{replica_groups = dense<GROUPS> : tensor<2x2xi64>}> ({
      ^bb0(%p: tensor<i32>, %q: tensor<i32>):
        %s = stablehlo.add %p, %q : tensor<i32>
        stablehlo.return %s : tensor<i32>
      }) : (tensor<2x2xi32>) -> tensor<2x2xi32>
      %2 = "stablehlo.collective_permute"(%1) <{source_target_pairs = dense<PAIRS> : tensor<4x2xi64>}> : (tensor<2x2xi32>) -> tensor<2x2xi32>
      %3 = stablehlo.partition_id : tensor<ui32>
      %4 = stablehlo.convert %3 : (tensor<ui32>) -> tensor<i32>
      %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<i32>) -> tensor<2x2xi32>
      %6 = stablehlo.constant dense<1000> : tensor<2x2xi32>
      %7 = stablehlo.multiply %5, %6 : tensor<2x2xi32>
      %8 = stablehlo.add %2, %7 : tensor<2x2xi32>
      sdy.return %8 : tensor<2x2xi32>
    } : (tensor<4x4xi32>) -> tensor<4x4xi32>
    return %0 : tensor<4x4xi32>
  }
}"""


@pytest.mark.parametrize("devices", [[0, 1, 2, 3], [2, 0, 3, 1], [3, 2, 1, 0]])
def test_collectives_name_the_devices_of_a_mesh_in_any_order(devices):
    """Sums over y, then a swap along x; and the number of each rank's device."""
    groups = [devices[:2], devices[2:]]
    pairs = [[devices[a], devices[b]] for a, b in ((0, 2), (1, 3), (2, 0), (3, 1))]
    words = {"DEVICES": str(devices)[1:-1], "GROUPS": str(groups), "PAIRS": str(pairs)}
    text = ORDERED
    for word, said in words.items():
        text = text.replace(word, said)
    value = np.arange(16, dtype=np.int32).reshape(4, 4)
    with mw.compile(text) as program:
        (found,) = program(value)
    sums = np.tile(value[:, :2] + value[:, 2:], 2)
    wanted = np.roll(sums, 2, 0) + 1000 * np.kron(np.reshape(devices, (2, 2)), np.ones((2, 2), int))
    np.testing.assert_array_equal(found, wanted)


def test_open_sizes_in_a_manual_computation_are_refused():
    text = """module {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%a: tensor<4x2xf32>) -> tensor<?x2xf32> {
    %0 = stablehlo.add %a, %a : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<?x2xf32>
    %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%b: tensor<?x2xf32>) {
      %2 = stablehlo.add %b, %b : tensor<?x2xf32>
      sdy.return %2 : tensor<?x2xf32>
    } : (tensor<?x2xf32>) -> tensor<?x2xf32>
    return %1 : tensor<?x2xf32>
  }
}"""
    assert "a size that is open" in refusal(text)
