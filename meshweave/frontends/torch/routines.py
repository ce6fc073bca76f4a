"""Bring what torch-mlir does not know through its pipelines, as calls of functions without a body.

Calls of LAPACK become `mw.lapack`, Fourier transforms `mw.fft`, logarithms of running sums `mw.scan`, functions of
complex numbers loops on their parts, constraints of layouts `dist.constrain`, sums of products one product with two
loops that reduce, bits taken for another dtype and extremes ops of `arith` on elements: an attribute of the function
says which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from meshweave.dialects.dist import LayoutAttr
from meshweave.frontends.complex.functions import function_of
from meshweave.frontends.stablehlo.inline import callee_of
from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import IteratorType, OpBuilder, dims_map, i64, tensor_type
from meshweave.ir.fft import FFT
from meshweave.ir.lapack import lapack
from meshweave.ir.ops import functions_of, ops_named, replace_op
from meshweave.ir.scans import scan
from meshweave.layout import Layout

CONSTRAIN_OP = "meshweave.constrain.default"
"""The op of torch that gives a value a layout over some axes: see `constrain.py`."""
SUMMED_OP = "meshweave.summed_products.default"
"""The op of torch that adds up products of rows and columns, of all matrices of a batch, in f32: see `matrices.py`."""
BITS_OP = "aten.view.dtype"
"""The op of torch that takes the bits of elements for those of another dtype."""
CAST = "arith.bitcast"
_SUMMED = "meshweave.summed_products"
EXTREME_OP = "meshweave.extreme.default"
"""The op of torch that chooses the larger or the smaller of two elements, NaN before either: see `orders.py`."""
LOG_SUMS_OP = "meshweave.log_sums.default"
"""The op of torch that gives log(exp(x[0]) + .. + exp(x[i])) along a dim, in floats of one type: see `running.py`."""
_ELEMENT_OP = "meshweave.element_op"
_LOG_SUMS = "meshweave.log_sums"
_FUNCTION = "meshweave.function_of_complex"
_TRANSFORM = "meshweave.transform"
_SAYS = "meshweave.lapack"  # attribute of a function: the routine and its flags
_LAYOUT, _AXES = "meshweave.layout", "meshweave.axes"


def declare_routine(
    module: ir.Module,
    routine: str,
    flags: Sequence[str],
    operands: Sequence[ir.Value],
    results: Sequence[ir.Type],
) -> str:
    """Declare a function that stands for a routine on operands of these types; return its name."""
    said = {_SAYS: ir.StringAttr.get(" ".join([routine, *flags]))}
    return _declare(module, "lapack", operands, results, said)


def declare_constraint(module: ir.Module, layout: str, axes: Sequence[str], value: ir.Value) -> str:
    """Declare a function that stands for a constraint of a value; return its name."""
    said = {_LAYOUT: ir.StringAttr.get(layout), _AXES: ir.StringAttr.get(" ".join(axes))}
    return _declare(module, "constrain", [value], [value.type], said)


def declare_sum(module: ir.Module, operands: Sequence[ir.Value], result: ir.Type) -> str:
    """Declare a function that stands for the sum of the products of a batch; return its name."""
    return _declare(module, "sum", operands, [result], {_SUMMED: ir.UnitAttr.get()})


def declare_elementwise(
    module: ir.Module, op: str, operands: Sequence[ir.Value], result: ir.Type
) -> str:
    """Declare a function that stands for an op of `arith` on elements of tensors of one shape; return its name."""
    said = {_ELEMENT_OP: ir.StringAttr.get(op)}
    return _declare(module, "elementwise", operands, [result], said)


def declare_log_sums(module: ir.Module, dim: int, value: ir.Value) -> str:
    """Declare a function that stands for logarithms of running sums along a dim; return its name."""
    return _declare(module, "log_sums", [value], [value.type], {_LOG_SUMS: i64(dim)})


def declare_function(
    module: ir.Module, name: str, operands: Sequence[ir.Value], results: Sequence[ir.Type]
) -> str:
    """Declare a function that stands for one of complex numbers, whose parts are tensors; return its name."""
    return _declare(module, "of_complex", operands, results, {_FUNCTION: ir.StringAttr.get(name)})


def declare_transform(
    module: ir.Module,
    kind: str,
    dim: int,
    length: int,
    operands: Sequence[ir.Value],
    results: Sequence[ir.Type],
) -> str:
    """Declare a function that stands for Fourier transforms along a dim; return its name."""
    said = {"kind": ir.StringAttr.get(kind), "dim": i64(dim), "length": i64(length)}
    return _declare(module, "fft", operands, results, {_TRANSFORM: ir.DictAttr.get(said)})


def declare_host(
    module: ir.Module,
    said: Mapping[str, ir.Attribute],
    operands: Sequence[ir.Value],
    results: Sequence[ir.Type],
) -> str:
    """Declare a function that stands for one of Python, of which `said` are number and name; return its name."""
    return _declare(module, "host", operands, results, said)


DECLARE: Mapping[str, Callable[..., str]] = {
    "meshweave.lapack.default": declare_routine,
    "meshweave.fft.default": declare_transform,
    "meshweave.of_complex.default": declare_function,
}
"""The ops of torch that take and give lists of tensors: `decompositions/lapack.py` and `of_complex` define them."""


def _declare(
    module: ir.Module,
    what: str,
    operands: Sequence[ir.Value],
    results: Sequence[ir.Type],
    said: Mapping[str, ir.Attribute],
) -> str:
    name = f"meshweave_{what}_{len(functions_of(module))}"
    types = ir.FunctionType.get([value.type for value in operands], list(results))
    OpBuilder(ir.InsertionPoint(module.body), ir.Location.current).op(
        "func.func",
        regions=1,
        sym_name=ir.StringAttr.get(name),
        sym_visibility=ir.StringAttr.get("private"),
        function_type=ir.TypeAttr.get(types),
        **said,
    )
    return name


def sum_products(module: ir.Module) -> None:
    """Replace calls of these functions by products that reduce over the batch and the depth."""
    said = {n: f for n, f in functions_of(module).items() if _SUMMED in f.attributes}
    for call in ops_named(module.operation, "func.call"):
        if callee_of(call) in said:
            left, right = call.operands
            made = _summed(OpBuilder.before(call), left, right, call.results[0].type)
            replace_op(call, [made])
    for function in said.values():
        function.erase()


def _summed(b: OpBuilder, left: ir.Value, right: ir.Value, result: ir.RankedTensorType) -> ir.Value:
    """Build c[.., n] = sum over k of left[.., k] * right[k, n], and over g of left[g, m, k] * right[g, k, n]."""
    element = result.element_type
    batch = len(right.type.shape) - 2
    rows = list(range(len(left.type.shape) - batch - 1))
    column, group, inner = len(rows), len(rows) + 1, len(rows) + 1 + batch
    groups = [group] * batch
    reads = ([*groups, *rows, inner], [*groups, inner, column], [*rows, column])
    kinds = [IteratorType.PARALLEL] * (column + 1) + [IteratorType.REDUCTION] * (1 + batch)
    zeros = b.fill(b.constant(ir.FloatAttr.get(element, 0.0)), result)

    def body(inner: OpBuilder, values: list[ir.Value]) -> list[ir.Value]:
        *factors, total = values
        x, y = [
            one if one.type == element else inner.one("arith.extf", element, one) for one in factors
        ]
        return [inner.binary("addf", total, inner.binary("mulf", x, y))]

    return b.generic(
        [left, right], [zeros], [dims_map(len(kinds), dims) for dims in reads], kinds, body
    ).result


def compute_elements(module: ir.Module) -> None:
    """Replace calls of these functions by the op on each element; a cast to the same type by nothing."""
    said = {n: f.attributes for n, f in functions_of(module).items()}
    for call in ops_named(module.operation, "func.call"):
        known = said[callee_of(call)]
        if _ELEMENT_OP in known:
            replace_op(call, [_on_elements(known[_ELEMENT_OP].value, call)])
        elif _FUNCTION in known:
            replace_op(call, _on_parts(known[_FUNCTION].value, call))
        elif _LOG_SUMS in known:
            replace_op(call, _log_sums(known[_LOG_SUMS].value, call))
    _erase(module, _ELEMENT_OP, _FUNCTION, _LOG_SUMS)


def _on_elements(op: str, call: ir.Operation) -> ir.Value:
    b, values, type_ = OpBuilder.before(call), list(call.operands), call.results[0].type
    if op == CAST and values[0].type == type_:
        return values[0]

    def body(inner: OpBuilder, given: list[ir.Value]) -> ir.Value:
        *elements, into = given
        return inner.one(op, into.type, *elements)

    return b.elementwise(values, b.empty(type_), body)


def _log_sums(dim: int, call: ir.Operation) -> list[ir.Value]:
    """Scan along a dim: log(exp(a) + exp(b)) of what is combined so far and the next element, as torch computes it."""
    b, (value,) = OpBuilder.before(call), call.operands
    shape, element = list(value.type.shape), value.type.element_type
    nothing = b.constant(ir.FloatAttr.get(element, -math.inf))
    start = b.one("tensor.splat", tensor_type([*shape[:dim], *shape[dim + 1 :]], element), nothing)

    def combine(inner: OpBuilder, pair: list[ir.Value]) -> list[ir.Value]:
        high, low = inner.binary("maximumf", *pair), inner.binary("minimumf", *pair)
        same = inner.compare(arith.CmpFPredicate.OEQ, low, high)  # infinite ones too
        none = inner.constant(ir.FloatAttr.get(element, 0.0))
        apart = inner.select(same, none, inner.binary("subf", low, high))
        more = inner.one("math.log1p", element, inner.one("math.exp", element, apart))
        return [inner.binary("addf", high, more)]

    return scan(b, [value], [start], dim, combine)


def _on_parts(name: str, call: ir.Operation) -> list[ir.Value]:
    """Compute a function of complex numbers from their parts, element by element."""
    b, values = OpBuilder.before(call), list(call.operands)
    types, whole = [r.type for r in call.results], ir.ComplexType.get(values[0].type.element_type)
    each = dims_map(len(types[0].shape), range(len(types[0].shape)))
    kinds = [IteratorType.PARALLEL] * len(types[0].shape)

    def body(inner: OpBuilder, given: list[ir.Value]) -> list[ir.Value]:
        parts = given[: len(values)]
        numbers = [inner.one("complex.create", whole, *two) for two in zip(parts[::2], parts[1::2])]
        made = function_of(inner, name, numbers)
        if len(types) == 1:
            return [made]
        return [inner.one(op, whole.element_type, made) for op in ("complex.re", "complex.im")]

    maps = [each] * (len(values) + len(types))
    return list(b.generic(values, [b.empty(t) for t in types], maps, kinds, body).results)


def transform(module: ir.Module) -> None:
    """Replace calls of these functions by `mw.fft` of the parts."""
    said = {n: f.attributes for n, f in functions_of(module).items()}
    for call in ops_named(module.operation, "func.call"):
        known = said[callee_of(call)]
        if _TRANSFORM in known:
            types = [r.type for r in call.results]
            options = {n.name: n.attr for n in known[_TRANSFORM]}
            made = OpBuilder.before(call).op(FFT, types, list(call.operands), **options)
            replace_op(call, list(made.results))
    _erase(module, _TRANSFORM)


def _erase(module: ir.Module, *marks: str) -> None:
    """Erase the functions that have one of these attributes."""
    for function in functions_of(module).values():
        if any(mark in function.attributes for mark in marks):
            function.erase()


def place_constraints(module: ir.Module) -> None:
    """Replace calls of these functions by `dist.constrain`: other axes may shard the value further."""
    said = {n: f for n, f in functions_of(module).items() if _LAYOUT in f.attributes}
    for call in ops_named(module.operation, "func.call"):
        function = said.get(callee_of(call))
        if function is not None:
            axes = function.attributes[_AXES].value.split()
            value = call.operands[0]
            made = OpBuilder.before(call).op(
                "dist.constrain",
                [value.type],
                [value],
                layout=LayoutAttr.make(Layout.parse(function.attributes[_LAYOUT].value)),
                open=ir.DenseI64ArrayAttr.get(list(range(len(value.type.shape)))),
                replicated=ir.ArrayAttr.get([ir.StringAttr.get(axis) for axis in axes]),
            )
            replace_op(call, list(made.results))
    for function in said.values():
        function.erase()


def call_routines(module: ir.Module) -> None:
    """Replace calls of these functions by `mw.lapack`, on tensors."""
    said = {
        name: function.attributes[_SAYS].value.split()
        for name, function in functions_of(module).items()
        if _SAYS in function.attributes
    }
    for call in ops_named(module.operation, "func.call"):
        if callee_of(call) in said:
            routine, *flags = said[callee_of(call)]
            replace_op(call, lapack(OpBuilder.before(call), routine, list(call.operands), flags))
    for name in said:
        functions_of(module)[name].erase()
