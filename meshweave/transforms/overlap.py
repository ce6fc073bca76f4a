"""dist-overlap: issue a loop's collectives a trip ahead, so that none is waited for by the compute next to it.

before:  for k: g = all_gather(slice k of %a); %c = compute(g, %c)
after:   g = all_gather(slice 0 of %a)
         for k but the last: h = all_gather(slice k + 1 of %a); %c = compute(g, %c); hand on h for g
         %c = compute(g, %c)

A collective goes ahead when what it sends depends on the trip's number and on nothing that the loop carries. As many
bytes as before; what it gives is held for one trip more. This is the schedule alone: whether the two run at the same
time is up to the engine, and those of target cpu finish a collective before they go on.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from meshweave.bindings import ir
from meshweave.transforms.base import Pass, ops_of, replace, walk
from meshweave.transforms.hint_make import Make
from meshweave.transforms.hint_program import MOVES, reads
from meshweave.transforms.rules import is_free

AHEAD = (*MOVES, "dist.all_reduce")
_CHEAP = (
    "arith.constant",
    "dist.all_slice",
    "dist.axis_index",
    "tensor.collapse_shape",
    "tensor.expand_shape",
    "tensor.extract_slice",
    "tensor.pad",
)


@dataclass(frozen=True)
class Overlap(Pass):
    """Issue the collectives of loops a trip ahead."""

    name: ClassVar[str] = "dist-overlap"

    def run(self, module: Any) -> None:
        context = module.operation.context
        with context, ir.Location.unknown(context):
            for view in reversed(ops_of(module, "scf.for")):  # inner loops first
                loop = _Loop.of(view.operation)
                if loop is not None and loop.moves:
                    loop.run()


def _number(value: Any) -> int | None:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "arith.constant":
        return None
    attr = owner.operation.attributes["value"]
    return int(attr.value) if isinstance(attr, ir.IntegerAttr) else None


@dataclass
class _Loop:
    """A loop of two trips or more, from `low` in steps of `step`. ahead: the ops that can run before their trip, in
    order; moves: the collectives among them."""

    op: Any
    low: int
    step: int
    trips: int
    ahead: list[Any]
    moves: list[Any]

    @staticmethod
    def of(op: Any) -> "_Loop | None":
        low, high, step = (_number(v) for v in list(op.operands)[:3])
        if low is None or high is None or step is None or step < 1:
            return None
        trips = -(-(high - low) // step)
        ahead = _ahead(op.regions[0].blocks[0]) if trips > 1 else []
        return _Loop(op, low, step, trips, ahead, [o for o in ahead if o.name in AHEAD])

    def run(self) -> None:
        """Replace the loop by its three parts."""
        make = Make(ir.InsertionPoint(self.op), self.op.location)
        last = self.low + (self.trips - 1) * self.step
        inits = list(self.op.operands)[3:]
        first = self._issue(make.index(self.low), make)
        bounds = [make.index(n) for n in (self.low, last, self.step)]
        types = [v.type for v in (*inits, *first)]
        new = make.op("scf.for", types, [*bounds, *inits, *first], 1)
        arguments = [ir.IndexType.get(), *types]
        block = new.regions[0].blocks.append(*arguments, arg_locs=[make.loc] * len(arguments))
        inner = Make(ir.InsertionPoint(block), make.loc)
        k, *carried = list(block.arguments)
        coming = self._issue(inner.arith("addi", k, inner.index(self.step)), inner)
        done = self._compute(k, carried[: len(inits)], carried[len(inits) :], inner)
        inner.op("scf.yield", [], [*done, *coming])
        results = list(new.results)
        held = results[len(inits) :]
        replace(self.op, self._compute(make.index(last), results[: len(inits)], held, make))

    def _issue(self, k: Any, make: Make) -> list[Any]:
        """The collectives of trip `k`: their results."""
        env = {self.op.regions[0].blocks[0].arguments[0]: k}
        for op in self.ahead:
            _copy(op, env, make)
        return [env[r] for op in self.moves for r in op.results]

    def _compute(self, k: Any, carried: list[Any], held: list[Any], make: Make) -> list[Any]:
        """All else of trip `k`, with what its collectives gave: what it hands on."""
        block = self.op.regions[0].blocks[0]
        env = dict(zip(block.arguments, [k, *carried]))
        env |= dict(zip([r for op in self.moves for r in op.results], held))
        ops = [view.operation for view in block.operations]
        for op in ops[:-1]:
            if not any(op == move for move in self.moves):
                _copy(op, env, make)
        return [env.get(v, v) for v in ops[-1].operands]


def _ahead(block: Any) -> list[Any]:
    """The collectives of a loop's body that need nothing that it carries, and the cheap ops that they are made of."""
    carried = list(block.arguments)[1:]
    late = set(carried)
    wanted: set[Any] = set()
    able = []
    for view in block.operations:
        op = view.operation
        cheap = op.name.startswith("arith.") or op.name in _CHEAP or is_free(op)
        if (cheap or op.name in AHEAD) and not any(v in late for v in reads(op)):
            able.append(op)
        else:
            late |= set(op.results)
    found = []
    for op in reversed(able):
        if op.name in AHEAD or any(r in wanted for r in op.results):
            wanted |= set(reads(op))
            found.append(op)
    return found[::-1]


def _copy(op: Any, env: dict[Any, Any], make: Make) -> None:
    """A copy of `op`, what it reads taken from `env`; its results go there."""
    new = op.clone(make.ip)
    for mine, copy in zip(walk(op), walk(new)):
        for i, value in enumerate(mine.operands):
            if value in env:
                copy.operands[i] = env[value]
    env.update(zip(op.results, new.results))
