"""Execute the instructions in which the lanes of a warp exchange values.

shfl, vote, redux, match, elect, activemask, bar.warp.sync.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshweave.simulator.ptx.batch import Batch
from meshweave.simulator.ptx.handlers import Builder, Handler, Scope, put, type_of
from meshweave.simulator.ptx.program import Instruction, Negated, PredicatePair, Symbol
from meshweave.simulator.ptx.slots import bits_of

_LANE = np.arange(32)
_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)


def warps(batch: Batch, slot: int) -> np.ndarray:
    """Return the values of a slot, one row for each warp."""
    values = batch.regs[slot]
    if len(values) == 1:
        values = np.broadcast_to(values, batch.threads)
    return values.reshape(-1, 32)


def present(batch: Batch) -> np.ndarray:
    """Return which lanes take part, one row for each warp."""
    if batch.active is None:
        return np.ones((batch.threads // 32, 32), bool)
    return batch.active.reshape(-1, 32)


def check_members(batch: Batch, instruction: Instruction, slot: int | None) -> None:
    """Check that the lanes that execute a collective are those that its mask names.

    Without a mask, these are all that have not ended.
    """
    if not batch.checks.collectives or (batch.active is None and slot is None):
        return
    here = present(batch)
    alive = batch.alive.reshape(-1, 32)
    wanted = alive
    if slot is not None:
        masks = warps(batch, slot)
        if batch.active is None and (masks == np.uint32(0xFFFFFFFF)).all():
            return
        first = masks[np.arange(len(masks)), here.argmax(1)]
        wanted = (first[:, None] & _BITS) != 0
    bad = here.any(1) & ((wanted & alive) != here).any(1)
    if bad.any():
        warp = int(np.argmax(bad))
        lane = warp * 32 + int(here[warp].argmax())
        got, want = (
            int(_BITS[here[warp]].sum()),
            int(_BITS[(wanted & alive)[warp]].sum()),
        )
        what = (
            f"{instruction.opcode}: lanes {got:#010x} of the warp are here, {want:#010x} are meant"
        )
        raise batch.fault(instruction.line, what, lane)


def _spread(batch: Batch, slot: int, values: np.ndarray) -> None:
    """Give every lane of a warp the value of its warp."""
    put(batch, slot, np.repeat(values, 32))


def shuffle(instruction: Instruction, scope: Scope) -> Handler:
    """Execute shfl.sync: read a register of another lane."""
    mode = instruction.parts[2] if instruction.has("sync") else instruction.parts[1]
    target = instruction.operands[0]
    pair = isinstance(target, PredicatePair)
    result = scope.slot_of(instruction, target.first if pair else target, "u32")
    valid = scope.slot_of(instruction, target.second, "pred") if pair else -1
    value, lane, control, members = (scope.slot(instruction, n, "u32") for n in (1, 2, 3, 4))

    def run(batch: Batch) -> None:
        check_members(batch, instruction, members)
        source, inside = _source(mode, warps(batch, lane), warps(batch, control))
        values = np.take_along_axis(warps(batch, value), source, 1)
        if batch.active is not None and batch.checks.collectives:
            _check_source(batch, instruction, source)
        put(batch, result, values.reshape(-1))
        if pair:
            put(batch, valid, np.broadcast_to(inside, source.shape).reshape(-1))

    return run


def _source(mode: str, operand: np.ndarray, control: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lane that each lane reads, and whether it is inside the segment."""
    by, control = (operand & np.uint32(31)).astype(np.int64), control.astype(np.int64)
    segment, clamp = control >> 8 & 31, control & 31
    highest = (_LANE & segment) | (clamp & ~segment)
    lowest = _LANE & segment
    if mode == "up":
        source = _LANE - by
        inside = source >= highest
    else:
        source = {
            "down": _LANE + by,
            "bfly": _LANE ^ by,
            "idx": lowest | (by & ~segment),
        }[mode]
        inside = source <= highest
    return np.where(inside, source, _LANE), inside


def _check_source(batch: Batch, instruction: Instruction, source: np.ndarray) -> None:
    here = present(batch)
    bad = here & ~np.take_along_axis(here, source, 1)
    if bad.any():
        lane = int(np.argmax(bad.reshape(-1)))
        what = (
            f"{instruction.opcode}: reads lane {int(source.reshape(-1)[lane])}, which is not here"
        )
        raise batch.fault(instruction.line, what, lane)


_COMBINE: dict[str, tuple[Any, Callable[[np.dtype], int]]] = {
    "add": (np.add, lambda dtype: 0),
    "max": (np.maximum, lambda dtype: int(np.iinfo(dtype).min)),
    "min": (np.minimum, lambda dtype: int(np.iinfo(dtype).max)),
    "and": (
        np.bitwise_and,
        lambda dtype: int(np.iinfo(dtype).max) if dtype.kind == "u" else -1,
    ),
    "or": (np.bitwise_or, lambda dtype: 0),
    "xor": (np.bitwise_xor, lambda dtype: 0),
}


