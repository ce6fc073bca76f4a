"""Factors: the loop dims of an op, and how the dims of its operands and results are made of them.

A `Rule` is all that propagation and partitioning know of an op. Each dim of a tensor is a row of factors, major first:
one for most ops, several where a reshape splits or merges dims. Axes are placed on factors; `spread` reads the axes of
a dim as axes of its factors, `join` is the way back. Both hold only while the digits keep their order: a minor factor
may be sharded in a merged dim only when the factors before it are wholly sharded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Axes = tuple[str, ...]
PARALLEL, REDUCTION, WHOLE = "parallel", "reduction", "whole"
NEUTRAL_FREE = ("max", "min")
"""Reductions in which counting the initial value once per rank changes nothing."""


@dataclass(frozen=True)
class Factor:
    """A loop dim of an op: its extent, and whether it is parallel, reduced, or must be whole on a rank."""

    size: int
    kind: str = PARALLEL


Dims = tuple[tuple[int, ...], ...]
"""For each dim of a tensor the numbers of its factors, major first; () for a dim of extent 1 that has none."""


@dataclass(frozen=True)
class Rule:
    """How the dims of an op's tensors map to its factors.

    operands, results: a Dims for each ranked tensor, None for anything else (scalars, tokens).
    sizes:             for each operand, then each result, the extents of its dims (None where Dims is None).
    nbytes:            for each operand, then each result, the bytes of the whole tensor.
    reduction:         what a REDUCTION factor combines with; None: unknown, such a factor must stay whole.
    inits:             for each result the operand that holds its initial value, or None.
    padding_safe:      may the op run on padding, whose content is undefined? Division by integers and reads at computed
                       places may not.
    monomials:         the products of operands that the result is a sum of, as sets of operands; (): it is no such sum.
    held:              axes that a factor must be cut along where that can be, whatever it costs.
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
    name: str = ""
    tensors: tuple[Dims | None, ...] = field(init=False, repr=False)
    passes_through: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", self.operands + self.results)
        through = all(f.kind != REDUCTION for f in self.factors)
        object.__setattr__(self, "passes_through", through)


def spread(
    axes: Axes, dim: tuple[int, ...], rule: Rule, sizes: Mapping[str, int]
) -> dict[int, Axes]:
    """The axes of each factor of `dim`, read from the axes of the dim, major first.

    Axes that fall across a factor's boundary, and all after them, belong to no factor: they are left out.
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


def join(
    placed: Mapping[int, Axes], dim: tuple[int, ...], rule: Rule, sizes: Mapping[str, int]
) -> tuple[Axes, bool]:
    """The axes of a dim from those of its factors, and whether they are all there.

    They are not when a sharded factor stands behind one that is not wholly sharded, or when an axis does not divide a
    factor that shares its dim with others.
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
    """How many parts the axes cut a dim into."""
    n = 1
    for axis in axes:
        n *= sizes[axis]
    return n
