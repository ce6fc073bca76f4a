"""Find and open the libraries that compiled code may call: by name, once per process."""

from __future__ import annotations

import ctypes
import glob
import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

from meshweave.errors import MeshweaveError


def libraries(names: tuple[str, ...]) -> list[ctypes.CDLL]:
    """Open a manifest's `libraries`, after libc and libm, which all code may call.

    Raises MeshweaveError that says what is not installed, or which name is not known.
    """
    opened = [_c(), _m()]
    for name in names:
        if name not in _OPENERS:
            raise MeshweaveError(
                f'the bundle needs a library "{name}"; known: {", ".join(_OPENERS)}'
            )
        opened.append(_OPENERS[name]())
    return opened


@cache
def _c() -> ctypes.CDLL:
    return ctypes.CDLL("libc.so.6")


@cache
def _m() -> ctypes.CDLL:
    return ctypes.CDLL("libm.so.6")


@cache
def openblas() -> ctypes.CDLL:
    """Open OpenBLAS of the package scipy-openblas32, with one thread: the cores of a rank share products themselves."""
    package = find_spec("scipy_openblas32")  # importing it takes longer than all else here
    if package is None or not package.submodule_search_locations:
        raise MeshweaveError("the program calls OpenBLAS: pip install scipy-openblas32")
    home = package.submodule_search_locations[0]
    found = sorted(glob.glob(os.path.join(home, "lib", "libscipy_openblas*.so")))
    if not found:
        raise MeshweaveError(
            "the package scipy-openblas32 has no libscipy_openblas.so: install it again"
        )
    library = ctypes.CDLL(found[0])
    library.scipy_openblas_set_num_threads(1)
    return library


@cache
def mpi() -> ctypes.CDLL:
    """Open the MPI library that mpi4py has loaded into this process and initialised; never one found by its name."""
    try:
        from mpi4py import MPI  # noqa: F401 (loads and initialises the library)
    except (ImportError, RuntimeError) as error:
        raise MeshweaveError(
            f"the mpi engine needs MPI: pip install mpi4py mpich ({error})"
        ) from None
    with open("/proc/self/maps") as maps:
        paths = [line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")]
    for path in paths:
        if os.path.basename(path).startswith(("libmpi.so", "libmpi_abi.so", "libmpich.so")):
            return ctypes.CDLL(path)
    raise MeshweaveError("mpi4py is there, but no MPI library is mapped into this process")


_OPENERS: dict[str, Callable[[], ctypes.CDLL]] = {
    "openblas": openblas,
    "mpi": mpi,
    "m": _m,
    "c": _c,
}
