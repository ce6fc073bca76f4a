"""Import sdy.manual_computation as a region marked dist.manual, and the collectives inside it as ours.

A collective in StableHLO names groups of device numbers. The mesh axes over which those groups are formed are found
again; groups that no axes form are refused. Devices are numbered as ranks are: row-major over the mesh.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, permutations, product
from typing import NamedTuple

import numpy as np

from meshweave.dialects.dist import LayoutAttr, axes_attr
from meshweave.errors import CompileError, MeshweaveError
from meshweave.frontends.shardy.importer import Meshes, errors_at, manual_around, required
from meshweave.frontends.shardy.shardings import ShardyLayout, parse_axes, parse_per_value
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64, tensor_type
from meshweave.ir.locations import location_text
from meshweave.ir.ops import Ops, body_of, move_body, ops_where, producer, replace_op, terminator
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh

_KINDS = {
    "stablehlo.add": "sum",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.multiply": "prod",
}
_BOOLEAN_KINDS = {**_KINDS, "stablehlo.or": "max", "stablehlo.and": "min"}


class _ManualInterface(NamedTuple):
    """Hold what a manual computation declares: its axes, and the shardings of its operands and results."""

    axes: tuple[str, ...]
    operands: tuple[ShardyLayout, ...]
    results: tuple[ShardyLayout, ...]


def import_manual(ops: Ops, meshes: Meshes) -> None:
    """Turn every sdy.manual_computation into a region marked dist.manual, with the collectives in its body.

    Along axes that are not manual each rank computes the whole; a computation inside another is made of parts of that.
    Raises CompileError for collectives outside of any, and for groups or reductions that our dialect cannot express.
    """
    manuals = [(op, _interface(op, meshes)) for op in ops.get("sdy.manual_computation", ())]
    mesh = meshes.mesh()
    mesh = mesh or (Mesh() if manuals else None)
    for op, interface in manuals:
        assert mesh is not None
        _check_types(op, mesh, interface)
    if ops.keys() & _CONVERT.keys():
        _number_ranks(ops, meshes.devices())
        _import_collectives(ops, mesh)
    is_inner = [manual_around(op) is not None for op, _ in manuals]
    for (op, interface), inner in zip(manuals, is_inner, strict=True):
        if inner:
            _into_outer(op, interface)
    for (op, interface), inner in zip(manuals, is_inner, strict=True):
        if not inner:
            _to_dist(op, interface)


def close_regions(module: ir.Module) -> None:
    """Give each region marked dist.manual its own copy of what canonicalization and CSE took out of it.

    That is constants, and what is computed from constants alone. Inside the region a value is local; outside it would
    get a layout.
    """
    for region in ops_where(module.operation, lambda op: "dist.manual" in op.attributes):
        _close(region)


def _close(region: ir.Operation) -> None:
    inside = ops_where(region, lambda op: op != region and op.name != "dist.to_local")
    first = body_of(region).operations[0].operation
    copies: dict[ir.Value, ir.Value] = {}

    def copied(value: ir.Value) -> ir.Value:
        """Return the value, made inside where an op outside makes it; leave what is no tensor."""
        maker = producer(value)
        if maker is None or maker.parent != region.parent:
            return value
        if not isinstance(value.type, ir.RankedTensorType):
            return value
        if value not in copies:
            operands = [copied(operand) for operand in maker.operands]
            made = maker.clone(ir.InsertionPoint(first))
            for number, operand in enumerate(operands):
                made.operands[number] = operand
            copies.update(zip(maker.results, made.results, strict=True))
        return copies[value]

    for op in inside:
        for number, operand in enumerate(op.operands):
            op.operands[number] = copied(operand)


def _interface(op: ir.Operation, meshes: Meshes) -> _ManualInterface:
    """Read the axes and shardings of a manual computation."""
    with errors_at(op):
        ins, outs = (
            parse_per_value(str(required(op, name))) for name in ("in_shardings", "out_shardings")
        )
        axes = parse_axes(str(required(op, "manual_axes")))
    for shardings, values in ((ins, op.operands), (outs, op.results)):
        if len(shardings) != len(values):
            raise CompileError(
                f"sdy.manual_computation: {len(shardings)} shardings for {len(values)} values",
                location_text(op),
            )
        for sharding, value in zip(shardings, values, strict=True):
            meshes.read(sharding, value.type, op)
    around = manual_around(op)
    outer = parse_axes(str(required(around, "manual_axes"))) if around is not None else ()
    if set(outer) & set(axes):
        raise CompileError(
            f"a manual computation over {', '.join(axes)} inside one over {', '.join(outer)}: other axes are right",
            location_text(op),
        )
    mesh = meshes.mesh()
    left = set() if mesh is None else set(mesh.names) - set(axes)
    local = [tuple(sharding.without(left) for sharding in side) for side in (ins, outs)]
    return _ManualInterface(axes, *local)


def _check_types(op: ir.Operation, mesh: Mesh, interface: _ManualInterface) -> None:
    """Check that block arguments and returned values have the local types that the shardings make."""
    block = body_of(op)
    ends = list(terminator(block).operands)
    for what, globals_, locals_, shardings in (
        ("operand", op.operands, block.arguments, interface.operands),
        ("result", op.results, ends, interface.results),
    ):
        if len(locals_) != len(shardings):
            raise CompileError(
                f"sdy.manual_computation: {len(locals_)} local values for {len(shardings)} {what}s",
                location_text(op),
            )
        for i, (whole, part, sharding) in enumerate(zip(globals_, locals_, shardings, strict=True)):
            shape = tuple(whole.type.shape)
            try:
                layout = Layout.parse(sharding.layout())
                layout.check(mesh, shape)
                wanted = layout.local_shape(mesh, shape)
            except MeshweaveError as error:
                raise CompileError(
                    f"sdy.manual_computation: {what} {i}: {error.message}", location_text(op)
                ) from None
            if wanted != tuple(part.type.shape):
                raise CompileError(
                    f"sdy.manual_computation: {what} {i} of shape {list(shape)} in layout {layout} "
                    f"is {list(wanted)} on a rank, the region has {part.type}",
                    location_text(op),
                )


def _to_dist(op: ir.Operation, interface: _ManualInterface) -> None:
    """Make the region an scf.execute_region, which values enter by dist.to_local and leave by dist.to_global."""
    b, marker = OpBuilder.before(op), ir.UnitAttr.get()
    attrs = {"dist.manual": marker, "no_inline": marker}
    new = b.op("scf.execute_region", [r.type for r in op.results], regions=1, **attrs)
    body_of(op).append_to(new.regions[0])
    block = body_of(new)
    pairs = zip(interface.operands, op.operands, list(block.arguments), strict=True)
    for sharding, value, argument in pairs:
        inner = OpBuilder(ir.InsertionPoint.at_block_begin(block), op.location)
        layout = LayoutAttr.make(sharding.layout())
        local = inner.one("dist.to_local", argument.type, value, layout=layout)
        argument.replace_all_uses_with(local)
    for number in reversed(range(len(block.arguments))):
        block.erase_argument(number)
    end = terminator(block)
    inner = OpBuilder.before(end)
    results = zip(interface.results, end.operands, op.results, strict=True)
    values = [
        inner.one("dist.to_global", old.type, value, layout=LayoutAttr.make(sharding.layout()))
        for sharding, value, old in results
    ]
    inner.op("scf.yield", [], values)
    end.erase()
    replace_op(op, list(new.results))


def _into_outer(op: ir.Operation, interface: _ManualInterface) -> None:
    """Put the body of a manual computation into the one around it, with operands sliced and results gathered."""
    b, block = OpBuilder.before(op), body_of(op)
    for sharding in (*interface.operands, *interface.results):
        if sharding.unreduced:
            raise CompileError(
                "a manual computation inside another: a pending reduction cannot pass its border",
                location_text(op),
            )
    for sharding, value, argument in zip(
        interface.operands, op.operands, list(block.arguments), strict=True
    ):
        argument.replace_all_uses_with(_along(b, "dist.all_slice", value, argument.type, sharding))
    ends = move_body(block, ir.InsertionPoint(op))
    replace_op(
        op,
        [
            _along(b, "dist.all_gather", value, old.type, sharding)
            for sharding, value, old in zip(interface.results, ends, op.results, strict=True)
        ],
    )


def _along(
    b: OpBuilder, name: str, value: ir.Value, kind: ir.Type, sharding: ShardyLayout
) -> ir.Value:
    """Slice or gather a value along each dim that is sharded, until it has the type `kind`."""
    shape = list(value.type.shape)
    for dim, axes in enumerate(sharding.axes):
        if axes:
            shape[dim] = kind.shape[dim]
            made = tensor_type(shape, kind.element_type)
            value = b.one(name, made, value, axes=axes_attr(axes), dim=i64(dim))
    return value


def _number_ranks(ops: Ops, devices: Sequence[int]) -> None:
    """Let collectives name ranks, where the program's mesh has devices in another order."""
    if list(devices) == list(range(len(devices))):
        return
    rank = np.full(max(devices) + 1, -1)
    rank[list(devices)] = range(len(devices))
    for name in _CONVERT:
        for op in ops.get(name, ()):
            for key in ("replica_groups", "source_target_pairs"):
                if key in op.attributes:
                    numbers = np.array(op.attributes[key])
                    known = (numbers >= 0) & (numbers < len(rank))
                    made = np.where(known, rank[np.where(known, numbers, 0)], numbers)
                    op.attributes[key] = ir.DenseElementsAttr.get(made.astype(np.int64))
            if name == "stablehlo.partition_id":
                table = np.array(devices, np.int64)
                op.attributes[_DEVICES] = ir.DenseI64ArrayAttr.get(table.tolist())


