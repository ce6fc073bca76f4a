"""The families of kernels, the most special first: each makes a kernel of a unit, or leaves it to
the next. The last one takes every unit.
"""

from __future__ import annotations

import math

from meshweave.lowering.gpu import columns, elementwise, gemm, plain, rows, transpose
from meshweave.lowering.gpu.facts import Facts, facts_of
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.rows import Unit, finished

FAMILIES = (
    ("gemm", gemm.build),
    ("transpose", transpose.build),
    ("elementwise", elementwise.build),
    ("rows", rows.build),
    ("columns", columns.build),
    ("plain", plain.build),
)
ENOUGH_ROWS = 264  # blocks that keep a device busy: two for each multiprocessor


def build(unit: Unit, target: Target, facts: Facts | None = None) -> DeviceKernel:
    """The kernel of a unit. facts: of its memory; None: what its pointers alone tell."""
    facts, target = facts or facts_of(unit), target.within(unit.nests)
    for name, family in FAMILIES:
        if name == "plain" or name not in target.disabled:
            made = family(unit, target, facts)
            if made is not None:
                return made
    raise AssertionError("plain kernels take every unit")


def launches_of(unit: Unit, target: Target, facts: Facts) -> list[tuple[Unit, Facts]]:
    """The unit, or its nests one by one, to be launched in this order: nests that only a plain
    kernel could do together, where the rows that they share are too few to be a block each.
    """
    count = math.prod(unit.nests[0].sizes[: unit.rows])
    if len(unit.nests) == 1 or count >= ENOUGH_ROWS:
        return [(unit, facts)]
    if build(unit, target, facts).family != "plain":
        return [(unit, facts)]
    alone = Facts(facts.alignments)
    return [
        (finished(Unit([nest], 0, unit.pointers, [step])), alone)
        for nest, step in zip(unit.nests, unit.steps)
    ]


def key_of(unit: Unit, facts: Facts) -> tuple[object, ...]:
    """Equal for units of the same kernel: kernels ask also which pointers go to one buffer."""
    roots = [root for root, _, _ in unit.pointers.places]
    return (unit.key, tuple(roots.index(root) for root in roots), facts)
