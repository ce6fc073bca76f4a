"""Represent a tensor inside a traced function: it has a shape and a dtype, and no elements yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from math import prod
from types import EllipsisType, ModuleType
from typing import Any, NoReturn, Protocol, TypeAlias, TypeGuard

import numpy as np

from meshweave.bundle import OF_A_BYTE, OF_ML_DTYPES
from meshweave.errors import UsageError
from meshweave.frontends.python import METHODS, PUBLIC
from meshweave.frontends.python.builder import (
    Block,
    Body,
    TraceBuilder,
    broadcast_map,
    current,
    fail,
    tensor_type,
    where,
)
from meshweave.frontends.python.dtypes import (
    DType,
    DTypeLike,
    Scalar,
    as_dtype,
    bool_,
    float64,
    int8,
    literal,
    part,
    promoted,
    weak_kind,
)
from meshweave.frontends.python.spelling import NEAR, SYNONYMS, UFUNCS, spelt
from meshweave.layout import Mesh


class SupportsArray(Protocol):
    """Describe an array of another library: NumPy's, JAX's, an Array of ours."""

    def __array__(self) -> np.ndarray[Any, Any]:
        """Return the elements."""


def _binary(name: str, reflected: bool = False) -> _Binary:
    """Make the method of an operator that the public function `name` computes; `reflected`: its right side is self."""

    def method(self: Tracer, other: ArrayLike) -> Tracer:
        if is_operand(other):
            return _function(name)(other, self) if reflected else _function(name)(self, other)
        return NotImplemented  # type: ignore[no-any-return]  # what Python asks of operators

    return method


def _unary(name: str) -> Callable[[Tracer], Tracer]:
    def method(self: Tracer) -> Any:
        return apart(_function(name)(self), (self,))

    return method


def _method(name: str) -> Callable[..., Any]:
    """Make a method of a public function that takes the value first."""

    def method(self: Tracer, *args: Any, **kwargs: Any) -> Any:
        return apart(_function(name)(self, *args, **kwargs), (self, *args))

    method.__name__, method.__doc__ = name, f"Return `mw.{name}` of the value."
    return method


def _function(name: str) -> Callable[..., Tracer]:
    """Return a function that is written in terms of Tracer: Tracer's methods call it by name."""
    found: Callable[..., Tracer] = getattr(import_module(METHODS.get(name) or PUBLIC[name]), name)
    return found


