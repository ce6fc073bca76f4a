"""Programs whose arguments, results and constraints are in any layouts, against NumPy."""

import numpy as np
from depth import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import any_layouts, meshes

import meshweave as mw

SIZES = (1, 2, 3, 5, 6, 8)
SLOW = {"deadline": None, "suppress_health_check": list(HealthCheck)}

TEXT = """
"dist.mesh"() {{sym_name = "mesh", axes = "{mesh}"}} : () -> ()
func.func @main(%a: {A} {{dist.layout = #dist.layout<"{la}">}}, %b: {B} {{dist.layout = #dist.layout<"{lb}">}})
    -> ({C} {{dist.layout = #dist.layout<"{lc}">}}, {S} {{dist.layout = #dist.layout<"{ls}">}},
        {A} {{dist.layout = #dist.layout<"{lo}">}}) {{
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %e = tensor.empty() : {C}
  %i = linalg.fill ins(%zero : f32) outs(%e : {C}) -> {C}
  %p = linalg.matmul ins(%a, %b : {A}, {B}) outs(%i : {C}) -> {C}
  %q = "dist.constrain"(%p) {{layout = #dist.layout<"{lq}">}} : ({C}) -> {C}
  %c = linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
      iterator_types = ["parallel", "parallel"]}} ins(%q : {C}) outs(%e : {C}) {{
  ^bb0(%x: f32, %y: f32):
    %r = linalg.index 0 : index
    %t = linalg.index 1 : index
    %two = arith.constant 2 : index
    %u = arith.muli %r, %two : index
    %v = arith.addi %u, %t : index
    %w = arith.index_cast %v : index to i32
    %f = arith.sitofp %w : i32 to f32
    %z = arith.addf %x, %f : f32
    linalg.yield %z : f32
  }} -> {C}
  %es = tensor.empty() : {S}
  %is = linalg.fill ins(%low : f32) outs(%es : {S}) -> {S}
  %s = linalg.reduce {{ arith.maximumf }} ins(%c : {C}) outs(%is : {S}) dimensions = [0]
  return %c, %s, %a : {C}, {S}, {A}
}}
"""


def tensor(*shape):
    return f"tensor<{''.join(f'{size}x' for size in shape)}f32>"


@st.composite
def programs(draw, max_ranks=8):
    """(text, arguments, results)"""
    mesh = draw(meshes(max_ranks))
    n, k, m = (draw(st.sampled_from(SIZES)) for _ in range(3))
    shapes = {"la": (n, k), "lb": (k, m), "lc": (n, m), "ls": (m,), "lo": (n, k), "lq": (n, m)}
    layouts = {name: draw(any_layouts(mesh, shape)) for name, shape in shapes.items()}
    if draw(st.booleans()):
        layouts["lo"] = layouts["la"]
    types = {"A": tensor(n, k), "B": tensor(k, m), "C": tensor(n, m), "S": tensor(m)}
    a, b = (np.random.default_rng(0).integers(-4, 5, s).astype("f4") for s in ((n, k), (k, m)))
    c = a @ b + (np.arange(n)[:, None] * 2 + np.arange(m)).astype("f4")
    return TEXT.format(mesh=mesh, **types, **layouts), (a, b), (c, c.max(0), a)


def check(text, arguments, results, engine):
    with mw.compile(text, engine=engine) as program:
        for found, right in zip(program(*arguments), results, strict=True):
            assert np.array_equal(found, right), text


@settings(max_examples=examples(15), **SLOW)
@given(programs())
def test_programs_take_and_give_any_layout_on_threads(case):
    check(*case, "local")


@settings(max_examples=2, **SLOW)
@given(programs(max_ranks=4))
def test_programs_take_and_give_any_layout_on_processes(case):
    check(*case, "mpi")
