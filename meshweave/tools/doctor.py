"""`meshweave doctor`: what is installed here, and what will work with it."""

import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from meshweave import __version__
from meshweave.errors import MeshweaveError


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, whether it will do, what was found, and what to do about it when not."""

    what: str
    ok: bool
    found: str
    needed_for: str
    optional: bool = False


def doctor(as_json: bool = False) -> int:
    """Print the findings; 0 when everything that is not optional is there, else 1."""
    findings = [_found(check) for check in CHECKS]
    if as_json:
        print(json.dumps({"meshweave": __version__, "findings": [asdict(f) for f in findings]}))
    else:
        _print(findings)
    return 0 if all(f.ok or f.optional for f in findings) else 1


def _found(check: Callable[[], Finding]) -> Finding:
    """A finding also where looking itself goes wrong: whatever is broken here, say it and go on."""
    try:
        return check()
    except Exception as error:
        return _broken(check.__name__.strip("_"), error, "")


def _broken(what: str, error: Exception, needed_for: str, optional: bool = False) -> Finding:
    said = " ".join(str(error).split())
    return Finding(what, False, f"{type(error).__name__}: {said}"[:200], needed_for, optional)


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "what")
    for column in ("found", "needed for"):
        table.add_column(column, overflow="fold")
    for f in findings:
        mark = (
            ("ok", "green") if f.ok else ("absent", "yellow") if f.optional else ("missing", "red")
        )
        table.add_row(Text(*mark), Text(f.what), Text(f.found), Text(f.needed_for))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(f"meshweave {__version__}")
    console.print(table)
    missing = [f.what for f in findings if not (f.ok or f.optional)]
    console.print(
        Text(f"to be put right: {', '.join(missing)}" if missing else "everything needed is here")
    )


def _version(package: str) -> "str | None":
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _package(package: str, needed_for: str, optional: bool = False) -> Callable[[], Finding]:
    def check() -> Finding:
        version = _version(package)
        install = f"not installed: pip install {package}"
        return Finding(package, version is not None, version or install, needed_for, optional)

    return check


def _python() -> Finding:
    ok = sys.version_info >= (3, 10)
    return Finding("Python", ok, platform.python_version(), "everything; 3.10 or newer")


def _machine() -> Finding:
    system, machine = platform.system(), platform.machine()
    ok = system == "Linux" and machine == "x86_64"
    return Finding("machine", ok, f"{system} {machine}", "compiled code: Linux on x86-64")


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    return Finding("cores", True, f"{cores} usable", "speed: more ranks than cores take turns")


def _bindings() -> Finding:
    try:
        from meshweave.bindings import PACKAGE, context

        context()
    except Exception as error:  # whatever is wrong with the wheel
        return _broken("MLIR bindings", error, "compiling")
    return Finding("MLIR bindings", True, f"of {PACKAGE}, dialects load", "compiling")


def _stablehlo() -> Finding:
    from meshweave.bindings import stablehlo

    found = stablehlo() is not None
    text = "its passes are there" if found else "not in these bindings: install torch-mlir"
    return Finding("StableHLO", found, text, "programs from JAX", optional=True)


def _blas() -> Finding:
    try:
        from meshweave.runtime.libraries import openblas

        openblas()
    except Exception as error:
        return _broken("OpenBLAS", error, "matrix products")
    return Finding("OpenBLAS", True, "loads", "matrix products")


def _mpiexec() -> Finding:
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    return Finding(
        "mpiexec",
        found is not None,
        "found" if found else "not found: pip install mpich",
        "engine mpi",
    )


def _shared_memory() -> Finding:
    try:
        stat = os.statvfs("/dev/shm")
    except OSError as error:
        return Finding("/dev/shm", False, str(error), "engine mpi")
    free = stat.f_bavail * stat.f_frsize
    enough = free > 48 << 20  # 46 MB were taken by 8 ranks of MPICH 5
    return Finding("/dev/shm", enough, f"{free >> 20} MiB free", "engine mpi: about 6 MiB a rank")


_TRIAL = """module {
  "dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
  func.func @main(%a: tensor<4x6xf32> {dist.layout = #dist.layout<"[x, _]">})
      -> (tensor<4x6xf32> {dist.layout = #dist.layout<"[_, x]">}) {
    %0 = arith.addf %a, %a : tensor<4x6xf32>
    return %0 : tensor<4x6xf32>
  }
}
"""


def _trial(engine: str, needed_for: str, optional: bool = False) -> Callable[[], Finding]:
    """A check that an engine works: two ranks run a program that moves data between them."""

    def check() -> Finding:
        import numpy as np

        from meshweave.api import compile

        what, value = f"engine {engine}", np.arange(24, dtype=np.float32).reshape(4, 6)
        began = time.perf_counter()
        try:
            with compile(_TRIAL, engine=engine, timeout=20.0) as program:
                right = np.array_equal(program(value)[0], 2 * value)
        except (
            Exception
        ) as error:  # compiler, loader, MPI: whatever it is, it is what is looked for
            return _broken(what, error, needed_for, optional)
        seconds = time.perf_counter() - began
        said = f"two ranks ran, {seconds:.1f} s" if right else "two ranks gave a wrong result"
        return Finding(what, right, said, needed_for, optional)

    return check


def _driver() -> Finding:
    """The CUDA driver and the GPUs that it has."""
    from meshweave.runtime.gpu.driver import Driver, open_device
    from meshweave.runtime.gpu.libraries import SystemLibrary

    driver, what, needed_for = Driver(SystemLibrary(), 0), "CUDA driver", "engine nccl"
    try:
        first = open_device(driver, 0)
        names = []
        for number in range(driver.number("cuDeviceGetCount")):
            device = open_device(driver, number)
            names.append(f"{device.name} (sm_{device.capability[0]}{device.capability[1]})")
    except MeshweaveError as error:
        return Finding(what, False, error.message, needed_for, optional=True)
    gpus = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    return Finding(what, True, f"of CUDA {first.driver_text}; {gpus}", needed_for, optional=True)


def _nccl() -> Finding:
    from meshweave.runtime.gpu.driver import Driver
    from meshweave.runtime.gpu.groups import nccl_text, nccl_version
    from meshweave.runtime.gpu.libraries import SystemLibrary

    what, needed_for = "NCCL", "engine nccl: collectives"
    try:
        version = nccl_text(nccl_version(Driver(SystemLibrary(), 0)))
    except MeshweaveError as error:
        return Finding(what, False, error.message, needed_for, optional=True)
    return Finding(what, True, version, needed_for, optional=True)


def _cublaslt() -> Finding:
    from meshweave.runtime.gpu.libraries import SystemLibrary

    what, needed_for = "cuBLASLt", "engine nccl: library products"
    try:
        SystemLibrary().opened("cublaslt")
    except MeshweaveError as error:
        return Finding(what, False, error.message, needed_for, optional=True)
    return Finding(what, True, "loads", needed_for, optional=True)


def _device_code() -> Finding:
    """What makes PTX."""
    from meshweave.lowering.gpu import toolchain

    what, needed_for = "PTX", "compiling for target gpu"
    try:
        toolchain.need_llvm()
        toolchain.libdevice()
    except MeshweaveError as error:
        return Finding(what, False, error.message, needed_for, optional=True)
    return Finding(what, True, f"llvmlite {_version('llvmlite')}, libdevice", needed_for, True)


def _ptxas() -> Finding:
    from meshweave.lowering.gpu import toolchain

    found = toolchain.program("ptxas")
    text = found or f"not found, the driver compiles PTX at load: {toolchain.INSTALL}"
    return Finding("ptxas", found is not None, text, "machine code in gpu bundles", optional=True)


CHECKS: tuple[Callable[[], Finding], ...] = (
    _python,
    _machine,
    _cores,
    _bindings,
    _stablehlo,
    _package("numpy", "everything"),
    _blas,
    _package("mpi4py", "engine mpi"),
    _mpiexec,
    _shared_memory,
    _trial("local", "meshweave run"),
    _trial("mpi", "meshweave run --engine mpi"),
    _package("jax", "mw.from_jax", optional=True),
    _package("torch", "mw.from_torch, mw.torch_backend", optional=True),
    _device_code,
    _ptxas,
    _trial("emulate", "meshweave run --engine emulate", optional=True),
    _driver,
    _nccl,
    _cublaslt,
)
"""What is looked at, in order."""
