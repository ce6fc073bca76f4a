"""Put something around what host code calls: waits for the device behind each launch, or ranges of NVTX."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from meshweave.errors import MeshweaveError
from meshweave.runtime.gpu.driver import Library
from meshweave.runtime.gpu.interface import LT_FAILED, SIGNATURES
from meshweave.runtime.gpu.libraries import first_opened, in_wheels

# Of the functions that host code calls and that give a stream work: the place of the stream among their arguments.
_STREAMS = {
    "cuLaunchKernel": 8,
    "cuMemcpyDtoHAsync_v2": 3,
    "cuMemcpyHtoDAsync_v2": 3,
    "cublasLtMatmul": 15,
}


class WrappedLibrary(ABC):
    """Give host code functions of our own in the place of some of a library's; the runtime calls the library's."""

    def __init__(self, library: Library) -> None:
        self.functions, self._library = library.functions, library
        self._made: dict[str, Any] = {}  # must live as long as host code may call them

    def address(self, name: str) -> int:
        """Return the address of a function, for host code."""
        if name not in self._made:
            around = self.around(name)
            if around is None:
                return self._library.address(name)
            self._made[name] = SIGNATURES[name].prototype()(around)
        return int(ctypes.cast(self._made[name], ctypes.c_void_p).value or 0)

    @abstractmethod
    def around(self, name: str) -> Callable[..., int] | None:
        """Return what host code is to call in the place of a function, None where that is the function itself."""


class AwaitedLibrary(WrappedLibrary):
    """Give host code functions that return once the device has done what they enqueue. NCCL's stay as they are.

    So whatever fails is told by the op that has launched it.
    """

    def around(self, name: str) -> Callable[..., int] | None:
        """Do as WrappedLibrary says."""
        if name not in _STREAMS:
            return None
        real, wait, at = self.functions[name], self.functions["cuStreamSynchronize"], _STREAMS[name]
        late = LT_FAILED if SIGNATURES[name].library == "cublaslt" else 0

        def call(*arguments: Any) -> int:
            code = real(*arguments)
            if code == 0 and (failed := wait(arguments[at])):
                return late or failed
            return code

        return call


class NvtxLibrary(WrappedLibrary):
    """Give host code functions that tell NVTX, and so Nsight Systems, what they enqueue: kernels by their names."""

    def __init__(self, library: Library, nvtx: Any = None) -> None:
        """Open NVTX. nvtx: has `nvtxRangePushA` and `nvtxRangePop`, instead of the system's.

        Raises MeshweaveError where there is none.
        """
        super().__init__(library)
        self._nvtx = nvtx if nvtx is not None else opened_nvtx()
        self._kernels: dict[int, bytes] = {}  # names by handles
        self.functions = {**library.functions, "cuModuleGetFunction": self._named}

    def around(self, name: str) -> Callable[..., int] | None:
        """Do as WrappedLibrary says. What NCCL is given between the start and the end of a group is one range."""
        real, nvtx, text = self._library.functions[name], self._nvtx, name.encode()
        if name in ("cuEventRecord", "cuStreamWaitEvent", "ncclSend", "ncclRecv"):
            return None

        def call(*arguments: Any) -> int:
            if name != "ncclGroupEnd":
                launches = name == "cuLaunchKernel"
                nvtx.nvtxRangePushA(self._kernels.get(arguments[0], text) if launches else text)
            code: int = real(*arguments)
            if name != "ncclGroupStart":
                nvtx.nvtxRangePop()
            return code

        return call

    def _named(self, function: int, module: int, name: bytes) -> int:
        """Get a kernel of a module, and remember its name."""
        code = self._library.functions["cuModuleGetFunction"](function, module, name)
        handle = ctypes.c_void_p.from_address(function).value
        if code == 0 and handle is not None:
            self._kernels[handle] = name
        return code


_NVTX = ("libnvtx3interop.so.1", "libnvToolsExt.so.1")


def opened_nvtx() -> Any:
    """Open the library of NVTX. Raises MeshweaveError that says what to install."""
    found = first_opened(ctypes.CDLL, [*_NVTX, *in_wheels(_NVTX)])
    if found is None:
        raise MeshweaveError(
            "ranges of NVTX need its library, libnvtx3interop.so.1: pip install nvidia-nvtx"
        )
    found.nvtxRangePushA.argtypes = [ctypes.c_char_p]
    return found
