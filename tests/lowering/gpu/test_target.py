"""Whole programs compiled for gpus: the examples for every chip, bundles on disk, keys, errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import meshweave as command
from depth import sampled, some
from lowering.gpu.examples import EXAMPLES, MESH, NAMES, text_of

import meshweave
from meshweave import cache
from meshweave.api.program import build
from meshweave.bundle import Bundle, Manifest
from meshweave.device import CHIPS, GpuTable
from meshweave.errors import CompileError, MeshweaveError, UsageError
from meshweave.lowering.cpu.collectives.objects import compile_text
from meshweave.lowering.gpu.host.calls import SIGNATURES
from meshweave.processor import COMMON, OF_COMMON
from meshweave.runtime.gpu import interface
from meshweave.targets import Goal

pytest.importorskip("llvmlite", reason="the back end for gpus is not installed")

ADD = """
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %r = arith.addf %a, %a : tensor<4xf32>
  return %r : tensor<4xf32>
}
"""


def compiled(name: str, dtype: str = "f32", chip: str = "sm_90", **more: Any) -> Bundle:
    return build(text_of(name, dtype), name=name, mesh=MESH, target="gpu", chip=chip, **more)


@sampled(4)
@pytest.mark.parametrize("chip", some(sorted(CHIPS, key=lambda name: name != "sm_80"), len(CHIPS)))
@pytest.mark.parametrize("name", NAMES)
def test_the_examples_compile_for_every_chip(name: str, chip: str) -> None:
    for dtype in ("f32", "bf16"):
        bundle = compiled(name, dtype, chip)
        manifest = bundle.manifest
        assert (manifest.target, manifest.engine, manifest.chip) == ("gpu", "nccl", chip)
        assert manifest.graph, "nothing in it waits for the device"
        assert manifest.kernels or manifest.gemms
        for module in bundle.devices:
            assert f".target {chip}\n" in module.ptx
        for kernel in manifest.kernels:
            assert f".entry {kernel.entry}(" in bundle.devices[kernel.module].ptx
            assert kernel.location.startswith(name)
        ids = [op.id for op in manifest.ops]
        assert ids == list(range(1, len(ids) + 1))
        assert sum(op.name.startswith("cublaslt") for op in manifest.ops) >= len(manifest.gemms)


def test_what_a_program_needs_is_in_its_manifest() -> None:
    manifest = compiled("mlp").manifest
    assert manifest.libraries == ("cublaslt", "cuda", "m", "nccl")
    assert manifest.groups == (("tp",),) and manifest.events == 2
    assert [(g.m, g.n, g.k, g.dtype) for g in manifest.gemms] == [
        (32, 128, 128, "f32"), (32, 96, 128, "f32"),
    ]  # fmt: skip
    assert "nccl" not in compiled("attention").manifest.libraries
    assert compiled("attention").manifest.events == 0


def test_host_code_runs_on_other_processors_than_the_one_that_compiled_it() -> None:
    manifest = compiled(NAMES[0]).manifest
    assert set(manifest.features) == set(OF_COMMON)
    text = """llvm.func @f(%a: f64) -> f64 {
      %r = llvm.intr.fma(%a, %a, %a) : (f64, f64, f64) -> f64
      llvm.return %r : f64
    }"""
    called = {p: b"\0fma\0" in compile_text(text, ["fma"], processor=p) for p in ("x86-64", COMMON)}
    assert called == {"x86-64": True, COMMON: False}


def test_without_the_library_all_products_are_kernels() -> None:
    manifest = compiled("mlp", kernels="-cublaslt").manifest
    assert manifest.gemms == () and "cublaslt" not in manifest.libraries
    assert len(manifest.kernels) == 3  # the first one adds its bias, too


def test_compiling_twice_gives_the_same_bytes() -> None:
    assert compiled("block").to_bytes() == compiled("block").to_bytes()


def test_a_bundle_comes_back_from_its_file(tmp_path: Path) -> None:
    bundle = compiled("block")
    bundle.write(tmp_path / "p.mwb")
    again = Bundle.read(tmp_path / "p.mwb")
    assert again == bundle and again.digest == bundle.digest
    assert Manifest.from_json(bundle.manifest.to_json()) == bundle.manifest


def test_a_changed_part_is_noticed(tmp_path: Path) -> None:
    bundle = compiled("mlp")
    constants = replace(bundle, constants=bundle.constants + b"x")
    (first, *rest) = bundle.devices
    ptx = replace(bundle, devices=(replace(first, ptx=first.ptx + "//"), *rest))
    cubin = replace(bundle, devices=(replace(first, cubin=b"other"), *rest))
    missing = replace(bundle, devices=tuple(rest))
    digests = {b.digest for b in (bundle, constants, ptx, cubin, missing)}
    assert len(digests) == 5
    data = bytearray(bundle.to_bytes())
    for at in (len(data) // 5, len(data) // 2, len(data) - 200):
        flipped = bytearray(data)
        flipped[at] ^= 0xFF
        with pytest.raises(MeshweaveError, match=r"p\.mwb: .*(damaged|not a meshweave bundle)"):
            Bundle.from_bytes(bytes(flipped), "p.mwb")


@sampled(1)
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("kernels", 3, "manifest.kernels should be a list, is 3"),
        ("gemms", [{}], r"manifest.gemms\[0\] has no dtype"),
        ("graph", 1, "manifest.graph should be true or false, is 1"),
        ("events", -1, "manifest.events should be a count, is -1"),
        ("chip", None, "manifest.chip should be text, is None"),
    ],
)
def test_a_wrong_manifest_names_the_field(field: str, value: Any, message: str) -> None:
    text = json.dumps({**json.loads(compiled("mlp").manifest.to_json()), field: value})
    with pytest.raises(MeshweaveError, match=message):
        Manifest.from_json(text)
    kernel = json.loads(compiled("mlp").manifest.to_json())
    kernel["kernels"][0]["grid"] = [1, 2]
    with pytest.raises(MeshweaveError, match=r"kernels\[0\].grid should have 3 elements, has 2"):
        Manifest.from_json(json.dumps(kernel))


@sampled(1)
@pytest.mark.parametrize(
    "other", [{"chip": "sm_80"}, {"engine": "emulate"}, {"kernels": "-cublaslt"}, {"target": "cpu"}]
)
def test_the_cache_keeps_programs_of_other_goals_apart(
    disk_cache: Path, other: dict[str, Any]
) -> None:
    first = build(ADD, name="p", target="gpu")
    build(ADD, name="p", **{"target": "gpu", **other})
    assert len(list(disk_cache.glob("*.mwb"))) == 2
    assert build(ADD, name="p", target="gpu") == first
    assert len(list(disk_cache.glob("*.mwb"))) == 2


def test_the_cache_knows_the_device_toolchain(
    disk_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(ADD, name="p", target="gpu")
    monkeypatch.setattr(
        "meshweave.lowering.gpu.toolchain.versions.versions", lambda: ("llvmlite 99",)
    )
    build(ADD, name="p", target="gpu")
    assert len(list(disk_cache.glob("*.mwb"))) == 2
    assert cache.folder() == disk_cache


# Goals


def test_an_engine_has_its_target_and_a_target_its_first_engine() -> None:
    assert Goal.of() == Goal("cpu", "local", "") == Goal.of("cpu")
    assert Goal.of(engine="mpi") == Goal("cpu", "mpi", "")
    assert Goal.of("gpu") == Goal("gpu", "nccl", "sm_90")
    assert Goal.of(engine="emulate", chip="sm_80") == Goal("gpu", "emulate", "sm_80")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "gpu", "engine": "local"}, "engine local runs target cpu: target gpu needs"),
        ({"target": "cpu", "engine": "nccl"}, "target cpu needs engine local or mpi"),
        ({"target": "gpu", "chip": "sm_70"}, 'no chip "sm_70"; did you mean "sm_'),
        ({"chip": "sm_90"}, "chip sm_90: target cpu has no chips"),
        ({"target": "vax"}, 'no target "vax"; there are cpu, gpu'),
    ],
)
def test_goals_that_are_none(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        meshweave.compile(ADD, **options)


# What gpus do not have


@pytest.mark.parametrize(
    ("body", "type_", "message"),
    [
        ('%r = "dist.all_reduce"(%a) {axes = ["x"], kind = "sum"} : (T) -> T', "tensor<4xi16>",
         "dist.all_reduce: NCCL cannot reduce i16 on target gpu"),
        ('%r = "dist.all_reduce"(%a) {axes = ["x"], kind = "prod"} : (T) -> T',
         "tensor<4xcomplex<f32>>", "dist.all_reduce of complex numbers is not supported"),
        ('%r = "mw.fft"(%a) {kind = "fft", dim = 0 : i64, length = 4 : i64} : (T) -> T',
         "tensor<4xcomplex<f32>>", "mw.fft: target gpu has no transforms"),
    ],
)  # fmt: skip
def test_what_cannot_be_compiled_is_named_with_its_place(
    body: str, type_: str, message: str
) -> None:
    text = ADD.replace("%r = arith.addf %a, %a : tensor<4xf32>", body.replace("T", type_))
    text = text.replace("tensor<4xf32>", type_)
    with pytest.raises(CompileError, match=message) as error:
        build(text, name="p.mlir", target="gpu")
    assert error.value.location and error.value.location.startswith("p.mlir:")


def test_a_toolchain_that_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name == "llvmlite" else found(name, *a),
    )
    with pytest.raises(CompileError, match=r"llvmlite.*pip install"):
        build(ADD, name="p", target="gpu")


# Commands


def test_compile_writes_ptx_and_host_code(tmp_path: Path) -> None:
    program = EXAMPLES / "mlp" / "mlp.mlir"
    arguments = ("compile", program, "--target", "gpu", "--chip", "sm_80", "--mesh", "dp=2,tp=2")
    done = command(*arguments, "--ptx", tmp_path / "ptx", "-o", tmp_path / "p.mwb")
    assert done.status == 0, done
    bundle = Bundle.read(tmp_path / "p.mwb")
    written = {path.name: path.read_text() for path in (tmp_path / "ptx").iterdir()}
    assert "llvm.func @step(%ctx: !llvm.ptr) -> i32" in written.pop("host.mlir")
    assert sorted(written.values()) == sorted(module.ptx for module in bundle.devices)
    (other,) = [command(*arguments[:2], "--emit", "ptx")]
    assert other.status == 2 and "--emit ptx: target cpu has kernels" in other.err


def test_a_bundle_is_run_for_what_it_was_compiled_for(tmp_path: Path) -> None:
    compiled("mlp").write(tmp_path / "p.mwb")
    for options, says in (
        (("--target", "cpu"), "is compiled for target gpu"),
        (("--chip", "sm_80"), "is compiled for sm_90"),
        (("--engine", "mpi"), "is compiled for engine nccl"),
    ):
        done = command("run", tmp_path / "p.mwb", *options)
        assert done.status == 2 and says in done.err, done
    done = command("run", tmp_path / "p.mwb", "--engine", "emulate")
    assert done.status == 0 and "emulate" in done.out, "nccl and emulate run the same code"
    done = command("run", tmp_path / "p.mwb", "--engine", "emulate", "--graph")
    assert done.status == 2 and "--graph goes with --engine nccl, not emulate" in done.err


# Agreements with the runtime


def test_host_code_and_runtime_agree_on_signatures() -> None:
    kinds = {
        "c_void_p": "!llvm.ptr",
        "c_int": "i32",
        "c_uint": "i32",
        "c_long": "i64",
        "c_ulong": "i64",
    }
    for name, types in SIGNATURES.items():
        known = interface.SIGNATURES[name]
        assert tuple(kinds[t.__name__] for t in known.arguments) == types, name
        assert name in interface.HOST


def test_the_table_has_a_place_for_everything() -> None:
    table = GpuTable(3, 2, 4, 2)
    places = [table.function(k) for k in range(3)] + [table.gemm(k) for k in range(2)]
    places += [table.event(k) for k in range(4)] + [table.stream(k) for k in range(2)]
    places += [table.workspace(k) for k in range(2)]
    fixed = {table.COMPUTE, table.COMM, table.CONSTANTS, table.LT, table.WORKSPACE}
    fixed |= {table.WORKSPACE_BYTES, table.HOST}
    assert len(set(places) | fixed) == len(places) + 7
    assert max(places) == table.count - 1


# Hints

STREAM = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %r = "hint.region"() ({
    %s = arith.addf %a, %a : tensor<4xf32>
    "hint.yield"(%s) : (tensor<4xf32>) -> ()
  }) {hints = {stream = 1, kernels = "-codegen"}} : () -> tensor<4xf32>
  return %r : tensor<4xf32>
}
"""


