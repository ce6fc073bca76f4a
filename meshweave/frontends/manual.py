"""sdy.manual_computation to a region marked dist.manual, and the collectives inside it to ours.

A collective in StableHLO names groups of device numbers. The mesh axes over which those groups are
formed are found again; groups that no axes form are refused. Devices are numbered as ranks are:
row-major over the mesh.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations, product
from typing import Any

import numpy as np

from meshweave.bindings import ir
from meshweave.dialects.dist import LayoutAttr, axes_attr
from meshweave.errors import CompileError, MeshweaveError
from meshweave.frontends.sdy import Sharding, parse_axes, parse_per_value
from meshweave.frontends.sdy_import import Meshes, Ops
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.locations import location_text

_KINDS = {
    "stablehlo.add": "sum",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.multiply": "prod",
}
_BOOLEAN_KINDS = {**_KINDS, "stablehlo.or": "max", "stablehlo.and": "min", "stablehlo.add": "max"}


def import_manual(ops: Ops, meshes: Meshes) -> None:
    """Every sdy.manual_computation becomes a region marked dist.manual, with the collectives in its body.

    Raises CompileError for axes left to the compiler that matter, for nested manual computations,
    for collectives outside of any, and for groups or reductions that we have no words for.
    """
    manuals = [(op, _shardings(op, meshes)) for op in ops.get("sdy.manual_computation", ())]
    mesh = meshes.mesh()
    for op, (axes, ins, outs) in manuals:
        if mesh is None:
            mesh = Mesh()
        _check_axes(op, axes, mesh, meshes.axes_named)
        _check_types(op, mesh, ins, outs)
    _import_collectives(ops, mesh)
    for op, (_, ins, outs) in manuals:
        _to_dist(op, ins, outs)


def close_regions(module: Any) -> None:
    """Give each region marked dist.manual its own copy of what canonicalization and CSE took out of it: constants, and
    what is computed of constants alone. Inside a value is local, outside it would be laid out.
    """
    regions: list[Any] = []

    def visit(op: Any) -> Any:
        if "dist.manual" in op.attributes:
            regions.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for region in regions:
        _close(region)


def _close(region: Any) -> None:
    block = region.regions[0].blocks[0]
    inside: list[Any] = []

    def visit(op: Any) -> Any:
        inside.append(op)
        return ir.WalkResult.ADVANCE

    region.walk(visit)
    first, copies = block.operations[0].operation, {}

    def copied(value: Any) -> Any:
        """The value, made inside where an op outside makes it; what is no tensor stays."""
        outside = not isinstance(value, ir.BlockArgument) and value.owner.parent == region.parent
        if not outside or not isinstance(value.type, ir.RankedTensorType):
            return value
        if value not in copies:
            operands = [copied(operand) for operand in value.owner.operands]
            made = value.owner.clone(ir.InsertionPoint(first))
            for number, operand in enumerate(operands):
                made.operands[number] = operand
            copies.update(zip(value.owner.results, made.results, strict=True))
        return copies[value]

    for op in inside:
        if op != region and op.name != "dist.to_local":
            for number, operand in enumerate(op.operands):
                op.operands[number] = copied(operand)


def _shardings(
    op: Any, meshes: Meshes
) -> tuple[tuple[str, ...], tuple[Sharding, ...], tuple[Sharding, ...]]:
    """Manual axes, shardings of the operands, shardings of the results."""
    try:
        axes = parse_axes(str(op.attributes["manual_axes"]))
        ins = parse_per_value(str(op.attributes["in_shardings"]))
        outs = parse_per_value(str(op.attributes["out_shardings"]))
    except KeyError:
        raise CompileError(
            "sdy.manual_computation needs in_shardings, out_shardings and manual_axes",
            location_text(op),
        ) from None
    except CompileError as error:
        raise CompileError(error.message, location_text(op)) from None
    for shardings, values in ((ins, op.operands), (outs, op.results)):
        if len(shardings) != len(values):
            raise CompileError(
                f"sdy.manual_computation: {len(shardings)} shardings for {len(values)} values",
                location_text(op),
            )
        for sharding in shardings:
            meshes.read(sharding, op)
    if _inside_manual(op.parent):
        raise CompileError(
            "a manual computation inside another is not supported: name all axes in the outer one",
            location_text(op),
        )
    return axes, ins, outs


def _check_axes(op: Any, manual: Sequence[str], mesh: Mesh, named: set[str]) -> None:
    """An axis that is not manual may only be one along which nothing happens: of size 1, or named
    nowhere.
    """
    left = [a for a in mesh.names if a not in manual and mesh.size(a) > 1 and a in named]
    if left:
        raise CompileError(
            f"manual over {', '.join(manual)} only: axis {', '.join(left)} is left to the compiler "
            "inside the region, which is not supported; name every axis that shardings use "
            "(shard_map without axis_names)",
            location_text(op),
        )


def _check_types(op: Any, mesh: Mesh, ins: Sequence[Sharding], outs: Sequence[Sharding]) -> None:
    """Block arguments and returned values have the local types that the shardings make."""
    block = op.regions[0].blocks[0]
    ends = list(block.operations[len(block.operations) - 1].operation.operands)
    for what, globals_, locals_, shardings in (
        ("operand", op.operands, block.arguments, ins),
        ("result", op.results, ends, outs),
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


def _to_dist(op: Any, ins: Sequence[Sharding], outs: Sequence[Sharding]) -> None:
    """The region as an scf.execute_region; values enter it by dist.to_local and leave by dist.to_global."""
    types = [r.type for r in op.results]
    attrs = {"dist.manual": ir.UnitAttr.get(), "no_inline": ir.UnitAttr.get()}
    new = ir.Operation.create(
        "scf.execute_region", types, [], attrs, regions=1, loc=op.location, ip=ir.InsertionPoint(op)
    )
    op.regions[0].blocks[0].append_to(new.regions[0])
    block = new.regions[0].blocks[0]
    for sharding, value, argument in zip(ins, op.operands, list(block.arguments), strict=True):
        ip = ir.InsertionPoint.at_block_begin(block)
        argument.replace_all_uses_with(
            _crossing("dist.to_local", sharding, value, argument.type, op.location, ip)
        )
    for number in reversed(range(len(block.arguments))):
        block.erase_argument(number)
    end = block.operations[len(block.operations) - 1].operation
    ip = ir.InsertionPoint(end)
    values = [
        _crossing("dist.to_global", sharding, value, type_, end.location, ip)
        for sharding, value, type_ in zip(outs, end.operands, types, strict=True)
    ]
    ir.Operation.create("scf.yield", [], values, loc=end.location, ip=ip)
    end.erase()
    for old, result in zip(op.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    op.erase()


def _crossing(name: str, sharding: Sharding, value: Any, type_: Any, loc: Any, ip: Any) -> Any:
    attrs = {"layout": LayoutAttr.make(sharding.layout())}
    return ir.Operation.create(name, [type_], [value], attrs, loc=loc, ip=ip).results[0]


def _inside_manual(op: Any) -> bool:
    while op is not None:
        if op.operation.name == "sdy.manual_computation":
            return True
        op = op.operation.parent
    return False


def _import_collectives(ops: Ops, mesh: Mesh | None) -> None:
    for name, convert in _CONVERT.items():
        for op in ops.get(name, ()):
            if mesh is None or not _inside_manual(op.parent):
                raise CompileError(
                    f"{name} outside of a manual computation (shard_map): in the view of the whole "
                    "program no rank is known",
                    location_text(op),
                )
            results = convert(op, mesh)
            for old, new in zip(op.results, results, strict=True):
                old.replace_all_uses_with(new)
            op.erase()


def _orders(mesh: Mesh, size: int) -> Iterator[tuple[str, ...]]:
    """Every way to name axes whose groups have `size` members: whole axes, then with parts of axes.

    Fewest come first, and mesh order before others.
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
    """The sub-axes of an axis that are no whole axis."""
    return [
        f"{name}:({major}){k}"
        for major in range(1, size)
        for k in range(2, size)
        if size % (major * k) == 0
    ]


