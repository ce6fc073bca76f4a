"""Compile tensor programs for meshes of devices.

The public names load on first use, so that importing the package costs nothing and a bundle runs where no compiler is
installed.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__array_api_version__ = "2024.12"

_HOMES = {
    "Array": "meshweave.runtime.arrays.array",
    "Dim": "meshweave.layout.lengths",
    "Layout": "meshweave.layout",
    "Mesh": "meshweave.layout",
    "P": "meshweave.layout.spec",
    "Program": "meshweave.api.program",
    "ShapeDtype": "meshweave.layout.lengths",
    "compile": "meshweave.api.program",
    "expect": "meshweave.see.expect",
    "from_jax": "meshweave.jax.program",
    "from_mlir": "meshweave.api.sources",
    "from_stablehlo": "meshweave.api.sources",
    "from_torch": "meshweave.torch.entry",
    "init": "meshweave.runtime.job.member",
    "load": "meshweave.api.weights",
    "load_safetensors": "meshweave.api.weights",
    "quantize": "meshweave.api.quantized",
    "rank": "meshweave.runtime.job.current",
    "save": "meshweave.api.weights",
    "size": "meshweave.runtime.job.current",
    "show": "meshweave.tools.picture",
    "trace": "meshweave.api.namespace",
    "torch_backend": "meshweave.torch.backend",
    "verify": "meshweave.api.verify",
    "MeshweaveError": "meshweave.errors",
}

# The functions that programs are written in are public too, as mw.exp; `import *` leaves them out, for they would hide
# Python's own `sum`, `max`, ..
__all__ = [
    "Array",
    "Dim",
    "Layout",
    "Mesh",
    "MeshweaveError",
    "P",
    "Program",
    "ShapeDtype",
    "__version__",
    "compile",
    "cond",
    "constrain",
    "default_float",
    "expect",
    "from_jax",
    "from_mlir",
    "from_stablehlo",
    "from_torch",
    "grad",
    "hint",
    "init",
    "jit",
    "kernels",
    "load",
    "load_safetensors",
    "log_compiles",
    "quantize",
    "rank",
    "redistribute",
    "save",
    "scan",
    "show",
    "size",
    "stop_gradient",
    "torch_backend",
    "trace",
    "value_and_grad",
    "verify",
    "vjp",
    "vmap",
    "while_loop",
]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'meshweave' has no attribute {name!r}")
    from meshweave.frontends.python import MODULES, PUBLIC, RENAMED
    from meshweave.frontends.python.spelling import spelt

    if name == "jax":
        value: Any = import_module("meshweave.jax")
    elif name in MODULES:
        value = import_module("meshweave.api.namespace").inner(name)
    else:
        home, own = RENAMED.get(name) or (_HOMES.get(name) or PUBLIC.get(name), name)
        if home is None:
            raise AttributeError(f"module 'meshweave' has no attribute {name!r}{spelt(name)}")
        value = getattr(import_module(home), own)
        if home.startswith("meshweave.frontends.python."):
            value = import_module("meshweave.api.namespace").public(name, value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    from meshweave.frontends.python import MODULES, PUBLIC, RENAMED

    return sorted({*__all__, *PUBLIC, *RENAMED, *MODULES, "jax"})


def __array_namespace_info__() -> Any:
    """Return what this namespace has of the array API standard: its capabilities, dtypes and devices."""
    from meshweave.frontends.python.builder import STATE
    from meshweave.frontends.python.dtypes import Info

    return Info(traced=STATE.trace is not None)
