"""Rewrite LLVM IR as LLVM 24 prints it to text that LLVM 22 reads.

MLIR's bindings bring a newer LLVM than the one that makes PTX, and text is the bridge between them.
Three things changed: floating-point literals are written in decimal or as `f0x3EAAAAAB`, `+qnan`,
`-inf`, `+nan(0x1)` (LLVM 22: the bits in hexadecimal, unless a decimal is exact), the attribute
`denormal_fpenv(..)` was two string attributes, and declarations of intrinsics carry attributes that
older readers do not know. Every literal keeps its bits, NaN payloads and subnormals included.
"""

from __future__ import annotations

import re
import struct
from fractions import Fraction

# Type -> (bits, bits of the fraction, prefix of a hexadecimal literal in LLVM 22).
_FORMATS = {
    "half": (16, 10, "0xH"),
    "bfloat": (16, 7, "0xR"),
    "float": (32, 23, "0x"),
    "double": (64, 52, "0x"),
}
_TOKEN = re.compile(
    r'c?"(?:[^"\\]|\\.)*"'  # strings
    r"|;[^\n]*"  # comments
    r"|[%@!#$][-\w.$]+"  # names, which may look like types and numbers
    r"|\b(?:half|bfloat|float|double)\b"
    r"|\bf0x[0-9A-Fa-f]+"
    r"|[+-]?\b\d+\.\d+(?:[eE][+-]?\d+)?"
    r"|[+-](?:inf|qnan|s?nan\(0x[0-9A-Fa-f]+\))"
)
_DENORMAL = re.compile(r"denormal_fpenv\(([^)]*)\)")
_MODES = {
    "preservesign": "preserve-sign",
    "positivezero": "positive-zero",
    "ieee": "ieee",
    "dynamic": "dynamic",
}


def readable(text: str) -> str:
    """Return the same module as LLVM 22 writes it."""
    return "\n".join(_line(line) for line in text.split("\n"))


def _line(line: str) -> str:
    if line.startswith(("attributes #", "define ")):
        line = _DENORMAL.sub(_denormal, line)
    elif line.startswith("declare ") and "@llvm." in line:
        line = re.sub(r"\) #\d+$", ")", line)  # readers know the attributes of intrinsics
    type_ = ""  # of a literal: the last floating-point type before it on its line

    def token(found: re.Match[str]) -> str:
        nonlocal type_
        word = found[0]
        if word in _FORMATS:
            type_ = word
        if word in _FORMATS or word[0] in '"c;%@!#$' or not type_:
            return word
        return literal(bits(word, type_), type_)

    return _TOKEN.sub(token, line)


def _denormal(found: re.Match[str]) -> str:
    attributes = []
    for part in found[1].split(","):
        kind, _, modes = part.strip().rpartition(":")
        name = "denormal-fp-math-f32" if kind == "float" else "denormal-fp-math"
        both = [_MODES[mode] for mode in modes.strip().split("|")]
        attributes.append(f'"{name}"="{",".join(both if len(both) == 2 else both * 2)}"')
    return " ".join(attributes)


def bits(word: str, type_: str) -> int:
    """Return the bit pattern that a literal of LLVM 24 has in `type_`; a decimal is rounded once, to nearest even."""
    size, fraction, _ = _FORMATS[type_]
    sign = 1 << (size - 1) if word[0] == "-" else 0
    infinity = ((1 << (size - 1 - fraction)) - 1) << fraction
    quiet = 1 << (fraction - 1)
    if word.startswith("f0x"):
        return int(word[3:], 16)
    body = word.lstrip("+-")
    if body == "inf":
        return sign | infinity
    if body == "qnan":
        return sign | infinity | quiet
    if body.startswith("nan("):
        return sign | infinity | quiet | int(body[6:-1], 16)
    if body.startswith("snan("):
        return sign | infinity | int(body[7:-1], 16)
    return sign | _rounded(Fraction(body), size, fraction)


def _rounded(value: Fraction, size: int, fraction: int) -> int:
    """Return the bits of the floating-point number nearest to a value that is not negative."""
    if value == 0:
        return 0
    bias = (1 << (size - 2 - fraction)) - 1
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if Fraction(2) ** exponent > value:
        exponent -= 1
    exponent = max(exponent, 1 - bias)  # subnormals share the least one
    mantissa = round(value / Fraction(2) ** (exponent - fraction))  # half to even
    # A mantissa that rounds up to the next power of two carries into the exponent by itself.
    return ((exponent + bias - 1) << fraction) + mantissa


def literal(pattern: int, type_: str) -> str:
    """Return LLVM 22's literal for a bit pattern; a float is written as the double of its value."""
    size, _, prefix = _FORMATS[type_]
    if type_ == "float":
        pattern, size = _widened(pattern), 64
    return f"{prefix}{pattern:0{size // 4}X}"


def _widened(pattern: int) -> int:
    """Return the bits of a float as a double; a NaN keeps its payload, which a conversion might change."""
    if pattern & 0x7F800000 == 0x7F800000 and pattern & 0x7FFFFF:
        return (pattern >> 31) << 63 | 0x7FF << 52 | (pattern & 0x7FFFFF) << 29
    (value,) = struct.unpack("<f", struct.pack("<I", pattern))
    return int.from_bytes(struct.pack("<d", value), "little")
