"""Give Arrays the operators and methods of the array API, by the functions of `mw`, which compute at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Set
from functools import cache
from importlib import import_module
from math import prod
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from meshweave.bundle import OF_A_BYTE
from meshweave.errors import MeshweaveError, UsageError
from meshweave.layout import Mesh
from meshweave.runtime.watched import WATCHERS

_Method = Callable[..., Any]


@cache
def _namespace() -> ModuleType:
    """Return the module whose functions compute: its names load on first use."""
    return import_module("meshweave")


@cache
def _eager() -> ModuleType:
    """Return the module that indexes, assigns, and takes calls of NumPy's functions."""
    return import_module("meshweave.api.namespace")  # when it is asked for: a bundle runs without


def _is_operand(value: object) -> bool:
    """Tell whether an operator computes with a value: an array or a number."""
    return isinstance(value, _NUMBERS) or (hasattr(value, "__array__") and not _is_traced(value))


def _is_traced(value: object) -> bool:
    """Tell whether a value stands for an array that JAX traces: JAX computes with it, and takes Arrays."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)


_NUMBERS = (bool, int, float, complex)


class _Public:
    """Find a public function when it is first called: they load on first use, and operators are short.

    direct, open: as `eager` gives them: what computes it, by the kinds of its operands, while `open` is empty and
    nobody watches.
    """

    def __init__(self, name: str, module: Callable[[], ModuleType] = _namespace) -> None:
        self._name, self._module = name, module
        self.call: _Method = self._load
        self.direct: Mapping[Any, _Method] = {}
        self.open: Set[Any] = frozenset()

    def _load(self, *args: Any, **kwargs: Any) -> Any:
        self.call = getattr(self._module(), self._name)
        self.direct, self.open = self.call.direct, self.call.open  # type: ignore[attr-defined]
        return self.call(*args, **kwargs)


def _binary(name: str) -> _Method:
    public = _Public(name)

    def method(self: Operators, other: Any) -> Any:
        kind = type(other)
        run = public.direct.get((self.kind, other.kind if kind is type(self) else kind))
        if run is not None and not (public.open or WATCHERS.newest):
            return run(self, other)
        if isinstance(other, Operators) or _is_operand(other):
            return public.call(self, other)
        return NotImplemented

    return method


def _reflected(name: str) -> _Method:
    public = _Public(name)

    def method(self: Operators, other: object) -> Any:
        run = public.direct.get((type(other), self.kind))
        if run is not None and not (public.open or WATCHERS.newest):
            return run(other, self)
        return public.call(other, self) if _is_operand(other) else NotImplemented

    return method


def _in_place(name: str) -> _Method:
    """Make an operator such as += : the Array takes the result, whose shape and dtype are its own."""
    apart = _power() if name == "pow" else _binary(name)

    def method(self: Any, other: object) -> Any:
        made = apart(self, other)
        if made is NotImplemented:
            return made
        alike = type(made) is type(self) and made.kind is self.kind
        if not alike and (made.shape, made.dtype) != (self.shape, self.dtype):
            raise UsageError(
                f"{name} in place: the result is {made.dtype_name} {made.shape}, the array "
                f"{self.dtype_name} {self.shape}: x = mw.{name}(x, y) makes a new one"
            )
        self.become(made)
        return self

    return method


def _unary(name: str) -> _Method:
    public = _Public(name)

    def method(self: Operators) -> Any:
        run = public.direct.get(self.kind)
        if run is not None and not (public.open or WATCHERS.newest):
            return run(self)
        return public.call(self)

    return method


def _power() -> _Method:
    """Make the operator ** : what most people raise numbers to is 2, and x * x is the same to the bit."""
    square, power = _unary("square"), _binary("pow")

    def method(self: Operators, other: Any) -> Any:
        if type(other) is int and other == 2 and self.kind.dtype.kind in "fiu":
            return square(self)
        return power(self, other)

    return method


def _function(name: str) -> _Method:
    """Make a method of a public function that takes the array first."""
    public = _Public(name)

    def method(self: Operators, *args: Any, **kwargs: Any) -> Any:
        return public.call(self, *args, **kwargs)

    method.__name__, method.__doc__ = name, f"Return `mw.{name}` of the array."
    return method


_RESHAPE, _GETITEM = _Public("reshape"), _Public("getitem", _eager)
_TRANSPOSE = _unary("matrix_transpose")


class Operators:
    """Compute with an Array by the functions of `mw`, at once."""

    __slots__ = ()

    kind: Any
    held: Any
    shape: Any
    dtype: Any
    mesh: Any
    __array_priority__: ClassVar[int] = 1000

    __add__, __radd__, __iadd__ = _binary("add"), _reflected("add"), _in_place("add")
    __sub__, __rsub__ = _binary("subtract"), _reflected("subtract")
    __mul__, __rmul__ = _binary("multiply"), _reflected("multiply")
    __truediv__, __rtruediv__ = _binary("divide"), _reflected("divide")
    __floordiv__, __rfloordiv__ = _binary("floor_divide"), _reflected("floor_divide")
    __mod__, __rmod__ = _binary("remainder"), _reflected("remainder")
    __divmod__, __rdivmod__ = _binary("divmod"), _reflected("divmod")
    __pow__, __rpow__ = _power(), _reflected("pow")
    __matmul__, __rmatmul__ = _binary("matmul"), _reflected("matmul")
    __and__, __rand__ = _binary("bitwise_and"), _reflected("bitwise_and")
    __or__, __ror__ = _binary("bitwise_or"), _reflected("bitwise_or")
    __xor__, __rxor__ = _binary("bitwise_xor"), _reflected("bitwise_xor")
    __lshift__, __rlshift__ = _binary("bitwise_left_shift"), _reflected("bitwise_left_shift")
    __rshift__, __rrshift__ = _binary("bitwise_right_shift"), _reflected("bitwise_right_shift")
    __isub__, __imul__ = _in_place("subtract"), _in_place("multiply")
    __itruediv__, __ifloordiv__ = _in_place("divide"), _in_place("floor_divide")
    __imod__, __ipow__, __imatmul__ = _in_place("remainder"), _in_place("pow"), _in_place("matmul")
    __iand__, __ior__ = _in_place("bitwise_and"), _in_place("bitwise_or")
    __ixor__ = _in_place("bitwise_xor")
    __ilshift__ = _in_place("bitwise_left_shift")
    __irshift__ = _in_place("bitwise_right_shift")
    # object's == and != give a bool, those of arrays an array
    __eq__ = _binary("equal")
    __ne__ = _binary("not_equal")
    __lt__, __le__ = _binary("less"), _binary("less_equal")
    __gt__, __ge__ = _binary("greater"), _binary("greater_equal")
    __round__ = _function("round")
    __neg__, __pos__ = _unary("negative"), _unary("positive")
    __abs__, __invert__ = _unary("abs"), _unary("bitwise_invert")
    __hash__ = None  # type: ignore[assignment]  # its value may change, and == is an array

    sum, prod, mean, std, var = map(_function, ("sum", "prod", "mean", "std", "var"))
    min, max, all, any, ptp = map(_function, ("min", "max", "all", "any", "ptp"))
    argmin, argmax, argsort = map(_function, ("argmin", "argmax", "argsort"))
    argpartition, nonzero = map(_function, ("argpartition", "nonzero"))
    astype, round, clip, conj = map(_function, ("astype", "round", "clip", "conj"))
    take, repeat, squeeze = map(_function, ("take", "repeat", "squeeze"))
    cumsum, cumprod = _function("cumulative_sum"), _function("cumulative_prod")
    dot, diagonal = map(_function, ("dot", "diagonal"))
    swapaxes, searchsorted, choose = map(_function, ("swapaxes", "searchsorted", "choose"))
    view = _function("view")
    conjugate = _function("conj")

    @property
    def ndim(self) -> int:
        """Return the number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Return the number of elements of the global value."""
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Return the bytes of an element."""
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the global value."""
        return self.size * self.itemsize

    @property
    def T(self) -> Any:
        """Return the transpose of a matrix. Raises UsageError for other numbers of dims."""
        if len(self.kind.shape) != 2:
            raise UsageError(f"x.T: x has {self.ndim} dims, 2 are right (x.mT swaps the last two)")
        return _TRANSPOSE(self)

    @property
    def mT(self) -> Any:
        """Return each matrix (the last two dims) transposed."""
        return _TRANSPOSE(self)

    @property
    def real(self) -> Any:
        """Return the real parts."""
        return _namespace().real(self)

    @property
    def imag(self) -> Any:
        """Return the imaginary parts."""
        return _namespace().imag(self)

    @property
    def device(self) -> Mesh:
        """Return the mesh, which is the device of the array API."""
        mesh: Mesh = self.mesh
        return mesh

    def reshape(self, *shape: Any, copy: bool | None = None) -> Any:
        """Return `mw.reshape` of the array: `shape` may be one argument or several, `copy` is as there."""
        sizes = shape[0] if len(shape) == 1 else shape
        if copy is None:  # fewer arguments to tell a call by
            run = _RESHAPE.direct.get((self.kind, type(sizes)))
            if run is not None and not (_RESHAPE.open or WATCHERS.newest):
                return run(self, sizes)
            return _RESHAPE.call(self, sizes)
        return _RESHAPE.call(self, sizes, copy=copy)

    def transpose(self, *axes: Any) -> Any:
        """Return `mw.transpose` of the array: its dims in the order `axes`, one argument or several."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return _namespace().transpose(self, tuple(order) if order else None)

    def sort(self, axis: int = -1) -> None:
        """Put the elements along `axis` in order, in place; `mw.sort` gives another Array."""
        self[...] = _namespace().sort(self, axis=axis)

    def partition(self, kth: Any, axis: int = -1) -> None:
        """Put the elements along `axis` in an order in which the kth has its place, in place."""
        self[...] = _namespace().partition(self, kth, axis=axis)

    def fill(self, value: Any) -> None:
        """Let all elements be a number, in place."""
        self[...] = value

    def put(self, indices: Any, values: Any) -> None:
        """Let elements be `values`, in place, at `indices` in row-major order, as np.put does."""
        _eager().put(self, indices, values)

    @property
    def flat(self) -> Any:
        """Return the elements in a row: `x.flat[i]` is one, and `x.flat[i] = v` sets it."""
        return _eager().FlatView(self)

    @flat.setter
    def flat(self, value: Any) -> None:
        _eager().FlatView(self)[...] = value

    def block_until_ready(self) -> Any:
        """Return the array itself, whose value is there once the call that makes it has returned."""
        self.check_usable()
        return self

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Return `mw.trace` of the array."""
        return _namespace().trace(self, *args, **kwargs)

    def tobytes(self) -> bytes:
        """Return the bytes of the value, in row-major order."""
        made: bytes = self.numpy().astype(self.dtype).tobytes()
        return made

    def flatten(self) -> Any:
        """Return the elements as a vector."""
        return _namespace().reshape(self, (-1,))

    ravel = flatten

    def copy(self) -> Any:
        """Return an Array of the same value, which does not change when this one does."""
        return _namespace().positive(self) if self.dtype != bool else self | self

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """Return the module whose functions take this array: meshweave."""
        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
            raise UsageError(f"the array API {api_version!r:.20}: 2024.12 is right")
        return _namespace()

    def to_device(self, device: Mesh | str, /, *, stream: object = None) -> Any:
        """Return the value on another mesh, `device`, whole on each of its ranks; on its own mesh the array itself.

        stream: None is right. Raises UsageError for another, or for what is no mesh.
        """
        if stream is not None:
            raise UsageError(f"to_device: stream={stream!r:.20}: an Array has no stream")
        return _namespace().asarray(self, device=device)

    def __getitem__(self, key: Any) -> Any:
        run = _GETITEM.direct.get(self.kind)
        if run is not None and not (_GETITEM.open or WATCHERS.newest):
            return run(self, key)
        return _GETITEM.call(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _eager().setitem(self, key, value)

    @property
    def at(self) -> Any:
        """Return what `x.at[key].set(y)`, `.add(y)` and so on make an Array of, with other elements at `key`."""
        return _eager().at(self)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dims")
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over an array without dims")
        return (self[i] for i in range(self.shape[0]))

    def __getattr__(self, name: str) -> Any:
        hint = ""
        if not name.startswith("_"):
            try:
                hint = f": mw.{name}(x) is right" if callable(getattr(_namespace(), name)) else ""
            except AttributeError as error:
                hint = _eager().member(name) or str(error).partition(f"{name!r}")[2]
        raise AttributeError(f"an Array has no attribute {name!r}{hint}")

    def __contains__(self, value: object) -> bool:
        return bool((self == value).any())

    def check_usable(self) -> None:
        """Raise UsageError for an array without a value."""

    def numpy(self) -> Any:
        """Return the global value."""
        raise NotImplementedError

    def item(self, *args: int) -> Any:
        """Return the value of an array of one element as a Python number, or that of the element at an index.

        Raises MeshweaveError for other arrays.
        """
        if args:
            return self[args].item()
        if self.kind.is_plain and self.kind.element not in ("bf16", *OF_A_BYTE):  # bits
            value = self.held[0]
            if value.size == 1:
                return value.item()
        self.check_usable()
        if self.size != 1:
            raise MeshweaveError(f"an array of shape {self.shape} is no single number")
        return self.numpy().item()

    def tolist(self) -> Any:
        """Return the value as nested lists of Python numbers."""
        return self.numpy().tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __bool__(self) -> bool:
        if self.size != 1:
            raise UsageError(
                f"the truth of an array of shape {self.shape}: mw.any(x) or mw.all(x) is right"
            )
        return bool(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu" or self.size != 1:
            raise TypeError(f"{self.dtype} of shape {self.shape} is no index: one integer is right")
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Compute what NumPy's function of this name does, on the ranks, by ours."""
        return _eager().numpy_ufunc(ufunc, method, inputs, options)

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> Any:
        """Compute what NumPy's function of this name does, on the ranks, by ours."""
        return _eager().numpy_function(function, args, kwargs)
