"""Programs of text, run on the local engine on a mesh, and cut for one rank."""

import re

import numpy as np

import meshweave
from meshweave.dialects import lent_context
from meshweave.frontends.load import load_module
from meshweave.ir.pipeline_text import GLOBAL_PASSES
from meshweave.pipeline import run_pipeline

GENERATOR = np.random.default_rng(0)


def run(mesh: str, text: str, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
    """The results of `text` on `mesh` ("x=2")."""
    with meshweave.compile(on(mesh, text), timeout=120) as program:
        return program(*inputs)


def on(mesh: str, text: str) -> str:
    """`text` as a module with this mesh; `{[x, _]}` in it is short for `{dist.layout = #dist.layout<"[x, _]">}`."""
    text = re.sub(r"\{(\[[^\]]*\][^{}]*)\}", r'{dist.layout = #dist.layout<"\1">}', text)
    return f'"dist.mesh"() {{sym_name = "mesh", axes = "{mesh}"}} : () -> ()\n{text}'


def partitioned(mesh: str, text: str) -> str:
    """The local program, with each collective that the layouts ask for."""
    passes = [name for name in GLOBAL_PASSES if name != "dist-fuse-collectives"]
    with lent_context() as ctx, ctx:
        module = load_module(on(mesh, text), ctx)
        run_pipeline(module, ",".join(passes))
        return str(module)


def whole(*shape: int, dtype: str = "f4") -> np.ndarray:
    """Small whole numbers."""
    return GENERATOR.integers(-3, 4, shape).astype(dtype)


def equal(result: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_array_equal(result, wanted)
