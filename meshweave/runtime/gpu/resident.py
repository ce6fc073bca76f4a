"""Let Arrays lie on the devices of the ranks, so that calls copy nothing of them.

What lies there has a number that all ranks know. An Array that a program is given, and whose memory nobody else may
write, is copied to the devices once and lies there too from then on; what is donated gives its place to a result.
Results lie there alone, and come to this process when somebody looks at them. Arrays of NumPy are copied in every call.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from meshweave.bundle import Manifest, Port
from meshweave.errors import RankError
from meshweave.layout import Layout, Mesh
from meshweave.runtime.arrays.array import Array
from meshweave.runtime.arrays.kind import kind_of
from meshweave.runtime.gpu.call import RankCall
from meshweave.runtime.gpu.driver import acquire
from meshweave.runtime.gpu.rank import GpuRank
from meshweave.runtime.memory import Values


class Places(NamedTuple):
    """Say where the inputs and outputs of a call lie: under which number each, 0 for the call's own memory.

    fresh: the inputs that are copied there before the step.
    """

    inputs: list[int]
    fresh: list[int]
    outputs: list[int]


class RankDevices(Protocol):
    """Reach the devices of the ranks of a job."""

    def new_number(self, shards: DeviceShards) -> int:
        """Return a number that nothing has yet, for these shards."""

    def fetch(self, number: int, port: Port) -> tuple[Values, ...]:
        """Return new arrays with what lies under a number, of each rank. Raises RankError where it is lost."""

    def drop(self, number: int) -> None:
        """Let what lies under a number be overwritten."""


class DeviceShards:
    """Hold the shards of an Array that lie on the devices of the ranks. is_copy: they are in this process, too."""

    def __init__(self, devices: RankDevices, port: Port) -> None:
        """Take a number for the shards of a port, which a call is going to write."""
        self.devices, self._port, self.is_copy = devices, port, False
        self._home: tuple[Values, ...] | None = None
        self.number = devices.new_number(self)
        weakref.finalize(self, devices.drop, self.number).atexit = False

    def fetched(self) -> tuple[Values, ...]:
        """Do as AwayShards says."""
        return self._home or self.devices.fetch(self.number, self._port)

    def come_home(self) -> None:
        """Copy the shards here: the devices are about to be left."""
        self._home = self.fetched()


class PlacedCall:
    """Know where the inputs and outputs of a call lie, before it and after it."""

    def __init__(
        self, devices: RankDevices, manifest: Manifest, values: Sequence[object],
        arrays: Sequence[Array],
    ) -> None:  # fmt: skip
        """Find a place for each input and output. values: as they were given; arrays: as Arrays that lie right."""
        self._devices, self._manifest = devices, manifest
        self._held: dict[
            int, DeviceShards
        ] = {}  # by input, what lies on the devices or is going to
        self._moved: list[
            tuple[Array, DeviceShards]
        ] = []  # Arrays that lie there too, once the call has run
        self.fresh: dict[int, tuple[Values, ...]] = {}  # by input, what has to be copied there
        for index, array in enumerate(arrays):
            self._place(index, array, values[index] is array, index in manifest.donated)
        taken = [None if p.takes is None else self._held[p.takes] for p in manifest.outputs]
        self._results = [
            found or DeviceShards(devices, port) for found, port in zip(taken, manifest.outputs)
        ]

    def _place(self, index: int, array: Array, is_given: bool, is_donated: bool) -> None:
        found = self._on_devices(array)
        if found is None:
            self.fresh[index] = array.here
        if found is None and (is_donated or (is_given and array.is_alone)):
            found = DeviceShards(self._devices, self._manifest.inputs[index])
            if not is_donated:
                self._moved.append((array, found))
        if is_donated:
            array.given_away()
        if found is not None:
            found.is_copy = found.is_copy and not is_donated
            self._held[index] = found

    def _on_devices(self, array: Array) -> DeviceShards | None:
        found = array.away
        if not isinstance(found, DeviceShards) or found.devices is not self._devices:
            return None
        return found

    @property
    def places(self) -> Places:
        """Return the numbers, for the ranks."""
        inputs = [0] * len(self._manifest.inputs)
        for index, found in self._held.items():
            inputs[index] = found.number
        return Places(inputs, list(self.fresh), [found.number for found in self._results])

    def results(self) -> list[Array]:
        """Return the results of the call, which has run: they lie on the devices, as inputs do that stay there."""
        for array, shards in self._moved:
            array.also_in(shards)
            shards.is_copy = True
        mesh = Mesh.parse(self._manifest.mesh)
        return [
            Array.elsewhere(
                shards, kind_of(mesh, Layout.parse(port.layout), port.global_shape, port.dtype)
            )
            for shards, port in zip(self._results, self._manifest.outputs)
        ]


class DeviceBuffers:
    """Hold memory of one rank's device under numbers. What is dropped serves the next of its size."""

    def __init__(self, rank: GpuRank) -> None:
        """Hold nothing yet. rank: any program of the rank, which may be closed before."""
        self._driver, self._device = rank.driver, rank.device.number
        self._context = 0  # kept from the first array on
        self._there: dict[int, tuple[int, int]] = {}  # address and bytes
        self._free: dict[int, list[int]] = {}  # by bytes

    def address(self, number: int, nbytes: int) -> int:
        """Return where a number is, which gets memory the first time. Raises RankError without memory."""
        if not self._context:
            self._context = self._driver.handle("cuDevicePrimaryCtxRetain", self._device)
        if number not in self._there:
            free = self._free.get(nbytes)
            self._there[number] = (free.pop() if free else self._new(nbytes)), nbytes
        return self._there[number][0]

    def _new(self, nbytes: int) -> int:
        try:
            return acquire(self._driver, nbytes, "an array")
        except RankError:
            if not self.release():
                raise
        return acquire(self._driver, nbytes, "an array")

    def fetch(self, number: int, into: Values) -> None:
        """Copy what lies under a number to the host: as many bytes as `into` has. No step may be under way."""
        self._attach()
        if into.nbytes:
            at = into.ctypes.data
            self._driver("cuMemcpyDtoH_v2", at, self._there[number][0], into.nbytes)

    def _attach(self) -> None:
        """Have the calling thread work for this device."""
        self._driver("cuCtxSetCurrent", self._context)

    def drop(self, number: int) -> bool:
        """Let go of a number. Returns False where nothing is under it."""
        found = self._there.pop(number, None)
        if found is not None:
            self._free.setdefault(found[1], []).append(found[0])
        return found is not None

    def release(self) -> int:
        """Free the memory that nothing is in. Returns how many pieces that were."""
        free = [address for addresses in self._free.values() for address in addresses]
        self._free = {}
        if free:
            self._attach()
            self._driver("cuCtxSynchronize")  # steps that are under way may use it
        for address in free:
            self._driver.code("cuMemFree_v2", address)
        return len(free)

    def close(self) -> None:
        """Free everything."""
        for number in list(self._there):
            self.drop(number)
        self.release()
        if self._context:
            self._driver.code("cuDevicePrimaryCtxRelease_v2", self._device)
            self._context = 0


def run_placed(
    call: RankCall, buffers: DeviceBuffers, places: Places, given: Sequence[Values]
) -> None:
    """Enqueue a step on one rank, on what lies where `places` says. given: the inputs of which the fresh are copied.

    Raises RankError, which names what failed.
    """
    manifest = call.rank.manifest
    inputs = [
        buffers.address(number, port.nbytes) if number else call.input(index)
        for index, (number, port) in enumerate(zip(places.inputs, manifest.inputs, strict=True))
    ]
    outputs = [
        buffers.address(number, port.nbytes)
        for number, port in zip(places.outputs, manifest.outputs, strict=True)
    ]
    call.begin()
    for index in places.fresh:
        call.rank.copy_in(inputs[index], given[index])
    call.step(inputs, outputs)
