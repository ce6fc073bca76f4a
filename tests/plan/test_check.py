"""The replay on digits says of every step what the simulator finds element by element; wrong steps never leave."""

from dataclasses import replace

import pytest
from plan.every_step import steps_and_verdicts
from strategies import all_layouts

from meshweave.errors import PlanError
from meshweave.layout import Layout, Mesh
from meshweave.plan import redistribute
from meshweave.plan.check import flaw, right_for
from meshweave.plan.proof import minimal_among
from meshweave.plan.redistribute import cache_clear, plan_redistribute
from meshweave.plan.steps import PlanStep

CUBE = Mesh(x=2, y=2, z=2)


@pytest.mark.parametrize(
    "mesh, shape",
    [
        (Mesh(x=2, y=2), (5,)),
        (Mesh(x=2, y=2), (1, 4)),
        (Mesh(x=2, y=2), (4, 3)),
        (Mesh(x=2, y=3), (6,)),
        (Mesh(x=2, y=3), (7,)),
    ],
    ids=str,
)
def test_a_step_is_right_iff_it_is_on_arrays(mesh, shape):
    verdicts = set()
    for source in all_layouts(mesh, len(shape)):
        for step, right in steps_and_verdicts(mesh, shape, source):
            found = flaw([step], source, step.target, mesh, shape)
            assert (found is None) == right, (str(step), shape, found)
            verdicts.add(right)
    assert True in verdicts


@pytest.mark.parametrize(
    "mesh, shape",
    [(Mesh(x=2, y=2), (4, 3)), (Mesh(x=2, y=2), (4, 4)), (Mesh(x=2, y=3), (6,)), (Mesh(x=4), (8,))],
    ids=str,
)
def test_a_step_is_right_for_the_shapes_that_one_stands_for_iff_it_is_for_that_one(mesh, shape):
    every, verdicts = all_layouts(mesh, len(shape)), set()
    steps = [step for source in every for step, _ in steps_and_verdicts(mesh, shape, source)]
    wrong = [replace(step, target=every[k % len(every)]) for k, step in enumerate(steps)]
    for step in (*steps, *wrong):
        right = flaw([step], step.source, step.target, mesh, shape) is None
        units = right_for([step], mesh, shape)
        for times in (1, 3, 5) if units is not None and any(units) else ():
            grown = tuple(times * n or size for n, size in zip(units, shape, strict=True))
            found = flaw([step], step.source, step.target, mesh, grown)
            assert (found is None) == right, (str(step), shape, grown, found)
            verdicts.add(right)
    assert verdicts == {True, False}


def test_what_a_shape_stands_for_depends_on_how_layouts_cut_it():
    mesh = Mesh(x=2, y=2)
    cut, whole, order = map(Layout.parse, ("[x, _, y]", "[x, _, _]", "[x, _, _] order(1, 0, 2)"))
    step = PlanStep("all_gather", ("y",), cut, whole, 0, dim=2)
    assert right_for([step], mesh, (4, 3, 6)) == (4, 1, 6)
    assert right_for([step], mesh, (4, 3, 5)) == (4, 1, 0)
    assert right_for([PlanStep("relayout", (), whole, order, 0)], mesh, (4, 3, 6)) is None
    assert right_for([], mesh, (4, 3, 6)) == (1, 1, 1)


@pytest.mark.parametrize("target", ["[y*z, _*x] uneven(nested)", "[y*z, _*x*3] uneven(nested)"])
def test_an_exchange_goes_over_the_axes_of_dims_that_only_their_sizes_change(target):
    made = plan_redistribute(Layout.parse("[y*z, x]"), Layout.parse(target), CUBE, (10, 10), 4)
    assert [(step.op, step.axes) for step in made] == [("exchange", ("x", "y", "z"))]


@pytest.mark.parametrize(
    "op, axes, source, target, fields, why",
    [
        ("exchange", ("x",), "[y, x]", "[y*z, _]", {}, None),
        ("exchange", ("x",), "[y, x]", "[z, x]", {}, "dim 0 comes from ranks of other groups"),
        ("exchange", ("z",), "[x{3,5}, _]", "[x, _]", {}, "dim 0 comes from ranks of other groups"),
        ("exchange", ("y",), "[x*y, _]", "[x*y, _] uneven(nested)", {}, None),
        ("relayout", (), "[x, _] +sum(y)", "[x, _] order(1, 0)", {}, "other reductions pending"),
        ("all_reduce", ("x",), "[_, _] +sum(x, y)", "[_, _]", {"kind": "sum"}, "other reductions"),
        ("all_slice", ("x",), "[_, _]", "[x, _] order(1, 0)", {"dim": 0}, "memory order"),
        ("permute", ("x", "y"), "[x, _]", "[y, _]", {"sources": (0, 1, 2, 3)}, "do not have what"),
        ("permute", ("x", "y"), "[x, _]", "[y, _]", {"sources": (0, 2, 1, 3)}, None),
        ("permute", ("x", "y"), "[x, _]", "[y, _]", {"sources": (0, 2, 2, 3)}, "no permutation"),
    ],
)
def test_flaws_are_named(op, axes, source, target, fields, why):
    ends = Layout.parse(source), Layout.parse(target)
    step = PlanStep(op, axes, *ends, 0, **fields)
    found = flaw([step], *ends, CUBE, (8, 6))
    assert found is None if why is None else why in found
    assert "does not start at" in flaw([step], ends[1].without_order(), ends[1], CUBE, (8, 6))


def test_where_all_else_is_wrong_the_certain_way_is_left(monkeypatch):
    def wrong(self, source, target):
        yield redistribute._Way((PlanStep("exchange", (), source, target, 0),))

    monkeypatch.setattr(redistribute._Question, "candidates", wrong)
    cache_clear()
    source, target = Layout.parse("[x{3,5}, y] +sum(z)"), Layout.parse("[_*y, _] +max(x)")
    made = plan_redistribute(source, target, CUBE, (8, 6), 4)
    assert [step.op for step in made] == ["all_reduce", "exchange", "local"]
    assert made.steps[1].axes == ("x", "y")
    with pytest.raises(PlanError, match="of which none may be used"):
        plan_redistribute(source, target, CUBE, (8, 6), 4, ops=("exchange",))
    cache_clear()


def test_a_search_stops_at_its_limit_and_says_so():
    names = [f"a{k}" for k in range(9)]
    mesh, shape = Mesh(**dict.fromkeys(names, 2)), (3,) * 9
    source, target = (Layout.parse(f"[{', '.join(row)}]") for row in (names, names[::-1]))
    made = plan_redistribute(source, target, mesh, shape, 4)
    assert [step.op for step in made] == ["permute"] and not made.search_stopped
    assert minimal_among(made, mesh, shape, 4) is None
    pending = Layout.parse(f"[_] +sum({', '.join(names)})")
    made = plan_redistribute(Layout.parse(f"[{'*'.join(names)}]"), pending, mesh, (512,), 4)
    assert made.search_stopped and made.as_dict()["search_stopped"]
