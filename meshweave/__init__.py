"""meshweave: tensor programs spread over meshes of devices, compiled.

The public names load on first use, so that importing the package costs nothing and a bundle runs where no compiler is
installed.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Layout": "meshweave.layout",
    "Mesh": "meshweave.layout",
    "P": "meshweave.layout.interchange",
    "Program": "meshweave.api",
    "compile": "meshweave.api",
    "MeshweaveError": "meshweave.errors",
}

__all__ = ["Layout", "Mesh", "MeshweaveError", "P", "Program", "__version__", "compile"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'meshweave' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
