"""Keep device modules by content: in memory, and on disk beside the programs of `meshweave.cache`."""

from __future__ import annotations

import json
from collections.abc import Callable
from threading import Lock

from meshweave.cache import KERNEL_SUFFIX, KERNELS, cached_in
from meshweave.device import DeviceModule
from meshweave.lowering.gpu.toolchain import versions as toolchain

_HERE: dict[tuple[str, ...], DeviceModule] = {}
_LOCK = Lock()


def kept(text: str, chip: str, make: Callable[[], DeviceModule]) -> DeviceModule:
    """Return the module that `make` gives, or gave to an earlier call with the same text and chip.

    Other processes share what is on disk.
    """
    key = (chip, text, *toolchain.versions())
    with _LOCK:
        if key in _HERE:
            return _HERE[key]
    module, _ = cached_in(KERNELS, KERNEL_SUFFIX, key, make, _packed, _unpacked)
    with _LOCK:
        return _HERE.setdefault(key, module)


def forget() -> None:
    """Forget what is in memory."""
    with _LOCK:
        _HERE.clear()


def _packed(module: DeviceModule) -> bytes:
    ptx = module.ptx.encode()
    return json.dumps([module.chip, len(ptx)]).encode() + b"\n" + ptx + (module.cubin or b"")


def _unpacked(data: bytes) -> DeviceModule:
    first, _, rest = data.partition(b"\n")
    chip, size = json.loads(first)
    return DeviceModule(chip, rest[:size].decode(), rest[size:] or None)
