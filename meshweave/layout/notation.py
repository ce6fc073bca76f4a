"""Read, print and canonicalise the pieces of layout text: factors and partials.

layout := "[" dim ("," dim)* "]" partial* order? uneven?         scalar: "[]"
dim    := factor ("*" factor)*                                   major factor first
factor := "_" | NAME | NAME ":(" m ")" k | INT | NAME "{" INT,... "}" | "_{" STEP, LOW, SIZE "}"
partial:= "+" KIND "(" NAME,... ")"                              KIND: sum, max, min, prod, avg
order  := "order(" REF,... ")"                                   REF: d or d.k
uneven := "uneven(nested)"
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from meshweave.errors import LayoutError

KINDS = ("sum", "max", "min", "prod", "avg")
UNEVEN = ("flat", "nested")
T = TypeVar("T")


_MAX_DIGITS = 18  # an extent fits 64 bits
_TOO_LARGE = 10**_MAX_DIGITS


@dataclass(frozen=True)
class AxisFactor:
    """Use a mesh or time axis as a factor of a dim.

    sub:     (m, k): the k in the middle of name = m * k * rest; None for the whole axis.
    extents: irregular sharding: the number of indices each coordinate holds; None when all hold the same.
    """

    name: str
    sub: tuple[int, int] | None = None
    extents: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name == "_":
            raise LayoutError(f"{self.name!r} is not the name of an axis")
        if self.sub is not None and (self.sub[0] < 1 or self.sub[1] < 2):
            raise LayoutError(f"sub-axis {self.ref}: m is at least 1 and k at least 2")
        if self.sub is not None and max(self.sub) >= _TOO_LARGE:
            raise LayoutError(f"sub-axis {self.ref}: m and k have at most {_MAX_DIGITS} digits")
        if self.extents is not None and (not self.extents or min(self.extents) < 0):
            raise LayoutError(
                f"irregular factor {self}: it lists one extent, at least 0, per coordinate"
            )

    @property
    def ref(self) -> str:
        """Return its name as Mesh takes it: `x` or `x:(m)k`."""
        return self.name if self.sub is None else f"{self.name}:({self.sub[0]}){self.sub[1]}"

    def __str__(self) -> str:
        if self.extents is None:
            return self.ref
        return self.ref + "{" + ",".join(map(str, self.extents)) + "}"


@dataclass(frozen=True)
class LocalFactor:
    """Use a factor on the rank itself. extent None is `_`: what the other factors leave of the dim.

    window: (step, low): coordinate c of the axes before it, taken together, holds the `extent` indices from
            step * c + low on. Those outside of the dim are padding; windows may overlap, and leave indices out.
    """

    extent: int | None
    window: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.extent is not None and self.extent < 1:
            raise LayoutError(f"a local factor is at least 1, got {self.extent}")
        if self.extent is not None and self.extent >= _TOO_LARGE:
            raise LayoutError(
                f"a local factor has at most {_MAX_DIGITS} digits, all in a row together, got {self.extent}"
            )
        if self.window is not None and (self.extent is None or self.window[0] < 0):
            raise LayoutError(f"window {self}: it has a step, at least 0, a first index and a size")

    def __str__(self) -> str:
        if self.window is not None:
            return f"_{{{self.window[0]},{self.window[1]},{self.extent}}}"
        return "_" if self.extent is None else str(self.extent)


Factor = AxisFactor | LocalFactor
REST = LocalFactor(None)


def is_window(factor: Factor) -> bool:
    """Tell whether a factor is a window."""
    return isinstance(factor, LocalFactor) and factor.window is not None


@dataclass(frozen=True)
class Partial:
    """Leave a reduction over `axes` pending: each rank along them holds one operand of it."""

    kind: str
    axes: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise LayoutError(f"unknown reduction {self.kind!r}, there are {', '.join(KINDS)}")
        if not self.axes:
            raise LayoutError(f"partial +{self.kind}() names no axis")
        object.__setattr__(self, "axes", tuple(sorted(self.axes)))

    def __str__(self) -> str:
        return f"+{self.kind}({', '.join(self.axes)})"


def axis_factors(factors: Sequence[Factor]) -> Iterator[AxisFactor]:
    """Return the factors of a dim that are mesh or time axes, major first."""
    return (factor for factor in factors if isinstance(factor, AxisFactor))


# Canonical form

Pieces = tuple[
    tuple[tuple[Factor, ...], ...],
    tuple[Partial, ...],
    tuple[tuple[int, int], ...] | None,
    str,
]


def canonical(
    dims: Sequence[Sequence[Factor]],
    partial: Sequence[Partial],
    order: Sequence[tuple[int, int]] | None,
    uneven: str,
) -> Pieces:
    """Return the pieces in the form in which equal layouts are equal. Raises LayoutError where they contradict."""
    if uneven not in UNEVEN:
        raise LayoutError(f"uneven({uneven}): there are {' and '.join(UNEVEN)}")
    full = [_with_rest(tuple(factors), dim) for dim, factors in enumerate(dims)]
    places = _canonical_order(order, full)
    merged = tuple(_merged(factors, keep_locals=places is not None) for factors in full)
    pending = _merged_partials(partial)
    _check_axes(merged, [axis for p in pending for axis in p.axes])
    if all(len(list(axis_factors(factors))) < 2 for factors in merged):
        uneven = "flat"
    return merged, pending, places, uneven


def _with_rest(factors: tuple[Factor, ...], dim: int) -> tuple[Factor, ...]:
    """Add `_` as the minor-most factor when there is none."""
    rests = sum(f == REST or is_window(f) for f in factors)
    if rests > 1:
        raise LayoutError(f"dim {dim} has {rests} factors _, at most one can be what is left")
    return factors if rests else (*factors, REST)


def _merged(factors: tuple[Factor, ...], keep_locals: bool) -> tuple[Factor, ...]:
    """Merge neighbours that form one factor: sub-axes, and local extents that no order tells apart."""
    done: list[Factor] = []
    for factor in factors:
        if not keep_locals and factor == LocalFactor(1):
            continue
        one = _one(done[-1], factor, keep_locals) if done else None
        if one is not None:
            done.pop()
        done.append(one or factor)
    return tuple(done)


def _one(major: Factor, minor: Factor, keep_locals: bool) -> Factor | None:
    """Return the single factor that two neighbours form, or None."""
    if isinstance(major, LocalFactor) and isinstance(minor, LocalFactor):
        if is_window(major) or is_window(minor):
            return None
        if keep_locals or major.extent is None or minor.extent is None:
            return None
        return LocalFactor(major.extent * minor.extent)
    if isinstance(major, AxisFactor) and isinstance(minor, AxisFactor):
        plain = major.extents is None and minor.extents is None
        if plain and major.name == minor.name and major.sub and minor.sub:
            (m, k), (inner_m, inner_k) = major.sub, minor.sub
            return AxisFactor(major.name, (m, k * inner_k)) if m * k == inner_m else None
    return None


def _merged_partials(partials: Sequence[Partial]) -> tuple[Partial, ...]:
    """Merge neighbours of one kind: reductions of one kind may be done in any order."""
    done: list[Partial] = []
    for partial in partials:
        if done and done[-1].kind == partial.kind:
            partial = Partial(partial.kind, done.pop().axes + partial.axes)
        done.append(partial)
    return tuple(done)


def _local_places(dims: Sequence[tuple[Factor, ...]]) -> list[tuple[int, int]]:
    """Return (dim, k) of every local factor, in default memory order."""
    return [
        (dim, k)
        for dim, factors in enumerate(dims)
        for k in range(sum(isinstance(factor, LocalFactor) for factor in factors))
    ]


def _canonical_order(
    order: Sequence[tuple[int, int]] | None, dims: Sequence[tuple[Factor, ...]]
) -> tuple[tuple[int, int], ...] | None:
    """Expand an order over (dim, k), where k == -1 means all local factors of dim; None when it is the default."""
    if order is None:
        return None
    default = _local_places(dims)
    expanded: list[tuple[int, int]] = []
    for dim, k in order:
        expanded += [(dim, k)] if k >= 0 else [place for place in default if place[0] == dim]
    if sorted(expanded) != default:
        given = ", ".join(f"{d}.{k}" if k >= 0 else str(d) for d, k in order)
        needed = ", ".join(f"{d}.{k}" for d, k in default)
        raise LayoutError(f"order({given}) must name every local factor once: {needed}")
    return None if expanded == default else tuple(expanded)


def _check_axes(dims: Sequence[tuple[Factor, ...]], partial_axes: Sequence[str]) -> None:
    """Check that each axis is used once, sub-axes do not overlap, irregular factors and windows stand where they may.

    Raises LayoutError otherwise.
    """
    seen: dict[str, list[tuple[int, int] | None]] = {}
    for dim, factors in enumerate(dims):
        plain = all(isinstance(f, AxisFactor) and f.extents is None for f in factors[:-1])
        if any(map(is_window, factors)) and not (plain and is_window(factors[-1])):
            raise LayoutError(f"the window of dim {dim} must stand behind axes alone")
        for factor in axis_factors(factors):
            if factor.extents is not None and factors != (factor, REST):
                raise LayoutError(f"{factor} must be the only factor of dim {dim}")
            seen.setdefault(factor.name, []).append(factor.sub)
    for name in partial_axes:
        seen.setdefault(name, []).append(None)
    for name, parts in seen.items():
        for at, part in enumerate(parts):
            if any(_overlap(part, other) for other in parts[:at]):
                raise LayoutError(f"axis {name} is used twice")


def _overlap(one: tuple[int, int] | None, other: tuple[int, int] | None) -> bool:
    if one is None or other is None:
        return True
    return one[0] < other[0] * other[1] and other[0] < one[0] * one[1]


# Text


def print_pieces(
    dims: Sequence[tuple[Factor, ...]],
    partial: Sequence[Partial],
    order: Sequence[tuple[int, int]] | None,
    uneven: str,
) -> str:
    """Return the text of canonical pieces."""
    words = ["[" + ", ".join(map(_print_dim, dims)) + "]"]
    words += map(str, partial)
    if order is not None:
        words.append(f"order({', '.join(_print_order(order, dims))})")
    if uneven != "flat":
        words.append(f"uneven({uneven})")
    return " ".join(words)


def _print_dim(factors: tuple[Factor, ...]) -> str:
    shown = factors
    if (
        len(factors) > 1
        and factors[-1] == REST
        and len(list(axis_factors(factors))) == len(factors) - 1
    ):
        shown = factors[:-1]
    return "*".join(map(str, shown))


def _print_order(
    order: Sequence[tuple[int, int]], dims: Sequence[tuple[Factor, ...]]
) -> Iterator[str]:
    """Yield `d` where all local factors of d come together in their order, else `d.k`."""
    at = 0
    while at < len(order):
        dim, k = order[at]
        every = [place for place in _local_places(dims) if place[0] == dim]
        if list(order[at : at + len(every)]) == every:
            yield str(dim)
            at += len(every)
        else:
            yield f"{dim}.{k}"
            at += 1


_TOKEN = re.compile(r"\s*(?:([^\W\d]\w*)|(\d+)|(\S))")


def parse_pieces(text: str) -> Pieces:
    """Parse the pieces of a Layout. Raises LayoutError with the column and what was expected there."""
    return _Reader(text).layout()


class _Reader:
    """Read layout text from left to right; `word` is the next token, "" at the end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.word = ""
        self.start = 0
        self.advance()

    def advance(self) -> str:
        word, match = self.word, _TOKEN.match(self.text, self.at)
        self.word = match[0].strip() if match else ""
        self.at = match.end() if match else len(self.text)
        self.start = self.at - len(self.word)
        return word

    def fail(self, expected: str) -> LayoutError:
        found = f'"{self.word}"' if self.word else "the end"
        return LayoutError(
            f'layout "{self.text}": expected {expected} at column {self.start + 1}, found {found}'
        )

    def take(self, *words: str) -> str:
        if self.word not in words:
            raise self.fail(" or ".join(f'"{word}"' for word in words))
        return self.advance()

    def name(self, what: str = "a name") -> str:
        if not self.word.isidentifier() or self.word == "_":
            raise self.fail(what)
        return self.advance()

    def number(self) -> int:
        if not (self.word.isascii() and self.word.isdigit() and len(self.word) <= _MAX_DIGITS):
            raise self.fail("a number")
        return int(self.advance())

    def listed(self, read: Callable[[], T], end: str) -> list[T]:
        found = [read()]
        while self.take(",", end) == ",":
            found.append(read())
        return found

    def layout(self) -> Pieces:
        partials: list[Partial] = []
        order: list[tuple[int, int]] | None = None
        uneven = "flat"
        try:
            self.take("[")
            dims = self.listed(self.dim, "]") if self.word != "]" else []
            if not dims:
                self.advance()
            while self.word == "+":
                partials.append(self.partial())
            if self.word == "order":
                order = self.order()
            if self.word == "uneven":
                self.advance()
                self.take("(")
                uneven = self.take(*UNEVEN)
                self.take(")")
            if self.word:
                raise self.fail('"+", "order", "uneven" or the end')
            return canonical(dims, partials, order, uneven)
        except LayoutError as error:
            if error.message.startswith("layout "):
                raise
            raise LayoutError(f'layout "{self.text}": {error.message}') from None

    def dim(self) -> tuple[Factor, ...]:
        factors = [self.factor()]
        while self.word == "*":
            self.advance()
            factors.append(self.factor())
        return tuple(factors)

    def factor(self) -> Factor:
        if self.word == "_":
            self.advance()
            return self.window() if self.word == "{" else REST
        if self.word.isdigit():
            return LocalFactor(self.number())
        name = self.name("a factor: _, an axis or a number")
        sub = extents = None
        if self.word == ":":
            self.advance()
            self.take("(")
            major = self.number()
            self.take(")")
            sub = (major, self.number())
        if self.word == "{":
            self.advance()
            extents = tuple(self.listed(self.number, "}"))
        return AxisFactor(name, sub, extents)

    def window(self) -> Factor:
        self.take("{")
        step = self.number()
        self.take(",")
        sign = -1 if self.word == "-" else 1
        if sign < 0:
            self.advance()
        low = sign * self.number()
        self.take(",")
        size = self.number()
        self.take("}")
        return LocalFactor(size, (step, low))

    def partial(self) -> Partial:
        self.take("+")
        kind = self.take(*KINDS)
        self.take("(")
        return Partial(kind, tuple(self.listed(lambda: self.name("an axis"), ")")))

    def order(self) -> list[tuple[int, int]]:
        self.take("order")
        self.take("(")
        return self.listed(self.reference, ")")

    def reference(self) -> tuple[int, int]:
        dim = self.number()
        if self.word != ".":
            return dim, -1
        self.advance()
        return dim, self.number()
