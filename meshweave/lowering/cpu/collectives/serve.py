"""Compile how a call reaches the ranks of engine local (library/serve.mlir); tell which programs may be called so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from meshweave.lowering.buffers.steps import Step
from meshweave.lowering.cpu.collectives.library import Instance, link
from meshweave.lowering.cpu.collectives.objects import kept_object
from meshweave.lowering.nests.rows import Entry, in_order

SYMBOLS = ("mw_serve", "mw_call", "mw_finish", "mw_stop")


@lru_cache(maxsize=1)
def serve_object() -> bytes:
    """Return the ELF object with the functions."""
    # No other process sleeps on the words, which spares the system work; one rank sleeps on each.
    numbers = {"FUTEX_WAIT": 128 | 0, "FUTEX_WAKE": 128 | 1, "WAKE_MOST": 1}
    sources = [Instance("table"), Instance("futex", numbers=numbers), Instance("serve")]
    return kept_object(link(sources, SYMBOLS))


def always_ends(bodies: Iterable[Sequence[Entry]]) -> bool:
    """Tell whether every call of a program ends for sure, whatever its data; bodies: the entries of its functions.

    What Python does of it may take any time.
    """
    every = (entry for entries in bodies for entry in in_order(entries))
    endless = ("scf.while", "host")
    return not any(isinstance(entry, Step) and entry.what in endless for entry in every)
