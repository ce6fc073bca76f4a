"""Make the public functions of arrays: those of the frontend, which compute at once outside of traced functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn, overload

import numpy as np

from meshweave.api.eager import eager
from meshweave.api.indexing import at, getitem, setitem
from meshweave.api.numpy_calls import numpy_function, numpy_ufunc
from meshweave.api.outside import OUTSIDE
from meshweave.frontends.python import MODULES, PUBLIC
from meshweave.frontends.python.extras.linalg import trace as diagonal_sum
from meshweave.frontends.python.functions.flat import FlatView, put
from meshweave.frontends.python.spelling import NN, member
from meshweave.see.trace import ROOM, RankTrace

__all__ = [
    "FlatView", "at", "getitem", "inner", "member", "numpy_function", "numpy_ufunc", "public", "put",
    "setitem", "trace",
]  # fmt: skip

_TRACED = ("functions.", "extras.", "control")
"""Modules of the frontend whose functions take arrays."""


def public(name: str, value: Any) -> Any:
    """Return what `mw.name` is: of a function of arrays one that also computes at once, else the value."""
    home = PUBLIC.get(name, "").removeprefix("meshweave.frontends.python.")
    if not callable(value) or not home.startswith(_TRACED):
        return value
    return _either(name, value)


def _either(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes at once outside of traced functions, in a way of its own if it has one."""
    made, other = eager(function, name), OUTSIDE.get(name)
    return made if other is None else other(function, made)


@overload
def trace(*, room: int = ROOM) -> RankTrace: ...
@overload
def trace(x: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Any: ...
def trace(*x: Any, room: int = ROOM, **how: Any) -> Any:
    """Trace the programs that are called in a `with`: what each rank did and when. Of an array: sum its diagonal.

    room: for so many marks of a rank, of 16 bytes each; a call has half of it at least, `dropped` counts those beyond.
    x, how: an array, and what np.trace takes besides: offset, axis1, axis2, dtype.

    Raises UsageError for a room of less than 1 mark, and where a trace is under way already.

    The engines `local` and `mpi` write marks: kernels, collectives, and copies; of a collective, the wait for its last
    member is told apart. Engine `nccl` says by events what each GPU did, `emulate` the same in times of the
    emulator. Programs of other engines are counted in `unseen`. Nothing is compiled anew. See docs/see.md.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> f = mw.jit(lambda x: x + 1.0, mesh="x=2", in_layouts="[x]", out_layouts="[_]")
    >>> y = f(np.ones(4, np.float32))
    >>> with mw.trace() as t:
    ...     y = f(np.ones(4, np.float32))
    >>> {s.rank for s in t.slices}, {s.name for s in t.slices if s.kind == "collective"}
    ({0, 1}, {'all_gather[x] f32 2'})
    >>> mw.trace(np.eye(3, dtype=np.float32)).item()
    3.0
    """
    if not x and not how:
        return RankTrace(room)
    return _diagonal_sum()(*x, **how)


@cache
def _diagonal_sum() -> Callable[..., Any]:
    return _either("trace", diagonal_sum)


def inner(name: str) -> ModuleType:
    """Return the module `mw.linalg` or `mw.fft`, which has the public names of the frontend's alone."""
    source = import_module(MODULES[name])
    module = ModuleType(f"meshweave.{name}", source.__doc__)
    for function in source.__all__:
        setattr(module, function, eager(getattr(source, function), f"{name}.{function}"))
    module.__dict__["__all__"] = list(source.__all__)
    module.__dict__["__dir__"] = lambda: list(source.__all__)
    module.__dict__["__getattr__"] = lambda wanted: _missing(name, wanted)
    return module


def _missing(module: str, name: str) -> NoReturn:
    """Raise AttributeError that says how a name of NumPy's, missing in a module, is spelt here."""
    hint = ""
    if module == "nn" and name in NN:
        hint = f": mw.nn.{NN[name]} is right"
    elif name in PUBLIC:
        hint = f": mw.{name} is right"
    elif callable(getattr(getattr(np, module, None), name, None)):
        hint = f": np.{module}.{name}(np.asarray(x), ..) computes it on this process"
    raise AttributeError(f"module 'meshweave.{module}' has no attribute {name!r}{hint}")
