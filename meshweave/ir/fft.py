"""Read `mw.fft`, a discrete Fourier transform along one dim, and check its types."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64, tensor_type

FFT = "mw.fft"
KINDS = ("fft", "ifft", "rfft", "irfft")
"""From complex to complex numbers and back; from real to complex ones and back."""
PARTS = 2
"""The extent of the last dim of a tensor that holds complex numbers."""
LONGEST = 31
"""The longest prime whose transform is written out; lengths with longer ones are computed as convolutions."""
_GAP = 80
"""Elements between pieces of scratch memory: pieces a power of two apart would share lines of the cache."""


@dataclass(frozen=True)
class Transform:
    """Hold what an `mw.fft` says.

    shape: of its operand, as complex or real numbers. length: of the transform. given, made: how many tensors hold
    what it reads and makes: two where real and imaginary parts are apart.
    """

    kind: str
    element: str
    shape: tuple[int, ...]
    dim: int
    length: int
    given: int
    made: int

    @classmethod
    def of(cls, op: ir.Operation) -> Transform:
        """Read an `mw.fft` on tensors, or on buffers, that its verifier has passed."""
        given, made = _sides_of(op)
        kind, dim = op.attributes["kind"].value, op.attributes["dim"].value
        length = op.attributes["length"].value
        type_ = op.operands[0].type
        shape = tuple(type_.shape)
        if given == 1 and kind != "rfft":
            shape = shape[:-1]
        return cls(kind, str(type_.element_type), shape, dim, length, given, made)

    @property
    def key(self) -> tuple[object, ...]:
        """Return what equal transforms have in common."""
        forms = self.given, self.made
        return "fft", self.kind, self.element, self.before, self.length, self.after, *forms

    @property
    def title(self) -> str:
        """Return what reports call it."""
        return f"{self.kind} of {self.length}"

    @property
    def inputs(self) -> int:
        """Count the operands that it reads."""
        return self.given

    @property
    def before(self) -> int:
        """Count the elements of the dims before that of the transform."""
        return math.prod(self.shape[: self.dim])

    @property
    def after(self) -> int:
        """Count the elements of the dims behind that of the transform."""
        return math.prod(self.shape[self.dim + 1 :])

    @property
    def halved(self) -> bool:
        """Tell whether it is computed as the transform of half its length: of real numbers, two for each."""
        return self.kind in ("rfft", "irfft") and self.length % 2 == 0

    @property
    def core(self) -> int:
        """Return the length of the complex transform that it is made of."""
        return self.length // 2 if self.halved else self.length

    @property
    def rows(self) -> int:
        """Return how many complex numbers a column has in scratch memory."""
        return convolved(self.core) if is_long(self.core) else self.core

    @property
    def columns(self) -> int:
        """Return how many transforms, side by side in memory, are computed at once."""
        width = int(self.element[1:]) // 8
        most = max(64 // width, HELD_BYTES // (4 * max(1, self.rows) * width))
        return min(self.after, most - most % (64 // width))

    @property
    def piece(self) -> int:
        """Count the elements between two pieces of scratch memory, of which there are four."""
        return self.rows * self.columns + _GAP

    @property
    def scratch_bytes(self) -> int:
        """Return the bytes of memory that it needs besides its results."""
        return 4 * self.piece * (int(self.element[1:]) // 8)


HELD_BYTES = 1 << 18
"""Bytes that the transforms computed at once should not exceed, for the cache's sake."""


def _sides_of(op: ir.Operation) -> tuple[int, int]:
    """Count the tensors or buffers that an op reads, and those that it makes; scratch memory is neither."""
    if "outs" not in op.attributes:
        return len(op.operands), len(op.results)
    held = [v for v in op.operands if str(v.type.element_type) != "i8"]
    outs = op.attributes["outs"].value
    return len(held) - outs, outs


def half(length: int) -> int:
    """Return how many numbers a transform of real ones has that are not conjugates of others."""
    return length // 2 + 1


