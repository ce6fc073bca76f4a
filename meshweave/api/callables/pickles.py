"""Pickle compiled functions: programs stay behind, and the process that loads one compiles or finds them again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from meshweave.errors import UsageError


def pickled(
    made: Callable[..., Any], function: Callable[..., Any], options: dict[str, object]
) -> tuple[Callable[..., Any], tuple[object, ...]]:
    """Return what pickle writes of the compiled function `made`: its name where that leads to it, else what it is.

    A name in `__main__` leads to it in processes that run the same script; for all others, as those of Ray and Dask,
    cloudpickle, where it is installed, adds the function itself.
    """
    module, name = getattr(made, "__module__", None), getattr(made, "__qualname__", "<lambda>")
    if _named(module, name) is not made:
        return _remade, (type(made), function, options)
    if module != "__main__":
        return _imported, (module, name)
    return _main, (module, name, _by_value(type(made), function, options))


def _named(module: str | None, name: str) -> Any:
    found: Any = sys.modules.get(module or "")
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found.__func__ if isinstance(found, staticmethod | classmethod) else found


def _by_value(kind: type, function: Callable[..., Any], options: dict[str, object]) -> bytes | None:
    try:
        import cloudpickle
    except ImportError:
        return None
    made: bytes = cloudpickle.dumps((kind, function, options))
    return made


def _remade(
    kind: Callable[..., Any], function: Callable[..., Any], options: dict[str, object]
) -> Any:
    return kind(function, **options)


def _imported(module: str, name: str) -> Any:
    import_module(module)
    found = _named(module, name)
    if found is None:
        raise UsageError(f"a pickled function: {module} has no {name}")
    return found


def _main(module: str, name: str, value: bytes | None) -> Any:
    found = _named(module, name)
    if found is not None:
        return found
    if value is None:
        raise UsageError(
            f"a pickled function: __main__ has no {name} here: put it in a module, or install cloudpickle"
        )
    import cloudpickle

    return _remade(*cloudpickle.loads(value))
