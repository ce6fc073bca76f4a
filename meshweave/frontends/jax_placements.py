"""Where the arguments of a JAX function lie: what `in_shardings` says of each leaf, in JAX's words where JAX has them,
else as layouts that are written into the program that JAX made.

JAX knows blocks of equal size; uneven, cyclic and irregular layouts are ours.
"""

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from meshweave.errors import LayoutError, UsageError
from meshweave.layout import Layout, Mesh
from meshweave.layout.interchange import P, from_spec, to_spec


class Placements(NamedTuple):
    """What was asked for. shardings: a pytree like the arguments, for JAX; layouts: the texts that JAX cannot say, by
    number of the leaf; mesh: the one they are over, if any names one.
    """

    shardings: Any
    layouts: Mapping[int, str]
    mesh: Mesh | None


def placements(
    jax: Any, given: Any, args: Sequence[Any], names: Sequence[str], mesh: Mesh | None
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
        mesh = next((m for m in map(_mesh_of, wanted) if m is not None), None)
    abstract = abstract_mesh(jax, mesh)
    shardings, layouts = [], {}
    for number, (value, leaf, name) in enumerate(zip(wanted, leaves, names, strict=True)):
        found = _placed(jax, value, tuple(jax.numpy.shape(leaf)), name, mesh, abstract)
        if isinstance(found, Layout):
            layouts[number] = str(found)
            found = None
        shardings.append(found)
    return Placements(jax.tree.unflatten(tree, shardings), layouts, mesh)


def abstract_mesh(jax: Any, mesh: Mesh | None) -> Any:
    """JAX's mesh without devices for ours; None for one rank."""
    if mesh is None or not mesh.axes:
        return None
    return jax.sharding.AbstractMesh(tuple(axis.size for axis in mesh.axes), mesh.names)


def our_mesh(mesh: Any) -> Mesh:
    """Our mesh for JAX's."""
    return Mesh(**{str(n): int(s) for n, s in zip(mesh.axis_names, mesh.axis_sizes, strict=True)})


def _mesh_of(value: Any) -> Mesh | None:
    mesh = getattr(value, "mesh", None)
    return our_mesh(mesh) if hasattr(mesh, "axis_names") else None


def _placed(
    jax: Any, value: Any, shape: tuple[int, ...], name: str, mesh: Mesh | None, abstract: Any
) -> Any:
    """JAX's sharding, or our Layout where JAX has no word for it, or None for what propagation finds."""
    named, spec = jax.sharding.NamedSharding, jax.sharding.PartitionSpec
    if value is None or isinstance(value, jax.sharding.SingleDeviceSharding):
        return None
    if not isinstance(value, str | Layout | P | spec | named):
        raise UsageError(
            f"from_jax: in_shardings of {name} is {value!r:.60}: a layout, a PartitionSpec, a "
            "NamedSharding or None is right"
        )
    if isinstance(value, named):
        _check_mesh(value.mesh, name, mesh)
        value = value.spec
    if mesh is None:
        raise UsageError(f"from_jax: in_shardings of {name} is {value}, but no mesh is given")
    try:
        layout = _layout(value, len(shape))
        layout.check(mesh, shape)
    except LayoutError as error:
        raise LayoutError(f"from_jax: in_shardings of {name}: {error.message}") from None
    if abstract is None:
        return None
    return named(abstract, spec(*to_spec(layout))) if _jax_has(layout, mesh, shape) else layout


def _check_mesh(theirs: Any, name: str, mesh: Mesh | None) -> None:
    if mesh is not None and our_mesh(theirs) != mesh:
        raise UsageError(
            f"from_jax: in_shardings of {name} is over the mesh {our_mesh(theirs)}, the program's is {mesh}"
        )


def _layout(value: Any, ndim: int) -> Layout:
    if isinstance(value, str):
        return Layout.parse(value)
    return value if isinstance(value, Layout) else from_spec(value, ndim)


def _jax_has(layout: Layout, mesh: Mesh, shape: tuple[int, ...]) -> bool:
    """Can JAX say it: blocks of one size, and nothing pending?"""
    if not layout.is_block or layout.partial:
        return False
    sizes = {axis.name: axis.size for axis in mesh.axes}
    parts = [prod(sizes[a] for a in axes) for axes in layout.block_axes()]
    return all(size % count == 0 for size, count in zip(shape, parts, strict=True))


_MAIN = "func.func public @main("


def with_layouts(text: str, layouts: Mapping[int, str]) -> str:
    """A program of JAX's with these layouts on its arguments, by number."""
    head, main, rest = text.partition(_MAIN)
    signature, arrow, body = rest.partition(") -> ")
    for number, layout in layouts.items():
        pattern = re.compile(rf"(%arg{number}: tensor<[^>]*>)( \{{)?")
        said = f'dist.layout = #dist.layout<"{layout}">'
        signature = pattern.sub(
            lambda m, said=said: m[1] + (f" {{{said}, " if m[2] else f" {{{said}}}"),
            signature,
            count=1,
        )
    return head + main + signature + arrow + body
