"""Build handlers: an instruction becomes a function of the batch, made once for each place in the code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshweave.simulator.ptx.batch import Batch
from meshweave.simulator.ptx.numbers import flush, narrow, saturate, widen
from meshweave.simulator.ptx.program import Instruction, Operand, PtxFunction, PtxModule
from meshweave.simulator.ptx.slots import PACKED, OperandSlots

Handler = Callable[[Batch], None]


class Scope:
    """Hold what building a handler may ask: the slots, the function and its module.

    accumulators: see `KernelResources`.
    """

    def __init__(
        self,
        module: PtxModule,
        function: PtxFunction,
        slots: OperandSlots,
        accumulators: dict[str, str] | None = None,
    ) -> None:
        self.module, self.function, self.slots = module, function, slots
        self.accumulators = accumulators or {}

    def slot(self, instruction: Instruction, number: int, kind: str) -> int:
        """Return the slot of an operand by its number. Raises EmulationError where it does not fit."""
        if number >= len(instruction.operands):
            raise instruction.refuse(f"operand {number + 1} is missing")
        return self.slot_of(instruction, instruction.operands[number], kind)

    def slot_of(self, instruction: Instruction, operand: Operand, kind: str) -> int:
        """Return the slot of an operand. Raises EmulationError where it does not fit."""
        try:
            return self.slots.of(operand, kind)
        except ValueError as error:
            raise instruction.refuse(str(error)) from None


Builder = Callable[[Instruction, Scope], Handler]


def put(batch: Batch, slot: int, values: Any) -> None:
    """Write a result of all lanes under the mask of those that take part."""
    out = batch.regs[slot]
    where = batch.where
    if where is not True and out.ndim > 1:
        where = where[:, None]
    np.copyto(out, values, where=where, casting="unsafe")


def put_rows(batch: Batch, slot: int, values: np.ndarray) -> None:
    """Write a result that was computed for the active lanes alone (or for all of them at once)."""
    out = batch.regs[slot]
    if batch.active is None or len(out) == 1:
        out[...] = values
    elif len(values) == 1:
        np.copyto(out, values, where=batch.active, casting="unsafe")
    else:
        out[batch.active] = values


def rows_of(batch: Batch, slot: int) -> np.ndarray:
    """Return the values of the active lanes, one for each."""
    values = batch.regs[slot]
    if len(values) == 1:
        return np.repeat(values, len(batch.lanes), axis=0)
    return values if batch.active is None else values[batch.active]


def direct(function: Any, result: int, sources: list[int]) -> Handler:
    """Build a handler from a ufunc that writes its result in place."""
    if len(sources) == 1:
        (only,) = sources

        def run_one(batch: Batch) -> None:
            regs = batch.regs
            function(regs[only], out=regs[result], where=batch.where, casting="unsafe")

        return run_one
    first, second = sources

    def run_two(batch: Batch) -> None:
        regs = batch.regs
        function(
            regs[first],
            regs[second],
            out=regs[result],
            where=batch.where,
            casting="unsafe",
        )

    return run_two


def computed(function: Callable[..., Any], result: int, sources: list[int]) -> Handler:
    """Build a handler from any function of arrays; its result is converted to the type of the slot."""

    def run(batch: Batch) -> None:
        regs = batch.regs
        put(batch, result, function(*[regs[source] for source in sources]))

    return run


def elementwise(
    instruction: Instruction, scope: Scope, kind: str, function: Any, count: int
) -> Handler:
    """Build an operation on operands of one type, element by element.

    `.ftz`, `.sat` and `.relu` are as written; bf16 goes by way of f32.
    """
    result = scope.slot(instruction, 0, kind)
    sources = [scope.slot(instruction, 1 + number, kind) for number in range(count)]
    small = kind in ("bf16", "bf16x2")
    ftz = instruction.has("ftz") and not small
    extras = ftz or instruction.has("sat", "relu")
    if isinstance(function, np.ufunc) and not small and not extras and kind not in PACKED:
        return direct(function, result, sources)

    def apply(*values: np.ndarray) -> np.ndarray:
        if small:
            values = tuple(widen(value) for value in values)
        if ftz:
            values = tuple(flush(value) for value in values)
        out = function(*values)
        if instruction.has("sat"):
            out = saturate(out)
        if instruction.has("relu"):
            out = np.where(np.isnan(out), out, np.maximum(out, 0))
        if ftz:
            out = flush(np.asarray(out, values[0].dtype))
        return narrow(out) if small else out

    return computed(apply, result, sources)


def guarded(handler: Handler, guard: int, negated: bool) -> Handler:
    """Run a handler under a predicate."""

    def run(batch: Batch) -> None:
        holds = batch.regs[guard]
        if len(holds) == 1:
            if bool(holds[0]) != negated:
                handler(batch)
            return
        mask = ~holds if negated else holds
        if batch.active is not None:
            mask = mask & batch.active
        saved = batch.where, batch.active, batch.lanes
        lanes = np.flatnonzero(mask)
        if len(lanes) == 0:
            return
        if len(lanes) < len(batch.lanes):
            batch.where, batch.active, batch.lanes = mask, mask, lanes
        try:
            handler(batch)
        finally:
            batch.where, batch.active, batch.lanes = saved

    return run


def type_of(instruction: Instruction) -> str:
    """Return the last type in the opcode. Raises EmulationError where there is none."""
    types = instruction.types
    if not types:
        raise instruction.refuse("an opcode without a type")
    return types[-1]


def unsigned(kind: str) -> str:
    """Return the unsigned type of the same width."""
    return "u" + kind[1:] if kind[0] in "sb" and kind[1:].isdigit() else kind
