"""Say what is known of a unit's memory besides the unit itself.

Kernels depend on the alignment of pointers and on which results are read afterwards, so units of
one key may need several.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from meshweave.abi import ALIGNMENT
from meshweave.lowering.buffers.function_plan import FunctionPlan
from meshweave.lowering.buffers.steps import Root
from meshweave.lowering.gpu.writer import GLOBAL, Parameter
from meshweave.lowering.nests.evaluate import stored
from meshweave.lowering.nests.linear import Linear
from meshweave.lowering.nests.rows import KernelUnit

MOST = 16  # bytes of the widest access; nobody asks for more


@dataclass(frozen=True)
class Facts:
    """Hold what is known of a unit's memory.

    alignments: of each pointer, in bytes, at most 16. dead: pointers to buffers that are not read
    after the unit.
    """

    alignments: tuple[int, ...]
    dead: frozenset[int] = frozenset()


def start_alignment(root: Root) -> int:
    """Return the alignment of a buffer's first byte.

    Memory of the arena and the runtime is good for any access; nothing is known of pointers that
    control flow hands on.
    """
    return 1 if root.kind == "pointer" else ALIGNMENT


def facts_of(
    unit: KernelUnit,
    plan: FunctionPlan | None = None,
    start: Callable[[Root], int] = start_alignment,
) -> Facts:
    """Return what is known of a unit's memory.

    plan: where the unit runs, once settled; None: nothing is known of what follows. start:
    alignment of a buffer, where the inputs of a function may lie anywhere.
    """
    known = [
        min(MOST, alignment(start(root), offset, nbytes))
        for root, offset, nbytes in unit.pointers.places
    ]
    return Facts(tuple(known), _dead(unit, plan) if plan else frozenset())


def alignment(start: int, offset: Linear, nbytes: int) -> int:
    """Return the known alignment of an element, in bytes: at least its own size. start: that of its buffer."""
    factors = [offset.const, *(factor for _, factor in offset.terms)]
    return max(math.gcd(start, *(factor * nbytes for factor in factors)), nbytes)


def _dead(unit: KernelUnit, plan: FunctionPlan) -> frozenset[int]:
    """Return the pointers whose buffers end in this unit."""
    here = [
        at
        for at, entry in plan.moments
        if isinstance(entry, KernelUnit) and entry.steps is unit.steps
    ]
    if len(here) != 1:
        return frozenset()
    ends = {root: block.last for root, block in plan.blocks.items()}
    return frozenset(k for k, root in enumerate(unit.pointers.roots) if ends.get(root) == here[0])


def parameters_of(unit: KernelUnit, facts: Facts, phases: int = 1) -> list[Parameter]:
    """Return the parameters of a kernel: pointers p0, p1 and so on, then scalars s0, s1 and so on.

    phases: parts of the kernel with barriers between them. What one thread writes and another reads
    then must not be noalias: LLVM takes it that a barrier leaves such memory alone.
    """
    pointers, found = unit.pointers, []
    roots, written = pointers.roots, pointers.written_roots
    for k, alone in enumerate(pointers.exclusive()):
        read = roots[k] not in written
        found.append(
            Parameter(f"p{k}", GLOBAL, facts.alignments[k], alone and (read or phases == 1), read)
        )
    scalars = enumerate(unit.pointers.scalars)
    return found + [Parameter(f"s{k}", stored(str(s.type))) for k, s in scalars]
