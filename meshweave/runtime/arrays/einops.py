"""Let einops take Arrays and traced values: it knows libraries by the subclasses of a class of its own.

einops is not imported for that. When a program does, before or after this package, the subclass is made.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_WHERE = "einops._backends"


def tell_einops() -> None:
    """Make the subclass, now or when einops is imported."""
    if _WHERE in sys.modules:
        _add_backend(sys.modules[_WHERE])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Find the module of einops once, to add to it what it knows of Arrays. `importlib.abc` would load too much."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != _WHERE:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec: Any = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader:
    """Load a module as `inner` does, then add to it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        _add_backend(module)


def _add_backend(module: ModuleType) -> None:
    mw = import_module("meshweave")

    class Backend(module.AbstractBackend):  # type: ignore[name-defined,misc]
        """Compute what einops asks for by the functions of `mw`."""

        framework_name = "meshweave"

        def is_appropriate_type(self, tensor: object) -> bool:
            tracer = sys.modules.get("meshweave.frontends.python.tracer")
            known = (mw.Array,) if tracer is None else (mw.Array, tracer.Tracer)
            return isinstance(tensor, known)

        def from_numpy(self, x: Any) -> Any:
            return mw.asarray(x)

        def to_numpy(self, x: Any) -> Any:
            return x.numpy()

        def arange(self, start: int, stop: int) -> Any:
            return mw.arange(start, stop)

        def reduce(self, x: Any, operation: str, axes: Any) -> Any:
            return getattr(mw, operation)(x, axis=tuple(axes))

        def stack_on_zeroth_dimension(self, tensors: list[Any]) -> Any:
            return mw.stack(tensors)

        def add_axis(self, x: Any, new_position: int) -> Any:
            return mw.expand_dims(x, new_position)

        def tile(self, x: Any, repeats: Any) -> Any:
            return mw.tile(x, tuple(repeats))

        def concat(self, tensors: list[Any], axis: int) -> Any:
            return mw.concat(tensors, axis=axis)

        def is_float_type(self, x: Any) -> bool:
            return bool(mw.isdtype(x.dtype, "real floating"))

        def einsum(self, pattern: str, *x: Any) -> Any:
            return mw.einsum(pattern, *x)

    module._meshweave = Backend  # type: ignore[attr-defined]  # einops sees the class while something holds it
