"""Execute what moves and multiplies matrices in the registers of a warp: ldmatrix, stmatrix, mma.

A fragment of 8x8 elements of 16 bits: lane 4 r + c holds elements 2 c and 2 c + 1 of row r. Products
are summed in f64 and rounded once: in f32, the order of NumPy's sums, which is another one on other
processors, would show. The device's order and its truncation are its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from meshweave.simulator.ptx.batch import Batch
from meshweave.simulator.ptx.handlers import Builder, Handler, Scope, put_rows, rows_of
from meshweave.simulator.ptx.instructions.access import address
from meshweave.simulator.ptx.instructions.collectives import check_members
from meshweave.simulator.ptx.memory import MemoryAccess
from meshweave.simulator.ptx.numbers import widen
from meshweave.simulator.ptx.program import Instruction, Vector
from meshweave.simulator.ptx.spaces import SPACES


def operand_registers(instruction: Instruction, scope: Scope, number: int, kind: str) -> list[int]:
    """Return the slots of an operand's registers: of each part of a vector, or of the one that it is."""
    operand = instruction.operands[number]
    parts = operand.parts if isinstance(operand, Vector) else (operand,)
    return [scope.slot_of(instruction, part, kind) for part in parts]


@dataclass(frozen=True)
class _Moved:
    """Describe what ldmatrix and stmatrix move.

    It is `count` matrices between the words of some registers and the rows at the addresses in a slot.
    """

    count: int
    registers: list[int]
    slot: int
    access: MemoryAccess
    transposed: bool

    def in_registers(self, tiles: np.ndarray) -> np.ndarray:
        """Transpose 8x8 matrices where the instruction asks it, between memory and registers either way."""
        tiles = tiles.reshape(-1, self.count, 8, 8)
        return np.ascontiguousarray(tiles.transpose(0, 1, 3, 2) if self.transposed else tiles)

    @contextmanager
    def first_lanes(self, batch: Batch) -> Iterator[np.ndarray]:
        """Restrict the batch to the lanes that have addresses, the first 8 * count of each warp, and return them."""
        saved, number = batch.lanes, 8 * self.count
        addresses = rows_of(batch, self.slot).reshape(-1, 32)[:, :number].reshape(-1)
        batch.lanes = saved.reshape(-1, 32)[:, :number].reshape(-1)
        try:
            yield addresses
        finally:
            batch.lanes = saved


def _moved(instruction: Instruction, scope: Scope, registers: int, memory: int) -> _Moved:
    """Read the operands of a move. registers, memory: which operand is which."""
    if not instruction.has("m8n8") or not instruction.has("b16"):
        raise instruction.refuse()
    count = int(next(part for part in instruction.parts if re.fullmatch(r"x[124]", part))[1])
    slot, offset = address(instruction, memory, scope)
    return _Moved(
        count,
        operand_registers(instruction, scope, registers, "u32"),
        slot,
        MemoryAccess(instruction, 16, 2, offset),
        instruction.has("trans"),
    )


def load_matrix(instruction: Instruction, scope: Scope) -> Handler:
    """Execute ldmatrix: 8x8 matrices of 16-bit elements; lane 8 i + r has the address of row r of the i-th."""
    moved = _moved(instruction, scope, 0, 1)

    def run(batch: Batch) -> None:
        check_members(batch, instruction, None)
        with moved.first_lanes(batch) as addresses:
            rows = SPACES["shared"].read(batch, moved.access, addresses)
        words = moved.in_registers(rows).view(np.uint32).reshape(-1, moved.count, 32)
        for number, result in enumerate(moved.registers):
            put_rows(batch, result, words[:, number].reshape(-1))

    return run


def store_matrix(instruction: Instruction, scope: Scope) -> Handler:
    """Execute stmatrix, the opposite of ldmatrix."""
    moved = _moved(instruction, scope, 1, 0)

    def run(batch: Batch) -> None:
        check_members(batch, instruction, None)
        words = np.stack([rows_of(batch, s).reshape(-1, 32) for s in moved.registers], axis=1)
        tiles = moved.in_registers(words.view(np.uint16))
        with moved.first_lanes(batch) as addresses:
            SPACES["shared"].write(batch, moved.access, addresses, tiles.reshape(-1, 8))

    return run


# -- mma


def _halves(words: np.ndarray, kind: str) -> np.ndarray:
    """Convert [warp, 8, 4] words to [warp, 8, 8] f64 values."""
    pairs = np.ascontiguousarray(words.reshape(-1, 8, 4)).view(np.uint16)
    return (widen(pairs) if kind == "bf16" else pairs.view(np.float16)).astype(np.float64)


