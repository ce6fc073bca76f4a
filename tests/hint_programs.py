"""Compile programs with hints, and run them on the local engine: global arrays in, global arrays out."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshweave.api import Program
from meshweave.bindings import context, ir
from meshweave.bundle import Bundle
from meshweave.lowering import compile_local
from meshweave.pipeline import run_pipeline
from meshweave.runtime.local import LocalEngine
from meshweave.transforms.hint_ledger import read_ledger

GLOBAL = "dist-propagate,dist-insert-redistribute,dist-legalize-redistribute,dist-partition"
HINTED = f"hint-apply,{GLOBAL},hint-slice,hint-verify,canonicalize,cse"
STRIPPED = f"hint-strip,{GLOBAL},canonicalize,cse"
NO_MESH = '"dist.mesh"() {sym_name = "mesh", axes = "one=1"} : () -> ()\n'


def built(text: str, pipeline: str = HINTED) -> tuple[Bundle, Any, str]:
    """The bundle of a program, its ledger, and the program behind the passes."""
    with context(), ir.Location.unknown():
        module = ir.Module.parse(text if "dist.mesh" in text else NO_MESH + text)
        run_pipeline(module, pipeline)
        return compile_local(module), read_ledger(module), str(module)


def run(text: str, inputs: Sequence[Any], pipeline: str = HINTED) -> list[np.ndarray]:
    """The results of a program."""
    bundle, _, _ = built(text, pipeline)
    with Program(bundle, LocalEngine(timeout=30)) as program:
        return [np.asarray(r) for r in program(*inputs)]
