"""Read where the arguments of a JAX function lie: as JAX's shardings where JAX has them, else as layouts.

JAX has blocks of equal size. Uneven, cyclic and irregular layouts are ours: they are written into the text that JAX
made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from meshweave.errors import LayoutError, UsageError
from meshweave.hints.keys import Hint
from meshweave.layout import Layout, Mesh
from meshweave.layout.arguments import as_layout
from meshweave.layout.interchange import to_spec
from meshweave.layout.notation import REST
from meshweave.layout.spec import P
from meshweave.runtime.arrays.array import Array, as_mesh

if TYPE_CHECKING:  # JAX is optional, and takes a second to import
    from jax.sharding import AbstractMesh, NamedSharding
    from jax.sharding import Mesh as JaxMesh

    MeshLike: TypeAlias = Mesh | str | JaxMesh | AbstractMesh

PyTree: TypeAlias = Any  # nested containers of leaves: JAX gives them no type either
Shape: TypeAlias = tuple[int, ...]


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
    jax: ModuleType,
    given: PyTree,
    arguments: PyTree,
    names: Sequence[str],
    mesh: MeshLike | None,
    results: PyTree = None,
) -> Placements:
    """Read `in_shardings`, a prefix of the first of `arguments`, (args, kwargs), whose leaves have these names.

    Where it says nothing, what an argument itself has of a sharding counts. The meshes of what is asked of `results`
    count too. Raises UsageError and LayoutError that name the argument, and the dim where there is one.
    """
    leaves, tree = jax.tree.flatten(arguments)
    asked = _asked(jax, given, arguments[0], leaves, names)
    said = [ask.value for ask in asked] + jax.tree.leaves(results, is_leaf=_is_said(jax))
    meshes = _meshes(jax, said)
    own = [_own(jax, leaf) for leaf in leaves]  # behind what is said
    hidden = [*_meshes(jax, own), *(leaf.mesh for leaf in leaves if isinstance(leaf, Array))]
    chosen = next((m for m in (*meshes, *hidden)), None) if mesh is None else mesh
    ours = None if chosen is None else program_mesh(chosen)
    abstract = _abstract(jax, ours, (mesh, *meshes))
    layouts: dict[int, str] = {}
    for number, (leaf, ask) in enumerate(zip(leaves, asked, strict=True)):
        if isinstance(leaf, Array) and ask.value is leaf.layout and leaf.mesh != ours:
            ask = ask._replace(value=None)  # of another mesh: it is laid out again
        shape = _shape(jax, leaf)
        layout = _layout(ask, shape, ours)
        theirs = (
            layout if ours is None or layout is None else _theirs(layout, abstract, ours, shape)
        )
        if isinstance(theirs, Layout):
            layouts[number], theirs = str(_of_data(jax, leaf, theirs)), None
        leaves[number] = _abstracted(jax, leaf, theirs)
    return Placements(jax.tree.unflatten(tree, leaves), layouts, ours, abstract)


def result_layouts(
    jax: ModuleType,
    given: PyTree,
    results: PyTree,
    mesh: Mesh | None,
) -> dict[int, str]:
    """Read `out_shardings`, a prefix of `results`, which has shapes and dtypes for leaves: layouts by their number."""
    if given is None:
        return {}
    wanted = _spread(jax, given, results, "out_shardings does not fit the results")
    paths = jax.tree_util.tree_flatten_with_path(results)[0]
    found = {}
    for number, (value, (path, leaf)) in enumerate(zip(wanted, paths, strict=True)):
        who = f"out_shardings of result{jax.tree_util.keystr(path)}"
        layout = _layout(_Asked(value, who), tuple(leaf.shape), mesh)
        if layout is not None:
            found[number] = str(_of_data(jax, leaf, layout))
    return found


def constrained(
    jax: ModuleType,
    given: PyTree,
    values: PyTree,
    what: str,
    mesh: Mesh | None,
    abstract: AbstractMesh | None,
) -> PyTree:
    """Constrain values that JAX is tracing to what is asked of them, `what`: in_shardings or out_shardings."""
    wanted = _spread(jax, given, values, f"{what} does not fit")
    if all(value is None for value in wanted):
        return values
    leaves, tree = jax.tree.flatten(values)
    for number, (value, leaf) in enumerate(zip(wanted, leaves, strict=True)):
        who = f"{what}, leaf {number}"
        shape = _shape(jax, leaf)
        layout = _layout(_Asked(value, who), shape, mesh)
        if layout is None or mesh is None or abstract is None:
            continue
        theirs = _theirs(layout, abstract, mesh, shape)
        if isinstance(theirs, Layout):
            raise UsageError(
                f"{who} is {layout}, which JAX does not have: inside another function blocks of equal size are right"
            )
        leaves[number] = jax.lax.with_sharding_constraint(leaf, theirs)
    return jax.tree.unflatten(tree, leaves)


def spread(jax: ModuleType, given: PyTree, args: PyTree) -> list[PyTree]:
    """Return what `in_shardings` says of each leaf of `args`."""
    return _spread(jax, given, args, "in_shardings does not fit the arguments")


def batched_sharding(jax: ModuleType, given: PyTree, ndim: int) -> PyTree:
    """Return what is said of an array of `ndim` dims for a batch of it: a dim in front, which each rank holds whole."""
    if given is None or isinstance(given, jax.sharding.SingleDeviceSharding):
        return None
    if isinstance(given, jax.sharding.NamedSharding):
        return jax.sharding.NamedSharding(given.mesh, jax.sharding.PartitionSpec(None, *given.spec))
    layout = as_layout(given, ndim)
    if layout.order is not None or layout.uneven:
        return None  # for propagation: dims are numbered in these
    return Layout(((REST,), *layout.dims), layout.partial)


def _is_said(jax: ModuleType) -> Callable[[object], bool]:
    """Return what tells the leaves of shardings."""
    kinds = (str, Layout, P, jax.sharding.PartitionSpec, jax.sharding.Sharding)
    return lambda value: value is None or isinstance(value, kinds)


def _spread(jax: ModuleType, given: PyTree, values: PyTree, error: str) -> list[PyTree]:
    """Return what is said of each leaf of `values`, of which `given` is a prefix."""
    try:
        wide = jax.tree.broadcast(given, values, is_leaf=_is_said(jax))
    except ValueError as found:
        raise UsageError(f"from_jax: {error}: {str(found).partition(chr(10))[0]}") from None
    return list(jax.tree.structure(values).flatten_up_to(wide))


def _shape(jax: ModuleType, leaf: PyTree) -> Shape:
    return tuple(leaf.shape) if hasattr(leaf, "shape") else tuple(jax.numpy.shape(leaf))


def _asked(
    jax: ModuleType, given: PyTree, args: PyTree, leaves: Sequence[PyTree], names: Sequence[str]
) -> list[_Asked]:
    """Return what is asked for each leaf: by `in_shardings`, a prefix of `args`, else by the leaf itself."""
    wanted = _spread(jax, given, args, "in_shardings does not fit the arguments")
    wanted += [None] * (len(leaves) - len(wanted))  # of keyword arguments
    return [
        _Asked(_own(jax, leaf), f"the sharding of {name}")
        if value is None
        else _Asked(value, f"in_shardings of {name}")
        for value, leaf, name in zip(wanted, leaves, names, strict=True)
    ]


def _own(jax: ModuleType, leaf: PyTree) -> PyTree:
    """Return the sharding that an argument has itself; one on a single device says nothing."""
    if isinstance(leaf, Array):
        return leaf.layout
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


def _layout(ask: _Asked, shape: Shape, mesh: Mesh | None) -> Layout | None:
    """Return the layout that is asked for, None for what propagation finds."""
    sharding = import_module("jax.sharding")
    value, who = ask
    if value is None or isinstance(value, sharding.SingleDeviceSharding):
        return None
    if not isinstance(value, str | Layout | P | sharding.PartitionSpec | sharding.NamedSharding):
        raise UsageError(
            f"from_jax: {who} is {value!r:.60}: a layout, a PartitionSpec, a "
            "NamedSharding or None is right"
        )
    if isinstance(value, sharding.NamedSharding):
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
    return layout if mesh.axes else None


def _theirs(
    layout: Layout, abstract: AbstractMesh | None, mesh: Mesh, shape: Shape
) -> NamedSharding | Layout:
    """Return a layout as JAX's sharding, or as it is where JAX does not have it."""
    sharding = import_module("jax.sharding")
    if abstract is None or not jax_has(layout, mesh, shape):
        return layout
    return sharding.NamedSharding(abstract, sharding.PartitionSpec(*to_spec(layout)))