def _tf32(words: np.ndarray) -> np.ndarray:
    """Keep the upper 19 bits, which are all that the device reads."""
    kept = words.reshape(-1, 8, 4) & np.uint32(0xFFFFE000)
    out: np.ndarray = kept.view(np.float32).astype(np.float64)
    return out


def operand_a(batch: Batch, slots: list[int], kind: str) -> np.ndarray:
    """Return A as [warp, 16, k]: registers go down 8 rows first, then to the right."""
    tiles = [_tile(rows_of(batch, slot), kind) for slot in slots]
    columns = [np.concatenate(tiles[at : at + 2], axis=1) for at in range(0, len(tiles), 2)]
    return np.concatenate(columns, axis=2)


def _operand_b(batch: Batch, slots: list[int], kind: str) -> np.ndarray:
    """Return B as [warp, k, 8]."""
    tiles = [_tile(rows_of(batch, slot), kind).transpose(0, 2, 1) for slot in slots]
    return np.concatenate(tiles, axis=1)


def _tile(words: np.ndarray, kind: str) -> np.ndarray:
    return _tf32(words) if kind == "tf32" else _halves(words, kind)


_SHAPES = {  # (shape, type of A and B): registers of A and of B
    ("m16n8k16", "bf16"): (4, 2), ("m16n8k16", "f16"): (4, 2),
    ("m16n8k8", "bf16"): (2, 1), ("m16n8k8", "f16"): (2, 1),
    ("m16n8k8", "tf32"): (4, 2), ("m16n8k4", "tf32"): (2, 1),
}  # fmt: skip


def multiply(instruction: Instruction, scope: Scope) -> Handler:
    """Execute mma.sync: D = A B + C of one warp."""
    if not instruction.has("sync") or instruction.has("sp"):
        raise instruction.refuse()
    shape = next((p for p in instruction.parts if re.fullmatch(r"m\d+n\d+k\d+", p)), "")
    types = instruction.types
    if shape == "m8n8k4" and types == ["f64"] * 4:
        return _multiply64(instruction, scope)
    if len(types) != 4 or (shape, types[1]) not in _SHAPES or types[1] != types[2]:
        raise instruction.refuse()
    if types[0] != types[3] or types[0] not in ("f32", "f16"):
        raise instruction.refuse()
    kind, packed = types[1], types[0] == "f16"
    a, b = (operand_registers(instruction, scope, n, "u32") for n in (1, 2))
    d, c = (operand_registers(instruction, scope, n, "u32" if packed else "f32") for n in (0, 3))
    if (len(a), len(b)) != _SHAPES[shape, kind] or len(c) != len(d):
        raise instruction.refuse("wrong number of registers")

    def run(batch: Batch) -> None:
        check_members(batch, instruction, None)
        product = np.matmul(operand_a(batch, a, kind), _operand_b(batch, b, kind))
        halves = product.reshape(-1, 2, 8, 4, 2)  # half of the rows, row, lane's column, element
        for half in range(2):
            _accumulate(batch, halves[:, half], c, d, half, packed)

    return run


def _accumulate(
    batch: Batch,
    product: np.ndarray,
    c: list[int],
    d: list[int],
    half: int,
    packed: bool,
) -> None:
    """Add C to 8 rows of the product and write D: two registers, or one with two f16."""
    if packed:
        pairs = rows_of(batch, c[half]).view(np.float16).reshape(-1, 2).astype(np.float64)
        total = (product.reshape(-1, 2) + pairs).astype(np.float16)
        put_rows(batch, d[half], np.ascontiguousarray(total).view(np.uint32).reshape(-1))
        return
    for element in range(2):
        register = 2 * half + element
        added = product[..., element].reshape(-1) + rows_of(batch, c[register])
        put_rows(batch, d[register], added.astype(np.float32))


def _multiply64(instruction: Instruction, scope: Scope) -> Handler:
    """Execute m8n8k4 in f64: A 8x4 and B 4x8, an element a lane; C and D two elements a lane."""
    d, a, b, c = (operand_registers(instruction, scope, number, "f64") for number in range(4))

    def run(batch: Batch) -> None:
        check_members(batch, instruction, None)
        left = rows_of(batch, a[0]).reshape(-1, 8, 4)
        right = rows_of(batch, b[0]).reshape(-1, 8, 4).transpose(0, 2, 1)
        product = np.matmul(left, right).reshape(-1, 8, 4, 2)
        added = [product[..., n].reshape(-1) + rows_of(batch, c[n]) for n in range(2)]
        for number in range(2):
            put_rows(batch, d[number], added[number])

    return run


BUILDERS: dict[str, Builder] = {
    "ldmatrix": load_matrix,
    "stmatrix": store_matrix,
    "mma": multiply,
}
