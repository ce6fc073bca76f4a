"""Call code on small Arrays of one rank by builtin functions: no code in Python runs in such a call.

What the functions do is compiled (lowering/cpu/collectives/direct.py). They read the objects of Python and NumPy where
these lie in memory, so all of that is asked or looked up here, and nothing is assumed that either may change.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from meshweave.abi import PYTHON, DirectCall
from meshweave.bundle import numpy_dtype
from meshweave.runtime.arrays.array import Array
from meshweave.runtime.arrays.kind import Kind
from meshweave.runtime.loader import load
from meshweave.runtime.local.engine import LocalExecutable
from meshweave.runtime.memory import Values, aligned_array
from meshweave.runtime.program import buffer

MOST_PORT = 1 << 15
"""Bytes of an argument or a result: other threads of Python wait until a call is over."""
MOST_ARENA = 1 << 16  # bytes of memory that a program needs besides
_WORD = 8
_FASTCALL = 0x80  # METH_FASTCALL
_TP_NEW = 65  # number of the slot Py_tp_new
# Numbers of PyArray_FromScalar, PyArray_NewCopy, PyArray_NewLikeArray in NumPy's table of functions.
_FROM_SCALAR, _NEW_COPY, _NEW_LIKE = 61, 85, 277
_COMPUTE, _MOVE = "mw_direct", "mw_direct_move"
_FLOATS = {"f32": DirectCall.F32, "f64": DirectCall.F64}

Direct = Callable[..., Any]


class _MethodDef(ctypes.Structure):
    """Is Python's `PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class _Ufunc(ctypes.Structure):
    """Is the part of NumPy's `PyUFuncObject` that lies behind the head of an object."""

    _fields_ = (
        *[(name, ctypes.c_int) for name in ("nin", "nout", "nargs", "identity")],
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("ntypes", ctypes.c_int),
        ("reserved", ctypes.c_int),
        ("name", ctypes.c_void_p),
        ("types", ctypes.POINTER(ctypes.c_byte)),
    )


class NumberForm(NamedTuple):
    """Say how code takes a number of Python's: as a float or an integer of a dtype, in bounds for integers.

    dtype: "f32", "f64", or that of integers. given: the type of Python's.
    """

    dtype: str
    given: type
    bounds: tuple[int, int] = (0, 0)

    @property
    def code(self) -> int:
        """Return the number of the form in `DirectCall.FORMS`."""
        if self.dtype not in _FLOATS:
            return DirectCall.AN_INTEGER
        return _FLOATS[self.dtype] + (DirectCall.OF_AN_INTEGER if self.given is int else 0)


class _DirectBlock(np.ndarray):
    """Hold the words of `DirectCall`, and what they point at."""

    owners: tuple[Any, ...] = ()


