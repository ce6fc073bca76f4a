"""Let the collectives of a loop run under the compute of another trip: what dist-overlap does with one.

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

from meshweave.ir.bindings import ir
from meshweave.ir.build import ForLoop, OpBuilder
from meshweave.ir.ops import replace_op
from meshweave.transforms.base import walk
from meshweave.transforms.propagation.bodies import is_tensor
from meshweave.transforms.propagation.values import is_free
from meshweave.transforms.slicing.program import MOVES, reads

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


def is_heavy(op: ir.Operation) -> bool:
    """Tell whether `op` computes, so that a collective can run meanwhile."""
    if op.name in COLLECTIVES or _is_cheap(op) or not any(is_tensor(r.type) for r in op.results):
        return False
    if op.name.startswith("scf."):
        return any(is_heavy(inner) for inner in walk(op) if inner != op)
    return True


def _is_cheap(op: ir.Operation) -> bool:
    """Tell whether `op` is a number, a view, or a tensor that costs nothing."""
    if op.name.startswith("arith.") and not any(is_tensor(r.type) for r in op.results):
        return True
    return op.name in _CHEAP or is_free(op)


def ops_in(block: ir.Block) -> list[ir.Operation]:
    """Return the ops of a block, in order."""
    return [view.operation for view in block.operations]


def in_block(op: ir.Operation, block: ir.Block) -> ir.Operation:
    """Return the op of `block` that `op` is, or is in."""
    while op.block != block:
        op = op.parent.operation
    return op


def runs_ahead(op: ir.Operation, ops: Sequence[ir.Operation]) -> bool:
    """Tell whether anything is computed between `op` and the first of the `ops` of its block that reads it."""
    readers = {in_block(use.owner.operation, op.block) for r in op.results for use in r.uses}
    for other in ops[ops.index(op) + 1 :]:
        if other in readers:
            return False
        if is_heavy(other):
            return True
    return False


def _number(value: ir.Value) -> int | None:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "arith.constant":
        return None
    attr = owner.operation.attributes["value"]
    return int(attr.value) if isinstance(attr, ir.IntegerAttr) else None


@dataclass
class TripLoop:
    """Describe a loop of two trips or more, from `low` in steps of `step`."""

    op: ir.Operation
    low: int
    step: int
    trips: int

    @staticmethod
    def of(op: ir.Operation) -> "TripLoop | None":
        """Return the loop; None where its trips are not known, or there is one at most."""
        low, high, step = (_number(v) for v in list(op.operands)[:3])
        if low is None or high is None or step is None or step < 1:
            return None
        trips = -(-(high - low) // step)
        return TripLoop(op, low, step, trips) if trips > 1 else None

    @property
    def block(self) -> ir.Block:
        """Return its body."""
        return self.op.regions[0].blocks[0]

    @property
    def carried(self) -> list[ir.Value]:
        """Return what its body is handed, without the trip's number."""
        return list(self.block.arguments)[1:]

    @property
    def last(self) -> int:
        """Return its counter in the last trip."""
        return self.low + (self.trips - 1) * self.step

    def waiting(self, wanted: Sequence[ir.Operation]) -> list[ir.Operation]:
        """Return the collectives among `wanted` that its body waits for."""
        ops = ops_in(self.block)
        return [op for op in wanted if op.block == self.block and not runs_ahead(op, ops)]

    def shortened(self, inits: Sequence[ir.Value], b: OpBuilder) -> ForLoop:
        """Begin a loop over all trips but the last."""
        return b.for_loop(self.low, self.last, self.step, inits)


def ahead(loop: TripLoop, wanted: Sequence[ir.Operation]) -> TripLoop | None:
    """Issue those of `wanted` a trip ahead that are cheap to send. Return what is left as a loop, if it is one."""
    able = _able(loop, wanted)
    moves = [op for op in able if op in wanted]
    if not moves or not any(is_heavy(op) for op in ops_in(loop.block)):
        return loop
    return _Ahead(loop, able, moves).run()


def _able(loop: TripLoop, wanted: Sequence[ir.Operation]) -> list[ir.Operation]:
    """Return those of `wanted` that need nothing that the loop carries, and the cheap ops that they are made of."""
    late = set(loop.carried)
    able = []
    for op in ops_in(loop.block):
        if (_is_cheap(op) or op in wanted) and not any(v in late for v in reads(op)):
            able.append(op)
        else:
            late |= set(op.results)
    needed: set[ir.Value] = set()
    found = []
    for op in reversed(able):
        if op in wanted or any(r in needed for r in op.results):
            needed |= set(reads(op))
            found.append(op)
    return found[::-1]


@dataclass
class _Ahead:
    """Issue collectives a trip ahead.

    Fields: `able`, the ops that can run before their trip, in order; `moves`, the collectives among them.
    """

    loop: TripLoop
    able: list[ir.Operation]
    moves: list[ir.Operation]

    def run(self) -> TripLoop | None:
        """Replace the loop by its three parts."""
        loop = self.loop
        b = OpBuilder.before(loop.op)
        inits = list(loop.op.operands)[3:]
        first = self._issue(b.index(loop.low), b)
        new, inner, k, carried = loop.shortened([*inits, *first], b)
        coming = self._issue(inner.binary("addi", k, inner.index(loop.step)), inner)
        done = self._compute(k, carried[: len(inits)], carried[len(inits) :], inner)
        inner.op("scf.yield", [], [*done, *coming])
        results = list(new.results)
        held = results[len(inits) :]
        last = self._compute(b.index(loop.last), results[: len(inits)], held, b)
        replace_op(loop.op, last)
        return TripLoop.of(new)

    def _issue(self, k: ir.Value, b: OpBuilder) -> list[ir.Value]:
        """Issue the collectives of trip `k`; return their results."""
        env = {self.loop.block.arguments[0]: k}
        for op in self.able:
            _copy(op, env, b)
        return [env[r] for op in self.moves for r in op.results]

    def _compute(
        self, k: ir.Value, carried: list[ir.Value], held: list[ir.Value], b: OpBuilder
    ) -> list[ir.Value]:
        """Run all else of trip `k`, given the results of its collectives; return what it hands on."""
        block = self.loop.block
        env = dict(zip(block.arguments, [k, *carried]))
        env |= dict(zip([r for op in self.moves for r in op.results], held))
        *ops, end = ops_in(block)
        for op in ops:
            if op not in self.moves:
                _copy(op, env, b)
        return [env.get(v, v) for v in end.operands]


