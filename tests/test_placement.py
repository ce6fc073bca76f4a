"""Programs that are placed, not propagated, give what NumPy gives: random ones on several meshes."""

import json
import re
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from commands import ROOT
from depth import DEEP, examples, sampled, some
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.test_elimination import integer_program
from programs import Program, programs
from test_execute import FAMILIES, MESHES

import meshweave
import meshweave as mw
from meshweave.dialects import context
from meshweave.errors import MeshweaveError, UsageError
from meshweave.frontends.load import load_module
from meshweave.ir.bindings import ir
from meshweave.layout import Mesh
from meshweave.layout.mesh import Link
from meshweave.plan.cost import Profile
from meshweave.plan.placement.place import PlacementProblem
from meshweave.plan.placement.prices import MachinePrices, machine_of, rates_of
from meshweave.plan.placement.terms import Choices, CostTerm, cost_of
from meshweave.see import profile
from meshweave.transforms.base import set_mesh
from meshweave.transforms.propagation.interface import open_interfaces
from meshweave.transforms.propagation.place import placed


def check(p: Program, **said: Any) -> None:
    """Place `p`, run it and compare every result, element by element. said: what is asked of placement."""
    with meshweave.compile(p.text(), layouts="auto", timeout=30, **said) as program:
        assert program.peak_bytes <= said.get("peak_bytes", program.peak_bytes)
        results = program(*[v.value for v, _ in p.inputs])
    for i, (result, (value, layout)) in enumerate(zip(results, p.results)):
        np.testing.assert_array_equal(result, value.value, f"result {i}, {layout}\n{p.text()}")


