"""Describe the loop dims of an op, its factors, and how the dims of its operands and results are made of them.

A `Rule` is all that propagation and partitioning know of an op. Each dim of a tensor is a row of factors, major first:
one for most ops, several where a reshape splits or merges dims. Axes are placed on factors: `split_axes` distributes
the axes of a dim over its factors, `merge_axes` goes the other way. Both hold only while the digits keep their order:
a minor factor of a merged dim may be sharded only when the factors before it are fully sharded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

Axes = tuple[str, ...]
PARALLEL, REDUCTION, ORDERED, WHOLE = "parallel", "reduction", "ordered", "whole"
PLACED, JOINED, FOUND, SORTED = "placed", "joined", "found", "sorted"
IN_ORDER = (ORDERED, PLACED, JOINED, FOUND, SORTED)
"""Kinds of factors that are cut over ranks only, and in blocks."""
MOVING = (REDUCTION, JOINED, FOUND, SORTED)
"""Kinds of factors over which ranks have to talk to each other."""
NEUTRAL_FREE = ("max", "min")
"""Reductions in which counting the initial value once per rank changes nothing."""


@dataclass(frozen=True)
class Factor:
    """Describe a dim of an op's loops or tensors: its extent and kind.

    These are parallel, reduced, ordered, placed, joined, found, sorted and whole.

    An ordered one is there in the result too, but needs what ranks before this one have made: it may be cut over ranks,
    not over time. Nor may a placed one: no loop runs over it, elements are found by computed places, and each rank
    leaves out those that are not its own. A joined one is reduced by more than a collective can do: each rank reduces
    its own, all gather what they have made, and reduce that. It may be cut over ranks only, in order. A found one is a
    dim that is read at a computed place, one for each element of the result: each rank reads what it has, nothing else
    counts there, and the sum over ranks is the result. It too may be cut over ranks only, in order. A sorted one is
    there in the result too, where a rank has its part of the elements of all ranks in order: again over ranks only.
    """

    size: int
    kind: str = PARALLEL


@dataclass(frozen=True)
class SlidingWindow:
    """Say what place i of a factor reads along a dim: `reach` indices from stride * i + low on.

    Those outside of the dim do not count: what is read there is not used. Slices, shifts and padding reach over one
    index, convolutions over as many as their window.
    """

    stride: int = 1
    low: int = 0
    reach: int = 1

    def span(self, places: int) -> int:
        """Return how many indices so many places side by side read, with those in between."""
        return (places - 1) * self.stride + self.reach


Dims = tuple[tuple[int, ...], ...]
"""For each dim of a tensor, the numbers of its factors, major first; () for a dim of extent 1 without factors."""


@dataclass(frozen=True)
class Rule:
    """Map the dims of an op's tensors to its factors.

    operands, results: a Dims for each ranked tensor, None for anything else (scalars, tokens).
    sizes:             for each operand, then each result, the extents of its dims (None where Dims is None).
    nbytes:            for each operand, then each result, the bytes of the whole tensor.
    reduction:         what a REDUCTION factor combines with; None: unknown, such a factor must stay whole.
    inits:             for each result the operand that holds its initial value, or None.
    padding_safe:      whether the op may run on padding, whose content is undefined. Division by integers and reads at
                       computed places may not.
    monomials:         the products of operands whose sum is the result, as sets of operands; () if the result is no
                       such sum.
    held:              axes that a factor must be cut along where possible, whatever it costs.
    turns:             whether an axis of a dim that must be whole may go to another dim, which all its tensors have.
    even:              factors that are cut evenly or not at all.
    mirrored:          (operand, dim) of each dim, made of one factor, that is read from its end on: ranks hold even
                       blocks, and the last one has what the first one reads.
    windows:           (operand, dim, Window) of each dim, made of one factor, that is read through a window; of all
                       others index i of the dim belongs to place i of its factors.
    """

    factors: tuple[Factor, ...]
    operands: tuple[Dims | None, ...]
    results: tuple[Dims | None, ...]
    sizes: tuple[tuple[int, ...] | None, ...]
    nbytes: tuple[int, ...]
    reduction: str | None = None
    inits: tuple[int | None, ...] = ()
    padding_safe: bool = True
    monomials: tuple[frozenset[int], ...] = ()
    held: tuple[tuple[int, Axes], ...] = ()
    windows: tuple[tuple[int, int, SlidingWindow], ...] = ()
    mirrored: tuple[tuple[int, int], ...] = ()
    even: tuple[int, ...] = ()
    turns: bool = False
    name: str = ""
    tensors: tuple[Dims | None, ...] = field(init=False, repr=False)
    passes_through: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", self.operands + self.results)
        through = all(f.kind not in MOVING for f in self.factors)
        object.__setattr__(self, "passes_through", through)

    def factor_of(self, tensor: int, dim: int) -> int:
        """Return the first factor of a dim of a ranked tensor: the only one where it is mirrored or read in windows."""
        dims = self.tensors[tensor]
        assert dims is not None
        return dims[dim][0]

    def extent(self, tensor: int, dim: int) -> int:
        """Return the extent of a dim of a ranked tensor."""
        extents = self.sizes[tensor]
        assert extents is not None
        return extents[dim]

    def window(self, tensor: int, dim: int) -> SlidingWindow | None:
        """Return the window through which a dim is read, None for most."""
        for t, d, window in self.windows:
            if (t, d) == (tensor, dim):
                return window
        return None

    def without_windows(self) -> "Rule":
        """Return the rule in which what is read or made through windows must be whole, and no axis goes elsewhere."""
        if not self.windows and not self.mirrored:
            return replace(self, turns=False) if self.turns else self
        read = {self.factor_of(t, d) for t, d, _ in self.windows}
        read |= {self.factor_of(t, d) for t, d in self.mirrored}
        factors = [Factor(f.size, WHOLE) if n in read else f for n, f in enumerate(self.factors)]
        rows = [list(row) if row is not None else None for row in self.operands]
        for t, d, _ in self.windows:
            row, extents = rows[t], self.sizes[t]
            assert row is not None and extents is not None
            factors.append(Factor(extents[d], WHOLE))
            row[d] = (len(factors) - 1,)
        operands = tuple(None if row is None else tuple(row) for row in rows)
        return replace(
            self, factors=tuple(factors), operands=operands, windows=(), mirrored=(), turns=False
        )


def split_axes(
    axes: Axes, dim: tuple[int, ...], rule: Rule, sizes: Mapping[str, int]
) -> dict[int, Axes]:
    """Distribute the axes of a dim, major first, over the factors of that dim.

    An axis that falls across a factor's boundary, and every axis after it, belongs to no factor and is left out.
    """
    if len(dim) == 1:
        return {dim[0]: axes} if axes else {}
    found: dict[int, Axes] = {}
    place, rest = 0, rule.factors[dim[0]].size if dim else 1
    for axis in axes:
        while rest == 1 and place + 1 < len(dim):
            place += 1
            rest = rule.factors[dim[place]].size
        if not dim or rest % sizes[axis] or rest < sizes[axis]:
            break
        found[dim[place]] = (*found.get(dim[place], ()), axis)
        rest //= sizes[axis]
    return found


def merge_axes(
    placed: Mapping[int, Axes], dim: tuple[int, ...], rule: Rule, sizes: Mapping[str, int]
) -> tuple[Axes, bool]:
    """Return the axes of a dim, given those of its factors, and whether all of them are present.

    They are not when a sharded factor follows one that is not fully sharded, or when an axis does not divide a factor
    that shares its dim with others.
    """
    if len(dim) == 1:
        return placed.get(dim[0], ()), True
    axes: Axes = ()
    for place, number in enumerate(dim):
        here = placed.get(number, ())
        rest = rule.factors[number].size
        for axis in here:
            if rest % sizes[axis]:
                return axes, False
            rest //= sizes[axis]
            axes = (*axes, axis)
        if rest != 1:
            behind = any(placed.get(n) for n in dim[place + 1 :])
            return axes, not behind
    return axes, True


def pieces(axes: Sequence[str], sizes: Mapping[str, int]) -> int:
    """Return the number of parts that the axes cut a dim into."""
    n = 1
    for axis in axes:
        n *= sizes[axis]
    return n