def extents(kind: str, length: int) -> tuple[int, int]:
    """Return the extents of the dim before and after a transform."""
    given, made = length, length
    if kind == "rfft":
        made = half(length)
    if kind == "irfft":
        given = half(length)
    return given, made


def transformed(b: OpBuilder, value: ir.Value, kind: str, dim: int, length: int) -> ir.Value:
    """Make an `mw.fft` of a tensor of complex numbers, or of real ones."""
    shape, element = list(value.type.shape), value.type.element_type
    shape[dim] = extents(kind, length)[1]
    if kind == "rfft":
        element = ir.ComplexType.get(element)
    if kind == "irfft":
        element = element.element_type
    said = {"kind": ir.StringAttr.get(kind), "dim": i64(dim), "length": i64(length)}
    return b.one(FFT, tensor_type(shape, element), value, **said)


def is_long(length: int) -> bool:
    """Tell whether a length has a prime factor that is not written out."""
    for prime in range(2, LONGEST + 1):
        while length % prime == 0 and length:
            length //= prime
    return length > 1


def convolved(length: int) -> int:
    """Return the length of the transforms that compute one of this length as a convolution."""
    return 1 << (2 * length - 2).bit_length()


def misfit(op: ir.Operation) -> str:
    """Say what is wrong with the attributes or types of an `mw.fft` on tensors or buffers; "" where they fit."""
    kind = str(getattr(op.attributes.get("kind"), "value", ""))
    if kind not in KINDS:
        return f"needs a `kind`, one of {', '.join(KINDS)}"
    types = [v.type for v in (*op.operands, *op.results)]
    if not types or any(not _is_static(t) for t in types):
        return "needs tensors of static shape"
    given, outs = _sides_of(op)
    if not (1 <= outs <= 1 + (kind != "irfft") and 1 <= given <= 1 + (kind != "rfft")):
        return f"{kind} takes and gives complex numbers as one tensor, or as two of their parts"
    element = _real(str(types[0].element_type))
    said = [_seen(t, n > 1, real) for t, n, real in _sides(kind, types, given, outs)]
    if element not in ("f32", "f64") or any(s is None or s[1] != element for s in said):
        return f"computes f32 or f64, here {types[0]}"
    return _misshapen(op, kind, [s[0] for s in said if s is not None], given)


def _misshapen(op: ir.Operation, kind: str, shapes: Sequence[Sequence[int]], given: int) -> str:
    dim = getattr(op.attributes.get("dim"), "value", -1)
    length = getattr(op.attributes.get("length"), "value", -1)
    if not 0 <= dim < len(shapes[0]):
        return f"dim must be one of the {len(shapes[0])} dims"
    if length < 0:
        return "needs a `length`"
    for number, shape in enumerate(shapes):
        wanted = [*shapes[0][:dim], extents(kind, length)[number >= given], *shapes[0][dim + 1 :]]
        if list(shape) != wanted:
            return f"{kind} of {length} along dim {dim} needs a tensor of shape {wanted}, not {list(shape)}"
    return ""


def _sides(
    kind: str, types: Sequence[ir.Type], given: int, outs: int
) -> list[tuple[ir.Type, int, bool]]:
    """Return each type that holds numbers, with how many hold its side, and whether they are real."""
    sides = [(t, given, kind == "rfft") for t in types[:given]]
    return [*sides, *[(t, outs, kind == "irfft") for t in types[given : given + outs]]]


def _seen(type_: ir.Type, apart: bool, real: bool) -> tuple[list[int], str] | None:
    """Return the shape of a tensor as numbers, and the type of their parts; None where it holds none."""
    shape, element = list(type_.shape), str(type_.element_type)
    if real or apart:
        return shape, element
    if element.startswith("complex"):
        return shape, _real(element)
    return (shape[:-1], element) if shape and shape[-1] == PARTS else None


def _real(element: str) -> str:
    return element.removeprefix("complex<").rstrip(">")


def _is_static(type_: ir.Type) -> bool:
    return hasattr(type_, "has_static_shape") and type_.has_static_shape
