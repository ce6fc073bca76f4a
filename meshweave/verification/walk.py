"""Walk a program once and say for each value which term it is.

The same walk reads whole programs and those of one rank: what a rank sees differs by its coordinates, which only
`dist.axis_index` and the collectives read. Loops of few trips are walked trip by trip.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial

import numpy as np

from meshweave.ir.bindings import ir
from meshweave.ir.locations import location_text
from meshweave.ir.ops import body_of, functions_of, terminator
from meshweave.verification.answer import Finding
from meshweave.verification.calls import Forms, ReadCall, with_symbols
from meshweave.verification.reader import AttributeReader
from meshweave.verification.said import ElementShape, NotReadError
from meshweave.verification.terms.indices import Expr, bounds, total
from meshweave.verification.terms.masks import on_places
from meshweave.verification.terms.ranks import Ranks, index_var, places_of
from meshweave.verification.terms.samples import OpenError, Sampler
from meshweave.verification.terms.scalars import apply
from meshweave.verification.terms.terms import LimitError, Node, Term, Terms

Handler = Callable[["ProgramWalk", ir.Operation], Sequence[Term]]
HANDLERS: dict[str, Handler] = {}
"""How to read an op, by its name."""


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register a function that reads ops of these names."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


def no_forms(walk: ProgramWalk, op: ir.Operation) -> Forms:
    """Give no form to what a loop carries."""
    return ()


class TripError(Exception):
    """Say that a loop's body is no function of the number of the trip that can be read once."""


