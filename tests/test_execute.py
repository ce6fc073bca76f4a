"""Random programs, compiled and run on both engines, against NumPy: the oracle of propagation, partition, lowering."""

import numpy as np
import pytest
from depth import examples, sampled
from hypothesis import given, settings
from hypothesis import strategies as st
from program_ops import (
    arith_on_tensors,
    broadcast,
    compare,
    concat,
    constant,
    constrain,
    convert,
    convolution,
    divide,
    elementwise,
    extract_slice,
    insert_slice,
    matmul,
    matmul_transposed,
    pad,
    pooling,
    reduce,
    reshape,
    select,
    transpose,
)
from program_regions import (
    STEPS,
    branch,
    call,
    for_loop,
    generic,
    largest_place,
    local_region,
    lookup,
    read_at_loop,
    two_results,
    while_loop,
)
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
    with meshweave.compile(p.text(), engine=engine, timeout=120) as program:
        results = program(*[v.value for v, _ in p.inputs])
    for i, (result, (value, layout)) in enumerate(zip(results, p.results)):
        np.testing.assert_array_equal(result, value.value, f"result {i}, {layout}\n{p.text()}")


FAMILIES = {
    "all": (STEPS, 150),
    "reductions": ((reduce, generic, matmul, matmul_transposed, arith_on_tensors, constrain), 120),
    "movement": ((extract_slice, insert_slice, pad, concat, reshape, transpose, broadcast), 70),
    "places": ((lookup, read_at_loop, largest_place, two_results, generic, convert), 70),
    "masks": ((compare, select, divide, constant, arith_on_tensors, reduce), 50),
    "control": ((for_loop, while_loop, branch, call, local_region, constrain, elementwise), 50),
    "windows": ((convolution, pooling, reshape, transpose, concat), 30),
}
"""Ops that are tried together, and how many programs of them."""


@sampled(4)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_programs_give_what_numpy_gives(family: str) -> None:
    steps, count = FAMILIES[family]

    @settings(max_examples=examples(count))
    @given(st.sampled_from(MESHES).flatmap(lambda mesh: programs(mesh, only=steps)))
    def run(p: Program) -> None:
        check(p, "local")

    run()


@settings(max_examples=examples(6))
@given(st.sampled_from(MESHES[1:4]).flatmap(programs))
def test_engine_mpi_gives_the_same(p: Program) -> None:
    check(p, "mpi")
