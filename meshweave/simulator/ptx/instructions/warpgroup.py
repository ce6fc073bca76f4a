"""Execute wgmma: a warpgroup's tensor cores multiply what they read of shared memory by themselves.

They read it by the asynchronous proxy: only what the thread that wrote it has shown by `fence.proxy.async`. From the
instruction to the `wait_group` that covers it, nothing may write what they read, and nothing else may touch the
registers that they add to. A `wgmma.fence` stands between whatever else touches these and the next product.
Products are summed in f32, in NumPy's order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from meshweave.simulator.ptx.batch import Batch, Multiplying, TensorReads
from meshweave.simulator.ptx.handlers import Builder, Handler, Scope, put_rows, rows_of
from meshweave.simulator.ptx.instructions.collectives import check_members
from meshweave.simulator.ptx.instructions.matrix import operand_a, operand_registers
from meshweave.simulator.ptx.memory import MemoryAccess
from meshweave.simulator.ptx.numbers import widen
from meshweave.simulator.ptx.program import Immediate, Instruction, Register, Vector
from meshweave.simulator.ptx.races import LaneAccess
from meshweave.simulator.ptx.spaces import READ_PIECE, SPACES

GROUP = 128  # threads of a warpgroup
_ROWS, _DEPTH, _CHUNK = 64, 16, 16
_LINE, _ATOM = 128, 8  # bytes of a swizzled line, and lines of an atom


def build(instruction: Instruction, scope: Scope) -> Handler:
    """Execute wgmma and its groups."""
    if instruction.has("mma_async"):
        return _multiply(instruction, scope)
    if not scope.accumulators:  # nothing to order
        return lambda batch: None
    if instruction.has("fence"):
        return lambda batch: _fence(batch, instruction)
    if instruction.has("commit_group"):
        return lambda batch: _commit(batch, instruction)
    if instruction.has("wait_group") and isinstance(instruction.operands[0], Immediate):
        pending = instruction.operands[0].value
        return lambda batch: _wait(batch, instruction, pending)
    raise instruction.refuse()


def show(instruction: Instruction, scope: Scope) -> Handler:
    """Execute the fences: only that of the asynchronous proxy has an effect here."""
    if not instruction.has("proxy") or not instruction.has("async"):
        return lambda batch: None

    def run(batch: Batch) -> None:
        if batch.shared.proxy is not None:
            batch.shared.proxy.show(batch.lanes)

    return run


def untouched(handler: Handler, instruction: Instruction, names: list[str]) -> Handler:
    """Run a handler that reads or writes registers to which wgmma adds: not while it does."""

    def run(batch: Batch) -> None:
        state = batch.multiplying
        assert state is not None
        for register in names:
            busy = state.flights[register][batch.lanes] >= state.done[batch.lanes]
            if busy.any():
                lane = int(batch.lanes[int(np.argmax(busy))])
                what = (
                    f"{instruction.opcode}: touches the register {register} or one with it, to "
                    "which a wgmma that nothing has waited for adds"
                )
                raise batch.fault(instruction.line, what, lane)
            state.touched[register][batch.lanes] = state.fences[batch.lanes]
        handler(batch)

    return run


def _groups(batch: Batch, instruction: Instruction) -> Multiplying:
    """Check that whole warpgroups are here."""
    check_members(batch, instruction, None)
    first = batch.lanes[::GROUP]
    whole = len(batch.lanes) % GROUP == 0 and not (batch.lane[first] % GROUP).any()
    if not whole or (batch.lanes.reshape(-1, GROUP) != first[:, None] + np.arange(GROUP)).any():
        what = f"{instruction.opcode}: part of a warpgroup of {GROUP} threads is here"
        raise batch.fault(instruction.line, what, int(first[0]))
    assert batch.multiplying is not None
    return batch.multiplying


def _fence(batch: Batch, instruction: Instruction) -> None:
    _groups(batch, instruction).fences[batch.lanes] += 1


def _commit(batch: Batch, instruction: Instruction) -> None:
    _groups(batch, instruction).committed[batch.lanes] += 1


def _wait(batch: Batch, instruction: Instruction, pending: int) -> None:
    """End the products of the active lanes except their last `pending` groups: what they read may be written again."""
    state = _groups(batch, instruction)
    lanes = batch.lanes
    state.done[lanes] = np.maximum(state.done[lanes], state.committed[lanes] - pending)
    left = []
    for read in state.reads:
        if read.group >= state.done[read.lanes[0]]:
            left.append(read)
            continue
        assert batch.shared.proxy is not None
        batch.shared.proxy.end(read.granules)
        if batch.checks.races:  # they read until now
            touch = LaneAccess.of(read.rows, read.lanes, read.log2, 0, batch.order, read.within)
            batch.shared.tracker.read(touch, batch.order, batch.order.floor)
    state.reads = left


@dataclass(frozen=True)
class _Factor:
    """Describe A or B: the slot of its descriptor, its rows (columns), and whether these lie side by side."""

    slot: int
    rows: int
    across: bool


def _multiply(instruction: Instruction, scope: Scope) -> Handler:
    """Execute wgmma.mma_async: D = A B + D, B in shared memory, A there or in registers."""
    shape = next((p for p in instruction.parts if re.fullmatch(r"m64n\d+k16", p)), "")
    types = instruction.types
    if not shape or len(types) != 3 or types[0] != "f32" or types[1] != types[2]:
        raise instruction.refuse()
    kind, columns = types[1], int(shape[4:-3])
    target, a, b, scale, *settings = instruction.operands
    signs = [setting.value for setting in settings]
    if kind not in ("bf16", "f16") or not isinstance(target, Vector):
        raise instruction.refuse()
    held = isinstance(a, Vector)
    if len(target.parts) != columns // 2 or len(signs) != 4 - held or signs[:2] != [1, 1]:
        raise instruction.refuse("wrong number of registers, or signs")
    if held and len(a.parts) != 4:
        raise instruction.refuse("wrong number of registers")
    sums = [scope.slot_of(instruction, part, "f32") for part in target.parts]
    names = [target.parts[0].name, *(part.name for part in (a.parts if held else ()))]
    added = scope.slot_of(instruction, scale, "pred")
    access = MemoryAccess(instruction, _CHUNK, 2, 0)
    second = _Factor(scope.slot_of(instruction, b, "u64"), columns, signs[-1] == 1)
    if held:
        rows = operand_registers(instruction, scope, 1, "u32")
    else:
        first = _Factor(scope.slot_of(instruction, a, "u64"), _ROWS, signs[2] == 1)

    def left_of(batch: Batch) -> np.ndarray:
        if not held:
            return _matrix(batch, access, first, kind)
        return operand_a(batch, rows, kind).reshape(-1, _ROWS, _DEPTH)

    def run(batch: Batch) -> None:
        state = _groups(batch, instruction)
        for name in names:
            late = state.touched[name][batch.lanes] >= state.fences[batch.lanes]
            if late.any():
                what = (
                    f"{instruction.opcode}: no wgmma.fence after what touched its registers before"
                )
                raise batch.fault(instruction.line, what, int(batch.lanes[int(np.argmax(late))]))
        left, right = left_of(batch), _matrix(batch, access, second, kind)
        product = np.matmul(left, right.transpose(0, 2, 1))
        # warp, half of its rows, row, tile of 8 columns, lane's column, element
        parts = product.reshape(-1, 4, 2, 8, columns // 8, 4, 2).transpose(4, 2, 6, 0, 1, 3, 5)
        parts = parts.reshape(columns // 2, -1)
        keep = rows_of(batch, added)
        for slot, part in zip(sums, parts):
            total = np.where(keep, rows_of(batch, slot), np.float32(0)) + part
            put_rows(batch, slot, total.astype(np.float32))
        for name in names:
            state.flights[name][batch.lanes] = state.committed[batch.lanes]

    return run


def _matrix(batch: Batch, access: MemoryAccess, factor: _Factor, kind: str) -> np.ndarray:
    """Read a factor of each warpgroup, [group, rows, depth], and note that it is read from now on."""
    found = rows_of(batch, factor.slot).reshape(-1, GROUP)
    if (found != found[:, :1]).any():
        raise batch.fault_at(access, "the threads of a warpgroup have several descriptors", 0)
    values = found[:, 0].astype(np.uint64)
    start, leading, stride = (
        (((values >> np.uint64(shift)) & np.uint64(0x3FFF)) << np.uint64(4)).astype(np.int64)
        for shift in (0, 16, 32)
    )
    if (values >> np.uint64(62) != 1).any() or (values >> np.uint64(49) & np.uint64(7)).any():
        raise batch.fault_at(access, "only the swizzle of 128 bytes is emulated, at offset 0", 0)
    lines, chunks = (_DEPTH, factor.rows // 8) if factor.across else (factor.rows, _DEPTH // 8)
    line, chunk = np.divmod(np.arange(lines * chunks), chunks)
    per_line = _LINE // _CHUNK
    place = (line % _ATOM) * _LINE + (chunk % per_line) * _CHUNK
    address = start[:, None] + place
    address += (line // _ATOM) * stride[:, None] + (chunk // per_line) * leading[:, None]
    address ^= (address >> 7 & 7) << 4
    rows = _read(batch, access, address)
    numbers = (widen(rows) if kind == "bf16" else rows.view(np.float16)).astype(np.float64)
    numbers = numbers.reshape(len(values), lines, chunks * 8)
    return numbers.transpose(0, 2, 1) if factor.across else numbers


def _read(batch: Batch, access: MemoryAccess, address: np.ndarray) -> np.ndarray:
    """Read chunks of each warpgroup; its lanes stand for them by turns."""
    shared, state, saved = batch.shared, batch.multiplying, batch.lanes
    assert state is not None and shared.proxy is not None
    members = saved.reshape(-1, GROUP)
    turns = members[:, np.arange(address.shape[1]) % GROUP]
    batch.lanes = turns.reshape(-1)
    try:
        found = SPACES["shared"].read(
            batch, access, address.reshape(-1).view(np.uint64), READ_PIECE
        )
        log2 = access.log2 - shared.shift
        for each, lanes in zip(address, turns):
            rows, within = (each + shared.base[lanes]) >> access.log2, each >> access.log2
            granules = ((rows << log2)[:, None] + np.arange(1 << log2)).reshape(-1)
            hidden = shared.proxy.begin(granules)
            if hidden is not None:
                byte = (hidden[0] << shared.shift) % shared.stride
                what = (
                    f"{access.instruction.opcode}: reads shared byte {byte}, which a thread has written "
                    "and not shown by fence.proxy.async"
                )
                raise batch.fault(access.line, what, hidden[1])
            group = int(state.committed[lanes[0]])
            state.reads.append(TensorReads(rows, within, lanes, granules, log2, group))
    finally:
        batch.lanes = saved
    return found


def accumulators_of(code: list[Instruction]) -> dict[str, str]:
    """Return the registers that wgmma adds to, each with the first of those that belong together, and those of A alone.

    Raises EmulationError where two products share a part of their registers.
    """
    found = dict[str, str]()

    def note(instruction: Instruction, name: str, of: str) -> None:
        if found.setdefault(name, of) != of:
            raise instruction.refuse("registers that two products share in part")

    for instruction in code:
        if instruction.parts[:2] != ("wgmma", "mma_async"):
            continue
        target, a = instruction.operands[:2]
        for vector, together in ((target, True), (a, False)):
            if vector is a and not isinstance(a, Vector):
                continue
            if not isinstance(vector, Vector) or not all(
                isinstance(p, Register) for p in vector.parts
            ):
                raise instruction.refuse("registers are needed to add to")
            for part in vector.parts:
                note(instruction, part.name, vector.parts[0].name if together else part.name)
    return found


BUILDERS: dict[str, Builder] = {"wgmma": build, "fence": show}
