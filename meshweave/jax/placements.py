"""Read where the arguments of a JAX function lie: as JAX's shardings where JAX has them, else as layouts.

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
from meshweave.layout.arguments import as_layout
from meshweave.layout.interchange import to_spec
from meshweave.layout.notation import REST
from meshweave.layout.spec import P
from meshweave.runtime.arrays.array import as_mesh

if TYPE_CHECKING:  # JAX is optional, and takes a second to import
    from jax.sharding import AbstractMesh, NamedSharding
    from jax.sharding import Mesh as JaxMesh

    MeshLike: TypeAlias = Mesh | str | JaxMesh | AbstractMesh

PyTree: TypeAlias = Any  # nested containers of leaves: JAX gives them no type either


class Placements(NamedTuple):
    """Hold the arguments as JAX traces them, and where they lie.

    arguments: like (args, kwargs); a `jax.ShapeDtypeStruct`, with its sharding, for each array of JAX's and each
               argument that has a sharding.
    layouts:   the texts of layouts that JAX does not have, by number of the leaf.
    mesh:      the mesh they are over, if any is known; abstract: JAX's, without devices.
    """

    arguments: PyTree
    layouts: Mapping[int, str]
    mesh: Mesh | None
    abstract: AbstractMesh | None


class _Asked(NamedTuple):
    """Hold what is asked for a leaf, and who asks, for errors. value: None leaves it to propagation."""

    value: PyTree
    who: str


def placements(
    jax: ModuleType, given: PyTree, arguments: PyTree, names: Sequence[str], mesh: MeshLike | None
) -> Placements:
    """Read `in_shardings`, a prefix of the first of `arguments`, (args, kwargs), whose leaves have these names.

    Where it says nothing, what an argument itself has of a sharding counts. Raises UsageError and LayoutError that
    name the argument, and the dim where there is one.
    """
    leaves, tree = jax.tree.flatten(arguments)
    asked = _asked(jax, given, arguments[0], leaves, names)
    meshes = _meshes(jax, [ask.value for ask in asked])
    hidden = _meshes(jax, [_own(jax, leaf) for leaf in leaves])  # behind what in_shardings says
    chosen = next(iter((*meshes, *hidden)), None) if mesh is None else mesh
    ours = None if chosen is None else program_mesh(chosen)
    abstract = _abstract(jax, ours, (mesh, *meshes))
    layouts: dict[int, str] = {}
    for number, (leaf, ask) in enumerate(zip(leaves, asked, strict=True)):
        found = _placed(jax, ask, tuple(jax.numpy.shape(leaf)), ours, abstract)
        if isinstance(found, Layout):
            layouts[number] = str(_of_data(jax, leaf, found))
            found = None
        leaves[number] = _abstracted(jax, leaf, found)
    return Placements(jax.tree.unflatten(tree, leaves), layouts, ours, abstract)


def _asked(
    jax: ModuleType, given: PyTree, args: PyTree, leaves: Sequence[PyTree], names: Sequence[str]
) -> list[_Asked]:
    """Return what is asked for each leaf: by `in_shardings`, a prefix of `args`, else by the leaf itself."""
    kinds = (str, Layout, P, jax.sharding.PartitionSpec, jax.sharding.Sharding)
    try:
        wide = jax.tree.broadcast(given, args, is_leaf=lambda v: v is None or isinstance(v, kinds))
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"from_jax: in_shardings does not fit the arguments: {reason}") from None
    wanted = jax.tree.structure(args).flatten_up_to(wide)
    wanted += [None] * (len(leaves) - len(wanted))  # of keyword arguments
    return [
        _Asked(_own(jax, leaf), f"the sharding of {name}")
        if value is None
        else _Asked(value, f"in_shardings of {name}")
        for value, leaf, name in zip(wanted, leaves, names, strict=True)
    ]


def _own(jax: ModuleType, leaf: PyTree) -> PyTree:
    """Return the sharding that an argument has itself; one on a single device says nothing."""
    sharding = getattr(leaf, "sharding", None)
    alone = isinstance(sharding, jax.sharding.Sharding) and sharding.num_devices == 1
    return None if alone else sharding


def _meshes(jax: ModuleType, shardings: Sequence[PyTree]) -> list[JaxMesh | AbstractMesh]:
    """Return the meshes of shardings, and then that of `jax.set_mesh`."""
    named = [s.mesh for s in shardings if isinstance(s, jax.sharding.NamedSharding)]
    return [mesh for mesh in (*named, jax.sharding.get_abstract_mesh()) if not mesh.empty]


def program_mesh(mesh: MeshLike) -> Mesh:
    """Return our mesh for an argument, which may be JAX's."""
    if not isinstance(mesh, str | Mesh) and hasattr(mesh, "axis_names"):
        sizes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
        return Mesh(**{str(name): int(size) for name, size in sizes})
    found = as_mesh(mesh)
    if found.is_symbolic:
        raise UsageError(f"mesh: {found} has a symbol for a size, a number is needed")
    return found


