"""Call the CUDA driver, NCCL and cuBLASLt, and raise their errors.

Here is also the little device code of every rank: choose a device, load modules, allocate.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from meshweave.device import DeviceModule
from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime.gpu.interface import (
    CAPABILITY_MAJOR,
    CAPABILITY_MINOR,
    DYNAMIC_SHARED,
    MOST_SHARED,
    NO_DEVICE,
    REFUSED_IMAGES,
    SIGNATURES,
    UNSUPPORTED_PTX,
    UUID_BYTES,
    error_name,
)

OLDEST_DRIVER = 12000  # CUDA 12.0: cuGraphInstantiateWithFlags, and PTX of sm_90
_SHARED_WITHOUT_ASKING = 48 << 10  # bytes of dynamic shared memory
_LOG_BYTES = 4096
_UNIT = 16  # bytes that a kernel reads at once, at most
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6  # CU_JIT_*
# PTX version -> the CUDA version whose driver reads it.
_PTX_NEEDS = {
    "7.8": "11.8", "8.0": "12.0", "8.1": "12.1", "8.2": "12.2", "8.3": "12.3", "8.4": "12.4",
    "8.5": "12.5", "8.6": "12.7", "8.7": "12.8", "8.8": "12.9", "9.0": "13.0", "9.1": "13.1",
}  # fmt: skip


class Library(Protocol):
    """Give the functions of interface.py: those of the real libraries, or of the simulator."""

    functions: Mapping[str, Callable[..., int]]

    def address(self, name: str) -> int:
        """Return the address of a function, for host code."""


class Driver:
    """Call the functions of a library for one rank."""

    def __init__(self, library: Library, rank: int) -> None:
        self.library, self.rank = library, rank

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function. Raises RankError with its name and code when it fails."""
        if code := self.code(name, *arguments):
            raise self.error(name, code)

    def code(self, name: str, *arguments: Any) -> int:
        """Call a function and return its code."""
        return self.library.functions[name](*arguments)

    def error(self, name: str, code: int) -> RankError:
        """Return the error of a call that returned `code`."""
        library = SIGNATURES[name].library
        said = f"rank {self.rank}: {name} failed: {error_name(library, code)}"
        if library == "nccl" and (more := self._last_words()):
            said += f": {more}"
        return RankError(said)

    def _last_words(self) -> str:
        """Return what NCCL says about its last error."""
        text = self.library.functions["ncclGetLastError"](None)
        return " ".join(ctypes.string_at(text).decode(errors="replace").split()) if text else ""

    def number(
        self,
        name: str,
        *arguments: Any,
        kind: type[ctypes.c_int32 | ctypes.c_void_p] = ctypes.c_int32,
    ) -> int:
        """Call a function whose first argument points to its result; return the result."""
        out = kind(0)
        self(name, ctypes.addressof(out), *arguments)
        return int(out.value or 0)

    def handle(self, name: str, *arguments: Any) -> int:
        """Call a function that makes something; return its handle or address."""
        return self.number(name, *arguments, kind=ctypes.c_void_p)

    def made(self, held: ExitStack, made_by: str, given_back_by: str, *arguments: Any) -> int:
        """Make something that is freed when `held` is closed; return its handle.

        An error at that time is dropped: it would hide the one before.
        """
        handle = self.handle(made_by, *arguments)
        held.callback(self.code, given_back_by, handle)
        return handle


@dataclass(frozen=True)
class Device:
    """Describe a GPU: its number, name and compute capability, and the CUDA version of the driver.

    shared: bytes of shared memory that a block may have. uuid: in hexadecimal digits, of no other GPU.
    """

    number: int
    name: str
    capability: tuple[int, int]
    driver: int
    shared: int = 0
    uuid: str = ""

    @property
    def driver_text(self) -> str:
        """Return the driver's version as text: `12.8`."""
        return version_text(self.driver)


def version_text(version: int) -> str:
    """Write CUDA's 12080 as 12.8."""
    return f"{version // 1000}.{version % 1000 // 10}"


def open_device(driver: Driver, local_rank: int, share: bool = False) -> Device:
    """Return the GPU of a rank, the one of its number on this host; the only one where a rank sees no other.

    A job's launcher may show each rank the one GPU that is its own: `agree` finds out whether two ranks have the same.
    share: ranks may share GPUs, and take turns at their numbers. Raises MeshweaveError without a GPU or a driver that
    is new enough, or with too few GPUs.
    """
    code = driver.code("cuInit", 0)
    if code == NO_DEVICE:
        raise MeshweaveError("engine nccl needs a GPU: the CUDA driver finds none on this host")
    if code:
        raise driver.error("cuInit", code)
    version = driver.number("cuDriverGetVersion")
    if version < OLDEST_DRIVER:
        raise MeshweaveError(
            f"the CUDA driver is of version {version_text(version)}: "
            f"{version_text(OLDEST_DRIVER)} or newer is needed"
        )
    count = driver.number("cuDeviceGetCount")
    if count == 0:
        raise MeshweaveError("engine nccl needs a GPU: the CUDA driver finds none on this host")
    if local_rank >= count > 1 and not share:
        raise MeshweaveError(
            f"rank {driver.rank} is number {local_rank} on this host, which has "
            f"{count} GPU{'s' if count > 1 else ''}: use more hosts or a smaller mesh"
        )
    device = driver.number("cuDeviceGet", local_rank % count)
    name = ctypes.create_string_buffer(128)
    driver("cuDeviceGetName", ctypes.addressof(name), len(name), device)
    major, minor, shared = (
        driver.number("cuDeviceGetAttribute", what, device)
        for what in (CAPABILITY_MAJOR, CAPABILITY_MINOR, MOST_SHARED)
    )
    uuid = ctypes.create_string_buffer(UUID_BYTES)
    driver("cuDeviceGetUuid_v2", ctypes.addressof(uuid), device)
    called = name.value.decode(errors="replace")
    return Device(device, called, (major, minor), version, shared, uuid.raw.hex())


