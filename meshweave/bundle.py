"""Define the bundle: a compiled program on disk.

A bundle is a manifest (plain values, kept as JSON) and x86-64 ELF objects, in one zip file. It needs no compiler to
run, carries the SHA-256 of everything in it and never contains a pickle.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import IO, Any

import numpy as np

from meshweave.abi import Slots
from meshweave.certificate import UNCHECKED, Certificate
from meshweave.device import DeviceModule, GemmInfo, KernelInfo
from meshweave.errors import MeshweaveError
from meshweave.files.archive import SECTIONS, pack_to, unpack_from
from meshweave.files.records import record
from meshweave.files.sections import Section
from meshweave.files.whole import replacing
from meshweave.layout import Layout, Mesh

FORMAT = 15
OF_A_BYTE = {
    "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2", "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E5M2FNUZ": "float8_e5m2fnuz", "i4": "int4", "ui4": "uint4",
}  # fmt: skip
"""Elements that a byte holds each, with the names that the package ml_dtypes gives them."""
# NumPy has no bf16: its bits travel as uint16.
NUMPY_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "uint16",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "i1": "bool",
    "ui64": "uint64", "ui32": "uint32", "ui16": "uint16", "ui8": "uint8",
    "index": "int64", "complex<f32>": "complex64", "complex<f64>": "complex128",
    **OF_A_BYTE,
}  # fmt: skip


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Return the NumPy type of a buffer of `dtype` ("f32", "bf16" as uint16 bits, "i1" as bool).

    Raises MeshweaveError when it is unknown.
    """
    if dtype not in NUMPY_DTYPES:
        raise MeshweaveError(f'no buffers of dtype "{dtype}"; known: {", ".join(NUMPY_DTYPES)}')
    return _ml_dtype(OF_A_BYTE[dtype]) if dtype in OF_A_BYTE else np.dtype(NUMPY_DTYPES[dtype])


def public_dtype(dtype: str) -> np.dtype[Any]:
    """Return the NumPy type of arrays of `dtype` as users see it: of "bf16" that of the package ml_dtypes."""
    return _ml_dtype("bfloat16") if dtype == "bf16" else numpy_dtype(dtype)


def file_dtype(dtype: str) -> np.dtype[Any]:
    """Return the NumPy type of a buffer's elements in a .npy file: of those that a byte holds, the byte."""
    return np.dtype(np.uint8) if dtype in OF_A_BYTE else numpy_dtype(dtype)