@sampled(4)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_placed_programs_give_what_numpy_gives(family: str) -> None:
    steps, count = FAMILIES[family]

    @settings(max_examples=examples(count // 12))
    @given(st.sampled_from(MESHES).flatmap(lambda mesh: programs(mesh, only=steps)))
    def run(p: Program) -> None:
        check(p)

    run()


@sampled(4)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_any_choices_give_what_numpy_gives(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, count = FAMILIES[family]

    @settings(max_examples=examples(count // 8))
    @given(st.sampled_from(MESHES[1:]).flatmap(lambda m: programs(m, only=steps)), st.integers(0))
    def run(p: Program, seed: int) -> None:
        rng = np.random.default_rng(seed)

        def solve(self: PlacementProblem, terms: object = ()) -> Choices:
            picks = tuple(int(rng.integers(n)) for n in self.sizes)
            return Choices(picks, cost_of(picks, self.terms), 0.0)

        monkeypatch.setattr(PlacementProblem, "solve", solve)
        check(p)

    run()


@sampled(4)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_programs_within_a_bound_on_bytes_give_what_numpy_gives(family: str) -> None:
    """The fewest bytes are asked for, and then a bound on what the fastest placement takes."""
    steps, count = FAMILIES[family]
    meshes = [m for m in MESHES[1:] if DEEP or len(m.axes) < 3]  # three axes take half a minute

    @settings(max_examples=examples(count // 24))
    @given(st.sampled_from(meshes).flatmap(lambda m: programs(m, only=steps)))
    def run(p: Program) -> None:
        check(p, objective="bytes")
        with meshweave.compile(p.text(), layouts="auto") as program:
            taken = program.peak_bytes
        check(p, peak_bytes=max(1, taken))

    run()


def product(x: Any, w: Any) -> Any:
    return mw.maximum(x @ w, 0.0) @ w.T


X, W = np.ones((48, 40), np.float32), np.full((40, 30), 0.25, np.float32)
WANTED = np.maximum(X @ W, 0) @ W.T


@pytest.mark.parametrize(
    "said",
    [
        {"mesh": "dp=2, tp=3", "layouts": "auto"},
        {"mesh": "auto", "ranks": 4},
        {"mesh": "dp=2, tp=2", "layouts": "auto", "in_layouts": ("[dp, _]", "[_, tp]")},
        {"mesh": "dp=2, tp=2", "in_layouts": ("[tp, dp]", "auto"), "out_layouts": "auto"},
        {"mesh": "x=3", "layouts": "auto", "in_layouts": ("[_*x, _]", "[x, _]")},
    ],
)
def test_what_is_said_is_kept_and_the_rest_is_chosen(said: dict[str, Any]) -> None:
    placed = mw.jit(product, **said)
    np.testing.assert_allclose(np.asarray(placed(X, W)), WANTED, rtol=1e-5)
    ports = placed.lower(X, W).compile().program.inputs
    for port, layout in zip(ports, said.get("in_layouts", ())):
        assert layout in ("auto", str(port.layout))
    placed.close()


def test_explain_says_what_other_layouts_cost_and_how_to_pin_the_plan() -> None:
    placed = mw.jit(product, mesh="dp=2, tp=2", layouts="auto", in_layouts=(None, "[_, tp]"))
    placed(X, W)
    text = placed.explain()
    assert "proven" in text and "costs more" in text and "next best plans" in text
    placed.close()
    held = np.ones((40, 2048), np.float32)  # large enough to be an argument of the program
    for fn, values in ((product, (X, W)), (lambda x: mw.maximum(x @ held, 0.0), (X,))):
        placed = mw.jit(fn, mesh="dp=2, tp=2", layouts="auto")
        placed(*values)
        pins = str(placed.explain()).replace("\n", " ").partition("to pin it: ")[2]
        said = pins.partition('"auto"')[0]
        pinned = mw.jit(fn, **eval(f"dict({said}'auto')"))
        pinned(*values)
        layouts = [[p.layout for p in one._last.program.inputs] for one in (placed, pinned)]
        assert layouts[0] == layouts[1] and pins.count('"[') == len(values) + 1
        placed.close()
        pinned.close()
    placed = mw.jit(lambda p: {"y": p["x"] @ p["w"]}, mesh="x=2", layouts="auto")
    placed({"x": X, "w": W})
    said = " ".join(str(placed.explain()).split())
    assert "in pytrees like the arguments and the results" in said
    placed.close()


def test_an_array_with_a_layout_keeps_it_unless_auto_is_said() -> None:
    array = mw.Array.from_numpy(X, mesh="x=2", layout="[_, x]")
    for layouts, kept in ((None, True), (("auto", None), False)):
        placed = mw.jit(product, mesh="x=2", layouts="auto", in_layouts=layouts)
        np.testing.assert_allclose(np.asarray(placed(array, W)), WANTED, rtol=1e-5)
        first = placed.lower(array, W).compile().program.inputs[0]
        assert (str(first.layout) == "[_, x]") == kept
        placed.close()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"mesh": "auto"}, 'mesh="auto" needs the number of ranks'),
        ({"mesh": "x=2", "ranks": 2}, 'ranks=2 goes with mesh="auto"'),
        ({"mesh": "x=2", "layouts": "best"}, "layouts='best': \"auto\" or None is right"),
        ({"mesh": "auto=2, x=2"}, "auto is no axis"),
    ],
)
def test_what_cannot_be_placed_is_refused(said: dict[str, Any], message: str) -> None:
    with pytest.raises(MeshweaveError, match=re.escape(message)):
        mw.jit(product, **said)


def test_sizes_that_calls_choose_are_refused() -> None:
    placed = mw.jit(product, mesh="x=2", layouts="auto")
    n = mw.Dim("n", max=64)
    with pytest.raises(UsageError, match="layouts are chosen for sizes that are known"):
        placed.lower(mw.ShapeDtype((n, 40), "f32"), W)


def test_run_tells_of_the_placement() -> None:
    file = ROOT / "examples/mlp/mlp.mlir"
    done = commands.meshweave("run", file, "--mesh", "auto=2", "--check", "--json")
    assert done.status == 0, done.err
    said = json.loads(done.out)["placement"]
    assert said["mesh"] in ("dp=2,tp=1", "dp=1,tp=2") and said["gap"] == 0.0
    assert said["predicted_seconds"] > 0 and said["bytes"] >= 0 and said["decisions"]


def test_jax_functions_are_placed() -> None:
    pytest.importorskip("jax")
    for mesh in ("dp=2, tp=2", "auto=4"):
        with mw.from_jax(lambda x, w: (x @ w).sum(0), X, W, mesh=mesh, layouts="auto") as program:
            assert program.mesh.nranks == 4
            np.testing.assert_allclose(np.asarray(program(X, W)), (X @ W).sum(0), rtol=1e-5)


@pytest.mark.torch
def test_torch_modules_are_placed() -> None:
    torch = pytest.importorskip("torch")
    module, x = torch.nn.Linear(12, 6).eval(), torch.ones(4, 12)
    for mesh in ("dp=2, tp=2", "auto=4"):
        placements = {"weight": "[tp, _]"} if mesh != "auto=4" else None
        with mw.from_torch(module, (x,), placements, mesh=mesh, layouts="auto") as program:
            assert program.mesh.nranks == 4
            assert torch.allclose(program(x), module(x), atol=1e-5)


def test_a_machine_is_measured_written_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "SECONDS", 0.02)
    prices, about, links = profile.measured(2)
    assert about.startswith("measured on engine local, 2 ranks") and prices.iteration > 0
    file = tmp_path / "machine.toml"
    between = Profile(Link(1e-3, 2e-3), 3e-3, prices.profile.copy_beta)
    file.write_text(profile.prices_text(prices, about, {**links, "mpi": between}))
    again = profile.read_prices(file)
    assert rates_of(again) == pytest.approx(rates_of(prices), rel=1e-3)
    assert machine_of(rates_of(again)) == again
    other = profile.read_prices(file, "mpi")
    assert other.profile.link == between.link and other.products == again.products


@pytest.mark.parametrize("name", ["h100", "h200", "ethernet"])
def test_machines_come_along_with_the_sources_of_their_figures(name: str) -> None:
    prices = profile.read_prices(name)
    assert prices != MachinePrices()
    above = ""
    for line in (profile.KNOWN / f"{name}.toml").read_text().splitlines():
        if " = " in line and not line.startswith("#"):
            assert ":" in line.partition("#")[2] or ":" in above or line.startswith("written")
        above = line if line.startswith("#") else ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("iteration = 1.0", r"a table \[machine\] with iteration"),
        ("[machine]\nbetta = 1.0", 'a machine has no "betta"'),
        ("[machine]\nbeta = -1.0", "beta is -1.0: seconds, 0 or more, are right"),
        ("[machine]\nread = [1.0]", r"read is \[1.0\]: 3 numbers of seconds, 0 or more"),
        ("[locol]\nbeta = 1.0", 'a machine has no "locol"'),
        ("[machine", "no TOML"),
    ],
)
def test_what_is_no_machine_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "machine.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        profile.read_prices(file)


