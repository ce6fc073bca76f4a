"""Tracer: a tensor inside a traced function. It has a shape and a dtype, and no elements yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from math import prod
from typing import Any, NoReturn

import numpy as np

from meshweave.errors import UsageError
from meshweave.layout import Mesh
from meshweave.trace import PUBLIC
from meshweave.trace.builder import (
    Block,
    Body,
    Trace,
    broadcast_map,
    current,
    fail,
    tensor_type,
    where,
)
from meshweave.trace.dtypes import DType, as_dtype, bool_, literal, promoted, weak_kind


class Tracer:
    """A tensor of a program under construction.

    shape, dtype: of the global value. weak: an argument that was a Python scalar, which takes the type of what it
    meets. Operators and indexing are those of the array API standard.
    """

    __slots__ = ("block", "dtype", "name", "shape", "trace", "type", "weak")
    __array_priority__ = 1000

    def __init__(
        self, trace: Trace, name: str, shape: Sequence[int], dtype: DType, weak: bool = False
    ) -> None:
        self.trace, self.name, self.dtype, self.weak = trace, name, dtype, weak
        self.shape = tuple(shape)
        self.block: Block = trace.block
        self.type = tensor_type(self.shape, dtype)

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def T(self) -> Tracer:
        """The transpose of a matrix."""
        if self.ndim != 2:
            fail(f"x.T: x has {self.ndim} dims, 2 are right (x.mT swaps the last two)")
        return self.mT

    @property
    def mT(self) -> Tracer:
        """Each matrix (the last two dims) transposed."""
        from meshweave.trace.linear import matrix_transpose

        return matrix_transpose(self)

    def astype(self, dtype: Any) -> Tracer:
        """The elements in another type."""
        from meshweave.trace.elementwise import astype

        return astype(self, dtype)

    def reshape(self, *shape: Any) -> Tracer:
        """The same elements in another shape, as `mw.reshape`."""
        from meshweave.trace.manipulate import reshape

        return reshape(self, shape[0] if len(shape) == 1 else shape)

    @property
    def device(self) -> Mesh:
        """The mesh: all tensors of a program lie on it."""
        return self.trace.mesh

    def __dlpack_device__(self) -> tuple[int, int]:
        """The processor's memory, as far as anything lies there yet."""
        return (1, 0)

    def to_device(self, device: Any, /, *, stream: Any = None) -> Tracer:
        """The value itself, on the mesh that it lies on already."""
        check_device("to_device", device)
        return self

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The module whose functions take this value: meshweave."""
        return import_module("meshweave")

    def __getitem__(self, key: Any) -> Tracer:
        from meshweave.trace.index import getitem

        return getitem(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        fail(
            "x[...] = y: values do not change in traced programs; mw.where or mw.concat make new ones"
        )

    def __len__(self) -> int:
        if not self.shape:
            fail("len(x): x has no dims")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tracer]:
        if not self.shape:
            fail("iteration over x: it has no dims")
        return iter([self[i] for i in range(self.shape[0])])

    def __bool__(self) -> bool:
        fail(
            "a branch on a value that is known only when the program runs: use mw.where, mw.cond or mw.while_loop"
        )

    def _no_number(self, *_: Any, **__: Any) -> Any:
        fail("a traced value has no elements before the program runs: it cannot become a number")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """`array + traced` is ours; other functions of NumPy cannot take traced values."""
        own = _UFUNCS.get(ufunc.__name__)
        if own is None or method != "__call__" or options:
            _not_numpys(ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}")
        from meshweave.trace import operators

        return getattr(operators, own)(*inputs)

    def __array_function__(self, function: Any, *_: Any) -> Any:
        _not_numpys(function.__name__)

    def __getattr__(self, name: str) -> Any:
        known = name in PUBLIC
        hint = f": mw.{name}(x) is right" if known else ""
        raise AttributeError(f"a traced value has no attribute {name!r}{hint}")

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec) if not spec else self._no_number()

    def __contains__(self, value: Any) -> bool:
        fail("`in` on a traced value: mw.any(x == value) is right")

    __float__ = __int__ = __index__ = __complex__ = __array__ = __dlpack__ = item = tolist = (
        _no_number
    )
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Tracer({'x'.join(map(str, self.shape))}{'x' if self.shape else ''}{self.dtype})"


def _operator(name: str, swapped: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Tracer, other: Any) -> Any:
        if not is_operand(other):
            if isinstance(other, complex):
                fail(f"{name}: {other} is complex: programs have bools, integers and floats")
            return NotImplemented
        from meshweave.trace import operators

        function = getattr(operators, name)
        return function(other, self) if swapped else function(self, other)

    return method


def _unary(name: str) -> Callable[[Any], Any]:
    def method(self: Tracer) -> Any:
        from meshweave.trace import operators

        return getattr(operators, name)(self)

    return method


for _name, _function in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide",
    "floordiv": "floor_divide", "mod": "remainder", "pow": "pow", "matmul": "matmul",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}.items():  # fmt: skip
    setattr(Tracer, f"__{_name}__", _operator(_function))
    setattr(Tracer, f"__r{_name}__", _operator(_function, swapped=True))
for _name, _function in {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal",
}.items():  # fmt: skip
    setattr(Tracer, f"__{_name}__", _operator(_function))
for _name, _function in {
    "neg": "negative", "pos": "positive", "abs": "abs", "invert": "bitwise_invert",
}.items():  # fmt: skip
    setattr(Tracer, f"__{_name}__", _unary(_function))


# of NumPy, where the name is another: our operators do these for NumPy's arrays and scalars on the left
_UFUNCS = {
    "add": "add", "subtract": "subtract", "multiply": "multiply", "divide": "divide",
    "true_divide": "divide", "floor_divide": "floor_divide", "remainder": "remainder",
    "mod": "remainder", "power": "pow", "matmul": "matmul", "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor", "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift", "equal": "equal", "not_equal": "not_equal",
    "less": "less", "less_equal": "less_equal", "greater": "greater",
    "greater_equal": "greater_equal",
}  # fmt: skip
_RENAMED = {
    "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan",
    "arctan2": "atan2", "arctanh": "atanh", "concatenate": "concat", "transpose": "permute_dims",
    "power": "pow", "absolute": "abs", "invert": "bitwise_invert", "cumsum": "cumulative_sum",
    "amax": "max", "amin": "min", "add.reduce": "sum", "multiply.reduce": "prod",
    "maximum.reduce": "max", "minimum.reduce": "min", "add.accumulate": "cumulative_sum",
    "vstack": "concat", "hstack": "concat", "dot": "matmul", "swapaxes": "moveaxis", "rint": "round",
}  # fmt: skip


def _not_numpys(name: str) -> NoReturn:
    own = _RENAMED.get(name, name)
    hint = f": mw.{own} does" if own in PUBLIC else ""
    fail(f"np.{name} does not work on traced values{hint}")


def is_operand(value: Any) -> bool:
    """Is it something to compute with: a traced value, a Python scalar, an array?"""
    return (
        isinstance(value, Tracer)
        or weak_kind(value) is not None
        or isinstance(value, np.ndarray | np.generic)
        or hasattr(value, "__array__")
    )


def tracing(*values: Any) -> Trace:
    """The trace to put an op on these values into. UsageError outside of one."""
    found = current()
    if found is not None:
        return found
    for value in values:
        if isinstance(value, Tracer):
            fail("a value of a traced call is used after it: return it from the function")
    raise UsageError("array functions of meshweave work inside a function under @mw.jit", where())


def tensor(value: Any, dtype: DType | None = None) -> Tracer:
    """A traced value, a Python scalar or an array as a tensor of this program.

    dtype: of a Python scalar; it does not convert tensors.
    """
    if isinstance(value, Tracer):
        return value
    trace = tracing()
    kind = weak_kind(value)
    if kind is not None:
        dtype = dtype or promoted([], [kind])
        return splat(trace, (), value, dtype)
    if isinstance(value, list | tuple):
        fail(f"an array is needed, got a {type(value).__name__}: mw.asarray or mw.stack make one")
    if not is_operand(value):
        fail(f"an array is needed, got {type(value).__name__}")
    try:
        array = np.asarray(value)
        return constant(trace, array, as_dtype(array.dtype))
    except UsageError as error:
        fail(error.message)


def constant(trace: Trace, array: np.ndarray[Any, Any], dtype: DType) -> Tracer:
    """A tensor of known elements, which are of this type already."""
    if array.size == 0 or _uniform(array):
        return splat(trace, array.shape, array.flat[0] if array.size else 0, dtype)
    type_ = tensor_type(array.shape, dtype)
    if dtype is bool_:
        from meshweave.trace.elementwise import astype

        return astype(constant(trace, array.astype(np.int8), as_dtype("i8")), bool_)
    data = np.ascontiguousarray(array)
    data = data.view(np.uint16) if data.dtype.name == "bfloat16" else data
    data = data.astype(data.dtype.newbyteorder("<"), copy=False)
    text = f'dense<"0x{data.tobytes().hex().upper()}">'
    return Tracer(trace, trace.let(f"arith.constant {text} : {type_}"), array.shape, dtype)


def check_device(name: str, device: Any) -> None:
    """CompileError at the user's line unless a device is None or the mesh of the program."""
    trace = tracing()
    if device is not None and device != trace.mesh:
        fail(
            f"{name}: device={device!r:.40}: tensors lie on the mesh ({trace.mesh}); mw.constrain says where"
        )


