"""Draw a small picture of ownership, as text and as HTML: the cells of a tensor, each with the ranks that hold it."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import product

import numpy as np

from meshweave.layout.digits import dim_indices
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.layout.ownership import dim_ownership_text, runs_of
from meshweave.layout.places import Indices, dim_addresses, locate, owners

MAX_CELLS = 16  # cells along a dim, and ranks listed, before the rest is left out
MAX_NAMED = 8  # ranks named in a cell
MAX_POSITIONS = 1 << 20  # indices of a dim that are looked at one by one
COLOURS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#76b7b2", "#9c755f", "#edc948",
    "#2f4b7c", "#d37295", "#8cd17d", "#79706e",
)  # fmt: skip
"""Colours of the ranks, in turn."""


def ink(colour: str) -> str:
    """Return the colour of a text on a colour, `#rrggbb`: black or white, whichever is told apart better (WCAG 2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000" if (light + 0.05) ** 2 > 0.05 * 1.05 else "#fff"


@dataclass(frozen=True)
class Cell:
    """Hold a text, and the rank whose colour it has: None where it has none."""

    text: str
    rank: int | None = None

    @property
    def colour(self) -> str | None:
        """Return the colour as `#rrggbb`."""
        return None if self.rank is None else COLOURS[self.rank % len(COLOURS)]


@dataclass(frozen=True)
class Picture:
    """Hold a table of cells under a header (its first column names the rows), and notes below it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...]


_Runs = Sequence[Sequence[tuple[int, int]]]  # for each dim the runs that lie on the same ranks
_Table = tuple[list[str], list[list[Cell]]]  # header and rows


def picture_of(layout: Layout, mesh: Mesh, shape: Sequence[int]) -> Picture:
    """Draw the cells of a tensor of one or two dims; for others, list what each rank holds. The layout must fit."""
    cells = [_cells(layout, mesh, shape, dim) for dim in range(len(shape))]
    drawn = 1 <= len(shape) <= 2 and all(0 < len(row) <= MAX_CELLS for row in cells)
    header, rows = (_grid if drawn else _list)(layout, mesh, shape, cells)
    notes = [f"still to do: {p.kind} over {', '.join(p.axes)}" for p in layout.partial]
    notes += _memory(layout, mesh, shape)
    return Picture(str(layout), tuple(header), tuple(map(tuple, rows)), tuple(notes))


def html(layout: Layout, mesh: Mesh, shape: Sequence[int], dtype: str = "") -> str:
    """Return the picture as an HTML table that needs nothing else."""
    picture = picture_of(layout, mesh, shape)
    sizes = "x".join(map(str, (*shape, dtype) if dtype else shape))
    title = escape(f"{sizes} {layout} on ({mesh})")
    head = "".join(f"<th>{escape(text)}</th>" for text in picture.header)
    rows = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in picture.rows)
    notes = "".join(f"<div>{escape(note)}</div>" for note in picture.notes)
    return (
        f'<div class="meshweave-layout"><div><code>{title}</code></div>'
        f'<table style="border-collapse:collapse"><tr>{head}</tr>{rows}</table>{notes}</div>'
    )


def _html_cell(cell: Cell) -> str:
    if cell.colour is None:
        return f"<td>{escape(cell.text)}</td>"
    style = (
        f"background:{cell.colour};color:{ink(cell.colour)};border:1px solid #fff;padding:4px 10px"
    )
    return f'<td style="{style};text-align:center">{escape(cell.text)}</td>'


def _grid(layout: Layout, mesh: Mesh, shape: Sequence[int], cells: _Runs) -> _Table:
    header = ["", *(_range(low, high) for low, high in cells[-1])]
    rows = []
    for low, high in cells[0] if len(shape) == 2 else [(0, 0)]:
        starts = [(low, at) if len(shape) == 2 else (at,) for at, _ in cells[-1]]
        held = [owners(layout, mesh, shape, start) for start in starts]
        first = Cell(_range(low, high) if len(shape) == 2 else "ranks")
        rows.append([first, *(Cell(_ranks(ranks), ranks[0]) for ranks in held)])
    return header, rows


def _cells(layout: Layout, mesh: Mesh, shape: Sequence[int], dim: int) -> list[tuple[int, int]]:
    """Return the runs of a dim that lie on the same ranks; none for a very long dim."""
    if shape[dim] > MAX_POSITIONS:
        return []
    index = np.arange(shape[dim])
    coordinates, _ = locate(layout, mesh, shape, dim, index)
    ranks = 0 * index
    for name, values in zip(layout.axes_of(dim), coordinates, strict=True):
        ranks = ranks + values * mesh.stride(name)
    ends = [*(np.flatnonzero(np.diff(ranks)) + 1).tolist(), len(index)] if len(index) else []
    return list(zip([0, *ends], ends))


def _list(layout: Layout, mesh: Mesh, shape: Sequence[int], _: _Runs) -> _Table:
    header = ["rank", *(f"dim {dim}" for dim in range(len(shape)))]
    rows = []
    for rank in range(min(mesh.nranks, MAX_CELLS)):
        row = [Cell(str(rank), rank)]
        for dim in range(len(shape)):
            if shape[dim] > MAX_POSITIONS:
                row.append(Cell(dim_ownership_text(layout, mesh, tuple(shape), dim, rank)))
                continue
            row.append(Cell(_runs(dim_indices(layout, mesh, shape, dim, rank))))
        rows.append(row)
    if mesh.nranks > MAX_CELLS:
        rows.append([Cell("...")] * (1 + len(shape)))
    return header, rows


def _runs(indices: Indices) -> str:
    inside = indices[indices >= 0]
    if not len(inside):
        return "-"
    runs = runs_of(inside)
    texts = [_range(low, high) for low, high in runs[:4]]
    return " ".join([*texts, "..."] if len(runs) > 4 else texts)


def _range(low: int, high: int) -> str:
    return str(low) if high - low == 1 else f"{low}..{high - 1}"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ",".join(map(str, ranks[:MAX_NAMED]))
    return f"{shown},..." if len(ranks) > MAX_NAMED else shown


def _memory(layout: Layout, mesh: Mesh, shape: Sequence[int]) -> list[str]:
    """Describe the memory order of rank 0, where it is not the default and short enough to read."""
    sizes = layout.local_shape(mesh, shape)
    if layout.order is None or not 0 < np.prod(sizes) <= 24:
        return []
    parts = [dim_addresses(layout, mesh, shape, dim) for dim in range(len(shape))]
    index = [dim_indices(layout, mesh, shape, dim, 0).tolist() for dim in range(len(shape))]
    found = {
        sum(int(part[k]) for part, k in zip(parts, places)): tuple(
            row[k] for row, k in zip(index, places)
        )
        for places in product(*map(range, sizes))
    }
    texts = [
        "-" if min(where) < 0 else ",".join(map(str, where)) for _, where in sorted(found.items())
    ]
    return ["rank 0 in memory: " + " ".join(texts)]
