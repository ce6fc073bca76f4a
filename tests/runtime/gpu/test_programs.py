"""Whole programs on engine emulate, from the compiler on, under several interleavings."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from depth import sampled
from test_overlap import data, gathered, mlp, reduced, ring, with_overlap

import meshweave as mw
from meshweave.api.program import compile
from meshweave.runtime import collect, place
from meshweave.simulator.engine import EmulateEngine

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llvmlite") is None, reason="llvmlite, which makes PTX, is not here"
)

PROGRAM = """module {{
  "dist.mesh"() {{sym_name = "mesh", axes = "{mesh}"}} : () -> ()
  func.func @main(%a: tensor<{shape}xf32> {{dist.layout = #dist.layout<"{source}">}})
      -> (tensor<{shape}xf32> {{dist.layout = #dist.layout<"{target}">}}) {{
    %0 = arith.addf %a, %a : tensor<{shape}xf32>
    return %0 : tensor<{shape}xf32>
  }}
}}
"""


@sampled(4)
@pytest.mark.parametrize(
    ("mesh", "shape", "source", "target"),
    [
        ("x=3", (7, 5), "[x, _]", "[_, x]"),  # uneven: messages of several sizes
        ("x=2,y=2", (7, 6), "[x, y]", "[y, x]"),
        ("x=2,y=2", (6, 4), "[x*y, _]", "[_, _]"),
        ("x=4", (8, 8), "[x, _]", "[_, x]"),
    ],
)
def test_moves(mesh, shape, source, target):
    text = PROGRAM.format(mesh=mesh, shape="x".join(map(str, shape)), source=source, target=target)
    value = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    with compile(text, engine="emulate") as program:
        assert np.array_equal(program(value)[0], 2 * value)
        bundle = program.bundle
    made = EmulateEngine()
    for seed in range(4):
        made.seed = seed
        executable = made.load(bundle)
        found = collect(executable, executable.run(place(executable, [value])))[0].numpy()
        assert np.array_equal(found, 2 * value)
        executable.close()


@sampled(4)
@pytest.mark.parametrize("make", [reduced, mlp, gathered, ring])
def test_collectives_under_compute_in_any_order(make):
    """Waits stand where results are read: each order gives the bits of the first one, and nothing
    races.
    """
    text = make(2) if make is ring else make(2, 4)
    with compile(with_overlap(text, "auto"), engine="emulate") as program:
        given = [data(*port.global_shape) for port in program.inputs]
        first = program(*given)[0]
        bundle = program.bundle
        with mw.trace() as t:
            assert program(*given)[0].tobytes() == first.tobytes()
    ahead = [s for s in t.slices if s.aside]
    waited = [s for s in t.slices if s.name.endswith(", wait")]
    assert len(waited) == sum(s.kind == "collective" for s in ahead) > 0
    assert {"kernel", "copy", "collective"} >= {s.kind for s in t.slices if not s.aside} - {"wait"}
    made = EmulateEngine()
    for seed in range(8):
        made.seed = seed
        executable = made.load(bundle)
        found = collect(executable, executable.run(place(executable, given)))[0].numpy()
        assert found.tobytes() == first.tobytes()
        executable.close()
