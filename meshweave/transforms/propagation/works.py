"""Read what each op of a graph computes, and which of its tensors are in memory, as far as the lowering is known.

Elementwise ops are computed inside what reads them: by one kernel alone, or by several where that is cheaper than to
store the value; transposes, slices and reshapes are folded into what reads them. Products read and write tensors. What
lies between the two products of an attention that becomes one kernel is nowhere in memory. What is said of values by
`in_memory` is what fuse-kernels does, here on ops that are not cut yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from meshweave.ir.bindings import ir
from meshweave.ir.build import IteratorType, iterator_types
from meshweave.ir.ops import producer
from meshweave.layout.factors import REDUCTION, Rule
from meshweave.plan.placement.prices import LOOPS, NOTHING, PRODUCT, OpWork
from meshweave.transforms.attention.match import FLOATS, MIN_BYTES
from meshweave.transforms.kernels.element_costs import FUNCTION, cost, functions
from meshweave.transforms.kernels.in_memory import (
    COPY,
    MAP,
    stored_for_inside,
    stored_for_product,
    stored_for_repeats,
    stored_for_several,
)
from meshweave.transforms.kernels.kernel_patterns import element_of
from meshweave.transforms.propagation.bodies import body_of
from meshweave.transforms.propagation.graph import Built
from meshweave.transforms.propagation.live import VIEWS
from meshweave.transforms.propagation.values import is_free, item_bytes

_VIEWS = (*VIEWS, "tensor.extract_slice")
_MOST_BETWEEN = 64
"""Ops between the products of an attention, at most."""
_ELEMENTWISE = ("arith.", "math.")
_OTHER = "other"
"""Kind of ops that read and write tensors whatever is around them."""


def op_works(built: Built, ops: Iterable[int] | None = None) -> list[OpWork]:
    """Return what each op of a graph computes, or some of them; of a pass, nothing."""
    reader = _WorkReader(built)
    found = []
    for number in range(len(built.sites)) if ops is None else ops:
        site, rule = built.sites[number], built.graph.rule_of[number]
        values = [op.operands[number] for op, number in site.operands]
        if site.results:
            found.append(reader.work(site.op, built.graph.rules[rule], values, site.results))
        else:
            found.append(OpWork())
    return found


@dataclass
class _WorkReader:
    """Find for the ops of a module what they are.

    inner: values that are within an attention. known: of values that were asked for, whether they are in memory, and
    else the ops whose kernels compute them. readers: the kernels that were found to read a value.
    bodies: of kinds of ops that were asked for, the cost of an iteration of their loops and the functions in it.
    """

    built: Built
    rules: dict[ir.Operation, Rule] = field(init=False)
    inner: set[ir.Value] = field(default_factory=set)
    known: dict[ir.Value, tuple[bool, frozenset[ir.Operation]]] = field(default_factory=dict)
    readers: dict[ir.Value, frozenset[ir.Operation]] = field(default_factory=dict)
    bodies: dict[int, tuple[int, int] | None] = field(default_factory=dict)
    numbers: dict[ir.Operation, int] = field(init=False)
    kinds: dict[ir.Operation, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.built.graph
        sites = [
            (site, rule) for site, rule in zip(self.built.sites, graph.rule_of) if site.results
        ]
        self.rules = {site.op: graph.rules[rule] for site, rule in sites}
        self.numbers = {site.op: site.kind for site, _ in sites}
        products = {rule for rule in {rule for _, rule in sites} if _is_product(graph.rules[rule])}
        for site, rule in sites:
            if rule in products:
                self.inner |= self._between(site.op)

    def work(
        self, op: ir.Operation, rule: Rule, values: list[ir.Value], results: list[ir.Value]
    ) -> OpWork:
        """Return what an op computes."""
        if op.name in _VIEWS:
            return OpWork(NOTHING)
        kernels = self._kernels(op)
        kept = tuple(self._kept(_shown(v)) and self._first(_shown(v), kernels) for v in values)
        kept += tuple(self._kept(v) for v in results)
        far = tuple(_is_far(v) for v in (*values, *results))
        launches = any(self._kept(v) for v in results)
        kind = PRODUCT if _is_product(rule) else LOOPS
        adds, many = self._body(op) or (1, 0)
        if op.name.startswith(_ELEMENTWISE):
            many = int(op.name.startswith("math."))
            adds = FUNCTION * many or 1
        adds -= FUNCTION * many
        if set(results) <= self.inner:
            adds = min(adds, 1)  # rows are divided once, at the end
        reads = len(values)
        return OpWork(kind, _element(op), adds, many, kept, far, reads, launches)

    def _first(self, value: ir.Value, kernels: frozenset[ir.Operation]) -> bool:
        """Tell whether kernels read a value for the first time; what they read again is in the cache."""
        new = kernels - self.readers.get(value, frozenset())
        self.readers[value] = self.readers.get(value, frozenset()) | kernels
        return bool(new)

    def _kept(self, value: ir.Value) -> bool:
        """Tell whether a value is in memory."""
        op = producer(value)
        if op is not None and is_free(op):
            return False
        return self._found(value)[0]

    def _found(self, value: ir.Value) -> tuple[bool, frozenset[ir.Operation]]:
        """Return whether a value is in memory, and the ops whose kernels compute it where it is not."""
        if value not in self.known:
            self.known[value] = True, frozenset()  # while its readers are asked
            self.known[value] = self._decided(value)
        return self.known[value]

    def _decided(self, value: ir.Value) -> tuple[bool, frozenset[ir.Operation]]:
        op = producer(value)
        kind = _OTHER if op is None or op not in self.rules else self._kind(op)
        if value in self.inner:
            return False, frozenset()
        if kind == _OTHER or op is None:
            return True, frozenset()
        exists, kernels = False, frozenset[ir.Operation]()
        price = self._price(op)
        for use in value.uses:
            user = use.owner
            if user not in self.rules:
                exists |= not _is_shown(user)
                continue
            if _is_product(self.rules[user]):
                kernels |= {user}
                exists |= stored_for_product(kind, self._maker(op))
            elif user.operation.parent != op.parent and stored_for_inside(kind, price):
                exists = True
            else:
                kernels |= self._kernels(user)
                exists |= _repeats(kind, price, value, user, self.rules[user])
        return exists or stored_for_several(kind, price, len(kernels)), kernels

    def _kernels(self, user: ir.Operation) -> frozenset[ir.Operation]:
        """Return the ops whose kernels compute what an op makes."""
        found = [self._found(v) for v in user.results]
        inside = frozenset[ir.Operation]().union(*[kernels for _, kernels in found])
        return inside if found and not any(kept for kept, _ in found) else frozenset({user})

    def _maker(self, op: ir.Operation) -> str:
        """Return the kind of what makes the tensor that a chain of copies and views shows."""
        made: ir.Operation | None = op
        while made is not None and made in self.rules and self._kind(made) == COPY:
            made = producer(made.operands[0])
        known = made is not None and made in self.rules
        return self._kind(made) if known and made is not None else _OTHER

    def _kind(self, op: ir.Operation) -> str:
        if op not in self.kinds:
            self.kinds[op] = self._found_kind(op, self.rules[op])
        return self.kinds[op]

    def _found_kind(self, op: ir.Operation, rule: Rule) -> str:
        if op.name in _VIEWS:
            return COPY
        if op.name.startswith(_ELEMENTWISE):
            return MAP
        if not op.name.startswith("linalg."):
            return _OTHER
        if op.name in ("linalg.transpose", "linalg.broadcast"):
            return COPY
        loops = iterator_types(op) if op.name == "linalg.generic" else None
        if loops is not None and any(kind != IteratorType.PARALLEL for kind in loops):
            return _OTHER
        if any(f.kind == REDUCTION for f in rule.factors) or len(op.results) != 1:
            return _OTHER
        return COPY if self._price(op) == 0 else MAP

    def _price(self, op: ir.Operation) -> float:
        if op.name.startswith(_ELEMENTWISE):
            return FUNCTION if op.name.startswith("math.") else 1
        return (self._body(op) or (0, 0))[0]

    def _body(self, op: ir.Operation) -> tuple[int, int] | None:
        """Return the cost of a body, and the functions in it; None where it is no list of scalar ops."""
        kind = self.numbers[op]
        if kind not in self.bodies:
            body = body_of(op)
            self.bodies[kind] = None if body is None else (cost(body), functions(body))
        return self.bodies[kind]

    def _between(self, op: ir.Operation) -> set[ir.Value]:
        """Return what lies between the two products of an attention that ends in a product; nothing where it is none.

        Its left operand is made, in loops over its elements and rows with an exponential among them, of one product
        whose scores are worth a kernel that keeps them in no memory, and nothing else reads what lies between.
        """
        visited, rules = dict[ir.Operation, None](), self.rules
        queue = [producer(op.operands[0])]
        first: list[ir.Operation] = []
        while queue:
            one = queue.pop()
            if one is None or one in visited or one not in rules:
                continue
            visited[one] = None
            if _is_product(rules[one]):
                first.append(one)
            elif one.name.startswith(("linalg.", *_VIEWS)):
                queue += [producer(v) for v in one.operands]
            if len(visited) > _MOST_BETWEEN:
                return set()
        exponentials = [one for one in visited if (self._body(one) or (0, 0))[1]]
        if len(first) != 1 or not exponentials or _element(first[0]) not in FLOATS:
            return set()
        scores = first[0].results[0].type.shape
        if prod(scores[-2:]) * item_bytes(first[0].results[0].type.element_type) <= MIN_BYTES:
            return set()
        last = first[0]
        after = {one for one in visited if one == last or _reads(one, last, visited)}
        inside = {v for one in after for v in one.results}
        outside = [use.owner for v in inside for use in v.uses if use.owner not in (*after, op)]
        return set() if outside else inside


def _shown(value: ir.Value) -> ir.Value:
    """Return the value that a chain of views shows."""
    while (op := producer(value)) is not None and op.name in _VIEWS:
        value = op.operands[0]
    return value


def _is_shown(op: ir.Operation) -> bool:
    """Tell whether an op that is no op of the graph only reads places of a tensor in a region."""
    return op.name in ("tensor.dim", "tensor.extract")


def _is_product(rule: Rule) -> bool:
    """Tell whether an op adds up products of two tensors."""
    return any(len(p) > 1 for p in rule.monomials) and any(
        f.kind == REDUCTION for f in rule.factors
    )


def _repeats(kind: str, price: float, value: ir.Value, user: ir.Operation, rule: Rule) -> bool:
    """Tell whether an op would compute each element of a value repeatedly: the factors of its rule are its loops.

    Bodies are not simplified yet, so that only dear ones are sure to cost more than a few additions.
    """
    if price < FUNCTION:
        return False
    sizes = [factor.size for factor in rule.factors]
    return any(
        stored_for_repeats(kind, price, sizes, {factor for dim in dims for factor in dim})
        for operand, dims in zip(user.operands, rule.operands)
        if operand == value and dims is not None
    )


def _element(op: ir.Operation) -> str:
    try:
        return element_of(op)
    except IndexError:  # no tensor is read or made
        return "f32"


def _is_far(value: ir.Value) -> bool:
    """Tell whether a value was made long before it is read: an argument of a function, a constant."""
    owner = _shown(value).owner
    if isinstance(owner, ir.Block):
        return bool(owner.owner.operation.name == "func.func")
    return bool(owner.name == "arith.constant")


def _reads(op: ir.Operation, made: ir.Operation, among: dict[ir.Operation, None]) -> bool:
    """Tell whether an op reads, over others among some, what another one makes."""
    queue, seen = [op], {op}
    while queue:
        for value in queue.pop().operands:
            one = producer(value)
            if one is None:
                continue
            if one == made:
                return True
            if one in among and one not in seen:
                seen.add(one)
                queue.append(one)
    return False