def _abstract(jax: ModuleType, mesh: Mesh | None, seen: Sequence[PyTree]) -> AbstractMesh | None:
    """Return JAX's mesh without devices for ours; None for one rank.

    One that JAX has been `seen` with is taken: it knows which axes are explicit, and `shard_map` asks for the same.
    """
    if mesh is None or not mesh.axes:
        return None
    sizes = tuple(axis.size for axis in mesh.axes)
    for theirs in seen:
        if getattr(theirs, "axis_names", None) == mesh.names and theirs.axis_sizes == sizes:
            return getattr(theirs, "abstract_mesh", theirs)
    return jax.sharding.AbstractMesh(sizes, mesh.names)


def _placed(
    jax: ModuleType,
    ask: _Asked,
    shape: tuple[int, ...],
    mesh: Mesh | None,
    abstract: AbstractMesh | None,
) -> NamedSharding | Layout | None:
    """Return JAX's sharding, or our Layout where JAX has none, or None for what propagation finds."""
    named, spec = jax.sharding.NamedSharding, jax.sharding.PartitionSpec
    value, who = ask
    if value is None or isinstance(value, jax.sharding.SingleDeviceSharding):
        return None
    if not isinstance(value, str | Layout | P | spec | named):
        raise UsageError(
            f"from_jax: {who} is {value!r:.60}: a layout, a PartitionSpec, a "
            "NamedSharding or None is right"
        )
    if isinstance(value, named):
        theirs = program_mesh(value.mesh)
        if mesh is not None and theirs != mesh:
            raise UsageError(f"from_jax: {who} is over the mesh {theirs}, the program's is {mesh}")
        value = value.spec
    if mesh is None:
        raise UsageError(f"from_jax: {who} is {value}, but no mesh is given")
    try:
        layout = as_layout(value, len(shape))
        layout.check(mesh, shape)
    except LayoutError as error:
        raise LayoutError(f"from_jax: {who}: {error.message}") from None
    if abstract is None:
        return None
    return named(abstract, spec(*to_spec(layout))) if _jax_has(layout, mesh, shape) else layout


def _abstracted(jax: ModuleType, leaf: PyTree, sharding: NamedSharding | None) -> PyTree:
    """Return an argument as JAX shall see it: what is no array of JAX's and has no sharding stays."""
    made = jax.ShapeDtypeStruct
    if not isinstance(leaf, made | jax.Array):
        if sharding is None:
            return leaf
        leaf = jax.eval_shape(lambda value: value, leaf)
    weak = getattr(leaf, "weak_type", False)
    return made(tuple(leaf.shape), leaf.dtype, sharding=sharding, weak_type=weak)


def _of_data(jax: ModuleType, leaf: PyTree, layout: Layout) -> Layout:
    """Return the layout of the data of PRNG keys, whose numbers are together; that of other arrays as it is."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None or not jax.numpy.issubdtype(dtype, jax.dtypes.prng_key):
        return layout
    order = layout.order and (*layout.order, (layout.ndim, 0))
    return Layout((*layout.dims, (REST,)), layout.partial, order, layout.uneven)


def _jax_has(layout: Layout, mesh: Mesh, shape: tuple[int, ...]) -> bool:
    """Tell whether JAX has the layout: blocks of one size, and nothing pending."""
    if not layout.is_block or layout.partial:
        return False
    parts = [mesh.axis_count(axes) for axes in layout.block_axes()]
    return all(size % count == 0 for size, count in zip(shape, parts, strict=True))


_MAIN = "func.func public @main("


_HAS_MESH = re.compile(r'sdy\.mesh @\w+ = <\["')


def with_layouts(text: str, layouts: Mapping[int, str], mesh: Mesh | None) -> str:
    """Return the text of a JAX program with these layouts on its arguments, by number, and the mesh they are over."""
    head, main, rest = text.partition(_MAIN)
    signature, arrow, body = rest.partition(") -> ")
    for number, layout in layouts.items():
        argument = re.search(rf"(%arg{number}: tensor<[^<>]*(?:<[^>]*>)?>)( \{{)?", signature)
        assert argument is not None  # JAX numbers the arguments so
        said = f'dist.layout = #dist.layout<"{layout}">' + (", " if argument[2] else "}")
        signature = f"{signature[: argument.end(1)]} {{{said}{signature[argument.end() :]}"
    if mesh is not None and mesh.axes and not _HAS_MESH.search(head):
        axes = ", ".join(f'"{axis.name}"={axis.size}' for axis in mesh.axes)
        head += f"sdy.mesh @mesh = <[{axes}]>\n  "
    return head + main + signature + arrow + body
