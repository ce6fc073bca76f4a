"""Read which works of a program may run again, for placement to choose which of them do; mark those that are chosen."""

from collections.abc import Sequence

from meshweave.dialects.again import RUNS_AGAIN
from meshweave.ir.bindings import ir
from meshweave.plan.placement.again import AgainRow, RowPlaces
from meshweave.plan.placement.prices import MachinePrices
from meshweave.transforms.base import walk
from meshweave.transforms.propagation.graph import Built
from meshweave.transforms.propagation.live import LiveRow
from meshweave.transforms.slicing.works import works_of


def again_row(built: Built, live: LiveRow) -> AgainRow:
    """Return the works of a block that may run again, where some value of it is kept for long."""
    works = works_of(live.block, None, MachinePrices())
    sites: dict[ir.Operation, list[int]] = {}
    for number, site in enumerate(built.sites):
        sites.setdefault(site.op, []).append(number)

    def ops_of(members: Sequence[int]) -> tuple[int, ...]:
        """Return the ops of the graph that a work is; none where it cannot run again here."""
        found: list[int] = []
        for op in [works.ops[m] for m in members]:
            mine = [number for one in walk(op) for number in sites.get(one, ())]
            if not mine or not all(built.sites[number].results for number in mine):
                return ()
            found += mine
        return tuple(found)

    values: dict[int, int] = {}
    for value, number in works.roots.items():
        values.setdefault(number, built.values.get(value, -1))
    row = works.joined
    return RowPlaces(
        row,
        [ops_of(members) for members in row.members],
        values,
        [live.at[works.ops[members[-1]]] for members in row.members],
        live.held,
    ).row_of(len(live.moments), live.number)


def mark(built: Built, live: LiveRow, row: AgainRow, chosen: Sequence[int]) -> None:
    """Say on each op of the block whether it is chosen to run again, for `hint-recompute`; nothing if none is."""
    again = {built.sites[op].op for number in chosen for op in row.works[number].ops}
    for op in live.at if again else ():
        op.attributes[RUNS_AGAIN] = ir.BoolAttr.get(op in again)
