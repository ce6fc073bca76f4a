"""Programs against NumPy, to the bit: as text of every op in any layouts, and in Python under several time axes."""

import re
from operator import itemgetter
from typing import Any

import numpy as np
from hypothesis import strategies as st
from programs import Program, programs
from python.test_random_slices import NUMPY
from python.test_random_slices import cases as sliced
from strategies import meshes

import meshweave as mw
from fuzz.search import Kind, Refused
from meshweave.errors import CompileError

ENGINES = ("local", "mpi")
IMPOSSIBLE = re.compile(r"\(required\) is infeasible: |are both required")


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, Program]:
    """A program of text, in blocks or in any layouts, and what runs it."""
    engine = draw(st.sampled_from(ENGINES))
    mesh = draw(meshes(8 if engine == "local" else 4))
    return engine, draw(programs(mesh, any_layout=draw(st.booleans())))


def check_text(case: tuple[str, Program]) -> None:
    """Compile and run; compare every result."""
    engine, p = case
    with mw.compile(p.text(), engine=engine, timeout=120) as program:
        results = program(*[value.value for value, _ in p.inputs])
    _compare(results, [value.value for value, _ in p.results])


def check_sliced(case: tuple[str, Any]) -> None:
    """Trace, compile and run; a required hint that cannot be had is refused with the reason."""
    engine, p = case
    try:
        f = mw.jit(p.function(mw), mesh=p.mesh, in_layouts=tuple(p.given), engine=engine)
        results = f(*p.inputs)
    except CompileError as error:
        if IMPOSSIBLE.search(str(error)):
            raise Refused from None
        raise
    _compare(results, p.function(NUMPY)(*p.inputs))
    f.close()


def _compare(results: Any, right: Any) -> None:
    for i, (result, value) in enumerate(zip(results, right, strict=True)):
        np.testing.assert_array_equal(np.asarray(result), value, f"result {i}")


def _text(case: tuple[str, Program]) -> str:
    engine, p = case
    inputs = "\n".join(f"// {v.name} = {v.value.tolist()}" for v, _ in p.inputs)
    results = "\n".join(f"// {v.name} is {v.value.tolist()}" for v, _ in p.results)
    return f"// on {engine}\n{inputs}\n{results}\n{p.text()}"


def _sliced_text(case: tuple[str, Any]) -> str:
    engine, p = case
    inputs = "\n".join(f"v{i} = {v.tolist()}" for i, v in enumerate(p.inputs))
    return f"# on {engine}, mesh {p.mesh!r}, in_layouts {p.given}\n{inputs}\n{p.text}"


SLICED = st.tuples(st.sampled_from(ENGINES), sliced())
KINDS = (
    Kind("programs", texts(), check_text, _text, seconds=60, engine=itemgetter(0)),
    Kind("slices", SLICED, check_sliced, _sliced_text, seconds=60, engine=itemgetter(0)),
)