def _groups(mesh: Mesh, axes: Sequence[str]) -> np.ndarray:
    """The groups over `axes`, one a row, members in order; rows by their smallest member."""
    return np.array(list(mesh.groups(axes)))


def _axes_of_groups(op: Any, mesh: Mesh, ordered: bool) -> tuple[str, ...]:
    """The axes whose groups are those of `op`; () for groups of one. `ordered`: the order of
    members matters.
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
        found = _groups(mesh, axes).tolist()
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


def _kind(op: Any) -> str:
    """The reduction that the region of `op` is."""
    ops = [o.operation for o in op.regions[0].blocks[0].operations]
    boolean = str(op.regions[0].blocks[0].arguments[0].type.element_type) == "i1"
    kind = (_BOOLEAN_KINDS if boolean else _KINDS).get(ops[0].name)
    arguments = list(op.regions[0].blocks[0].arguments)
    plain = len(ops) == 2 and sorted(map(hash, ops[0].operands)) == sorted(map(hash, arguments))
    if kind is None or not plain:
        raise CompileError(
            f"{op.name}: its reduction ({', '.join(o.name for o in ops[:-1])}) is none of "
            "sum, max, min, prod",
            location_text(op),
        )
    return kind


def _create(name: str, op: Any, value: Any, result_type: Any, **attrs: Any) -> Any:
    """A collective of ours at `op`: one operand, one result."""
    ip = ir.InsertionPoint(op)
    return ir.Operation.create(name, [result_type], [value], attrs, loc=op.location, ip=ip).result


def _dim(op: Any, name: str) -> Any:
    return _integer(ir.IntegerAttr(op.attributes[name]).value)


def _integer(value: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _all_reduce(op: Any, mesh: Mesh) -> list[Any]:
    axes, kind = _axes_of_groups(op, mesh, ordered=False), ir.StringAttr.get(_kind(op))
    if not axes:
        return list(op.operands)
    return [
        _create("dist.all_reduce", op, v, v.type, axes=axes_attr(axes), kind=kind)
        for v in op.operands
    ]


def _all_gather(op: Any, mesh: Mesh) -> list[Any]:
    axes = _axes_of_groups(op, mesh, ordered=True)
    if not axes:
        return list(op.operands)
    dim = _dim(op, "all_gather_dim")
    return [
        _create("dist.all_gather", op, v, r.type, axes=axes_attr(axes), dim=dim)
        for v, r in zip(op.operands, op.results, strict=True)
    ]


def _reduce_scatter(op: Any, mesh: Mesh) -> list[Any]:
    axes, kind = _axes_of_groups(op, mesh, ordered=True), ir.StringAttr.get(_kind(op))
    if not axes:
        return list(op.operands)
    dim = _dim(op, "scatter_dimension")
    (value,), kind_of_result = op.operands, op.results[0].type
    return [
        _create(
            "dist.reduce_scatter",
            op,
            value,
            kind_of_result,
            axes=axes_attr(axes),
            dim=dim,
            kind=kind,
        )
    ]


def _all_to_all(op: Any, mesh: Mesh) -> list[Any]:
    axes = _axes_of_groups(op, mesh, ordered=True)
    if not axes:
        return list(op.operands)
    split, concat = (
        ir.IntegerAttr(op.attributes[n]).value for n in ("split_dimension", "concat_dimension")
    )
    return [
        _exchange(op, v, r.type, axes, mesh.axis_count(axes), split, concat)
        for v, r in zip(op.operands, op.results, strict=True)
    ]


def _exchange(
    op: Any, value: Any, kind: Any, axes: Sequence[str], group: int, split: int, concat: int
) -> Any:
    """dist.all_to_all; where one dim is both split and joined, its pieces get a dim of their own
    meanwhile.
    """
    if split != concat:
        dims = {"split_dim": _integer(split), "concat_dim": _integer(concat)}
        return _create("dist.all_to_all", op, value, kind, axes=axes_attr(axes), **dims)
    shape = list(value.type.shape)
    before, piece, after = shape[:split], shape[split] // group, shape[split + 1 :]
    element = value.type.element_type
    apart = ir.RankedTensorType.get([*before, group, piece, *after], element)
    swapped = ir.RankedTensorType.get([*before, 1, group * piece, *after], element)
    opened = _create("stablehlo.reshape", op, value, apart)
    dims = {"split_dim": _integer(split), "concat_dim": _integer(split + 1)}
    moved = _create("dist.all_to_all", op, opened, swapped, axes=axes_attr(axes), **dims)
    return _create("stablehlo.reshape", op, moved, kind)


def _permute(op: Any, mesh: Mesh) -> list[Any]:
    """Ranks that receive from nobody get zeros, as StableHLO says: the permutation is completed,
    then masked.
    """
    pairs = np.array(op.attributes["source_target_pairs"]).reshape(-1, 2).tolist()
    for axes in (axes for size in _group_sizes(mesh) for axes in _orders(mesh, size)):
        sources = _sources(_groups(mesh, axes), pairs)
        if sources is not None:
            break
    else:
        raise CompileError(
            f"{op.name}: the pairs {pairs} are not the same permutation along any axes of the mesh "
            f"({mesh})",
            location_text(op),
        )
    value = op.operands[0]
    silent = [i for i, source in enumerate(sources) if source is None]
    unused = iter(sorted(set(range(len(sources))) - {s for s in sources if s is not None}))
    full = [next(unused) if source is None else source for source in sources]
    attr = ir.ArrayAttr.get([_integer(s) for s in full])
    moved = _create("dist.permute", op, value, value.type, axes=axes_attr(axes), sources=attr)
    return [_masked(op, moved, axes, len(full), silent) if silent else moved]


def _group_sizes(mesh: Mesh) -> list[int]:
    """How many members groups over axes can have, fewest first."""
    return [size for size in range(2, mesh.nranks + 1) if mesh.nranks % size == 0]


def _sources(groups: np.ndarray, pairs: Sequence[Sequence[int]]) -> list[int | None] | None:
    """For each member the one it receives from, None for nobody; None when groups differ or pairs
    leave their group.
    """
    place = {int(rank): (g, k) for g, row in enumerate(groups) for k, rank in enumerate(row)}
    found: list[list[int | None]] = [[None] * groups.shape[1] for _ in groups]
    for source, target in pairs:
        (g, k), (h, j) = place.get(source, (-1, 0)), place.get(target, (-2, 0))
        if g != h:
            return None
        found[g][j] = k
    return found[0] if all(row == found[0] for row in found) else None


def _masked(op: Any, value: Any, axes: Sequence[str], group: int, silent: Sequence[int]) -> Any:
    """`value`, or zeros on the members `silent`."""
    ip = ir.InsertionPoint(op)
    i1 = ir.IntegerType.get_signless(1)
    index = ir.Operation.create(
        "dist.axis_index",
        [ir.IndexType.get()],
        [],
        {"axes": axes_attr(axes)},
        loc=op.location,
        ip=ip,
    ).result
    flags = [ir.IntegerAttr.get(i1, int(k not in silent)) for k in range(group)]
    kind = ir.RankedTensorType.get([group], i1)
    hears = ir.DenseElementsAttr.get(flags, kind)
    table = ir.Operation.create(
        "arith.constant", [kind], [], {"value": hears}, loc=op.location, ip=ip
    ).result
    flag = ir.Operation.create(
        "tensor.extract", [i1], [table, index], loc=op.location, ip=ip
    ).result
    scalar = ir.RankedTensorType.get([], i1)
    flag = ir.Operation.create(
        "tensor.from_elements", [scalar], [flag], loc=op.location, ip=ip
    ).result
    element = value.type.element_type
    zero = (
        ir.FloatAttr.get(element, 0.0)
        if isinstance(element, ir.FloatType)
        else ir.IntegerAttr.get(element, 0)
    )
    zeros = ir.DenseElementsAttr.get_splat(value.type, zero)
    other = ir.Operation.create(
        "stablehlo.constant", [value.type], [], {"value": zeros}, loc=op.location, ip=ip
    )
    return ir.Operation.create(
        "stablehlo.select", [value.type], [flag, value, other.result], loc=op.location, ip=ip
    ).result


def _partition_id(op: Any, mesh: Mesh) -> list[Any]:
    """This rank's number, through the linear coordinate over all axes."""
    ip, i32 = ir.InsertionPoint(op), ir.IntegerType.get_signless(32)
    axes = {"axes": axes_attr(mesh.names)}
    index = ir.Operation.create(
        "dist.axis_index", [ir.IndexType.get()], [], axes, loc=op.location, ip=ip
    )
    number = ir.Operation.create("arith.index_cast", [i32], [index.result], loc=op.location, ip=ip)
    scalar = ir.RankedTensorType.get([], i32)
    boxed = ir.Operation.create(
        "tensor.from_elements", [scalar], [number.result], loc=op.location, ip=ip
    )
    return [_create("stablehlo.bitcast_convert", op, boxed.result, op.results[0].type)]


_CONVERT = {
    "stablehlo.all_reduce": _all_reduce,
    "stablehlo.all_gather": _all_gather,
    "stablehlo.reduce_scatter": _reduce_scatter,
    "stablehlo.all_to_all": _all_to_all,
    "stablehlo.collective_permute": _permute,
    "stablehlo.partition_id": _partition_id,
}