class Tracer:
    """Represent a tensor of a program under construction.

    shape, dtype: of the global value. weak: an argument that was a Python scalar, or a float computed elementwise from
    Python scalars alone: it takes the type of what it meets. key: what gradients know it by: its name, but for what
    stands for another value. Operators and indexing are those of the array API.
    """

    __slots__ = ("block", "dtype", "key", "name", "shape", "trace", "type", "weak")
    __array_priority__ = 1000
    is_batched = False  # does it stand for more than one value, as those of mapped functions do?

    def __init__(
        self, trace: TraceBuilder, name: str, shape: Sequence[int], dtype: DType, weak: bool = False
    ) -> None:
        self.trace, self.name, self.dtype, self.weak = trace, name, dtype, weak
        self.key = name
        self.shape = tuple(shape)
        self.block: Block = trace.block
        self.type = tensor_type(self.shape, dtype)

    def under(self, key: str, weak: bool) -> Tracer:
        """Return the value under a key."""
        found = Tracer(self.trace, self.name, self.shape, self.dtype, weak)
        found.block, found.key = self.block, key
        return found

    @property
    def ndim(self) -> int:
        """Return the number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    @property
    def T(self) -> Tracer:
        """Return the transpose of a matrix."""
        if self.ndim != 2:
            fail(f"x.T: x has {self.ndim} dims, 2 are right (x.mT swaps the last two)")
        return self.mT

    @property
    def mT(self) -> Tracer:
        """Return each matrix (the last two dims) transposed."""
        return _function("matrix_transpose")(self)

    sum, prod, mean, std, var = map(_method, ("sum", "prod", "mean", "std", "var"))
    min, max, all, any, ptp = map(_method, ("min", "max", "all", "any", "ptp"))
    argmin, argmax, argsort = map(_method, ("argmin", "argmax", "argsort"))
    argpartition, nonzero = map(_method, ("argpartition", "nonzero"))
    astype, round, clip, conj = map(_method, ("astype", "round", "clip", "conj"))
    take, repeat, squeeze = map(_method, ("take", "repeat", "squeeze"))
    cumsum, cumprod = _method("cumulative_sum"), _method("cumulative_prod")
    dot, diagonal = map(_method, ("dot", "diagonal"))
    swapaxes, searchsorted, choose = map(_method, ("swapaxes", "searchsorted", "choose"))
    view = _method("view")
    flatten = ravel = _method("ravel")
    copy, conjugate = _method("copy"), _method("conj")

    def sort(self, axis: int = -1) -> None:
        """Put the elements along `axis` in order, in place."""
        self[...] = _function("sort")(self, axis=axis)

    def partition(self, kth: Any, axis: int = -1) -> None:
        """Put the elements along `axis` in an order in which the kth has its place, in place."""
        self[...] = _function("partition")(self, kth, axis=axis)

    def fill(self, value: ArrayLike) -> None:
        """Let all elements be a number, in place."""
        self[...] = value

    def put(self, indices: Any, values: Any) -> None:
        """Let elements be `values`, in place, at `indices` in row-major order."""
        _function("put")(self, indices, values)

    @property
    def flat(self) -> Any:
        """Return the elements in a row: `x.flat[i]` is one, and `x.flat[i] = v` sets it."""
        return _function("FlatView")(self)

    @flat.setter
    def flat(self, value: ArrayLike) -> None:
        _function("FlatView")(self)[...] = value

    def block_until_ready(self) -> Tracer:
        """Return the value itself."""
        return self

    def transpose(self, *axes: Any) -> Tracer:
        """Return `mw.transpose` of the value: the order of the dims as one argument or as several, or none."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return _function("transpose")(self, tuple(order) if order else None)

    @property
    def itemsize(self) -> int:
        """Return the bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Return the bytes of the global value."""
        return self.size * self.itemsize

    @property
    def real(self) -> Tracer:
        """Return the real parts."""
        return _function("real")(self)

    @property
    def imag(self) -> Tracer:
        """Return the imaginary parts."""
        return _function("imag")(self)

    def reshape(self, *shape: Shape) -> Tracer:
        """Give the same elements another shape, as `mw.reshape`."""
        made = _function("reshape")(self, shape[0] if len(shape) == 1 else shape)
        return made.again() if made is self else made

    @property
    def device(self) -> Mesh:
        """Return the mesh, on which all tensors of a program lie."""
        return self.trace.mesh

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the code of the processor's memory."""
        return (1, 0)

    def to_device(self, device: Device, /, *, stream: object = None) -> Tracer:
        """Return the value itself, which lies on the mesh already."""
        check_device("to_device", device)
        return self

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """Return the module whose functions take this value: meshweave."""
        return import_module("meshweave")

    def __getitem__(self, key: Index) -> Tracer:
        found = _function("getitem")(self, key)
        return found.again() if found is self else found

    def __setitem__(self, key: Index, value: ArrayLike) -> None:
        """Make this name stand for the updated value: what was computed from the old one stays as it is."""
        self.become(_function("updated")(self, key, value))

    @property
    def at(self) -> Any:
        """Return what `x.at[key].set(y)` and its like make a new value with."""
        return _function("at")(self)

    def become(self, other: Tracer) -> None:
        """Stand for another value from now on."""
        if type(other) is not type(self):
            fail(
                "x[...] = y: x is one value for all places of mw.vmap, y is not: x.at[...].set(y) makes another"
            )
        self.block, self.name, self.weak = other.block, other.name, other.weak
        self.key = other.key
        self.dtype, self.shape, self.type = other.dtype, other.shape, other.type

    def again(self) -> Tracer:
        """Return the same value under another name, which assignments to this one do not reach."""
        return same(self, self.key, self.weak)

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

    def _no_number(self, *_: object, **__: object) -> NoReturn:
        fail("a traced value has no elements before the program runs: it cannot become a number")

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: ArrayLike, **options: object
    ) -> Tracer:
        """Compute `array + traced` and the like; refuse other functions of NumPy."""
        own = UFUNCS.get(ufunc.__name__)
        if own is None or method != "__call__" or options:
            _not_numpys(ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}")
        return _function(own)(*inputs)

    def __array_function__(self, function: Callable[..., object], *_: object) -> NoReturn:
        _not_numpys(function.__name__)

    def __getattr__(self, name: str) -> NoReturn:
        hint = f": mw.{name}(x) is right" if name in PUBLIC else spelt(name)
        raise AttributeError(f"a traced value has no attribute {name!r}{hint}")

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec) if not spec else self._no_number()

    def __contains__(self, value: object) -> bool:
        fail("`in` on a traced value: mw.any(x == value) is right")

    __float__ = __int__ = __index__ = __complex__ = __array__ = __dlpack__ = item = tolist = (
        _no_number
    )
    __add__, __radd__ = _binary("add"), _binary("add", True)
    __sub__, __rsub__ = _binary("subtract"), _binary("subtract", True)
    __mul__, __rmul__ = _binary("multiply"), _binary("multiply", True)
    __truediv__, __rtruediv__ = _binary("divide"), _binary("divide", True)
    __floordiv__, __rfloordiv__ = _binary("floor_divide"), _binary("floor_divide", True)
    __mod__, __rmod__ = _binary("remainder"), _binary("remainder", True)
    __divmod__, __rdivmod__ = _binary("divmod"), _binary("divmod", True)
    __pow__, __rpow__ = _binary("pow"), _binary("pow", True)
    __matmul__, __rmatmul__ = _binary("matmul"), _binary("matmul", True)
    __and__, __rand__ = _binary("bitwise_and"), _binary("bitwise_and", True)
    __or__, __ror__ = _binary("bitwise_or"), _binary("bitwise_or", True)
    __xor__, __rxor__ = _binary("bitwise_xor"), _binary("bitwise_xor", True)
    __lshift__, __rlshift__ = _binary("bitwise_left_shift"), _binary("bitwise_left_shift", True)
    __rshift__, __rrshift__ = _binary("bitwise_right_shift"), _binary("bitwise_right_shift", True)
    # object's == and != give a bool, those of arrays an array
    __eq__ = _binary("equal")  # type: ignore[assignment]
    __ne__ = _binary("not_equal")  # type: ignore[assignment]
    __lt__, __le__ = _binary("less"), _binary("less_equal")
    __gt__, __ge__ = _binary("greater"), _binary("greater_equal")
    __round__ = _method("round")
    __neg__, __pos__ = _unary("negative"), _unary("positive")
    __abs__, __invert__ = _unary("abs"), _unary("bitwise_invert")
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Tracer({'x'.join(map(str, self.shape))}{'x' if self.shape else ''}{self.dtype})"


