"""Define `meshweave doctor`, which shows what is installed here, and what will work."""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata

from meshweave import __version__
from meshweave.errors import MeshweaveError, UsageError


@dataclass(frozen=True)
class Requirement:
    """Hold one line: what was checked, whether it is good, what was found or how to install it, what needs it."""

    what: str
    ok: bool
    found: str
    needed_for: str
    optional: bool = False


@dataclass(frozen=True)
class Check:
    """Look at one thing. look: returns what was found, in words; raises any error if it is not good."""

    what: str
    look: Callable[[], str]
    needed_for: str
    optional: bool = False

    def finding(self) -> Requirement:
        """Look, and say what was found or what is wrong."""
        try:
            ok, said = True, self.look()
        except MeshweaveError as error:
            ok, said = False, error.message
        except Exception as error:  # of compiler, loader, MPI: any is a finding
            ok, said = False, f"{type(error).__name__}: {error}"
        return Requirement(
            self.what, ok, " ".join(said.split())[:200], self.needed_for, self.optional
        )


def doctor_command(options: argparse.Namespace) -> int:
    """Run the command `doctor`; return the exit status."""
    if options.dump is not None:
        from meshweave.tools.dump import dump_command

        return dump_command(options.dump, options.json)
    if options.profile:
        return _profile(options.output)
    if options.output is not None:
        raise UsageError("doctor: -o goes with --profile")
    return doctor(options.json)


def _profile(output: str | None) -> int:
    """Measure this machine, and write or print what was found; return the exit status."""
    from meshweave.files.whole import write_text
    from meshweave.see.profile import measured, prices_text

    text = prices_text(*measured(engines=_measured_engines()))
    if output is None:
        print(text, end="")
    else:
        write_text(output, text)
        print(f"{output}: {text.splitlines()[0].removeprefix('# ')}")
    return 0


def _measured_engines() -> tuple[str, ...]:
    """Return the engines that are measured: between processes where there is an MPI."""
    try:
        _mpiexec()
    except MeshweaveError:
        return ("local",)
    return ("local", "mpi")


def doctor(as_json: bool = False) -> int:
    """Print the findings; 0 when everything that is not optional is there, else 1."""
    findings = [check.finding() for check in CHECKS]
    if as_json:
        print(json.dumps({"meshweave": __version__, "findings": [asdict(f) for f in findings]}))
    else:
        _print(findings)
    return 0 if all(f.ok or f.optional for f in findings) else 1


def _print(findings: list[Requirement]) -> None:
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
        Text(f"to be fixed: {', '.join(missing)}" if missing else "everything needed is here")
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise MeshweaveError(f"not installed: pip install {package}") from None


def _package(package: str, needed_for: str, optional: bool = False) -> Check:
    return Check(package, lambda: _version(package), needed_for, optional)


def _need(holds: bool, said: str) -> str:
    """Return what was found, if it is as it should be."""
    if not holds:
        raise MeshweaveError(said)
    return said


def _python() -> str:
    return _need(sys.version_info >= (3, 10), platform.python_version())


def _machine() -> str:
    here = platform.system(), platform.machine()
    return _need(here == ("Linux", "x86_64"), " ".join(here))


def _cores() -> str:
    return f"{len(os.sched_getaffinity(0))} usable"


def _bindings() -> str:
    from meshweave.dialects import context
    from meshweave.ir.bindings import PACKAGE

    context()
    return f"of {PACKAGE}, dialects load"


def _stablehlo() -> str:
    from meshweave.ir.bindings import stablehlo

    if stablehlo() is None:
        raise MeshweaveError("not in these bindings: install torch-mlir")
    return "its passes are there"


def _blas() -> str:
    from meshweave.runtime.libraries import openblas

    openblas()
    return "loads"


def _mpiexec() -> str:
    from meshweave.runtime.mpi.engine import mpiexec

    mpiexec()
    return "found"


def _shared_memory() -> str:
    stat = os.statvfs("/dev/shm")
    free = stat.f_bavail * stat.f_frsize
    # 8 ranks of MPICH 5 took 46 MB.
    return _need(free > 48 << 20, f"{free >> 20} MiB free")


