"""Shardy's meshes and shardings as values, and what they are in our notation.

    #sdy.sharding<@mesh, [{"dp"}, {"tp", ?}, {?}p1], replicated={"x"}, unreduced={"y"}>

is the layout `[dp, tp, _] +sum(y)` with dims 1 and 2 open, axis x kept from open dims, priorities
0, 0, 1. Axes and sub-axes (`"x":(2)4`) keep their order, major first. Nothing is dropped: what our
notation cannot say is a CompileError.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache

from meshweave.errors import CompileError, LayoutError
from meshweave.frontends.stablehlo.cursor import Cursor
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh


@dataclass(frozen=True)
class MeshText:
    """Hold a mesh as Shardy writes it: (axis, size) pairs, and the order of devices unless it is 0, 1, 2, ..."""

    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...] | None = None

    @property
    def is_maximal(self) -> bool:
        """Tell whether this is one device, named by its number, that holds a whole tensor."""
        return not self.axes and self.device_ids is not None

    def mesh(self) -> Mesh:
        """Return the mesh in our terms. Raises CompileError for wrong numbers of devices, or a name we cannot use."""
        try:
            mesh = Mesh.parse(", ".join(f"{name}={size}" for name, size in self.axes))
        except LayoutError as error:
            raise CompileError(f"mesh: {error}") from None
        if sorted(self.devices(mesh.nranks)) != list(range(mesh.nranks)):
            raise CompileError(
                f"mesh: device_ids={list(self.devices(mesh.nranks))}: the numbers from 0 to "
                f"{mesh.nranks - 1}, each once, are right"
            )
        return mesh

    def devices(self, nranks: int) -> tuple[int, ...]:
        """Return the number of the device of each rank."""
        return tuple(range(nranks)) if self.device_ids is None else self.device_ids


@dataclass(frozen=True)
class ShardyLayout:
    """Hold one sharding: for each dim its axes (layout factors as text), whether it is open, and its priority."""

    mesh: "str | MeshText"  # a symbol, or the mesh itself
    axes: tuple[tuple[str, ...], ...]
    is_open: tuple[bool, ...]
    priorities: tuple[int | None, ...]
    replicated: tuple[str, ...] = ()
    unreduced: tuple[str, ...] = ()
    pending: str = "sum"  # the kind of reduction that is pending over `unreduced`

    @staticmethod
    def whole(mesh: "str | MeshText", ndim: int) -> "ShardyLayout":
        """Return the sharding of a tensor that each rank holds whole."""
        return ShardyLayout(mesh, ((),) * ndim, (False,) * ndim, (None,) * ndim)

    def without(self, axes: Collection[str]) -> "ShardyLayout":
        """Return the sharding without what it says of these axes."""

        def left(refs: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(ref for ref in refs if ref.split(":", 1)[0] not in axes)

        kept = tuple(left(dim) for dim in self.axes)
        sets = left(self.replicated), left(self.unreduced)
        return replace(self, axes=kept, replicated=sets[0], unreduced=sets[1])

    @property
    def open_dims(self) -> tuple[int, ...]:
        """Return the dims that may be sharded further."""
        return tuple(i for i, is_open in enumerate(self.is_open) if is_open)

    @property
    def named_axes(self) -> frozenset[str]:
        """Return the mesh axes that the sharding names anywhere; a sub-axis counts as its axis."""
        factors = [f for dim in self.axes for f in dim] + [*self.replicated, *self.unreduced]
        return frozenset(f.split(":", 1)[0] for f in factors)

    def layout(self) -> str:
        """Return the layout text."""
        dims = ", ".join("*".join(dim) or "_" for dim in self.axes)
        parts = [ref for ref in self.unreduced if ":" in ref]
        if parts:
            raise CompileError(
                f"sharding: unreduced over {', '.join(parts)}, a part of an axis: a reduction is pending over "
                "whole axes only: give the mesh an axis for the part"
            )
        partial = f" +{self.pending}({', '.join(self.unreduced)})" if self.unreduced else ""
        try:
            return str(Layout.parse(f"[{dims}]{partial}"))
        except LayoutError as error:
            raise CompileError(f"sharding: {error}") from None


@lru_cache(maxsize=4096)
def parse_sharding(text: str) -> ShardyLayout:
    """Read `#sdy.sharding<@mesh, [...], ...>`, or the part from `<` on. Raises CompileError at what cannot be read."""
    return _sharding(Cursor(text, name="sharding"))


@lru_cache(maxsize=256)
def parse_per_value(text: str) -> tuple[ShardyLayout, ...]:
    """Read `#sdy.sharding_per_value<[<@mesh, ...>, ...]>`, or the list in it."""
    cursor = Cursor(text, name="sharding")
    cursor.take_if("#sdy.sharding_per_value<")
    return tuple(cursor.take_list(lambda: _sharding(cursor), "[", "]"))


def per_value_texts(text: str) -> list[str]:
    """Return the text of each sharding of `#sdy.sharding_per_value<[<@mesh, ...>, ...]>`."""
    cursor = Cursor(text, name="sharding")
    cursor.take_if("#sdy.sharding_per_value<")

    def one() -> str:
        cursor.take_if("#sdy.sharding")
        return f"#sdy.sharding{cursor.take_group('<')}"

    return cursor.take_list(one, "[", "]")


def parse_axes(text: str) -> tuple[str, ...]:
    """Read `#sdy<manual_axes{"x", "y"}>`, or the set in it."""
    cursor = Cursor(text, name="axes")
    cursor.take_if("#sdy<manual_axes")
    return _axes(cursor)


def parse_mesh(text: str) -> MeshText:
    """Read `#sdy.mesh<["x"=2, "y"=4], device_ids=[...]>`, or the part from `<` on."""
    cursor = Cursor(text, name="mesh")
    cursor.take_if("#sdy.mesh")
    return _mesh(cursor)


def _mesh(c: Cursor) -> MeshText:
    def axis() -> tuple[str, int]:
        name = c.take_string()
        c.take("=")
        return name, c.take_number()

    c.take("<")
    axes, ids = c.take_list(axis, "[", "]"), None
    if c.take_if(","):
        c.take("device_ids")
        c.take("=")
        ids = tuple(c.take_list(c.take_number, "[", "]"))
    c.take(">")
    return MeshText(tuple(axes), ids)


_PENDING = ("sum", "max", "min")


def _sharding(c: Cursor) -> ShardyLayout:
    for prefix in ("#sdy.sharding", "#sdy<sharding"):
        if c.take_if(prefix):
            break
    c.take("<")
    if c.at("@"):
        mesh: str | MeshText = c.take_symbol()
    else:
        c.take("mesh")
        mesh = _mesh(c)
    c.take(",")
    dims = c.take_list(lambda: _dim(c), "[", "]")
    more: dict[str, tuple[str, ...]] = {}
    pending = "sum"
    while c.take_if(","):
        key = c.take_name()
        if key not in ("replicated", "unreduced") or key in more:
            raise c.error(
                f"a sharding has no {key!r} here: replicated={{..}} and unreduced={{..}} may "
                "follow the dims"
            )
        c.take("=")
        if key == "unreduced" and not c.at("{"):
            pending = c.take_name()
            if pending not in _PENDING:
                raise c.error(f"unreduced={pending}{{..}}: {', '.join(_PENDING)} are known")
        more[key] = _axes(c)
    c.take(">")
    axes, is_open, priorities = zip(*dims, strict=True) if dims else ((), (), ())
    return ShardyLayout(mesh, axes, is_open, priorities, **more, pending=pending)


def _dim(c: Cursor) -> tuple[tuple[str, ...], bool, int | None]:
    """Read a dim such as `{"x", "y":(2)4, ?}p1`: its axes, whether it is open, its priority."""
    axes = c.take_list(lambda: "?" if c.take_if("?") else _axis(c), "{", "}")
    if "?" in axes[:-1]:
        raise c.error("'?' ends the axes of a dim")
    is_open = axes[-1:] == ["?"]
    priority = c.take_number() if c.take_if("p") else None
    if priority is not None and priority >= 1 << 63:
        raise c.error(f"a priority of {priority}: 64 bits are right")
    return tuple(axes[: len(axes) - is_open]), is_open, priority


def _axes(c: Cursor) -> tuple[str, ...]:
    return tuple(c.take_list(lambda: _axis(c), "{", "}"))


def _axis(c: Cursor) -> str:
    """Read `"x"` or `"x":(2)4` as a layout factor."""
    name = c.take_string()
    if not c.take_if(":"):
        return name
    c.take("(")
    before = c.take_number()
    c.take(")")
    return f"{name}:({before}){c.take_number()}"