def apart(found: Any, given: Sequence[Any]) -> Any:
    """Return what a function gives, under a name of its own where it is an argument: that may be assigned to."""
    if isinstance(found, Tracer):
        return found.again() if any(found is v or _within(found, v) for v in given) else found
    if type(found) in (list, tuple):
        return type(found)([apart(v, given) for v in found])
    return found


def _within(found: Tracer, value: object) -> bool:
    return isinstance(value, list | tuple) and any(found is v or _within(found, v) for v in value)


Operand: TypeAlias = Tracer | bool | int | float | complex
"""What an op computes with: a tensor, or a Python scalar."""
ArrayLike: TypeAlias = Tracer | bool | int | float | complex | SupportsArray
"""What functions of arrays take."""
Nested: TypeAlias = Sequence["ArrayLike | Nested"]
"""Lists of arrays and scalars, and lists of such lists."""
Shape: TypeAlias = int | Sequence[int]
Axes: TypeAlias = int | Sequence[int] | None
Device: TypeAlias = Mesh | None
"""The mesh of the program, on which all its tensors lie; None means the same."""
_Key: TypeAlias = int | slice | EllipsisType | Tracer | np.ndarray[Any, Any] | list[Any] | None
Index: TypeAlias = _Key | tuple[_Key, ...]
"""What stands between the brackets of `x[...]`."""
_Binary: TypeAlias = Callable[[Tracer, ArrayLike], Tracer]