@dataclass
class ProgramWalk:
    """Hold what is known of the values of a program."""

    terms: Terms
    ranks: Ranks
    said: AttributeReader
    once: Callable[[Hashable], bool]
    shortens: bool
    functions: dict[str, ir.Operation] = field(default_factory=dict)
    views: dict[ir.Value, Term] = field(default_factory=dict)
    shapes: dict[ir.Value, ElementShape] = field(default_factory=dict)
    unread: dict[int, Finding] = field(default_factory=dict)
    beyond: list[Finding] = field(default_factory=list)  # slices that may lie beyond an end
    ops: int = 0
    depth: int = 0  # calls and loops around, of those that are read once
    keeps: bool = False  # what is read now may be read once more: see `again`
    known: dict[Hashable, Term] = field(default_factory=dict)
    saved: int = 0  # ops that are not read again
    shortened: bool = False
    forms: Callable[[ProgramWalk, ir.Operation], Forms] = no_forms
    formed: bool = False  # a loop carries what has forms
    rounds: set[tuple[int, str]] = field(default_factory=set)  # see `Terms.rounds`
    spelled: list[ir.Module] = field(default_factory=list)  # what ops stand for, written out
    _read: dict[Hashable, ReadCall] = field(default_factory=dict)
    _last: dict[Hashable, tuple[list[Term], ReadCall]] = field(default_factory=dict)
    _made: dict[ir.Operation, tuple[list[Term], Sequence[Term]]] = field(default_factory=dict)
    _entered: set[Hashable] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        terms: Terms,
        ranks: Ranks,
        said: AttributeReader,
        module: ir.Module,
        once: Callable[[Hashable], bool],
        shortens: bool = True,
    ) -> ProgramWalk:
        """Make the walk of a module.

        once: whether calls, or loops of a kind, are read once. shortens: one trip is read for all of a loop where that
        says what all do; `shortened` tells whether there was one that could be followed.
        """
        return cls(terms, ranks, said, once, shortens, functions_of(module))

    def enter(self, function: ir.Operation, arguments: Sequence[Term]) -> list[Term]:
        """Return what a function makes of its arguments."""
        self.terms.known = self.known
        if self.terms.rounds is not None:
            self.terms.rounds = self.rounds
        block = body_of(function)
        self.views.update(zip(block.arguments, arguments))
        return self.block(block)

    def call(self, name: str, arguments: Sequence[Term]) -> list[Term]:
        """Return what a function makes of its arguments."""
        function = self.functions.get(name)
        if function is None or not len(function.regions[0].blocks):
            raise NotReadError("a call of a function without a body")
        if not self.once("call"):
            return self.enter(function, arguments)
        return self.repeated((name,), lambda given: self.enter(function, given), arguments)

    def repeated(
        self,
        what: tuple[Hashable, ...],
        read: Callable[[list[Term]], list[Term]],
        arguments: Sequence[Term],
    ) -> list[Term]:
        """Return what something that repeats makes of its arguments; read it once for all that lie in the same way."""
        known, _, nodes = self.read_once(what, read, arguments)
        return known.of_nodes(self.terms, nodes)

    def read_once(
        self,
        what: tuple[Hashable, ...],
        read: Callable[[list[Term]], list[Term]],
        arguments: Sequence[Term],
        forms: Forms | None = None,
    ) -> tuple[ReadCall, list[Term], list[int]]:
        """Return what something that repeats makes of symbols, the views of these, and what they stand for.

        what: that, first of all, and what else tells its readings apart. forms: of what a loop carries, see
        `calls.Form`; None for a call.
        """
        given, nodes = with_symbols(self.terms, arguments, self.depth, forms or ())
        last = self._last.get((what, self.depth))  # most lie like the last: that needs no hash
        known = last[1] if last is not None and last[0] == given else None
        if known is None:
            key = what, self.depth, tuple(given)
            known = self._read.get(key)
            if known is None:
                known = self._read[key] = self._one_deeper(what[0], read, given, forms)
                self.saved -= known.ops
            self._last[what, self.depth] = given, known
        self.saved += known.ops
        return known, given, nodes

    def _one_deeper(
        self,
        what: Hashable,
        read: Callable[[list[Term]], list[Term]],
        given: list[Term],
        forms: Forms | None,
    ) -> ReadCall:
        """Return what is made of symbols."""
        before, kept = self.ops, self.keeps
        is_last = forms is None or any(
            forms
        )  # mostly: a call, or a loop whose values stay in their forms
        self.depth += 1
        self.keeps = kept or not is_last or what in self._entered
        self._entered.add(what)
        try:
            made = read(given)
        finally:
            self.depth, self.keeps = self.depth - 1, kept
        return ReadCall.of(self.terms, made, self.depth, self.ops - before)

    def block(self, block: ir.Block) -> list[Term]:
        """Read the ops of a block; return what its last op hands on."""
        for view in block.operations:
            op = view.operation
            name = op.name
            if name in _ENDS:
                return [self.views[v] for v in op.operands]
            self.op(op, name)
        return []

    def op(self, op: ir.Operation, name: str) -> None:
        """Read one op, of that name."""
        self.ops += 1
        self.terms.place = op
        results = list(op.results)
        try:
            if 2 * self.ops > self.terms.most:
                raise LimitError(f"the limit of {self.terms.most // 2} ops, trips of loops counted")
            known, shapes = self.said.shapes, self.shapes
            for result in results:
                type_ = result.type
                kind = shapes[result] = known.get(type_) or self.said.shape(type_)
                if 0 not in kind[0]:
                    made: Sequence[Term]
                    if self.keeps and _is_of_operands(name):
                        made = self.again(op, op.operands, partial(_handler(name), self, op))
                    else:
                        made = _handler(name)(self, op)
                    break
            else:  # tensors without elements only
                made = [self.terms.undefined(self.shape(r)[1]) for r in results]
        except (NotReadError, RecursionError) as error:
            reason = str(error) if isinstance(error, NotReadError) else "terms nested too deep"
            made = [self.unknown(op, reason, r) for r in results]
        if len(results) == 1:
            self.views[results[0]] = made[0]
        else:
            self.views.update(zip(results, made))

    def again(
        self, op: ir.Operation, operands: Iterable[ir.Value], read: Callable[[], Sequence[Term]]
    ) -> Sequence[Term]:
        """Return what an op in a loop or a function makes of its operands, and of nothing else.

        The body of a loop is read until what it carries stays in its form. An op that none of this reaches finds the
        same values as in the reading before, and gives the same. That is kept where there may be another reading.
        """
        given = list(map(self.views.__getitem__, operands))
        last = self._made.get(op)
        if last is not None and last[0] == given:
            return last[1]
        made = read()
        self._made[op] = given, made
        return made

    def unknown(self, op: ir.Operation, reason: str, result: ir.Value) -> Term:
        """Return a value of which nothing is known, and remember why."""
        shape, element = self.shape(result)
        depends = [*self.ranks.all, *[index_var(d, n) for d, n in enumerate(shape)]]
        made = self.terms.unknown(reason, element, depends)
        self.unread[made.node] = Finding(op.name, location_text(op), reason)
        return made

    def check_within(self, op: ir.Operation, offset: Term, last: int, size: int) -> bool:
        """Note a slice that may lie beyond the end of a tensor: a program with one has no meaning, whatever it returns.

        last: how far its last element is from the first. A beginning that is computed from data leaves room.
        """
        if self.terms.nodes[offset.node].op != "iota":
            if not on_places(self.terms, offset.node) or any(e.terms for e in offset.exprs):
                return True
            with suppress(OpenError):
                if 0 <= Sampler(self.terms).element(offset, {}) < size - last:
                    return True
        else:
            low, high = bounds(offset.exprs[0])
            if low >= 0 and high + last < size:
                return True
        self.beyond.append(
            Finding(op.name, location_text(op), "a slice beyond the end of a tensor")
        )
        return False

    def shape(self, value: ir.Value) -> ElementShape:
        """Return the shape of a value, () for a scalar, and its element type as text."""
        found = self.shapes.get(value)
        if found is None:
            type_ = value.type
            found = self.shapes[value] = self.said.shapes.get(type_) or self.said.shape(type_)
        return found

    def type_text(self, type_: ir.Type) -> str:
        """Write a type."""
        return self.said.text(type_)

    def places(self, value: ir.Value) -> tuple[Expr, ...]:
        """Return the index along each dim of a tensor."""
        return places_of(self.shape(value)[0])

    def detail(self, attributes: Sequence[tuple[str, ir.Attribute]]) -> tuple[Hashable, ...]:
        """Return attributes as text, without what says nothing of the value."""
        return self.said.detail(attributes)

    def integer(self, value: ir.Value) -> int | None:
        """Return a number that is known now."""
        view = self.views[value]
        node = self.terms.nodes[view.node]
        if node.op == "iota" and not view.exprs[0].terms and not view.guards:
            return view.exprs[0].const
        known = self.terms.constant_of(view)
        return known if isinstance(known, int) else None

    def place(self, value: ir.Value) -> Expr:
        """Return an index as a place. Raises NotReadError for one that is computed from data."""
        view = self.views[value]
        if self.terms.nodes[view.node].op != "iota" or view.guards:
            raise NotReadError("an offset that is no sum of coordinates and numbers")
        return view.exprs[0]