def reduce(instruction: Instruction, scope: Scope) -> Handler:
    """Execute redux.sync: combine a register over the members."""
    kind = type_of(instruction)
    kind = "u32" if kind == "b32" else kind
    if kind not in ("u32", "s32") or instruction.parts[2] not in _COMBINE:
        raise instruction.refuse()
    function, neutral = _COMBINE[instruction.parts[2]]
    result, value = scope.slot(instruction, 0, kind), scope.slot(instruction, 1, kind)
    members = scope.slot(instruction, 2, "u32")

    def run(batch: Batch) -> None:
        check_members(batch, instruction, members)
        values = warps(batch, value)
        values = np.where(present(batch), values, values.dtype.type(neutral(values.dtype)))
        _spread(batch, result, function.reduce(values, axis=1, dtype=values.dtype))

    return run


def vote(instruction: Instruction, scope: Scope) -> Handler:
    """Execute vote.sync: all, any, uni or ballot over the members."""
    if not instruction.has("sync"):
        raise instruction.refuse()
    mode = instruction.parts[2]
    operand = instruction.operands[1]
    negated = isinstance(operand, Negated)
    guard = scope.slot_of(instruction, operand.register if negated else operand, "pred")
    members = scope.slot(instruction, 2, "u32")
    result = scope.slot(instruction, 0, "u32" if mode == "ballot" else "pred")

    def run(batch: Batch) -> None:
        check_members(batch, instruction, members)
        holds = warps(batch, guard) != negated
        here = present(batch)
        every, some = (holds | ~here).all(1), (holds & here).any(1)
        if mode == "ballot":
            _spread(batch, result, ((holds & here) * _BITS).sum(1, dtype=np.uint32))
        else:
            _spread(batch, result, {"all": every, "any": some, "uni": every | ~some}[mode])

    return run


def match(instruction: Instruction, scope: Scope) -> Handler:
    """Execute match.sync: find the lanes that hold the same value."""
    kind = f"u{bits_of(type_of(instruction))}"
    target = instruction.operands[0]
    pair = isinstance(target, PredicatePair)
    result = scope.slot_of(instruction, target.first if pair else target, "u32")
    same = scope.slot_of(instruction, target.second, "pred") if pair else -1
    value, members = scope.slot(instruction, 1, kind), scope.slot(instruction, 2, "u32")
    every = instruction.has("all")

    def run(batch: Batch) -> None:
        check_members(batch, instruction, members)
        values, here = warps(batch, value), present(batch)
        equal = (values[:, :, None] == values[:, None, :]) & here[:, None, :]
        masks = (equal * _BITS).sum(2, dtype=np.uint32)
        if every:
            whole = (here * _BITS).sum(1, dtype=np.uint32)[:, None]
            agree = masks == whole
            masks = np.where(agree, whole, np.uint32(0))
            if pair:
                put(batch, same, agree.reshape(-1))
        put(batch, result, masks.reshape(-1))

    return run


def elect(instruction: Instruction, scope: Scope) -> Handler:
    """Execute elect.sync: choose the first member."""
    target = instruction.operands[0]
    members = scope.slot(instruction, 1, "u32")
    first = target.first if isinstance(target, PredicatePair) else target
    leader = (
        scope.slot_of(instruction, target.second, "pred")
        if isinstance(target, PredicatePair)
        else -1
    )
    result = -1 if first == Symbol("_") else scope.slot_of(instruction, first, "u32")

    def run(batch: Batch) -> None:
        check_members(batch, instruction, members)
        lowest = present(batch).argmax(1)
        if result >= 0:
            _spread(batch, result, lowest.astype(np.uint32))
        if leader >= 0:
            put(batch, leader, (lowest[:, None] == _LANE).reshape(-1))

    return run


def active_mask(instruction: Instruction, scope: Scope) -> Handler:
    """Execute activemask: return the lanes that execute this together."""
    result = scope.slot(instruction, 0, "u32")

    def run(batch: Batch) -> None:
        _spread(batch, result, (present(batch) * _BITS).sum(1, dtype=np.uint32))

    return run


def warp_barrier(instruction: Instruction, scope: Scope) -> Handler:
    """Execute bar.warp.sync. In lock-step it only checks which lanes are here."""
    members = scope.slot(instruction, 0, "u32")
    return lambda batch: check_members(batch, instruction, members)


BUILDERS: dict[str, Builder] = {
    "shfl": shuffle, "redux": reduce, "vote": vote, "match": match, "elect": elect,
    "activemask": active_mask, "bar": warp_barrier,
}  # fmt: skip
