"""Execute ld, st, atom and red."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshweave.simulator.ptx.batch import Batch
from meshweave.simulator.ptx.handlers import Builder, Handler, Scope, put_rows, rows_of, type_of
from meshweave.simulator.ptx.memory import POISON, MemoryAccess
from meshweave.simulator.ptx.program import Address, Instruction, Operand, Register, Symbol, Vector
from meshweave.simulator.ptx.slots import DTYPES, bits_of
from meshweave.simulator.ptx.spaces import READ_PIECE, SPACES, Space


def space_of(instruction: Instruction) -> str:
    """Return the memory space that the opcode names; "generic" when it names none."""
    for part in instruction.parts[1:]:
        name = part.split("::")[0]
        if name in ("global", "shared", "local", "param"):
            return name
        if name == "const":
            return "global"
    return "generic"


def address(instruction: Instruction, number: int, scope: Scope) -> tuple[int, int]:
    """Return the slot and the constant offset of an address operand."""
    operand = instruction.operands[number] if number < len(instruction.operands) else None
    if not isinstance(operand, Address) or isinstance(operand.base, Vector):
        raise instruction.refuse(f"operand {number + 1} is not an address")
    bits = 64
    if isinstance(operand.base, Register):
        bits = scope.slots.registers.get(operand.base.name, 64)
    return scope.slot_of(instruction, operand.base, f"u{bits}"), operand.offset


def addresses_of(batch: Batch, slot: int) -> np.ndarray:
    """Return the addresses of the active lanes; only one where all have the same."""
    values = batch.regs[slot]
    return values if len(values) == 1 or batch.active is None else values[batch.active]


def _parts(operand: Operand) -> tuple[Any, ...]:
    return operand.parts if isinstance(operand, Vector) else (operand,)


def load(instruction: Instruction, scope: Scope) -> Handler:
    """Execute ld of one or more elements."""
    kind = type_of(instruction)
    results = _parts(instruction.operands[0])
    width = bits_of(kind) // 8
    slots = [_result(instruction, scope, result, kind) for result in results]
    space_name = space_of(instruction)
    if space_name == "param":
        return _load_parameter(instruction, scope, slots, width)
    slot, offset = address(instruction, 1, scope)
    access = MemoryAccess(instruction, width * len(results), width, offset)
    read = _reader(SPACES[space_name], access)
    signed = np.dtype(f"i{width}") if kind[0] == "s" else None

    def run(batch: Batch) -> None:
        rows = read(batch, addresses_of(batch, slot))
        if signed is not None:
            rows = rows.view(signed)
        if len(slots) == 1:
            put_rows(batch, slots[0], rows)
            return
        for number, result in enumerate(slots):
            if result >= 0:
                put_rows(batch, result, rows[:, number])

    return run


def used_pieces(instruction: Instruction, nbytes: int) -> list[tuple[int, int]]:
    """Split the used bytes of a load of `nbytes` into aligned pieces of 1, 2, 4 or 8 bytes.

    Returns (first byte, bytes) of each.
    """
    found, at = [], 0
    while at < nbytes:
        fits = (size for size in (8, 4, 2, 1) if at % size == 0 and at + size <= nbytes)
        whole = (size for size in fits if not ~(instruction.used >> at) & ((1 << size) - 1))
        size = next(whole, 0)
        if size:
            found.append((at, size))
        at += size or 1
    return found


def is_partial(instruction: Instruction, nbytes: int) -> bool:
    """Tell whether some bytes of a load are not used."""
    return bool(~instruction.used & ((1 << nbytes) - 1))


def _reader(space: Space, access: MemoryAccess) -> Callable[[Batch, np.ndarray], np.ndarray]:
    """Read the rows of a load.

    Bytes that nothing uses may lie past the end of a buffer, or belong to another one: they are not read, and the
    result has POISON for them.
    """
    instruction, nbytes, width = access.instruction, access.nbytes, access.width
    if not is_partial(instruction, nbytes):
        return lambda batch, addresses: space.read(batch, access, addresses)
    pieces = [
        (at, MemoryAccess(instruction, size, size, access.offset + at))
        for at, size in used_pieces(instruction, nbytes)
    ]

    def read(batch: Batch, addresses: np.ndarray) -> np.ndarray:
        batch.check_aligned(access, addresses)
        octets = np.full((len(addresses), nbytes), POISON, np.uint8)
        for at, piece in pieces:
            found = space.read(batch, piece, addresses, READ_PIECE)
            octets[:, at : at + piece.nbytes] = found.view(np.uint8).reshape(-1, piece.nbytes)
        space.count(batch, access, addresses)  # the device moves all of it
        rows = octets.view(f"u{width}")
        return rows if nbytes > width else rows[:, 0]

    return read


def _result(instruction: Instruction, scope: Scope, operand: Operand, kind: str) -> int:
    """Return the slot of a loaded element, as wide as its register; -1 for `_`."""
    if operand == Symbol("_"):
        return -1
    bits = scope.slots.registers.get(getattr(operand, "name", ""), 0)
    letter = "s" if kind[0] == "s" else "u"
    return scope.slot_of(instruction, operand, f"{letter}{max(bits, bits_of(kind))}")


def _load_parameter(
    instruction: Instruction, scope: Scope, slots: list[int], width: int
) -> Handler:
    operand = instruction.operands[1]
    places = {parameter.name: parameter for parameter in scope.function.parameters}
    base = operand.base.name if isinstance(operand, Address) and operand.offset >= 0 else ""
    if base not in places:
        raise instruction.refuse("only parameters by their name are emulated")
    start = places[base].offset + operand.offset
    signed = type_of(instruction)[0] == "s"

    def run(batch: Batch) -> None:
        for number, slot in enumerate(slots):
            piece = batch.launch.parameters[start + number * width :][:width]
            put_rows(batch, slot, piece.view(f"{'i' if signed else 'u'}{width}"))

    return run


def store(instruction: Instruction, scope: Scope) -> Handler:
    """Execute st of one or more elements."""
    kind = type_of(instruction)
    width = bits_of(kind) // 8
    sources = _parts(instruction.operands[1])
    raw = f"u{8 * width}"
    slots = [scope.slot_of(instruction, source, raw) for source in sources]
    slot, offset = address(instruction, 0, scope)
    access = MemoryAccess(instruction, width * len(sources), width, offset)
    if space_of(instruction) == "param":
        raise instruction.refuse()
    space = SPACES[space_of(instruction)]
    dtype = np.dtype(DTYPES[raw])

    def run(batch: Batch) -> None:
        columns = [rows_of(batch, number).astype(dtype, copy=False) for number in slots]
        values = columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
        space.write(batch, access, rows_of(batch, slot), values)

    return run


# -- atomics

_COMBINE: dict[str, Any] = {
    "add": np.add, "max": np.maximum, "min": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def atomic(instruction: Instruction, scope: Scope) -> Handler:
    """Execute atom and red, lane after lane. Atomics race with everything except atomics."""
    kind = type_of(instruction)
    returns = instruction.parts[0] == "atom"
    first = 1 if returns else 0
    operation = next(
        (p for p in instruction.parts[1:] if p in {*_COMBINE, "exch", "cas", "inc", "dec"}),
        None,
    )
    if (
        operation is None
        or kind not in DTYPES
        or kind == "bf16"
        or instruction.has("vec", "v2", "v4")
    ):
        raise instruction.refuse()
    if kind[0] == "b":
        kind = "u" + kind[1:]
    sources = [
        scope.slot(instruction, number, kind)
        for number in range(first + 1, len(instruction.operands))
    ]
    result = scope.slot(instruction, 0, kind) if returns else -1
    slot, offset = address(instruction, first, scope)
    width = bits_of(kind) // 8
    access = MemoryAccess(instruction, width, width, offset)
    space = SPACES[space_of(instruction)]

    def run(batch: Batch) -> None:
        view, rows = space.atomic(batch, access, rows_of(batch, slot))
        view = view.view(DTYPES[kind])
        values = [rows_of(batch, source) for source in sources]
        if not returns and operation in _COMBINE:
            _COMBINE[operation].at(view, rows, values[0])
            return
        old = _in_turn(operation, view, rows, values)
        if returns:
            put_rows(batch, result, old)

    return run


def _in_turn(
    operation: str, view: np.ndarray, rows: np.ndarray, values: list[np.ndarray]
) -> np.ndarray:
    """Do the operation lane by lane, and return what each lane found."""
    old = np.empty(len(rows), view.dtype)
    for lane, row in enumerate(rows):
        now, value = view[row], values[0][lane]
        old[lane] = now
        if operation == "exch":
            view[row] = value
        elif operation == "cas":
            view[row] = values[1][lane] if now == value else now
        elif operation == "inc":
            view[row] = 0 if now >= value else now + now.dtype.type(1)
        elif operation == "dec":
            view[row] = value if now == 0 or now > value else now - now.dtype.type(1)
        else:
            view[row] = _COMBINE[operation](now, value)
    return old


BUILDERS: dict[str, Builder] = {
    "ld": load,
    "ldu": load,
    "st": store,
    "atom": atomic,
    "red": atomic,
}
