"""Compile a program in the local view and run it on the local engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshweave.bundle import Bundle
from meshweave.dialects import lent_context
from meshweave.ir.bindings import ir
from meshweave.lowering import compile_program
from meshweave.runtime.local.engine import LocalEngine

DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "i32": np.int32, "i64": np.int64,
          "i8": np.int8, "i1": np.bool_}  # fmt: skip


def compile_text(text: str, engine: str = "local") -> Bundle:
    """The bundle of a module's text; a function `@main` alone gets a mesh of one rank."""
    if "dist.mesh" not in text:
        text = f'"dist.mesh"() {{sym_name = "mesh", axes = "x=1"}} : () -> ()\n{text}'
    with lent_context(unregistered=False) as ctx, ctx, ir.Location.unknown():
        return compile_program(ir.Module.parse(text), engine)


def run_ranks(bundle: Bundle, inputs: Sequence[Sequence[Any]]) -> list[list[np.ndarray]]:
    """Results of every rank for inputs[rank][argument]."""
    executable = LocalEngine(timeout=60).load(bundle)
    try:
        return executable.run([[np.array(a, order="C") for a in rank] for rank in inputs])
    finally:
        executable.close()


def run_text(text: str, *inputs: Any) -> list[np.ndarray]:
    """Results of a program of one rank."""
    return run_ranks(compile_text(text), [inputs])[0]
