"""Call LLVM without Python's lock, so that other threads of Python go on meanwhile."""

from __future__ import annotations

import ctypes
from functools import cache

from meshweave.ir.bindings import execution_library, ir


class _Pointer(ctypes.Structure):
    """Is `MlirModule` or `MlirExecutionEngine` of the C interface."""

    _fields_ = (("pointer", ctypes.c_void_p),)


class _Text(ctypes.Structure):
    """Is `MlirStringRef` of the C interface."""

    _fields_ = (("data", ctypes.c_char_p), ("length", ctypes.c_size_t))


class LlvmCompiler:
    """Compile a module in the LLVM dialect, as the bindings' `ExecutionEngine` does, which keeps the lock."""

    def __init__(self, module: ir.Module, opt_level: int, alone: bool) -> None:
        """Translate and optimise a module. `made` says whether that went well.

        alone: no other thread uses its context; otherwise the lock is kept as long as this takes.
        """
        self._library = _library(ctypes.CDLL)
        create = _library(ctypes.CDLL if alone else ctypes.PyDLL).mlirExecutionEngineCreate
        held = _Pointer(_pointer(module._CAPIPtr))
        self._engine = create(held, opt_level, 0, None, True, False)

    @property
    def made(self) -> bool:
        """Tell whether LLVM took the module."""
        return bool(self._engine.pointer)

    def register(self, name: str, address: int) -> None:
        """Say where a function is that the module only declares."""
        self._library.mlirExecutionEngineRegisterSymbol(self._engine, _text(name), address)

    def compile(self, name: str) -> None:
        """Compile all functions, of which `name` is one."""
        self._library.mlirExecutionEngineInitialize(self._engine)
        self._library.mlirExecutionEngineLookup(self._engine, _text(name))

    def dump(self, path: str) -> None:
        """Write the object to a file."""
        self._library.mlirExecutionEngineDumpToObjectFile(self._engine, _text(path))

    def close(self) -> None:
        """Free what LLVM holds."""
        if self.made:
            self._library.mlirExecutionEngineDestroy(self._engine)
            self._engine = _Pointer(None)


def _text(text: str) -> _Text:
    data = text.encode()
    return _Text(data, len(data))


@cache
def _library(kind: type[ctypes.CDLL]) -> ctypes.CDLL:
    """Return the library of the C interface, told the types of the functions that are called."""
    library = kind(execution_library().__file__)
    types: dict[str, tuple[object, tuple[object, ...]]] = {
        "Create": (
            _Pointer,
            (_Pointer, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool),
        ),
        "RegisterSymbol": (None, (_Pointer, _Text, ctypes.c_void_p)),
        "Initialize": (None, (_Pointer,)),
        "Lookup": (ctypes.c_void_p, (_Pointer, _Text)),
        "DumpToObjectFile": (None, (_Pointer, _Text)),
        "Destroy": (None, (_Pointer,)),
    }
    for name, (result, arguments) in types.items():
        function = getattr(library, f"mlirExecutionEngine{name}")
        function.restype, function.argtypes = result, arguments
    return library


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