def as_in_files(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array as .npy files hold it: numbers of a byte that NumPy does not know as bytes."""
    return array.view(np.uint8) if array.dtype.name in OF_A_BYTE.values() else array


def element_name(dtype: np.dtype[Any]) -> str | None:
    """Return our name of the elements of a NumPy dtype, or of one of ml_dtypes; None where arrays have no such ones."""
    return OF_ML_DTYPES.get(dtype.name) or _OF_NUMPY.get(dtype)


OF_ML_DTYPES = {"bfloat16": "bf16", **{name: own for own, name in OF_A_BYTE.items()}}
"""Our names of the dtypes of the package ml_dtypes that arrays may have."""
_OF_NUMPY = {
    np.dtype(name): own
    for own, name in NUMPY_DTYPES.items()
    if own not in ("bf16", "index", *OF_A_BYTE)
}


@cache
def _ml_dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes  # here, for most programs have no such elements

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


@dataclass(frozen=True)
class Port:
    """Describe an input or output of a program.

    name:         of the argument; "" where it has none.
    dtype:        of the elements, as in IR: "f32", "bf16", "i1".
    global_shape: of the whole value. local_shape: of the allocation of every rank.
    layout:       where it lies, as text: "[x, _]".
    takes:        of an output: the input whose buffer it takes, which a call writes; None: it has its own.
    weight:       of an input that the program has itself: the SHA-256 of its global value, row-major; else empty.
    length:       of an input that is a size which each call chooses: its name; else empty. least: the least it may be.
    lengths:      of an input or output with such dims, whose shapes are those of the bounds: what each dim is, a name
                  or a sum such as "n + 1", or ""; else no entries. merged: of an output how many dims, in order, are
                  one for the user; no entries: each is.
    """

    name: str
    dtype: str
    global_shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    layout: str
    takes: int | None = None
    weight: str = ""
    length: str = ""
    least: int = 1
    lengths: tuple[str, ...] = ()
    merged: tuple[int, ...] = ()

    def at(self, shape: Sequence[int]) -> Port:
        """Return the port as a call has it that gives or gets this shape, in the dims that calls choose."""
        if len(shape) != len(self.lengths):
            return self
        own = [n if name else size for n, name, size in zip(shape, self.lengths, self.global_shape)]
        return replace(self, global_shape=tuple(own))

    @property
    def nbytes(self) -> int:
        """Return the bytes of one rank's allocation."""
        return math.prod(self.local_shape) * numpy_dtype(self.dtype).itemsize

    @property
    def global_nbytes(self) -> int:
        """Return the bytes of the global value."""
        return math.prod(self.global_shape) * numpy_dtype(self.dtype).itemsize


def port_bytes(ports: Iterable[Port]) -> int:
    """Count the bytes of the buffers of ports on a rank; those that take an input's have none of their own."""
    return sum(port.nbytes for port in ports if port.takes is None)


def _lies(port: Port) -> tuple[object, ...]:
    """Return what the buffer of a port is like."""
    return port.dtype, port.global_shape, port.local_shape, port.layout


def _allocation(port: Port, mesh: str) -> tuple[int, ...]:
    """Return the shape of the buffer that a port's layout gives every rank.

    Raises LayoutError where it does not fit.
    """
    layout, on = Layout.parse(port.layout), Mesh.parse(mesh)
    layout.check(on, port.global_shape)
    return layout.allocation_shape(on, port.global_shape)


@dataclass(frozen=True)
class OpInfo:
    """Describe an op that compiled code reports on: its number from 1, its name and its place.

    name: such as `all_reduce[tp] f32 64x96`. location: `file:line:col`. bytes: what the busiest rank receives. axes: of
    the group that a collective is among.
    """

    id: int
    name: str
    location: str
    bytes: int = 0
    axes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} at {self.location}"

    @property
    def tensor(self) -> str:
        """Return what it works on, on a rank: `f32 64x96`."""
        return self.name.partition(" ")[2]


@dataclass(frozen=True)
class CollectiveInfo:
    """Describe one collective of the program: its op, axes, and the bytes that the busiest rank receives."""

    op: str
    axes: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class ExchangeInfo:
    """Describe one exchange of two layouts: each rank makes its section of it (abi.SectionWords) for itself.

    axes: of the group, empty where no rank receives from another. source, target: the layouts, as text. shape: of the
    whole tensor. width: bytes of an element. staging: bytes that a rank has for messages.
    """

    axes: tuple[str, ...]
    source: str
    target: str
    shape: tuple[int, ...]
    width: int
    staging: int