_DEVICES = "dist.devices"  # of a partition_id: the numbers of the ranks, where these are others


def _import_collectives(ops: Ops, mesh: Mesh | None) -> None:
    for name, convert in _CONVERT.items():
        for op in ops.get(name, ()):
            if mesh is None or not manual_around(op):
                raise CompileError(
                    f"{name} outside of a manual computation (shard_map): in the view of the whole "
                    "program no rank is known",
                    location_text(op),
                )
            replace_op(op, convert(op, mesh))


def _orders(mesh: Mesh, size: int) -> Iterator[tuple[str, ...]]:
    """Yield every way to name axes whose groups have `size` members: whole axes, then with parts of axes.

    The fewest axes come first, and mesh order before other orders.
    """
    names = [name for name in mesh.names if mesh.size(name) > 1]
    parts = {name: [name, *_parts(name, mesh.size(name))] for name in names}
    for whole in (True, False):
        for n in range(1, len(names) + 1):
            for chosen in combinations(names, n):
                for row in product(*[parts[name][:1] if whole else parts[name] for name in chosen]):
                    if mesh.axis_count(row) == size and whole != any(":" in ref for ref in row):
                        yield from permutations(row)


def _parts(name: str, size: int) -> list[str]:
    """Return the sub-axes of an axis that are no whole axis."""
    return [
        f"{name}:({major}){k}"
        for major in range(1, size)
        for k in range(2, size)
        if size % (major * k) == 0
    ]


