"""Draw which rank holds what, in colours: with rich in a terminal, as a table in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING

from meshweave.errors import UsageError
from meshweave.layout import Layout, Mesh
from meshweave.layout.arguments import as_layout
from meshweave.layout.picture import html, picture_of
from meshweave.layout.spec import LayoutLike
from meshweave.runtime.arrays.array import Array, as_mesh, as_shape

if TYPE_CHECKING:  # here, for a bundle runs without rich
    from rich.console import RenderableType


def show(
    what: Array | LayoutLike,
    *,
    shape: Sequence[int] | None = None,
    mesh: Mesh | str | None = None,
    file: IO[str] | None = None,
) -> None:
    """Show which rank holds which elements: each rank has a colour.

    what:  an Array, or a layout: text, a Layout, a PartitionSpec. shape, mesh: of a layout: the global shape, and the
           devices; an Array has its own.
    file:  where to print it; by default the notebook, or standard output (without colours when it is no terminal).
    Raises UsageError when shape or mesh is missing, LayoutError when the layout does not fit.

    >>> import meshweave as mw
    >>> mw.show("[x, _]", shape=(4, 4), mesh="x=2")
    [x, _]
    ┏━━━━━━┳━━━━━━┓
    ┃      ┃ 0..3 ┃
    ┡━━━━━━╇━━━━━━┩
    │ 0..1 │  0   │
    ├──────┼──────┤
    │ 2..3 │  1   │
    └──────┴──────┘
    """
    layout, on, sizes, dtype = _subject(what, shape, mesh)
    layout.check(on, sizes)
    if file is None and (display := _notebook()) is not None:
        display({"text/html": html(layout, on, sizes, dtype), "text/plain": repr(what)}, raw=True)
        return
    from rich.console import Console

    Console(file=file or sys.stdout, highlight=False).print(picture(layout, on, sizes))


def _subject(
    what: object, shape: Sequence[int] | None, mesh: Mesh | str | None
) -> tuple[Layout, Mesh, tuple[int, ...], str]:
    if isinstance(what, Array):
        if shape is not None or mesh is not None:
            raise UsageError("show: an Array has a shape and a mesh of its own")
        return what.layout, what.mesh, what.shape, what.dtype_name
    if not isinstance(what, str | tuple | Layout) and type(what).__name__ != "PartitionSpec":
        raise UsageError(f"show: an Array or a layout is needed, got {type(what).__name__}")
    if shape is None or mesh is None:
        missing = "shape" if shape is None else "mesh"
        raise UsageError(
            f'show: a layout needs a {missing}: show("[x, _]", shape=(8, 4), mesh="x=2")'
        )
    sizes = as_shape("show", shape)
    return as_layout(what, len(sizes)), as_mesh(mesh), sizes, ""


def _notebook() -> Callable[..., object] | None:
    """Return the display function of the notebook that this process serves; None elsewhere."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    found: Callable[..., object] = display
    return found


def picture(layout: Layout, mesh: Mesh, shape: Sequence[int]) -> RenderableType:
    """Return what rich prints: the cells of a tensor of one or two dims, else what each rank holds."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    drawn = picture_of(layout, mesh, shape)
    table = Table(show_header=True, show_lines=True)
    for number, text in enumerate(drawn.header):
        table.add_column(text, justify="center" if number and drawn.header[0] == "" else "left")
    for row in drawn.rows:
        table.add_row(
            *(Text(c.text, style=f"bold white on {c.colour}" if c.colour else "") for c in row)
        )
    return Group(Text(drawn.title), table, *map(Text, drawn.notes))