def test_choices_follow_the_machine(tmp_path: Path) -> None:
    """Where bytes cost much rows are cut on both ranks; where work costs nothing each rank does it all."""
    file, text = tmp_path / "machine.toml", tmp_path / "program.mlir"
    kind = "tensor<256x256xf32>"
    text.write_text(
        f'func.func @main(%a: {kind} {{dist.layout = #dist.layout<"[_, _]">}}) -> ({kind} '
        f'{{dist.layout = #dist.layout<"[_, _]">}}) {{\n%e = tensor.empty() : {kind}\n'
        f"%0 = linalg.exp ins(%a : {kind}) outs(%e : {kind}) -> {kind}\nreturn %0 : {kind}\n}}\n"
    )
    for iteration, collectives in ((1e-12, 0), (1e-3, 1)):
        rates = f"iteration = {iteration}\nfunction = {iteration}\nread = [0, 0, 0]\nwritten = [0, 0, 0]\n"
        file.write_text(f"[machine]\n{rates}copy_beta = 0.0\n")
        done = commands.meshweave("run", text, "--mesh", "auto=2", "--profile", file, "--json")
        assert done.status == 0, done.err
        assert len(json.loads(done.out)["collectives"]) == collectives
    refused = commands.meshweave("run", text, "--mesh", "x=2", "--profile", file)
    assert refused.status == 2 and "--profile goes with --mesh auto=N" in refused.err


def test_all_ranks_work_where_there_are_too_many_ways_to_run_an_op() -> None:
    """On five axes not all ways to run a product are looked at: those with neighbours together are, with a bound."""
    text = """func.func public @main(%a: tensor<256x256xf32>, %b: tensor<256x256xf32>) -> tensor<256x256xf32> {
      %z = arith.constant dense<0.0> : tensor<256x256xf32>
      %0 = linalg.matmul ins(%a, %b : tensor<256x256xf32>, tensor<256x256xf32>) outs(%z : tensor<256x256xf32>)
        -> tensor<256x256xf32>
      return %0 : tensor<256x256xf32>
    }"""
    found = {}
    for mesh in (Mesh(a=32), Mesh(a=2, b=2, c=2, d=2, e=2)):
        ctx = context(unregistered=True)
        with ctx, ir.Location.unknown():
            module = load_module(
                f'"dist.mesh"() {{sym_name = "mesh", axes = "{mesh}"}} : () -> ()\n{text}', ctx, "x"
            )
            open_interfaces(module, mesh)
            found[len(mesh.axes)] = placed(module, mesh, MachinePrices())[2]
    assert found[1].gap == 0 < found[5].gap < 0.5
    assert found[5].bound <= found[1].cost and found[5].cost <= found[1].cost * 1.001


