"""Execute mov, cvt and cvta: moves and conversions between types."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshweave.simulator.ptx.batch import Batch
from meshweave.simulator.ptx.handlers import Builder, Handler, Scope, computed, direct, put, type_of
from meshweave.simulator.ptx.instructions.floating import bf16_of
from meshweave.simulator.ptx.instructions.integer import is_float
from meshweave.simulator.ptx.memory import LOCAL_WINDOW, SHARED_WINDOW
from meshweave.simulator.ptx.numbers import direct as directed
from meshweave.simulator.ptx.numbers import flush, saturate, widen
from meshweave.simulator.ptx.program import Instruction, Symbol, Vector
from meshweave.simulator.ptx.slots import DTYPES, bits_of

_TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def move(instruction: Instruction, scope: Scope) -> Handler:
    """Execute mov of a register, literal or address, and the packing and unpacking of registers."""
    kind = type_of(instruction)
    target, source = instruction.operands[:2]
    if isinstance(target, Vector):
        return _unpack(instruction, scope, target, bits_of(kind) // len(target.parts))
    if isinstance(source, Vector):
        return _pack(instruction, scope, source, bits_of(kind) // len(source.parts))
    raw = kind if kind == "pred" else f"u{bits_of(kind)}"
    result, slot = scope.slot(instruction, 0, raw), scope.slot(instruction, 1, raw)
    return lambda batch: put(batch, result, batch.regs[slot])


def _pack(instruction: Instruction, scope: Scope, source: Vector, bits: int) -> Handler:
    whole = bits * len(source.parts)
    result = scope.slot(instruction, 0, f"u{whole}")
    parts = [scope.slot_of(instruction, part, f"u{bits}") for part in source.parts]

    def run(batch: Batch) -> None:
        total: Any = 0
        for number, part in enumerate(parts):
            value = batch.regs[part].astype(f"u{whole // 8}")
            shifted = value << value.dtype.type(number * bits) if number else value
            total = total | shifted if number else shifted
        put(batch, result, total)

    return run


def _unpack(instruction: Instruction, scope: Scope, target: Vector, bits: int) -> Handler:
    whole = bits * len(target.parts)
    source = scope.slot(instruction, 1, f"u{whole}")
    parts = [
        (number * bits, scope.slot_of(instruction, part, f"u{bits}"))
        for number, part in enumerate(target.parts)
        if part != Symbol("_")
    ]

    def run(batch: Batch) -> None:
        value = batch.regs[source]
        pieces = [(slot, value >> value.dtype.type(by)) for by, slot in parts]
        for (
            slot,
            piece,
        ) in pieces:  # after all are read: a target may be part of the source
            put(batch, slot, piece)

    return run


def convert(instruction: Instruction, scope: Scope) -> Handler:
    """Execute cvt between integers and floating point, with rounding and saturation."""
    types = instruction.types
    if len(types) != 2:
        raise instruction.refuse("two types are needed")
    target, source = types
    if target in ("f16x2", "bf16x2"):
        return _convert_two(instruction, scope, target)
    if target == "tf32":
        return _convert_tf32(instruction, scope)
    function = _conversion(instruction, target, source)
    slot = scope.slot(instruction, 1, source)
    result, wide = _target(instruction, scope, target)
    if wide is None:
        return computed(function, result, [slot])
    return computed(lambda x: function(x).astype(wide), result, [slot])


def _target(instruction: Instruction, scope: Scope, kind: str) -> tuple[int, Any]:
    """Return the slot and the type of the result. A narrow integer fills a wider register, and then has its type."""
    operand = instruction.operands[0]
    have = scope.slots.registers.get(getattr(operand, "name", ""), 0)
    if not is_float(kind) and have > bits_of(kind):
        return scope.slot(instruction, 0, f"{kind[0]}{have}"), np.dtype(DTYPES[kind])
    return scope.slot(instruction, 0, kind), None


def _conversion(instruction: Instruction, target: str, source: str) -> Any:
    if is_float(source):
        return _from_float(instruction, target, source)
    if is_float(target):
        return _int_to_float(instruction, target)
    return _int_to_int(instruction, target)


def _int_to_int(instruction: Instruction, target: str) -> Any:
    dtype = np.dtype(DTYPES[target])
    if not instruction.has("sat"):
        return lambda x: x.astype(dtype)
    limits = np.iinfo(dtype)

    def run(x: np.ndarray) -> np.ndarray:
        own = np.iinfo(x.dtype)
        low, high = max(limits.min, own.min), min(limits.max, own.max)
        out: np.ndarray = np.clip(x, x.dtype.type(low), x.dtype.type(high)).astype(dtype)
        return out

    return run


def _int_to_float(instruction: Instruction, target: str) -> Any:
    mode = next((part for part in instruction.parts if part in ("rz", "rm", "rp")), None)

    def run(x: np.ndarray) -> np.ndarray:
        if target == "bf16":
            return bf16_of(x.astype(np.float64))
        result = x.astype(DTYPES[target])
        if mode is None:
            return result
        if x.dtype.itemsize == 8:
            raise instruction.refuse("this rounding of 64-bit integers is not emulated")
        return directed(result, x.astype(np.float64) - result, mode)

    return run


def _from_float(instruction: Instruction, target: str, source: str) -> Any:
    to_integer = next((_TO_INTEGER[p] for p in instruction.parts if p in _TO_INTEGER), None)
    mode = next((part for part in instruction.parts if part in ("rz", "rm", "rp")), None)
    ftz = instruction.has("ftz")

    def run(x: np.ndarray) -> np.ndarray:
        x = widen(x) if source == "bf16" else x
        x = flush(x) if ftz else x
        x = to_integer(x) if to_integer else x
        if not is_float(target):
            return _saturated(x, np.dtype(DTYPES[target]))
        x = saturate(x) if instruction.has("sat") else x
        x = np.where(np.isnan(x), x, np.maximum(x, 0)) if instruction.has("relu") else x
        result = _float_to_float(x, target, mode)
        return flush(result) if ftz else result

    return run


def _float_to_float(x: np.ndarray, target: str, mode: str | None) -> np.ndarray:
    if target == "bf16":
        if mode == "rz":
            bits = np.ascontiguousarray(x, np.float32).view(np.uint32) >> np.uint32(16)
            out: np.ndarray = np.where(np.isnan(x), np.uint16(0x7FFF), bits.astype(np.uint16))
            return out
        return bf16_of(x.astype(np.float64))
    result = x.astype(DTYPES[target])
    if mode is None:
        return result
    return directed(result, x.astype(np.float64) - result.astype(np.float64), mode)


def _saturated(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert whole numbers in floating point to integers: too large ones to the limits.

    NaN becomes 0, but the highest bit alone where the source is f64 or the result has 64 bits [PTX ISA 9.0, cvt].
    """
    limits = np.iinfo(dtype)
    wide = x.dtype == np.float64 or dtype.itemsize == 8
    nan = np.array(1 << 8 * dtype.itemsize - 1 if wide else 0, np.uint64).astype(dtype)
    low, high = x.dtype.type(limits.min), x.dtype.type(limits.max)
    missing = np.isnan(x)
    inside = (x > low) & (x < high)
    out = np.where(inside, x, 0).astype(dtype)
    out = np.where(x >= high, dtype.type(limits.max), out)
    out = np.where(x <= low, dtype.type(limits.min), out)
    return np.where(missing, nan, out)