def test_the_ledger_says_what_gpus_obey(tmp_path: Path) -> None:
    path, report = tmp_path / "p.mlir", tmp_path / "r.json"
    path.write_text(STREAM)
    options = ("--target", "gpu", "--report-json", report, "-o", tmp_path / "p.mwb")
    done = command("compile", path, *options)
    assert done.status == 0, done
    found = json.loads(report.read_text())
    rows = {row["hint"].split("=")[0]: row for row in found["ledger"]}
    assert rows["stream"]["outcome"] == "honoured"
    assert rows["stream"]["reason"] == "launched on compute stream 1"
    assert rows["kernels"]["outcome"] == "honoured"
    (kernel,) = found["kernels"]
    assert kernel["kernel"] == "reference" and "blas" not in kernel["why"]


def test_kernels_of_the_cpu_are_not_chosen_for_gpus(tmp_path: Path) -> None:
    program, report, chosen = tmp_path / "p.mlir", tmp_path / "r.json", {}
    program.write_text(text_of("attention", "f32").replace("128", "1024"))
    for target in ("cpu", "gpu"):
        options = ("--target", target, "--report-json", report, "-o", tmp_path / "p.mwb")
        done = command("compile", program, "--mesh", MESH, *options)
        assert done.status == 0, done
        chosen[target] = {row["kernel"] for row in json.loads(report.read_text())["kernels"]}
    assert "flash" in chosen["cpu"] and "cublaslt" in chosen["gpu"]
    assert not chosen["gpu"] & {"flash", "blas"}
