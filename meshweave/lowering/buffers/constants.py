"""Read constant tensors as the bytes of a buffer."""

from __future__ import annotations

import math
import re
import struct

import numpy as np

from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.locations import location_text
from meshweave.transforms.base import ops_of

_TOKEN = re.compile(r"0x[0-9A-Fa-f]+|[-+]?\d[\d.]*(?:[eE][-+]?\d+)?|true|false")


def constant_buffers(module: ir.Module) -> dict[str, bytes]:
    """Return the bytes of every memref.global of the module, row-major, by name."""
    found = {}
    for op in ops_of(module, "memref.global"):
        name = op.operation.attributes["sym_name"].value
        value = op.operation.attributes["initial_value"]
        found[name] = constant_bytes(value, location_text(op.operation.location))
    return found


def constant_bytes(value: ir.Attribute, where: str) -> bytes:
    """Return the elements of a dense attribute as they lie in memory.

    Raises CompileError for resources and for types that buffers do not hold.
    """
    if not isinstance(value, ir.DenseElementsAttr):
        raise CompileError("a constant that is not dense<...>", where)
    type_ = value.type
    element = str(type_.element_type)
    count = math.prod(type_.shape)
    if element == "bf16":
        return _bfloat16(value, count)
    array = np.asarray(value)
    if element == "i1":
        array = array.astype(np.uint8) & 1
    if array.size != count:
        array = np.broadcast_to(array.reshape(-1)[:1], (count,))
    return np.ascontiguousarray(array).tobytes()


def _bfloat16(value: ir.DenseElementsAttr, count: int) -> bytes:
    """Return the elements of a bf16 attribute. NumPy has no bf16: they are read from the attribute's text."""
    text = str(value)
    body = text[text.index("<") + 1 : text.rindex("> :")]
    if body.startswith('"0x'):
        data = bytes.fromhex(body[3:-1])
        return data if len(data) == 2 * count else data[:2] * count
    words = [_bits(token) for token in _TOKEN.findall(body)]
    if len(words) == 1:
        words *= count
    return struct.pack(f"<{count}H", *words)


def _bits(token: str) -> int:
    """Return the bits of a bf16 number as MLIR prints it.

    That is a hexadecimal bit pattern, or a decimal that is rounded to nearest even.
    """
    if token.startswith("0x"):
        return int(token, 16)
    word: int = struct.unpack("<I", struct.pack("<f", float(token)))[0]
    return (word + 0x7FFF + (word >> 16 & 1)) >> 16
