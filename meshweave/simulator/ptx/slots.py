"""Give each operand of each type that the code names a number ("slot").

A run has an array for each slot. Registers are arrays with one element a thread, or with one element alone where all
threads hold the same value; literals have one element. A register that is read as two types is one piece of memory
under two views.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshweave.simulator.ptx.program import Immediate, Operand, Register, Symbol

DTYPES: dict[str, Any] = {
    "pred": np.bool_,
    **{f"{kind}{bits}": f"{letter}{bits // 8}"
       for kind, letter in (("u", "u"), ("s", "i"), ("b", "u")) for bits in (8, 16, 32, 64)},
    "f16": "f2", "f32": "f4", "f64": "f8", "bf16": "u2", "tf32": "f4",
}  # fmt: skip
PACKED = {
    "f16x2": "f2",
    "bf16x2": "u2",
    "u8x4": "u1",
    "s8x4": "i1",
    "u16x2": "u2",
    "s16x2": "i2",
}
_SPECIAL_BITS = 32
_LINE = 64  # bytes to a multiple of which registers are placed


class OperandSlots:
    """Number the slots of one kernel.

    registers: bits of each; uniform: those that hold one value for all threads.
    """

    def __init__(self, registers: dict[str, int], uniform: frozenset[str]) -> None:
        self.registers, self.uniform = registers, uniform
        self.numbers: dict[tuple[Any, ...], int] = {}

    def of(self, operand: Operand, kind: str) -> int:
        """Return the slot of an operand read or written as `kind` ("u32", "bf16x2", "pred").

        Raises ValueError where the operand has no such reading.
        """
        if isinstance(operand, Register):
            self._check(operand.name, kind)
            return self._number(("register", operand.name, kind))
        if isinstance(operand, Immediate):
            return self._number(("number", operand, kind))
        if isinstance(operand, Symbol):
            return self._number(("symbol", operand.name, kind))
        raise ValueError(f"{operand} where a {kind} should be")

    def _number(self, key: tuple[Any, ...]) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def _check(self, name: str, kind: str) -> None:
        if name not in self.registers:
            if not name.startswith("%"):
                raise ValueError(f"no register {name}")
            if kind == "pred" or bits_of(kind) > _SPECIAL_BITS:
                raise ValueError(f"{name} has {_SPECIAL_BITS} bits and is used as {kind}")
            return  # a special register; the run knows them
        bits = self.registers[name]
        if (kind == "pred") != (bits == 1) or bits < bits_of(kind):
            raise ValueError(f"register {name} has {bits} bits and is used as {kind}")

    def arrays(self, run: Any) -> list[np.ndarray]:
        """Return the arrays of all slots for a run.

        run.threads: how many; run.special(name), run.symbol(name): values of special registers and
        of variables.
        """
        whole = self._registers(run.threads)
        found = []
        for sort, what, kind in self.numbers:
            if sort == "number":
                base = literal(what, kind)
            elif sort == "symbol":
                base = np.array([run.symbol(what)], np.uint64)
            elif what in whole:
                base = whole[what]
            else:
                base = run.special(what)
            found.append(view(base, kind))
        return found

    def _registers(self, threads: int) -> dict[str, np.ndarray]:
        """Return an array for each register that is used, all in one piece of memory."""
        names = dict.fromkeys(
            what for sort, what, _ in self.numbers if sort == "register" and what in self.registers
        )
        places, end = [], 0
        for name in names:
            count = 1 if name in self.uniform else threads
            size = count * max(1, self.registers[name] // 8)
            places.append((name, end, end + size))
            end += -(-size // _LINE) * _LINE
        room = np.full(end, 0xFF, np.uint8)  # what nothing wrote is NaN and a wild address
        found = {}
        for name, start, stop in places:
            bits = self.registers[name]
            if bits == 1:
                room[start:stop] = 0
            found[name] = room[start:stop].view(np.bool_ if bits == 1 else f"u{bits // 8}")
        return found


def bits_of(kind: str) -> int:
    """Return the bits of a type."""
    if kind in PACKED:
        return 32
    return 1 if kind == "pred" else 8 * np.dtype(DTYPES[kind]).itemsize


def view(base: np.ndarray, kind: str) -> np.ndarray:
    """View an array of unsigned elements (or booleans) as another type, without a copy.

    A narrower type sees the low bits; packed types get a second dimension.
    """
    if kind == "pred":
        return base
    if kind in PACKED:
        dtype = np.dtype(PACKED[kind])
        return base.view(dtype).reshape(len(base), -1)
    dtype = np.dtype(DTYPES[kind])
    if base.dtype == np.bool_ or base.dtype == dtype:
        return base
    seen = base.view(dtype)
    out: np.ndarray = (
        seen if dtype.itemsize == base.itemsize else seen[:: base.itemsize // dtype.itemsize]
    )
    return out


def literal(number: Immediate, kind: str) -> np.ndarray:
    """Return a literal as one unsigned element: its bits as `kind` reads them."""
    value = number.value
    if kind == "pred":
        return np.array([value != 0])
    bits = bits_of(kind)
    if number.kind == "f64" and bits == 32 and kind in ("f32", "tf32"):
        with np.errstate(all="ignore"):
            value = int(np.uint64(value).view(np.float64).astype(np.float32).view(np.uint32))
    elif number.kind == "f32" and bits == 64:
        value = int(np.float64(np.uint32(value).view(np.float32)).view(np.uint64))
    return np.array([value & ((1 << bits) - 1)], f"u{bits // 8}")