_TRIAL = """module {
  "dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
  func.func @main(%a: tensor<4x6xf32> {dist.layout = #dist.layout<"[x, _]">})
      -> (tensor<4x6xf32> {dist.layout = #dist.layout<"[_, x]">}) {
    %0 = arith.addf %a, %a : tensor<4x6xf32>
    return %0 : tensor<4x6xf32>
  }
}
"""


def _trial(engine: str, needed_for: str, optional: bool = False) -> Check:
    """Return a check that an engine works: two ranks run a program that moves data between them."""

    def look() -> str:
        import numpy as np

        from meshweave.api.program import compile

        value = np.arange(24, dtype=np.float32).reshape(4, 6)
        began = time.perf_counter()
        with compile(_TRIAL, engine=engine, timeout=20.0) as program:
            if not np.array_equal(program(value)[0], 2 * value):
                raise MeshweaveError("two ranks gave a wrong result")
        return f"two ranks ran, {time.perf_counter() - began:.1f} s"

    return Check(f"engine {engine}", look, needed_for, optional)


def _driver() -> str:
    """Look for the CUDA driver and its GPUs."""
    from meshweave.runtime.gpu.driver import Driver, open_device
    from meshweave.runtime.gpu.libraries import SystemLibrary

    driver = Driver(SystemLibrary(), 0)
    first = open_device(driver, 0)
    names = []
    for number in range(driver.number("cuDeviceGetCount")):
        device = open_device(driver, number)
        names.append(f"{device.name} (sm_{device.capability[0]}{device.capability[1]})")
    gpus = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    return f"of CUDA {first.driver_text}; {gpus}"


def _nccl() -> str:
    from meshweave.runtime.gpu.driver import Driver
    from meshweave.runtime.gpu.groups import nccl_text, nccl_version
    from meshweave.runtime.gpu.libraries import SystemLibrary

    return nccl_text(nccl_version(Driver(SystemLibrary(), 0)))


def _cublaslt() -> str:
    from meshweave.runtime.gpu.libraries import SystemLibrary

    SystemLibrary().opened("cublaslt")
    return "loads"


def _device_code() -> str:
    """Look for what makes PTX."""
    from meshweave.lowering.gpu.toolchain import versions as toolchain

    toolchain.need_llvm()
    toolchain.libdevice()
    return f"llvmlite {_version('llvmlite')}, libdevice"


def _ptxas() -> str:
    from meshweave.lowering.gpu.toolchain import versions as toolchain

    if (found := toolchain.program("ptxas")) is None:
        raise MeshweaveError(f"not found, the driver compiles PTX at load: {toolchain.INSTALL}")
    return found


CHECKS: tuple[Check, ...] = (
    Check("Python", _python, "everything; 3.10 or newer"),
    Check("machine", _machine, "compiled code: Linux on x86-64"),
    Check("cores", _cores, "speed: more ranks than cores take turns"),
    Check("MLIR bindings", _bindings, "compiling"),
    Check("StableHLO", _stablehlo, "programs from JAX", optional=True),
    _package("numpy", "everything"),
    Check("OpenBLAS", _blas, "matrix products"),
    _package("mpi4py", "engine mpi"),
    Check("mpiexec", _mpiexec, "engine mpi"),
    Check("/dev/shm", _shared_memory, "engine mpi: about 6 MiB a rank"),
    _trial("local", "meshweave run"),
    _trial("mpi", "meshweave run --engine mpi"),
    _package("jax", "mw.from_jax", optional=True),
    _package("torch", "mw.from_torch, mw.torch_backend", optional=True),
    Check("PTX", _device_code, "compiling for target gpu", optional=True),
    Check("ptxas", _ptxas, "machine code in gpu bundles", optional=True),
    _trial("emulate", "meshweave run --engine emulate", optional=True),
    Check("CUDA driver", _driver, "engine nccl", optional=True),
    Check("NCCL", _nccl, "engine nccl: collectives", optional=True),
    Check("cuBLASLt", _cublaslt, "engine nccl: library products", optional=True),
)
"""The checks, in order."""
