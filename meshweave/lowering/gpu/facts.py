"""What is known of a unit's memory besides the unit itself: how its pointers are aligned, and which
of its results nobody reads afterwards. Kernels depend on it, so units of one key may need several.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from meshweave.abi import ALIGNMENT
from meshweave.lowering.gpu.builder import GLOBAL, Parameter
from meshweave.lowering.gpu.nodes import stored
from meshweave.lowering.rows import Unit
from meshweave.lowering.schedule import Schedule
from meshweave.lowering.steps import Root

MOST = 16  # bytes of the widest access; nobody asks for more


@dataclass(frozen=True)
class Facts:
    """alignments: of each pointer of the unit, in bytes, at most 16. dead: pointers to buffers that
    nobody reads after the unit.
    """

    alignments: tuple[int, ...]
    dead: frozenset[int] = frozenset()


def start_alignment(root: Root) -> int:
    """Alignment of a buffer's first byte: the arena's and the runtime's own are good for any
    access; of pointers that control flow hands on nothing is known.
    """
    return 1 if root.kind == "pointer" else ALIGNMENT


def facts_of(
    unit: Unit,
    schedule: Schedule | None = None,
    start: Callable[[Root], int] = start_alignment,
) -> Facts:
    """schedule: where the unit runs, once settled; None: nothing is known of what follows. start:
    alignment of a buffer, where the inputs of a function may lie anywhere.
    """
    alignments = []
    for root, offset, nbytes in unit.pointers.places:
        factors = [offset.const, *(factor for _, factor in offset.terms)]
        known = math.gcd(MOST, start(root), *(f * nbytes for f in factors))
        alignments.append(max(known, nbytes))
    return Facts(tuple(alignments), _dead(unit, schedule) if schedule else frozenset())


def _dead(unit: Unit, schedule: Schedule) -> frozenset[int]:
    """Pointers whose buffers end in this unit."""
    here = [
        at
        for at, entry in schedule.moments
        if isinstance(entry, Unit) and entry.steps is unit.steps
    ]
    if len(here) != 1:
        return frozenset()
    ends = {root: block.last for root, block in schedule.blocks.items()}
    return frozenset(
        k
        for k, (root, _, _) in enumerate(unit.pointers.places)
        if ends.get(schedule.final(root)) == here[0]
    )


def parameters_of(unit: Unit, facts: Facts, phases: int = 1) -> list[Parameter]:
    """The parameters of a kernel: p0.., then s0.. .

    phases: parts of the kernel with barriers between them. What one thread writes and another reads
    then must not be noalias: LLVM takes it that a barrier leaves such memory alone.
    """
    pointers, found = unit.pointers, []
    roots = [root for root, _, _ in pointers.places]
    written = {roots[k] for k in pointers.written}
    for k, alone in enumerate(pointers.exclusive()):
        read = roots[k] not in written
        found.append(
            Parameter(f"p{k}", GLOBAL, facts.alignments[k], alone and (read or phases == 1), read)
        )
    kinds = parameter_types(unit)[len(roots) :]
    return found + [Parameter(f"s{k}", kind) for k, kind in enumerate(kinds)]


def parameter_types(unit: Unit) -> tuple[str, ...]:
    """As `DeviceKernel.parameters` has them."""
    scalars = tuple(stored(str(s.type)) for s in unit.pointers.scalars)
    return ("ptr",) * len(unit.pointers.places) + scalars