def _not_numpys(name: str) -> NoReturn:
    own = SYNONYMS.get(name) or NEAR.get(name, name)
    hint = f": mw.{own} does" if own in PUBLIC else ""
    fail(f"np.{name} does not work on traced values{hint}")


def same(value: Tracer, key: str, weak: bool = False) -> Tracer:
    """Return a value under a key: gradients take it for the value that has this key."""
    return value.under(key, weak)


def is_operand(value: object) -> TypeGuard[ArrayLike]:
    """Tell whether a value can be computed with: a traced value, a Python scalar or an array."""
    return (
        isinstance(value, Tracer)
        or weak_kind(value) is not None
        or isinstance(value, np.ndarray | np.generic)
        or hasattr(value, "__array__")
    )


def tracing(*values: object) -> TraceBuilder:
    """Return the trace that takes an op on these values. Raises UsageError outside of one."""
    found = current()
    if found is not None:
        return found
    for value in values:
        if isinstance(value, Tracer):
            fail("a value of a traced call is used after it: return it from the function")
    raise UsageError("array functions of meshweave work inside a function under @mw.jit", where())


def dtype_of(name: str, dtype: DTypeLike | None, default: DType | None = None) -> DType:
    """Return the dtype that an argument means; None: the default. Raises CompileError at the user's line."""
    if dtype is None and default is not None:
        return default
    try:
        return as_dtype(dtype)  # type: ignore[arg-type]  # None is an error that says what is known
    except UsageError as error:
        fail(f"{name}: {error.message}")


def tensor(value: object, dtype: DType | None = None) -> Tracer:
    """Return a traced value, a Python scalar or an array as a tensor of this program, no longer weak.

    dtype: of a Python scalar; it does not convert tensors.
    """
    if isinstance(value, Tracer):
        return value.astype(promoted([], [value.dtype.kind])) if value.weak else value
    trace = tracing()
    if isinstance(value, Scalar):
        return splat(trace, (), value, dtype or promoted([], [weak_kind(value) or "f"]))
    if isinstance(value, list | tuple):
        fail(f"an array is needed, got a {type(value).__name__}: mw.asarray or mw.stack make one")
    if not is_operand(value):
        fail(f"an array is needed, got {type(value).__name__}")
    try:
        array = np.asarray(value)
        return constant(trace, array, as_dtype(array.dtype), value)
    except UsageError as error:
        fail(error.message)


CAPTURED_BYTES = 1 << 16
"""Of arrays that a function holds: larger ones are arguments of its program, not a part of its text."""


def constant(
    trace: TraceBuilder, array: np.ndarray[Any, Any], dtype: DType, source: object
) -> Tracer:
    """Make a tensor of known elements, which have this dtype already. source: the user's array that has them."""
    if array.size == 0 or _uniform(array):
        return splat(trace, array.shape, array.flat[0] if array.size else 0, dtype)
    type_ = tensor_type(array.shape, dtype)
    data = np.ascontiguousarray(array)
    data = data.view(np.uint16) if data.dtype.name == "bfloat16" else data
    as_bytes = data.view(np.uint8) if dtype.name in OF_A_BYTE else data
    if data.nbytes > CAPTURED_BYTES:
        found = Tracer(trace, trace.capture(source, data, type_, dtype), array.shape, dtype)
        found.block = trace.top  # an argument belongs to no inner block
        return found
    if dtype is bool_:
        return _function("astype")(constant(trace, data.view(np.int8), int8, source), bool_)
    text = f'dense<"0x{as_bytes.tobytes().hex().upper()}">'
    return Tracer(trace, trace.let(f"arith.constant {text} : {type_}"), array.shape, dtype)


