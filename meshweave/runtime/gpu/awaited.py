"""Wait for the device behind each launch, so that whatever fails is told by the op that has launched it."""

from __future__ import annotations

import ctypes
from typing import Any

from meshweave.runtime.gpu.driver import Library
from meshweave.runtime.gpu.interface import LT_FAILED, SIGNATURES

# Of the functions that host code calls and that give a stream work: the place of the stream among their arguments.
_STREAMS = {
    "cuLaunchKernel": 8,
    "cuMemcpyDtoHAsync_v2": 3,
    "cuMemcpyHtoDAsync_v2": 3,
    "cublasLtMatmul": 15,
}


class AwaitedLibrary:
    """Give host code functions that return once the device has done what they enqueue. NCCL's stay as they are."""

    def __init__(self, library: Library) -> None:
        self.functions, self._library = library.functions, library
        self._made: dict[str, Any] = {}  # must live as long as host code may call them

    def address(self, name: str) -> int:
        """Return the address of a function, for host code."""
        if name not in _STREAMS:
            return self._library.address(name)
        if name not in self._made:
            self._made[name] = self._awaiting(name)
        return int(ctypes.cast(self._made[name], ctypes.c_void_p).value or 0)

    def _awaiting(self, name: str) -> Any:
        real, wait, at = self.functions[name], self.functions["cuStreamSynchronize"], _STREAMS[name]
        late = LT_FAILED if SIGNATURES[name].library == "cublaslt" else 0

        def call(*arguments: Any) -> int:
            code = real(*arguments)
            if code == 0 and (failed := wait(arguments[at])):
                return late or failed
            return code

        return SIGNATURES[name].prototype()(call)
