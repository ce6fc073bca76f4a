"""Move regions before or after the bundles that their `order` names, where their operands and readers allow it."""

from meshweave.hints.ledger import HONOURED, INFEASIBLE, Ledger, Outcome
from meshweave.ir.bindings import ir
from meshweave.ir.calls import has_effects
from meshweave.transforms.base import users, walk
from meshweave.transforms.slicing.body import outside
from meshweave.transforms.slicing.ledger import REGION, number, ops_met, regions_of, settle


def arrange(module: ir.Module, ledger: Ledger) -> None:
    """Put each region that says before=@b or after=@b in its place, and close these hints."""
    regions = {number(op, REGION): op for op in regions_of(module)}
    bundles: dict[str, list[ir.Operation]] = {}
    for said in ledger.said:
        if said.hint.key == "bundle" and said.region in regions:
            bundles.setdefault(said.hint.value, []).append(regions[said.region])
    for said in ledger.said:
        if said.hint.key != "order" or said.region not in regions:
            continue
        order, region = said.hint.parsed, regions[said.region]
        for name, first in [(n, True) for n in order.before] + [(n, False) for n in order.after]:
            word = "before" if first else "after"
            outcome = Outcome(HONOURED, f"runs {word} @{name}")
            problem = _placed(region, bundles.get(name, []), first)
            if problem:
                outcome = Outcome(INFEASIBLE, f"{word}=@{name}: {problem}")
            settle(ledger, [said], ops_met(region, ledger), outcome, region)


def _placed(region: ir.Operation, others: list[ir.Operation], first: bool) -> str:
    """Move `region` before (or behind) all of `others`. Return why it cannot be, or ""."""
    others = [other for other in others if other != region]
    if not others:
        return "no other region has that bundle"
    for other in others:
        if other.block != region.block:
            return "that region stands in another block"
    places = {view.operation: i for i, view in enumerate(region.block.operations)}
    ahead = [o for o in others if (places[o] < places[region]) == first]
    if not ahead:
        return ""
    if first:
        target = min(ahead, key=lambda o: places[o])
        for op, i in outside(region):
            owner = op.operands[i].owner
            here = None if isinstance(owner, ir.Block) else places.get(owner.operation)
            if here is not None and here >= places[target]:
                return "it reads what is made there or later"
        if _both_call(region, list(places)[places[target] : places[region]]):
            return _IN_ORDER
        region.move_before(target)
        return ""
    target = max(ahead, key=lambda o: places[o])
    for result in region.results:
        for user in users(result):
            if places[_in_block(user.operation, places)] <= places[target]:
                return "what it makes is read there or earlier"
    if _both_call(region, list(places)[places[region] + 1 : places[target] + 1]):
        return _IN_ORDER
    region.move_after(target)
    return ""


_IN_ORDER = "both call Python, in the order of the program"


def _both_call(region: ir.Operation, passed: list[ir.Operation]) -> bool:
    """Tell whether there are calls of Python with effects in a region, and in ops that it would pass."""
    calls = [any(map(has_effects, walk(op))) for op in (region, *passed)]
    return calls[0] and any(calls[1:])


def _in_block(op: ir.Operation, places: dict[ir.Operation, int]) -> ir.Operation | None:
    """Return `op`, or the op around it that is in the block of `places`."""
    while op not in places:
        op = op.parent.operation
    return op
