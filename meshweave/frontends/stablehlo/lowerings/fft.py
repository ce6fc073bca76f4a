"""Lower stablehlo.fft: one dim after another."""

import re

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.fft import transformed
from meshweave.ir.ops import producer, replace_op


def lower_fft(op: ir.Operation) -> None:
    """Lower stablehlo.fft over the last dims; of real numbers only the last one is halved."""
    b, lengths = OpBuilder.before(op), list(op.attributes["fft_length"])
    value, order = _untransposed(op.operands[0])
    kind = re.sub(r"\W|fft_type", " ", str(op.attributes["fft_type"])).split()[-1].lower()
    last, *others = order[: -len(lengths) - 1 : -1]
    if kind in ("rfft", "fft"):
        value = transformed(b, value, kind, last, lengths[-1])
    for dim in others:
        length = value.type.shape[dim]
        value = transformed(b, value, "fft" if kind in ("rfft", "fft") else "ifft", dim, length)
    if kind in ("irfft", "ifft"):
        value = transformed(b, value, kind, last, lengths[-1])
    if order != sorted(order):
        permutation = ir.DenseI64ArrayAttr.get(order)
        value = b.one("stablehlo.transpose", op.results[0].type, value, permutation=permutation)
    replace_op(op, [value])


def _untransposed(value: ir.Value) -> tuple[ir.Value, list[int]]:
    """Return what a transpose transposes, and the order of its dims: a transform needs none."""
    made = producer(value)
    if made is None or made.name != "stablehlo.transpose":
        return value, list(range(len(value.type.shape)))
    return made.operands[0], list(made.attributes["permutation"])


LOWER = {"stablehlo.fft": lower_fft}
"""The op of this file."""
