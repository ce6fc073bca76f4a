"""hint-recompute: keep the budget of a region that slices do not cut by computing values again instead of keeping them.

before:  a = f(x) .. b = g(a) .. c = h(b, a), in a region with peak_bytes where `a` is kept from g to h
after:   a = f(x) .. b = g(a) .. a' = f(x) {hint.again = 0}, c = h(b, a')

That is a step of training: what the forward ops leave for the backward ones is kept for long. Where dist-place has
chosen layouts within the budget, it has chosen what runs again too, and that is done if it keeps the budget. Else a
front of predicted time over bytes is drawn by `meshweave.plan.recompute`; of its points the first one is taken whose
bytes, planned by the lowering itself in a copy of the program, are within the budget. Where none is, values that loops
keep of each round are made in the rounds of later loops that read them. hint-budget has left such a region open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from meshweave.dialects.again import ROUNDS_AGAIN, RUNS_AGAIN
from meshweave.hints.ledger import Ledger, budget_kept, budget_too_small
from meshweave.ir.bindings import ir
from meshweave.ir.ops import body_of
from meshweave.lowering.budget import IN_ONE_PIECE, BudgetRequest, bytes_taken, open_regions
from meshweave.plan.placement.prices import MachinePrices
from meshweave.plan.recompute import (
    Tradeoff,
    least_seconds,
    peak,
    schedule,
    seconds,
    tradeoffs,
)
from meshweave.transforms.base import Pass, copied, mesh_of_module
from meshweave.transforms.kernels.select_kernels import SelectKernels
from meshweave.transforms.slicing.ledger import (
    CHOSEN,
    REGION,
    number,
    ops_met,
    read_ledger,
    regions_of,
    settle,
    write_ledger,
)
from meshweave.transforms.slicing.rounds import compute_in_rounds, stacks_of
from meshweave.transforms.slicing.works import (
    BlockWorks,
    chosen_blocks,
    chosen_works,
    forget_chosen,
    run_again,
    works_of,
)

_NOTHING = Tradeoff(frozenset(), 0, 0.0)

MOST_MEASURED = 8
"""Points of the front that are planned by the lowering."""


@dataclass(frozen=True)
class HintRecompute(Pass):
    """Compute values of a region again where its budget asks for it.

    cache_bytes, disable, target: as for hint-budget.
    """

    name: ClassVar[str] = "hint-recompute"
    cache_bytes: int = 0
    disable: tuple[str, ...] = ()
    target: str = "cpu"

    def run(self, module: ir.Module) -> None:
        context = module.operation.context
        with context, ir.Location.unknown(context):
            ledger = read_ledger(module)
            select = SelectKernels(self.disable, target=self.target, cache_bytes=self.cache_bytes)
            for region, asked in open_regions(module, ledger):
                if asked.said is None and asked.budget is not None:
                    _decide(_MeasuredFront(module, region, asked, select), ledger)
                    write_ledger(module, ledger)
            for block in chosen_blocks(module):
                _follow(block, module, ledger)
            forget_chosen(module)


def _follow(block: ir.Block, module: ir.Module, ledger: Ledger) -> None:
    """Let run again what placement has chosen in a block, and say so of the budget that it is for."""
    works = works_of(block, mesh_of_module(module), MachinePrices())
    point = _chosen(works)
    run_again(works, schedule(works.joined, point.again))
    region = block.owner.operation
    budgets = {
        said.number
        for said in ledger.said
        if said.hint.key == "peak_bytes" and said.region == number(region, REGION)
    }
    for (hint, op), outcome in ledger.outcomes.items():
        if hint in budgets and outcome.reason == IN_ONE_PIECE:
            ledger.outcomes[hint, op] = replace(outcome, reason=_price(works, point))
    if budgets:
        write_ledger(module, ledger)


def _chosen(works: BlockWorks) -> Tradeoff:
    """Return what placement has chosen to run again."""
    again, row = chosen_works(works), works.joined
    runs = schedule(row, again)
    used = frozenset(run.work for run in runs if run.copy)
    return Tradeoff(used, peak(row, runs), seconds(row, runs))


@dataclass
class _MeasuredFront:
    """Measure points of the front of a region."""

    module: ir.Module
    region: ir.Operation
    asked: BudgetRequest
    select: SelectKernels

    @cached_property
    def works(self) -> BlockWorks:
        """Return the ops of the region."""
        return _works(self.region, self.module)

    @cached_property
    def front(self) -> list[Tradeoff]:
        """Return the points, from nothing that runs again on."""
        return tradeoffs(self.works.joined)

    @cached_property
    def stacks(self) -> int:
        """Return how many values that loops keep of each round may be computed again in rounds."""
        return len(stacks_of(body_of(self.region)))

    def nbytes(self, point: Tradeoff, rounds: int = 0) -> int:
        """Return the intermediate bytes of the region with a point of the front, or values of rounds made again."""
        clone = copied(self.module)
        for region in regions_of(clone):
            if number(region, REGION) == self.asked.which:
                compute_in_rounds(body_of(region), rounds, None)
                _apply(region, clone, point)
        taken = bytes_taken(clone, read_ledger(self.module), self.select)
        return taken.get(self.asked.which, 0)


def _works(region: ir.Operation, module: ir.Module) -> BlockWorks:
    return works_of(body_of(region), mesh_of_module(module), MachinePrices())


def _apply(region: ir.Operation, module: ir.Module, point: Tradeoff) -> None:
    """Let the works of a point run again, and the region run in one piece."""
    if point.again:
        works = _works(region, module)
        run_again(works, schedule(works.joined, point.again))
        for op in works.ops:
            if RUNS_AGAIN in op.attributes:
                del op.attributes[RUNS_AGAIN]
    region.attributes[CHOSEN] = ir.StringAttr.get("")


def _decide(choice: _MeasuredFront, ledger: Ledger) -> None:
    """Choose what runs again, write it in the region, and settle the budget in the ledger."""
    said, region = choice.asked.budget, choice.region
    assert said is not None
    limit = said.hint.parsed
    point = _chosen(choice.works)
    nbytes = choice.nbytes(point) if point.again else limit + 1
    if nbytes > limit:
        point, nbytes = _found(choice, limit)
    what = ""
    if nbytes > limit and choice.stacks:
        rounds, nbytes = _rounds(choice, limit)
        what = _in_rounds(choice, rounds)
        choice = _MeasuredFront(choice.module, region, choice.asked, choice.select)
        point, nbytes = (_NOTHING, nbytes) if nbytes <= limit else _found(choice, limit)
    what += _price(choice.works, point)
    met = ops_met(region, ledger)
    if nbytes <= limit:
        outcome = budget_kept(nbytes, limit, what, unchanged=what == IN_ONE_PIECE)
    else:
        outcome = budget_too_small(nbytes, f"the least possible is {nbytes:,} bytes, {what}")
    _apply(region, choice.module, point)
    settle(ledger, [said], met, outcome, region)


def _rounds(choice: _MeasuredFront, limit: int) -> tuple[int, int]:
    """Return the least number of values of rounds that keeps the limit, else all, and the bytes."""
    low, high = 0, choice.stacks
    nbytes = choice.nbytes(_NOTHING, high)
    if nbytes > limit:
        return high, nbytes
    while high - low > 1:
        middle = (low + high) // 2
        taken = choice.nbytes(_NOTHING, middle)
        if taken <= limit:
            high, nbytes = middle, taken
        else:
            low = middle
    return high, nbytes


def _in_rounds(choice: _MeasuredFront, count: int) -> str:
    """Let the region compute values of rounds again where they are read, and say what that costs."""
    mesh = mesh_of_module(choice.module)
    total, stacks = compute_in_rounds(body_of(choice.region), count, mesh), choice.stacks
    received = f", {total.received:,} bytes received" if total.received else ""
    before = choice.module.operation.attributes.get(ROUNDS_AGAIN)
    spent = total.seconds + (0.0 if before is None else before.value)
    choice.module.operation.attributes[ROUNDS_AGAIN] = ir.FloatAttr.get(ir.F64Type.get(), spent)
    return (
        f"{count} of {stacks} values that loops keep of each round are made in the round that reads them "
        f"({total.flops:,} floating operations, {total.nbytes:,} bytes read and written{received}; "
        f"{1000 * total.seconds:.3g} ms predicted), "
    )


def _found(choice: _MeasuredFront, limit: int) -> tuple[Tradeoff, int]:
    """Return the first point of the front whose bytes are within the limit, else that of the fewest bytes."""
    known = {0: choice.nbytes(_NOTHING)}
    if known[0] <= limit or len(choice.front) == 1:
        return _NOTHING, known[0]
    front, low, high = choice.front, 0, len(choice.front)
    while high - low > 1 and len(known) <= MOST_MEASURED:
        beyond = known[low] - front[low].peak  # what the lowering takes more than the row says
        likely = [n for n in range(low + 1, high) if front[n].peak + beyond <= limit]
        now = likely[0] if likely else high - 1
        known[now] = choice.nbytes(front[now])
        low, high = (low, now) if known[now] <= limit else (now, high)
    fits = [n for n, nbytes in known.items() if nbytes <= limit]
    best = min(fits) if fits else min(known, key=lambda n: (known[n], n))
    return front[best], known[best]


def _price(works: BlockWorks, point: Tradeoff) -> str:
    """Say what runs again, and what that costs."""
    if not point.again:
        return IN_ONE_PIECE
    row = works.joined
    again = sorted(point.again)
    price, whole = works.price(again), works.price(range(len(row.works)))
    ops = sum(len(row.members[n]) for n in again)
    bound = least_seconds(row, point.peak)
    received = f", {price.received:,} bytes received" if price.received else ""
    return (
        f"{IN_ONE_PIECE} in which {ops} ops run again ({price.flops:,} floating operations, "
        f"{price.nbytes:,} bytes read and written{received}; {1000 * price.seconds:.3g} ms predicted, "
        f"{price.seconds / whole.seconds:.1%} of the region; at least {1000 * bound:.3g} ms by bound)"
    )
