"""Kernels by the emulator: which bytes they touch, and that a remembered effect is the same."""

from __future__ import annotations

import numpy as np
import pytest

from meshweave.errors import MeshweaveError
from meshweave.simulator.driver.emulated import EmulatedKernels
from meshweave.simulator.driver.kernels import entries
from meshweave.simulator.driver.memory import DeviceMemory

# y[2 i] = x[i] + 1 for i < n: reads dense bytes, writes every other word.
PTX = """
.version 7.0
.target sm_80
.address_size 64

.visible .entry spread(
  .param .u64 .ptr .global .align 4 spread_param_0,
  .param .u64 .ptr .global .align 4 spread_param_1,
  .param .u32 spread_param_2
)
{
  .reg .pred %p<2>;
  .reg .f32 %f<3>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<7>;
  ld.param.u64 %rd1, [spread_param_0];
  ld.param.u64 %rd2, [spread_param_1];
  ld.param.u32 %r1, [spread_param_2];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.s32 %p1, %r5, %r1;
  @%p1 bra DONE;
  mul.wide.s32 %rd3, %r5, 4;
  add.s64 %rd4, %rd1, %rd3;
  mul.wide.s32 %rd5, %r5, 8;
  add.s64 %rd6, %rd2, %rd5;
  ld.global.f32 %f1, [%rd4];
  add.f32 %f2, %f1, 0f3F800000;
  st.global.f32 [%rd6], %f2;
DONE:
  ret;
}
"""
COUNT = 50


def launched(kernels, memory, x, y, rank=0, ptx=PTX):
    values = [x.to_bytes(8, "little"), y.to_bytes(8, "little"), COUNT.to_bytes(4, "little")]
    module = kernels.module(ptx)
    return kernels.launch(module, "spread", (2, 1, 1), (32, 1, 1), 0, values, rank, memory)


def test_parameters_are_read_from_the_head():
    pointer, _, count = entries(PTX)["spread"]
    assert (pointer.is_pointer, pointer.nbytes) == (True, 8)
    assert (count.is_pointer, count.nbytes, count.text(b"\7\0\0\0")) == (False, 4, "7")


def test_touched_bytes_are_exact():
    memory, kernels = DeviceMemory(), EmulatedKernels()
    arena = memory.add(0, 4096)
    reads, writes = launched(kernels, memory, arena.address + 8, arena.address + 1024)
    assert (reads - arena.address).tolist() == [[8, 8 + 4 * COUNT]]
    expected = [[1024 + 8 * k, 1028 + 8 * k] for k in range(COUNT)]
    assert (writes - arena.address).tolist() == expected


def test_an_effect_is_remembered_by_what_was_read():
    memory, kernels = DeviceMemory(), EmulatedKernels()
    places = [memory.add(rank, 4096) for rank in range(2)]
    values = np.arange(COUNT, dtype=np.float32)
    seen = []
    for rank, shift in ((0, 0), (1, 64), (0, 0)):
        data = places[rank].data.view(np.float32)
        data[shift : shift + COUNT] = values
        at = places[rank].address + 4 * shift
        seen.append(launched(kernels, memory, at, at + 1024, rank))
        found = data[shift + 256 : shift + 256 + 2 * COUNT : 2]
        assert np.array_equal(found, values + 1)
        found[:] = 0
    assert kernels.emulated == 1
    assert (seen[1][1] - seen[0][1] == places[1].address + 256 - places[0].address).all()
    places[0].data.view(np.float32)[3] = 9  # what is read differs
    launched(kernels, memory, places[0].address, places[0].address + 1024)
    assert kernels.emulated == 2
    assert places[0].data.view(np.float32)[256 + 6] == 10


def test_atomics_read_and_write():
    """A launch that adds in place is known only where the same was there before."""
    ptx = PTX.replace("st.global.f32 [%rd6], %f2;", "red.global.add.f32 [%rd6], %f2;")
    memory, kernels = DeviceMemory(), EmulatedKernels()
    arena = memory.add(0, 4096)
    arena.data[:] = 0
    sums = arena.data[1024 : 1024 + 8 * COUNT].view(np.float32)[::2]
    for times, emulated in ((1, 1), (2, 2), (3, 3)):
        reads, writes = launched(kernels, memory, arena.address, arena.address + 1024, ptx=ptx)
        expected = [[1024 + 8 * k, 1028 + 8 * k] for k in range(COUNT)]
        assert (writes - arena.address).tolist() == expected
        assert (reads - arena.address).tolist() == [[0, 4 * COUNT], *expected]
        assert kernels.emulated == emulated and (sums == times).all()
    sums[:] = 0
    launched(kernels, memory, arena.address, arena.address + 1024, ptx=ptx)
    assert kernels.emulated == 3 and (sums == 1).all()


def test_buffers_that_lie_otherwise_are_no_known_launch():
    memory, kernels = DeviceMemory(), EmulatedKernels()
    arena = memory.add(0, 8192)
    arena.data[:] = 0
    launched(kernels, memory, arena.address, arena.address + 1024)
    launched(kernels, memory, arena.address, arena.address + 2048)
    assert kernels.emulated == 2
    assert arena.data.view(np.float32)[512] == 1


def test_allocations_may_lie_in_another_order():
    """What is remembered of several buffers is told apart by them, not by their addresses."""
    memory, kernels = DeviceMemory(), EmulatedKernels()
    both = PTX.replace("st.global.f32 [%rd6], %f2;", "st.global.f32 [%rd6], %f1;")
    both = both.replace("DONE:", "  st.global.f32 [%rd4], %f2;\nDONE:")  # y gets x, x gets x + 1
    low, high = sorted((memory.add(0, 4096) for _ in range(2)), key=lambda each: each.address)
    for x, y in ((low, high), (high, low)):
        x.data.view(np.float32)[:COUNT] = np.arange(COUNT)
        launched(kernels, memory, x.address, y.address, ptx=both)
        assert np.array_equal(y.data.view(np.float32)[: 2 * COUNT : 2], np.arange(COUNT))
        assert np.array_equal(x.data.view(np.float32)[:COUNT], np.arange(COUNT) + 1)
    assert kernels.emulated == 1


def test_out_of_bounds_is_told():
    memory = DeviceMemory()
    arena = memory.add(0, 256)
    with pytest.raises(MeshweaveError, match=r"spread.*out of bounds"):
        launched(EmulatedKernels(), memory, arena.address, arena.address + 128)


def test_device_code_without_a_kernel_is_refused():
    with pytest.raises(MeshweaveError, match="no kernel"):
        EmulatedKernels().module(".version 7.0")


def test_without_checks_nothing_is_remembered():
    memory, kernels = DeviceMemory(), EmulatedKernels(checks=False)
    arena = memory.add(0, 4096)
    arena.data[:] = 0
    for _ in range(2):
        reads, writes = launched(kernels, memory, arena.address, arena.address + 1024)
        assert len(reads) == len(writes) == 0
    assert kernels.emulated == 2
