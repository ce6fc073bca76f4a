"""Where the tensors of a PyTorch program lie: placements of DTensor, layouts by name, and the mesh of both."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from meshweave.errors import LayoutError, MeshweaveError, UsageError
from meshweave.layout import Layout, Mesh
from meshweave.layout.interchange import from_dtensor, from_spec
from meshweave.layout.spec import P

_PLACEMENTS = ("Shard", "_StridedShard", "Replicate", "Partial")


def is_dtensor(value: Any) -> bool:
    """Is it a DTensor of torch?"""
    return hasattr(value, "placements") and hasattr(value, "device_mesh")


def mesh_of(device_mesh: Any) -> Mesh:
    """The mesh with the names and sizes of a DeviceMesh; dims without a name are called d0, d1, .."""
    sizes = tuple(device_mesh.mesh.shape)
    names = device_mesh.mesh_dim_names or tuple(f"d{i}" for i in range(len(sizes)))
    return Mesh(**dict(zip(names, map(int, sizes), strict=True)))


def choose_mesh(given: "Mesh | str | None", device_meshes: Sequence[Any]) -> Mesh:
    """The mesh of a program: the one given, else that of its DTensors, else one rank.

    Raises UsageError where DTensors lie on another mesh than the rest.
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
    for mesh in map(mesh_of, device_meshes):
        if found is not None and mesh != found:
            raise UsageError(f"a DTensor lies on the mesh ({mesh}), the program on ({found})")
        found = mesh
    if found is not None and found.is_symbolic:
        raise UsageError(f"mesh: {found} has a symbol for a size, a number is needed")
    return found or Mesh()


def layout_from(said: Any, mesh: Mesh, shape: Sequence[int]) -> Layout:
    """The layout that is meant: text, a Layout, `P(..)`, DTensor placements, or (mesh, placements).

    Raises LayoutError where it does not fit mesh and shape, UsageError where it is none of these.
    """
    shape = tuple(int(size) for size in shape)
    if is_dtensor(said):
        said = (said.device_mesh, said.placements)
    if isinstance(said, Layout):
        layout = said
    elif isinstance(said, str):
        layout = Layout.parse(said)
    elif isinstance(said, P) or type(said).__name__ == "PartitionSpec":
        layout = from_spec(said, len(shape))
    elif _is_pair(said):
        own = choose_mesh(said[0], ())
        if own != mesh:
            raise UsageError(f"placements on the mesh ({own}), the program is on ({mesh})")
        layout = from_dtensor(said[1], mesh, len(shape), shape=shape)
    elif isinstance(said, Sequence) and all(map(_is_placement, said)):
        layout = from_dtensor(said, mesh, len(shape), shape=shape)
    else:
        raise UsageError(
            f'a layout such as "[x, _]", P("x", None), DTensor placements or (mesh, placements) is'
            f" needed, got {said!r:.60}"
        )
    layout.check(mesh, shape)
    return layout


def _is_placement(value: Any) -> bool:
    return type(value).__name__ in _PLACEMENTS


def _is_pair(said: Any) -> bool:
    return (
        isinstance(said, tuple)
        and len(said) == 2
        and isinstance(said[1], Sequence)
        and not isinstance(said[1], str)
        and all(map(_is_placement, said[1]))
    )


def layouts_by_name(
    said: Mapping[str, Any],
    names: Sequence[str],
    shapes: Sequence[Sequence[int]],
    mesh: Mesh,
) -> list[Layout | None]:
    """The layout of each name. A key of `said` is a name, or a pattern as `layers.*.weight`; the exact name wins, then
    the key that comes last.

    Raises UsageError for a key that is no tensor's, LayoutError naming the tensor whose layout does not fit.
    """
    if not isinstance(said, Mapping):
        raise UsageError(f"placements: a dictionary of names is needed, got {type(said).__name__}")
    for key in said:
        if not any(_matches(name, key) for name in names):
            raise UsageError(f'placements: no tensor "{key}": there are {", ".join(names)}')
    found: list[Layout | None] = []
    for name, shape in zip(names, shapes, strict=True):
        keys = [key for key in said if _matches(name, key)]
        chosen = name if name in said else keys[-1] if keys else None
        value = None if chosen is None else said[chosen]
        try:
            found.append(None if value is None else layout_from(value, mesh, shape))
        except (LayoutError, UsageError) as error:
            raise type(error)(f"placements of {name}: {error.message}") from None
    return found


def _matches(name: str, key: Any) -> bool:
    return isinstance(key, str) and (name == key or fnmatchcase(name, key))
