"""Read `in_shardings` of a JAX function, as JAX's shardings where JAX has them, else as layouts for its program.

JAX has blocks of equal size. Uneven, cyclic and irregular layouts are ours: they are written into the text that JAX
made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from meshweave.errors import LayoutError, UsageError
from meshweave.layout import Layout, Mesh
from meshweave.layout.interchange import to_spec
from meshweave.layout.spec import P, as_layout

if TYPE_CHECKING:  # JAX is optional, and takes a second to import
    from jax.sharding import AbstractMesh, NamedSharding
    from jax.sharding import Mesh as JaxMesh

PyTree: TypeAlias = Any  # nested containers of leaves: JAX gives them no type either


class Placements(NamedTuple):
    """Hold the shardings that were asked for.

    shardings: a pytree like the arguments, for JAX.
    layouts:   the texts of layouts that JAX does not have, by number of the leaf.
    mesh:      the mesh they are over, if any of them names one.
    """

    shardings: PyTree
    layouts: Mapping[int, str]
    mesh: Mesh | None


def placements(
    jax: ModuleType, given: PyTree, args: Sequence[PyTree], names: Sequence[str], mesh: Mesh | None
) -> Placements:
    """Read `in_shardings`, a prefix of the pytree `args`, whose leaves have these names.

    Raises UsageError and LayoutError that name the argument, and the dim where there is one.
    """
    kinds = (str, Layout, P, jax.sharding.PartitionSpec, jax.sharding.Sharding)
    leaves, tree = jax.tree.flatten(tuple(args))
    try:
        wanted = jax.tree.broadcast(
            given, tuple(args), is_leaf=lambda v: v is None or isinstance(v, kinds)
        )
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"from_jax: in_shardings does not fit the arguments: {reason}") from None
    wanted = tree.flatten_up_to(wanted)
    if mesh is None:
        theirs = [getattr(value, "mesh", None) for value in wanted]
        mesh = next((our_mesh(m) for m in theirs if hasattr(m, "axis_names")), None)
    abstract = abstract_mesh(jax, mesh)
    shardings: list[NamedSharding | None] = []
    layouts: dict[int, str] = {}
    for number, (value, leaf, name) in enumerate(zip(wanted, leaves, names, strict=True)):
        found = _placed(jax, value, tuple(jax.numpy.shape(leaf)), name, mesh, abstract)
        if isinstance(found, Layout):
            layouts[number] = str(found)
        shardings.append(None if isinstance(found, Layout) else found)
    return Placements(jax.tree.unflatten(tree, shardings), layouts, mesh)


def abstract_mesh(jax: ModuleType, mesh: Mesh | None) -> AbstractMesh | None:
    """Return JAX's mesh without devices for ours; None for one rank."""
    if mesh is None or not mesh.axes:
        return None
    return jax.sharding.AbstractMesh(tuple(axis.size for axis in mesh.axes), mesh.names)


def our_mesh(mesh: JaxMesh | AbstractMesh) -> Mesh:
    """Return our mesh for JAX's."""
    return Mesh(**{str(n): int(s) for n, s in zip(mesh.axis_names, mesh.axis_sizes, strict=True)})


def _placed(
    jax: ModuleType,
    value: PyTree,
    shape: tuple[int, ...],
    name: str,
    mesh: Mesh | None,
    abstract: AbstractMesh | None,
) -> NamedSharding | Layout | None:
    """Return JAX's sharding, or our Layout where JAX has none, or None for what propagation finds."""
    named, spec = jax.sharding.NamedSharding, jax.sharding.PartitionSpec
    if value is None or isinstance(value, jax.sharding.SingleDeviceSharding):
        return None
    if not isinstance(value, str | Layout | P | spec | named):
        raise UsageError(
            f"from_jax: in_shardings of {name} is {value!r:.60}: a layout, a PartitionSpec, a "
            "NamedSharding or None is right"
        )
    if isinstance(value, named):
        theirs = our_mesh(value.mesh)
        if mesh is not None and theirs != mesh:
            raise UsageError(
                f"from_jax: in_shardings of {name} is over the mesh {theirs}, the program's is {mesh}"
            )
        value = value.spec
    if mesh is None:
        raise UsageError(f"from_jax: in_shardings of {name} is {value}, but no mesh is given")
    try:
        layout = as_layout(value, len(shape))
        layout.check(mesh, shape)
    except LayoutError as error:
        raise LayoutError(f"from_jax: in_shardings of {name}: {error.message}") from None
    if abstract is None:
        return None
    return named(abstract, spec(*to_spec(layout))) if _jax_has(layout, mesh, shape) else layout


def _jax_has(layout: Layout, mesh: Mesh, shape: tuple[int, ...]) -> bool:
    """Tell whether JAX has the layout: blocks of one size, and nothing pending."""
    if not layout.is_block or layout.partial:
        return False
    parts = [mesh.axis_count(axes) for axes in layout.block_axes()]
    return all(size % count == 0 for size, count in zip(shape, parts, strict=True))


_MAIN = "func.func public @main("


def with_layouts(text: str, layouts: Mapping[int, str]) -> str:
    """Return the text of a JAX program with these layouts on its arguments, by number."""
    head, main, rest = text.partition(_MAIN)
    signature, arrow, body = rest.partition(") -> ")
    for number, layout in layouts.items():
        argument = re.search(rf"(%arg{number}: tensor<[^>]*>)( \{{)?", signature)
        assert argument is not None  # JAX numbers the arguments so
        said = f'dist.layout = #dist.layout<"{layout}">' + (", " if argument[2] else "}")
        signature = f"{signature[: argument.end(1)]} {{{said}{signature[argument.end() :]}"
    return head + main + signature + arrow + body
