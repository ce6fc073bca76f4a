"""Name sizes that are known only when a program is called: dims with a bound, and what is computed from them.

A program for such a dim is traced for the bound and for a few other sizes; a number of it that is a·n + b in all of
them is so for every n. What is no such number is refused where it stands.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

from meshweave.errors import UsageError

Sizes: TypeAlias = Mapping[str, int]
"""The size of each dim, by name."""
STEP = 16  # of the sizes that memory is planned for, where that is not the bound: rows begin at lines of the cache


@dataclass(frozen=True)
class Dim:
    """Name a size that each call of a program may choose.

    name: what errors call it. max: the largest that a call may choose; the least is 1. Raises UsageError for others.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> n = mw.Dim("n", max=8)
    >>> program = mw.jit(lambda x: mw.mean(x, axis=0)).lower(mw.ShapeDtype((n, 2), "f32")).compile()
    >>> [float(program(np.ones((rows, 2), np.float32))[0]) for rows in (1, 5, 8)]
    [1.0, 1.0, 1.0]
    """

    name: str
    max: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z_]\w*", self.name, re.ASCII):
            raise UsageError(f"Dim: name {self.name!r:.40}: an identifier is right")
        if isinstance(self.max, bool) or not isinstance(self.max, int) or self.max < 1:
            raise UsageError(f"Dim {self.name}: max={self.max!r:.40}, a number from 1 on is right")

    def __repr__(self) -> str:
        return f"Dim({self.name!r}, max={self.max})"


@dataclass(frozen=True)
class ShapeDtype:
    """Describe an array to `lower` without its elements.

    shape: numbers and `Dim`s. dtype: `mw.float32`, "f32", or NumPy's. Raises UsageError for other sizes.

    >>> import meshweave as mw
    >>> kind = mw.ShapeDtype((mw.Dim("n", max=8), 2), "f32")
    >>> mw.jit(lambda x: x + x).lower(kind).compile().dims
    (Dim('n', max=8),)
    """

    shape: tuple[int | Dim, ...]
    dtype: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        for size in self.shape:
            if not isinstance(size, Dim) and (isinstance(size, bool) or not isinstance(size, int)):
                raise UsageError(f"ShapeDtype: size {size!r:.40}: a number or a Dim is right")

    def at(self, sizes: Sizes) -> ShapeDtype:
        """Return the same with numbers in the place of dims, whose `sizes` these are."""
        shape = tuple(sizes[s.name] if isinstance(s, Dim) else s for s in self.shape)
        return ShapeDtype(shape, self.dtype)


@dataclass(frozen=True)
class Formula:
    """Hold const + sum of factor * size, over (name, factor) pairs in order of names, without zero factors."""

    const: int
    terms: tuple[tuple[str, int], ...] = ()

    @property
    def dim(self) -> str | None:
        """Return the name of the dim whose size this is, None for anything else."""
        return self.terms[0][0] if not self.const and [f for _, f in self.terms] == [1] else None

    def at(self, sizes: Sizes) -> int:
        """Return the number for these sizes."""
        return self.const + sum(factor * sizes[name] for name, factor in self.terms)

    def __str__(self) -> str:
        parts = [name if factor == 1 else f"{factor}*{name}" for name, factor in self.terms]
        parts += [str(self.const)] if self.const or not parts else []
        return " + ".join(parts).replace("+ -", "- ")


def probes(planned: Sizes, fixed: Collection[int]) -> list[dict[str, int]]:
    """Return the sizes to trace a program for: those planned; then another size of each dim; then others of all.

    The others are different primes that divide none of the sizes `fixed`, and so none that reshapes make of these:
    where two tensors had one shape by chance, a program would have another form.
    """
    primes = (p for p in count(7) if all(p % q for q in range(2, int(p**0.5) + 1)))
    others = (p for p in primes if p not in planned.values() and all(n % p or not n for n in fixed))
    found = [dict(planned)]
    found += [{**planned, name: next(others)} for name in planned]
    found.append({name: next(others) for name in planned})
    return found


def roomier(dims: Sequence[Dim]) -> Iterator[dict[str, int]]:
    """Yield sizes to plan memory for: the bounds, then larger ones, in case a bound is a fixed size too."""
    yield {dim.name: dim.max for dim in dims}
    for step in range(1, 5):
        yield {d.name: (-(-d.max // STEP) + step + k) * STEP for k, d in enumerate(dims)}


def fitted(sizes: Sequence[Sizes], numbers: Sequence[int]) -> Formula | None:
    """Return the formula that gives these numbers for these `probes`; None where there is none."""
    base, terms = sizes[0], []
    for probe, number in zip(sizes[1:-1], numbers[1:]):
        (name,) = [n for n in base if probe[n] != base[n]]
        factor, rest = divmod(numbers[0] - number, base[name] - probe[name])
        if rest:
            return None
        terms += [(name, factor)] if factor else []
    const = numbers[0] - sum(factor * base[name] for name, factor in terms)
    found = Formula(const, tuple(sorted(terms)))
    return found if all(found.at(s) == n for s, n in zip(sizes, numbers)) else None