def check_device(name: str, device: Device) -> None:
    """Raise CompileError at the user's line unless a device is None or the mesh of the program."""
    trace = tracing()
    if device is not None and device != trace.mesh:
        fail(
            f"{name}: device={device!r:.40}: tensors lie on the mesh ({trace.mesh}); mw.constrain says where"
        )


def splat(trace: TraceBuilder, shape: Sequence[int], value: Scalar, dtype: DType) -> Tracer:
    """Make a tensor of one known value."""
    try:
        text = literal(value, dtype)
    except UsageError as error:
        fail(error.message)
    type_ = tensor_type(tuple(shape), dtype)
    return Tracer(trace, trace.let(f"arith.constant dense<{text}> : {type_}"), shape, dtype)


def _uniform(array: np.ndarray[Any, Any]) -> bool:
    """Tell whether all elements are the same value, with 0.0 and -0.0 as two."""
    if array.dtype.name in OF_ML_DTYPES:
        array = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    if array.dtype.kind == "c":
        return _uniform(array.real) and _uniform(array.imag)
    first = array.flat[0]
    same = array.size == 1 or bool(np.all(array == first))
    return same and (first != 0 or array.dtype.kind != "f" or not np.signbit(array).any())


def operand_dtype(values: Sequence[Operand]) -> DType:
    """Return the dtype that tensors and scalars promote to; scalar arguments of the program take it here."""
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
    if not strong and dtype.kind == "f":
        dtype = tracing(*values).weak_float
    for scalar in scalars:
        meets(scalar, dtype)
    return dtype


def meets(scalar: Tracer, dtype: DType) -> None:
    """Note that a weak value takes this dtype."""
    trace = scalar.trace
    trace.taken.setdefault(scalar.name, set()).add(dtype)
    trace.needs_float64 |= part(dtype) is float64 and scalar.dtype.kind == "f"


def operands(values: Sequence[ArrayLike]) -> list[Operand]:
    """Return each value as a tensor; Python scalars, and weak values, stay as they are."""
    return [v if isinstance(v, Scalar | Tracer) else tensor(v) for v in values]


def is_weak(value: Operand) -> bool:
    """Tell whether a value takes the type of what it meets."""
    return not isinstance(value, Tracer) or value.weak


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that all broadcast to. Raises CompileError at the user's line if there is none."""
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
    values: Sequence[Operand],
    dtype: DType,
    body: Callable[..., str],
    weak: bool = False,
) -> Tracer:
    """Add an elementwise op; its body, body(b, *scalars), gets names of elements, and Python scalars as they are.

    dtype: of the result. weak: does it take the type of what it meets?
    """
    tensors = [v for v in values if isinstance(v, Tracer)]
    shape = broadcast_shapes(*[t.shape for t in tensors])

    def element(b: Body, ins: list[str]) -> str:
        names = iter(ins)
        return body(b, *[next(names) if isinstance(v, Tracer) else v for v in values])

    maps = [broadcast_map(t.shape, shape) for t in tensors]
    return parallel(tensors, maps, shape, dtype, element, weak)


def parallel(
    inputs: Sequence[Tracer],
    maps: Sequence[str],
    shape: tuple[int, ...],
    dtype: DType,
    body: Callable[[Body, list[str]], str],
    weak: bool = False,
) -> Tracer:
    """Add a linalg.generic without reductions, whose loops are the dims of the result.

    maps: how each input is read. body(b, ins): the name of the element, from those of the inputs.
    """
    trace, type_ = tracing(*inputs), tensor_type(shape, dtype)
    if trace.levels and any(v.is_batched for v in inputs):
        found: Tracer = trace.levels[-1].spread(parallel, inputs, maps, shape, dtype, body, weak)
        return found
    every, kinds = [*maps, broadcast_map(shape, shape)], ["parallel"] * len(shape)
    into = trace.empty(type_)
    name = trace.generic(every, kinds, inputs, into, type_, lambda b, ins, out: body(b, ins))
    return Tracer(trace, name, shape, dtype, weak)