def _convert_two(instruction: Instruction, scope: Scope, target: str) -> Handler:
    """Convert two f32 to a pair; the first operand is the high half."""
    kind = target.removesuffix("x2")
    mode = "rz" if instruction.has("rz") else None
    result = scope.slot(instruction, 0, target)
    sources = [scope.slot(instruction, n, "f32") for n in (2, 1)]

    def run(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        halves = []
        for x in np.broadcast_arrays(low, high):
            if instruction.has("relu"):
                x = np.where(np.isnan(x), x, np.maximum(x, 0))
            halves.append(_float_to_float(x, kind, mode))
        return np.stack(halves, axis=1)

    return computed(run, result, sources)


def _convert_tf32(instruction: Instruction, scope: Scope) -> Handler:
    """Round f32 to 10 bits of mantissa: ties away from zero (rna) or to even (rn)."""
    away = instruction.has("rna")

    def run(bits: np.ndarray) -> np.ndarray:
        half = np.uint32(0x1000)
        if not away:
            half = np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))
        rounded = (bits + half) & np.uint32(0xFFFFE000)
        special = (bits & np.uint32(0x7F800000)) == np.uint32(0x7F800000)
        return np.where(special, bits, rounded)

    return computed(run, scope.slot(instruction, 0, "u32"), [scope.slot(instruction, 1, "u32")])


def convert_address(instruction: Instruction, scope: Scope) -> Handler:
    """Execute cvta, between addresses of a space and generic ones; global ones are the same."""
    spaces = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "global": 0, "const": 0}
    space = next((part for part in instruction.parts if part.split("::")[0] in spaces), None)
    if space is None:
        raise instruction.refuse()
    by = np.uint64(spaces[space.split("::")[0]])
    kind = type_of(instruction)
    result, source = scope.slot(instruction, 0, kind), scope.slot(instruction, 1, kind)
    if by == 0:
        return direct(np.positive, result, [source])
    function = np.subtract if instruction.has("to") else np.add
    return computed(lambda x: function(x, by), result, [source])


BUILDERS: dict[str, Builder] = {"mov": move, "cvt": convert, "cvta": convert_address}
