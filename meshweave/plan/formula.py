"""Express whole numbers as formulas in the symbols of a mesh: `4*ceil(16/N)*(N - 1)`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from meshweave.errors import PlanError


@dataclass(frozen=True)
class Formula:
    """Hold an expression over sizes: a number, a symbol, or an op of other formulas.

    op: "number", "symbol", "*", "+", "-" (of two), "ceil" (the first divided by the second, rounded up) or "max". Made
    by `number`, `symbol` and the functions below, which fold what is known.
    """

    op: str
    parts: tuple["Formula", ...] = ()
    value: int = 0
    name: str = ""

    def at(self, sizes: Mapping[str, int]) -> int:
        """Evaluate for these sizes. Raises PlanError when a symbol has none."""
        if self.op == "number":
            return self.value
        if self.op == "symbol":
            if self.name not in sizes:
                raise PlanError(f'the formula {self} needs a number for "{self.name}"')
            return sizes[self.name]
        values = [part.at(sizes) for part in self.parts]
        if self.op == "*":
            return prod(values)
        if self.op == "+":
            return sum(values)
        if self.op == "-":
            return values[0] - values[1]
        return -(-values[0] // values[1]) if self.op == "ceil" else max(values)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Return the symbols in it, sorted by name."""
        if self.op == "symbol":
            return (self.name,)
        return tuple(sorted({name for part in self.parts for name in part.symbols}))

    def __str__(self) -> str:
        if self.op in ("number", "symbol"):
            return self.name or str(self.value)
        if self.op == "ceil":
            return f"ceil({_below(self.parts[0])}/{_below(self.parts[1])})"
        if self.op == "max":
            return f"max({', '.join(map(str, self.parts))})"
        if self.op == "*":
            return "*".join(map(_inner, self.parts))
        texts = [str(self.parts[0]), *map(_inner, self.parts[1:])]
        return f" {self.op} ".join(texts)


def _inner(part: Formula) -> str:
    return f"({part})" if part.op in ("+", "-") else str(part)


def _below(part: Formula) -> str:
    return f"({part})" if part.op in ("+", "-", "*") else str(part)


def number(value: int) -> Formula:
    """Make the formula of a known number."""
    return Formula("number", value=value)


def size(value: "int | str") -> Formula:
    """Make the formula of the size of an axis: a number or a symbol."""
    return number(value) if isinstance(value, int) else Formula("symbol", name=value)


def product(parts: Iterable[Formula]) -> Formula:
    """Multiply formulas; known numbers become one factor, which comes first."""
    flat = [p for part in parts for p in (part.parts if part.op == "*" else (part,))]
    known = prod(p.value for p in flat if p.op == "number")
    rest = tuple(p for p in flat if p.op != "number")
    if known == 0 or not rest:
        return number(known)
    every = rest if known == 1 else (number(known), *rest)
    return every[0] if len(every) == 1 else Formula("*", every)


def total(parts: Iterable[Formula]) -> Formula:
    """Sum formulas; collect like terms, the constant last."""
    flat = [p for part in parts for p in (part.parts if part.op == "+" else (part,))]
    known = sum(p.value for p in flat if p.op == "number")
    counts: dict[Formula, int] = {}
    for part in flat:
        if part.op != "number":
            counts[part] = counts.get(part, 0) + 1
    every = tuple(product([number(n), part]) for part, n in counts.items())
    if known or not every:
        every = (*every, number(known))
    return every[0] if len(every) == 1 else Formula("+", every)


def minus(one: Formula, other: Formula) -> Formula:
    """Subtract `other` from `one`."""
    if one.op == other.op == "number":
        return number(one.value - other.value)
    return one if other == number(0) else Formula("-", (one, other))


def ceil_div(one: Formula, other: Formula) -> Formula:
    """Divide one by other, rounding up."""
    if one.op == other.op == "number":
        return number(-(-one.value // other.value))
    if one.op == "ceil":  # rounding up twice is rounding up once
        return ceil_div(one.parts[0], product([one.parts[1], other]))
    return one if other == number(1) or one == number(0) else Formula("ceil", (one, other))


def largest(parts: Iterable[Formula]) -> Formula:
    """Take the maximum of formulas; equal ones are listed once, and only the largest known number is kept."""
    every = dict.fromkeys(
        p for part in parts for p in (part.parts if part.op == "max" else (part,))
    )
    known = [part.value for part in every if part.op == "number"]
    rest = [part for part in every if part.op != "number"]
    if known and (max(known) > 0 or not rest):
        rest.append(number(max(known)))
    return rest[0] if len(rest) == 1 else Formula("max", tuple(rest))
