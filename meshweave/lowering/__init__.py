"""From a program in the local view to a bundle: `compile_local`, one target so far, "cpu"."""

from meshweave.lowering.cpu import compile_local

TARGETS = {"cpu": compile_local}

__all__ = ["TARGETS", "compile_local"]
