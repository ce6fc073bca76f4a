"""Divide numbers that bf16 holds, to be rounded to bf16: without branches, and with the bits of a division in f32.

A quotient of two significands of 8 bits is no nearer to the middle between two numbers of bf16 than 2^-17 of its size,
or, where it is subnormal, exactly there. So a product with an inverse that is off by a few 2^-23 is rounded to the same
number; exact middles are restored by rounding to a multiple of 2^-145 first. The divisor is brought near to 1, so that
its inverse is neither subnormal nor infinite; where many are divided by one number, that is done once.
"""

from __future__ import annotations

from meshweave.lowering.gpu.writer import DeviceWriter
from meshweave.lowering.writer import Value

FAR = 2.0**64  # divisors beyond it, or below its inverse, are scaled
MIDDLES = 1.5 * 2.0**-122  # a number whose last place is 2^-145


def quotient(writer: DeviceWriter, left: Value, right: Value) -> Value:
    """Return an f32 that is rounded to bf16 as `left` / `right` is."""
    one, size = writer.constant(1.0, "f32"), writer.magnitude(right)
    far, near = writer.constant(FAR, "f32"), writer.constant(1 / FAR, "f32")
    scale = writer.select(writer.compare("olt", size, near), far, one)
    scale = writer.select(writer.compare("ogt", size, far), near, scale)
    found = (left * scale) * writer.inverse(right * scale)
    middle = writer.constant(MIDDLES, "f32")
    return writer.with_sign((found + middle) - middle, found)
