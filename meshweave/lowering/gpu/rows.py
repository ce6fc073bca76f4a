"""Row kernels: softmax, norms, and reductions along what lies side by side. A row is done by a group
of threads, up to a block, which keeps it in registers where it fits: it is read once, whatever the
number of nests.

Each nest is either a map over the row, a reduction of the row, or a computation on what a row has
one of. Values pass between nests as flow.py says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from meshweave.fast_paths import BIT_EXACT, DETERMINISTIC
from meshweave.lowering.bind import Nest, reordered
from meshweave.lowering.gpu import groups
from meshweave.lowering.gpu.builder import Builder
from meshweave.lowering.gpu.facts import Facts, parameter_types, parameters_of
from meshweave.lowering.gpu.flow import Flow, Phase, phase_of, row_elements
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.lanes import WIDEST, aligned_piece
from meshweave.lowering.gpu.launch import MOST_BLOCKS, REUSE, entry_name, index_type
from meshweave.lowering.gpu.nodes import frame_of, needed, results, width
from meshweave.lowering.gpu.reduction import combiners
from meshweave.lowering.gpu.rowcode import RowCode
from meshweave.lowering.rows import Unit

CHUNKS = 4  # of a thread, in each row that is kept in registers, as long as there are threads
BLOCK = 128  # threads of a block that does several rows
MOST_THREADS = 1024
REGISTERS, FEWER = 48, 32  # of a thread for its rows; with the most threads there are fewer
BUSY = 132 * 512  # threads below which rows are given more of them
MOST_OPS = 4000  # ops of a thread beyond which rows are walked in a loop


@dataclass(frozen=True)
class Shape:
    """How rows are given to threads.

    rows, elements: sizes; lanes: neighbouring elements of a thread; group: threads of a row;
    together: rows of a block; held: whether rows stay in registers.
    """

    rows: int
    elements: int
    lanes: int
    group: int
    together: int
    held: bool

    @property
    def chunks(self) -> int:
        """Groups of lanes in a row."""
        return -(-self.elements // self.lanes)

    @property
    def turns(self) -> int:
        """Chunks of each thread, the last ones maybe beyond the row."""
        return -(-self.chunks // self.group)


def build(unit: Unit, target: Target, facts: Facts) -> DeviceKernel | None:
    """A kernel for nests that share rows, or for one that reduces what lies side by side; None
    where the unit is neither.
    """
    unit = _inner_last(unit)
    rows = unit.rows or _parallel(unit.nests[0])
    phases = [phase_of(nest, rows) for nest in unit.nests]
    if not _suits(unit, rows):
        return None
    shape, flow = _shape(unit, rows, phases, facts)
    if -(-shape.rows // shape.together) > MOST_BLOCKS:
        return None
    slots = max((len(n.stores) for n in unit.nests if n.reductions), default=0)
    name = entry_name("rows", unit)
    builder = Builder(
        name,
        parameters_of(unit, facts, len(phases)),
        shape.group * shape.together,
        shared_bytes=groups.shared_bytes(shape.group, slots),
    )
    frame = frame_of(builder, unit, index_type(unit))
    RowCode(frame, flow, shape, rows, slots).write()
    return DeviceKernel(
        entry=name,
        text=builder.text(),
        grid=(-(-shape.rows // shape.together), 1, 1),
        block=(builder.threads, 1, 1),
        shared_bytes=0,
        parameters=parameter_types(unit),
        family="rows",
        numerics=DETERMINISTIC if slots else BIT_EXACT,
    )


def _parallel(nest: Nest) -> int:
    return len(nest.sizes) - len(nest.reductions)


def _inner_last(unit: Unit) -> Unit:
    """The unit with the reduction that walks memory by ones as the innermost loop."""
    nests = []
    for nest in unit.nests:
        dims = sorted(nest.reductions)
        ones = [d for d in dims if any(a.strides[d] == 1 for a in nest.accesses)]
        if ones and dims == list(range(_parallel(nest), len(nest.sizes))):
            last = max(ones, key=lambda d: nest.sizes[d])
            order = [d for d in range(len(nest.sizes)) if d != last]
            nest = reordered(nest, [*order, last])
        nests.append(nest)
    return replace(unit, nests=nests)


def _suits(unit: Unit, rows: int) -> bool:
    """Whether each nest is a map, a reduction or a computation per row, over rows of one length."""
    if any(0 in nest.sizes for nest in unit.nests):
        return False
    lengths = {row_elements(n, rows) for n in unit.nests if len(n.sizes) > rows}
    if len(lengths) != 1:
        return False
    for nest in unit.nests:
        inner = len(nest.sizes) - rows
        if nest.reductions and (len(nest.reductions) != inner or combiners(nest) is None):
            return False
    return len(unit.nests) > 1 or (bool(unit.nests[0].reductions) and _streams(unit.nests[0]))


def _streams(nest: Nest) -> bool:
    """Whether a lone reduction reads along its innermost loop, and nothing much more than once."""
    last = len(nest.sizes) - 1
    loads = [node[1] for node in nest.code if node[0] == "load"]
    along = [a for a in loads if any(a.strides[d] for d in nest.reductions)]
    if not along:
        return False
    volume = max(math.prod(n for n, s in zip(nest.sizes, a.strides) if s) for a in along)
    together = all(a.strides[last] in (0, 1) for a in along)
    return together and math.prod(nest.sizes) <= REUSE * volume


def _lanes(unit: Unit, rows: int, facts: Facts) -> int:
    """Neighbouring elements of a thread, so that the widest accesses have 16 bytes."""
    count = 1
    for nest in unit.nests:
        if len(nest.sizes) == rows:
            continue
        last = len(nest.sizes) - 1
        typed = [(node[1], node[2]) for node in nest.code if node[0] == "load"]
        typed += [(s.access, s.type) for s in nest.stores]
        for access, type_ in typed:
            if access.strides[last] == 1:
                steps, alignment = access.strides[:last], facts.alignments[access.pointer]
                most = WIDEST // width(type_)
                count = max(count, aligned_piece(alignment, steps, width(type_), most))
    inner = [n.sizes[-1] for n in unit.nests if len(n.sizes) > rows]
    while any(size % count for size in inner):
        count //= 2
    return count


def _shape(unit: Unit, rows: int, phases: list[Phase], facts: Facts) -> tuple[Shape, Flow]:
    """How many threads a row gets, and whether it stays in their registers."""
    nests = unit.nests
    count = math.prod(nests[0].sizes[:rows])
    elements = next(row_elements(n, rows) for n in nests if len(n.sizes) > rows)
    lanes = _lanes(unit, rows, facts)
    ops = sum(len(needed(n, results(n))) for n in nests)
    flow = Flow(unit, phases, facts, True)
    group = min(groups.WARP, _power(-(-elements // lanes)))

    def shape(held: bool) -> Shape:
        together = BLOCK // group if group <= groups.WARP else 1
        least = max(1, groups.WARP // group)
        return Shape(count, elements, lanes, group, max(least, min(together, _power(count))), held)

    def fits() -> bool:
        here = shape(True)
        values = here.turns * lanes
        most = FEWER if group == MOST_THREADS else REGISTERS
        return values * flow.most_held() <= most and values * ops <= MOST_OPS

    while group < MOST_THREADS and (
        shape(True).turns > CHUNKS
        or not fits()
        or (shape(True).turns > 1 and count * group < BUSY and group >= groups.WARP)
    ):
        if shape(True).turns == 1:
            break
        group *= 2
    if fits():
        return shape(True), flow
    return shape(False), Flow(unit, phases, facts, False)


def _power(number: int) -> int:
    """The least power of 2 that is not smaller."""
    return 1 << max(0, number - 1).bit_length()
