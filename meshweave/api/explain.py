"""Explain what compiling a program decided, in the tables of `explain()`."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meshweave.bundle import port_bytes
from meshweave.report import Report
from meshweave.see.account import transfers
from meshweave.see.difference import CompileDifference, compare
from meshweave.see.page import Page

if TYPE_CHECKING:  # here, since program.py loads much that an error message does not need
    from meshweave.api.program import Program


_PAGE = '<pre style="line-height: 1.2">{code}</pre>'


class Explanation(str):
    """Be the text of an explanation, and hold what it says as values: `as_dict()`, `rows()`, `html`, `reasons`.

    page: the same as a page. tables: the text as HTML, which a notebook shows.
    """

    page: Page
    tables: str

    def __new__(cls, text: str, page: Page, tables: str) -> Explanation:
        """Make one of its text."""
        made = super().__new__(cls, text)
        made.page, made.tables = page, tables
        return made

    def __getnewargs__(self) -> tuple[str, Page, str]:  # type: ignore[override]
        """Return what a copy is made of."""
        return str(self), self.page, self.tables

    @property
    def report(self) -> Report:
        """Return what compiling has decided."""
        return self.page.report

    @property
    def reasons(self) -> str:
        """Return why each collective is there, as text."""
        ops = dict.fromkeys(row.op for row in self.report.collectives)
        return "\n".join(transfers(self.report, tuple(ops)))

    @property
    def html(self) -> str:
        """Return the page about the program, as HTML; `page.save` writes it."""
        return self.page.html

    def as_dict(self) -> dict[str, Any]:
        """Return what it says for JSON: the report, arguments and results, reasons and ops."""
        ports = [
            {
                "name": name,
                "dtype": p.dtype,
                "global_shape": list(p.global_shape),
                "layout": p.layout,
            }
            | {"local_shape": list(p.local_shape), "bytes": p.nbytes}
            for name, p in zip(self.page.names, self.page.ports, strict=True)
        ]
        reasons = [reason.as_dict() for reason in self.report.reasons]
        return {**self.report.as_dict(), "ports": ports, "reasons": reasons, "ops": self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each op of the whole program, as data frames take them: `pandas.DataFrame(rows)`."""
        return [
            {name: value for name, value in vars(row).items() if name != "shape"}
            for row in self.report.ops
        ]

    def difference(self, other: Explanation) -> CompileDifference:
        """Return what another compile does otherwise: figures, collectives by line, layouts, kernels, hints.

        It prints as text; `page.against(other.page)` shows it.
        """
        return compare(self.report, other.report, self.page.mesh, other.page.mesh)

    def extended(self, text: str) -> Explanation:
        """Return the explanation with more text at its end."""
        return Explanation(f"{self.rstrip()}\n{text}", self.page, self.tables)

    def _repr_html_(self) -> str:
        """Return the tables for a notebook; `page` shows the page there."""
        return self.tables


def explanation(
    title: str, names: Sequence[str], program: Program, decided: Report, seconds: float
) -> Explanation:
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
        limit = decided.placement.memory.limit if decided.placement.memory else 0
        bound = f", peak_bytes={limit}" if limit else ""  # with it the same values are made again
        placed.append(Text(_pinned(program, names) + bound))
    out = io.StringIO()
    width = min(110, shutil.get_terminal_size((110, 24)).columns)
    # In a notebook rich would draw the tables there, and leave nothing to return.
    console = Console(file=out, width=width, force_jupyter=False, record=True)
    for table in (ports, *placed, memory, *decided.tables(), Text(str(decided.certificate)), last):
        console.print(table)
    manifest = program.bundle.manifest
    page = Page(
        *(title, program.mesh, manifest.engine, decided),
        ports=(*program.inputs, *program.outputs),
        names=tuple(names),
    )
    tables = console.export_html(inline_styles=True, code_format=_PAGE)
    return Explanation(out.getvalue(), page, tables)


def _pinned(program: Program, names: Sequence[str]) -> str:
    """Return what one writes to get these layouts again, whatever is chosen by then."""
    taken = dict(zip(names, program.inputs))
    arguments = {n: p for n, p in taken.items() if not re.fullmatch(r"captured\d+", n)}
    held = [f'"{port.layout}"' for port in arguments.values()]
    given = [f'"{port.layout}"' for port in program.outputs]
    flat = ["result"] if len(given) == 1 else [f"result[{k}]" for k in range(len(given))]
    if not all(name.isidentifier() for name in arguments) or [*names[len(taken) :]] != flat:
        return (
            f'to pin it: mesh="{program.mesh}", layouts="auto", and in_layouts and out_layouts as they are above, '
            "in pytrees like the arguments and the results"
        )
    ends = ", ".join(held) + ("," if len(held) == 1 else "")
    out = given[0] if len(given) == 1 else f"({', '.join(given)})"
    return (
        f'to pin it: mesh="{program.mesh}", in_layouts=({ends}), out_layouts={out}, layouts="auto"'
    )


def _shape(shape: Sequence[int], dtype: str) -> str:
    return "x".join(map(str, (*shape, dtype)))
