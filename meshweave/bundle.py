"""The bundle: a compiled program on disk, and the numbers that compiled code and runtime agree on.

A bundle is a manifest (plain values, kept as JSON) and x86-64 ELF objects, in one zip file. It
needs no compiler to run, carries the SHA-256 of everything in it and never contains a pickle.
`slots` gives the places in the table that a compiled `step` reads; `WorldLayout` and `MpiTable`
give those of the engines' private blocks: nobody else writes these numbers down.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from meshweave import records
from meshweave.archive import packed, unpacked
from meshweave.device import DeviceModule, GemmInfo, KernelInfo, gemm_info, kernel_info
from meshweave.errors import MeshweaveError
from meshweave.files import replacing
from meshweave.layout import Layout, Mesh
from meshweave.records import several

FORMAT = 3
ALIGNMENT = 64  # bytes; of the arena and of every input and output buffer
KINDS = ("sum", "max", "min", "prod")  # reductions that compiled collectives know
DTYPES = ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "i1")  # those they reduce
# NumPy has no bf16: its bits travel as uint16.
NUMPY_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "uint16",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "i1": "bool",
    "ui64": "uint64", "ui32": "uint32", "ui16": "uint16", "ui8": "uint8",
    "index": "int64", "complex<f32>": "complex64", "complex<f64>": "complex128",
}  # fmt: skip


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy type of a buffer of `dtype` ("f32", "bf16" as uint16 bits, "i1" as bool).
    MeshweaveError when unknown.
    """
    if dtype not in NUMPY_DTYPES:
        raise MeshweaveError(f'no buffers of dtype "{dtype}"; known: {", ".join(NUMPY_DTYPES)}')
    return np.dtype(NUMPY_DTYPES[dtype])


@dataclass(frozen=True)
class Port:
    """An input or output of a program.

    name:         of the argument; "" where it has none.
    dtype:        of the elements, as in IR: "f32", "bf16", "i1", ..
    global_shape: of the whole value. local_shape: of the allocation of every rank.
    layout:       where it lies, as text: "[x, _]".
    """

    name: str
    dtype: str
    global_shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    layout: str

    @property
    def nbytes(self) -> int:
        """Bytes of one rank's allocation."""
        return math.prod(self.local_shape) * numpy_dtype(self.dtype).itemsize

    @property
    def global_nbytes(self) -> int:
        """Bytes of the global value."""
        return math.prod(self.global_shape) * numpy_dtype(self.dtype).itemsize


def _allocation(port: Port, mesh: str) -> tuple[int, ...]:
    """Shape of the buffer that a port's layout gives every rank. LayoutError where it does not fit."""
    layout, on = Layout.parse(port.layout), Mesh.parse(mesh)
    layout.check(on, port.global_shape)
    return layout.allocation_shape(on, port.global_shape)


@dataclass(frozen=True)
class OpInfo:
    """An op that compiled code reports on: its number from 1, e.g. `all_reduce[tp] f32 64x96`,
    and `file:line:col`.
    """

    id: int
    name: str
    location: str

    def __str__(self) -> str:
        return f"{self.name} at {self.location}"

    @property
    def tensor(self) -> str:
        """What it works on, on a rank: `f32 64x96`."""
        return self.name.partition(" ")[2]


