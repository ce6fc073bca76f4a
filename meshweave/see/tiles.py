"""Draw layouts for a page: tiles in the colours of the ranks, and what each rank holds of each dim."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any

import numpy as np

from meshweave.errors import MeshweaveError
from meshweave.layout import Layout, Mesh
from meshweave.layout.digits import dim_indices
from meshweave.layout.ownership import runs_of
from meshweave.layout.picture import COLOURS, ink, picture_of
from meshweave.layout.places import owners

MOST_RANKS = 64  # that are listed
MOST_RUNS = 64  # of a dim on a rank
MOST_INDICES = 1 << 16  # of a dim that are looked at one by one
WIDTH, HEIGHT, _CELLS = 44, 28, 16


def held(layout: Layout, mesh: Mesh, shape: Sequence[int]) -> dict[str, Any] | None:
    """Return the runs of each dim that each rank holds, for the page's script; None where they are too many."""
    if mesh.nranks > MOST_RANKS or max(shape, default=0) > MOST_INDICES:
        return None
    rows = []
    for rank in range(mesh.nranks):
        row = []
        for dim in range(len(shape)):
            indices = dim_indices(layout, mesh, shape, dim, rank)
            inside = np.sort(indices[indices >= 0])
            runs = runs_of(inside) if len(inside) else []
            if len(runs) > MOST_RUNS:
                return None
            row.append([list(map(int, run)) for run in runs])
        rows.append(row)
    return {"shape": list(shape), "held": rows}


def tile(layout: Layout, mesh: Mesh, shape: Sequence[int]) -> str:
    """Return a small drawing of the last two dims, as SVG shapes in a box of WIDTH by HEIGHT.

    Each part has the colour of the first rank that holds it.
    """
    if 0 in shape:
        return ""
    rows = [_row(layout, mesh, shape, i) for i in range(_count(shape, 2))]
    found, top = [], 0
    for row, same in groupby(rows):
        count = len(list(same))
        left = 0
        for colour, cells in groupby(row):
            wide = len(list(cells))
            found.append((left, top, wide, count, colour))
            left += wide
        top += count
    x, y = WIDTH / len(rows[0]), HEIGHT / len(rows)
    return "".join(
        f'<path fill="{colour}" d="M{left * x:.1f} {down * y:.1f}h{wide * x:.1f}v{high * y:.1f}h-{wide * x:.1f}z"/>'
        for left, down, wide, high, colour in found
    )


def _count(shape: Sequence[int], back: int) -> int:
    """Return how many cells stand for a dim, counted from the last."""
    return min(_CELLS, shape[-back]) if len(shape) >= back else 1


def _row(layout: Layout, mesh: Mesh, shape: Sequence[int], row: int) -> list[str]:
    """Return the colours of a row of cells, each for the element in its middle."""
    columns, place, found = _count(shape, 1), [0] * len(shape), []
    if len(shape) > 1:
        place[-2] = (2 * row + 1) * shape[-2] // (2 * _count(shape, 2))
    for column in range(columns):
        if shape:
            place[-1] = (2 * column + 1) * shape[-1] // (2 * columns)
        rank = _first_owner(layout, mesh, shape, place)
        found.append("none" if rank is None else COLOURS[rank % len(COLOURS)])
    return found


def _first_owner(
    layout: Layout, mesh: Mesh, shape: Sequence[int], place: Sequence[int]
) -> int | None:
    """Return the first rank that holds an element; of windows, which may overlap or leave out some, None for none."""
    if all(layout.window(dim) is None for dim in range(layout.ndim)):
        return owners(layout, mesh, shape, place)[0]
    ranks = (
        rank
        for rank in range(mesh.nranks)
        if all(at in dim_indices(layout, mesh, shape, dim, rank) for dim, at in enumerate(place))
    )
    return next(ranks, None)


def drawing(layout: Layout, mesh: Mesh, shape: Sequence[int]) -> str:
    """Return a table of a layout: its parts with the ranks that hold them, or what each rank holds."""
    try:
        picture = picture_of(layout, mesh, shape)
    except MeshweaveError as error:
        return _windows(layout, mesh, shape) or f"<p>{escape(str(error))}</p>"
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in picture.header)
    rows = []
    for row in picture.rows:
        cells = [
            f"<td>{escape(cell.text)}</td>"
            if cell.colour is None
            else f'<td style="background:{cell.colour};color:{ink(cell.colour)}">{escape(cell.text)}</td>'
            for cell in row
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    notes = "".join(f'<p class="faint">{escape(note)}</p>' for note in picture.notes)
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>{notes}'


def _windows(layout: Layout, mesh: Mesh, shape: Sequence[int]) -> str:
    """Return a table of the indices that each rank holds of each dim, where these overlap."""
    found = held(layout, mesh, shape)
    if found is None:
        return ""
    head = "".join(f'<th scope="col">dim {dim}</th>' for dim in range(len(shape)))
    rows = []
    for rank, dims in enumerate(found["held"]):
        texts = [", ".join(f"{a}..{b - 1}" for a, b in runs) for runs in dims]
        cells = "".join(f"<td>{text}</td>" for text in texts)
        rows.append(f'<tr><th scope="row">rank {rank}</th>{cells}</tr>')
    return f'<div class="scroll"><table><tr><td></td>{head}</tr>{"".join(rows)}</table></div>'
