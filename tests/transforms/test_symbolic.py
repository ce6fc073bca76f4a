"""Programs on symbolic meshes: specialized late they are what a compile for those numbers gives."""

from fractions import Fraction
from itertools import product
from math import ceil
from pathlib import Path

import pytest
from depth import deep, examples, sampled
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import programs

from meshweave.dialects import lent_context
from meshweave.errors import MeshweaveError
from meshweave.frontends.load import load_module
from meshweave.ir.bindings import ir
from meshweave.layout import Mesh
from meshweave.pipeline import run_pipeline
from meshweave.plan.family import family
from meshweave.transforms.base import functions, mesh_op, ops_of
from meshweave.transforms.propagation.propagate import Propagate
from meshweave.transforms.propagation.symbolic import Record, module_costs
from meshweave.transforms.redistribution.insert_redistribute import InsertRedistribute

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = ("mlp", "attention", "block", "gpt2l")
BEFORE = "dist-propagate,dist-insert-redistribute,dist-legalize-redistribute"
CLEAN = "canonicalize,cse"


def on_mesh(source, axes, passes):
    """The module, with `axes` for its mesh, after the passes."""
    with lent_context() as ctx, ctx:
        module = load_module(source, ctx)
        with ir.Location.unknown(ctx):
            mesh_op(module).operation.attributes["axes"] = ir.StringAttr.get(axes)
        run_pipeline(module, passes)
        return module


def outcome(source, axes, passes):
    """The text of the module after the passes, or what the error says."""
    try:
        return str(on_mesh(source, axes, passes))
    except MeshweaveError as error:
        return error.message


def late(sizes):
    return f"{BEFORE},dist-specialize-mesh{{sizes={sizes}}}"


def sizes_of(mesh, sizes):
    """`N=2,M=4` for the symbols of a mesh text such as `x=N, y=M`."""
    symbols = [a.size for a in Mesh.parse(mesh).axes if isinstance(a.size, str)]
    return dict(zip(symbols, sizes, strict=False))


def same_late_as_concrete(source, symbolic, sizes):
    """Is the program the same, early, late and with the numbers in its text, with plans and in the local view?"""
    numbers = ",".join(f"{name}={n}" for name, n in sizes.items())
    concrete = str(Mesh.parse(symbolic).specialize(**sizes))
    for after in (CLEAN, f"dist-partition,{CLEAN}"):
        wanted = outcome(source, concrete, f"{BEFORE},{after}")
        assert outcome(source, symbolic, f"{late(numbers)},{after}") == wanted
    early = f"dist-specialize-mesh{{sizes={numbers}}},{BEFORE},{after}"
    assert outcome(source, symbolic, early) == wanted


@sampled(4)
@pytest.mark.parametrize("model", [*MODELS[:-1], pytest.param(MODELS[-1], marks=deep)])
@pytest.mark.parametrize("mesh", ["dp=N, tp=2", "dp=2, tp=N", "dp=N, tp=M", "dp=N, tp=N"])
def test_models(model, mesh):
    source = EXAMPLES / model / f"{model}.mlir"
    symbols = len(sizes_of(mesh, (1, 1)))
    every = (1, 2, 4, 8) if symbols == 1 else (1, 2, 8)
    for sizes in product(every, repeat=symbols):
        same_late_as_concrete(source, mesh, sizes_of(mesh, sizes))


@settings(max_examples=examples(40))
@given(
    programs(Mesh(x=2, y=2)),
    st.sampled_from(["x=N, y=2", "x=2, y=N", "x=N, y=M"]),
    st.sampled_from([1, 2, 3, 4, 8]),
    st.sampled_from([1, 2, 3]),
)
def test_random_programs(p, mesh, n, m):
    same_late_as_concrete(p.text(), mesh, sizes_of(mesh, (n, m)))


WINDOWS = {
    "pad": """
  %z = arith.constant 0.0 : f32
  %r = tensor.pad %a low[0] high[2] {
  ^bb0(%i: index):
    tensor.yield %z : f32
  } : tensor<NAxf32> to tensor<NRxf32>""",
    "slice": """
  %r = tensor.extract_slice %a[1] [NR] [1] : tensor<NAxf32> to tensor<NRxf32>""",
    "insert": """
  %z = arith.constant dense<0.0> : tensor<NRxf32>
  %r = tensor.insert_slice %a into %z[1] [NA] [1] : tensor<NAxf32> into tensor<NRxf32>""",
    "concat": """
  %r = tensor.concat dim(0) %a, %a : (tensor<NAxf32>, tensor<NAxf32>) -> tensor<NRxf32>""",
    "sums of three": """
  %z = arith.constant 0.0 : f32
  %k = arith.constant dense<1.0> : tensor<3xf32>
  %e = tensor.empty() : tensor<NRxf32>
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<NRxf32>) -> tensor<NRxf32>
  %r = linalg.conv_1d ins(%a, %k : tensor<NAxf32>, tensor<3xf32>) outs(%i : tensor<NRxf32>) -> tensor<NRxf32>""",
}
GROWN = {"pad": 2, "slice": -1, "insert": 1, "concat": None, "sums of three": -2}
"""By how much a result is longer than what is read; None: as long again."""


