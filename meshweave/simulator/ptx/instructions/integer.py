"""Execute integer arithmetic, logic, comparison and selection."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshweave.simulator.ptx.batch import Batch
from meshweave.simulator.ptx.handlers import (
    Builder,
    Handler,
    Scope,
    computed,
    direct,
    elementwise,
    put,
    type_of,
    unsigned,
)
from meshweave.simulator.ptx.numbers import high_half, high_half_signed, widen
from meshweave.simulator.ptx.program import Instruction, Negated, PredicatePair, Register
from meshweave.simulator.ptx.slots import bits_of


def is_float(kind: str) -> bool:
    """Tell whether a type is one of floating point."""
    return kind[0] == "f" or kind.startswith(("bf", "tf"))


def plain(function: Any, instruction: Instruction, scope: Scope, count: int = 2) -> Handler:
    """Build an operation on the bits alone, the same for signed and unsigned."""
    kind = type_of(instruction)
    if kind == "pred":
        function = _ON_PREDICATES.get(function, function)
    return elementwise(instruction, scope, unsigned(kind), function, count)


_ON_PREDICATES = {
    np.bitwise_and: np.logical_and,
    np.bitwise_or: np.logical_or,
    np.bitwise_xor: np.logical_xor,
    np.invert: np.logical_not,
}


def multiply(instruction: Instruction, scope: Scope) -> Handler:
    """Execute mul and mad with lo, hi and wide."""
    kind = type_of(instruction)
    bits = bits_of(kind)
    add = instruction.parts[0].startswith("mad")
    if instruction.has("wide"):
        kinds = [kind, kind, kind[0] + str(2 * bits)]
        function = _wide(kinds[2], add)
        result = kinds[2]
    elif instruction.has("hi"):
        kinds, result = [unsigned(kind)] * 3, unsigned(kind)
        function = _high(kind, bits, add)
    else:
        kinds, result = [unsigned(kind)] * 3, unsigned(kind)
        if not add:
            return elementwise(instruction, scope, result, np.multiply, 2)
        function = _low_add
    sources = [scope.slot(instruction, 1 + n, kinds[n]) for n in range(3 if add else 2)]
    return computed(function, scope.slot(instruction, 0, result), sources)


def _low_add(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    out: np.ndarray = x * y + z
    return out


def _wide(kind: str, add: bool) -> Any:
    dtype = np.dtype(f"{'u' if kind[0] == 'u' else 'i'}{bits_of(kind) // 8}")

    def run(x: np.ndarray, y: np.ndarray, *more: np.ndarray) -> np.ndarray:
        product = np.multiply(x.astype(dtype), y, dtype=dtype)
        out: np.ndarray = product + more[0] if add else product
        return out

    return run


def _high(kind: str, bits: int, add: bool) -> Any:
    letter = "i" if kind[0] == "s" else "u"

    def run(x: np.ndarray, y: np.ndarray, *more: np.ndarray) -> np.ndarray:
        if bits == 64:
            high = (high_half_signed if letter == "i" else high_half)(x, y)
        else:
            size = bits // 8
            wide = x.view(f"{letter}{size}").astype(f"{letter}{2 * size}")
            product = wide * y.view(f"{letter}{size}").astype(wide.dtype)
            high = (product >> bits).astype(f"u{size}")
        return high + more[0] if add else high

    return run


CARRY = "%carry"  # the condition code: one bit a thread, written by `.cc`, read by addc, subc, madc


def with_carry(instruction: Instruction, scope: Scope) -> Handler:
    """Execute add, sub and mad that write the carry, read it, or both."""
    name = instruction.parts[0]
    kind = unsigned(type_of(instruction))
    subtract, multiplied = name.startswith("sub"), name.startswith("mad")
    product = (
        _high(type_of(instruction), bits_of(kind), False) if instruction.has("hi") else np.multiply
    )
    count = 3 if multiplied else 2
    sources = [scope.slot(instruction, 1 + number, kind) for number in range(count)]
    result = scope.slot(instruction, 0, kind)
    carry = scope.slots.of(Register(CARRY), "pred")
    reads, writes = name.endswith("c"), instruction.has("cc")

    def run(batch: Batch) -> None:
        values = [batch.regs[source] for source in sources]
        if multiplied:
            values = [product(*values[:2]), values[2]]
        x, y = values
        carried = batch.regs[carry].astype(x.dtype) if reads else x.dtype.type(0)
        if subtract:
            middle, over = x - y, x < y
            total, more = middle - carried, middle < carried
        else:
            middle = x + y
            over, total = middle < x, middle + carried
            more = total < middle
        put(batch, result, total)
        if writes:
            put(batch, carry, over | more)

    return run


def divide(instruction: Instruction, scope: Scope) -> Handler:
    """Execute integer div and rem; the result of a division by zero is not defined."""
    kind = type_of(instruction)
    signed = kind[0] == "s"
    if instruction.parts[0] == "rem":
        return elementwise(instruction, scope, kind, np.fmod if signed else np.remainder, 2)
    function = _truncated if signed else np.floor_divide
    return elementwise(instruction, scope, kind, function, 2)


def _truncated(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    out: np.ndarray = np.floor_divide(x - np.fmod(x, y), y)
    return out


def shift(instruction: Instruction, scope: Scope) -> Handler:
    """Execute shl and shr; counts beyond the width shift everything out, as NumPy's do."""
    kind = type_of(instruction)
    left = instruction.parts[0] == "shl"
    if left or kind[0] == "b":
        kind = unsigned(kind)
    sources = [scope.slot(instruction, 1, kind), scope.slot(instruction, 2, "u32")]
    function = np.left_shift if left else np.right_shift
    return direct(function, scope.slot(instruction, 0, kind), sources)