def check_chip(chip: str, device: Device) -> None:
    """Raise MeshweaveError when code for a chip cannot run on a GPU.

    Code for one with an "a" runs on that capability alone, other code on its own and later ones.
    """
    found = re.fullmatch(r"sm_(\d+)(\d)(a?)", chip)
    assert found is not None
    wanted = int(found[1]), int(found[2])
    if device.capability == wanted or (not found[3] and device.capability > wanted):
        return
    major, minor = device.capability
    raise MeshweaveError(
        f"the program is for {chip}, {device.name} is sm_{major}{minor}: compile it with "
        f"--chip sm_{major}{minor}"
    )


def load_module(driver: Driver, held: ExitStack, module: DeviceModule, device: Device) -> int:
    """Load device code: the cubin or, where the driver refuses it, the PTX, by the driver's own compiler.

    Raises MeshweaveError when the driver is too old for the PTX, RankError when it refuses it, too.
    """
    made, refused = ctypes.c_void_p(), 0
    if module.cubin is not None:
        refused = _load(driver, made, module.cubin, None)
        if refused == 0:
            held.callback(driver.code, "cuModuleUnload", made.value)
            return int(made.value or 0)
        if refused not in REFUSED_IMAGES:
            raise driver.error("cuModuleLoadDataEx", refused)
    log = ctypes.create_string_buffer(_LOG_BYTES)
    code = _load(driver, made, module.ptx.encode() + b"\0", log)
    before = f"; its machine code: {error_name('cuda', refused)}" if refused else ""
    if code == UNSUPPORTED_PTX:
        raise MeshweaveError(_too_old(module.ptx, device) + before)
    if code:
        said = " ".join(log.value.decode(errors="replace").split())
        message = driver.error("cuModuleLoadDataEx", code).message
        raise RankError(message + (f": {said[:300]}" if said else "") + before)
    held.callback(driver.code, "cuModuleUnload", made.value)
    return int(made.value or 0)


def _load(
    driver: Driver, made: ctypes.c_void_p, image: bytes, log: ctypes.Array[ctypes.c_char] | None
) -> int:
    data = ctypes.create_string_buffer(image, len(image))
    at = ctypes.addressof(made), ctypes.addressof(data)
    if log is None:
        return driver.code("cuModuleLoadDataEx", *at, 0, None, None)
    options = (ctypes.c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
    values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
    return driver.code(
        "cuModuleLoadDataEx", *at, 2, ctypes.addressof(options), ctypes.addressof(values)
    )


def _too_old(ptx: str, device: Device) -> str:
    found = re.search(r"\.version\s+([\d.]+)", ptx)
    version = found[1] if found else "?"
    needs = _PTX_NEEDS.get(version)
    right = f"that of CUDA {needs} does" if needs else "a newer one may"
    return (
        f"the driver (CUDA {device.driver_text}) does not read PTX {version}: {right}, or compile "
        "the program where ptxas is installed, so that it carries machine code"
    )


def kernel_function(
    driver: Driver, module: int, entry: str, shared_bytes: int, device: Device
) -> int:
    """Return a kernel, allowed the shared memory that it asks for.

    Raises MeshweaveError where a block of the GPU cannot have as much.
    """
    if shared_bytes > max(device.shared, _SHARED_WITHOUT_ASKING):
        major, minor = device.capability
        raise MeshweaveError(
            f"kernel {entry} needs {shared_bytes} bytes of shared memory, a block of {device.name} has {device.shared} "
            f"at most: compile the program with --chip sm_{major}{minor}"
        )
    function = driver.handle("cuModuleGetFunction", module, entry.encode())
    if shared_bytes > _SHARED_WITHOUT_ASKING:
        driver("cuFuncSetAttribute", function, DYNAMIC_SHARED, shared_bytes)
    return function


def allocate(driver: Driver, held: ExitStack, nbytes: int, what: str) -> int:
    """Allocate device memory that is freed when `held` is closed. Raises RankError, which tells the size, without."""
    address = acquire(driver, nbytes, what)
    held.callback(driver.code, "cuMemFree_v2", address)
    return address


def acquire(driver: Driver, nbytes: int, what: str) -> int:
    """Allocate device memory in units of 16 bytes, at least one, which the caller frees.

    LLVM makes kernels read whole units where only some bytes are wanted. Raises RankError, which tells the size,
    without memory.
    """
    out = ctypes.c_void_p()
    whole = -(-max(1, nbytes) // _UNIT) * _UNIT
    code = driver.code("cuMemAlloc_v2", ctypes.addressof(out), whole)
    if code:
        error = driver.error("cuMemAlloc_v2", code)
        raise RankError(f"{error.message}, for {nbytes} bytes of {what}")
    return int(out.value or 0)
