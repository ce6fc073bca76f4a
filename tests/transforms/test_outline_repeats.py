"""outline-repeats, and functions that stay functions: random layers, stacked, run against NumPy."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import meshweave
from meshweave.dialects import context
from meshweave.ir.bindings import ir
from meshweave.lowering.host import functions
from meshweave.pipeline import run_pipeline
from meshweave.transforms import OutlineRepeats
from meshweave.transforms.base import ops_of

T = "tensor<6x6xf64>"
MESHES = ["x=1", "x=2", "x=2, y=2", "x=4"]
LAYOUTS = ["[x, _]", "[_, x]", "[_, _]"]
# One op of a layer: what it does, and which values it reads (numbers, taken modulo how many there are).
STEPS = st.tuples(
    st.sampled_from(["add", "weight", "matmul", "transpose", "scale", "rows"]),
    st.integers(0, 20),
    st.integers(0, 20),
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep even the smallest functions, and outline even the shortest repeats."""
    monkeypatch.setattr(functions, "SMALLEST", 0)
    monkeypatch.setattr(OutlineRepeats.__init__, "__defaults__", (2, 2, 2))
    yield


class Stack:
    """Layers of the same steps: the text of the program, and its value in NumPy."""

    def __init__(self, steps: list[Any], layers: int, carried: int, mesh: str, layouts: list[str]):
        self.lines: list[str] = []
        self.count = 0
        rng = np.random.default_rng(0)
        names = ["%x", "%s", *(f"%w{i}" for i in range(layers))]
        self.arguments = [rng.uniform(-1, 1, (6, 6)) for _ in names]
        values = dict(zip(names, self.arguments))
        now = ["%x"] * carried
        for layer in range(layers):
            now = self.layer(steps, [*now, "%s"], f"%w{layer}", carried, values)
        self.expected = [values[name] for name in now]
        given = [f'{{dist.layout = #dist.layout<"{layout}">}}' for layout in layouts]
        arguments = [f"{n}: {T} {given[min(i, 2)]}" for i, n in enumerate(names)]
        results = ", ".join([f"{T} {given[0]}"] * carried)
        body = "\n  ".join(self.lines)
        self.text = (
            f'"dist.mesh"() {{sym_name = "mesh", axes = "{mesh}"}} : () -> ()\n'
            f"func.func @main({', '.join(arguments)}) -> ({results}) {{\n"
            "  %c0 = arith.constant 0.0 : f64\n  %half = arith.constant 0.5 : f64\n"
            f"  %e = tensor.empty() : {T}\n  %r = tensor.empty() : tensor<6xf64>\n"
            f"  %z = linalg.fill ins(%c0 : f64) outs(%e : {T}) -> {T}\n"
            "  %zr = linalg.fill ins(%c0 : f64) outs(%r : tensor<6xf64>) -> tensor<6xf64>\n"
            f"  {body}\n  return {', '.join(now)} : {', '.join([T] * carried)}\n}}\n"
        )

    def let(self, text: str) -> str:
        """A new value."""
        self.count += 1
        self.lines.append(f"%v{self.count} = {text}")
        return f"%v{self.count}"

    def layer(
        self, steps: list[Any], local: list[str], weight: str, carried: int, values: dict[str, Any]
    ) -> list[str]:
        """The steps once more; the last values go on."""
        for what, i, j in steps:
            a, b = local[i % len(local)], local[j % len(local)]
            name, value = self.step(what, a, b, weight, values)
            values[name] = value
            local.append(name)
        return local[-carried:]

    def step(self, what: str, a: str, b: str, w: str, values: dict[str, Any]) -> tuple[str, Any]:
        """One op, and what it gives."""
        x, y = values[a], values[b]
        if what == "add":
            return self.let(f"linalg.add ins({a}, {b} : {T}, {T}) outs(%e : {T}) -> {T}"), x + y
        if what == "weight":
            out = self.let(f"linalg.mul ins({a}, {w} : {T}, {T}) outs(%e : {T}) -> {T}")
            return out, x * values[w]
        if what == "matmul":
            out = self.let(f"linalg.matmul ins({a}, {w} : {T}, {T}) outs(%z : {T}) -> {T}")
            return out, x @ values[w]
        if what == "transpose":
            kind = "permutation = [1, 0]"
            return self.let(f"linalg.transpose ins({a} : {T}) outs(%e : {T}) {kind}"), x.T
        if what == "scale":
            return self.generic(a, "%m = arith.mulf %p, %half : f64"), x * 0.5
        row = self.let(
            f"linalg.reduce {{arith.addf}} ins({a} : {T}) outs(%zr : tensor<6xf64>) dimensions = [1]"
        )
        out = self.let(
            f"linalg.broadcast ins({row} : tensor<6xf64>) outs(%e : {T}) dimensions = [1]"
        )
        return out, np.broadcast_to(x.sum(1)[:, None] * 1.0, (6, 6))

    def generic(self, a: str, op: str) -> str:
        """An elementwise op that reads a number from outside."""
        maps = "affine_map<(d0, d1) -> (d0, d1)>"
        return self.let(
            f"linalg.generic {{indexing_maps = [{maps}, {maps}], iterator_types = "
            f'["parallel", "parallel"]}} ins({a} : {T}) outs(%e : {T}) {{\n'
            f"  ^bb0(%p: f64, %q: f64):\n    {op}\n    linalg.yield %m : f64\n  }} -> {T}"
        )


