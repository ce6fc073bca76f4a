"""Say where things lie on a mesh as places: coordinates of ranks, and which part of a tensor a layout gives a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod

from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.layout.places import digits, irregular, is_nested
from meshweave.verification.terms.indices import (
    Expr,
    Owned,
    Var,
    inside,
    number,
    of_var,
    plus,
    quotient,
    remainder,
    times,
    total,
)
from meshweave.verification.terms.substitution import Substitution


@lru_cache(maxsize=1 << 14)
def index_var(dim: int, size: int) -> Var:
    """Return the variable that is the index along a dim of a tensor at hand."""
    return Var("i", str(dim), size)


@lru_cache(maxsize=1 << 12)
def places_of(shape: tuple[int, ...]) -> tuple[Expr, ...]:
    """Return the index along each dim of a tensor, as places."""
    return tuple([of_var(index_var(d, n)) for d, n in enumerate(shape)])


@dataclass(frozen=True)
class Ranks:
    """Hold the ranks of a mesh: coordinates as expressions. Names are those of axes or sub-axes."""

    mesh: Mesh

    def axis(self, name: str) -> Var:
        """Return the variable that is the coordinate of a whole axis."""
        name = name.partition(":")[0]
        return Var("x", name, self.mesh.size(name))

    @property
    def all(self) -> list[Var]:
        """Return the coordinates of all axes."""
        return [self.axis(name) for name in self.mesh.names]

    def _digit(self, name: str) -> tuple[int, int]:
        """Return the number of values of a name, and how many of its axis a step of it is."""
        whole = name.partition(":")[0]
        return self.mesh.size(name), self.mesh.stride(name) // self.mesh.stride(whole)

    def coordinate(self, name: str) -> Expr:
        """Return the coordinate along an axis or sub-axis."""
        size, step = self._digit(name)
        return remainder(quotient(of_var(self.axis(name)), step), size)

    def member(self, names: Sequence[str]) -> Expr:
        """Return the number of a rank in its group, first name major."""
        found = number(0)
        for name in names:
            found = plus(times(found, self.mesh.size(name)), self.coordinate(name))
        return found

    def at(self, names: Sequence[str], coordinates: Sequence[Expr]) -> dict[Var, Expr]:
        """Return what to put in the place of coordinates, so that these axes have these."""
        found: dict[Var, Expr] = {}
        for name, value in zip(names, coordinates):
            var = self.axis(name)
            size, step = self._digit(name)
            old = found.get(var, of_var(var))
            high = times(quotient(old, size * step), size * step)
            found[var] = total(((high, 1), (value, step), (remainder(old, step), 1)))
        return found

    def at_member(self, names: Sequence[str], member: Expr) -> dict[Var, Expr]:
        """Return what to put in the place of coordinates to be member `member` of the group."""
        coordinates: list[Expr] = []
        for name in reversed(names):
            coordinates.append(remainder(member, self.mesh.size(name)))
            member = quotient(member, self.mesh.size(name))
        return self.at(names, coordinates[::-1])

    def source(self, names: Sequence[str], sources: Sequence[int]) -> Expr | None:
        """Return the member that each member receives from, as a sum of digits or a rotation; None for no such."""
        sizes = [self.mesh.size(name) for name in names]
        steps = []
        for place in range(len(sizes)):
            one = prod(sizes[place + 1 :])
            steps.append(sources[one] - sources[0] if sizes[place] > 1 else 0)
        tuples = list(product(*map(range, sizes)))
        linear = [sources[0] + sum(a * s for a, s in zip(t, steps)) for t in tuples]
        if linear == list(sources):
            parts = [(self.coordinate(n), s) for n, s in zip(names, steps)]
            return total(parts, sources[0])
        count = len(sources)
        if [(k + sources[0]) % count for k in range(count)] == list(sources):
            return remainder(plus(self.member(names), number(sources[0])), count)
        return None


@dataclass(frozen=True)
class Placing:
    """Describe where a layout puts a tensor.

    shape: of the whole tensor. allocation: of a rank's buffer.
    """

    ranks: Ranks
    layout: Layout
    shape: tuple[int, ...]

    @cached_property
    def allocation(self) -> tuple[int, ...]:
        """Return the shape of a rank's buffer."""
        return self.layout.allocation_shape(self.ranks.mesh, self.shape)

    def _buffer_dims(self) -> dict[tuple[int, int], int]:
        """Return the dim of the buffer for each local factor (dim, k) in a stated memory order."""
        return {key: place for place, key in enumerate(self.layout.order or ())}

    @cached_property
    def indices(self) -> list[Expr]:
        """Return the global index along each dim, of a place in the buffer of a rank."""
        return [self._index(dim) for dim in range(self.layout.ndim)]

    @cached_property
    def places(self) -> dict[Var, Expr]:
        """Return what to put in the place of the indices of the whole tensor, to read a rank's part."""
        return {index_var(d, n): e for d, (n, e) in enumerate(zip(self.shape, self.indices))}

    @cached_property
    def part(self) -> Substitution:
        """Return what puts the places of a rank's part in the place of the indices of the whole tensor."""
        return Substitution(self.places)

    @cached_property
    def whole(self) -> Substitution | None:
        """Return what makes of a rank's part the whole tensor: coordinates and indices of the buffer, by the whole's.

        None where some dim has no formula.
        """
        owner = self.owner({d: of_var(index_var(d, n)) for d, n in enumerate(self.shape)})
        return None if owner is None else Substitution(owner)

    @cached_property
    def ends(self) -> list[tuple[Expr, int]]:
        """Return the places of a rank's part that may lie beyond the end of the whole, each with that end."""
        return [(e, n) for e, n in zip(self.indices, self.shape) if not inside(e, n)]

    def _index(self, dim: int) -> Expr:
        mesh = self.ranks.mesh
        if not self._has_formula(dim):
            place = of_var(index_var(dim, self.allocation[dim]))
            names = self.layout.axes_of(dim)
            inputs = (*[self.ranks.coordinate(n) for n in names], place)
            alone = Layout((self.layout.dims[dim],), uneven=self.layout.uneven)
            name = f"{alone} of {self.shape[dim]}"  # the same for every tensor with such a dim
            made = Owned("@", name, inputs, self.shape[dim] + 1, alone, mesh)
            return Expr(0, ((made, 1),))
        row = digits(self.layout, mesh, self.shape)[dim]
        places = self._local_digits(dim, [d.extent for d in row if d.axis is None])
        parts = []
        for digit in row:
            value = places.pop(0) if digit.axis is None else self.ranks.coordinate(digit.axis)
            parts.append((value, digit.stride))
        return total(parts, (self.layout.window(dim) or (0, 0))[1])

    def _has_formula(self, dim: int) -> bool:
        mesh = self.ranks.mesh
        return irregular(self.layout, dim) is None and not is_nested(
            self.layout, mesh, self.shape, dim
        )

    def _local_digits(self, dim: int, extents: list[int]) -> list[Expr]:
        shape = self.allocation
        if self.layout.order is not None:
            dims = self._buffer_dims()
            return [of_var(index_var(dims[dim, k], n)) for k, n in enumerate(extents)]
        rest, found = of_var(index_var(dim, shape[dim])), []
        for extent in reversed(extents):
            found.append(remainder(rest, extent) if len(extents) > 1 else rest)
            rest = quotient(rest, extent)
        return found[::-1]

    def owner(self, indices: Mapping[int, Expr]) -> dict[Var, Expr] | None:
        """Return what to put in the place of coordinates and buffer indices to be at a global index.

        None where some dim has no formula.
        """
        names: list[str] = []
        coordinates: list[Expr] = []
        found: dict[Var, Expr] = {}
        shape, dims = self.allocation, self._buffer_dims()
        for dim, index in indices.items():
            if not self._has_formula(dim) or self.layout.window(dim) is not None:
                return None
            place, k, rest = number(0), 0, index
            for digit in digits(self.layout, self.ranks.mesh, self.shape)[dim]:
                value, rest = quotient(rest, digit.stride), remainder(rest, digit.stride)
                if digit.axis is not None:
                    names.append(digit.axis)
                    coordinates.append(value)
                    continue
                if self.layout.order is not None:
                    found[index_var(dims[dim, k], shape[dims[dim, k]])] = value
                place, k = plus(times(place, digit.extent), value), k + 1
            if self.layout.order is None:
                found[index_var(dim, shape[dim])] = place
        return {**found, **self.ranks.at(names, coordinates)}


placing_of = lru_cache(maxsize=1 << 10)(Placing)
"""Return where a layout puts a tensor; what is asked of it is worked out once."""