@pytest.mark.parametrize("mesh", ["dp=2, tp=2", "dp=4, tp=2"])
def test_an_integer_program_finds_no_better_placement_of_an_example(mesh: str) -> None:
    """In microseconds, since the solver takes differences of 1e-6 for none."""
    ctx = context(unregistered=True)
    with ctx, ir.Location.unknown():
        module = load_module((ROOT / "examples/mlp/mlp.mlir").read_text(), ctx, "mlp.mlir")
        set_mesh(module, Mesh.parse(mesh))
        open_interfaces(module, Mesh.parse(mesh))
        _, problem, choices = placed(module, Mesh.parse(mesh), MachinePrices())
    terms = [CostTerm(term.variables, 1e6 * term.table) for term in problem.terms]
    assert choices.gap == 0
    assert 1e6 * choices.cost == pytest.approx(integer_program(problem.sizes, terms), rel=1e-4)


def test_layouts_beyond_blocks_cost_what_the_machine_takes() -> None:
    kind = "tensor<16x16xf32>"
    text = (
        f'"dist.mesh"() {{sym_name = "mesh", axes = "x=2"}} : () -> ()\nfunc.func public @main(%a: {kind} '
        f'{{dist.layout = #dist.layout<"[_*x, _]">}}) -> {kind} {{\n%e = tensor.empty() : {kind}\n'
        f"%0 = linalg.exp ins(%a : {kind}) outs(%e : {kind}) -> {kind}\nreturn %0 : {kind}\n}}\n"
    )
    costs = []
    slow = Profile(Link(1e-5, 1.0), 1e-5, 1e-10)
    for machine in (MachinePrices(), MachinePrices(slow)):
        ctx = context(unregistered=True)
        with ctx, ir.Location.unknown():
            module = load_module(text, ctx, "x")
            open_interfaces(module, Mesh(x=2))
            costs.append(placed(module, Mesh(x=2), machine)[2].cost)
    assert costs[0] < 1 < costs[1]


def test_what_a_function_returns_is_moved_once_for_each_call() -> None:
    kind = "tensor<256x256xf32>"
    costs = []
    for calls in (1, 3):
        wanted = ", ".join([f'{kind} {{dist.layout = #dist.layout<"[_, x]">}}'] * calls)
        rows = [f"%{i} = call @f(%a) : ({kind}) -> {kind}" for i in range(calls)]
        given = ", ".join(f"%{i}" for i in range(calls))
        text = f"""
          func.func private @f(%a: {kind}) -> ({kind} {{dist.layout = #dist.layout<"[x, _]">}}) {{
            %0 = math.exp %a : {kind}
            return %0 : {kind}
          }}
          func.func public @main(%a: {kind} {{dist.layout = #dist.layout<"[x, _]">}}) -> ({wanted}) {{
            {chr(10).join(rows)}
            return {given} : {", ".join([kind] * calls)}
          }}"""
        ctx = context(unregistered=True)
        with ctx, ir.Location.unknown():
            head = '"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()'
            module = load_module(head + text, ctx, "x")
            open_interfaces(module, Mesh(x=2))
            costs.append(placed(module, Mesh(x=2), MachinePrices())[2].cost)
    assert costs[1] == pytest.approx(3 * costs[0], rel=1e-9)


def works_in(text: str) -> list[tuple[str, tuple[bool, ...]]]:
    """Return the kind of each op of a program that computes, and which of its tensors are in memory."""
    mesh, ctx = Mesh(x=2), context(unregistered=True)
    with ctx, ir.Location.unknown():
        module = load_module(text, ctx, "x")
        open_interfaces(module, mesh)
        problem = placed(module, mesh, MachinePrices())[1]
    return [(work.kind, work.kept) for work in problem.works.ops if work.kind != "nothing"]


