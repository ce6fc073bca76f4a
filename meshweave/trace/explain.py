"""What compiling a program decided, in words: the tables of `explain()`."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from typing import Any

from meshweave.fast_paths import Choice, as_choice
from meshweave.report import Report


def report(text: str, name: str, engine: str, kernels: Choice | None) -> Report:
    """What compiling a program decides: memory, slices, what became of each hint, kernels, collectives. It is compiled
    once more for it, up to the code.
    """
    from meshweave import api
    from meshweave.lowering.report import report_of

    with api.lowered(text, name, None, engine, kernels=as_choice(kernels)) as (module, program):
        return report_of(module, program)


def explanation(
    title: str, names: Sequence[str], program: Any, decided: Report, seconds: float
) -> str:
    """Tables about a loaded program: where its arguments and results lie, memory, and what was decided.

    names: of the arguments, then of the results; seconds: that compiling took.
    """
    from rich.console import Console
    from rich.table import Table

    ports = Table("", "global", "layout", "on a rank", "bytes of a rank", title=title)
    for name, port in zip(names, (*program.inputs, *program.outputs), strict=True):
        whole, local = (_shape(s, port.dtype) for s in (port.global_shape, port.local_shape))
        ports.add_row(name, whole, f"\\{port.layout}", local, f"{port.nbytes:,}")
    memory = Table("memory of a rank", "bytes")
    memory.add_row("arguments", f"{sum(p.nbytes for p in program.inputs):,}")
    memory.add_row("results", f"{sum(p.nbytes for p in program.outputs):,}")
    memory.add_row("everything between", f"{program.bundle.manifest.arena_bytes:,}")
    memory.add_row("peak", f"{program.peak_bytes:,}")
    moved = sum(row.nbytes for row in decided.collectives)
    count = len(decided.collectives)
    words = "collective brings" if count == 1 else "collectives bring"
    last = f"{count} {words} the busiest rank {moved:,} bytes; compiled in {1000 * seconds:.0f} ms"
    out = io.StringIO()
    console = Console(file=out, width=min(110, shutil.get_terminal_size((110, 24)).columns))
    for table in (ports, memory, *decided.tables(), last):
        console.print(table)
    return out.getvalue()


def _shape(shape: Sequence[int], dtype: str) -> str:
    return "x".join(map(str, (*shape, dtype)))
