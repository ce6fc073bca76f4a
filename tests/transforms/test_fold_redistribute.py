"""Folded redistributes give the same values in the layouts asked for: random chains and trees of them, executed."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from depth import examples, sampled, some
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import tensor_type
from strategies import any_layouts, layouts

import meshweave
from meshweave.dialects import context
from meshweave.ir.bindings import ir
from meshweave.layout import Layout, Mesh
from meshweave.layout.algebra import pending
from meshweave.pipeline import run_pipeline
from meshweave.transforms.base import ops_of
from meshweave.transforms.redistribution.plans import Plans

MESHES = ["x=2", "x=3", "x=2, y=2", "x=2, y=3", "x=2, y=1, z=2"]
MOVE = "dist.redistribute"


@dataclass
class Tree:
    """Redistributes of one value: each gives a layout to one that was there before."""

    mesh: Mesh
    shape: tuple[int, ...]
    element: str
    layouts: list[Layout] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    results: list[int] = field(default_factory=list)

    def text(self) -> str:
        """The module; value 0 is the argument."""
        type_ = tensor_type(self.shape, self.element)
        attr = [f'#dist.layout<"{layout}">' for layout in self.layouts]
        lines = [
            f'%v{i} = "{MOVE}"(%v{j}) {{source = {attr[j]}, target = {attr[i]}}} : ({type_}) -> {type_}'
            for i, j in enumerate(self.reads, 1)
        ]
        ports = ", ".join(f"{type_} {{dist.layout = {attr[i]}}}" for i in self.results)
        names = ", ".join(f"%v{i}" for i in self.results)
        types = ", ".join(type_ for _ in self.results)
        body = "\n  ".join([*lines, f"return {names} : {types}"])
        return (
            f'"dist.mesh"() {{sym_name = "mesh", axes = "{self.mesh}"}} : () -> ()\n'
            f"func.func public @main(%v0: {type_} {{dist.layout = {attr[0]}}}) -> ({ports}) {{\n  {body}\n}}\n"
        )


@st.composite
def trees(draw: st.DrawFn, mesh: Mesh, general: bool = False) -> Tree:
    """One to six redistributes, in chains mostly, of up to two dims; leaves and some more are results.

    general: in layouts of any kind, not in blocks alone.
    """
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12]), max_size=2)))
    tree = Tree(mesh, shape, draw(st.sampled_from(["f32", "i32", "f64"])))
    count = draw(st.integers(1, 6))
    kinds = draw(st.sampled_from([(), (), ("sum",), ("sum", "max"), ("min",)]))
    drawn = any_layouts(mesh, shape, kinds) if general else layouts(mesh, len(shape), kinds)
    choice = draw(st.lists(drawn, min_size=2, max_size=4))
    tree.layouts = [draw(st.sampled_from(choice)) for _ in range(count + 1)]
    tree.reads = [draw(st.sampled_from([i, i, i, draw(st.integers(0, i))])) for i in range(count)]
    leaves = set(range(count + 1)) - set(tree.reads)
    tree.results = sorted(leaves | {i for i in range(1, count) if draw(st.integers(0, 3)) == 0})
    return tree


@sampled(4)
@pytest.mark.parametrize("general", [False, True], ids=["blocks", "any layouts"])
@pytest.mark.parametrize("mesh", MESHES)
def test_each_result_is_the_argument(mesh: str, general: bool) -> None:
    @settings(max_examples=examples(12))
    @given(trees(Mesh.parse(mesh), general))
    def run(tree: Tree) -> None:
        rng = np.random.default_rng(0)
        dtype = {"f32": "f4", "i32": "i4", "f64": "f8"}[tree.element]
        x = rng.integers(-9, 10, tree.shape).astype(dtype)
        with meshweave.compile(tree.text(), timeout=30) as program:
            for i, result in zip(tree.results, program(x)):
                np.testing.assert_array_equal(result, x, f"value {i}\n{tree.text()}")

    run()


def folded(tree: Tree, passes: str) -> list[tuple[Any, str, str]]:
    """The redistributes that are left after some passes: type, source and target."""
    with context(), ir.Location.unknown():
        module = ir.Module.parse(tree.text())
        before = moves(module, tree.mesh)
        run_pipeline(module, passes)
        after = moves(module, tree.mesh)
        run_pipeline(module, passes)
        assert moves(module, tree.mesh) == after, f"{passes} twice\n{tree.text()}"
        return [before, after]


def moves(module: Any, mesh: Mesh) -> tuple[int, float, int]:
    """How many redistributes there are, what their plans take, and how many of them reduce."""
    plans = Plans(mesh)
    found = [op.operation for op in ops_of(module, MOVE)]
    ends = [(op.attributes["source"], op.attributes["target"]) for op in found]
    seconds = [plans.seconds(op.results[0].type, *e) for op, e in zip(found, ends)]
    reductions = [e for e in ends if pending(_layout(e[0]), mesh) != pending(_layout(e[1]), mesh)]
    return len(found), sum(seconds), len(reductions)


def _layout(attr: Any) -> Layout:
    return Layout.parse(ir.StringAttr(attr.text).value)


@sampled(4)
@pytest.mark.parametrize("passes", ["dist-fold-redistribute", "dist-legalize-redistribute"])
@pytest.mark.parametrize("mesh", some(MESHES, 2))
def test_folding_never_takes_longer_and_once_is_enough(mesh: str, passes: str) -> None:
    @settings(max_examples=examples(40))
    @given(st.booleans().flatmap(lambda general: trees(Mesh.parse(mesh), general)))
    def run(tree: Tree) -> None:
        before, after = folded(tree, passes)
        assert after[0] <= before[0], tree.text()
        assert after[1] <= before[1] * (1 + 1e-12), tree.text()
        assert after[2] <= before[2], tree.text()

    run()
