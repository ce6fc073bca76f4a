"""Loops whose collectives run under the compute of another trip: what dist-overlap does with one.

Two ways, by where the compute is. What is sent is cheap to make (a slice of an input): the collective of the next trip
is issued before this trip computes, and hands on what it gives.

before:  for k: g = all_gather(slice k of %a); %c = compute(g, %c)
after:   g = all_gather(slice 0 of %a)
         for k but the last: h = all_gather(slice k + 1 of %a); %c = compute(g, %c); hand on h for g
         %c = compute(g, %c)

What is sent is computed: the next trip's is computed while this trip's collective is on its way.

before:  for k: p = compute(k); r = all_reduce(p); %c = insert r into %c
after:   p = compute(0)
         for k but the last: r = all_reduce(p); q = compute(k + 1); %c = insert r into %c; hand on q for p
         r = all_reduce(p); %c = insert r into %c

As many bytes as before. What is handed on is held for one trip more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshweave.bindings import ir
from meshweave.transforms.base import replace, walk
from meshweave.transforms.hint_make import Make
from meshweave.transforms.hint_program import MOVES, reads
from meshweave.transforms.rules import is_free, is_tensor

COLLECTIVES = (*MOVES, "dist.all_reduce")
_CHEAP = (
    "dist.all_slice",
    "dist.axis_index",
    "tensor.cast",
    "tensor.collapse_shape",
    "tensor.expand_shape",
    "tensor.extract_slice",
    "tensor.insert_slice",
    "tensor.pad",
)


def is_heavy(op: Any) -> bool:
    """Does `op` compute, so that it is worth something to run meanwhile?"""
    if op.name in COLLECTIVES or _is_cheap(op) or not any(is_tensor(r.type) for r in op.results):
        return False
    if op.name.startswith("scf."):
        return any(is_heavy(inner) for inner in walk(op) if inner != op)
    return True


def _is_cheap(op: Any) -> bool:
    """Is `op` a number, a view, or a tensor that costs nothing?"""
    if op.name.startswith("arith.") and not any(is_tensor(r.type) for r in op.results):
        return True
    return op.name in _CHEAP or is_free(op)


def ops_in(block: Any) -> list[Any]:
    """The ops of a block, in order."""
    return [view.operation for view in block.operations]


def in_block(op: Any, block: Any) -> Any:
    """The op of `block` that `op` is, or is in."""
    while op.block != block:
        op = op.parent.operation
    return op


def runs_ahead(op: Any, ops: Sequence[Any]) -> bool:
    """Is anything computed between `op` and the first of the `ops` of its block that reads it?"""
    readers = {in_block(use.owner.operation, op.block) for r in op.results for use in r.uses}
    for other in ops[ops.index(op) + 1 :]:
        if other in readers:
            return False
        if is_heavy(other):
            return True
    return False


def _number(value: Any) -> int | None:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "arith.constant":
        return None
    attr = owner.operation.attributes["value"]
    return int(attr.value) if isinstance(attr, ir.IntegerAttr) else None


@dataclass
class Loop:
    """A loop of two trips or more, from `low` in steps of `step`."""

    op: Any
    low: int
    step: int
    trips: int

    @staticmethod
    def of(op: Any) -> "Loop | None":
        """The loop; None where its trips are not known, or there is one at most."""
        low, high, step = (_number(v) for v in list(op.operands)[:3])
        if low is None or high is None or step is None or step < 1:
            return None
        trips = -(-(high - low) // step)
        return Loop(op, low, step, trips) if trips > 1 else None

    @property
    def block(self) -> Any:
        """Its body."""
        return self.op.regions[0].blocks[0]

    @property
    def carried(self) -> list[Any]:
        """What its body is handed, without the trip's number."""
        return list(self.block.arguments)[1:]

    @property
    def last(self) -> int:
        """Its counter in the last trip."""
        return self.low + (self.trips - 1) * self.step

    def waiting(self, wanted: Sequence[Any]) -> list[Any]:
        """The collectives among `wanted` that its body waits for."""
        ops = ops_in(self.block)
        return [op for op in wanted if op.block == self.block and not runs_ahead(op, ops)]

    def shortened(self, inits: Sequence[Any], make: Make) -> tuple[Any, Any, list[Any]]:
        """A loop over all trips but the last: see Make.for_."""
        return make.for_(self.low, self.last, self.step, inits)


