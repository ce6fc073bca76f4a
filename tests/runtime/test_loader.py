"""The loader: what it loads runs, and what it cannot load is one clear error."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import replace

import pytest
from runtime.programs import program

from meshweave.bundle import Bundle
from meshweave.errors import MeshweaveError
from meshweave.lowering.cpu.collectives.objects import compile_text
from meshweave.runtime import engine
from meshweave.runtime.libraries import libraries
from meshweave.runtime.loader import load

CALLER = """module {
llvm.func @twice(f32) -> f32
llvm.func @expf(f32) -> f32
llvm.mlir.global internal constant @table(dense<[1.0, 2.0, 4.0]> : tensor<3xf32>) : !llvm.array<3 x f32>
llvm.mlir.global external @counter(0 : i32) : i32
llvm.func @run(%i: i64) -> f32 {
  %t = llvm.mlir.addressof @table : !llvm.ptr
  %p = llvm.getelementptr %t[%i] : (!llvm.ptr, i64) -> !llvm.ptr, f32
  %x = llvm.load %p : !llvm.ptr -> f32
  %c = llvm.mlir.addressof @counter : !llvm.ptr
  %n = llvm.load %c : !llvm.ptr -> i32
  %one = llvm.mlir.constant(1 : i32) : i32
  %m = llvm.add %n, %one : i32
  llvm.store %m, %c : i32, !llvm.ptr
  %y = llvm.call @twice(%x) : (f32) -> f32
  %z = llvm.call @expf(%y) : (f32) -> f32
  llvm.return %z : f32
}
llvm.func @count() -> i32 {
  %c = llvm.mlir.addressof @counter : !llvm.ptr
  %n = llvm.load %c : !llvm.ptr -> i32
  llvm.return %n : i32
}
}"""
TWICE = """module {
llvm.func @twice(%x: f32) -> f32 {
  %y = llvm.fadd %x, %x : f32
  llvm.return %y : f32
}
}"""


@pytest.fixture(scope="module")
def caller():
    return compile_text(CALLER, ["twice", "expf"], opt_level=0)


@pytest.fixture(scope="module")
def twice():
    return compile_text(TWICE, [])


def run_of(code):
    return ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64)(code.address("run"))


def test_objects_call_each_other_and_the_libraries(caller, twice):
    code = load([caller, twice], libraries=libraries(()))
    run = run_of(code)
    assert run(1) == pytest.approx(54.59815)
    assert run(2) == pytest.approx(2980.958)
    assert ctypes.CFUNCTYPE(ctypes.c_int)(code.address("count"))() == 2
    assert "count" in code
    with pytest.raises(MeshweaveError, match="defines no symbol step"):
        code.address("step")


def test_two_loads_share_nothing(caller, twice):
    first, second = (load([caller, twice], libraries=libraries(())) for _ in range(2))
    run_of(first)(0)
    assert ctypes.CFUNCTYPE(ctypes.c_int)(second.address("count"))() == 0


def test_an_external_is_called_at_its_address(caller):
    callback = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)(lambda x: x * 10)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    code = load([caller], {"twice": address, "expf": address})
    assert run_of(code)(1) == 200.0


def test_all_missing_symbols_are_listed(caller):
    with pytest.raises(MeshweaveError, match=r"no library here defines: twice, expf$"):
        load([caller])


def test_memory_is_never_writable_and_executable(caller, twice):
    code = load([caller, twice], libraries=libraries(()))
    address = code.address("run")
    with open("/proc/self/maps") as maps:
        for line in maps:
            low, high = (int(word, 16) for word in line.split()[0].split("-"))
            if low <= address < high:
                assert line.split()[1].startswith("r-x")
                return
    raise AssertionError("the code is not mapped")


def changed(data, place, code, value):
    damaged = bytearray(data)
    struct.pack_into(code, damaged, place, value)
    return bytes(damaged)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: b"", "object 0: not an ELF file"),
        (lambda d: b"#!/bin/sh", "object 0: not an ELF file"),
        (lambda d: d[:40], "object 0: damaged ELF file"),
        (lambda d: d[:-20], "object 0: (damaged|cut short)"),
        (lambda d: changed(d, 18, "<H", 183), r"not for x86-64 \(ELF class 2, machine 183\)"),
        (lambda d: changed(d, 4, "<B", 1), r"not for x86-64 \(ELF class 1, machine 62\)"),
        (lambda d: changed(d, 16, "<H", 3), r"not a relocatable object \(ELF type 3\)"),
    ],
)  # fmt: skip
def test_what_is_no_object_is_refused(twice, damage, message):
    with pytest.raises(MeshweaveError, match=message):
        load([damage(twice)])


def test_no_damage_crashes_the_loader(caller):
    """Loading, not running: digests keep damaged code from ever getting here."""
    for place in range(len(caller)):
        damaged = bytearray(caller)
        damaged[place] ^= 0xFF
        try:
            load([bytes(damaged)], {"twice": 4096, "expf": 4096})
        except MeshweaveError:
            continue


def test_unknown_libraries_are_named():
    with pytest.raises(MeshweaveError, match='needs a library "cudnn"; known: openblas'):
        libraries(("cudnn",))


@pytest.mark.parametrize("change", [
    lambda m: {"outputs": (*m.outputs, m.outputs[0])},
    lambda m: {"inputs": (*m.inputs, m.inputs[0])},
    lambda m: {"inputs": ()},
    lambda m: {"arena_bytes": m.arena_bytes + 64},
    lambda m: {"groups": (*m.groups, ("x",))},
])  # fmt: skip
def test_a_manifest_that_is_not_that_of_the_code_is_refused(change):
    """Its slots are elsewhere: running it would read and write wherever the table of another program points."""
    ports = [("f32", (4,))]
    made = program("x=1", "local", [], ports, ports, [""])
    wrong = replace(made, manifest=replace(made.manifest, **change(made.manifest)))
    assert Bundle.from_bytes(wrong.to_bytes()) == wrong  # its digest is right
    with pytest.raises(
        MeshweaveError, match="manifest is not the one that its code was compiled for"
    ):
        engine("local").load(wrong)
