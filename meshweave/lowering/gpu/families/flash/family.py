"""Take units that are attentions, which no other family computes."""

from __future__ import annotations

from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.flash.kernel import FlashKernel
from meshweave.lowering.gpu.families.flash.nest import attention_of
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.nests.rows import KernelUnit


def build(unit: KernelUnit, target: Target, facts: Facts) -> DeviceKernel | None:
    """Return the kernel of a unit that is an attention, else None."""
    attention = attention_of(unit.nests[0])
    return None if attention is None else FlashKernel(unit, attention, facts).kernel()