def splat(trace: Trace, shape: Sequence[int], value: Any, dtype: DType) -> Tracer:
    """A tensor of one known value."""
    try:
        text = literal(value, dtype)
    except UsageError as error:
        fail(error.message)
    type_ = tensor_type(tuple(shape), dtype)
    return Tracer(trace, trace.let(f"arith.constant dense<{text}> : {type_}"), shape, dtype)


def _uniform(array: np.ndarray[Any, Any]) -> bool:
    """Is it one value all over, in one spelling (0.0 and -0.0 are two)?"""
    if array.dtype.name == "bfloat16":
        array = array.view(np.uint16)
    first = array.flat[0]
    same = array.size == 1 or bool(np.all(array == first))
    return same and (first != 0 or array.dtype.kind != "f" or not np.signbit(array).any())


def operand_dtype(values: Sequence[Any]) -> DType:
    """The type that these values (tensors, scalars) have together, and that arguments which are scalars take here."""
    strong, weak, scalars = [], [], []
    for value in values:
        if not isinstance(value, Tracer):
            weak.append(weak_kind(value) or "f")
        elif value.weak:
            weak.append(value.dtype.kind)
            scalars.append(value)
        else:
            strong.append(value.dtype)
    dtype = promoted(strong, weak)
    for scalar in scalars:
        scalar.trace.taken.setdefault(scalar.name, set()).add(dtype)
    return dtype