def test_what_kernels_compute_inside_is_not_in_memory() -> None:
    """A sum read by one function is within its kernel; what a product reads or makes is in memory."""
    text = """func.func public @main(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>) -> tensor<64x64xf32> {
      %z = arith.constant dense<0.0> : tensor<64x64xf32>
      %0 = arith.addf %a, %b : tensor<64x64xf32>
      %1 = math.exp %0 : tensor<64x64xf32>
      %2 = linalg.matmul ins(%1, %b : tensor<64x64xf32>, tensor<64x64xf32>) outs(%z : tensor<64x64xf32>)
        -> tensor<64x64xf32>
      return %2 : tensor<64x64xf32>
    }"""
    assert works_in(text) == [
        ("loops", (True, True, False)),
        ("loops", (False, True)),
        ("product", (True, True, False, True)),
    ]


def test_what_a_kernel_reads_twice_counts_once() -> None:
    """Neighbours of a point are two views of one tensor, read by one kernel."""
    lowered = mw.jit(lambda x: (x[:-2] + x[2:]) * 0.5, mesh="x=2").lower(np.ones(66, np.float32))
    assert next(kept for _, kept in works_in(lowered.as_text()))[:2] == (True, False)


def test_scores_of_attentions_that_are_one_kernel_are_not_in_memory() -> None:
    """Below 64 KiB of scores an attention is products and loops."""
    for places, stored in ((64, True), (256, False)):
        text = mw.jit(softmax_product, mesh="x=2").lower(
            *[np.ones((2, places, 32), np.float32)] * 3
        )
        products = [kept for kind, kept in works_in(text.as_text()) if kind == "product"]
        assert [kept[-1] for kept in products] == [stored, True]


def test_scores_between_arguments_are_looked_through() -> None:
    """A mask and a bias that are arguments of the program are read between the products too."""
    kinds = [np.ones((2, 256, 32), np.float32)] * 3 + [np.ones((256, 256), np.float32)]
    lowered = mw.jit(lambda q, k, v, b: mw.softmax(q @ k.mT + b) @ v, mesh="x=2").lower(*kinds)
    products = [kept for kind, kept in works_in(lowered.as_text()) if kind == "product"]
    assert [kept[-1] for kept in products] == [False, True]


def softmax_product(q: Any, k: Any, v: Any) -> Any:
    return mw.softmax(q @ k.mT) @ v


WIDE = np.ones((64, 512), np.float32), np.ones((512, 2048), np.float32)


@pytest.mark.parametrize("mesh", some(["dp=2, tp=2", "x=3"], 2))
@pytest.mark.parametrize("bound", [20_000_000, 3_800_000, 3_300_000])
def test_layouts_are_chosen_within_a_bound_on_bytes(mesh: str, bound: int) -> None:
    """A tighter bound takes longer; large weights come out sharded; what resides is counted exactly."""
    x, w = WIDE
    placed = mw.jit(product, mesh=mesh, layouts="auto", peak_bytes=bound)
    free = mw.jit(product, mesh=mesh, layouts="auto")
    for one in (placed, free):
        np.testing.assert_allclose(np.asarray(one(x, w)), np.maximum(x @ w, 0) @ w.T, rtol=1e-4)
    program, report = placed._last.program, placed._last.lowered.report().placement
    assert program.peak_bytes <= bound and report is not None and report.memory is not None
    held = program.peak_bytes - program.bundle.manifest.arena_bytes
    assert report.memory.resident == held and report.memory.limit == bound
    assert report.seconds >= free._last.lowered.report().placement.seconds
    assert "memory: " in placed.explain() and "the bound costs" in placed.explain()
    layout = str(program.inputs[1].layout)
    assert bound > 5_000_000 or layout != "[_, _]"
    placed.close()
    free.close()


def test_a_bound_that_nothing_fits_in_names_the_least_possible() -> None:
    for bound, message in (
        (100_000, r"peak_bytes = 100000 is infeasible: the least possible is [\d,]+ bytes"),
        (1_180_000, r"arguments and results take [\d,]+ bytes .* least possible is .* in all"),
    ):
        placed = mw.jit(product, mesh="dp=2, tp=2", layouts="auto", peak_bytes=bound)
        with pytest.raises(MeshweaveError, match=message) as caught:
            placed(*WIDE)
        assert "\n" not in str(caught.value)