class DirectCalls:
    """Make builtin functions. code: the object of `direct_object`, which stays loaded."""

    def __init__(self, code: bytes) -> None:
        self._code = load([code], libraries=[ctypes.pythonapi])
        self._methods = {
            name: _MethodDef(b"direct", self._code.address(name), _FASTCALL, None)
            for name in (_COMPUTE, _MOVE)
        }
        self._make = ctypes.PYFUNCTYPE(
            ctypes.py_object, ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.c_void_p
        )(("PyCFunction_NewEx", ctypes.pythonapi))
        self._common = {
            **{getattr(DirectCall, name.strip("_").upper()): _slot(name) for name in _SLOTS},
            DirectCall.ARRAY: id(Array),
            DirectCall.NEW: _new(),
            DirectCall.NO_ARGUMENTS: id(_NOTHING),
            DirectCall.NONE: id(None),
            DirectCall.TRUE: id(True),
            DirectCall.LIKE: _numpy_function(_NEW_LIKE),
            DirectCall.SHAPE: id(_SHAPE),
            DirectCall.NDARRAY: id(np.ndarray),
            DirectCall.COPY: _numpy_function(_NEW_COPY),
            DirectCall.OF_SCALAR: _numpy_function(_FROM_SCALAR),
            DirectCall.EXCEPTION: id(Exception),
        }

    def of_loop(
        self,
        ufunc: np.ufunc,
        dtype: np.dtype[Any],
        forms: Sequence[NumberForm | None],
        result: Kind,
        slow: Direct,
    ) -> Direct | None:
        """Return what runs the loop that NumPy has for an elementwise function of a dtype; None where it has none.

        forms: how each argument that is a number is taken, None for an Array. result: the kind of what is made. slow:
        computes what is otherwise.
        """
        inner = _Ufunc.from_address(id(ufunc) + object.__basicsize__)
        wanted = [dtype.num] * ufunc.nin + [result.dtype.num]
        rows = [
            list(inner.types[k * ufunc.nargs : (k + 1) * ufunc.nargs]) for k in range(inner.ntypes)
        ]
        if wanted not in rows:
            return None
        number = rows.index(wanted)
        template = aligned_array(result.shape, result.dtype)
        table = np.zeros(ufunc.nargs, np.int64)
        steps = np.array(
            [0 if form else dtype.itemsize for form in forms] + [result.dtype.itemsize], np.int64
        )
        first = int(table.ctypes.data)
        code = {
            DirectCall.RUN: inner.functions[number] or 0,
            DirectCall.TABLE: first,
            DirectCall.FIRST: first,
            DirectCall.OUTPUT: first + _WORD * ufunc.nin,
            DirectCall.COUNT: template.size,
            DirectCall.STEPS: int(steps.ctypes.data),
            DirectCall.DATA: (inner.data[number] or 0) if inner.data else 0,
        }
        return self._made((ufunc, table, steps), forms, template, result, slow, code)

    def of_step(
        self,
        executable: LocalExecutable,
        forms: Sequence[NumberForm | None],
        result: Kind,
        slow: Direct,
    ) -> Direct | None:
        """Return what calls a program of one result; None where it may take long, or needs much memory besides."""
        manifest = executable.manifest
        if not manifest.ends or PYTHON in manifest.libraries or manifest.arena_bytes > MOST_ARENA:
            return None
        if any(port.nbytes > MOST_PORT for port in (*manifest.inputs, *manifest.outputs)):
            return None
        entry, table = executable.entry_and_table()
        inputs, output = [buffer(port) for port in manifest.inputs], buffer(manifest.outputs[0])
        words = table.bound(inputs, [output])
        first = int(words.ctypes.data)
        code = {
            DirectCall.RUN: entry,
            DirectCall.TABLE: first,
            DirectCall.FIRST: first + _WORD * table.slots.input(0),
            DirectCall.BUFFER: int(output.ctypes.data),
            DirectCall.NBYTES: output.nbytes,
        }
        owners = (executable, table, words, inputs)
        return self._made(owners, forms, output, result, slow, code)

    def of_move(self, function: Callable[..., Any] | None, kind: Kind, slow: Direct) -> Direct:
        """Return what calls a function of NumPy's that moves or chooses elements, with shards in place of Arrays.

        function: None for `array[key]` of two arguments. kind: of what is made, but for its shape: of_shapes has others
        that `slow` has made.
        """
        kind.of_shape(kind.shape)
        code = {
            DirectCall.SLOW: id(slow),
            DirectCall.CALLED: id(function) if function is not None else 0,
            DirectCall.KINDS: id(kind.of_shapes),
            DirectCall.ITEMSIZE: numpy_dtype(kind.element).itemsize,
        }
        return self._function(_MOVE, (function, kind, slow), code)

    def _made(
        self,
        owners: tuple[Any, ...],
        forms: Sequence[NumberForm | None],
        template: Values,
        result: Kind,
        slow: Direct,
        code: dict[int, int],
    ) -> Direct:
        numbers = [(k, form) for k, form in enumerate(forms) if form is not None]
        bounds = next((form.bounds for _, form in numbers if form.dtype not in _FLOATS), (0, 0))
        own = {
            DirectCall.ARGUMENTS: len(forms),
            DirectCall.TEMPLATE: id(template),
            DirectCall.RESULT: id(result),
            DirectCall.SLOW: id(slow),
            DirectCall.LOWEST: bounds[0],
            DirectCall.HIGHEST: min(bounds[1], (1 << 63) - 1),  # other integers take the longer way
            **{DirectCall.FORMS + _WORD * k: form.code for k, form in numbers},
        }
        return self._function(_COMPUTE, (*owners, template, result, slow), own | code)

    def _function(self, name: str, owners: tuple[Any, ...], code: dict[int, int]) -> Direct:
        block = np.zeros(DirectCall.BYTES // _WORD, np.int64).view(_DirectBlock)
        block.owners = (*owners, self)
        for place, value in (self._common | code).items():
            block[place // _WORD] = value
        made: Direct = self._make(ctypes.byref(self._methods[name]), block, None)
        return made


@cache
def direct_calls(code: bytes) -> DirectCalls | None:
    """Return what makes builtin functions; None where this Python has not what they rely on: one lock for objects.

    code: of `direct_object`.
    """
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    return DirectCalls(code)


def _slot(name: str) -> int:
    """Return how far behind the address of an Array one of its slots lies."""
    probe, mark = object.__new__(Array), object()
    setattr(probe, name, mark)
    words = (ctypes.c_size_t * (Array.__basicsize__ // _WORD)).from_address(id(probe))
    found = _WORD * list(words).index(id(mark))
    delattr(probe, name)
    return found


def _new() -> int:
    """Return the address of what `object.__new__` does."""
    get = ctypes.pythonapi.PyType_GetSlot
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_int)
    return int(get(object, _TP_NEW))


def _numpy_function(number: int) -> int:
    """Return the address of a function of NumPy's interface for C."""
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    core = import_module("numpy.core" if np.__version__.startswith("1.") else "numpy._core")
    table = get(core.multiarray._ARRAY_API, None)
    return int(ctypes.c_size_t.from_address(table + _WORD * number).value)


_SLOTS = ("_held", "kind", "_alone")
_NOTHING, _SHAPE = (), "shape"