@dataclass(frozen=True)
class Manifest:
    """Describe a bundle's objects: everything that the runtime must know to run them.

    groups:      the axes of each communicator; the index in this tuple is the group's number.
    exchanges:   the index in this tuple is the number of the slot.
    features:    of the processor, as Linux names them, that the objects may use.
    libraries:   those that the objects call ("openblas", "mpi", "m", "cuda", "nccl", "cublaslt").
    early_bytes: bytes at the end of the arena that hold an `AsyncArea` for each collective that is started before it
                 is waited for; they are zero at first.
    core_bytes:  memory that each further core of a rank needs.
    chip:        for target gpu: the chip that the device modules are for.
    kernels, gemms: what is launched, in the order of their slots (`device.GpuTable`).
    events, streams: the number it uses; streams are for computing.
    scratch_bytes: device memory of each compute stream in which kernels leave parts of results.
    graph:       whether a step may be captured in a graph, since the host waits for nothing in it.
    ends:        whether every call ends for sure, whatever the data: who makes a short one cannot leave it.
    certificate: what is proven of it.
    marks:       the kernels that a traced step tells of, by their number.
    """

    mesh: str
    engine: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    arena_bytes: int
    groups: tuple[tuple[str, ...], ...] = ()
    ops: tuple[OpInfo, ...] = ()
    collectives: tuple[CollectiveInfo, ...] = ()
    exchanges: tuple[ExchangeInfo, ...] = ()
    libraries: tuple[str, ...] = ()
    entry: str = "step"
    early_bytes: int = 0
    core_bytes: int = 0
    target: str = "cpu"
    chip: str = ""
    kernels: tuple[KernelInfo, ...] = ()
    gemms: tuple[GemmInfo, ...] = ()
    events: int = 0
    streams: int = 1
    scratch_bytes: int = 0
    graph: bool = False
    features: tuple[str, ...] = ()
    ends: bool = True
    certificate: Certificate = UNCHECKED
    marks: tuple[OpInfo, ...] = ()
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise MeshweaveError(
                f"bundle format {self.format}, this runtime reads format {FORMAT}: compile it again"
            )
        kinds: dict[tuple[object, ...], Port] = {}  # many are alike
        for port in (*self.inputs, *self.outputs):
            kinds.setdefault(_lies(port), port)
        for port in kinds.values():
            numpy_dtype(port.dtype)
            right = _allocation(port, self.mesh)
            if port.local_shape != right:
                raise MeshweaveError(
                    f"{port.name}: local shape {port.local_shape}, but {port.layout} of "
                    f"{port.global_shape} on ({self.mesh}) is {right} on a rank"
                )
        self._check_donations()
        if any(port.weight for port in self.inputs[: len(self.given)]):
            raise MeshweaveError("the inputs that the program has itself are not the last ones")

    def _check_donations(self) -> None:
        """Raise MeshweaveError unless outputs take buffers of different inputs like them."""
        taken = [port.takes for port in self.outputs]
        for port in self.outputs:
            fits = port.takes is None or (
                port.takes < len(self.inputs)
                and _lies(self.inputs[port.takes]) == _lies(port)
                and taken.count(port.takes) == 1
            )
            if not fits:
                raise MeshweaveError(
                    f"{port.name} takes the buffer of input {port.takes}: there is none like it that is free"
                )

    @cached_property
    def given(self) -> tuple[Port, ...]:
        """Return the inputs that a call gives: all but those that the program has itself, which are the last."""
        return tuple([port for port in self.inputs if not port.weight])

    @cached_property
    def held(self) -> tuple[Port, ...]:
        """Return the inputs that the program has itself."""
        return self.inputs[len(self.given) :]

    @cached_property
    def donated(self) -> dict[int, int]:
        """Return the inputs that a call writes, each with the output that takes its buffer."""
        return {p.takes: k for k, p in enumerate(self.outputs) if p.takes is not None}

    def op(self, op_id: int) -> OpInfo:
        """Return the op of that number; an unnamed one for numbers that the program does not list."""
        return op_of(self.ops, op_id)

    @cached_property
    def symbol(self) -> str:
        """Return the name of a constant that the code for this manifest defines: no other code is run with it."""
        return f"manifest_{hashlib.sha256(json.dumps(self, default=_values_of, sort_keys=True).encode()).hexdigest()}"

    @property
    def constant(self) -> str:
        """Return the op of the LLVM dialect that defines this constant."""
        return f"llvm.mlir.global external constant @{self.symbol}(0 : i8) : i8\n"

    def to_json(self) -> str:
        """Return canonical JSON: equal manifests give equal text."""
        return json.dumps(self, default=_values_of, indent=1, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Read what `to_json` wrote.

        Raises MeshweaveError naming the field that is missing, unknown or of the wrong type.
        """
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MeshweaveError(f"the manifest is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise MeshweaveError("the manifest is not a JSON object")
        if value.get("format") != FORMAT:  # checked first: another format may have other fields
            raise MeshweaveError(
                f"bundle format {value.get('format')!r:.40}, this runtime reads format {FORMAT}: "
                "compile it again"
            )
        return record(Manifest, value, "manifest")


@dataclass(frozen=True)
class Bundle:
    """Hold a compiled program, in memory or as one file: plain values that any machine can look at.

    manifest:  what the objects are: ports, collectives, bytes of the arena, libraries.
    objects:   ELF objects (resolved among themselves, then against libraries).
    devices:   for a gpu its device modules, PTX and machine code.
    constants: for a gpu, the bytes of one block of device memory.
    signature: of its digest, or empty.
    weights:   the values of inputs that the program has itself, each once; none where only the code is kept.
    origin:    compiles the program again and returns its report, `strip` without its hints; None where only the bundle
               is here. Not kept on disk.
    is_kept:   whether it was compiled by an earlier process, and read from the disk. Not kept there.

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
    signature: bytes = b""
    weights: tuple[Section, ...] = ()
    origin: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    is_kept: bool = field(default=False, compare=False, repr=False)

    def with_weights(self, weights: Mapping[str, Section]) -> Bundle:
        """Return the bundle with the values of the inputs that the program has itself, by their SHA-256.

        Raises MeshweaveError for one that is not among them, or of another size.
        """
        needed = {port.weight: port for port in self.manifest.held}
        for digest, port in needed.items():
            if digest not in weights or weights[digest].nbytes != port.global_nbytes:
                raise MeshweaveError(
                    f"{port.name}: the bundle has not the {port.global_nbytes} bytes of this weight: {digest}"
                )
        return replace(self, weights=tuple([weights[digest] for digest in sorted(needed)]))

    @property
    def code(self) -> Bundle:
        """Return the bundle without its weights."""
        return replace(self, weights=()) if self.weights else self

    def weight(self, port: Port) -> Section:
        """Return the value of a port that the program has itself. Raises MeshweaveError where it is not here."""
        found = next((each for each in self.weights if each.digest == port.weight), None)
        if found is None:
            raise MeshweaveError(f"{port.name}: the bundle has no weights, only code")
        return found

    def certified(self, certificate: Certificate) -> Bundle:
        """Return the bundle with a certificate, which its code was compiled without.

        The code defines the symbol of its manifest: in its tables of names the new one, as long as the old, takes its
        place.
        """
        manifest = replace(self.manifest, certificate=certificate)
        old, new = self.manifest.symbol.encode(), manifest.symbol.encode()
        objects = tuple([code.replace(old, new) for code in self.objects])
        return replace(self, manifest=manifest, objects=objects)

    @cached_property
    def _parts(self) -> dict[str, bytes]:
        """Return every member of the file that holds code or data, by name."""
        parts = {f"object{k}.o": code for k, code in enumerate(self.objects)}
        for k, device in enumerate(self.devices):
            parts[f"device{k}.ptx"] = device.ptx.encode()
            if device.cubin is not None:
                parts[f"device{k}.cubin"] = device.cubin
        return parts | ({"constants.bin": self.constants} if self.constants else {})

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256, as hex, of the manifest and all parts: equal programs have equal digests."""
        whole = hashlib.sha256(self.manifest.to_json().encode())
        for name, data in self._parts.items():
            whole.update(name.encode())
            whole.update(hashlib.sha256(data).digest())
        return whole.hexdigest()

    def to_bytes(self) -> bytes:
        """Return the bytes of the bundle's file; equal bundles give equal bytes."""
        out = io.BytesIO()
        self._write(out)
        return out.getvalue()

    def _write(self, out: IO[bytes]) -> None:
        members = {"manifest.json": self.manifest.to_json().encode(), **self._parts}
        members["digest"] = self.claim
        if self.signature:
            members["signature"] = self.signature
        pack_to(out, members, self.weights)

    @property
    def claim(self) -> bytes:
        """Return what a signature signs: a line with the digest."""
        return f"meshweave bundle {FORMAT} sha256 {self.digest}\n".encode()

    @staticmethod
    def from_bytes(data: bytes, name: str = "bundle") -> Bundle:
        """Read what `to_bytes` made. data: the bytes of the file.

        Raises MeshweaveError, prefixed with `name`, when it is truncated, foreign or damaged.
        """
        if SECTIONS.encode() in data:  # which lie in a file: of a pipe, they are put into one
            import tempfile  # imported here: it loads much

            with tempfile.TemporaryFile(prefix="meshweave-") as file:
                file.write(data)
                file.flush()
                return Bundle._of_file(os.fdopen(os.dup(file.fileno()), "rb"), name)
        return Bundle._of_file(io.BytesIO(data), name)

    @staticmethod
    def _of_file(file: IO[bytes], name: str) -> Bundle:
        nbytes = file.seek(0, os.SEEK_END)
        members, sections = unpack_from(file, nbytes, name, "bundle")
        try:
            bundle = _assemble(members)
            if not sections:
                file.close()
                return bundle
            if damaged := [digest for digest, s in sections.items() if not s.is_whole()]:
                raise MeshweaveError(f"the bundle is damaged: weight {damaged[0]} is another")
            if len(sections) != len({port.weight for port in bundle.manifest.held}):
                raise MeshweaveError("the bundle is damaged: it has weights that no input is")
            return bundle.with_weights(sections)
        except MeshweaveError as error:
            raise MeshweaveError(f"{name}: {error.message}") from None

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the bundle to the file `path`; a reader sees the old file or the whole new one.

        Raises MeshweaveError when it cannot be written.
        """
        try:
            with replacing(path) as file:
                self._write(file)
        except OSError as error:
            raise MeshweaveError(f"{path}: cannot write the bundle: {error.strerror}") from None

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Bundle:
        """Read the bundle in the file `path` and check its digest; its weights stay in the file.

        Raises MeshweaveError naming the file and what is wrong with it.
        """
        path = os.fspath(path)
        try:
            file = open(path, "rb")  # noqa: SIM115 - the weights keep it open
            if not file.seekable():
                return Bundle.from_bytes(file.read(), path)
        except OSError as error:
            raise MeshweaveError(f"{path}: cannot read the bundle: {error.strerror}") from None
        return Bundle._of_file(file, path)


def op_of(ops: Sequence[OpInfo], number: int) -> OpInfo:
    """Return the op of that number; an unnamed one for numbers that are not listed."""
    unnamed = OpInfo(number, f"op {number}", "an unknown place")
    return next((info for info in ops if info.id == number), unnamed)


def _values_of(record: Any) -> dict[str, Any]:
    """Return the values of a dataclass's fields, for JSON."""
    return {each.name: getattr(record, each.name) for each in fields(record)}


def _assemble(members: dict[str, bytes]) -> Bundle:
    """Check the members of a bundle's archive against each other, and make the bundle."""
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
    constants, signature = (members.get(name, b"") for name in ("constants.bin", "signature"))
    bundle = Bundle(manifest, objects, devices, constants, signature)
    if len(bundle._parts) + 2 + ("signature" in members) != len(members):
        raise MeshweaveError(
            f"the bundle is damaged: {len(members)} members, {len(bundle._parts)} parts in sequence"
        )
    words = members["digest"].decode(errors="replace").split()
    if not words or words[-1] != bundle.digest:
        raise MeshweaveError("the bundle is damaged: its contents do not match its digest")
    return bundle


def _numbered(members: dict[str, bytes], name: str) -> tuple[bytes, ...]:
    """Return the members called `name` with 0, 1, 2 and so on in it."""
    found: list[bytes] = []
    while (data := members.get(name.format(len(found)))) is not None:
        found.append(data)
    return tuple(found)


def slots(manifest: Manifest) -> Slots:
    """Return the table of slots of a program."""
    parts = (manifest.groups, manifest.inputs, manifest.outputs, manifest.exchanges)
    return Slots(*map(len, parts))