def behind(loop: TripLoop, wanted: Sequence[ir.Operation]) -> list[ir.Operation]:
    """Compute what those of `wanted` send in the next trip while they are under way.

    Return those for which it cannot be done, as they need their own results.
    """
    closures = {op: _closure(loop, op) for op in wanted}
    knotted = [op for op in wanted if op in closures[op]]
    free = [op for op in wanted if op not in knotted]
    moves = [op for op in free if not any(other in closures[op] for other in free)]
    first = {found for move in moves for found in closures[move]}
    if any(is_heavy(op) for op in ops_in(loop.block) if op in first):
        _Behind(loop, first, moves).run()
    return knotted


def _closure(loop: TripLoop, op: ir.Operation) -> set[ir.Operation]:
    """Return what `op` needs of the body, in this trip or in those before: ops, and what the loop carries."""
    ends = ops_in(loop.block)[-1].operands
    handed = dict(zip(loop.carried, ends))
    found: set[ir.Operation] = set()
    seen: set[ir.Value] = set()
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
    """Compute a trip ahead of the collectives `moves`.

    Field `needed`: the ops that they need, and what these update of what the loop carries.
    """

    loop: TripLoop
    needed: set[ir.Value]
    moves: list[ir.Operation]

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
        b = OpBuilder.before(loop.op)
        inits = list(loop.op.operands)[3:]
        begun = self._begin(b.index(loop.low), inits, b)
        begins = [begun.get(v, v) if s else i for v, s, i in zip(self.ends, self.stepped, inits)]
        new, inner, k, carried = loop.shortened([*begins, *[begun[v] for v in self.held]], b)
        state, held = carried[: len(inits)], carried[len(inits) :]
        given = self._send(k, state, held, inner)
        coming = self._begin(inner.binary("addi", k, inner.index(loop.step)), state, inner)
        done = self._finish(given, inner)
        handed = [coming.get(v, v) if s else d for v, s, d in zip(self.ends, self.stepped, done)]
        inner.op("scf.yield", [], [*handed, *[coming[v] for v in self.held]])
        results = list(new.results)
        state, held = results[: len(inits)], results[len(inits) :]
        given = self._send(b.index(loop.last), state, held, b)
        done = self._finish(given, b)
        replace_op(loop.op, [r if s else d for r, s, d in zip(state, self.stepped, done)])

    def _cheap_ops(self) -> list[ir.Operation]:
        """Return ops of the first part that are repeated rather than their results handed on."""
        known = {self.loop.block.arguments[0]}
        found = []
        mine = {r for op in self.first for r in op.results} | set(self.loop.carried)
        for op in self.first:
            if _is_cheap(op) and all(v in known or v not in mine for v in reads(op)):
                found.append(op)
                known |= set(op.results)
        return found

    def _crossing(self) -> list[ir.Value]:
        """Return what the first part makes, or is handed, that all else of the trip reads."""
        again = {r for op in self.again for r in op.results}
        mine = [r for op in self.first for r in op.results if r not in again]
        mine += [a for a, stepped in zip(self.loop.carried, self.stepped) if stepped]
        wanted = {v for op in (*self.moves, *self.rest) for v in reads(op)}
        wanted |= {v for v, stepped in zip(self.ends, self.stepped) if not stepped}
        return [v for v in mine if v in wanted]

    def _begin(
        self, k: ir.Value, state: Sequence[ir.Value], b: OpBuilder
    ) -> dict[ir.Value, ir.Value]:
        """Run the first part of trip `k`; return its values."""
        env = dict(zip(self.loop.block.arguments, [k, *state]))
        for op in self.first:
            _copy(op, env, b)
        return env

    def _send(
        self, k: ir.Value, state: Sequence[ir.Value], held: Sequence[ir.Value], b: OpBuilder
    ) -> dict[ir.Value, ir.Value]:
        """Issue the collectives of trip `k`, given what its first part left; return the values so far."""
        env = dict(zip(self.loop.block.arguments, [k, *state]))
        env |= dict(zip(self.held, held))
        for op in (*self.again, *self.moves):
            _copy(op, env, b)
        return env

    def _finish(self, env: dict[ir.Value, ir.Value], b: OpBuilder) -> list[ir.Value]:
        """Run all else of the trip; return what it hands on."""
        for op in self.rest:
            _copy(op, env, b)
        return [env.get(v, v) for v in self.ends]


def _copy(op: ir.Operation, env: dict[ir.Value, ir.Value], b: OpBuilder) -> None:
    """Copy `op`; it reads from `env`, and its results go there."""
    new = op.clone(b.ip)
    for mine, copy in zip(walk(op), walk(new)):
        for i, value in enumerate(mine.operands):
            if value in env:
                copy.operands[i] = env[value]
    env.update(zip(op.results, new.results))
