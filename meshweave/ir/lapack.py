"""Check and build `mw.lapack`, a call of a LAPACK routine on tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import OpBuilder, tensor_type
from meshweave.ir.routines import LAPACK, MOST, PARTS, ROUTINES, RoutineCall


def misfit(name: str, types: Sequence[ir.Type]) -> str:
    """Say what is wrong with the types of a routine's operands and results; "" where they fit."""
    row = ROUTINES[name]
    shaped = all(isinstance(t, ir.ShapedType) and t.has_static_shape for t in types)
    if not shaped or any(len(t.shape) < len(dims) for t, dims in zip(types, row.tensors)):
        return f"needs matrices of static shape, not {types[0]}"
    element = str(types[0].element_type)
    wanted = row.types(element)
    if element not in ("f32", "f64") or wanted != [str(t.element_type) for t in types]:
        return f"computes f32 or f64, here ({', '.join(wanted)})"
    call = RoutineCall.made(name, element, [t.shape for t in types])
    if call.shapes != [list(t.shape) for t in types]:
        return f"needs the shapes {', '.join(map(str, call.shapes))}"
    if call.sizes.get(PARTS, 2) != 2:
        return f"needs numbers of 2 parts, not of {call.sizes[PARTS]}"
    for small, large in row.limits:
        if call.sizes[small] > call.sizes[large]:
            return f"needs at most {call.sizes[large]} where it has {call.sizes[small]}"
    most = max(*row.room(call.sizes), *[math.prod(call.extents(dims)) for dims in row.tensors])
    return "" if most < MOST else f"needs {most} elements at once, LAPACK counts to {MOST - 1}"


def misplaced(name: str, types: Sequence[ir.Type]) -> str:
    """Say what is wrong with the buffers of a routine: gaps, or too little memory of its own; "" where they fit."""
    count = len(ROUTINES[name].tensors)
    for type_ in types:
        if not _is_packed(list(type_.shape), type_.get_strides_and_offset()[0]):
            return f"needs buffers without gaps, not {type_}"
    call = RoutineCall.made(name, str(types[0].element_type), [t.shape for t in types])
    own = [math.prod(t.shape) for t in types[count:] if str(t.element_type) == "i8"]
    wanted = call.scratch_bytes
    return (
        ""
        if own == ([wanted] if wanted else [])
        else f"needs {wanted} bytes of i8 behind its results"
    )


def _is_packed(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Tell whether elements lie back to back, in order."""
    steps = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    return 0 in shape or all(n == 1 or a == b for n, a, b in zip(shape, strides, steps))


def lapack(
    b: OpBuilder, routine: str, operands: Sequence[ir.Value], flags: Sequence[str] = ()
) -> list[ir.Value]:
    """Make an `mw.lapack`; return its results. Floats of 16 bits are computed in f32."""
    element = operands[0].type.element_type
    wide = ir.F32Type.get() if element.width < 32 else element
    row = ROUTINES[routine]
    floats = [kind != "i32" for kind in row.types("")]
    given = [_converted(b, v, wide) if is_float else v for v, is_float in zip(operands, floats)]
    call = RoutineCall.made(routine, str(wide), [value.type.shape for value in given], flags)
    i32 = ir.IntegerType.get_signless(32)
    kinds = [i32 if kind == "i32" else wide for kind in row.types(str(wide))]
    types = [tensor_type(shape, kind) for shape, kind in zip(call.shapes, kinds)]
    said = {"routine": ir.StringAttr.get(routine)} | {f: ir.UnitAttr.get() for f in flags}
    made = b.op(LAPACK, types[len(operands) :], given, **said).results
    return [v if v.type.element_type == i32 else _converted(b, v, element) for v in made]


def of_nothing(op: ir.Operation) -> list[ir.Value]:
    """Return the results of an `mw.lapack` on matrices without elements: identities, and no failure.

    A product with Q is what was given.
    """
    b, call = OpBuilder.before(op), RoutineCall.of(op)
    if call.routine.startswith("ormqr"):
        return [op.operands[2]]
    dims = call.row.tensors[call.inputs :]
    return [_identity(b, result.type, letters) for result, letters in zip(op.results, dims)]


def _identity(b: OpBuilder, type_: ir.Type, letters: str) -> ir.Value:
    """Make identity matrices of floats, or of complex numbers in parts; zeros of what is no matrix."""
    is_complex = letters.endswith(PARTS)
    element, ndim = type_.element_type, len(type_.shape) - is_complex
    if isinstance(element, ir.IntegerType):
        return b.one("tensor.splat", type_, b.integer(0, element))
    zero, one = [b.constant(ir.FloatAttr.get(element, value)) for value in (0.0, 1.0)]
    if len(letters) - is_complex < 2:
        return b.one("tensor.splat", type_, zero)

    def at(inner: OpBuilder, _: list[ir.Value]) -> ir.Value:
        row, column = inner.loop_index(ndim - 2), inner.loop_index(ndim - 1)
        same = inner.compare(arith.CmpIPredicate.eq, row, column)
        if is_complex:
            real = inner.compare(arith.CmpIPredicate.eq, inner.loop_index(ndim), inner.index(0))
            same = inner.binary("andi", same, real)
        return inner.select(same, one, zero)

    return b.elementwise([], b.empty(type_), at)


def _converted(b: OpBuilder, value: ir.Value, element: ir.Type) -> ir.Value:
    """Return a tensor of floats with elements of another type."""
    given = value.type.element_type
    if given == element:
        return value
    name = "arith.extf" if element.width > given.width else "arith.truncf"
    return b.one(name, tensor_type(list(value.type.shape), element), value)
