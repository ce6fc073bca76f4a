"""Make arrays of the tensors of files: each rank's part is read from its place, a tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path

from meshweave.errors import LayoutError, MeshweaveError, UsageError, did_you_mean
from meshweave.layout import Layout, Mesh
from meshweave.layout.arguments import as_layout
from meshweave.runtime.memory import Values
from meshweave.runtime.weights.boxes import OpenFile
from meshweave.runtime.weights.formats import tensor_in
from meshweave.runtime.weights.stored import Stored


def read_tensor(
    path: Path, name: str | None, mesh: Mesh, layout: object, ranks: Sequence[int]
) -> tuple[list[Values], Layout, Stored]:
    """Return what these ranks hold of a tensor of a file, its layout, and what the file says of it.

    Raises MeshweaveError when there is no such tensor, LayoutError, which names it, for a layout that does not fit.
    """
    found, stored = tensor_in(path, name)
    laid = fitting(found, stored, mesh, layout)
    with OpenFile(stored.path) as file:
        return [stored.shard(file, mesh, laid, r) for r in ranks], laid, stored


def read_shards(
    found: Mapping[str, Stored],
    mesh: Mesh,
    layouts: Mapping[str, Layout],
    ranks: Sequence[int],
    say: Callable[[str], None],
) -> Iterator[tuple[str, list[Values]]]:
    """Yield each tensor's name and what these ranks hold of it; a file is opened once.

    layouts: of each name. say: called with each name before it is read.
    """
    files: dict[Path, OpenFile] = {}
    with ExitStack() as opened:
        for name, stored in found.items():
            say(name)
            if stored.path not in files:
                files[stored.path] = opened.enter_context(OpenFile(stored.path))
            file = files[stored.path]
            yield name, [stored.shard(file, mesh, layouts[name], rank) for rank in ranks]


def fitting(name: str, stored: Stored, mesh: Mesh, layout: object) -> Layout:
    """Return the layout of a tensor, by default the whole on each rank. Raises LayoutError, which names the tensor."""
    ndim = len(stored.shape)
    laid = Layout.replicated(ndim) if layout is None else as_layout(layout, ndim)
    try:
        laid.check(mesh, stored.shape)
        laid.check_owned()
    except LayoutError as error:
        where = f"{stored.path}: tensor {name}" if name else str(stored.path)
        raise LayoutError(f"{where}: {error.message}") from None
    return laid


def layouts_of(names: Mapping[str, object], layouts: object, who: str) -> dict[str, object]:
    """Return the layout of each name: that of the first pattern that fits it, None where none does.

    layouts: a mapping from patterns (`*` and `?` stand for any text and any letter) to layouts, or one layout for all.
    Raises MeshweaveError for a pattern that no name fits, or that earlier ones leave nothing to.
    """
    if layouts is None or not isinstance(layouts, Mapping):
        return dict.fromkeys(names, layouts)
    given: dict[str, object] = dict.fromkeys(names)
    left = dict.fromkeys(names)
    for pattern, layout in layouts.items():
        if not isinstance(pattern, str):
            raise UsageError(f"{who}: pattern {pattern!r:.40}: text is right")
        fits = [name for name in left if fnmatchcase(name, pattern)]
        if not fits:
            earlier = any(fnmatchcase(name, pattern) for name in names)
            why = "earlier patterns have all that fits it" if earlier else "no tensor fits it"
            near = "" if earlier else did_you_mean(pattern, names)
            raise MeshweaveError(f"{who}: pattern {pattern!r}: {why}{near}")
        for name in fits:
            given[name] = layout
            del left[name]
    return given
