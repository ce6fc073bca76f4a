"""Whole programs, compiled and run on both engines, against NumPy: the oracle of propagation, partition and lowering.
"""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Program, programs

import meshweave
from meshweave.layout import Mesh

MESHES = [
    Mesh(x=1),
    Mesh(x=2),
    Mesh(x=3),
    Mesh(x=2, y=2),
    Mesh(x=2, y=3),
    Mesh(x=4, y=2),
    Mesh(x=2, y=2, z=2),
]


def check(p: Program, engine: str) -> None:
    """Run `p` and compare every result, element by element."""
    with meshweave.compile(p.text(), engine=engine, timeout=30) as program:
        results = program(*[v.value for v, _ in p.inputs])
    for i, (result, (value, layout)) in enumerate(zip(results, p.results)):
        np.testing.assert_array_equal(result, value.value, f"result {i}, {layout}\n{p.text()}")


@settings(max_examples=150)
@given(st.sampled_from(MESHES).flatmap(programs))
def test_programs_give_what_numpy_gives(p: Program) -> None:
    check(p, "local")


@settings(max_examples=6)
@given(st.sampled_from(MESHES[1:4]).flatmap(programs))
def test_engine_mpi_gives_the_same(p: Program) -> None:
    check(p, "mpi")