def ahead(loop: Loop, wanted: Sequence[Any]) -> Loop | None:
    """Issue those of `wanted` a trip ahead that are cheap to send: what is left as a loop, if it is one."""
    able = _able(loop, wanted)
    moves = [op for op in able if op in wanted]
    if not moves or not any(is_heavy(op) for op in ops_in(loop.block)):
        return loop
    return _Ahead(loop, able, moves).run()


def _able(loop: Loop, wanted: Sequence[Any]) -> list[Any]:
    """Those of `wanted` that need nothing that the loop carries, and the cheap ops that they are made of."""
    late = set(loop.carried)
    able = []
    for op in ops_in(loop.block):
        if (_is_cheap(op) or op in wanted) and not any(v in late for v in reads(op)):
            able.append(op)
        else:
            late |= set(op.results)
    needed: set[Any] = set()
    found = []
    for op in reversed(able):
        if op in wanted or any(r in needed for r in op.results):
            needed |= set(reads(op))
            found.append(op)
    return found[::-1]


@dataclass
class _Ahead:
    """able: the ops that can run before their trip, in order; moves: the collectives among them."""

    loop: Loop
    able: list[Any]
    moves: list[Any]

    def run(self) -> Loop | None:
        """Replace the loop by its three parts."""
        loop = self.loop
        make = Make(ir.InsertionPoint(loop.op), loop.op.location)
        inits = list(loop.op.operands)[3:]
        first = self._issue(make.index(loop.low), make)
        new, k, carried = loop.shortened([*inits, *first], make)
        inner = make.inside(new)
        coming = self._issue(inner.arith("addi", k, inner.index(loop.step)), inner)
        done = self._compute(k, carried[: len(inits)], carried[len(inits) :], inner)
        inner.op("scf.yield", [], [*done, *coming])
        results = list(new.results)
        held = results[len(inits) :]
        last = self._compute(make.index(loop.last), results[: len(inits)], held, make)
        replace(loop.op, last)
        return Loop.of(new)

    def _issue(self, k: Any, make: Make) -> list[Any]:
        """The collectives of trip `k`: their results."""
        env = {self.loop.block.arguments[0]: k}
        for op in self.able:
            _copy(op, env, make)
        return [env[r] for op in self.moves for r in op.results]

    def _compute(self, k: Any, carried: list[Any], held: list[Any], make: Make) -> list[Any]:
        """All else of trip `k`, with what its collectives gave: what it hands on."""
        block = self.loop.block
        env = dict(zip(block.arguments, [k, *carried]))
        env |= dict(zip([r for op in self.moves for r in op.results], held))
        *ops, end = ops_in(block)
        for op in ops:
            if op not in self.moves:
                _copy(op, env, make)
        return [env.get(v, v) for v in end.operands]


def behind(loop: Loop, wanted: Sequence[Any]) -> list[Any]:
    """Compute what those of `wanted` send in the next trip while they are on their way: those of which it cannot be
    done, as they need what they give.
    """
    closures = {op: _closure(loop, op) for op in wanted}
    knotted = [op for op in wanted if op in closures[op]]
    free = [op for op in wanted if op not in knotted]
    moves = [op for op in free if not any(other in closures[op] for other in free)]
    first = {found for move in moves for found in closures[move]}
    if any(is_heavy(op) for op in ops_in(loop.block) if op in first):
        _Behind(loop, first, moves).run()
    return knotted


def _closure(loop: Loop, op: Any) -> set[Any]:
    """What of the body `op` needs, in this trip or in those before: ops, and what the loop carries."""
    ends = ops_in(loop.block)[-1].operands
    handed = dict(zip(loop.carried, ends))
    found: set[Any] = set()
    seen: set[Any] = set()
    todo = list(reads(op))
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in handed:
            found.add(value)
            todo.append(handed[value])
        owner = value.owner
        if not isinstance(owner, ir.Block) and owner.operation.block == loop.block:
            found.add(owner.operation)
            todo += reads(owner.operation)
    return found


