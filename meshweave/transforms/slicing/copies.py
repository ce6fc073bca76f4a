"""Enter in the ledger what a program computes again because its author wished it so, as by jax.checkpoint."""

from dataclasses import replace

from meshweave.dialects.again import AGAIN, Repeats
from meshweave.hints.keys import PREFERRED, Hint
from meshweave.hints.ledger import HONOURED, Ledger, Op, Outcome, Region, StatedHint
from meshweave.ir.bindings import ir
from meshweave.plan.placement.prices import MachinePrices
from meshweave.plan.recompute import RowRun, WorkRow, peak
from meshweave.transforms.base import functions
from meshweave.transforms.slicing.works import BlockWorks, works_of


def enter_copies(module: ir.Module, ledger: Ledger) -> None:
    """Record the wish to compute again of each function that has one, with what comes of it."""
    for f in functions(module):
        attributes = f.operation.attributes
        if AGAIN not in attributes:
            continue
        where = attributes[AGAIN].value
        del attributes[AGAIN]
        region, said, op = len(ledger.regions), len(ledger.said), len(ledger.ops)
        ledger.regions.append(Region(region, where, applied=True))
        hint = Hint.make("again", "checkpoint", PREFERRED, where)
        ledger.said.append(StatedHint(said, region, hint))
        ledger.ops.append(Op(op, "func.func", where, region))
        ledger.close(said, op, Outcome(HONOURED, _gain(f.operation.regions[0].blocks[0])))


def _gain(block: ir.Block) -> str:
    """Say how many ops run again, and how many bytes fewer are alive at the peak because of it."""
    found = Repeats()
    found.read(block, {})
    works = works_of(block, None, MachinePrices())
    now, kept = peak(works.row, _runs(works.row)), peak(row := _kept(works, found), _runs(row))
    return (
        f"{len(found.copies)} ops run again: at most {now:,} bytes are alive between arguments and results, not "
        f"{kept:,}, in whole tensors and in this order"
    )


def _runs(row: WorkRow) -> list[RowRun]:
    return [
        RowRun(number, False, tuple((v, False) for v in work.reads))
        for number, work in enumerate(row.works)
    ]


def _kept(works: BlockWorks, found: Repeats) -> WorkRow:
    """Return the row without the copies: what reads these reads what they are copies of."""
    copies = {op for op, _ in found.copies}
    roots = works.roots
    same = {roots[v]: roots[w] for v, w in found.same.items() if v in roots and w in roots}
    rest = [
        replace(work, reads=tuple(dict.fromkeys(same.get(v, v) for v in work.reads)))
        for op, work in zip(works.ops, works.row.works, strict=True)
        if op not in copies
    ]
    return WorkRow(tuple(rest), works.row.nbytes)