def _axes_of_groups(op: ir.Operation, mesh: Mesh, ordered: bool) -> tuple[str, ...]:
    """Return the axes whose groups are those of `op`; () for groups of one.

    ordered: the order of members matters.
    """
    given = np.array(op.attributes["replica_groups"])
    if given.ndim != 2 or given.size != mesh.nranks:
        raise CompileError(
            f"{op.name}: groups of {given.size} devices on a mesh of {mesh.nranks} ({mesh})",
            location_text(op),
        )
    if given.shape[1] == 1:
        return ()
    wanted = sorted(map(tuple, given.tolist()))
    sets = sorted(sorted(row) for row in wanted)
    among_sets: tuple[str, ...] | None = None
    for axes in _orders(mesh, given.shape[1]):
        found = [list(row) for row in mesh.groups(axes)]
        if sorted(map(tuple, found)) == wanted:
            return axes
        if not ordered and among_sets is None and sorted(map(sorted, found)) == sets:
            among_sets = axes
    if among_sets is not None:
        return among_sets
    raise CompileError(
        f"{op.name}: the groups {given.tolist()} are not those of any axes of the mesh ({mesh})",
        location_text(op),
    )


def _kind(op: ir.Operation) -> str:
    """Return the kind of reduction that the region of `op` computes."""
    block = body_of(op)
    ops, arguments = [o.operation for o in block.operations], list(block.arguments)
    boolean = str(arguments[0].type.element_type) == "i1"
    kind = (_BOOLEAN_KINDS if boolean else _KINDS).get(ops[0].name)
    plain = len(ops) == 2 and sorted(map(hash, ops[0].operands)) == sorted(map(hash, arguments))
    if kind is None or not plain:
        raise CompileError(
            f"{op.name}: its reduction ({', '.join(o.name for o in ops[:-1])}) is none of "
            "sum, max, min, prod",
            location_text(op),
        )
    return kind