@dataclass
class _Behind:
    """needed: the ops that the collectives `moves` need, which run a trip ahead of all others, and what they step on of
    what the loop carries.
    """

    loop: Loop
    needed: set[Any]
    moves: list[Any]

    def run(self) -> None:
        """Replace the loop by its three parts."""
        loop = self.loop
        *ops, end = ops_in(loop.block)
        self.first = [op for op in ops if op in self.needed]
        self.rest = [op for op in ops if op not in self.needed and op not in self.moves]
        self.ends = list(end.operands)
        self.stepped = [a in self.needed for a in loop.carried]  # by the first part
        self.again = self._cheap_ops()
        self.held = self._crossing()
        make = Make(ir.InsertionPoint(loop.op), loop.op.location)
        inits = list(loop.op.operands)[3:]
        begun = self._begin(make.index(loop.low), inits, make)
        begins = [begun.get(v, v) if s else i for v, s, i in zip(self.ends, self.stepped, inits)]
        new, k, carried = loop.shortened([*begins, *[begun[v] for v in self.held]], make)
        inner = make.inside(new)
        state, held = carried[: len(inits)], carried[len(inits) :]
        given = self._send(k, state, held, inner)
        coming = self._begin(inner.arith("addi", k, inner.index(loop.step)), state, inner)
        done = self._finish(given, inner)
        handed = [coming.get(v, v) if s else d for v, s, d in zip(self.ends, self.stepped, done)]
        inner.op("scf.yield", [], [*handed, *[coming[v] for v in self.held]])
        results = list(new.results)
        state, held = results[: len(inits)], results[len(inits) :]
        given = self._send(make.index(loop.last), state, held, make)
        done = self._finish(given, make)
        replace(loop.op, [r if s else d for r, s, d in zip(state, self.stepped, done)])

    def _cheap_ops(self) -> list[Any]:
        """Ops of the first part that are rather done again than their results handed on."""
        known = {self.loop.block.arguments[0]}
        found = []
        mine = {r for op in self.first for r in op.results} | set(self.loop.carried)
        for op in self.first:
            if _is_cheap(op) and all(v in known or v not in mine for v in reads(op)):
                found.append(op)
                known |= set(op.results)
        return found

    def _crossing(self) -> list[Any]:
        """What the first part makes, or is handed, that all else of the trip reads."""
        again = {r for op in self.again for r in op.results}
        mine = [r for op in self.first for r in op.results if r not in again]
        mine += [a for a, stepped in zip(self.loop.carried, self.stepped) if stepped]
        wanted = {v for op in (*self.moves, *self.rest) for v in reads(op)}
        wanted |= {v for v, stepped in zip(self.ends, self.stepped) if not stepped}
        return [v for v in mine if v in wanted]

    def _begin(self, k: Any, state: Sequence[Any], make: Make) -> dict[Any, Any]:
        """The first part of trip `k`: its values."""
        env = dict(zip(self.loop.block.arguments, [k, *state]))
        for op in self.first:
            _copy(op, env, make)
        return env

    def _send(
        self, k: Any, state: Sequence[Any], held: Sequence[Any], make: Make
    ) -> dict[Any, Any]:
        """The collectives of trip `k`, with what its first part has left: the values so far."""
        env = dict(zip(self.loop.block.arguments, [k, *state]))
        env |= dict(zip(self.held, held))
        for op in (*self.again, *self.moves):
            _copy(op, env, make)
        return env

    def _finish(self, env: dict[Any, Any], make: Make) -> list[Any]:
        """All else of the trip: what it hands on."""
        for op in self.rest:
            _copy(op, env, make)
        return [env.get(v, v) for v in self.ends]


def _copy(op: Any, env: dict[Any, Any], make: Make) -> None:
    """A copy of `op`, what it reads taken from `env`; its results go there."""
    new = op.clone(make.ip)
    for mine, copy in zip(walk(op), walk(new)):
        for i, value in enumerate(mine.operands):
            if value in env:
                copy.operands[i] = env[value]
    env.update(zip(op.results, new.results))