def stacks() -> st.SearchStrategy[Stack]:
    """Random stacks of layers."""
    return st.builds(
        Stack,
        st.lists(STEPS, min_size=2, max_size=7),
        st.integers(2, 5),
        st.integers(1, 2),
        st.sampled_from(MESHES),
        st.lists(st.sampled_from(LAYOUTS), min_size=3, max_size=3),
    )


@settings(max_examples=examples(60), deadline=None)
@given(stacks())
def test_stacks_of_layers_run(stack: Stack) -> None:
    with meshweave.compile(stack.text) as program:
        for found, expected in zip(program(*stack.arguments), stack.expected, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


MLP = [("matmul", 0, 0), ("scale", 2, 0), ("rows", 3, 0), ("add", 4, 0), ("weight", 5, 0)]


def outlined(text: str, least: int = 16) -> tuple[int, int, int]:
    """How many calls, functions and products there are after the pass."""
    ctx = context()
    with ctx, ir.Location.unknown():
        module = ir.Module.parse(text)
        run_pipeline(module, f"outline-repeats{{least-ops={least} least-times=3 least-length=2}}")
        assert module.operation.verify()
        calls = ops_of(module, "func.call")
        return len(calls), len(ops_of(module, "func.func")), len(ops_of(module, "linalg.matmul"))


def test_the_middle_layers_become_one_function() -> None:
    stack = Stack(MLP, 8, 1, "x=2", ["[_, _]"] * 3)
    calls, found, products = outlined(stack.text)
    assert calls >= 6 and found == 2 and products == 8 - calls + 1


def test_collectives_of_a_function_are_counted_at_every_call() -> None:
    stack = Stack(MLP, 8, 1, "x=2", ["[_, x]", "[_, _]", "[x, _]"])
    with meshweave.compile(stack.text) as program:
        found = program(*stack.arguments)[0]
        manifest = program.bundle.manifest
    np.testing.assert_allclose(found, stack.expected[0], rtol=1e-9)
    assert len(manifest.collectives) > len(manifest.ops)


def test_layers_placed_differently_stay_apart() -> None:
    stack = Stack(MLP, 8, 1, "x=2", ["[_, _]"] * 3)
    text = stack.text.replace('%w4: tensor<6x6xf64> {dist.layout = #dist.layout<"[_, _]">}',
                              '%w4: tensor<6x6xf64> {dist.layout = #dist.layout<"[_, x]">}')  # fmt: skip
    assert text != stack.text
    calls, found, products = outlined(text)
    assert products == 8 - calls + (found - 1)
    with meshweave.compile(text) as program:
        np.testing.assert_allclose(program(*stack.arguments)[0], stack.expected[0], rtol=1e-9)


def test_ops_under_hints_stay_where_they_are() -> None:
    lines = []
    for k in range(6):
        lines.append(
            f'%v{k + 1} = "hint.region"() ({{\n  %r{k} = arith.mulf %v{k}, %v{k} : {T}\n'
            f'  "hint.yield"(%r{k}) : ({T}) -> ()\n}}) {{hints = {{order = "dfs"}}}} : () -> {T}\n'
            f"%u{k} = arith.addf %v{k}, %v{k + 1} : {T}"
        )
    body = "\n".join(lines)
    text = f"func.func @main(%v0: {T}) -> {T} {{\n{body}\nreturn %v6 : {T}\n}}\n"
    ctx = context()
    with ctx, ir.Location.unknown():
        module = ir.Module.parse(text)
        outline = "outline-repeats{least-ops=2 least-times=2 least-length=2}"
        run_pipeline(module, f"hint-apply,{outline}")
        assert len(ops_of(module, "hint.region")) == 6 and not ops_of(module, "func.call")


def test_short_programs_are_left_alone() -> None:
    assert outlined(Stack(MLP, 8, 1, "x=2", ["[_, _]"] * 3).text, least=200)[0] == 0