_DIMS: dict[str, dict[str, str]] = {
    "all_reduce": {},
    "all_gather": {"dim": "all_gather_dim"},
    "reduce_scatter": {"dim": "scatter_dimension"},
    "all_to_all": {"split_dim": "split_dimension", "concat_dim": "concat_dimension"},
}
"""The collectives over groups: their dims by our names and by StableHLO's."""


def _collective(op: ir.Operation, mesh: Mesh) -> list[ir.Value]:
    """Make our collective of the same name."""
    name = op.name.removeprefix("stablehlo.")
    axes = _axes_of_groups(op, mesh, ordered=name != "all_reduce")
    if not axes:
        return list(op.operands)
    b = OpBuilder.before(op)
    dims = {ours: op.attributes[theirs].value for ours, theirs in _DIMS[name].items()}
    if name == "all_to_all" and dims["split_dim"] == dims["concat_dim"]:
        group = mesh.axis_count(axes)
        return [_swap_pieces(b, v, axes, group, dims["split_dim"]) for v in op.operands]
    attrs = {"axes": axes_attr(axes), **{dim: i64(number) for dim, number in dims.items()}}
    if len(op.regions):
        attrs["kind"] = ir.StringAttr.get(_kind(op))
    pairs = zip(op.operands, op.results, strict=True)
    return [b.one(f"dist.{name}", r.type, v, **attrs) for v, r in pairs]


def _swap_pieces(
    b: OpBuilder, value: ir.Value, axes: Sequence[str], group: int, dim: int
) -> ir.Value:
    """Make a dist.all_to_all that both splits and joins `dim`: its pieces get a dim of their own meanwhile."""
    shape, element = list(value.type.shape), value.type.element_type
    before, piece, after = shape[:dim], shape[dim] // group, shape[dim + 1 :]
    apart = tensor_type([*before, group, piece, *after], element)
    swapped = tensor_type([*before, 1, group * piece, *after], element)
    opened = b.one("stablehlo.reshape", apart, value)
    attrs = {"axes": axes_attr(axes), "split_dim": i64(dim), "concat_dim": i64(dim + 1)}
    moved = b.one("dist.all_to_all", swapped, opened, **attrs)
    return b.one("stablehlo.reshape", value.type, moved)


