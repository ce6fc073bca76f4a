"""hint-verify: no hint is lost. Find what became of every pair of hint and op, and close the ledger.

An op that is there no more is dead. A region that is gone though no pass has applied it was dropped by one: an error
that names it. So is a hint that nothing has answered. The numbers on ops go, the ledger stays on the module.
"""

from dataclasses import dataclass
from typing import ClassVar

from meshweave.hints.ledger import DEAD, Ledger, Outcome
from meshweave.ir.bindings import ir
from meshweave.transforms.base import Pass, fail, fail_all
from meshweave.transforms.slicing.ledger import (
    LEDGER,
    REGION,
    number,
    ops_met,
    read_ledger,
    regions_of,
    write_ledger,
)
from meshweave.transforms.slicing.strip import forget

_ANSWERS = {
    "kernels": "select-kernels",
    "numerics": "select-kernels",
    "overlap": "dist-overlap",
}
"""The pass that answers hints of a key behind hint-slice."""


@dataclass(frozen=True)
class HintVerify(Pass):
    """Close the ledger; an error where it does not."""

    name: ClassVar[str] = "hint-verify"

    def run(self, module: ir.Module) -> None:
        standing = regions_of(module)
        if LEDGER not in module.operation.attributes:
            if standing:
                fail(
                    standing[0],
                    "the hints of this region were never read: run hint-apply first",
                )
            return
        ledger = read_ledger(module)
        close_dead(module, ledger)
        _check(module, ledger, {number(op, REGION): op for op in standing})
        write_ledger(module, ledger)
        forget(module, ledger=False)


def close_dead(module: ir.Module, ledger: Ledger) -> None:
    """Close the pairs of the ops that are gone."""
    there = set(ops_met(module, ledger))
    for said, op in ledger.open_pairs():
        if op.number not in there:
            ledger.close(said.number, op.number, Outcome(DEAD, "the op was erased"))


def _check(module: ir.Module, ledger: Ledger, standing: dict[int, ir.Operation]) -> None:
    """Refuse a ledger that does not close, with each region and hint at fault once."""
    problems: dict[ir.Operation, tuple[ir.Operation, str]] = {}
    for said, op in ledger.open_pairs():
        region = ledger.regions[op.region]
        if region.number in standing:
            text = f"{said.hint} of the region at {said.hint.where} was not applied: run hint-slice"
            place = standing[region.number]
        elif not region.applied:
            text = (
                f"the region at {region.where} was dropped by a pass before its hints were applied: "
                f"{said.hint} on {op.name} at {op.where} is lost"
            )
            place = module.operation
        elif said.hint.key in _ANSWERS:
            missing = _ANSWERS[said.hint.key]
            text = f"{said.hint} of the region at {said.hint.where} was not applied: run {missing}"
            place = module.operation
        else:
            text = (
                f"the ledger does not close: nothing is known of {said.hint} at {said.hint.where} "
                f"on {op.name} at {op.where}"
            )
            place = module.operation
        problems.setdefault((region.number, said.number), (place, text))
    fail_all(list(problems.values()))
