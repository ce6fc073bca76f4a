"""Play the CUDA driver: devices, memory, modules and launches."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime.gpu.interface import (
    CAPABILITY_MAJOR,
    CAPABILITY_MINOR,
    CAPTURE_UNSUPPORTED,
    INVALID_HANDLE,
    INVALID_PTX,
    INVALID_VALUE,
    MOST_SHARED,
    NO_BINARY,
    NO_DEVICE,
    NOT_FOUND,
    UUID_BYTES,
)
from meshweave.simulator.driver.kernels import KernelParameter
from meshweave.simulator.driver.memory import put
from meshweave.simulator.driver.races import no_ranges, one_range
from meshweave.simulator.driver.session import Session


@dataclass(eq=False)
class Context:
    """Stand for the primary context of a device."""

    device: int


@dataclass(eq=False)
class LoadedModule:
    """Hold loaded device code."""

    code: Any


@dataclass(eq=False)
class LoadedKernel:
    """Hold a kernel of a module, as `cuModuleGetFunction` gives it."""

    module: LoadedModule
    name: str
    parameters: tuple[KernelParameter, ...]
    shared_limit: int = 48 << 10


class RecordedCuda:
    """Implement the functions cu* except those of streams. Each returns an error code, or None for success."""

    def __init__(self, session: Session) -> None:
        self._r = session
        self._contexts: dict[int, int] = {}
        self._kept: dict[int, int] = {}  # of each context, how often it is retained

    # Devices.

    def cuInit(self, flags: int) -> int | None:
        return None if self._r.devices else NO_DEVICE

    def cuDriverGetVersion(self, version: int) -> None:
        put(version, self._r.driver_version, ctypes.c_int32)

    def cuDeviceGetCount(self, count: int) -> None:
        put(count, 1 if self._r.own_alone else self._r.devices, ctypes.c_int32)

    def cuDeviceGet(self, device: int, ordinal: int) -> int | None:
        if not 0 <= ordinal < (1 if self._r.own_alone else self._r.devices):
            return 101
        put(device, self._r.rank if self._r.own_alone else ordinal, ctypes.c_int32)
        return None

    def cuDeviceGetUuid_v2(self, uuid: int, device: int) -> None:
        text = (device + 1).to_bytes(UUID_BYTES, "little")
        ctypes.memmove(uuid, text, len(text))

    def cuDeviceGetName(self, name: int, nbytes: int, device: int) -> None:
        text = f"recorded device {device}".encode()[: nbytes - 1] + b"\0"
        ctypes.memmove(name, text, len(text))

    def cuDeviceGetAttribute(self, value: int, attribute: int, device: int) -> int | None:
        major, minor = self._r.capability
        known = {
            CAPABILITY_MAJOR: major, CAPABILITY_MINOR: minor, MOST_SHARED: self._r.shared_bytes,
        }  # fmt: skip
        if attribute not in known:
            return INVALID_VALUE
        put(value, known[attribute], ctypes.c_int32)
        return None

    def cuDevicePrimaryCtxRetain(self, context: int, device: int) -> None:
        if not self._kept.get(device):
            self._contexts[device] = self._r.new(Context(device))
        self._kept[device] = self._kept.get(device, 0) + 1
        put(context, self._contexts[device])

    def cuDevicePrimaryCtxRelease_v2(self, device: int) -> int | None:
        self._kept[device] = self._kept.get(device, 0) - 1
        return self._r.drop(self._contexts.get(device), Context) if self._kept[device] < 1 else None

    def cuCtxSetCurrent(self, context: int | None) -> int | None:
        found = self._r.find(context, Context)
        if context and found is None:
            return 201
        self._r.set_current(None if found is None else found.device)
        return None

    # Memory.

    def cuMemAlloc_v2(self, pointer: int, nbytes: int) -> int | None:
        if nbytes == 0:
            return INVALID_VALUE
        if self._r.streams.capturing(self._r.rank):
            return CAPTURE_UNSUPPORTED
        put(pointer, self._r.memory.add(self._r.rank, nbytes).address)
        return None

    def cuMemFree_v2(self, pointer: int | None) -> int | None:
        return None if pointer is None or self._r.memory.remove(pointer) else INVALID_VALUE

    def cuMemHostAlloc(self, pointer: int, nbytes: int, flags: int) -> None:
        put(pointer, self._r.memory.add(self._r.rank, nbytes, host=True).address)

    def cuMemFreeHost(self, pointer: int | None) -> int | None:
        return self.cuMemFree_v2(pointer)

    def cuMemcpyHtoD_v2(self, target: int, source: int, nbytes: int) -> None:
        """Copy from pageable memory: the call has read it when it returns, and the device has it later.

        It is an operation of the null stream, which streams that are non-blocking do not wait for.
        """
        self._r.memory.view(self._r.rank, target, nbytes, "cuMemcpyHtoD")
        data = ctypes.string_at(source, nbytes)

        def work() -> tuple[Any, Any]:
            ctypes.memmove(target, data, nbytes)
            return no_ranges(), one_range(target, nbytes)

        self._r.streams.submit_to_null(
            f"copy to device host -> {self._name(target)} {nbytes} bytes", work
        )

    def cuMemcpyDtoH_v2(self, target: int, source: int, nbytes: int) -> None:
        """Copy to pageable memory: an operation of the null stream that the host waits for."""
        self._r.memory.view(self._r.rank, source, nbytes, "cuMemcpyDtoH")

        def work() -> tuple[Any, Any]:
            ctypes.memmove(target, source, nbytes)
            return one_range(source, nbytes), no_ranges()

        self._r.streams.submit_to_null(
            f"copy to host {self._name(source)} -> host {nbytes} bytes", work, waits=True
        )

    def cuMemcpyHtoDAsync_v2(
        self, target: int, source: int, nbytes: int, stream: int | None
    ) -> int | None:
        self._r.memory.view(self._r.rank, target, nbytes, "cuMemcpyHtoDAsync")
        return self._copy("copy to device", target, source, nbytes, stream)

    def cuMemcpyDtoHAsync_v2(
        self, target: int, source: int, nbytes: int, stream: int | None
    ) -> int | None:
        self._r.memory.view(self._r.rank, source, nbytes, "cuMemcpyDtoHAsync")
        return self._copy("copy to host", target, source, nbytes, stream)

    def cuMemcpyDtoDAsync_v2(
        self, target: int, source: int, nbytes: int, stream: int | None
    ) -> int | None:
        for address in (target, source):
            self._r.memory.view(self._r.rank, address, nbytes, "cuMemcpyDtoDAsync")
        return self._copy("copy", target, source, nbytes, stream)

    def _copy(
        self, what: str, target: int, source: int, nbytes: int, stream: int | None
    ) -> int | None:
        pinned = what == "copy to device" and self._pinned(source)
        given = ctypes.string_at(source, nbytes) if pinned else b""

        def work() -> tuple[Any, Any]:
            if pinned and ctypes.string_at(source, nbytes) != given:
                raise RankError(
                    f"race on rank {rank}: the host has written pinned memory, "
                    f"{self._r.memory.describe(source)}, before {shown} has read it"
                )
            ctypes.memmove(target, source, nbytes)
            return one_range(source, nbytes), one_range(target, nbytes)

        names = ("host" if pinned else self._name(source), self._name(target))
        rank, shown = self._r.rank, f"{what} {names[0]} -> {names[1]} {nbytes} bytes"
        return self._r.streams.submit(stream, shown, work)

    def _pinned(self, address: int) -> bool:
        found = self._r.memory.find(address)
        return found is not None and found.host

    def _name(self, address: int) -> str:
        """Return the name of the memory at an address; memory of the host has no name of its own."""
        found = self._r.memory.find(address)
        return "host" if found is None else self._r.memory.describe(address)

    # Modules and kernels.

    def cuModuleLoadDataEx(
        self, module: int, image: int, count: int, options: int | None, values: int | None
    ) -> int | None:
        if ctypes.string_at(image, 4) == b"\x7fELF":
            return NO_BINARY  # the recorder's devices run PTX alone
        try:
            code = self._r.kernels.module(ctypes.string_at(image).decode())
        except MeshweaveError as error:
            self._r.error = self._r.error or error
            return INVALID_PTX
        put(module, self._r.new(LoadedModule(code)))
        return None

    def cuModuleUnload(self, module: int) -> int | None:
        gone = self._r.find(module, LoadedModule)
        for handle, value in list(self._r.objects.items()):
            if isinstance(value, LoadedKernel) and value.module is gone:
                del self._r.objects[handle]
        return self._r.drop(module, LoadedModule)

    def cuModuleGetFunction(self, function: int, module: int, name: bytes) -> int | None:
        found = self._r.find(module, LoadedModule)
        if found is None:
            return INVALID_HANDLE
        entries = self._r.kernels.entries(found.code)
        if name.decode() not in entries:
            return NOT_FOUND
        made = LoadedKernel(found, name.decode(), entries[name.decode()])
        handle = next(
            (h for h, v in self._r.objects.items() if _same(v, made)), None
        ) or self._r.new(made)
        put(function, handle)
        return None

    def cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> int | None:
        found = self._r.find(function, LoadedKernel)
        if found is None:
            return INVALID_HANDLE
        found.shared_limit = value
        return None

    def cuLaunchKernel(
        self, function: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int,
        shared: int, stream: int | None, parameters: int, extra: int | None,
    ) -> int | None:  # fmt: skip
        found = self._r.find(function, LoadedKernel)
        if found is None:
            return INVALID_HANDLE
        grid, block = (gx, gy, gz), (bx, by, bz)
        if 0 in (*grid, *block) or bx * by * bz > 1024 or shared > found.shared_limit:
            return INVALID_VALUE
        pointers = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))
        values = [
            ctypes.string_at(pointers[k], parameter.nbytes)
            for k, parameter in enumerate(found.parameters)
        ]
        rank = self._r.rank

        def work() -> tuple[Any, Any]:
            return self._r.kernels.launch(
                found.module.code, found.name, grid, block, shared, values, rank, self._r.memory
            )

        shown = [self._shown(p, v) for p, v in zip(found.parameters, values, strict=True)]
        sizes = "x".join(map(str, grid)) + " of " + "x".join(map(str, block))
        what = f"{found.name}({', '.join(shown)}) {sizes}" + (f" +{shared}" if shared else "")
        return self._r.streams.submit(stream, what, work, where=self._r.sources.get(found.name, ""))

    def _shown(self, parameter: KernelParameter, data: bytes) -> str:
        if parameter.is_pointer:
            return self._r.memory.describe(int.from_bytes(data, "little"))
        return parameter.text(data)


def _same(value: Any, other: LoadedKernel) -> bool:
    return (
        isinstance(value, LoadedKernel)
        and value.module is other.module
        and value.name == other.name
    )
