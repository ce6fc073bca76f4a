"""Programs on several compute streams: the same bits as on one, in any order that hardware may choose;
no race, and one as soon as a wait is missing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from depth import examples, sampled, some, thinned
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering.gpu.examples import MESH, arguments, expected, text_of
from programs import Program, programs
from test_execute import FAMILIES
from test_overlap import data, gathered, mlp, with_overlap

from meshweave.api.program import Program as Loaded
from meshweave.api.program import build, lowered
from meshweave.bundle import Bundle
from meshweave.errors import CompileError, RankError
from meshweave.ir.bindings import ir
from meshweave.layout import Mesh
from meshweave.lowering import compile_program
from meshweave.lowering.gpu import launches
from meshweave.runtime.gpu import rank
from meshweave.runtime.gpu.driver import allocate
from meshweave.runtime.gpu.products import WORKSPACE_BYTES
from meshweave.simulator.engine import EmulateEngine
from meshweave.transforms.base import walk

pytest.importorskip("llvmlite", reason="the back end for gpus is not installed")


def scattered(text: str, mesh: Mesh | None, seed: int) -> Bundle:
    """The program with its ops on streams 0 to 3 at random, as regions of hints would put them."""
    chosen = random.Random(seed)
    with lowered(text, "test", mesh, "emulate") as (module, _):
        with ir.Location.unknown(module.context):
            for op in walk(module.operation):
                if (stream := chosen.choice([None, 0, 1, 2, 3])) is not None:
                    op.location = ir.Location.name(f"hint.stream={stream}", op.location)
        return compile_program(module, "emulate")


def outputs(bundle: Bundle, inputs: list[Any], **options: Any) -> list[np.ndarray]:
    """What the program gives, twice: as it is, and with what the first run has left behind."""
    with Loaded(bundle, EmulateEngine(timeout=30, **options)) as program:
        first = program(*inputs)
        for one, other in zip(first, program(*inputs), strict=True):
            np.testing.assert_array_equal(one, other)
        return first


def as_graph(bundle: Bundle, seed: int) -> list[np.ndarray]:
    """What a program of one rank gives the third time, when its graph is launched once more."""
    executable = EmulateEngine(timeout=30, seed=seed, graph=True).load(bundle)
    call = executable.bind([inputs()])
    for _ in range(3):
        call()
    assert executable.recorder.calls[0].count("cuGraphLaunch") == 2
    call.close()
    executable.close()
    return call.outputs[0]


MESHES = [Mesh(x=1), Mesh(x=2), Mesh(x=2, y=2)]
KINDS = {"all": 25, "control": 12}


@pytest.mark.parametrize("kind", KINDS)
def test_programs_on_random_streams_give_what_numpy_gives(kind: str) -> None:
    steps, count = FAMILIES[kind][0], KINDS[kind]

    @settings(max_examples=examples(count))
    @given(
        st.sampled_from(MESHES).flatmap(lambda mesh: programs(mesh, only=steps, max_steps=10)),
        st.integers(0, 1 << 20),
    )
    def run(p: Program, seed: int) -> None:
        bundle = scattered(p.text(), None, seed)
        results = outputs(bundle, [v.value for v, _ in p.inputs], seed=seed)
        for result, (value, _) in zip(results, p.results, strict=True):
            np.testing.assert_array_equal(result, value.value, p.text())

    run()


@pytest.mark.parametrize("name", some(["mlp", "attention"], 2))
def test_examples_on_random_streams(name: str) -> None:
    text, wanted = text_of(name, "f32"), expected(name)
    for seed in thinned(range(3), 3):
        bundle = scattered(text, Mesh.parse(MESH), seed)
        assert bundle.manifest.streams > 1
        (result,) = outputs(bundle, arguments(name), seed=seed)
        np.testing.assert_allclose(result, wanted, rtol=0, atol=2e-4 * np.abs(wanted).max())


@sampled(1)
@pytest.mark.parametrize("make", [mlp, gathered])
def test_collectives_under_compute_of_several_streams(make: Callable[..., str]) -> None:
    text = with_overlap(make(2, 4), "auto")
    plain = build(text, engine="emulate", name="test")
    inputs = [data(*port.global_shape) for port in plain.manifest.inputs]
    wanted = outputs(plain, inputs)
    for seed in thinned(range(4), 2):
        for one, other in zip(outputs(scattered(text, None, seed), inputs, seed=seed), wanted):
            np.testing.assert_array_equal(one, other)


# Hints


T = "tensor<64x64xf32>"


def region(name: str, hints: str, *lines: str) -> str:
    body = "\n".join(lines)
    return (
        f'%{name} = "hint.region"() ({{\n{body}\n"hint.yield"(%{name}_) : ({T}) -> ()\n'
        f"}}) {{hints = {{{hints}}}}} : () -> {T}\n"
    )


def program(body: str, results: str) -> str:
    count = results.count("%")
    types = ", ".join([T] * count)
    return (
        '"dist.mesh"() {sym_name = "mesh", axes = "x=1"} : () -> ()\n'
        f"func.func @main(%a: {T}, %b: {T}) -> ({types}) {{\n"
        f"%zero = arith.constant 0.0 : f32\n{body}return {results} : {types}\n}}\n"
    )


def product(name: str, a: str, b: str) -> list[str]:
    """%name_ = exp(a b), and the product goes through the arena."""
    return [
        f"%{name}e = tensor.empty() : {T}",
        f"%{name}f = linalg.fill ins(%zero : f32) outs(%{name}e : {T}) -> {T}",
        f"%{name}p = linalg.matmul ins({a}, {b} : {T}, {T}) outs(%{name}f : {T}) -> {T}",
        f"%{name}_ = math.exp %{name}p : {T}",
    ]


TWO = program(
    region("r", "stream = 1", *product("r", "%a", "%b"))
    + region("s", "stream = 7", *product("s", "%b", "%a")),
    "%r, %s",
)
DIAMOND = program(
    f"%h = arith.addf %a, %b : {T}\n"
    + region("r", "stream = 1", *product("r", "%h", "%b"))
    + region("s", "stream = 2", *product("s", "%h", "%a"))
    + f"%t = arith.mulf %r, %s : {T}\n"
    + region("u", "stream = 2", *product("u", "%t", "%r")),
    "%u",
)


def inputs() -> list[np.ndarray]:
    return [0.01 * data(64, 64, seed=k) for k in (1, 2)]


def recorded(bundle: Bundle, **options: Any) -> list[str]:
    """What a rank has enqueued for a step. Left out are copies of inputs and outputs, and the runtime's own events: one
    behind each copy of an input, and one behind the step.
    """
    with Loaded(bundle, EmulateEngine(**options)) as loaded:
        loaded(*inputs())
        lines = loaded.executable.recorder.text(0).splitlines()
    mine = [
        line
        for before, line in zip(["", *lines], lines)
        if "copy to" not in line and not ("copy to device" in before and "record" in line)
    ]
    assert mine[-1].startswith("s0: record")
    return mine[:-1]


def test_independent_regions_have_no_event_between_them() -> None:
    lines = recorded(build(TWO, engine="emulate", name="test"))
    streams = {"s2": [], "s3": []}
    for line in lines:
        name, _, what = line.partition(": ")
        streams.get(name, []).append(what)
    fork = lines[0].removeprefix("s0: record ")
    for found in streams.values():
        waits = [what for what in found if what.startswith("wait")]
        assert waits == [f"wait {fork}"] == found[:1]
        assert found[-1].startswith("record") and len(found) > 3
    assert [line[:8] for line in lines if line.startswith("s0")] == ["s0: reco"] + ["s0: wait"] * 2
    assert lines[-2:] == [f"s0: wait {streams[s][-1].split()[1]}" for s in ("s2", "s3")]


@pytest.mark.parametrize("text", [TWO, DIAMOND])
def test_hints_change_no_bit(text: str) -> None:
    wanted = outputs(
        build(text.replace("stream = ", "width = "), engine="emulate", name="t"), inputs()
    )
    bundle = build(text, engine="emulate", name="test")
    for seed in thinned(range(12), 3):
        for one, other in zip(outputs(bundle, inputs(), seed=seed), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("text", [TWO, DIAMOND])
def test_a_step_on_several_streams_is_one_graph(text: str) -> None:
    bundle = build(text, engine="emulate", name="test")
    wanted = outputs(bundle, inputs())
    for seed in thinned(range(4), 2):
        for one, other in zip(as_graph(bundle, seed), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def dropping(plan: Any, which: int) -> Any:
    """A plan without one of its waits."""

    def changed(ops: Any) -> Any:
        points = plan(ops)
        places = [(k, event) for k, point in enumerate(points) for event in point.waits]
        k, dropped = places[which]
        waits = tuple(event for event in points[k].waits if event != dropped)
        return [*points[:k], replace(points[k], waits=waits), *points[k + 1 :]]

    return changed


@sampled(1)
@pytest.mark.parametrize("which", range(6))
def test_a_wait_that_is_missing_is_a_race(monkeypatch: pytest.MonkeyPatch, which: int) -> None:
    """Every single one; that at the end orders the copy of the result behind the step."""
    monkeypatch.setattr(launches, "planned", dropping(launches.planned, which))
    with lowered(DIAMOND, "test", None, "emulate") as (module, _):
        bundle = compile_program(module, "emulate")
    line = r"^race on rank 0: .* nothing orders them$"
    with pytest.raises(RankError, match=line):
        as_graph(bundle, which)


def test_inner_hints_override_outer_ones() -> None:
    inner = region("i", "stream = 2", f"%i_ = math.exp %a : {T}")
    text = program(region("r", "stream = 1", inner, f"%r_ = arith.addf %i, %b : {T}"), "%r")
    lines = recorded(build(text, engine="emulate", name="test"))
    kernels = [line for line in lines if "elementwise" in line]
    assert [re.match(r"(s\d): elementwise_\d+_f32_(\w+?)\(", k).groups() for k in kernels] == [
        ("s2", "exp"),
        ("s3", "addf"),
    ]


def test_a_number_that_is_too_high_is_refused() -> None:
    with pytest.raises(CompileError, match=r'stream = "16": a number, at least 0, at most 15'):
        build(TWO.replace("stream = 7", "stream = 16"), engine="emulate", name="test")


def test_products_of_two_streams_have_workspaces_of_their_own() -> None:
    bundle = build(TWO, engine="emulate", name="test")
    assert bundle.manifest.gemms and bundle.manifest.streams == 3
    with Loaded(bundle, EmulateEngine()) as loaded:
        sizes = [len(a.data) for a in loaded.executable.recorder.memory]
        assert sizes.count(WORKSPACE_BYTES) == 3


def test_one_workspace_for_two_streams_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, int] = {}

    def once(driver: Any, held: Any, nbytes: int, what: str) -> int:
        if what not in made:
            made[what] = allocate(driver, held, nbytes, what)
        return made[what] if what == "workspace" else allocate(driver, held, nbytes, what)

    monkeypatch.setattr(rank, "allocate", once)
    bundle = build(TWO, engine="emulate", name="test")
    with pytest.raises(RankError, match=r"^race on rank 0: matmul .* and matmul .* both write "):
        outputs(bundle, inputs()[:1] * 2)
