"""meshweave: tensor programs spread over meshes of devices, compiled.

The public names load on first use, so that importing the package costs nothing and a bundle runs where no compiler is
installed.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__array_api_version__ = "2024.12"

_HOMES = {
    "Array": "meshweave.runtime.array",
    "Layout": "meshweave.layout",
    "Mesh": "meshweave.layout",
    "P": "meshweave.layout.spec",
    "Program": "meshweave.api",
    "compile": "meshweave.api",
    "from_jax": "meshweave.frontends_api",
    "from_mlir": "meshweave.frontends_api",
    "from_stablehlo": "meshweave.frontends_api",
    "from_torch": "meshweave.torch_program",
    "load": "meshweave.runtime.saved",
    "show": "meshweave.tools.picture",
    "torch_backend": "meshweave.torch_compile",
    "MeshweaveError": "meshweave.errors",
}

# The functions that programs are written in are public too, as mw.exp; `import *` leaves them out, for they would hide
# Python's own `sum`, `max`, ..
__all__ = [
    "Array",
    "Layout",
    "Mesh",
    "MeshweaveError",
    "P",
    "Program",
    "__version__",
    "compile",
    "cond",
    "constrain",
    "from_jax",
    "from_mlir",
    "from_stablehlo",
    "from_torch",
    "hint",
    "jit",
    "kernels",
    "load",
    "redistribute",
    "scan",
    "show",
    "torch_backend",
    "while_loop",
]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'meshweave' has no attribute {name!r}")
    from meshweave.trace import MODULES, PUBLIC, RENAMED

    if name in MODULES:
        return import_module(MODULES[name])
    home, own = RENAMED.get(name) or (_HOMES.get(name) or PUBLIC.get(name), name)
    if home is None:
        raise AttributeError(f"module 'meshweave' has no attribute {name!r}")
    value = getattr(import_module(home), own)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    from meshweave.trace import MODULES, PUBLIC, RENAMED

    return sorted({*__all__, *PUBLIC, *RENAMED, *MODULES})


def __array_namespace_info__() -> Any:
    """What this namespace has of the array API standard: its capabilities, dtypes and devices."""
    from meshweave.trace.info import Info

    return Info()