def through_windows(body, rows, layouts):
    """The text of a program that reads a tensor of so many rows through windows, with `layouts` of both ends."""
    grown = GROWN[body]
    after = rows + (rows if grown is None else grown)
    ports = [f'{{dist.layout = #dist.layout<"{layout}">}}' for layout in layouts]
    return f"""
"dist.mesh"() {{sym_name = "mesh", axes = "x=2, y=2"}} : () -> ()
func.func @main(%a: tensor<{rows}xf32> {ports[0]}) -> (tensor<{after}xf32> {ports[1]}) {{
{WINDOWS[body].replace("NA", str(rows)).replace("NR", str(after))}
  return %r : tensor<{after}xf32>
}}
"""


@sampled(1)
@pytest.mark.parametrize("body", WINDOWS)
@pytest.mark.parametrize(
    "mesh, layouts, rows, n",
    [
        ("x=N, y=2", ("[_]", "[y]"), 4, 1),
        ("x=2, y=N", ("[y]", "[_]"), 13, 3),
        ("x=N, y=2", ("[y*x]", "[y*x]"), 13, 2),
        ("x=2, y=N", ("[x]", "[y]"), 13, 4),
    ],
)
def test_windows_are_chosen_when_the_mesh_has_numbers(body, mesh, layouts, rows, n):
    same_late_as_concrete(through_windows(body, rows, layouts), mesh, {"N": n})


def test_padding_of_one_row_where_an_axis_has_one_rank():
    same_late_as_concrete(through_windows("pad", 1, ("[_]", "[y]")), "x=N, y=2", {"N": 1})


SAID = """
"dist.mesh"() {sym_name = "mesh", axes = "x=N, y=2"} : () -> ()
func.func private @twice(%a: $T) -> $T {
  %e = tensor.empty() : $T
  %s = linalg.add ins(%a, %a : $T, $T) outs(%e : $T) -> $T
  %c = "dist.constrain"(%s) {layout = #dist.layout<"[y, _]">, open = array<i64: 1>} : ($T) -> $T
  return %c : $T
}
func.func @main(%a: $T {dist.layout = #dist.layout<"[x, _]">, dist.open = array<i64: 1>},
                %b: $T {dist.layout = #dist.layout<"[_*x, _]">}, %w: $T, %go: i1)
    -> ($T, $T {dist.layout = #dist.layout<"[_, _] order(1, 0)">}) {
  %r = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, x]">} : ($T) -> $T
  %q = "dist.redistribute"(%r) {source = #dist.layout<"[_, x]">, target = #dist.layout<"[_, x*y]">} : ($T) -> $T
  %same = "dist.redistribute"(%w) {source = #dist.layout<"[_, y]">, target = #dist.layout<"[_, y]">} : ($T) -> $T
  %t = func.call @twice(%q) : ($T) -> $T
  %i = scf.if %go -> $T {
    %f = "dist.constrain"(%b) {layout = #dist.layout<"[_, x]">} : ($T) -> $T
    scf.yield %f : $T
  } else {
    scf.yield %same : $T
  }
  %e = tensor.empty() : $T
  %s = linalg.add ins(%t, %i : $T, $T) outs(%e : $T) -> $T
  return %s, %t : $T, $T
}
""".replace("$T", "tensor<6x8xf32>")


@sampled(1)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 8, 16])
def test_what_the_user_said_outlives_a_second_choice(n):
    same_late_as_concrete(SAID, "x=N, y=2", {"N": n})


@sampled(1)
@pytest.mark.parametrize("passes", ["dist-propagate", "dist-propagate,dist-insert-redistribute"])
@pytest.mark.parametrize("n", [2, 16])
def test_numbers_may_come_between_any_passes(passes, n):
    rest = BEFORE.removeprefix(passes).removeprefix(",")
    for source, mesh in ((SAID, "x=N, y=2"), (EXAMPLES / "block" / "block.mlir", "dp=2, tp=N")):
        concrete = str(Mesh.parse(mesh).specialize(N=n))
        between = f"{passes},dist-specialize-mesh{{sizes=N={n}}},{rest},{CLEAN}"
        assert outcome(source, mesh, between) == outcome(source, concrete, f"{BEFORE},{CLEAN}")


