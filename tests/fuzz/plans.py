"""Plans between any two layouts: replayed on the simulator, which states what moves; some are compiled and run."""

from operator import itemgetter
from typing import Any

from hypothesis import strategies as st
from plan.engines import run_cases
from plan.sweep import check as replay
from strategies import any_layouts, meshes, shapes

from fuzz.search import Kind

SIZES = (0, 1, 2, 3, 5, 6, 7, 8, 12, 24)
ENGINES = (*("simulate",) * 12, "local", "local", "mpi", "mpi")


@st.composite
def cases(draw: st.DrawFn) -> Any:
    """A mesh, a shape, two layouts, and what the plan is run on."""
    on = draw(st.sampled_from(ENGINES))
    mesh = draw(meshes(24 if on == "simulate" else 4))
    shape = draw(st.integers(1, 3).flatmap(lambda ndim: shapes(ndim, SIZES)))
    kinds = ("sum", "max", "min", "prod", "avg") if on == "simulate" else ("sum", "max", "min")
    source, target = (draw(any_layouts(mesh, shape, kinds)) for _ in range(2))
    return on, (mesh, shape, source, target)


def check(case: Any) -> None:
    """Replay the plan, and run it where the case says so."""
    on, redistribution = case
    if on == "simulate":
        replay(*redistribution)
        return
    for _, wrong in run_cases([redistribution], on):
        assert wrong is None, wrong


def text(case: Any) -> str:
    on, (mesh, shape, source, target) = case
    return f"on {on}: ({mesh}), shape {shape}, {source} -> {target}"


KINDS = (Kind("plans", cases(), check, text, seconds=60, engine=itemgetter(0)),)
