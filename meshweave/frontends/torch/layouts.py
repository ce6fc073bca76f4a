"""Read the layouts of a PyTorch program: placements of DTensors, layouts by name, and the mesh of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from meshweave.errors import LayoutError, MeshweaveError, UsageError
from meshweave.layout import Layout, Mesh
from meshweave.layout.arguments import as_layout
from meshweave.layout.interchange import Replicate, from_dtensor
from meshweave.layout.spec import P, is_spec

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

Placement: TypeAlias = "str | Layout | P | DTensor | Sequence[Any]"
"""A layout in any of the forms that `layout_from` reads."""

_PLACEMENTS = ("Shard", "_StridedShard", "Replicate", "Partial")


def is_dtensor(value: object) -> TypeGuard[DTensor]:
    """Tell whether `value` is a DTensor of torch."""
    return hasattr(value, "placements") and hasattr(value, "device_mesh")


def mesh_of(device_mesh: DeviceMesh) -> Mesh:
    """Return the mesh with the names and sizes of a DeviceMesh; dims without a name are d0, d1, ..."""
    sizes = tuple(device_mesh.mesh.shape)
    names = device_mesh.mesh_dim_names or [f"d{i}" for i in range(len(sizes))]
    return Mesh(**dict(zip(names, map(int, sizes), strict=True)))


def choose_mesh(given: Mesh | str | DeviceMesh | None, device_meshes: Sequence[DeviceMesh]) -> Mesh:
    """Return the mesh of a program: the one given, else that of its DTensors, else one rank.

    given: a Mesh, its text, a DeviceMesh, or None. Raises UsageError where DTensors are on different meshes.
    """
    if given is not None and not isinstance(given, Mesh | str):
        given = mesh_of(given) if hasattr(given, "mesh_dim_names") else given
    if isinstance(given, str):
        try:
            given = Mesh.parse(given)
        except MeshweaveError as error:
            raise UsageError(f"mesh: {error}") from None
    if given is not None and not isinstance(given, Mesh):
        raise UsageError(
            f"mesh: text, a Mesh or a DeviceMesh is needed, got {type(given).__name__}"
        )
    found: Mesh | None = given
    for device_mesh in device_meshes:
        own = mesh_of(device_mesh)
        if found is None:  # that of which it is a part, as `mesh["tp"]` is
            root = getattr(device_mesh, "_get_root_mesh", None)
            found = mesh_of(device_mesh if root is None else root())
        if not set(own.axes) <= set(found.axes):
            raise UsageError(f"a DTensor lies on the mesh ({own}), the program on ({found})")
    if found is not None and found.is_symbolic:
        raise UsageError(f"mesh: {found} has a symbol for a size, a number is needed")
    return found or Mesh()


def layout_from(said: Placement, mesh: Mesh, shape: Sequence[int]) -> Layout:
    """Read a layout: text, a Layout, `P(...)`, a DTensor, DTensor placements, or (mesh, placements).

    Raises LayoutError where it does not fit mesh and shape, UsageError where it is none of these.
    """
    shape = tuple(int(size) for size in shape)
    if is_dtensor(said):
        said = (said.device_mesh, said.placements)
    if isinstance(said, tuple) and len(said) == 2 and _are_placements(said[1]):
        own, said = choose_mesh(said[0], ()), said[1]
        if not set(own.axes) <= set(mesh.axes):
            raise UsageError(f"placements on the mesh ({own}), the program is on ({mesh})")
        if own != mesh:
            return layout_on_axes(said, own, mesh, shape)
    if _are_placements(said) and not isinstance(said, P):
        layout = from_dtensor(said, mesh, len(shape), shape=shape)
    elif isinstance(said, Layout | str) or is_spec(said):
        layout = as_layout(said, len(shape))
    else:
        raise UsageError(
            f'a layout such as "[x, _]", P("x", None), DTensor placements or (mesh, placements) is'
            f" needed, got {said!r:.60}"
        )
    layout.check(mesh, shape)
    return layout


def layout_on_axes(
    placements: Sequence[Any], own: Mesh, mesh: Mesh, shape: Sequence[int]
) -> Layout:
    """Return the layout of placements on some axes of a mesh; over the others it is replicated."""
    if len(placements) != len(own.axes):
        raise LayoutError(f"{len(placements)} placements, mesh ({own}) has {len(own.axes)} axes")
    said = dict(zip(own.names, placements, strict=True))
    each = [said.get(name, Replicate()) for name in mesh.names]
    layout = from_dtensor(each, mesh, len(shape), shape=tuple(shape))
    layout.check(mesh, tuple(shape))
    return layout


def _are_placements(said: object) -> TypeGuard[Sequence[object]]:
    """Tell whether `said` is a sequence of DTensor placements, perhaps empty."""
    if not isinstance(said, Sequence) or isinstance(said, str):
        return False
    return all(type(value).__name__ in _PLACEMENTS for value in said)


def layouts_by_name(
    said: Mapping[str, Placement],
    names: Sequence[str],
    shapes: Sequence[Sequence[int]],
    mesh: Mesh,
) -> list[Layout | None]:
    """Return the layout of each name, None where `said` has no key for it.

    A key is a name, or a pattern such as `layers.*.weight`. The exact name wins, then the last key that matches.
    Raises UsageError for a key that matches no tensor, LayoutError naming the tensor whose layout does not fit.
    """
    if not isinstance(said, Mapping):
        raise UsageError(f"placements: a dictionary of names is needed, got {type(said).__name__}")
    for key in said:
        if not any(_matches(name, key) for name in names):
            raise UsageError(f'placements: no tensor "{key}": there are {", ".join(names)}')
    found: list[Layout | None] = []
    for name, shape in zip(names, shapes, strict=True):
        value = matching(said, name)
        try:
            found.append(None if value is None else layout_from(value, mesh, shape))
        except (LayoutError, UsageError) as error:
            raise error.told(f"placements of {name}: {error.message}") from None
    return found


def matching(said: Mapping[str, Placement], name: str) -> Placement | None:
    """Return what is said of a name: under the name itself, else under the last key that matches it."""
    keys = [key for key in said if _matches(name, key)]
    chosen = name if name in said else keys[-1] if keys else None
    return None if chosen is None else said[chosen]


def _matches(name: str, key: object) -> bool:
    return isinstance(key, str) and (name == key or fnmatchcase(name, key))
