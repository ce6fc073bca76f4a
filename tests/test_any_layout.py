"""Redistributions between any two layouts, compiled and run: against what the layouts say, and against the simulator
where the ranks hold operands that all differ.
"""

import numpy as np
from depth import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan.engines import run_cases
from strategies import KINDS, any_layouts, meshes, shapes

from meshweave.api.redistribution import Redistribution, clear, run
from meshweave.layout import Layout, gather
from meshweave.plan import plan_redistribute
from meshweave.plan.simulate import simulate

SLOW = {"deadline": None, "suppress_health_check": list(HealthCheck)}
P = Layout.parse


@st.composite
def cases(draw, mesh, count):
    """Redistributions on one mesh, as many as one program holds."""
    found = []
    for _ in range(count):
        shape = draw(shapes(draw(st.integers(0, 3))))
        found.append((mesh, shape, *(draw(any_layouts(mesh, shape, KINDS)) for _ in range(2))))
    return found


@settings(max_examples=examples(12), **SLOW)
@given(st.data(), meshes())
def test_any_layout_becomes_any_other_on_threads(data, mesh):
    for _, wrong in run_cases(data.draw(cases(mesh, 16)), "local"):
        assert wrong is None, wrong


@settings(max_examples=2, **SLOW)
@given(st.data(), meshes(max_ranks=4))
def test_any_layout_becomes_any_other_on_processes(data, mesh):
    for _, wrong in run_cases(data.draw(cases(mesh, 12)), "mpi"):
        assert wrong is None, wrong


def operands(mesh, layout, shape, random):
    """An allocation for each rank; ranks that hold the same elements agree."""
    held = [ref for dim in range(layout.ndim) for ref in layout.axes_of(dim)]
    own = {}
    for rank in range(mesh.nranks):
        at = tuple(mesh.coordinate(rank, ref) for ref in (*held, *layout.partial_axes()))
        buffer = layout.allocation_shape(mesh, shape)
        own.setdefault(at, random.integers(1, 4, buffer).astype("f4"))
        yield own[at].copy()


@settings(max_examples=examples(40), **SLOW)
@given(st.data(), meshes(), st.integers(0, 2))
def test_engine_and_simulator_agree(data, mesh, ndim):
    shape = data.draw(shapes(ndim))
    source, target = (data.draw(any_layouts(mesh, shape, KINDS)) for _ in range(2))
    shards = list(operands(mesh, source, shape, np.random.default_rng(0)))
    steps = plan_redistribute(source, target, mesh, shape, 4).steps
    right = simulate(steps, shards, mesh, shape).shards
    found = run(Redistribution(source, target, mesh, shape, "f32", steps, "local"), shards)
    with np.errstate(all="ignore"):
        values = [gather(rows, mesh, target, shape) for rows in (found, right)]
    assert np.allclose(*values, rtol=1e-5), (shape, str(mesh), str(source), str(target))


def teardown_module():
    clear()
