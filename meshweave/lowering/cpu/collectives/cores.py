"""Compile how the cores of a rank share the work of a kernel (library/cores.mlir)."""

from __future__ import annotations

from functools import lru_cache

from meshweave.lowering.cpu.collectives.library import Instance, link
from meshweave.lowering.cpu.collectives.objects import kept_object

SHARE = "mw_share"
SYMBOLS = (SHARE, "mw_help", "mw_dismiss")


@lru_cache(maxsize=1)
def cores_object() -> bytes:
    """Return the ELF object with the functions."""
    # No other process sleeps on the words, which spares the system work.
    numbers = {"FUTEX_WAIT": 128 | 0, "FUTEX_WAKE": 128 | 1}
    futex = Instance("futex", numbers=numbers)
    sources = [Instance("table"), futex, Instance("serve"), Instance("cores")]
    return kept_object(link(sources, SYMBOLS))