def operands(values: Sequence[Any]) -> list[Any]:
    """Each as a tensor, Python scalars left as they are."""
    return [v if weak_kind(v) is not None else tensor(v) for v in values]


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all broadcast to. CompileError at the user's line when there is none."""
    first = shapes[0] if shapes else ()
    if all(shape == first for shape in shapes):
        return first
    ndim = max(len(shape) for shape in shapes)
    result = []
    for d in range(ndim):
        sizes = {s[d - ndim] for s in shapes if len(s) >= ndim - d}
        wide = sizes - {1}
        if len(wide) > 1:
            texts = " and ".join("x".join(map(str, s)) or "a scalar" for s in shapes)
            fail(f"shapes {texts} do not broadcast: dim {d - ndim} has sizes {sorted(wide)}")
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def pointwise(
    values: Sequence[Any],
    dtype: DType,
    body: Callable[..., str],
    shape: tuple[int, ...] | None = None,
) -> Tracer:
    """An elementwise op: body(b, *scalars) on the elements of tensors and on Python scalars, as (name, dtype) pairs.

    dtype: of the result. shape: of the result; by default what the tensors broadcast to.
    """
    trace = tracing(*values)
    tensors = [v for v in values if isinstance(v, Tracer)]
    if shape is None:
        shape = broadcast_shapes(*[t.shape for t in tensors])
    type_ = tensor_type(shape, dtype)

    def lines(b: Body, ins: list[str], out: str) -> str:
        names = iter(ins)
        return body(b, *[next(names) if isinstance(v, Tracer) else v for v in values])

    maps = [broadcast_map(t.shape, shape) for t in tensors]
    maps.append(broadcast_map(shape, shape))
    out = trace.empty(type_)
    name = trace.generic(maps, ["parallel"] * len(shape), tensors, out, type_, lines)
    return Tracer(trace, name, shape, dtype)
