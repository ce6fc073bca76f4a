"""Call LLVM without Python's lock, so that other threads of Python go on meanwhile."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

from meshweave.ir.bindings import ExecutionEngine, execution_library


class _Engine(ctypes.Structure):
    """Is `MlirExecutionEngine` of the C interface."""

    _fields_ = (("pointer", ctypes.c_void_p),)


class _Text(ctypes.Structure):
    """Is `MlirStringRef` of the C interface."""

    _fields_ = (("data", ctypes.c_char_p), ("length", ctypes.c_size_t))


def compile_functions(engine: ExecutionEngine, name: str) -> None:
    """Let LLVM compile all functions of an engine, of which `name` is one.

    It is what `raw_lookup` does, which keeps the lock.
    """
    text = name.encode()
    _lookup()(_Engine(_pointer(engine._CAPIPtr)), _Text(text, len(text)))


@cache
def _lookup() -> Callable[[_Engine, _Text], int | None]:
    function = ctypes.CDLL(execution_library().__file__).mlirExecutionEngineLookup
    function.argtypes, function.restype = (_Engine, _Text), ctypes.c_void_p
    return function


def _pointer(capsule: object) -> int | None:
    """Return what a capsule holds."""
    name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
        ("PyCapsule_GetName", ctypes.pythonapi)
    )
    held = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    found: int | None = held(capsule, name(capsule))
    return found
