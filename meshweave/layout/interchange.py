"""Translate layouts to and from JAX's PartitionSpec, PyTorch's DTensor placements and Shardy's shardings.

Nothing of theirs is imported: objects are known by their fields. What the other side cannot say is refused, with the
reason.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from meshweave.errors import LayoutError
from meshweave.layout.algebra import block_axes
from meshweave.layout.layout import AxisFactor, Factor, Layout, LocalFactor, Partial
from meshweave.layout.mesh import Mesh
from meshweave.layout.places import is_nested
from meshweave.layout.spec import P

# JAX


def from_spec(spec: Iterable[object], ndim: int) -> Layout:
    """Return the layout that `spec`, a PartitionSpec (JAX's or ours), gives a tensor of ndim dims.

    Raises LayoutError for more entries than dims and for entries that are not names.

    >>> from meshweave.layout.interchange import from_spec
    >>> str(from_spec(P(None, ("x", "y")), ndim=3))
    '[_, x*y, _]'
    """
    entries = list(spec)
    if len(entries) > ndim:
        raise LayoutError(f"{_spec_text(spec)} has {len(entries)} entries, the tensor {ndim} dims")
    dims = []
    for dim, entry in enumerate(entries + [None] * (ndim - len(entries))):
        names = () if entry is None else (entry,) if isinstance(entry, str) else entry
        if not isinstance(names, tuple | list) or not all(isinstance(n, str) for n in names):
            raise LayoutError(
                f"{_spec_text(spec)}: entry {dim} is {entry!r}; None, a name of an axis or a tuple "
                "of names is right"
            )
        dims.append(tuple(names))
    unreduced = tuple(sorted(getattr(spec, "unreduced", None) or ()))
    return Layout.blocks(dims, [Partial("sum", unreduced)] if unreduced else [])


def to_spec(layout: Layout) -> P:
    """Return the PartitionSpec of a layout; `jax.sharding.PartitionSpec(*spec)` makes it JAX's.

    Raises LayoutError for what a PartitionSpec cannot say: local factors, memory order, sub-axes, irregular or nested
    sizes, reductions other than a sum.

    >>> from meshweave.layout.interchange import to_spec
    >>> to_spec(Layout.parse("[x, _] +sum(y)"))
    P('x', None, unreduced=['y'])
    """
    if not layout.is_block:
        raise LayoutError(f"a PartitionSpec names whole axes only, so it cannot say {layout}")
    for partial in layout.partial:
        if partial.kind != "sum":
            raise LayoutError(f"a PartitionSpec has no pending {partial.kind}: {layout}")
    entries = [
        None if not axes else axes[0] if len(axes) == 1 else axes for axes in layout.block_axes()
    ]
    return P(*entries, unreduced=layout.partial_axes())


def _spec_text(spec: Iterable[object]) -> str:
    return f"P({', '.join(map(repr, spec))})"


# DTensor


@dataclass(frozen=True)
class Shard:
    """Cut a dim over this axis of the mesh, as DTensor's Shard does."""

    dim: int


@dataclass(frozen=True)
class StridedShard:
    """Cut the dim into split_factor parts first, then each part over this axis, as DTensor's _StridedShard does.

    FSDP over TP leaves such shards: there the later axis of the mesh was applied first.
    """

    dim: int
    split_factor: int


@dataclass(frozen=True)
class Replicate:
    """Replicate over this axis of the mesh, as DTensor's Replicate does."""


@dataclass(frozen=True)
class Pending:
    """Leave a reduction over this axis pending, as DTensor's Partial does."""

    reduce_op: str = "sum"


_REDUCE_OPS = {"sum": "sum", "avg": "avg", "product": "prod", "max": "max", "min": "min"}
_KINDS = {kind: name for name, kind in _REDUCE_OPS.items()}


def from_dtensor(
    placements: Sequence[Any],
    mesh: Mesh,
    ndim: int,
    shard_order: Mapping[int, Sequence[int]] | Sequence[Any] | None = None,
    shape: Sequence[int] | None = None,
) -> Layout:
    """Return the layout of DTensor placements, one for each axis of the mesh, of a tensor of ndim dims.

    Objects are known by their class names and fields: Shard (dim), _StridedShard (dim, split_factor), Replicate,
    Partial (reduce_op).
    shard_order: for dims cut over several axes, the axes by their numbers in the mesh, major first: a mapping, or
                 entries with `tensor_dim` and `mesh_dims`.
    shape:       global shape of the tensor, where it is known: see below.

    Sizes that do not divide are cut as nested chunks, as DTensor does. No layout describes what DTensor does where
    such a size meets a split factor that is not a product of axes: with `shape` that is an error; without it the
    layout matches DTensor's only for sizes that divide. Raises LayoutError for a number of placements other than that
    of axes, a dim that does not exist, an unknown placement or reduction, and pending reductions of several kinds
    (DTensor does not say in which order they happen).

    >>> from meshweave.layout.interchange import Pending, Shard, from_dtensor
    >>> str(from_dtensor([Shard(0), Pending("sum")], Mesh(x=2, y=2), ndim=2))
    '[x, _] +sum(y)'
    """
    if len(placements) != len(mesh.axes):
        raise LayoutError(f"{len(placements)} placements, mesh ({mesh}) has {len(mesh.axes)} axes")
    pending: dict[str, list[str]] = {}
    cuts: dict[int, list[tuple[int, int]]] = {}
    for number, placement in enumerate(placements):
        kind = _placement_kind(placement)
        if kind == "partial":
            pending.setdefault(_reduction(placement), []).append(mesh.names[number])
        elif kind != "replicate":
            dim = _dim(placement, ndim)
            factor = placement.split_factor if kind == "strided" else 1
            cuts.setdefault(dim, []).append((number, factor))
    if len(pending) > 1:
        raise LayoutError(
            f"pending reductions {', '.join(pending)}: DTensor does not say which comes first"
        )
    orders = _orders(shard_order)
    dims = [_dtensor_dim(cuts.get(dim, []), mesh, dim, orders.get(dim)) for dim in range(ndim)]
    partials = [Partial(kind, tuple(axes)) for kind, axes in pending.items()]
    layout = Layout(tuple(dims), tuple(partials), None, "nested")
    if shape is not None:
        layout.check(mesh, shape)
        for dim, row in cuts.items():
            if prod(layout.extents(mesh, shape, dim)) != shape[dim]:
                _check_uneven(row, mesh, dim, shape[dim])
    return layout


def _check_uneven(cuts: Sequence[tuple[int, int]], mesh: Mesh, dim: int, size: int) -> None:
    """Raise LayoutError unless DTensor cuts a size that does not divide in nested chunks.

    It does so with plain shards, and with one strided shard whose parts are those of one later axis, but with no
    other.
    """
    strided = [(number, split) for number, split in cuts if split > 1]
    if not strided:
        return
    number, split = strided[0]
    after = [mesh.size(mesh.names[other]) for other, _ in cuts if other > number]
    if len(strided) > 1 or not after or after[0] != split:
        raise LayoutError(
            f"a strided shard of dim {dim} over {mesh.names[number]} with split factor {split}: size "
            f"{size} does not divide, and no layout says how DTensor cuts it then"
        )


def _placement_kind(placement: object) -> str:
    name = type(placement).__name__
    if name in ("StridedShard", "_StridedShard"):
        return "strided"
    if name in ("Shard", "Replicate"):
        return name.lower()
    if name in ("Partial", "Pending"):
        return "partial"
    raise LayoutError(
        f"placement {placement!r} is unknown: Shard, _StridedShard, Replicate and Partial are known"
    )


def _reduction(placement: Any) -> str:
    op = str(placement.reduce_op)
    if op not in _REDUCE_OPS:
        raise LayoutError(f'unknown reduction "{op}", there are {", ".join(_REDUCE_OPS)}')
    return _REDUCE_OPS[op]


def _dim(placement: Any, ndim: int) -> int:
    dim = int(placement.dim)
    if not -ndim <= dim < ndim:
        raise LayoutError(f"placement {placement!r}: the tensor has {ndim} dims")
    return dim % ndim


def _orders(
    shard_order: Mapping[int, Sequence[int]] | Sequence[Any] | None,
) -> dict[int, tuple[int, ...]]:
    if shard_order is None:
        return {}
    if isinstance(shard_order, Mapping):
        return {dim: tuple(numbers) for dim, numbers in shard_order.items()}
    return {entry.tensor_dim: tuple(entry.mesh_dims) for entry in shard_order}


def _dtensor_dim(
    cuts: Sequence[tuple[int, int]], mesh: Mesh, dim: int, order: tuple[int, ...] | None
) -> tuple[Factor, ...]:
    """Return the factors of a dim, given its cuts as (number of the axis in the mesh, split factor)."""
    names = mesh.names
    if order is not None:
        if sorted(order) != sorted(number for number, _ in cuts):
            raise LayoutError(f"shard order {order} of dim {dim} is not that of its placements")
        return tuple(AxisFactor(names[number]) for number in order)
    factors: list[Factor] = []
    for number, split in cuts:
        at = _local_place(factors, split)
        taken = None if at is None else _taken(factors, at, mesh.size(names[number]))
        if at is None or taken is None:
            raise LayoutError(
                f"a shard of dim {dim} over {names[number]} with split factor {split}: no layout says "
                "how it cuts the parts that the axes before it leave on a rank"
            )
        factors[at : at + 1] = [AxisFactor(names[number]), *taken]
    return tuple(factors)


def _local_place(factors: list[Factor], split: int) -> int | None:
    """Find where, among the factors of a dim, the part on a rank has been cut into `split` parts.

    Returns the position of the next local factor, or the end. Cuts a local factor in two if need be; returns None
    where no cut gives that number of parts.
    """
    for at, factor in enumerate(factors):
        if isinstance(factor, LocalFactor):
            if split == 1:
                return at
            extent = factor.extent or 1
            if extent > split and extent % split == 0:
                factors[at : at + 1] = [LocalFactor(split), LocalFactor(extent // split)]
                extent = split
            if split % extent:
                return None
            split //= extent
    if split > 1:
        factors.append(LocalFactor(split))
    return len(factors)


def _taken(factors: Sequence[Factor], at: int, count: int) -> list[Factor] | None:
    """Return what an axis of `count` ranks leaves of the local factor at that position.

    Returns None where it does not divide the factor.
    """
    if at == len(factors):
        return []
    factor = factors[at]
    extent = (factor.extent or 1) if isinstance(factor, LocalFactor) else 1
    if extent % count:
        return None
    return [LocalFactor(extent // count)] if extent > count else []


Placement = Shard | StridedShard | Replicate | Pending


def to_dtensor(
    layout: Layout, mesh: Mesh, shape: Sequence[int], strided: bool = True
) -> tuple[Placement, ...]:
    """Return the DTensor placements of a layout, one for each axis of the mesh, of a tensor of global `shape`.

    strided: True: strided shards say in which order a dim is cut. False: shards are plain, and `to_shard_order` gives
             the order that goes with them.

    Their fields are those of torch.distributed.tensor's Shard, _StridedShard, Replicate and Partial. Raises
    LayoutError for what DTensor cannot say: sub-axes, memory order, irregular dims, reductions of several kinds; and,
    for sizes that do not divide: cyclic dims, dims over several axes that are not nested chunks, and strided shards
    that DTensor would cut differently.

    >>> from meshweave.layout.interchange import to_dtensor
    >>> to_dtensor(Layout.parse("[y, _]"), Mesh(x=2, y=2), (8, 8))
    (Replicate(), Shard(dim=0))
    """
    if layout.order is not None:
        raise LayoutError(f"DTensor has no memory order: {layout}")
    if len(layout.partial) > 1:
        raise LayoutError(f"DTensor has no order of pending reductions: {layout}")
    placements: dict[str, Placement] = {name: Replicate() for name in mesh.names}
    for partial in layout.partial:
        for name in partial.axes:
            placements[name] = Pending(_KINDS[partial.kind])
    for dim in range(layout.ndim):
        factors = _dtensor_factors(layout, mesh, shape, dim)
        extents = layout.extents(mesh, shape, dim)
        cuts = []
        for at, factor in enumerate(factors):
            if isinstance(factor, AxisFactor):
                number = mesh.names.index(factor.name)
                before = zip(factors[:at], extents, strict=False)
                split = prod(extent for other, extent in before if _is_later(other, number, mesh))
                if not strided and any(isinstance(f, LocalFactor) for f in factors[:at]):
                    raise LayoutError(f"an order of axes cannot say dim {dim} of {layout}")
                plain = split == 1 or not strided
                placements[factor.name] = Shard(dim) if plain else StridedShard(dim, split)
                cuts.append((number, split))
        if strided and prod(extents) != shape[dim]:
            _check_uneven(sorted(cuts), mesh, dim, shape[dim])
    return tuple(placements[name] for name in mesh.names)


def to_shard_order(layout: Layout, mesh: Mesh) -> dict[int, tuple[int, ...]]:
    """Return, for each dim that is cut, the axes that cut it, by their numbers in the mesh, in order.

    Goes with `to_dtensor(..., strided=False)`; in torch it is DTensorSpec's `shard_order`.
    """
    numbers = {name: number for number, name in enumerate(mesh.names)}
    rows = {dim: layout.axes_of(dim) for dim in range(layout.ndim)}
    return {dim: tuple(numbers[name] for name in axes) for dim, axes in rows.items() if axes}


def _is_later(factor: Factor, number: int, mesh: Mesh) -> bool:
    """Tell whether DTensor cuts the dim over this factor only after it cuts it over axis `number`."""
    return isinstance(factor, LocalFactor) or mesh.names.index(factor.name) > number


def _dtensor_factors(
    layout: Layout, mesh: Mesh, shape: Sequence[int], dim: int
) -> tuple[Factor, ...]:
    factors = layout.dims[dim]
    axes = [factor for factor in factors if isinstance(factor, AxisFactor)]
    if any(axis.sub is not None for axis in axes):
        raise LayoutError(f"DTensor has no sub-axes: dim {dim} of {layout}")
    if any(axis.extents is not None for axis in axes):
        raise LayoutError(f"DTensor has no irregular extents: dim {dim} of {layout}")
    if prod(layout.extents(mesh, shape, dim)) == shape[dim] or not axes:
        return factors
    if factors != (*axes, LocalFactor(None)):
        raise LayoutError(
            f"DTensor has blocks and strided shards only: dim {dim} of {layout}, of size "
            f"{shape[dim]}, does not divide"
        )
    if layout.uneven != "nested" and len(axes) > 1:
        raise LayoutError(
            f"DTensor cuts uneven sizes in nested chunks, dim {dim} ({shape[dim]}) of {layout} "
            "is not: write uneven(nested)"
        )
    return factors


# Shardy


@dataclass(frozen=True)
class Sharding:
    """Hold what a Shardy sharding says: a layout, and what propagation may do with it.

    open_dims:  dims that may be sharded further.
    replicated: axes that open dims may not use.
    priorities: for each dim the priority it is propagated with, or None.
    """

    layout: Layout
    open_dims: tuple[int, ...] = ()
    replicated: tuple[str, ...] = ()
    priorities: tuple[int | None, ...] = ()
    mesh_name: str = "mesh"


_SHARDING = re.compile(
    r"\s*(?:#sdy\.sharding\s*)?<\s*@([\w.$-]+)\s*,\s*\[(.*?)\]\s*(.*?)>\s*", re.S
)
_DIM = re.compile(r"\{([^{}]*)\}\s*(?:p(\d+))?\s*")
_AXIS = re.compile(r'"([^"]+)"(?::\((\d+)\)(\d+))?')
_SET = re.compile(r",?\s*(replicated|unreduced)\s*=\s*\{([^{}]*)\}\s*")


def from_shardy(text: str) -> Sharding:
    """Parse a text such as `#sdy.sharding<@mesh, [{"x", "y":(1)2}, {?}], replicated={"z"}, unreduced={"w"}>`.

    Raises LayoutError where it cannot be read, or a sub-axis is unreduced.

    >>> from meshweave.layout.interchange import from_shardy
    >>> sharding = from_shardy('#sdy.sharding<@mesh, [{"x"}, {"y", ?}]>')
    >>> str(sharding.layout), sharding.open_dims
    ('[x, y]', (1,))
    """
    whole = _SHARDING.fullmatch(text)
    if whole is None:
        raise LayoutError(f"sharding {text!r}: #sdy.sharding<@mesh, [{{..}}, ..]> is right")
    dims: list[tuple[Factor, ...]] = []
    open_dims, priorities = [], []
    for inside, priority in _split(_DIM, whole[2], ",", text):
        words = inside.strip()
        if words.endswith("?"):
            open_dims.append(len(dims))
            words = words[:-1].rstrip().removesuffix(",")
        dims.append(tuple(_factors(words, text)))
        priorities.append(int(priority) if priority else None)
    sets: dict[str, list[AxisFactor]] = {"replicated": [], "unreduced": []}
    for name, inside in _split(_SET, whole[3], "", text):
        sets[name] += _factors(inside, text)
    if any(axis.sub for axis in sets["unreduced"]):
        raise LayoutError(f"sharding {text!r}: a reduction is pending over whole axes only")
    pending = tuple(axis.name for axis in sets["unreduced"])
    layout = Layout(tuple(dims), (Partial("sum", pending),) if pending else ())
    replicated = tuple(axis.ref for axis in sets["replicated"])
    return Sharding(layout, tuple(open_dims), replicated, tuple(priorities), whole[1])


def _split(pattern: "re.Pattern[str]", text: str, comma: str, whole: str) -> list[tuple[Any, ...]]:
    """Return the groups of each match; the matches must make up the whole text."""
    found: list[tuple[Any, ...]] = []
    rest = text.strip()
    while rest:
        match = pattern.match(rest)
        if match is None:
            raise LayoutError(f"sharding {whole!r}: cannot read {rest!r}")
        found.append(match.groups())
        rest = rest[match.end() :]
        if comma and rest:
            if not rest.startswith(comma):
                raise LayoutError(f"sharding {whole!r}: cannot read {rest!r}")
            rest = rest[1:].strip()
    return found


def _factors(inside: str, whole: str) -> list[AxisFactor]:
    factors = []
    for name, m, k in _split(_AXIS, inside, ",", whole):
        if not name.isidentifier():
            raise LayoutError(f"sharding {whole!r}: {name!r} is not a name for an axis here")
        factors.append(AxisFactor(name, (int(m), int(k)) if m else None))
    return factors


def to_shardy(sharding: "Sharding | Layout", mesh: Mesh, shape: Sequence[int]) -> str:
    """Return the text of a Shardy sharding, sub-axes included, of a tensor of global `shape` on `mesh`.

    Raises LayoutError for what Shardy cannot say: cyclic dims and local factors, memory order, irregular or nested
    sizes, reductions other than a sum.

    >>> from meshweave.layout.interchange import to_shardy
    >>> to_shardy(Layout.parse("[x:(1)2, _]"), Mesh(x=4), (8, 8))
    '#sdy.sharding<@mesh, [{"x":(1)2}, {}]>'
    """
    if isinstance(sharding, Layout):
        sharding = Sharding(sharding)
    layout = sharding.layout
    for partial in layout.partial:
        if partial.kind != "sum":
            raise LayoutError(f"Shardy has no pending {partial.kind}: {layout}")
    if any(is_nested(layout, mesh, shape, dim) for dim in range(layout.ndim)):
        raise LayoutError(f"Shardy pads uneven sizes, it has no nested chunks: {layout}")
    rows = block_axes(layout, mesh, shape)
    if rows is None:
        raise LayoutError(f"Shardy has blocks in row-major memory only, so it cannot say {layout}")
    words = []
    for dim in range(layout.ndim):
        names = [_axis_text(ref) for ref in layout.axes_of(dim)]
        if dim in sharding.open_dims:
            names.append("?")
        priority = sharding.priorities[dim] if dim < len(sharding.priorities) else None
        words.append("{" + ", ".join(names) + "}" + ("" if priority is None else f"p{priority}"))
    sets = ""
    for name, refs in (("replicated", sharding.replicated), ("unreduced", layout.partial_axes())):
        if refs:
            sets += f", {name}={{{', '.join(map(_axis_text, refs))}}}"
    return f"#sdy.sharding<@{sharding.mesh_name}, [{', '.join(words)}]{sets}>"


def _axis_text(ref: str) -> str:
    name, colon, sub = ref.partition(":")
    return f'"{name}"{colon}{sub}'
