"""all_gather and all_to_all that read where elements lie, among processes: through the shared window, and
packed into messages.
"""

from __future__ import annotations

import numpy as np
import pytest
from lowering.harness import compile_text

from meshweave.layout.mesh import Mesh
from meshweave.runtime import engine

MESH = Mesh.parse("x=2, y=3")
AXES = ("y", "x")
SHAPES = ((7, 20, 33), (13, 16, 48), (1, 17, 64))
CUTS = (0, 1, 17)  # elements that the result lacks at its end


@pytest.fixture(scope="module", params=[True, False])
def running(request):
    started = engine("mpi", timeout=60.0, window=request.param)
    yield started
    started.close()


def type_of(shape):
    return "tensor<" + "".join(f"{n}x" for n in shape) + "f32>"


def cases():
    """(op, attributes, shape, result's shape, what a member's result is of all members' tensors)"""
    found = []
    for shape in SHAPES:
        for cut in CUTS:
            for dim in (1, 2):
                made = list(shape)
                made[dim] = max(1, shape[dim] * 6 - cut)
                found.append(("all_gather", (dim,), shape, made))
            for split, concat in ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)):
                made = list(shape)
                made[split] = -(-shape[split] // 6)
                made[concat] = max(1, shape[concat] * 6 - cut)
                found.append(("all_to_all", (split, concat), shape, made))
    return found


def expected(case, tensors, me):
    """The result of a member, cut where padding begins, and the dim that is cut."""
    op, dims, _, made = case
    joined = dims[-1]
    if op == "all_to_all":
        piece = -(-tensors[0].shape[dims[0]] // 6)
        own = slice(me * piece, (me + 1) * piece)
        tensors = [
            t[tuple(own if d == dims[0] else slice(None) for d in range(3))] for t in tensors
        ]
    whole = np.concatenate(tensors, joined)
    return np.take(whole, range(made[joined]), joined)


def program(rows):
    arguments, results, body = [], [], []
    for k, (op, dims, given, made) in enumerate(rows):
        names = ("dim",) if op == "all_gather" else ("split_dim", "concat_dim")
        attributes = ", ".join(f"{n} = {d} : i64" for n, d in zip(names, dims, strict=True))
        axes = ", ".join(f'"{axis}"' for axis in AXES)
        arguments.append(f"%a{k}: {type_of(given)}")
        results.append(type_of(made))
        body.append(
            f'%r{k} = "dist.{op}"(%a{k}) {{axes = [{axes}], {attributes}}} '
            f": ({type_of(given)}) -> {type_of(made)}"
        )
    names = ", ".join(f"%r{k}" for k in range(len(rows)))
    return (
        f'"dist.mesh"() {{sym_name = "mesh", axes = "{MESH}"}} : () -> ()\n'
        f"func.func @main({', '.join(arguments)}) -> ({', '.join(results)}) {{\n"
        + "\n".join(body)
        + f"\nreturn {names} : {', '.join(results)}\n}}"
    )


def test_direct_moves_among_processes(running):
    rows = cases()
    bundle = compile_text(program(rows), "mpi")
    rng = np.random.default_rng(7)
    inputs = [
        [rng.standard_normal(case[2]).astype(np.float32) for case in rows]
        for _ in range(MESH.nranks)
    ]
    executable = running.load(bundle)
    try:
        outputs = executable.run(inputs)
    finally:
        executable.close()
    for rank in range(MESH.nranks):
        group = MESH.group(AXES, rank)
        for k, case in enumerate(rows):
            want = expected(case, [inputs[member][k] for member in group], group.index(rank))
            got = outputs[rank][k][tuple(slice(n) for n in want.shape)]
            np.testing.assert_array_equal(got, want, err_msg=str(case))