@pytest.mark.parametrize("model", MODELS)
def test_layouts_are_chosen_once(model, monkeypatch):
    module = on_mesh(EXAMPLES / model / f"{model}.mlir", "dp=N, tp=M", BEFORE)
    known = Record.of(mesh_op(module)).sizes
    assert {"N=2, M=2", "N=2, M=4", "N=4, M=8"} <= set(known)

    def again(*_):
        raise AssertionError("propagated again")

    monkeypatch.setattr(Propagate, "run", again)
    monkeypatch.setattr(InsertRedistribute, "run", again)
    with module.context:
        run_pipeline(module, "dist-specialize-mesh{sizes=N=4,M=8}")
    assert 'axes = "dp=4, tp=8"' in str(module) and "given" not in str(module)


def value(text, sizes):
    """What the text of a formula says, read by Python."""
    names = {name: Fraction(n) for name, n in sizes.items()}
    return eval(text, {"ceil": ceil, "max": max, "__builtins__": {}}, names)


def plans(module):
    """(op, bytes) of each step of each plan."""
    found = []
    for op in ops_of(module, "dist.redistribute"):
        for step in op.operation.attributes["plan"]:
            step = ir.DictAttr(step)
            found.append((step["op"].value, step["bytes"].value))
    return found


@sampled(4)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mesh", ["dp=N, tp=2", "dp=N, tp=M"])
def test_formulas_are_the_bytes_of_the_concrete_program(model, mesh):
    """Of collectives; an exchange has no formula."""
    before = BEFORE + "{steps=block}"
    source = EXAMPLES / model / f"{model}.mlir"
    module = on_mesh(source, mesh, before)
    costs = module_costs(module)
    assert costs is not None and costs.late == 0
    compared = 0
    for sizes in family(Mesh.parse(mesh)):
        concrete = on_mesh(source, str(Mesh.parse(mesh).specialize(**sizes)), before)
        if len(plans(concrete)) == len(plans(module)):
            for (op, formula), (wanted, nbytes) in zip(plans(module), plans(concrete), strict=True):
                assert (op, value(formula, sizes)) == (wanted, nbytes)
            assert costs.nbytes.at(sizes) == sum(nbytes for _, nbytes in plans(concrete))
            compared += 1
    assert compared >= 2


@pytest.mark.parametrize("model", ["block", "gpt2l"])
@pytest.mark.parametrize("mesh", ["dp=1, tp=1", "dp=2, tp=1"])
def test_axes_of_one_rank_move_nothing(model, mesh):
    assert plans(on_mesh(EXAMPLES / model / f"{model}.mlir", mesh, BEFORE)) == []


def test_an_identity_that_the_user_wrote_stays_until_there_are_numbers():
    module = on_mesh(SAID, "x=N, y=2", BEFORE)
    assert str(module).count("plan = []") == 1
    assert '"made when the mesh has numbers"' in str(module)
    costs = module_costs(module)
    assert costs is not None and costs.late > 0


@pytest.mark.parametrize(
    "passes, message",
    [
        (f"{BEFORE},dist-partition", "still has symbolic sizes: run dist-specialize-mesh first"),
        (late("M=2"), 'no symbol "M" in mesh (x=N, y=2)'),
        (late("N=0"), "axis x=0: a size is at least 1"),
        (late("N=-2"), 'size "N=-2" is not SYMBOL=NUMBER'),
        (late("N=\u00b2"), "is not SYMBOL=NUMBER"),
        (late("N=99999999999"), "at most 2147483647 work"),
        (f"{BEFORE},dist-specialize-mesh", "still has symbolic sizes: give each a number"),
        (
            f'{BEFORE},dist-specialize-mesh{{mesh="x=M, y=2"}}',
            "still has symbolic sizes: give each a number",
        ),
    ],
)
def test_refusals(passes, message):
    assert message in outcome(SAID, "x=N, y=2", passes)


def test_every_symbol_needs_a_number():
    assert "mesh (x=2, y=M) still has symbolic sizes" in outcome(SAID, "x=N, y=M", late("N=2"))


@sampled(4)
@pytest.mark.parametrize("mesh", ["x=y, y=2", "x=y, y=x", "x=self, y=2", "x=N, y=N"])
def test_symbols_of_any_name(mesh):
    for sizes in ((2, 3), (4, 2)):
        same_late_as_concrete(SAID, mesh, sizes_of(mesh, sizes))


def test_a_function_that_has_changed_is_refused():
    module = on_mesh(SAID, "x=N, y=2", BEFORE)
    with module.context:
        main = functions(module)[1].operation
        given = {a.name: a.attr for a in ir.DictAttr(main.attributes["dist.given"])}
        given["arg_attrs"] = ir.ArrayAttr.get(list(given["arg_attrs"])[:-1])
        main.attributes["dist.given"] = ir.DictAttr.get(given)
        with pytest.raises(MeshweaveError, match="its signature has changed since dist-propagate"):
            run_pipeline(module, "dist-specialize-mesh{sizes=N=16}")