_ENDS = (
    "func.return",
    "scf.condition",
    "scf.yield",
    "hint.yield",
    "linalg.yield",
    "tensor.yield",
)


@lru_cache(maxsize=1 << 10)
def _handler(name: str) -> Handler:
    """Return what reads ops of a name: that of the name itself, or of its dialect."""
    return HANDLERS.get(name) or HANDLERS.get(f"{name.partition('.')[0]}.", _not_known)


_OF_OPERANDS = (
    *("tensor.collapse_shape", "tensor.concat", "tensor.expand_shape", "tensor.extract"),
    *("tensor.extract_slice", "tensor.insert", "tensor.insert_slice"),
    *("dist.all_gather", "dist.all_reduce", "dist.all_slice", "dist.all_to_all"),
    *("dist.axis_index", "dist.exchange", "dist.permute", "dist.reduce_scatter"),
)
"""Ops without regions, whose results are functions of their operands; so are all scalar ops."""


@lru_cache(maxsize=1 << 10)
def _is_of_operands(name: str) -> bool:
    return name in _OF_OPERANDS or name.startswith(("arith.", "math.", "complex."))


def _not_known(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    raise NotReadError(f"no rule for {op.name}")


@handles("arith.", "math.", "complex.")
def _elementwise(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    if len(op.results) != 1 or len(op.regions):
        raise NotReadError(f"no rule for {op.name}")
    detail = walk.detail(op.attributes.items())
    _, element = walk.shape(op.results[0])
    reads = [walk.views[v] for v in op.operands]
    return [apply(walk.terms, op.name, detail, element, reads)]


@handles("arith.constant")
def _constant(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    attr, known = op.attributes["value"], walk.terms.constants
    found = known.get(attr)
    if found is None:
        (shape, element), value = walk.shape(op.results[0]), _splat(attr)
        is_table = isinstance(value, ir.DenseElementsAttr)
        found = _table(walk, value, shape, element) if is_table else scalar(walk, value, element)
        known[attr] = found
    return [found]


def _splat(value: ir.Attribute) -> ir.Attribute:
    """Return the number that all elements of a constant are, or the constant where they differ."""
    if isinstance(value, ir.DenseElementsAttr) and value.is_splat:
        return value.get_splat_value()
    return value


def scalar(walk: ProgramWalk, value: ir.Attribute, element: str) -> Term:
    """Return a constant number."""
    if not isinstance(value, (ir.FloatAttr, ir.IntegerAttr, ir.BoolAttr)):
        return walk.terms.constant(element, str(value))
    known = value.value
    if element == "index":
        return walk.terms.iota(Expr(int(known)))
    if isinstance(known, float):
        return walk.terms.constant(element, known if known == known else "nan")
    return walk.terms.constant(element, int(known) % 2 if element == "i1" else int(known))


def _table(
    walk: ProgramWalk, value: ir.DenseElementsAttr, shape: Sequence[int], element: str
) -> Term:
    numbered = walk.said.once(("places", value), partial(_as_places, value))
    if numbered:
        const, steps = numbered
        places = zip(places_of(tuple(shape)), steps)
        place = walk.terms.iota(total(places, const))
        return (
            place
            if element == "index"
            else apply(walk.terms, "arith.index_cast", (), element, [place])
        )
    node = walk.terms.put(Node("table", (value,), (), element), tuple(shape))
    return walk.terms.view(node, places_of(tuple(shape)))


def _as_places(value: ir.DenseElementsAttr) -> tuple[int, tuple[int, ...]] | tuple[()]:
    """Return the first number of a table and the step along each dim, where these say all of it; else ()."""
    if not isinstance(value, ir.DenseIntElementsAttr) or str(value.type.element_type) == "i1":
        return ()
    numbers = np.array(value)
    corner = numbers[tuple([slice(2)] * numbers.ndim)]
    first = int(corner.flat[0])
    steps = [int(corner.take(n > 1, d).flat[0]) - first for d, n in enumerate(numbers.shape)]
    grids: tuple[np.ndarray, ...] = np.indices(numbers.shape, sparse=True)
    made = first + sum([step * grid for step, grid in zip(steps, grids)])
    return (first, tuple(steps)) if np.array_equal(numbers, made) else ()


@handles("func.call")
def _call(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    return walk.call(op.attributes["callee"].value, [walk.views[v] for v in op.operands])


@handles("hint.region", "scf.execute_region")
def _region(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    if len(op.regions[0].blocks) != 1:
        raise NotReadError("a region of several blocks")
    return walk.block(body_of(op))


@handles("scf.if")
def _if(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    condition = walk.views[op.operands[0]]
    known = walk.terms.constant_of(condition)
    if known is not None:
        region = op.regions[0 if known else 1]
        return walk.block(region.blocks[0]) if len(region.blocks) else []
    if any(_talks(region) for region in op.regions):
        raise NotReadError("a collective in a branch that not all ranks need take")
    if any(not len(region.blocks) for region in op.regions):
        return []
    yes, no = [walk.block(region.blocks[0]) for region in op.regions]
    kinds = [walk.shape(r)[1] for r in op.results]
    return [
        apply(walk.terms, "arith.select", (), kind, [condition, a, b])
        for kind, a, b in zip(kinds, yes, no)
    ]


def _talks(region: ir.Region) -> bool:
    for block in region.blocks:
        for view in block.operations:
            name = view.operation.name
            if name.startswith("dist.") and name not in ("dist.axis_index", "dist.all_slice"):
                return True
            if name == "func.call" or any(_talks(r) for r in view.operation.regions):
                return True
    return False


def results_of(function: ir.Operation) -> list[ir.Value]:
    """Return what a function returns."""
    return list(terminator(body_of(function)).operands)
