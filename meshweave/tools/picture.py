"""A small picture of who holds what: the tensor in cells, each with the ranks that hold it."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from meshweave.layout import Layout, Mesh
from meshweave.layout.places import dim_addresses, indices_at, locate, owners

MAX_CELLS = 16  # cells along a dim, and ranks listed, before the rest is left out
MAX_NAMED = 8  # ranks named in a cell


def picture(layout: Layout, mesh: Mesh, shape: Sequence[int]) -> Any:
    """For rich to print: of one or two dims the cells of the tensor, of others what each rank holds."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=True, show_lines=True)
    cells = [_cells(layout, mesh, shape, dim) for dim in range(len(shape))]
    drawn = 1 <= len(shape) <= 2 and all(0 < len(row) <= MAX_CELLS for row in cells)
    if drawn:
        rows = cells[0] if len(shape) == 2 else [(0, 0)]
        table.add_column("")
        for low, high in cells[-1]:
            table.add_column(_range(low, high), justify="center")
        for low, high in rows:
            starts = [(low, at) if len(shape) == 2 else (at,) for at, _ in cells[-1]]
            held = [_ranks(owners(layout, mesh, shape, start)) for start in starts]
            table.add_row(_range(low, high) if len(shape) == 2 else "ranks", *held)
    else:
        _list(table, layout, mesh, shape)
    notes = [f"still to do: {p.kind} over {', '.join(p.axes)}" for p in layout.partial]
    notes += _memory(layout, mesh, shape)
    return Group(Text(str(layout)), table, *map(Text, notes))


def _cells(layout: Layout, mesh: Mesh, shape: Sequence[int], dim: int) -> list[tuple[int, int]]:
    """The runs of a dim that lie on the same ranks; of very long dims none."""
    if shape[dim] > 1 << 22:
        return []
    index = np.arange(shape[dim])
    coordinates, _ = locate(layout, mesh, shape, dim, index)
    ranks = 0 * index
    for name, values in zip(layout.axes_of(dim), coordinates, strict=True):
        ranks = ranks + values * mesh.stride(name)
    ends = [*(np.flatnonzero(np.diff(ranks)) + 1).tolist(), len(index)] if len(index) else []
    return list(zip([0, *ends], ends))


def _list(table: Any, layout: Layout, mesh: Mesh, shape: Sequence[int]) -> None:
    table.add_column("rank")
    for dim in range(len(shape)):
        table.add_column(f"dim {dim}")
    for rank in range(min(mesh.nranks, MAX_CELLS)):
        held = []
        for dim in range(len(shape)):
            at = [mesh.coordinate(rank, name) for name in layout.axes_of(dim)]
            held.append(_runs(indices_at(layout, mesh, shape, dim, at)))
        table.add_row(str(rank), *held)
    if mesh.nranks > MAX_CELLS:
        table.add_row("...", *["..."] * len(shape))


def _runs(indices: Any) -> str:
    inside = indices[indices >= 0]
    if not len(inside):
        return "-"
    ends = [*(np.flatnonzero(np.diff(inside) != 1) + 1).tolist(), len(inside)]
    runs = [(int(inside[a]), int(inside[b - 1]) + 1) for a, b in zip([0, *ends], ends)]
    texts = [_range(low, high) for low, high in runs[:4]]
    return " ".join([*texts, "..."] if len(runs) > 4 else texts)


def _range(low: int, high: int) -> str:
    return str(low) if high - low == 1 else f"{low}..{high - 1}"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ",".join(map(str, ranks[:MAX_NAMED]))
    return f"{shown},..." if len(ranks) > MAX_NAMED else shown


def _memory(layout: Layout, mesh: Mesh, shape: Sequence[int]) -> list[str]:
    """The memory order of rank 0, where it is not the default and short enough to read."""
    sizes = layout.local_shape(mesh, shape)
    if layout.order is None or not 0 < np.prod(sizes) <= 24:
        return []
    parts = [dim_addresses(layout, mesh, shape, dim) for dim in range(len(shape))]
    at = [[mesh.coordinate(0, name) for name in layout.axes_of(d)] for d in range(len(shape))]
    index = [indices_at(layout, mesh, shape, dim, row).tolist() for dim, row in enumerate(at)]
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