def funnel_shift(instruction: Instruction, scope: Scope) -> Handler:
    """Execute shf: take 32 bits out of two registers."""
    left, wrap = instruction.has("l"), instruction.has("wrap")

    def run(low: np.ndarray, high: np.ndarray, count: np.ndarray) -> np.ndarray:
        by = (count & np.uint32(31) if wrap else np.minimum(count, np.uint32(32))).astype(np.uint64)
        both = (high.astype(np.uint64) << np.uint64(32)) | low
        out: np.ndarray = (both << by >> np.uint64(32) if left else both >> by).astype(np.uint32)
        return out

    sources = [scope.slot(instruction, n, "u32") for n in (1, 2, 3)]
    return computed(run, scope.slot(instruction, 0, "u32"), sources)


def extract(instruction: Instruction, scope: Scope) -> Handler:
    """Execute bfe: take a field of bits, with its sign when signed."""
    kind = type_of(instruction)
    bits = bits_of(kind)

    def run(x: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
        start = np.minimum(start & np.uint32(255), np.uint32(bits)).astype(np.int64)
        length = np.minimum(length & np.uint32(255), np.uint32(bits)).astype(np.int64)
        field = (x.astype(np.uint64) if bits == 32 else x) >> start.astype(np.uint64)
        keep = np.uint64(2**64 - 1) >> np.maximum(64 - length, 0).astype(np.uint64)
        field = np.where(length == 0, np.uint64(0), field & keep)
        if kind[0] == "u":
            low: np.ndarray = field.astype(f"u{bits // 8}")
            return low
        top = np.minimum(start + length - 1, bits - 1).astype(np.uint64)
        sign = (x.astype(np.uint64) >> top & np.uint64(1)).astype(bool) & (length > 0)
        have = np.clip(length, 0, np.maximum(bits - start, 0)).astype(np.uint64)
        fill = np.uint64(2**64 - 1) << have
        out: np.ndarray = np.where(sign, field | fill, field).astype(f"u{bits // 8}")
        return out

    raw = unsigned(kind)
    sources = [scope.slot(instruction, n, k) for n, k in ((1, raw), (2, "u32"), (3, "u32"))]
    return computed(run, scope.slot(instruction, 0, raw), sources)


def insert(instruction: Instruction, scope: Scope) -> Handler:
    """Execute bfi: put the low bits of one operand into a field of another."""
    kind = unsigned(type_of(instruction))
    bits = bits_of(kind)

    def run(x: np.ndarray, y: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
        start = (start & np.uint32(255)).astype(np.uint64)
        length = np.minimum(length & np.uint32(255), np.uint32(64)).astype(np.uint64)
        ones = np.uint64(2**64 - 1) >> np.minimum(np.uint64(64) - length, np.uint64(64))
        mask = ones << start
        out: np.ndarray = (y & ~mask) | (x.astype(np.uint64) << start & mask)
        return out

    kinds = ((1, kind), (2, kind), (3, "u32"), (4, "u32"))
    sources = [scope.slot(instruction, n, k) for n, k in kinds]
    assert bits in (32, 64)
    return computed(run, scope.slot(instruction, 0, kind), sources)


def permute_bytes(instruction: Instruction, scope: Scope) -> Handler:
    """Execute prmt: choose any four bytes of two registers (the default mode)."""
    if instruction.has("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        raise instruction.refuse()

    def run(x: np.ndarray, y: np.ndarray, selector: np.ndarray) -> np.ndarray:
        both = (y.astype(np.uint64) << np.uint64(32)) | x
        out = np.zeros(np.broadcast(x, y, selector).shape, np.uint32)
        for place in range(4):
            pick = selector >> np.uint32(4 * place) & np.uint32(15)
            byte = both >> ((pick & np.uint32(7)).astype(np.uint64) << np.uint64(3))
            byte = (byte & np.uint64(255)).astype(np.uint32)
            sign = np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0))
            byte = np.where(pick & np.uint32(8), sign, byte)
            out |= byte << np.uint32(8 * place)
        return out

    sources = [scope.slot(instruction, n, "u32") for n in (1, 2, 3)]
    return computed(run, scope.slot(instruction, 0, "u32"), sources)


def _reversed(x: np.ndarray) -> np.ndarray:
    size = x.dtype.itemsize
    table = np.array([int(f"{n:08b}"[::-1], 2) for n in range(256)], np.uint8)
    octets = table[np.ascontiguousarray(x).view(np.uint8).reshape(-1, size)[:, ::-1]]
    return np.ascontiguousarray(octets).view(x.dtype).reshape(-1)


def _leading_zeros(x: np.ndarray) -> np.ndarray:
    left, value = np.full(x.shape, 8 * x.dtype.itemsize, np.uint32), x.copy()
    while value.any():
        left -= (value != 0).astype(np.uint32)
        value >>= x.dtype.type(1)
    return left


_ONES = np.array([(n).bit_count() for n in range(256)], np.uint32)


def _count_ones(x: np.ndarray) -> np.ndarray:
    octets = np.ascontiguousarray(x).view(np.uint8).reshape(len(x), -1)
    out: np.ndarray = _ONES[octets].sum(1, dtype=np.uint32)
    return out


def bit_count(instruction: Instruction, scope: Scope) -> Handler:
    """Execute popc, clz and brev."""
    kind = unsigned(type_of(instruction))
    name = instruction.parts[0]
    functions = {"popc": _count_ones, "clz": _leading_zeros, "brev": _reversed}
    result = scope.slot(instruction, 0, kind if name == "brev" else "u32")
    return computed(functions[name], result, [scope.slot(instruction, 1, kind)])


def logic3(instruction: Instruction, scope: Scope) -> Handler:
    """Execute lop3: any function of three bits, given by its table."""

    def run(x: np.ndarray, y: np.ndarray, z: np.ndarray, table: np.ndarray) -> np.ndarray:
        out = np.zeros(np.broadcast(x, y, z).shape, np.uint32)
        for row in range(8):
            if int(table[0]) >> row & 1:
                out |= (x if row & 4 else ~x) & (y if row & 2 else ~y) & (z if row & 1 else ~z)
        return out

    sources = [scope.slot(instruction, n, "u32") for n in (1, 2, 3, 4)]
    return computed(run, scope.slot(instruction, 0, "u32"), sources)


def dot_product(instruction: Instruction, scope: Scope) -> Handler:
    """Execute dp4a: sum four products of bytes in 32 bits."""
    first, second = instruction.parts[-2:]
    kinds = [kind[0] + "8x4" for kind in (first, second)]

    def run(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        out: np.ndarray = (x.astype(np.int64) * y).sum(1).astype(np.uint32) + z
        return out

    sources = [scope.slot(instruction, 1 + n, k) for n, k in enumerate((*kinds, "u32"))]
    return computed(run, scope.slot(instruction, 0, "u32"), sources)


_ORDERED: dict[str, Any] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal,
    "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip


def _missing(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    out: np.ndarray = np.isnan(x) | np.isnan(y)
    return out


def comparison(name: str, kind: str) -> Any:
    """Return the function that compares two arrays: "lt", "neu", "num", ..."""
    if not is_float(kind):
        return _ORDERED[name]
    if name == "nan":
        return _missing
    if name == "num":
        return lambda x, y: ~_missing(x, y)
    if name == "ne":
        return lambda x, y: (x != y) & ~_missing(x, y)
    if len(name) == 3 and name.endswith("u"):
        test = _ORDERED[name[:2]]
        return lambda x, y: test(x, y) | _missing(x, y)
    return _ORDERED[name]


def set_predicate(instruction: Instruction, scope: Scope) -> Handler:
    """Execute setp: compare, combine with a predicate, set one or two predicates."""
    kind = type_of(instruction)
    test = comparison(instruction.parts[1], kind)
    kind = unsigned(kind) if kind[0] == "b" and kind[1:].isdigit() else kind
    target = instruction.operands[0]
    combine = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}.get(
        instruction.parts[2]
    )
    sources = [scope.slot(instruction, n, kind) for n in (1, 2)]
    simple = combine is None and not isinstance(target, PredicatePair) and kind != "bf16"
    if simple and isinstance(test, np.ufunc):
        return direct(test, scope.slot(instruction, 0, "pred"), sources)
    last = instruction.operands[-1]
    negated = isinstance(last, Negated)
    with_slot = -1
    if combine is not None:
        with_slot = scope.slot_of(instruction, last.register if negated else last, "pred")
    pair = isinstance(target, PredicatePair)
    results = [target.first, target.second] if pair else [target]
    slots = [scope.slot_of(instruction, result, "pred") for result in results]

    def run(batch: Batch) -> None:
        x, y = (batch.regs[source] for source in sources)
        if kind == "bf16":
            x, y = widen(x), widen(y)
        values = [test(x, y)]
        if pair:
            values.append(~values[0])
        if combine is not None:
            other = batch.regs[with_slot]
            values = [combine(value, ~other if negated else other) for value in values]
        for slot, value in zip(slots, values):
            np.copyto(batch.regs[slot], value, where=batch.where)

    return run


def select(instruction: Instruction, scope: Scope) -> Handler:
    """Execute selp: choose one of two operands by a predicate."""
    kind = type_of(instruction)
    raw = "u16" if kind == "bf16" else f"u{bits_of(kind)}"
    first, second = (scope.slot(instruction, n, raw) for n in (1, 2))
    result, guard = scope.slot(instruction, 0, raw), scope.slot(instruction, 3, "pred")

    def run(batch: Batch) -> None:
        regs = batch.regs
        chosen = np.where(regs[guard], regs[first], regs[second])
        np.copyto(regs[result], chosen, where=batch.where)

    return run


def _sad(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    out: np.ndarray = np.where(x < y, y - x, x - y) + z
    return out


def absolute_difference(instruction: Instruction, scope: Scope) -> Handler:
    """Execute sad: |x - y| + z."""
    return elementwise(instruction, scope, type_of(instruction), _sad, 3)


def _bits(function: Any, count: int = 2) -> Builder:
    return lambda instruction, scope: plain(function, instruction, scope, count)


BUILDERS: dict[str, Builder] = {
    "and": _bits(np.bitwise_and),
    "or": _bits(np.bitwise_or),
    "xor": _bits(np.bitwise_xor),
    "not": _bits(np.invert, 1),
    **dict.fromkeys(("addc", "subc", "madc"), with_carry),
    "shl": shift,
    "shr": shift,
    "shf": funnel_shift,
    "bfe": extract,
    "bfi": insert,
    "prmt": permute_bytes,
    "popc": bit_count,
    "clz": bit_count,
    "brev": bit_count,
    "lop3": logic3,
    "dp4a": dot_product,
    "setp": set_predicate,
    "selp": select,
    "sad": absolute_difference,
}