def test_the_fewest_bytes_are_tried_before_a_bound_is_refused() -> None:
    """Buffers of 20 bytes take 64 each: by the model two of them are within the bound."""
    text = """"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
    func.func public @main(%a: tensor<3xf32> {dist.layout = #dist.layout<"[_]">}, %b: tensor<5x1xf32>
      {dist.layout = #dist.layout<"[_, _]">}) -> (tensor<3x1xf32> {dist.layout = #dist.layout<"[x, _]">},
      tensor<1x5xf32> {dist.layout = #dist.layout<"[_, _] +max(x)">}) {
      %e = tensor.empty() : tensor<1x5xf32>
      %0 = linalg.transpose ins(%b : tensor<5x1xf32>) outs(%e : tensor<1x5xf32>) permutation = [1, 0]
      %1 = tensor.expand_shape %a [[0, 1]] output_shape [3, 1] : tensor<3xf32> into tensor<3x1xf32>
      return %1, %0 : tensor<3x1xf32>, tensor<1x5xf32>
    }"""
    a, b = np.arange(3, dtype=np.float32), np.arange(5, dtype=np.float32)[:, None]
    with meshweave.compile(text, layouts="auto", peak_bytes=169) as program:
        assert program.peak_bytes <= 169
        first, second = program(a, b)
    np.testing.assert_array_equal(first, a[:, None])
    np.testing.assert_array_equal(second, b.T)


def test_the_fewest_bytes_are_chosen_within_a_time() -> None:
    taken = {}
    for objective in ("time", "bytes", "bytes within 1"):
        placed = mw.jit(product, mesh="dp=2, tp=2", layouts="auto", objective=objective)
        np.asarray(placed(np.ones((1024, 512), np.float32), WIDE[1]))
        taken[objective] = placed._last.program.peak_bytes
        placed.close()
    assert taken["bytes"] == taken["bytes within 1"] < taken["time"]
    with pytest.raises(MeshweaveError, match="no placement takes at most 1e-12 s"):
        mw.jit(product, mesh="x=2", layouts="auto", objective="bytes within 1e-12")(*WIDE)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"layouts": "auto", "objective": "speed"}, "objective='speed': \"time\""),
        ({"layouts": "auto", "objective": "bytes within x"}, "objective='bytes within x'"),
        ({"objective": "bytes"}, "objective='bytes' goes with layouts=\"auto\""),
        ({"layouts": "auto", "peak_bytes": "many"}, "peak_bytes"),
    ],
)
def test_what_is_no_goal_is_refused(said: dict[str, Any], message: str) -> None:
    with pytest.raises(MeshweaveError, match=re.escape(message)):
        mw.jit(product, mesh="x=2", **said)


def test_the_command_line_places_within_a_bound() -> None:
    file = ROOT / "examples/mlp/mlp.mlir"
    done = commands.meshweave("run", file, "--mesh", "auto=2", "--json")
    taken = json.loads(done.out)["peak_bytes"]
    tighter = f"{taken - 1}"
    done = commands.meshweave(
        "run", file, "--mesh", "auto=2", "--check", "--json", "--peak-bytes", tighter
    )
    said = json.loads(done.out) if not done.status else {"peak_bytes": 0}
    assert done.status == 0 or "infeasible" in done.err
    assert said["peak_bytes"] < taken
    refused = commands.meshweave("run", file, "--mesh", "x=2", "--objective", "bytes")
    assert refused.status == 2 and "--objective goes with --mesh auto=N" in refused.err


@sampled(1)
@pytest.mark.parametrize("mesh", ["dp=2, tp=2", "dp=4, tp=3", "dp=5, tp=1"])
def test_no_run_of_an_op_takes_less_than_its_least(mesh: str) -> None:
    for file in ("mlp/mlp.mlir", "attention/attention.mlir"):
        ctx = context(unregistered=True)
        with ctx, ir.Location.unknown():
            module = load_module((ROOT / "examples" / file).read_text(), ctx, file)
            set_mesh(module, Mesh.parse(mesh))
            open_interfaces(module, Mesh.parse(mesh))
            _, problem, choices = placed(module, Mesh.parse(mesh), MachinePrices())
        graph = problem.graph
        for op, number in enumerate(graph.rule_of):
            if problem.runs[op]:
                rule, work = graph.rules[number], problem.works.ops[op]
                every = problem.prices.work(problem.rules[number], work, problem.works.reach)
                least = problem.prices.least_work(rule, work, problem.mesh)
                assert 0 <= least <= every.min() * (1 + 1e-9)
        assert problem._least_work() <= choices.cost
