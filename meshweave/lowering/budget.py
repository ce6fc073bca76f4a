"""hint-budget: choose the number of slices where a region leaves it open, by what each number takes in memory.

before:  {slice = "t", peak_bytes = "8MiB"}
after:   the same with hint.chosen = "t=32": the fewest slices whose intermediate bytes fit

`peak_bytes` bounds the bytes that a region takes beyond what it reads and what it gives. Where hint-apply has made no
region of a budget around all of @main, that runs in one piece, and `keeps_budget` says whether it keeps the budget. A
region without one whose count is open, or that says `order = "dfs"` and no `slice`, gets the fewest slices that fit
the second-level cache, or those that take least. Each candidate is planned by the lowering itself, in a copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from meshweave.dialects.dist import LayoutAttr
from meshweave.errors import CompileError
from meshweave.hints.keys import REQUIRED, TimeAxis
from meshweave.hints.ledger import (
    HONOURED,
    INFEASIBLE,
    Ledger,
    Outcome,
    Refusal,
    RefusedHintError,
    StatedHint,
    budget_kept,
    budget_too_small,
)
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.pipeline_text import CLEAN_UP
from meshweave.layout.layout import Layout
from meshweave.lowering.buffers.bufferize import run_passes
from meshweave.lowering.buffers.memory import region_bytes
from meshweave.lowering.host.program import LoweredProgram
from meshweave.lowering.stages import lower
from meshweave.plan.machine import cache_bytes
from meshweave.targets import engines_of
from meshweave.transforms.base import Pass, PassFailure, at, copied, fail, remarks_to, walk
from meshweave.transforms.communication.overlap import Overlap
from meshweave.transforms.kernels.select_kernels import SelectKernels
from meshweave.transforms.propagation.bodies import is_tensor
from meshweave.transforms.slicing.apply import put_around
from meshweave.transforms.slicing.ledger import (
    CHOSEN,
    REGION,
    main_of,
    number,
    ops_met,
    read_ledger,
    regions_of,
    set_number,
    settle,
    whole_region,
    write_ledger,
)
from meshweave.transforms.slicing.rounds import stacks_of
from meshweave.transforms.slicing.slice import HintSlice, choose, extents_of_places
from meshweave.transforms.slicing.works import chosen_blocks, keeps

_NUMBERS = re.compile(r"hint\.(?:id|op) = \d+ : i64,? ?")
_NAMES = re.compile(r"%[\w$.-]+")
FEW_RESULTS = 4
"""A region that keeps values for long, and has more results than these, is not cut in slices: few ops would be cut."""
MAX_RAGGED = 16
"""Counts between two divisors of the extent that are tried."""

IN_ONE_PIECE = "one piece"  # how the ledger calls a region that is not cut

_DEVICE_CACHE = 40 << 20  # bytes of the second-level cache of an A100; later gpus have more


@dataclass(frozen=True)
class HintBudget(Pass):
    """Choose the number of slices where it is open.

    cache_bytes: of the cache that slices should fit; 0: this machine's, or that of a gpu.
    disable:     kernels that nothing will take; target: what the program is compiled for, as for select-kernels.
    """

    name: ClassVar[str] = "hint-budget"
    cache_bytes: int = 0
    disable: tuple[str, ...] = ()
    target: str = "cpu"

    def run(self, module: ir.Module) -> None:
        context = module.operation.context
        with context, ir.Location.unknown(context):
            ledger = read_ledger(module)
            select = SelectKernels(self.disable, target=self.target, cache_bytes=self.cache_bytes)
            known: dict[Hashable, _Known] = {}
            later: list[Callable[[Mapping[int, int]], None]] = []
            _take_loose(module, ledger)
            for region, asked in open_regions(module, ledger):
                alike = known.setdefault(_form(region, asked), _Known())
                search = _Search(module, asked, select, alike, later if alike.nbytes else None)
                _decide(search, region, ledger, self.cache_bytes or self._cache())
                write_ledger(module, ledger)
            if later:
                taken = bytes_taken(copied(module), ledger, select)
                for close in later:
                    close(taken)
                write_ledger(module, ledger)

    def _cache(self) -> int:
        return _DEVICE_CACHE if self.target == "gpu" else cache_bytes()


def _take_loose(module: ir.Module, ledger: Ledger) -> None:
    """Let @main run in one piece where its budget has made no region, and settle that in the ledger."""
    which = whole_region(module)
    if which is None or any(number(region, REGION) == which for region in regions_of(module)):
        return
    main = main_of(module)
    assert main is not None
    region = put_around(main, ir.DictAttr.get({}))
    set_number(region, REGION, which)
    region.attributes[CHOSEN] = ir.StringAttr.get("")
    said = [one for one in ledger.said if one.region == which]
    settle(ledger, said, ops_met(region, ledger), Outcome(HONOURED, IN_ONE_PIECE), region)
    write_ledger(module, ledger)


@dataclass(frozen=True)
class BudgetRequest:
    """Hold what a region asks for.

    axes: its time axes. said: its `slice`. budget: what it may take; None: what the cache holds.
    """

    which: int
    axes: tuple[TimeAxis, ...]
    said: StatedHint | None
    budget: StatedHint | None


def open_regions(module: ir.Module, ledger: Ledger) -> Iterator[tuple[ir.Operation, BudgetRequest]]:
    """Yield the regions for which nothing is chosen yet, each with what it asks for."""
    for region in regions_of(module):
        which = number(region, REGION)
        if CHOSEN in region.attributes or not 0 <= which < len(ledger.regions):
            continue
        with at(region):
            asked = _asked_of(region, which, ledger)
        if asked is not None:
            yield region, asked


def _asked_of(region: ir.Operation, which: int, ledger: Ledger) -> BudgetRequest | None:
    """Return what a region asks for; None where its number of slices is not open and no budget is said."""
    effective = ledger.effective(which)
    said, budget, order = (effective.get(key) for key in ("slice", "peak_bytes", "order"))
    if said is not None:
        axes = said.hint.parsed
        if budget is None and not any(axis.is_open for axis in axes):
            return None
        return BudgetRequest(which, axes, said, budget)
    axes = (TimeAxis(_free_name(region, ledger)),)
    if budget is not None:
        return BudgetRequest(which, axes, None, budget)
    depth_first = (
        order is not None and order.region == which and order.hint.parsed.schedule == "dfs"
    )
    if not depth_first or "width" in effective or _slices_near(which, ledger):
        return None
    return BudgetRequest(which, axes, None, None)


def _free_name(region: ir.Operation, ledger: Ledger) -> str:
    """Return a name for a time axis that nothing else has."""
    taken = {a.name for s in ledger.said if s.hint.key == "slice" for a in s.hint.parsed}
    op = region
    while op.parent is not None:
        op = op.parent.operation
    for other in walk(op):
        if other.name == "dist.mesh":
            taken |= {
                part.split("=")[0].strip() for part in other.attributes["axes"].value.split(",")
            }
    return next(name for k in range(len(taken) + 1) if (name := f"t{k}" if k else "t") not in taken)


def _slices_near(which: int, ledger: Ledger) -> bool:
    """Tell whether regions around this one, or in it, have slices of their own."""
    sliced = {s.region for s in ledger.said if s.hint.key in ("slice", "peak_bytes")}
    return any(which in ledger.chain(r) for r in sliced) or bool(sliced & set(ledger.chain(which)))


@dataclass(frozen=True)
class _Option:
    """Describe a way to lay the open axis.

    It is laid on dim `dim` of result `result`; -1: where the region says. extent: elements along it.
    """

    result: int
    dim: int
    extent: int

    def __str__(self) -> str:
        return f"dim {self.dim} of result {self.result}" if self.result >= 0 else "its dims"


_WHOLE = _Option(-1, -1, 0)  # no slices


@dataclass
class _Known:
    """Hold what was measured of regions that are alike, and the first reason why a number of slices cannot be."""

    nbytes: dict[tuple[_Option, int], int | None] = field(default_factory=dict)
    problem: str = ""


@dataclass
class _Search:
    """Measure candidates, each once for all regions that are alike.

    later: where another region's numbers are taken for this one's, what closes its budget once the program is measured.
    """

    module: ir.Module
    asked: BudgetRequest
    select: SelectKernels
    known: _Known
    later: list[Callable[[Mapping[int, int]], None]] | None = None

    @property
    def problem(self) -> str:
        """Return why a number of slices cannot be."""
        return self.known.problem

    def nbytes(self, option: _Option, count: int) -> int | None:
        """Return the intermediate bytes of the region in `count` slices, None where that is not possible."""
        key, known = (option, count), self.known.nbytes
        if key not in known:
            known[key] = self._measured(option, count)
        return known[key]

    def _measured(self, option: _Option, count: int) -> int | None:
        clone = copied(self.module)
        for region in regions_of(clone):
            if number(region, REGION) == self.asked.which:
                _choose(region, self.asked.axes, option, count)
        try:
            taken = bytes_taken(clone, read_ledger(self.module), self.select)
        except CompileError as error:
            refusal = error.refusal if isinstance(error, PassFailure) else None
            said = error.message if refusal is None else refusal.outcome.reason
            self.known.problem = self.known.problem or said
            return None
        return taken.get(self.asked.which, 0)

    def close(self, region: ir.Operation, ledger: Ledger, count: int, option: _Option) -> None:
        """Settle the budget of a region that has `count` slices now."""
        if self.later is None:
            _close(region, self.asked, ledger, self.nbytes(option, count) or 0, count, option)
            return
        which = self.asked.which
        self.later.append(
            lambda taken: _close(region, self.asked, ledger, taken.get(which, 0), count, option)
        )


def bytes_taken(clone: ir.Module, ledger: Ledger, select: SelectKernels) -> Mapping[int, int]:
    """Lower a copy of a program; return the intermediate bytes of each region."""
    write_ledger(clone, ledger)
    for region in regions_of(clone):
        if CHOSEN not in region.attributes:
            _close_open(region, ledger)
    with remarks_to(None):
        HintSlice().run(clone)
        select.run(clone)
        Overlap().run(clone)
    run_passes(clone, CLEAN_UP)
    return _taken(clone, lower(clone, engines_of(select.target)[0], verify=False))


def _taken(module: ir.Module, program: LoweredProgram) -> Mapping[int, int]:
    """Return the intermediate bytes of each region; of one that is the whole program, what its arena takes."""
    taken = region_bytes(program)
    if (which := whole_region(module)) is not None:
        taken[which] = max(taken.get(which, 0), program.areas[1])
    return taken


def keeps_budget(module: ir.Module, program: LoweredProgram) -> bool:
    """Tell whether @main keeps the budget around all of it in one piece, and say in the ledger what it takes.

    module: the local view of a program whose budget has made no region. program: what lowering made of it.
    """
    ledger, which = read_ledger(module), whole_region(module)
    (said,) = (one for one in ledger.said if one.region == which)
    nbytes, limit = program.areas[1], int(said.hint.parsed)
    for (hint, op), outcome in ledger.outcomes.items():
        if hint == said.number and outcome.kind == HONOURED:
            way = outcome.reason  # with what runs again, if anything does
            ledger.outcomes[hint, op] = _settled(nbytes, limit, way, way == IN_ONE_PIECE)
    write_ledger(module, ledger)
    return nbytes <= limit


def _settled(nbytes: int, limit: int, way: str, unchanged: bool = False) -> Outcome:
    """Return the outcome of a budget in a region that takes `nbytes` in a way, and no less in another one."""
    if nbytes <= limit:
        return budget_kept(nbytes, limit, way, unchanged)
    return budget_too_small(nbytes, f"the least possible is {nbytes:,} bytes, in {way}")


def at_most(error: CompileError, nbytes: int) -> CompileError:
    """Return the refusal of a budget, with what one piece takes where that is less than what it says is least."""
    refusal = error.refusal if isinstance(error, RefusedHintError) else None
    if refusal is None or refusal.outcome.allow <= nbytes:
        return error
    least = Refusal(refusal.hint, _settled(nbytes, 0, IN_ONE_PIECE))
    return RefusedHintError(str(least), error.location, least)


def _form(region: ir.Operation, asked: BudgetRequest) -> Hashable:
    """Return what regions that take as many bytes share: their ops, whatever their names, and what they ask for."""
    text = region.get_asm(enable_debug_info=False, use_local_scope=True, assume_verified=True)
    text = _NUMBERS.sub("", text)
    names: dict[str, str] = {}
    text = _NAMES.sub(lambda found: names.setdefault(found[0], f"%{len(names)}"), text)
    said = [
        None if s is None else (s.hint.parsed, s.hint.strength) for s in (asked.said, asked.budget)
    ]
    return text, asked.axes, *said


def _close_open(region: ir.Operation, ledger: Ledger) -> None:
    """Let another region whose count is open too, and not chosen yet, run in one piece meanwhile."""
    effective = ledger.effective(number(region, REGION))
    said = effective.get("slice")
    if said is not None and any(axis.is_open for axis in said.hint.parsed):
        region.attributes[CHOSEN] = ir.StringAttr.get("")


def _choose(region: ir.Operation, axes: Sequence[TimeAxis], option: _Option, count: int) -> None:
    """Give the open axes of `region` their number of slices, and the results their layout over them."""
    if option == _WHOLE:
        region.attributes[CHOSEN] = ir.StringAttr.get("")
    if option == _WHOLE or not any(axis.is_open for axis in axes):
        return
    settled = [TimeAxis(a.name, count) if a.is_open else a for a in axes]
    region.attributes[CHOSEN] = ir.StringAttr.get(", ".join(map(str, settled)))
    if option.result < 0:
        return
    ops = region.regions[0].blocks[0].operations
    end = ops[len(ops) - 1].operation
    value = end.operands[option.result]
    dims: list[list[str]] = [[] for _ in value.type.shape]
    dims[option.dim] = [a.name for a in axes if a.is_open]
    b = OpBuilder.before(end)
    layout = LayoutAttr.make(Layout.blocks(dims))
    end.operands[option.result] = b.one("hint.place", value.type, value, layout=layout)


def _options(region: ir.Operation, asked: BudgetRequest) -> list[_Option]:
    """Return the ways to lay the open axis, major dims first; without a budget the one that hint-slice takes."""
    placed = extents_of_places(region)
    names = [axis.name for axis in asked.axes if axis.is_open]
    ops = region.regions[0].blocks[0].operations
    types = [v.type for v in ops[len(ops) - 1].operation.operands]
    if names and names[0] in placed:
        return [_Option(-1, -1, max(1, placed[names[0]]))]  # one slice of nothing
    if not names or len(asked.axes) > 1:
        extents = (n for type_ in types if is_tensor(type_) for n in type_.shape)
        return [_Option(-1, -1, max(extents, default=1) or 1)]
    found = [
        _Option(r, d, n)
        for r, type_ in enumerate(types)
        if is_tensor(type_)
        for d, n in enumerate(type_.shape)
        if n > 1
    ]
    return found if asked.budget is not None else _usual(region, names[0], found)


def _usual(region: ir.Operation, name: str, options: Sequence[_Option]) -> list[_Option]:
    """Return the option that hint-slice takes by itself."""
    try:
        program = choose(region, (TimeAxis(name, 2),))
    except CompileError:
        return list(options)  # each will say why not
    cut = [
        (r, d)
        for r, result in enumerate(program.results)
        if result.layout is not None
        for d, axes in enumerate(result.layout.block_axes())
        if axes
    ]
    return [option for option in options if (option.result, option.dim) in cut][:1]


def _decide(search: _Search, region: ir.Operation, ledger: Ledger, cache: int) -> None:
    """Choose a number of slices, write it on the region, and settle the budget in the ledger."""
    asked = search.asked
    block = region.regions[0].blocks[0]
    keeping = (
        asked.budget is not None and asked.said is None and (keeps(block) or bool(stacks_of(block)))
    )
    if asked.budget and asked.said is None and block in chosen_blocks(search.module):
        return  # hint-recompute follows what placement has chosen
    if keeping and len(region.results) > FEW_RESULTS:
        return  # hint-recompute looks at it
    open_axes = [axis for axis in asked.axes if axis.is_open]
    if len(open_axes) > 1:
        names = ", ".join(axis.name for axis in open_axes)
        fail(region, f"slice: {names} are both open: say how many slices of all but one")
    options = _options(region, asked)
    if not open_axes:
        _check(region, asked, search, options[0], ledger)
        return
    limit = cache if asked.budget is None else asked.budget.hint.parsed
    found = []
    for k, option in enumerate(options):
        count = fewest(option.extent, limit, partial(search.nbytes, option), not asked.budget)
        if count is not None:
            found.append((count, k, option))
    if found:
        count, _, option = min(found, key=lambda f: f[:2])
    elif keeping:
        return
    elif (least := _least(search, options)) is not None:
        _, count, option = least
    else:
        _in_one_piece(search, region, ledger)
        return
    _choose(region, asked.axes, option, count)
    search.close(region, ledger, count, option)


def _in_one_piece(search: _Search, region: ir.Operation, ledger: Ledger) -> None:
    """Run the region in one piece, as no number of slices suits, and settle its hints in the ledger."""
    asked, met = search.asked, ops_met(region, ledger)
    if asked.said is None and asked.budget is None:
        return  # hint-slice says of `order` that there is nothing to order
    reason = f"no number of slices suits: {search.problem or 'no dim of the results can be cut'}"
    if asked.said is not None:
        settle(ledger, [asked.said], met, Outcome(INFEASIBLE, reason), region)
    region.attributes[CHOSEN] = ir.StringAttr.get("")
    if asked.budget is not None:
        nbytes = search.nbytes(_WHOLE, 1) or 0
        limit = asked.budget.hint.parsed
        outcome = budget_kept(nbytes, limit, IN_ONE_PIECE, unchanged=True)
        if nbytes > limit:
            outcome = Outcome(INFEASIBLE, f"{reason}; in one piece it takes {nbytes:,} bytes")
        settle(ledger, [asked.budget], met, outcome, region)


def _check(
    region: ir.Operation, asked: BudgetRequest, search: _Search, option: _Option, ledger: Ledger
) -> None:
    """Settle the budget of a region whose number of slices is said."""
    nbytes = search.nbytes(option, 0)
    if nbytes is None:  # hint-slice says why, of what is required
        if asked.budget is not None and asked.budget.hint.strength != REQUIRED:
            reason = f"the slices it asks for cannot be: {search.problem}"
            met = ops_met(region, ledger)
            settle(ledger, [asked.budget], met, Outcome(INFEASIBLE, reason), region)
        return
    search.close(region, ledger, 0, option)


def fewest(extent: int, limit: int, nbytes: Callable[[int], int | None], even: bool) -> int | None:
    """Return the least number of slices of `extent` elements with nbytes(number) at most `limit`, or None.

    Of the divisors of the extent larger ones are assumed to need less. Between two divisors up to MAX_RAGGED other
    numbers are tried, unless `even` is asked for.
    """

    def fits(count: int) -> bool:
        found = nbytes(count)
        return found is not None and found <= limit

    divisors = [n for n in range(1, extent + 1) if extent % n == 0]
    if fits(1):
        return 1
    if not fits(divisors[-1]):  # the most cannot be, or there are only large ones
        return next((n for n in divisors if fits(n)), None)
    low, high = -1, len(divisors) - 1  # divisors[high] fits, divisors[low] does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(divisors[middle]) else (middle, high)
    best = divisors[high]
    if even or low < 0:
        return best
    between = sorted(
        {-(-extent // s) for s in range(extent // best, -(-extent // divisors[low]) + 1)}
    )
    between = [n for n in between if divisors[low] < n < best]
    return next((n for n in between[-MAX_RAGGED:] if fits(n)), best)


def _least(search: _Search, options: Sequence[_Option]) -> tuple[int, int, _Option] | None:
    """Return the least bytes possible, with the number of slices and the option that take them."""
    found = [
        (nbytes, option.extent, option)
        for option in options
        if (nbytes := search.nbytes(option, option.extent)) is not None
    ]
    return min(found, key=lambda f: f[:2], default=None)


def _close(
    region: ir.Operation,
    asked: BudgetRequest,
    ledger: Ledger,
    nbytes: int,
    count: int,
    option: _Option,
) -> None:
    said = asked.budget
    if said is None:
        return
    many = f"{count} slices along {option}" if count else "the slices it asks for"
    met = ops_met(region, ledger)
    outcome = _settled(nbytes, said.hint.parsed, many)
    if nbytes > said.hint.parsed and not count:
        outcome = Outcome(
            INFEASIBLE, f"{many} take {nbytes:,} bytes", 'leave the number open, as slice = "t"'
        )
    settle(ledger, [said], met, outcome, region)


def check_budgets(module: ir.Module, program: LoweredProgram) -> None:
    """Raise CompileError for a program in which a region takes more than its required budget after all.

    module: the local view, with its ledger. program: what lowering made of it.
    """
    ledger = read_ledger(module)
    asked = [s for s in ledger.said if s.hint.key == "peak_bytes" and s.hint.strength == REQUIRED]
    taken = _taken(module, program) if asked else {}
    for said in asked:
        nbytes = taken.get(said.region, 0)
        if nbytes > said.hint.parsed:
            reason = f"with all passes done the region takes {nbytes:,} bytes"
            refusal = Refusal(said.hint, budget_too_small(nbytes, reason))
            raise RefusedHintError(str(refusal), said.hint.where, refusal)
