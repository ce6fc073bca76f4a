"""Define meshes: named axes of devices, ranks counted row-major over them, and groups of ranks along axes.

An axis is named in two ways: plainly, `x`, or as a sub-axis `x:(m)k`, the k in the middle of x = m * k * rest.
Wherever this file takes the name of an axis it takes a sub-axis too.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NoReturn

from meshweave.errors import LayoutError

MAX_RANKS = 2**31 - 1  # a rank is an int in MPI and in NCCL

_SUB_AXIS = re.compile(r"(\w+):\((\d+)\)(\d+)")


@dataclass(frozen=True)
class Link:
    """Give the cost of moving bytes along an axis: `alpha` seconds per message and `beta` seconds per byte.

    Raises LayoutError when one is negative.
    """

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        if not (self.alpha >= 0 and self.beta >= 0):
            raise LayoutError(
                f"a link needs alpha >= 0 and beta >= 0, got {self.alpha}, {self.beta}"
            )


@dataclass(frozen=True)
class Axis:
    """Describe an axis of a mesh.

    name: an identifier other than `_`.
    size: the number of ranks along it, or, until the mesh is specialized, a symbol such as "N".
    link: the cost of moving bytes along it, for plans; None: that of the default machine.

    Raises LayoutError for another name or size.
    """

    name: str
    size: int | str
    link: Link | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier() or self.name == "_":
            raise LayoutError(f"axis {self.name!r}: an axis name is an identifier other than _")
        if isinstance(self.size, str):
            if not self.size.isidentifier():
                raise LayoutError(f"axis {self.name}={self.size}: a size is a number or a symbol")
        elif not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < 1:
            raise LayoutError(f"axis {self.name}={self.size}: a size is at least 1")


AUTO = "auto"
"""The name of no axis: `auto=4` are 4 ranks whose axes are to be chosen."""


@dataclass(frozen=True, init=False, eq=False)
class Mesh:
    """Arrange devices along ordered axes: `Mesh(x=2, y=4)`, `Mesh("x=2, y=4")`, or `Mesh(Axis("x", 2, link), ...)`.

    axes: Axis objects or texts of axes, in order. sizes: further axes by name, a number or a symbol each.

    Ranks count row-major over the axes, the last axis fastest. A mesh without axes has one rank. Methods take the
    `name` of an axis or of a sub-axis, `x:(2)2`, and a `rank` from 0 on. Raises LayoutError for two axes of one name,
    for a size below 1, for more than MAX_RANKS ranks, and for a text that `parse` refuses.

    >>> mesh = Mesh(x=2, y=4)
    >>> mesh.nranks, str(mesh), mesh == Mesh("x=2, y=4")
    (8, 'x=2, y=4', True)
    """

    axes: tuple[Axis, ...]
    # By axis or sub-axis: its size, its stride in ranks.
    _places: dict[str, tuple[int, int]] = field(repr=False)
    _nranks: int = field(repr=False)  # 0 while a size is a symbol
    _hash: int = field(repr=False)

    def __init__(self, *axes: Axis | str, **sizes: int | str) -> None:
        given = [axis for part in axes for axis in _axes(part)]
        every = (*given, *(Axis(name, size) for name, size in sizes.items()))
        names = [axis.name for axis in every]
        for name in names:
            if names.count(name) > 1:
                raise LayoutError(f"a mesh has axis {name} only once, got {', '.join(names)}")
        if AUTO in names and len(names) > 1:
            raise LayoutError(
                f"mesh {_text(every)}: {AUTO} is no axis, but lets all axes be chosen: it stands alone"
            )
        places: dict[str, tuple[int, int]] = {}
        stride = 1
        for axis in reversed(every):
            if isinstance(axis.size, int):
                places[axis.name] = (axis.size, stride)
                stride *= axis.size
        if stride > MAX_RANKS:
            raise LayoutError(f"mesh {_text(every)} has {stride} ranks, at most {MAX_RANKS} work")
        object.__setattr__(self, "axes", every)
        object.__setattr__(self, "_places", places)
        known = len(places) == len(every)
        object.__setattr__(self, "_nranks", stride if known else 0)
        object.__setattr__(self, "_hash", hash(every))

    @staticmethod
    def parse(text: str) -> "Mesh":
        """Parse the text of a mesh, such as "x=2, y=4" or "x=N"; an empty text is the mesh of one rank.

        Raises LayoutError naming the part that is not an axis with a size.
        """
        return _parsed(text)

    def __str__(self) -> str:
        return _text(self.axes)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Mesh) and self._hash == other._hash and self.axes == other.axes
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the axes, in order."""
        return tuple(axis.name for axis in self.axes)

    @property
    def is_symbolic(self) -> bool:
        """Tell whether some axis size is still a symbol."""
        return self._nranks == 0

    @property
    def nranks(self) -> int:
        """Return the number of ranks. Raises LayoutError on a symbolic mesh."""
        return self._nranks or self._refuse_symbols()

    @property
    def ranks_to_arrange(self) -> int | None:
        """Return the number of ranks of `auto=N`, whose axes are to be chosen; None of any other mesh."""
        return self._nranks if self.names == (AUTO,) else None

    def has(self, name: str) -> bool:
        """Tell whether the mesh has an axis of this plain `name`."""
        return name in self._places or name in self.names

    def axis(self, name: str) -> Axis:
        """Return the axis called `name`, or the one that the sub-axis `name` is part of.

        Raises LayoutError if there is none.
        """
        base = name.partition(":")[0]
        for axis in self.axes:
            if axis.name == base:
                return axis
        raise LayoutError(f'no axis "{base}" in mesh ({self})')

    def size(self, name: str) -> int:
        """Return the number of ranks along an axis or sub-axis.

        Raises LayoutError for an unknown axis or one whose size is a symbol.
        """
        return self._place(name)[0]

    def stride(self, name: str) -> int:
        """Return the distance in ranks between neighbours along an axis or sub-axis.

        Raises LayoutError like `size`.
        """
        return self._place(name)[1]

    def specialize(self, /, **sizes: int) -> "Mesh":
        """Return the mesh with numbers for symbols: `Mesh(x="N").specialize(N=4)`.

        An axis may also be named directly, unless a symbol has its name. Raises LayoutError for a name that is neither
        a symbol nor a symbolic axis of this mesh.
        """
        symbols = {axis.size for axis in self.axes if isinstance(axis.size, str)}
        axes_too = {axis.name for axis in self.axes if isinstance(axis.size, str)} - symbols
        for name in sizes:
            if name not in symbols | axes_too:
                raise LayoutError(f'no symbol "{name}" in mesh ({self})')
        axes = []
        for axis in self.axes:
            if isinstance(axis.size, str):
                named = sizes.get(axis.name) if axis.name in axes_too else None
                size = sizes.get(axis.size, named)
                axis = axis if size is None else replace(axis, size=size)
            axes.append(axis)
        return Mesh(*axes)

    def coordinate(self, rank: int, name: str) -> int:
        """Return the coordinate of `rank` on an axis or sub-axis. Raises LayoutError for an unknown one."""
        self._check_rank(rank)
        size, stride = self._place(name)
        return rank // stride % size

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinate of `rank` on every axis."""
        return {name: self.coordinate(rank, name) for name in self.names}

    def rank_of(self, coordinates: Mapping[str, int]) -> int:
        """Return the rank at these coordinates, one for each axis.

        Raises LayoutError if one is missing or out of range.
        """
        rank = 0
        for name in coordinates:
            self.axis(name)
        for name in self.names:
            size, stride = self._place(name)
            at = coordinates.get(name)
            if at is None or not 0 <= at < size:
                raise LayoutError(
                    f"axis {name} of mesh ({self}) needs a coordinate 0..{size - 1}, got {at}"
                )
            rank += at * stride
        return rank

    def axis_count(self, axes: Iterable[str]) -> int:
        """Return the number of ranks in a group over `axes`: the product of their sizes."""
        count = 1
        for name in axes:
            count *= self._place(name)[0]
        return count

    def group(self, axes: Sequence[str], rank: int) -> tuple[int, ...]:
        """Return the ranks that share the coordinates of `rank` on all other axes, by linear coordinate over `axes`.

        The first of `axes` is major: over ("y", "x") the members count x fastest.
        """
        self._check_rank(rank)
        places = self._distinct(axes)
        members = [rank - sum(rank // stride % size * stride for size, stride in places)]
        for size, stride in places:
            members = [member + at * stride for member in members for at in range(size)]
        return tuple(members)

    def group_index(self, axes: Sequence[str], rank: int) -> int:
        """Return the linear coordinate of `rank` over `axes`, the first one major: its place in its group."""
        self._check_rank(rank)
        index = 0
        for size, stride in self._distinct(axes):
            index = index * size + rank // stride % size
        return index

    def groups(self, axes: Sequence[str]) -> Iterator[tuple[int, ...]]:
        """Yield every group over `axes`, ordered by smallest rank."""
        for rank in range(self.nranks):
            members = self.group(axes, rank)
            if min(members) == rank:
                yield members

    def _place(self, name: str) -> tuple[int, int]:
        place = self._places.get(name)
        if place is None:
            # Only sub-axes come here more than once; what is remembered follows from the axes
            # alone.
            place = self._places[name] = self._find(name)
        return place

    def _find(self, name: str) -> tuple[int, int]:
        axis = self.axis(name)
        if isinstance(axis.size, str):
            self._refuse_symbols()
        match = _SUB_AXIS.fullmatch(name)
        if match is None:
            raise LayoutError(
                f'"{name}" is neither an axis nor a sub-axis NAME:(m)k of mesh ({self})'
            )
        major, k = int(match[2]), int(match[3])
        size, stride = self._places[axis.name]
        if major < 1 or k < 1 or size % (major * k):
            raise LayoutError(f"sub-axis {name}: {major} * {k} does not divide {axis.name}={size}")
        return k, stride * (size // (major * k))

    def _distinct(self, axes: Sequence[str]) -> list[tuple[int, int]]:
        if len(set(axes)) != len(axes):
            raise LayoutError(f"a group names each axis once, got ({', '.join(axes)})")
        return [self._place(name) for name in axes]

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < (self._nranks or self._refuse_symbols()):
            raise LayoutError(
                f"rank {rank} is not in mesh ({self}), which has ranks 0..{self.nranks - 1}"
            )

    def _refuse_symbols(self) -> NoReturn:
        names = ", ".join(f"{a.name}={a.size}" for a in self.axes if isinstance(a.size, str))
        raise LayoutError(f"the mesh ({self}) is symbolic: give {names} a number first")


def _text(axes: Sequence[Axis]) -> str:
    return ", ".join(f"{axis.name}={axis.size}" for axis in axes)


def _axes(part: Axis | str) -> tuple[Axis, ...]:
    if isinstance(part, str):
        return _parsed(part).axes
    if not isinstance(part, Axis):
        raise LayoutError(f"a mesh has Axis objects or texts such as 'x=2, y=4', got {part!r:.80}")
    return (part,)


@lru_cache(maxsize=256)
def _parsed(text: str) -> Mesh:
    """Do what `Mesh.parse` does; passes ask for the same few meshes all the time."""
    axes = []
    for part in text.split(",") if text.strip() else ():
        name, equals, size = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not size:
            raise LayoutError(f'mesh "{text}": "{part.strip()}" is not NAME=SIZE, e.g. x=2, y=4')
        digits = size.isascii() and size.isdigit() and len(size) < 20
        axes.append(Axis(name, int(size) if digits else size))
    return Mesh(*axes)
