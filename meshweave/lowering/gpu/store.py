"""Device modules kept by content: in memory, and on disk beside the programs of `meshweave.cache`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock

from meshweave import cache as programs
from meshweave.device import DeviceModule
from meshweave.files import replacing
from meshweave.lowering.gpu import toolchain

_HERE: dict[str, DeviceModule] = {}
_LOCK = Lock()


def kept(text: str, chip: str, make: Callable[[], DeviceModule]) -> DeviceModule:
    """The module that `make` gives, or gave to an earlier call with the same text and chip, also in
    another process.
    """
    key = hashlib.sha256("\n".join((_fingerprint(), chip, text)).encode()).hexdigest()
    with _LOCK:
        if key in _HERE:
            return _HERE[key]
    place = programs.folder(programs.KERNELS)
    path = place / f"{key}{programs.KERNEL_SUFFIX}" if place else None
    module = _read(path) if path else None
    if module is None:
        module = make()
        if path:
            _write(path, module)
    with _LOCK:
        return _HERE.setdefault(key, module)


def forget() -> None:
    """Forget what is in memory."""
    with _LOCK:
        _HERE.clear()


@cache
def _fingerprint() -> str:
    """Of what makes device code: this package and the toolchain."""
    return "\n".join((programs.fingerprint(), *toolchain.versions()))


def _packed(module: DeviceModule) -> bytes:
    ptx, cubin = module.ptx.encode(), module.cubin or b""
    digest = hashlib.sha256(ptx + cubin).hexdigest()
    head = {"chip": module.chip, "ptx": len(ptx), "cubin": len(cubin), "sha256": digest}
    return json.dumps(head).encode() + b"\n" + ptx + cubin


def _unpacked(data: bytes) -> DeviceModule | None:
    """The module in a file; None when the file is damaged."""
    first, _, rest = data.partition(b"\n")
    try:
        head = json.loads(first)
        size = head["ptx"]
        if len(rest) != size + head["cubin"]:
            return None
        if hashlib.sha256(rest).hexdigest() != head["sha256"]:
            return None
        return DeviceModule(head["chip"], rest[:size].decode(), rest[size:] or None)
    except (ValueError, KeyError, TypeError):
        return None


def _read(path: Path) -> DeviceModule | None:
    with suppress(OSError):
        module = _unpacked(path.read_bytes())
        if module is not None:
            os.utime(path)  # used just now
        return module
    return None


def _write(path: Path, module: DeviceModule) -> None:
    """Keep a module. A full or read-only disk keeps nothing."""
    with suppress(OSError):
        with replacing(path) as file:
            file.write(_packed(module))
        programs.trim(path.parent, programs.KERNEL_SUFFIX)
