"""Explain what compiling a program decided, in the tables of `explain()`."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshweave.bundle import port_bytes
from meshweave.report import Report

if TYPE_CHECKING:  # here, since program.py loads much that an error message does not need
    from meshweave.api.program import Program


_PAGE = '<pre style="line-height: 1.2">{code}</pre>'


class Explanation(str):
    """Be the text of tables; a notebook shows them drawn."""

    page: str = ""

    def _repr_html_(self) -> str:
        """Return the tables as HTML."""
        return self.page


def explanation(
    title: str, names: Sequence[str], program: Program, decided: Report, seconds: float
) -> str:
    """Draw tables about a loaded program: where its arguments and results lie, memory, and what was decided.

    names: of the arguments, then of the results. seconds: how long compiling took.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # what users have named is no markup

    ports = Table("", "global", "layout", "on a rank", "bytes of a rank", title=Text(title))
    for name, port in zip(names, (*program.inputs, *program.outputs), strict=True):
        whole, local = (_shape(s, port.dtype) for s in (port.global_shape, port.local_shape))
        ports.add_row(Text(name), whole, Text(str(port.layout)), local, f"{port.nbytes:,}")
    memory = Table("memory of a rank", "bytes")
    memory.add_row("arguments", f"{sum(p.nbytes for p in program.inputs):,}")
    memory.add_row("results", f"{port_bytes(program.outputs):,}")
    if any(p.takes is not None for p in program.outputs):
        memory.add_row("copied of donated state", f"{decided.state_bytes:,}")
    memory.add_row("everything between", f"{program.bundle.manifest.arena_bytes:,}")
    memory.add_row("peak", f"{program.peak_bytes:,}")
    if program.bundle.manifest.core_bytes:
        memory.add_row("for each further core", f"{program.bundle.manifest.core_bytes:,}")
    moved = sum(row.nbytes for row in decided.collectives)
    count = len(decided.collectives)
    words = "collective brings" if count == 1 else "collectives bring"
    cores = program.executable.cores
    last = (
        f"{count} {words} the busiest rank {moved:,} bytes; compiled in {1000 * seconds:.0f} ms; "
        f"each rank computes on {cores} core{'s' if cores > 1 else ''}"
    )
    placed = [] if decided.placement is None else decided.placement.tables()
    if decided.placement is not None:
        placed.append(Text(_pinned(program)))
    out = io.StringIO()
    width = min(110, shutil.get_terminal_size((110, 24)).columns)
    # In a notebook rich would draw the tables there, and leave nothing to return.
    console = Console(file=out, width=width, force_jupyter=False, record=True)
    for table in (ports, *placed, memory, *decided.tables(), Text(str(decided.certificate)), last):
        console.print(table)
    made = Explanation(out.getvalue())
    made.page = console.export_html(inline_styles=True, code_format=_PAGE)
    return made


def _pinned(program: Program) -> str:
    """Return what one writes to get these layouts again, whatever is chosen by then."""
    held = [f'"{port.layout}"' for port in program.inputs]
    given = [f'"{port.layout}"' for port in program.outputs]
    ends = ", ".join(held) + ("," if len(held) == 1 else "")
    out = given[0] if len(given) == 1 else f"({', '.join(given)})"
    return (
        f'to pin it: mesh="{program.mesh}", in_layouts=({ends}), out_layouts={out}, layouts="auto"'
    )


def _shape(shape: Sequence[int], dtype: str) -> str:
    return "x".join(map(str, (*shape, dtype)))
