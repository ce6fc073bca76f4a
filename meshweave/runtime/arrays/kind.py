"""Describe what Arrays have in common that one program serves: mesh, layout, shape and dtype."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from meshweave.bundle import OF_A_BYTE, public_dtype
from meshweave.errors import LayoutError
from meshweave.layout import Layout, Mesh
from meshweave.layout.places import is_run, run_at

KEPT = 64  # kinds of other shapes that a kind remembers


@dataclass(frozen=True, eq=False)
class Kind:
    """Hold mesh, layout, global shape and dtype of an Array; kinds are told apart as objects, which costs nothing.

    element: the short name of the dtype, as in IR. rank: the one whose part is in this process, a rank of a job; None:
    the parts of all ranks are.
    """

    mesh: Mesh
    layout: Layout
    shape: tuple[int, ...]
    element: str
    rank: int | None = None

    @cached_property
    def nparts(self) -> int:
        """Return of how many ranks the parts are in this process."""
        return self.mesh.nranks if self.rank is None else 1

    @cached_property
    def is_everywhere(self) -> bool:
        """Tell whether each rank holds all elements."""
        layout, mesh = self.layout, self.mesh
        axes = [axis for dim in range(len(self.shape)) for axis in layout.axes_of(dim)]
        return not layout.partial and all(mesh.size(axis) == 1 for axis in axes)

    @cached_property
    def of_shapes(self) -> dict[tuple[int, ...], Kind]:
        """Return the kinds that `of_shape` has given, by their shapes."""
        return {}

    def of_shape(self, shape: tuple[int, ...]) -> Kind:
        """Return the kind of Arrays of another shape that each rank has the whole of."""
        found = self.of_shapes.get(shape)
        if found is None:
            layout = Layout.replicated(len(shape))
            found = kind_of(self.mesh, layout, shape, self.element, self.rank)
            if len(self.of_shapes) < KEPT:
                self.of_shapes[shape] = found
        return found

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype as NumPy has it; of bf16 that of the package ml_dtypes."""
        return public_dtype(self.element)

    @cached_property
    def is_plain(self) -> bool:
        """Tell whether one rank alone holds all elements, in NumPy's order."""
        return self.mesh.nranks == 1 and self.is_whole

    @cached_property
    def is_whole(self) -> bool:
        """Tell whether rank 0 holds all elements, in NumPy's order, with nothing between."""
        layout, mesh, shape = self.layout, self.mesh, self.shape
        if layout.partial or layout.order is not None:
            return False
        return layout.local_shape(mesh, shape) == shape and all(
            is_run(layout, mesh, shape, dim)
            and (not size or [int(at) for at in run_at(layout, mesh, shape, dim, 0)] == [0, size])
            for dim, size in enumerate(shape)
        )

    def __str__(self) -> str:
        sizes = "".join(f"{size}x" for size in self.shape)
        return f"{sizes}{self.element} {self.layout} on ({self.mesh})"


def kind_of(
    mesh: Mesh, layout: Layout, shape: tuple[int, ...], element: str, rank: int | None = None
) -> Kind:
    """Return the kind of these Arrays, as a rule the same object each time: another one costs a compile, no more.

    Raises LayoutError for pending reductions of elements that are not added up over ranks.
    """
    return _kept(mesh, layout, shape, element, rank)


@lru_cache(maxsize=1 << 14)
def _kept(
    mesh: Mesh, layout: Layout, shape: tuple[int, ...], element: str, rank: int | None
) -> Kind:
    if layout.partial and element in OF_A_BYTE:
        raise LayoutError(f"layout {layout} of {element}: such numbers are not added up over ranks")
    return Kind(mesh, layout, shape, element, rank)