def _permute(op: ir.Operation, mesh: Mesh) -> list[ir.Value]:
    """Complete the permutation and mask it: StableHLO gives zeros to ranks that receive nothing."""
    pairs = np.array(op.attributes["source_target_pairs"]).reshape(-1, 2).tolist()
    sizes = [size for size in range(2, mesh.nranks + 1) if mesh.nranks % size == 0]
    for axes in (axes for size in sizes for axes in _orders(mesh, size)):
        sources = _sources(list(mesh.groups(axes)), pairs)
        if sources is not None:
            break
    else:
        raise CompileError(
            f"{op.name}: the pairs {pairs} are not the same permutation along any axes of the mesh "
            f"({mesh})",
            location_text(op),
        )
    b, value = OpBuilder.before(op), op.operands[0]
    silent = [i for i, source in enumerate(sources) if source is None]
    unused = iter(sorted(set(range(len(sources))) - {s for s in sources if s is not None}))
    full = [next(unused) if source is None else source for source in sources]
    attrs = {"axes": axes_attr(axes), "sources": ir.ArrayAttr.get([i64(s) for s in full])}
    moved = b.one("dist.permute", value.type, value, **attrs)
    return [_masked(b, moved, axes, len(full), silent) if silent else moved]


def _sources(
    groups: Sequence[Sequence[int]], pairs: Sequence[Sequence[int]]
) -> list[int | None] | None:
    """Return for each member of a group the member it receives from, None where there is none.

    Return None when groups differ or a pair leaves its group.
    """
    place = {rank: (g, k) for g, row in enumerate(groups) for k, rank in enumerate(row)}
    found: list[list[int | None]] = [[None] * len(row) for row in groups]
    for source, target in pairs:
        (g, k), (h, j) = place.get(source, (-1, 0)), place.get(target, (-2, 0))
        if g != h:
            return None
        found[g][j] = k
    return found[0] if all(row == found[0] for row in found) else None


def _masked(
    b: OpBuilder, value: ir.Value, axes: Sequence[str], group: int, silent: Sequence[int]
) -> ir.Value:
    """Return `value`, or zeros on the members `silent` of a group."""
    i1, element = ir.IntegerType.get_signless(1), value.type.element_type
    index = b.one("dist.axis_index", ir.IndexType.get(), axes=axes_attr(axes))
    flags = [ir.IntegerAttr.get(i1, int(k not in silent)) for k in range(group)]
    table = b.constant(ir.DenseElementsAttr.get(flags, tensor_type([group], i1)))
    flag = b.scalar_tensor(b.element(table, [index]))
    kind = ir.FloatAttr if isinstance(element, ir.FloatType) else ir.IntegerAttr
    zeros = ir.DenseElementsAttr.get_splat(value.type, kind.get(element, 0))
    other = b.one("stablehlo.constant", value.type, value=zeros)
    return b.one("stablehlo.select", value.type, flag, value, other)


def _partition_id(op: ir.Operation, mesh: Mesh) -> list[ir.Value]:
    """Return this rank's number: its linear coordinate over all axes."""
    b = OpBuilder.before(op)
    index = b.one("dist.axis_index", ir.IndexType.get(), axes=axes_attr(mesh.names))
    i32 = ir.IntegerType.get_signless(32)
    if _DEVICES in op.attributes:
        numbers = [ir.IntegerAttr.get(i32, int(n)) for n in op.attributes[_DEVICES]]
        table = b.constant(ir.DenseElementsAttr.get(numbers, tensor_type([len(numbers)], i32)))
        number = b.element(table, [index])
    else:
        number = b.one("arith.index_cast", i32, index)
    return [b.one("stablehlo.bitcast_convert", op.results[0].type, b.scalar_tensor(number))]


_CONVERT: dict[str, Callable[[ir.Operation, Mesh], list[ir.Value]]] = {
    **{f"stablehlo.{name}": _collective for name in _DIMS},
    "stablehlo.collective_permute": _permute,
    "stablehlo.partition_id": _partition_id,
}
