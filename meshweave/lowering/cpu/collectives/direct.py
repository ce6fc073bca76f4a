"""Compile how Python calls code on small Arrays of one rank (library/python/direct.mlir)."""

from __future__ import annotations

from meshweave.lowering.cpu.collectives.library import Instance, link
from meshweave.lowering.cpu.collectives.objects import compile_text

SYMBOLS = ("mw_direct", "mw_direct_move")


def direct_object() -> bytes:
    """Return the ELF object with the functions."""
    return compile_text(*link([Instance("table"), Instance("python/direct")], SYMBOLS))
