"""Fused collectives give what the program gave: random programs of the local view on real ranks, against NumPy."""

from typing import Any

import numpy as np
import pytest
from depth import sampled, some
from hypothesis import given, settings
from local_programs import Program, local_programs
from lowering.harness import run_ranks
from programs import tensor_type

from meshweave.dialects import context
from meshweave.ir.bindings import ir
from meshweave.layout import Mesh
from meshweave.lowering import compile_local
from meshweave.pipeline import run_pipeline
from meshweave.transforms.base import walk
from meshweave.transforms.communication.fusion.chains import disjoint, group_of, merge_axes

MESHES = {
    "x=2": ("x",),
    "x=3": ("x",),
    "x=2, y=2": ("x", "y"),
    "x=2, y=3": ("x", "y"),
    "x=4, y=1": ("x:(1)2", "x:(2)2", "y"),
    "x=2, y=2, z=2": ("x", "y", "z"),
    "x=8": ("x:(1)2", "x:(2)2", "x:(4)2"),
}
OPS = ("dist.all_reduce", "dist.all_gather", "dist.reduce_scatter", "dist.all_to_all")


def bundle_of(text: str, passes: str) -> tuple[Any, list[str]]:
    """The bundle of a program after some passes, and its collectives."""
    with context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        if passes:
            run_pipeline(module, passes)
        found = [op.name for op in walk(module) if op.name in OPS]
        return compile_local(module), found


def check(p: Program) -> int:
    """Compare every valid element of every result, before and after; how many collectives went."""
    inputs = [[v.parts[r] for v in p.inputs] for r in range(p.mesh.nranks)]
    counts = []
    for passes in ("", "dist-fuse-collectives,canonicalize,cse"):
        bundle, found = bundle_of(p.text(), passes)
        counts.append(len(found))
        for rank, results in enumerate(run_ranks(bundle, inputs)):
            for value, got in zip(p.results, results):
                valid, want = value.valid[rank], value.parts[rank]
                message = f"{passes}\n{value.name} of rank {rank}\n{p.text()}"
                assert got.shape == want.shape, message
                np.testing.assert_allclose(got[valid], want[valid], 1e-5, 1e-6, err_msg=message)
    assert counts[1] <= counts[0]
    return counts[0] - counts[1]


@sampled(4)
@pytest.mark.parametrize("mesh", some(MESHES, 2))
def test_fused_programs_give_the_same(mesh: str, record_property: Any) -> None:
    gone = []

    @settings(max_examples=15)
    @given(local_programs(Mesh.parse(mesh), MESHES[mesh]))
    def run(p: Program) -> None:
        gone.append(check(p))

    run()
    assert sum(gone) > 0
    record_property("count of collectives that were fused away in random programs", sum(gone))


MESH = Mesh(x=8, y=3, one=1)


@pytest.mark.parametrize(
    "axes, wanted",
    [
        (("x:(1)2", "x:(2)4"), ("x",)),
        (("x:(1)2", "x:(2)2"), ("x:(1)4",)),
        (("x:(2)2", "one", "x:(4)2"), ("x:(2)4",)),
        (("x:(1)2", "x:(2)2", "x:(4)2", "y"), ("x", "y")),
        (("x:(2)2", "x:(1)2"), ("x:(2)2", "x:(1)2")),
        (("x:(1)2", "x:(4)2"), ("x:(1)2", "x:(4)2")),
        (("y", "x"), ("y", "x")),
        (("one",), ()),
    ],
)
def test_axes_are_as_few_as_can_be(axes: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    assert merge_axes(MESH, axes) == wanted
    for rank in range(MESH.nranks):
        assert MESH.group(axes, rank) == MESH.group(wanted, rank)


def test_a_group_has_its_members_whatever_the_order_of_axes() -> None:
    assert group_of(MESH, ("x:(4)2", "y", "x:(1)4")) == ("x", "y")
    assert group_of(MESH, ("y", "x")) == group_of(MESH, ("x", "y")) == ("x", "y")


def test_groups_are_disjoint_when_no_coordinate_is_in_both() -> None:
    assert disjoint(MESH, ("x:(1)2",), ("x:(2)4", "y", "one"))
    assert not disjoint(MESH, ("x:(1)4",), ("x:(2)2",))
    assert not disjoint(MESH, ("x", "y"), ("y",))


def test_small_all_reduces_of_many_tensors_are_one_launch() -> None:
    shapes = [(), (5,), (2, 3), (1, 4, 2)]
    types = [tensor_type(shape, "f32") for shape in shapes]
    lines = [
        f'%r{i} = "dist.all_reduce"(%a{i}) {{axes = ["x"], kind = "avg"}} : ({t}) -> {t}'
        for i, t in enumerate(types)
    ]
    text = (
        '"dist.mesh"() {sym_name = "mesh", axes = "x=3"} : () -> ()\n'
        f"func.func @main({', '.join(f'%a{i}: {t}' for i, t in enumerate(types))}) -> ({', '.join(types)}) {{\n"
        + "\n".join(lines)
        + f"\nreturn {', '.join(f'%r{i}' for i in range(4))} : {', '.join(types)}\n}}"
    )
    bundle, found = bundle_of(text, "dist-fuse-collectives,canonicalize,cse")
    assert found == ["dist.all_reduce"]
    inputs = [[np.full(shape, rank + 1.0, "f4") for shape in shapes] for rank in range(3)]
    for results in run_ranks(bundle, inputs):
        for shape, result in zip(shapes, results):
            np.testing.assert_array_equal(result, np.full(shape, 2.0, "f4"))
