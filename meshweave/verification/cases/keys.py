"""Number values so that equal sums of products have one number, whatever the order in which they are computed.

    (a[i] + b[i]) * 2 + c[i]    =    c[i] + (2 * b[i] + 2 * a[i])    =    2 * sum_{k < 2} d[i, k] + c[i]

where d[i, 0] is a[i] and d[i, 1] is b[i]: reductions of few elements are written out. The numbers hold in one case
only. Nothing is taken off itself, and nothing divided by itself: that is only right of numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from fractions import Fraction
from itertools import permutations, product
from math import factorial, isfinite, prod

from meshweave.verification.cases.resolve import Resolver
from meshweave.verification.terms.arith import is_integer, is_real, kind_of
from meshweave.verification.terms.indices import Atom, Expr, Var, inside, of_var
from meshweave.verification.terms.terms import (
    Guard,
    Node,
    Term,
    apart,
    dims_values,
    opened,
)

MOST_WRITTEN = 128
"""Elements of a reduction that are written out."""
MOST_SUMMANDS = 512
"""Products that are added up, beyond which a product of sums stays one."""
MOST_ORDERS = 24
"""Orders of the variables of a reduction that are tried to find its number."""
PRODUCTS_PER_STEP = 8
"""Products that are multiplied, or added up, in the time of a step."""
_IDEMPOTENT = ("max", "min", "maxu", "minu", "or", "and")
_SCALAR = ("arith.", "math.", "complex.")
_SIGNS = {"arith.addf": 1, "arith.addi": 1, "arith.subf": -1, "arith.subi": -1}

Product = frozenset[tuple[int, str, int]]
"""Numbers of values, each with "+", "-" or "0" for what it is raised to, and how often: nothing cancels."""
Number = int | Fraction
"""A number that is exact; whole ones are integers, which take a tenth of the time."""
Sum = dict[Product, Number]
"""How often each product is added."""
_ONE: Product = frozenset()
_NOTHING_ELSE: Sum = {_ONE: 1}


class Keys:
    """Number values.

    divided: places that are divided, which may hide that values are the same. written: elements of a reduction that is
    written out at most.
    """

    def __init__(
        self, resolver: Resolver, valid: Sequence[Guard], written: int = MOST_WRITTEN
    ) -> None:
        self.terms, self.resolver = resolver.terms, resolver
        self.divided: set[Atom] = set()
        self._written = written
        self._valid = {g for guard in valid for g in (guard, *apart(guard))}
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[Term, int] = {}
        self._sums: dict[Term, Sum] = {}
        self._depth = 0  # reductions around

    def of(self, view: Term) -> int:
        """Return the number of a value. Raises LimitError where it takes too many steps."""
        found = self._known.get(view)
        if found is None:
            self.resolver.count()
            found = self._known[view] = self._numbered(view)
        return found

    def _number(self, form: Hashable) -> int:
        return self._numbers.setdefault(form, len(self._numbers))

    def _numbered(self, view: Term) -> int:
        """Return the number of a value, by what it is made of."""
        node = self.terms.nodes[view.node]
        if not self._is_plain(view) or not _is_sum(node):
            form = self._form(view, node)
            return form if isinstance(form, int) else self._number(form)
        made = self._sum(view)
        if len(made) == 1:
            ((factors, count),) = made.items()
            if count == 1 and len(factors) == 1:
                ((number, sign, times),) = factors
                if (sign, times) == ("+", 1):
                    return number
        return self._number((node.type, frozenset(made.items())))

    def _is_plain(self, view: Term) -> bool:
        ends = zip(view.exprs, self.terms.sizes[view.node], view.fills)
        filled = any(f is not None and n is not None and not inside(e, n) for e, n, f in ends)
        return not filled and all(map(self._holds, view.guards))

    def _holds(self, guard: Guard) -> bool:
        expr, size = guard
        return inside(expr, size) or any(e == expr and n <= size for e, n in self._valid)

    def _form(self, view: Term, node: Node) -> Hashable:
        """Return what makes a value what it is, where it is no sum of numbers; its number where it is another value."""
        if not self._is_plain(view):
            return self._leaf(view)
        kind = _kind(node)
        if kind is not None:
            parts = list(self._parts(kind, node.type, view))
            if len(parts) != 1 or parts[0] != view:
                numbers = Counter(map(self.of, parts))
                if kind in _IDEMPOTENT:
                    return (
                        min(numbers) if len(numbers) == 1 else (kind, node.type, frozenset(numbers))
                    )
                return kind, node.type, frozenset(numbers.items())
        if node.reads and node.op.startswith(_SCALAR):
            return node.op, node.detail, node.type, tuple(map(self.of, self._reads(node, view)))
        return self._leaf(view)

    def _leaf(self, view: Term) -> Hashable:
        whole = self._reduction(view)
        if whole is not None:
            return whole
        for expr in view.exprs:
            self.divided.update(a for a, _ in expr.terms if not isinstance(a, Var))
        ends = zip(view.exprs, self.terms.sizes[view.node], view.fills)
        fills = [f if n is not None and not inside(e, n) else None for e, n, f in ends]
        guards = [g for g in view.guards if not self._holds(g)]
        return "leaf", view.node, view.exprs, tuple(fills), tuple(guards)

    def _reduction(self, view: Term) -> Hashable | None:
        """Return what a reduction of many elements is: the least number that its body has, whatever is called what.

        None for anything else, and where the variables that it is over have too many orders.
        """
        node = self.terms.nodes[view.node]
        if node.op != "reduce" or not self._is_plain(view):
            return None
        body, inner = opened(self.terms, view)
        sizes = sorted({v.size for v in inner})
        groups = [[v for v in inner if v.size == n] for n in sizes]
        if prod(factorial(len(g)) for g in groups) > MOST_ORDERS:
            return None
        numbers = []
        for orders in product(*map(permutations, groups)):
            names = [
                (v, of_var(Var("b", f"order{self._depth}.{k}", v.size)))
                for own in orders
                for k, v in enumerate(own)
            ]
            self._depth += 1
            try:
                numbers.append(self.of(self.terms.composed(body, dict(names))))
            finally:
                self._depth -= 1
        return (
            "reduce",
            node.detail[0],
            node.type,
            tuple(sorted([v.size for v in inner])),
            min(numbers),
        )

    def _reads(self, node: Node, view: Term) -> list[Term]:
        places = dims_values(view.exprs)
        return [self.terms.composed(r, places) for r in node.reads]

    def _parts(self, kind: str, type_: str, view: Term) -> Iterator[Term]:
        """Yield what is combined to give a value."""
        node = self.terms.nodes[view.node]
        if not self._is_plain(view) or node.type != type_ or _kind(node) != kind:
            yield view
        elif node.op != "reduce":
            for read in self._reads(node, view):
                yield from self._parts(kind, type_, read)
        elif prod(node.detail[1]) > self._written:
            yield view
        else:
            for element in self._elements(view):
                yield from self._parts(kind, type_, element)

    def _elements(self, view: Term) -> Iterator[Term]:
        """Yield the elements that a reduction is over."""
        body, inner = opened(self.terms, view)
        for places in product(*[range(v.size) for v in inner]):
            self.resolver.count()
            at = {v: Expr(p) for v, p in zip(inner, places)}
            yield self.resolver.view(self.terms.composed(body, at))

    def _sum(self, view: Term) -> Sum:
        """Return the products that are added up to give a number."""
        found = self._sums.get(view)
        if found is None:
            self.resolver.count()
            found = self._sums[view] = self._summed(view)
        return found

    def _summed(self, view: Term) -> Sum:
        node = self.terms.nodes[view.node]
        if not self._is_plain(view) or not _is_sum(node):
            return self._factor(view)
        if node.op == "const":
            value = node.detail[0]
            return {_ONE: _exact(value)} if value else {}
        if node.op == "product":
            return self._multiplied(node, view)
        if node.op == "counted":
            times = node.detail[1]
            return {p: c * times for p, c in self._sum(self._reads(node, view)[0]).items()}
        parts: list[tuple[Term, int]]
        if node.op == "reduce":
            if prod(node.detail[1]) > self._written:
                return self._factor_of(self._number(self._leaf(view)))
            parts = [(element, 1) for element in self._elements(view)]
        else:
            first, *others = self._reads(node, view)
            if not others:  # arith.negf
                return {p: -c for p, c in self._sum(first).items()}
            parts = [(first, 1), (others[0], _SIGNS[node.op])]
        made: Sum = {}
        for part, sign in parts:
            own = self._sum(part)
            self.resolver.count(len(own) // PRODUCTS_PER_STEP)
            for factors, count in own.items():
                made[factors] = made.get(factors, 0) + sign * count
        return made

    def _factor(self, view: Term) -> Sum:
        return self._factor_of(self.of(view))

    def _factor_of(self, number: int) -> Sum:
        return {frozenset([(number, "+", 1)]): 1}

    def _multiplied(self, node: Node, view: Term) -> Sum:
        """Return a product of sums as a sum of products, unless it is too long or may be 0 times infinity."""
        reads = self._reads(node, view)
        made: Sum = {_ONE: 1}
        for read, exponent in zip(reads, node.detail):
            if exponent <= 0:
                sign = "-" if exponent else "0"
                factor: Sum = {frozenset([(self.of(read), sign, max(1, -exponent))]): 1}
                made = self._product(made, factor)
                continue
            own = self._sum(read)
            if not own or len(made) * len(own) ** exponent > MOST_SUMMANDS:
                numbers = Counter(zip(map(self.of, reads), node.detail))
                return self._factor_of(
                    self._number(("product", node.type, frozenset(numbers.items())))
                )
            for _ in range(exponent):
                made = self._product(made, own)
        return made

    def _product(self, a: Sum, b: Sum) -> Sum:
        """Multiply sums. Raises LimitError where it takes too many steps."""
        self.resolver.count(len(a) * len(b) // PRODUCTS_PER_STEP)
        if a == _NOTHING_ELSE:
            return b
        made: Sum = {}
        for one, count in a.items():
            for other, times in b.items():
                factors = _joined(one, other)
                made[factors] = made.get(factors, 0) + count * times
        return made


def _joined(one: Product, other: Product) -> Product:
    """Multiply products: of what both have, the powers are added."""
    powers = {(number, sign): power for number, sign, power in one}
    for number, sign, power in other:
        powers[number, sign] = powers.get((number, sign), 0) + power
    return frozenset([(number, sign, power) for (number, sign), power in powers.items()])


def _exact(value: float) -> Number:
    """Return a number as an integer where it is one."""
    exact = Fraction(value)
    return exact.numerator if exact.denominator == 1 else exact


def _is_sum(node: Node) -> bool:
    """Tell whether a node is a number, a sum of numbers, or a product."""
    if not is_real(node.type) and not is_integer(node.type):
        return False
    if node.op == "const":
        value = node.detail[0]
        return isinstance(value, (int, float)) and isfinite(value)
    if node.op in ("reduce", "counted"):
        return bool(node.detail[0] == "sum")
    return node.op in ("product", "arith.negf", *_SIGNS)


def _kind(node: Node) -> str | None:
    """Return the reduction that a node is, or is a step of."""
    if node.op == "reduce":
        return str(node.detail[0])
    return kind_of(node.op, node.type) if len(node.reads) == 2 else None
