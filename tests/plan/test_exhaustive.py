"""Any layout to any layout: a sample of every case of sweep.py on the simulator and, compiled, on the
engines, the count printed; and whatever else the notation can say.
"""

import pytest
from depth import examples, sampled, some
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.engines import run_cases
from plan.sweep import MESHES, check, sample
from strategies import KINDS, any_layouts, meshes, shapes

from meshweave.layout import Mesh

SAMPLES = {"local": (1, 1), "mpi": (1, 8)}
"""Per engine, how often a layout is a source in the sample, and of that every how many-th case."""


@pytest.mark.parametrize("mesh", some(MESHES, 4), ids=str)
def test_all_layouts_to_all_layouts(mesh, record_property):
    count = 0
    for case in sample(3):
        if case[0] == mesh:
            check(*case)
            count += 1
    record_property("count of redistributions on the simulator, no wrong element", count)
    assert count > 300


@sampled(4)
@pytest.mark.parametrize("mesh", some(MESHES, 2), ids=str)
@pytest.mark.parametrize("engine", SAMPLES)
def test_all_layouts_to_all_layouts_compiled(engine, mesh, record_property):
    times, part = SAMPLES[engine]
    chosen = [case for case in sample(times, seed=1) if case[0] == mesh][::part]
    count = 0
    for _, wrong in run_cases(chosen, engine):
        assert wrong is None, wrong
        count += 1
    record_property(f"count of redistributions on engine {engine}, no wrong element", count)
    assert count > 0


@settings(max_examples=examples(300))
@given(st.data(), meshes(), st.integers(0, 3))
def test_whatever_the_notation_can_say(data, mesh, ndim):
    shape = data.draw(shapes(ndim))
    source = data.draw(any_layouts(mesh, shape, kinds=KINDS))
    target = data.draw(any_layouts(mesh, shape, kinds=KINDS))
    check(mesh, shape, source, target)


@settings(max_examples=examples(150))
@given(st.data(), st.tuples(*[st.integers(1, 3)] * 3), st.integers(3, 4))
def test_small_tensors_over_three_axes(data, sizes, ndim):
    """Dims of 0 and 1, fewer elements than ranks, axes of one rank."""
    mesh = Mesh(**dict(zip("xyz", sizes, strict=True)))
    shape = data.draw(shapes(ndim, (0, 1, 2, 3, 4)))
    source, target = (data.draw(any_layouts(mesh, shape, kinds=KINDS)) for _ in range(2))
    made = check(mesh, shape, source, target)
    assert not made.proved_minimal or made.nbytes == made.lower_bound
    assert made.nbytes == 0 or 0 not in shape


@settings(max_examples=examples(100))
@given(st.data(), meshes(), st.integers(1, 2))
def test_an_exchange_alone_meets_the_bound(data, mesh, ndim):
    shape = data.draw(shapes(ndim))
    source, target = (data.draw(any_layouts(mesh, shape, kinds=())) for _ in range(2))
    made = check(mesh, shape, source, target, ops=("exchange", "relayout"))
    assert made.proved_minimal and made.launches <= 1