def _abstracted(jax: ModuleType, leaf: PyTree, sharding: NamedSharding | None) -> PyTree:
    """Return an argument as JAX shall see it: what is no array of JAX's and has no sharding stays."""
    made = jax.ShapeDtypeStruct
    if isinstance(leaf, Array):
        return made(leaf.shape, leaf.dtype, sharding=sharding, weak_type=leaf.weak_type)
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


def jax_has(layout: Layout, mesh: Mesh, shape: Shape) -> bool:
    """Tell whether JAX has the layout: blocks of one size, and nothing pending."""
    if not layout.is_block or layout.partial:
        return False
    parts = [mesh.axis_count(axes) for axes in layout.block_axes()]
    return all(size % count == 0 for size, count in zip(shape, parts, strict=True))


_LAYOUT = "dist.layout"


def set_layouts(
    module: Any, arguments: Mapping[int, str], results: Mapping[int, str], mesh: Mesh | None
) -> str:
    """Return the text of a JAX program with these layouts on its arguments and results, by number, and their mesh.

    Layouts of ours take the place of shardings that JAX has noted.
    """
    ir = import_module("jax.extend.mlir.ir")
    main = entry_of(module)
    with module.context:
        for key, layouts in (("arg_attrs", arguments), ("res_attrs", results)):
            kind = main.attributes["function_type"].value
            kinds = kind.inputs if key == "arg_attrs" else kind.results
            given = main.attributes[key] if key in main.attributes else [{}] * len(kinds)
            entries = [{e.name: e.attr for e in entry} if entry else {} for entry in given]
            for number, layout in layouts.items():
                entries[number].pop("sdy.sharding", None)
                entries[number][_LAYOUT] = ir.StringAttr.get(layout)
            if layouts:
                main.attributes[key] = ir.ArrayAttr.get([ir.DictAttr.get(e) for e in entries])
    text = str(module.get_asm(enable_debug_info=True))  # errors are at the lines of the function
    for layout in {*arguments.values(), *results.values()}:
        text = text.replace(f'{_LAYOUT} = "{layout}"', f'{_LAYOUT} = #{_LAYOUT}<"{layout}">')
    body = module.regions[0].blocks[0].operations
    declared = any(op.operation.name == "sdy.mesh" and "<[]>" not in str(op) for op in body)
    if mesh is not None and mesh.axes and not declared:
        axes = ", ".join(f'"{axis.name}"={axis.size}' for axis in mesh.axes)
        head, main_text, rest = text.partition(_MAIN)
        text = f"{head}sdy.mesh @mesh = <[{axes}]>\n  {main_text}{rest}"
    return text


def set_hints(module: Any, hints: Mapping[str, int | str]) -> None:
    """Put hints around a JAX program. Raises HintError for what is none."""
    ir = import_module("jax.extend.mlir.ir")
    said = [Hint.make(key, value) for key, value in hints.items()]
    with module.context:
        texts = {hint.key: ir.StringAttr.get(hint.value) for hint in said}
        entry_of(module).attributes["hint.hints"] = ir.DictAttr.get(texts)


def entry_of(module: Any) -> Any:
    """Return the entry function of a module of JAX's."""
    ops = [op.operation for op in module.regions[0].blocks[0].operations]
    functions = [op for op in ops if op.name == "func.func"]
    return next(op for op in functions if op.attributes["sym_name"].value == "main")


_MAIN = "func.func public @main("
