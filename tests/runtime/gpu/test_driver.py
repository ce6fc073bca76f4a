"""What is said where a GPU, its driver, a library or a version is not what a program needs."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack

import pytest
from runtime.gpu.numpy_kernels import PTX, NumpyKernels

from meshweave.device import DeviceModule
from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime.gpu.driver import (
    Device,
    Driver,
    check_chip,
    kernel_function,
    load_module,
    open_device,
)
from meshweave.runtime.gpu.groups import nccl_version
from meshweave.runtime.gpu.interface import REFUSED_IMAGES, SIGNATURES
from meshweave.runtime.gpu.libraries import FILES, SystemLibrary, in_wheels
from meshweave.simulator.driver.move import move
from meshweave.simulator.driver.recorder import InjectedFailure, Recorder
from meshweave.simulator.driver.replay import Scheduler


def driver(devices=2, rank=0, **options):
    return Driver(Recorder(devices, NumpyKernels(), Scheduler(move), **options), rank)


def test_the_device_of_a_rank():
    found = open_device(driver(), 1)
    assert (found.number, found.name, found.capability) == (1, "recorded device 1", (9, 0))
    assert found.driver_text == "13.0"
    assert open_device(driver(), 3, share=True).number == 1
    assert found.shared == 232_448 and found.uuid != open_device(driver(), 0).uuid


def test_a_rank_that_sees_one_gpu_takes_it():
    assert open_device(driver(1), 3).number == 0


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"devices": 0}, "engine nccl needs a GPU: the CUDA driver finds none on this host"),
        ({"driver_version": 11080}, "the CUDA driver is of version 11.8: 12.0 or newer is needed"),
    ],
)
def test_a_machine_that_will_not_do(options, line):
    with pytest.raises(MeshweaveError, match=line):
        open_device(driver(**options), 0)


def test_too_few_gpus():
    line = r"^rank 5 is number 2 on this host, which has 2 GPUs: use more hosts or a smaller mesh$"
    with pytest.raises(MeshweaveError, match=line):
        open_device(driver(rank=5), 2)


@pytest.mark.parametrize(
    ("chip", "capability", "fits"),
    [
        ("sm_80", (8, 0), True), ("sm_80", (9, 0), True), ("sm_90", (9, 0), True),
        ("sm_90a", (9, 0), True), ("sm_90", (8, 9), False), ("sm_90a", (10, 0), False),
        ("sm_90", (10, 0), True),
    ],
)  # fmt: skip
def test_chips_and_gpus(chip, capability, fits):
    device = Device(0, "G", capability, 13000)
    if fits:
        check_chip(chip, device)
        return
    major, minor = capability
    line = f"the program is for {chip}, G is sm_{major}{minor}: compile it with --chip sm_{major}"
    with pytest.raises(MeshweaveError, match=line):
        check_chip(chip, device)


DEVICE = Device(0, "G", (9, 0), 12040)


@pytest.mark.parametrize("code", REFUSED_IMAGES)
def test_machine_code_that_is_refused_gives_way_to_ptx(code):
    made = driver(failures=[InjectedFailure(0, 1, code)])
    with ExitStack() as held:
        assert load_module(made, held, DeviceModule("sm_80", PTX, b"\x7fELF"), DEVICE)
        assert made.library.calls[0] == ["cuModuleLoadDataEx"] * 2
    assert made.library.live() == []


@pytest.mark.parametrize("code", [1, 2, 201, 719, 999])
def test_a_driver_that_fails_is_not_asked_again(code):
    made = driver(failures=[InjectedFailure(0, 1, code)])
    with ExitStack() as held, pytest.raises(RankError, match=rf"cuModuleLoadDataEx .*\({code}\)$"):
        load_module(made, held, DeviceModule("sm_80", PTX, b"\x7fELF"), DEVICE)
    assert made.library.calls[0] == ["cuModuleLoadDataEx"]


def test_a_driver_too_old_for_the_ptx_is_told():
    made = driver(failures=[InjectedFailure(0, 1, 222)])
    ptx = PTX.replace(".version 8.0", ".version 8.7")
    line = r"the driver \(CUDA 12.4\) does not read PTX 8.7: that of CUDA 12.8 does, or compile"
    with ExitStack() as held, pytest.raises(MeshweaveError, match=line):
        load_module(made, held, DeviceModule("sm_80", ptx), DEVICE)


def test_damaged_device_code_is_told():
    made = driver(failures=[InjectedFailure(0, 1, 200), InjectedFailure(0, 2, 218)])
    line = (
        r"^rank 0: cuModuleLoadDataEx failed: CUDA_ERROR_INVALID_PTX \(218\); its machine code: "
        r"CUDA_ERROR_INVALID_IMAGE \(200\)$"
    )
    with ExitStack() as held, pytest.raises(RankError, match=line):
        load_module(made, held, DeviceModule("sm_80", PTX, b"\x7fELF"), DEVICE)


def test_a_kernel_that_needs_more_shared_memory_than_a_block_has():
    made = driver(shared_bytes=101_376, capability=(8, 6))
    device = open_device(made, 0)
    with ExitStack() as held:
        module = load_module(made, held, DeviceModule("sm_80", PTX), device)
        assert kernel_function(made, module, "twice", 101_376, device)
        line = (
            r"^kernel twice needs 104448 bytes of shared memory, a block of recorded device 0 has 101376 at most: "
            r"compile the program with --chip sm_86$"
        )
        with pytest.raises(MeshweaveError, match=line):
            kernel_function(made, module, "twice", 104_448, device)


def test_an_nccl_too_old_is_told():
    assert nccl_version(driver()) == 22809
    line = "NCCL is of version 2.12.7, 2.18.0 or newer is needed: pip install -U nvidia-nccl-cu13"
    with pytest.raises(MeshweaveError, match=line):
        nccl_version(driver(nccl_version=21207))


@pytest.mark.parametrize("library", FILES)
def test_a_library_that_is_missing_says_what_to_install(library):
    tried = []

    def opener(name):
        tried.append(name)
        raise OSError

    name = next(n for n, s in SIGNATURES.items() if s.library == library)
    with pytest.raises(MeshweaveError) as caught:
        SystemLibrary(opener).functions[name]
    assert str(caught.value) == FILES[library][1] and tried[0] == FILES[library][0][0]


def test_wheels_are_searched(tmp_path, monkeypatch):
    place = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert in_wheels(("libnccl.so.2",))[0] == str(place)

    def opener(name):
        if name != str(place):
            raise OSError
        return "opened"

    assert SystemLibrary(opener).opened("nccl") == "opened"


def test_functions_of_a_library_are_made_once_with_their_types():
    library = SystemLibrary(lambda name: ctypes.CDLL(None))
    with pytest.raises(MeshweaveError, match="the nccl library on this host has no ncclSend"):
        library.functions["ncclSend"]
    assert set(library.functions) == set(SIGNATURES) and len(library.functions) == len(SIGNATURES)


def test_a_function_of_a_real_library_is_called(monkeypatch):
    """`getpid` stands for a function of the table: resolved, typed, called, its address known."""
    from meshweave.runtime.gpu import libraries
    from meshweave.runtime.gpu.interface import Signature

    table = {"getpid": Signature("cuda", (), ctypes.c_int32)}
    monkeypatch.setattr(libraries, "SIGNATURES", table)
    library = SystemLibrary(lambda name: ctypes.CDLL(None))
    import os

    assert library.functions["getpid"]() == os.getpid()
    function = ctypes.CDLL(None).getpid
    assert library.address("getpid") == ctypes.cast(function, ctypes.c_void_p).value
