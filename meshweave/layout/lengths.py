"""Name sizes that are known only when a program is called: dims with a bound, and what is computed from them.

A program for such a dim is traced for the bound and for a few other sizes; a number of it that is a·n + b in all of
them is so for every n. What is no such number is refused where it stands.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations_with_replacement, count, islice
from math import prod
from typing import Any, TypeAlias

from meshweave.errors import UsageError

Sizes: TypeAlias = Mapping[str, int]
"""The size of each dim, by name."""
SizesOfDim: TypeAlias = "tuple[str | int | Formula, ...]"
"""What the size of a dim is a product of: names of sizes that calls choose, numbers, and sums of these."""
SMALL = 5  # the least prime that programs are traced for, where bounds have room


@dataclass(frozen=True)
class Dim:
    """Name a size that each call of a program may choose.

    name: what errors call it. max: the largest that a call may choose. min: the least; `x[:4]` is there for all sizes
    from 4 on. Raises UsageError for others.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> n = mw.Dim("n", max=8)
    >>> program = mw.jit(lambda x: mw.mean(x, axis=0)).lower(mw.ShapeDtype((n, 2), "f32")).compile()
    >>> [float(program(np.ones((rows, 2), np.float32))[0]) for rows in (1, 5, 8)]
    [1.0, 1.0, 1.0]
    """

    name: str
    max: int
    min: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z_]\w*", self.name, re.ASCII):
            raise UsageError(f"Dim: name {self.name!r:.40}: an identifier is right")
        if isinstance(self.max, bool) or not isinstance(self.max, int) or self.max < 1:
            raise UsageError(f"Dim {self.name}: max={self.max!r:.40}, a number from 1 on is right")
        if isinstance(self.min, bool) or self.min not in range(1, self.max + 1):
            raise UsageError(
                f"Dim {self.name}: min={self.min!r:.40}, a number from 1 to {self.max} is right"
            )

    @property
    def sizes(self) -> range:
        """Return the sizes that a call may choose."""
        return range(self.min, self.max + 1)

    def __repr__(self) -> str:
        least = f", min={self.min}" if self.min != 1 else ""
        return f"Dim({self.name!r}, max={self.max}{least})"


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
    """Hold const + a sum of terms: products of sizes, as names in order, each with a factor that is not zero.

    >>> str(Formula(-1, ((("b", "n"), 4),)))
    '4*b*n - 1'
    """

    const: int
    terms: tuple[tuple[tuple[str, ...], int], ...] = ()

    @classmethod
    def product(cls, factor: int, names: Sequence[str]) -> Formula:
        """Return a number times sizes."""
        return cls(0, ((tuple(sorted(names)), factor),)) if names else cls(factor)

    @property
    def dim(self) -> str | None:
        """Return the name of the dim whose size this is, None for anything else."""
        names, factor = self.terms[0] if self.is_product else ((), 0)
        return names[0] if factor == len(names) == 1 else None

    @property
    def is_product(self) -> bool:
        """Tell whether this is a number times one size or several."""
        return not self.const and len(self.terms) == 1

    def is_sum(self, dims: Sequence[Dim]) -> bool:
        """Tell whether this is a sum of multiples of sizes, and a number, which is never less than 0."""
        rising = all(len(names) == 1 and factor > 0 for names, factor in self.terms)
        return bool(self.terms) and rising and self.least(dims) >= 0

    @classmethod
    def parse(cls, text: str) -> Formula:
        """Read what `str` gives. Raises ValueError for other text.

        >>> Formula.parse("4*b*n - 1") == Formula(-1, ((("b", "n"), 4),))
        True
        """
        found = Formula(0)
        for part in text.replace(" - ", " + -").split(" + "):
            words = part.removeprefix("-").split("*")
            factor = int(words.pop(0)) if words[0].isdigit() else 1
            if not all(word.isidentifier() for word in words):
                raise ValueError(f"{text!r:.60} is no formula")
            found = found.plus(cls.product(-factor if part.startswith("-") else factor, words))
        return found

    def least(self, dims: Sequence[Dim]) -> int:
        """Return the least number that sizes within their bounds give, or one that is less still."""
        by_name = {dim.name: dim for dim in dims}
        ends = (
            factor * prod(by_name[n].min if factor > 0 else by_name[n].max for n in names)
            for names, factor in self.terms
        )
        return self.const + sum(ends)

    def plus(self, other: Formula, times: int = 1) -> Formula:
        """Return the sum of this and a number of times another one."""
        terms = dict(self.terms)
        for names, factor in other.terms:
            terms[names] = terms.get(names, 0) + times * factor
        left = tuple(sorted((names, factor) for names, factor in terms.items() if factor))
        return Formula(self.const + times * other.const, left)

    def times(self, other: Formula) -> Formula:
        """Return the product of two."""
        found = Formula(0)
        for names, factor in ((), self.const), *self.terms:
            for more, by in ((), other.const), *other.terms:
                if factor * by:
                    found = found.plus(Formula.product(factor * by, (*names, *more)))
        return found

    def at(self, sizes: Sizes) -> int:
        """Return the number for these sizes."""
        return self.const + sum(
            factor * prod(sizes[name] for name in names) for names, factor in self.terms
        )

    def __str__(self) -> str:
        parts = [
            "*".join((*([] if factor == 1 else [str(factor)]), *names))
            for names, factor in self.terms
        ]
        parts += [str(self.const)] if self.const or not parts else []
        return " + ".join(parts).replace("+ -", "- ")


def large_sizes(dims: Sequence[Dim], fixed: Collection[int]) -> dict[str, int]:
    """Return a size of each dim to trace a program for, the last that are right before the bounds.

    They are different primes that divide none of the sizes `fixed`, and so none that reshapes make of these: where two
    tensors had one shape by chance, a program would have another form.
    """
    found: dict[str, int] = {}
    for dim in sorted(dims, key=lambda one: one.max):
        sizes = range(max(2, dim.min), dim.max + 1)
        few = list(islice(_primes(sizes, fixed, found.values()), 3))
        within = reversed(sizes) if len(few) == 3 else ()  # two are left for `probes`
        beyond = count(max(SMALL, dim.min))
        found[dim.name] = next(_primes(chain(within, beyond), fixed, found.values()))
    return {dim.name: found[dim.name] for dim in dims}


def probes(dims: Sequence[Dim], large: Sizes, fixed: Collection[int]) -> list[dict[str, int]]:
    """Return the sizes to trace for: `large` ones; then a small one of each dim; then other small ones of all.

    The small ones are such primes too, and sizes that calls may choose, as far as there are enough; those come first to
    which no small number is added to make one of `fixed`.
    """
    taken = set(large.values())
    near = {n + k for n in fixed for k in (-2, -1, 1, 2)}

    def small(dim: Dim) -> int:
        within = [p for p in (*range(SMALL, dim.max + 1), 3, 2) if p in dim.sizes]
        apart = [p for p in within if p not in near]
        found = next(_primes(chain(apart, within, count(max(SMALL, dim.min))), fixed, taken))
        taken.add(found)
        return found

    return [
        dict(large),
        *({**large, dim.name: small(dim)} for dim in dims),
        {dim.name: small(dim) for dim in dims},
    ]


def _primes(sizes: Iterable[int], fixed: Collection[int], taken: Collection[int]) -> Iterator[int]:
    """Yield those of `sizes` that are primes, none of those `taken`, and divide none of `fixed`."""
    for p in sizes:
        is_prime = all(p % q for q in range(2, int(p**0.5) + 1))
        if is_prime and p not in taken and all(n % p or not n for n in fixed):
            yield p


def fitted(sizes: Sequence[Sizes], numbers: Sequence[int]) -> Formula | None:
    """Return the formula that gives these numbers for these `probes`: a sum of sizes, or one product of several.

    Return None where there is none.
    """
    base, terms = sizes[0], []
    for probe, number in zip(sizes[1:-1], numbers[1:]):
        (name,) = [n for n in base if probe[n] != base[n]]
        factor, rest = divmod(numbers[0] - number, base[name] - probe[name])
        if rest:
            return _fitted_product(sizes, numbers)
        terms += [((name,), factor)] if factor else []
    const = numbers[0] - sum(factor * base[name] for (name,), factor in terms)
    found = Formula(const, tuple(sorted(terms)))
    whole = all(found.at(s) == n for s, n in zip(sizes, numbers))
    return found if whole else _fitted_product(sizes, numbers)


def _fitted_product(sizes: Sequence[Sizes], numbers: Sequence[int]) -> Formula | None:
    """Return a multiple of a product of sizes, and a number, that give these for `probes`; None where there is none."""
    for names in _products(list(sizes[0])):
        one, other = (prod(s[name] for name in names) for s in sizes[-2:])
        factor, rest = divmod(numbers[-2] - numbers[-1], one - other) if one != other else (0, 0)
        const = numbers[-1] - factor * other
        found = Formula(const, ((names, factor),))
        if factor and not rest and all(found.at(s) == n for s, n in zip(sizes, numbers)):
            return found
    return None


def _products(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield products of up to three sizes, each at most twice, as names in order."""
    for many in (2, 3):
        for found in combinations_with_replacement(sorted(names), many):
            if max(map(found.count, found)) < 3:
                yield found
