"""Make the public functions of arrays: those of the frontend, which compute at once outside of traced functions."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from meshweave.api.eager import eager
from meshweave.api.indexing import getitem, setitem
from meshweave.api.numpy_calls import numpy_function, numpy_ufunc
from meshweave.api.outside import OUTSIDE
from meshweave.frontends.python import MODULES, PUBLIC

__all__ = ["getitem", "inner", "numpy_function", "numpy_ufunc", "public", "setitem"]

_TRACED = ("functions.", "extras.", "control")
"""Modules of the frontend whose functions take arrays."""


def public(name: str, value: Any) -> Any:
    """Return what `mw.name` is: of a function of arrays one that also computes at once, else the value."""
    home = PUBLIC.get(name, "").removeprefix("meshweave.frontends.python.")
    if not isinstance(value, Callable) or not home.startswith(_TRACED):  # type: ignore[arg-type]
        return value
    return _either(name, value)


def _either(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes at once outside of traced functions, in a way of its own if it has one."""
    made, other = eager(function, name), OUTSIDE.get(name)
    return made if other is None else other(function, made)


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
    if name in PUBLIC:
        hint = f": mw.{name} is right"
    elif callable(getattr(getattr(np, module, None), name, None)):
        hint = f": np.{module}.{name}(np.asarray(x), ..) computes it on this process"
    raise AttributeError(f"module 'meshweave.{module}' has no attribute {name!r}{hint}")
