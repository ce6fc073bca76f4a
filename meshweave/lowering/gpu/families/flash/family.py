"""Take units that are attentions, which no other family computes; those of few queries in two launches."""

from __future__ import annotations

from dataclasses import dataclass

from meshweave.device import CHIPS
from meshweave.errors import CompileError
from meshweave.lowering.buffers.steps import Root
from meshweave.lowering.gpu.facts import MOST, Facts
from meshweave.lowering.gpu.families.flash import wgmma
from meshweave.lowering.gpu.families.flash.join import joining_kernel
from meshweave.lowering.gpu.families.flash.kernel import FlashKernel, PartLayout
from meshweave.lowering.gpu.families.flash.masks import KEYS
from meshweave.lowering.gpu.families.flash.nest import AttentionNest, attention_of
from meshweave.lowering.gpu.families.flash.reduced import SumsKernel
from meshweave.lowering.gpu.families.flash.sums import sums_of
from meshweave.lowering.gpu.families.pieces import SCRATCH
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.nests.bind import Pointed, Pointers
from meshweave.lowering.nests.linear import Linear
from meshweave.lowering.nests.rows import KernelUnit

FEW = 16  # queries of a head up to which blocks share its keys
BLOCKS = 264  # of the grid, about: two for each multiprocessor
SHORTEST = 4  # tiles of keys of a piece, at least
MOST_PIECES = 32


@dataclass
class SplitAttention(KernelUnit):
    """Hold an attention whose keys are cut in `pieces`: the launch that has the pieces, or the one that `joins` them.

    Its last pointer is that of the parts, in scratch memory.
    """

    pieces: int
    joins: bool

    @property
    def key(self) -> tuple[object, ...]:
        """Return a value that is equal for units with the same code."""
        return (*super().key, self.pieces, self.joins)


def build(unit: KernelUnit, target: Target, facts: Facts) -> DeviceKernel | None:
    """Return the kernel of a unit that is an attention, or a half of one, else None."""
    attention, sums = attention_of(unit.nests[0]), sums_of(unit.nests[0])
    if attention is None and sums is None:
        return None
    chip = CHIPS[target.chip]
    if not chip.tensor_cores:
        raise CompileError(f"chip {target.chip} has no kernel of {_WITHOUT}", unit.where)
    if attention is None:
        assert sums is not None, "it is one of the two"
        kernel = SumsKernel(unit, sums, facts).kernel()
    elif isinstance(unit, SplitAttention) and unit.joins:
        return joining_kernel(unit, attention, facts, unit.pieces)
    else:
        pieces = unit.pieces if isinstance(unit, SplitAttention) else 0
        if not pieces and wgmma.suits(attention, target, facts):
            kernel = wgmma.WgmmaAttention(unit, attention, facts).kernel()
        else:
            kernel = FlashKernel(unit, attention, facts, pieces).kernel()
    if kernel.shared_bytes > chip.shared_bytes:
        raise CompileError(
            f"chip {target.chip}: a block has {chip.shared_bytes} bytes of shared memory, of {kernel.shared_bytes} for "
            f"{_WITHOUT}",
            unit.where,
        )
    return kernel


_WITHOUT = 'attention without its scores: compile with kernels="-flash"'


def halves(unit: KernelUnit, facts: Facts) -> list[tuple[KernelUnit, Facts]] | None:
    """Return the two launches of an attention of few queries; None for any other unit."""
    attention = attention_of(unit.nests[0])
    if attention is None or attention.values.m.count > FEW:
        return None
    pieces = _pieces(attention)
    nbytes = PartLayout.of(attention, pieces).nbytes
    some_value = unit.pointers.places[0].root.value  # scratch memory is no value of the program
    places = [*unit.pointers.places, Pointed(Root(SCRATCH, 0, nbytes, some_value), Linear(0), 4)]
    scalars, last = list(unit.pointers.scalars), len(places) - 1
    known = Facts((*facts.alignments, MOST), facts.dead)
    found: list[tuple[KernelUnit, Facts]] = []
    for joins in (False, True):
        written = set(unit.pointers.written) if joins else {last}
        pointers = Pointers(list(places), written, scalars)
        half = SplitAttention(unit.nests, unit.rows, pointers, unit.steps, pieces, joins)
        found.append((half, known))
    return found


def _pieces(attention: AttentionNest) -> int:
    """Return the pieces that the keys are cut in: as many as keep a device busy, none too short."""
    tiles = -(-attention.keys // KEYS)
    wanted = -(-BLOCKS // attention.values.batch.count)
    pieces = max(1, min(wanted, tiles // SHORTEST, MOST_PIECES))
    each = -(-tiles // pieces)
    return -(-tiles // each)