@dataclass(frozen=True)
class CollectiveInfo:
    """One collective of the program: its op, axes, and the bytes that the busiest rank receives."""

    op: str
    axes: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """What a bundle's objects are: everything that the runtime has to know to run them.

    groups: the axes of each communicator; the index in this tuple is the group's number.
    libraries: those that the objects call ("openblas", "mpi", "m", "cuda", "nccl", "cublaslt").
    early_bytes: of arena_bytes those at its end that hold an `EarlyArea` for each collective that is
    started early; they are zero at first.
    Of target gpu: chip: what the device modules are for; kernels, gemms: what is launched, in the
    order of their slots (`device.GpuTable`); events, streams: how many it uses, streams for
    computing; graph: whether a step may be
    captured in a graph, since the host waits for nothing in it.
    """

    mesh: str
    engine: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    arena_bytes: int
    groups: tuple[tuple[str, ...], ...] = ()
    ops: tuple[OpInfo, ...] = ()
    collectives: tuple[CollectiveInfo, ...] = ()
    libraries: tuple[str, ...] = ()
    entry: str = "step"
    early_bytes: int = 0
    target: str = "cpu"
    chip: str = ""
    kernels: tuple[KernelInfo, ...] = ()
    gemms: tuple[GemmInfo, ...] = ()
    events: int = 0
    streams: int = 1
    graph: bool = False
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise MeshweaveError(
                f"bundle format {self.format}, this runtime reads format {FORMAT}: compile it again"
            )
        for port in (*self.inputs, *self.outputs):
            numpy_dtype(port.dtype)
            right = _allocation(port, self.mesh)
            if port.local_shape != right:
                raise MeshweaveError(
                    f"{port.name}: local shape {port.local_shape}, but {port.layout} of "
                    f"{port.global_shape} on ({self.mesh}) is {right} on a rank"
                )

    def op(self, op_id: int) -> OpInfo:
        """The op of that number; numbers that the program does not list have an unnamed one."""
        for info in self.ops:
            if info.id == op_id:
                return info
        return OpInfo(op_id, f"op {op_id}", "an unknown place")

    def to_json(self) -> str:
        """Canonical JSON: equal manifests give equal text."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Read what `to_json` wrote. MeshweaveError names the field that is missing, unknown or
        of the wrong type.
        """
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MeshweaveError(f"the manifest is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise MeshweaveError("the manifest is not a JSON object")
        if value.get("format") != FORMAT:  # say this first: an other format may have other fields
            raise MeshweaveError(
                f"bundle format {value.get('format')!r:.40}, this runtime reads format {FORMAT}: "
                "compile it again"
            )
        readers = {
            "inputs": several(_port),
            "outputs": several(_port),
            "ops": several(_op),
            "collectives": several(_collective),
            "groups": several(several(records.text)),
            "libraries": several(records.text),
            "arena_bytes": records.count,
            "early_bytes": records.count,
            "kernels": several(kernel_info),
            "gemms": several(gemm_info),
            "events": records.count,
            "streams": records.count,
            "graph": records.flag,
            "format": records.count,
        }
        manifest: Manifest = records.record(Manifest, value, "manifest", readers)
        return manifest


@dataclass(frozen=True)
class Bundle:
    """A compiled program, in memory or as one file: plain values that any machine can look at.

    manifest:  what the objects are: ports, collectives, bytes of the arena, libraries.
    objects:   ELF objects (resolved among themselves, then against libraries).
    devices:   for a gpu its device modules, PTX and machine code.
    constants: for a gpu, the bytes of one block of device memory.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> double = mw.jit(lambda x: x + x)
    >>> bundle = double.lower(np.ones(4, np.float32)).compile().program.bundle
    >>> again = type(bundle).from_bytes(bundle.to_bytes())
    >>> again == bundle, [(p.dtype, p.global_shape, p.nbytes) for p in again.manifest.inputs]
    (True, [('f32', (4,), 16)])
    """

    manifest: Manifest
    objects: tuple[bytes, ...]
    devices: tuple[DeviceModule, ...] = ()
    constants: bytes = b""

    @cached_property
    def _parts(self) -> dict[str, bytes]:
        """Every member of the file that holds code or data, by name."""
        parts = {f"object{k}.o": code for k, code in enumerate(self.objects)}
        for k, device in enumerate(self.devices):
            parts[f"device{k}.ptx"] = device.ptx.encode()
            if device.cubin is not None:
                parts[f"device{k}.cubin"] = device.cubin
        return parts | ({"constants.bin": self.constants} if self.constants else {})

    @cached_property
    def digest(self) -> str:
        """SHA-256, as hex, of the manifest and all parts: equal programs have equal digests."""
        whole = hashlib.sha256(self.manifest.to_json().encode())
        for name, data in self._parts.items():
            whole.update(name.encode())
            whole.update(hashlib.sha256(data).digest())
        return whole.hexdigest()

    def to_bytes(self) -> bytes:
        """The bundle as the bytes of its file; equal bundles give equal bytes."""
        members = {"manifest.json": self.manifest.to_json().encode(), **self._parts}
        members["digest"] = f"meshweave bundle {FORMAT} sha256 {self.digest}\n".encode()
        return packed(members)

    @staticmethod
    def from_bytes(data: bytes, name: str = "bundle") -> Bundle:
        """Read what `to_bytes` made. data: the bytes of the file. MeshweaveError, begun with `name`,
        when it is truncated, foreign or damaged.
        """
        members = unpacked(data, name, "bundle")
        try:
            return _assemble(members)
        except MeshweaveError as error:
            raise MeshweaveError(f"{name}: {error.message}") from None

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the bundle to the file `path`; a reader sees the old file or the whole new one.
        MeshweaveError when it cannot.
        """
        try:
            with replacing(path) as file:
                file.write(self.to_bytes())
        except OSError as error:
            raise MeshweaveError(f"{path}: cannot write the bundle: {error.strerror}") from None

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Bundle:
        """Read the bundle in the file `path` and check its digest. MeshweaveError names the file and
        what is wrong with it.
        """
        path = os.fspath(path)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            raise MeshweaveError(f"{path}: cannot read the bundle: {error.strerror}") from None
        return Bundle.from_bytes(data, path)


def _assemble(members: dict[str, bytes]) -> Bundle:
    """Check the members of a bundle's archive against each other."""
    if "manifest.json" not in members or "digest" not in members:
        raise MeshweaveError("not a meshweave bundle: it has no manifest.json or no digest")
    try:
        text = members["manifest.json"].decode()
    except UnicodeDecodeError:
        raise MeshweaveError("the bundle is damaged: its manifest is not UTF-8") from None
    manifest = Manifest.from_json(text)
    objects = _numbered(members, "object{}.o")
    devices = tuple(
        DeviceModule(manifest.chip, ptx.decode("utf-8", "replace"), members.get(f"device{k}.cubin"))
        for k, ptx in enumerate(_numbered(members, "device{}.ptx"))
    )
    bundle = Bundle(manifest, objects, devices, members.get("constants.bin", b""))
    if len(bundle._parts) + 2 != len(members):
        raise MeshweaveError(
            f"the bundle is damaged: {len(members)} members, {len(bundle._parts)} parts in sequence"
        )
    words = members["digest"].decode(errors="replace").split()
    if not words or words[-1] != bundle.digest:
        raise MeshweaveError("the bundle is damaged: its contents do not match its digest")
    return bundle


def _numbered(members: dict[str, bytes], name: str) -> tuple[bytes, ...]:
    """The members called `name` with 0, 1, .. in it."""
    found: list[bytes] = []
    while (data := members.get(name.format(len(found)))) is not None:
        found.append(data)
    return tuple(found)


def _port(value: Any, what: str) -> Port:
    shapes = {"global_shape": several(records.count), "local_shape": several(records.count)}
    port: Port = records.record(Port, value, what, shapes)
    return port


def _op(value: Any, what: str) -> OpInfo:
    op: OpInfo = records.record(OpInfo, value, what, {"id": records.count})
    return op


def _collective(value: Any, what: str) -> CollectiveInfo:
    readers = {"axes": several(records.text), "bytes": records.count}
    collective: CollectiveInfo = records.record(CollectiveInfo, value, what, readers)
    return collective


@dataclass(frozen=True)
class Slots:
    """Places in the table of 8-byte slots that `step(ptr ctx)` is given.

    arena: pointer; rank: i64; status: pointer to two i64, the op started last and the op finished
    last; private: the engine's own pointer. Then a handle and a member index for each group, the
    inputs' and the outputs' pointers.
    """

    groups: int
    inputs: int
    outputs: int
    arena: int = 0
    rank: int = 1
    status: int = 2
    private: int = 3

    def handle(self, group: int) -> int:
        """Slot of a group's handle."""
        return 4 + 2 * group

    def member(self, group: int) -> int:
        """Slot of this rank's member index in a group."""
        return 5 + 2 * group

    def input(self, index: int) -> int:
        """Slot of an input's pointer."""
        return 4 + 2 * self.groups + index

    def output(self, index: int) -> int:
        """Slot of an output's pointer."""
        return 4 + 2 * self.groups + self.inputs + index

    @property
    def count(self) -> int:
        """Slots in the table."""
        return 4 + 2 * self.groups + self.inputs + self.outputs


def slots(manifest: Manifest) -> Slots:
    """The table of a program."""
    return Slots(len(manifest.groups), len(manifest.inputs), len(manifest.outputs))


ABORTED = 0x7FFF  # code of a collective that left its wait because another rank had failed


class WorldLayout:
    """The `local` engine's shared block, in bytes. A rank's `private` slot points at the world, a
    group's handle at its block.

    World: abort flag (i64, not 0: leave every wait), then how often a wait looks before it yields
    the processor (i64). Group: its size (i64), a pointer to the world, then from MEMBERS one cache
    line per member: arrivals so far (i64, only ever grows), the source and destination it
    published before its last arrival, and its arena.
    """

    LINE = 64
    ABORT = 0
    SPINS = 64
    WORLD_BYTES = 128
    SIZE = 0
    WORLD = 8
    MEMBERS = 64
    ARRIVED = 0
    SOURCE = 8
    TARGET = 16
    ARENA = 24

    @classmethod
    def group_bytes(cls, size: int) -> int:
        """Bytes of the block of a group of `size` members."""
        return cls.MEMBERS + cls.LINE * size


class EarlyArea:
    """Where a rank keeps a collective of its program that it starts before it waits for it, in bytes
    of its arena: at the same place on all ranks.

    A line with how often it was started (i64, only ever grows), how many requests of MPI that left
    open (i64), and these; a line with how often this rank has waited for it. Then SLOTS copies of
    what was sent, the last ones, in turn. Both lines have the sleepers of a `GroupRecord`'s line.
    """

    STARTED = 0
    ACTIVE = 8
    REQUESTS = 32
    WAITED = 64
    SLOT = 128
    SLOTS = 2

    @classmethod
    def nbytes(cls, sent: int) -> int:
        """Bytes of the area of a collective that sends `sent` bytes."""
        return cls.SLOT + cls.SLOTS * (-(-sent // ALIGNMENT) * ALIGNMENT)


class MpiTable:
    """The `mpi` engine's table of 8-byte slots, at the `private` slot: MPI handles and special
    addresses as integers.

    A group's handle points to its record (`GroupRecord`).
    """

    STATUS = 0
    IN_PLACE = 1
    BYTE = 2
    COUNT = 3 + len(DTYPES) * (1 + len(KINDS))

    @staticmethod
    def datatype(dtype: str) -> int:
        """Slot of the MPI datatype of a dtype."""
        return 3 + DTYPES.index(dtype)

    @staticmethod
    def reduction(kind: str, dtype: str) -> int:
        """Slot of the MPI operation that reduces `dtype` by `kind`."""
        return 3 + len(DTYPES) * (1 + KINDS.index(kind)) + DTYPES.index(dtype)


STAGING = "mw_staging"  # the function that tells the bytes of staging that the program needs
OUTSIDE = 0x7FFE  # code of a meeting in which some member's operand lies in no shared memory


class GroupRecord:
    """What a rank of the `mpi` engine knows of a group, in bytes; the group's handle points to it.

    The group's size (i64), its communicator, whether its members meet in a shared window (i64),
    how often a wait looks before it yields (i64), where MPI may be polled from a wait (pointer to
    POLL_BYTES, 0: nowhere), a part of the own window for operands that lie elsewhere (pointer,
    bytes), the bytes of the own window and of the own buffers, how often a wait yields before it
    sleeps (i64). Then for each member pointers, in
    this rank's address space, to its line, its window and its buffers.

    A line is one cache line of a member's window: arrivals so far (odd: within a collective), and
    the source and destination that it published before its last arrival, and how many members
    sleep until it arrives. A published place is its
    offset times two, plus one when it lies in the buffers; NOWHERE when it lies in neither.
    """

    SIZE = 0
    COMM = 8
    SHARED = 16
    SPINS = 24
    POLL = 32
    STAGING = 40
    STAGING_BYTES = 48
    WINDOW_BYTES = 56
    BUFFERS_BYTES = 64
    YIELDS = 72
    MEMBERS = 128
    MEMBER = 32
    MEMBER_LINE = 0
    MEMBER_WINDOW = 8
    MEMBER_BUFFERS = 16
    LINE = 64
    ARRIVED = WorldLayout.ARRIVED
    SOURCE = WorldLayout.SOURCE
    TARGET = WorldLayout.TARGET
    SLEEPERS = 24
    NOWHERE = -1
    POLL_BYTES = 512

    @classmethod
    def nbytes(cls, size: int) -> int:
        """Bytes of the record of a group of `size` members."""
        return cls.MEMBERS + cls.MEMBER * size


def reduction_symbol(kind: str, dtype: str) -> str:
    """The compiled MPI operation for a reduction that MPI has not, or not with our treatment of
    NaN.
    """
    return f"mw_op_{kind}_{dtype}"
