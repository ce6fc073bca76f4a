"""Kernels to PTX and machine code: every op on every chip, failures as errors, the cache."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest
from depth import some
from lowering.gpu.machine_code import opcodes, resources

from benchmarks.gpu.programs import Case, attention
from meshweave.device import CHIPS
from meshweave.errors import CompileError, MeshweaveError
from meshweave.lowering.gpu.kernel import DeviceKernel
from meshweave.lowering.gpu.toolchain import backend, literals, store
from meshweave.lowering.gpu.toolchain import versions as toolchain
from meshweave.lowering.gpu.toolchain.workers import Pool, Worker

pytest.importorskip("llvmlite")
pytest.importorskip("nvidia")

from meshweave.lowering.gpu.toolchain import ptx

FLOATS, INTEGERS = ("f64", "f32", "f16", "bf16"), ("i64", "i32", "i16", "i8")
BINARY = {
    "arith": {
        FLOATS: "addf subf mulf divf remf maximumf minimumf maxnumf minnumf",
        INTEGERS: "addi subi muli divsi divui remsi remui andi ori xori shli shrsi shrui"
        " maxsi minsi maxui minui",
    },
    "math": {FLOATS: "atan2 copysign powf", INTEGERS: ""},
}
UNARY = {
    FLOATS: "absf acos acosh asin asinh atan atanh cbrt ceil cos cosh erf erfc exp exp2 expm1 floor"
    " log log10 log1p log2 round roundeven rsqrt sin sinh sqrt tan tanh trunc",
    INTEGERS: "absi ctlz cttz ctpop",
}


def kernel(name: str, body: str, arguments: str = "%a: !llvm.ptr<1>") -> DeviceKernel:
    text = f"llvm.func @{name}({arguments}) attributes {{nvvm.kernel}} {{\n{body}\nllvm.return\n}}"
    return DeviceKernel(name, text, (1, 1, 1), (32, 1, 1), 0, ("ptr",), "plain", "deterministic")


def lines_of(element: str) -> list[str]:
    """One line for each op on an element type; its operands are %x and %y, its result is %rN."""
    lines = []
    for dialect, kinds in BINARY.items():
        for kind, names in kinds.items():
            lines += [f"{dialect}.{n} %x, %y : {element}" for n in names.split() if element in kind]
    for kind, names in UNARY.items():
        lines += [f"math.{n} %x : {element}" for n in names.split() if element in kind]
    if element in FLOATS:
        lines += [f"arith.negf %x : {element}", f"math.fma %x, %y, %x : {element}"]
    return lines


def table_kernel(element: str) -> DeviceKernel:
    """A kernel with every op on an element type; each result is stored at a place of its own."""
    body = [f"%x = llvm.load %a : !llvm.ptr<1> -> {element}"]
    body += [f"%q = llvm.getelementptr %a[1] : (!llvm.ptr<1>) -> !llvm.ptr<1>, {element}"]
    body += [f"%y = llvm.load %q : !llvm.ptr<1> -> {element}"]
    for n, line in enumerate(lines_of(element)):
        body += [f"%r{n} = {line}"]
        body += [
            f"%p{n} = llvm.getelementptr %a[{n + 2}] : (!llvm.ptr<1>) -> !llvm.ptr<1>, {element}"
        ]
        body += [f"llvm.store %r{n}, %p{n} : {element}, !llvm.ptr<1>"]
    return kernel(f"every_op_{element}", "\n".join(body))


def conversions() -> DeviceKernel:
    """Every conversion between two types, and comparisons and choices of each."""
    body = []
    for k, t in enumerate((*FLOATS, *INTEGERS, "i1")):
        stored = "i8" if t == "i1" else t
        body += [f"%p{k} = llvm.getelementptr %a[{k * 8}] : (!llvm.ptr<1>) -> !llvm.ptr<1>, i8"]
        body += [f"%l{k} = llvm.load volatile %p{k} : !llvm.ptr<1> -> {stored}"]
        body += [f"%x_{t} = arith.trunci %l{k} : i8 to i1" if t == "i1" else ""]
        body += [f"%x_{t} = llvm.bitcast %l{k} : {t} to {t}" if t != "i1" else ""]
    for a in FLOATS:
        for b in FLOATS:
            if int(a[-2:]) != int(b[-2:]):
                way = "extf" if int(a[-2:]) < int(b[-2:]) else "truncf"
                body += _kept(f"arith.{way} %x_{a} : {a} to {b}", b)
        for b in (*INTEGERS, "i1"):
            for way in ("fptosi", "fptoui"):
                body += _kept(f"arith.{way} %x_{a} : {a} to {b}", b)
            for way in ("sitofp", "uitofp"):
                body += _kept(f"arith.{way} %x_{b} : {b} to {a}", a)
        for predicate in ("oeq", "ogt", "ole", "one", "ord", "ueq", "ult", "une", "uno"):
            body += _kept(f"arith.cmpf {predicate}, %x_{a}, %x_{a} : {a}", "i1")
        body += _kept(f"arith.select %x_i1, %x_{a}, %x_{a} : {a}", a)
    for a in INTEGERS:
        for predicate in ("eq", "ne", "slt", "sge", "ult", "uge"):
            body += _kept(f"arith.cmpi {predicate}, %x_{a}, %l4 : {a}" if a == "i64" else "", "i1")
        for b in (*INTEGERS, "i1"):
            if int(b[1:]) < int(a[1:]):
                body += _kept(f"arith.trunci %x_{a} : {a} to {b}", b)
                body += _kept(f"arith.extsi %x_{b} : {b} to {a}", a)
                body += _kept(f"arith.extui %x_{b} : {b} to {a}", a)
        body += _kept(f"arith.index_cast %x_{a} : {a} to index", "index") if a != "i64" else []
    return kernel("conversions", "\n".join(body))


def _kept(line: str, type_: str) -> list[str]:
    """The line, and a volatile store of what it gives."""
    if not line:
        return []
    _kept.count = number = getattr(_kept, "count", 0) + 1
    value, lines = f"%k{number}", [f"%k{number} = {line}"]
    if type_ in ("i1", "index"):
        cast = (
            "arith.extui {} : i1 to i8" if type_ == "i1" else "arith.index_cast {} : index to i64"
        )
        lines.append(f"{value}w = {cast.format(value)}")
        value, type_ = f"{value}w", "i8" if type_ == "i1" else "i64"
    return [*lines, f"llvm.store volatile {value}, %a : {type_}, !llvm.ptr<1>"]


@pytest.mark.parametrize("chip", some(CHIPS, 16))
def test_every_op_compiles_on_every_chip(chip):
    kernels = [table_kernel(element) for element in (*FLOATS, *INTEGERS)] + [conversions()]
    modules = ptx.compile_kernels(kernels, chip)
    for made, of in zip(modules, kernels):
        assert f".target {chip}" in made.ptx and f".entry {of.entry}(" in made.ptx
        assert ".extern" not in made.ptx
        assert made.cubin is None or made.cubin[:4] == b"\x7fELF"
        assert list(resources(made)) == [of.entry]


def test_resources_and_opcodes_say_what_a_kernel_takes():
    text = """%c = llvm.mlir.constant(0.1 : f32) : f32
      %x = llvm.load %a : !llvm.ptr<1> -> f32
      %s = llvm.mlir.addressof @local : !llvm.ptr<3>
      llvm.store volatile %x, %s : f32, !llvm.ptr<3>
      %y = llvm.intr.fma(%x, %c, %x) : (f32, f32, f32) -> f32
      llvm.store %y, %a : f32, !llvm.ptr<1>"""
    made = kernel("small", text)
    shared = "llvm.mlir.global internal @local() {addr_space = 3 : i32} : !llvm.array<256 x i8>\n"
    made = DeviceKernel(**{**vars(made), "text": shared + made.text})
    (module,) = ptx.compile_kernels([made], "sm_90")
    found = resources(module)["small"]
    assert (found.static_shared, found.spill_bytes, found.stack) == (256, 0, 0)
    assert 4 <= found.registers <= 32
    counts = opcodes(module.cubin)
    assert (counts["FFMA"], counts["LDG"], counts["STG"], counts["STS"]) == (1, 1, 1, 1)


def test_kernels_of_equal_text_share_a_module():
    one, two = kernel("one", ""), kernel("two", "")
    made = ptx.compile_kernels([one, two, one], "sm_80")
    assert made[0] is made[2] and made[0] is not made[1]
    assert [".entry one(" in m.ptx for m in made] == [True, False, True]


BAD = {
    "a function that nobody has": (
        "llvm.call @nobody(%a) : (!llvm.ptr<1>) -> ()\nllvm.return\n}\n"
        "llvm.func @nobody(!llvm.ptr<1>)\nllvm.func @other() {",
        "no such function on the device: nobody",
    ),
    "printing": ('gpu.printf "x"', "no such function on the device: vprintf"),
    "a cast that stays": (
        "%x = llvm.load %a : !llvm.ptr<1> -> f32\n"
        "%y = builtin.unrealized_conversion_cast %x : f32 to i32\n"
        "llvm.store %y, %a : i32, !llvm.ptr<1>",
        "builtin.unrealized_conversion_cast: no lowering for this op on target gpu",
    ),
    "text that is not MLIR": ("%x = = 1", "expected"),
    "an op of no dialect": ('"nowhere.op"() : () -> ()', "unregistered dialect"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_compiled_is_an_error_that_names_the_kernel(what):
    body, message = BAD[what]
    with pytest.raises(CompileError) as raised:
        ptx.compile_kernels([kernel("wrong", body)], "sm_90")
    assert raised.value.message.startswith("kernel wrong for sm_90: ")
    assert message in raised.value.message and "\n" not in raised.value.message


POWER = """define ptx_kernel void @k(ptr addrspace(1) %a) {
  %x = load float, ptr addrspace(1) %a
  %y = call float @llvm.pow.f32(float %x, float %x)
  store float %y, ptr addrspace(1) %a
  ret void
}
declare float @llvm.pow.f32(float, float)"""
EMPTY = "define ptx_kernel void @k() {\n  ret void\n}"


MISCALLED = """define ptx_kernel void @k(ptr addrspace(1) %a) {
  %x = load float, ptr addrspace(1) %a
  %y = call float @__nv_powif(float %x, i64 2)
  store float %y, ptr addrspace(1) %a
  ret void
}
declare float @__nv_powif(float, i32)"""


def test_a_call_with_arguments_of_other_types_is_refused():
    assert "mul.rn.f32" in ptx.to_ptx(MISCALLED.replace("i64 2", "i32 2"), "sm_80")
    with pytest.raises(CompileError, match="with arguments of other types than it has"):
        ptx.to_ptx(MISCALLED, "sm_80")


def request(text: str) -> dict[str, str]:
    return {"text": text, "chip": "sm_80", "features": "+ptx80", "libdevice": ""}


def test_a_back_end_that_dies_is_an_error_and_the_next_one_works():
    pool = Pool()
    with pytest.raises(CompileError, match=r"the back end died: .*(LLVM ERROR|libcall)"):
        pool.ask(request(POWER))
    assert ".entry k(" in pool.ask(request(EMPTY))["ptx"]


def test_a_back_end_that_was_killed_between_two_questions_is_replaced():
    pool = Pool()
    pool.ask(request(EMPTY))
    (worker,) = pool._idle
    worker.process.kill()
    worker.process.wait()
    assert ".entry k(" in pool.ask(request(EMPTY))["ptx"]


def test_a_back_end_that_does_not_answer_is_given_up():
    worker = Worker()
    with pytest.raises(CompileError, match=r"did not answer in 0\.01 s"):
        worker.ask(request(EMPTY), 0.01)
    assert not worker.alive


def test_the_back_end_is_asked_where_the_process_has_many_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip("this process may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    try:
        worker = Worker()
        assert worker.process.stdout is not None and worker.process.stdout.fileno() > 1023
        assert ".entry k(" in worker.ask(request(EMPTY))["ptx"]
        worker.close()
    finally:
        for file in held:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_text_that_llvm_cannot_read_is_an_error():
    with pytest.raises(CompileError, match="expected"):
        ptx.to_ptx("define void @k( {", "sm_80")


def test_libdevice_is_linked_and_what_is_unused_goes():
    body = "%x = llvm.load %a : !llvm.ptr<1> -> f64\n%y = math.erf %x : f64\n"
    text = ptx.device_llvm(kernel("erf", body + "llvm.store %y, %a : f64, !llvm.ptr<1>").text)
    made = ptx.to_ptx(text, "sm_80")
    assert "__nv_erf" in text and ".func" not in made and made.count(".entry") == 1


def test_square_roots_and_quotients_are_rounded_correctly():
    body = """%x = llvm.load %a : !llvm.ptr<1> -> f32
      %y = math.sqrt %x : f32
      %z = arith.divf %y, %x : f32
      llvm.store %z, %a : f32, !llvm.ptr<1>"""
    made = ptx.to_ptx(ptx.device_llvm(kernel("k", body).text), "sm_90")
    assert "sqrt.rn.f32" in made and "div.rn.f32" in made


@pytest.fixture
def disk(tmp_path, monkeypatch):
    monkeypatch.setenv("MESHWEAVE_CACHE", str(tmp_path))
    store.forget()
    yield tmp_path / "kernels"
    store.forget()


def test_a_module_is_made_once_and_found_again_on_disk(disk, monkeypatch):
    (first,) = ptx.compile_kernels([kernel("kept", "")], "sm_80")
    store.forget()
    monkeypatch.setattr(ptx, "_made", lambda *_: pytest.fail("compiled again"))
    assert ptx.compile_kernels([kernel("kept", "")], "sm_80") == [first]
    assert len(list(disk.iterdir())) == 1


@pytest.mark.parametrize("damage", [b"", b"{}\n", b"nonsense", b'{"ptx": 1, "cubin": 0}\nx'])
def test_a_damaged_file_is_made_anew(disk, damage):
    (first,) = ptx.compile_kernels([kernel("kept", "")], "sm_80")
    (file,) = disk.iterdir()
    whole = file.read_bytes()
    for broken in (damage, whole[:-1], whole[:-1] + b"?"):
        file.write_bytes(broken)
        store.forget()
        assert ptx.compile_kernels([kernel("kept", "")], "sm_80") == [first]
        assert file.read_bytes() == whole


def test_only_so_many_files_stay(disk, monkeypatch):
    monkeypatch.setattr("meshweave.cache.FILES", 3)
    monkeypatch.setattr("meshweave.cache.EVERY", 1)
    for number in range(5):
        store.kept(f"text {number}", "sm_80", lambda: store.DeviceModule("sm_80", "ptx"))
    assert len(list(disk.iterdir())) == 3


WRITER = """
import sys
from meshweave.device import DeviceModule
from meshweave.lowering.gpu.toolchain import store
for round in range(20):
    for number in range(10):
        module = DeviceModule("sm_80", f"{number} " * 5000, bytes([number]) * 50000)
        store.forget()
        assert store.kept(f"text {number}", "sm_80", lambda: module) == module
"""


def test_several_processes_write_and_read_at_a_time(disk):
    environment = {**os.environ, "MESHWEAVE_CACHE": str(disk.parent)}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER], env=environment) for _ in range(2)]
    assert [writer.wait(timeout=500) for writer in writers] == [0, 0]
    assert len(list(disk.iterdir())) == 10


def test_without_the_toolchain_the_error_says_what_to_install(monkeypatch):
    import importlib.util

    toolchain._part.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MeshweaveError, match=r"llvmlite.*pip install 'meshweave\[gpu\]'"):
        ptx.compile_kernels([kernel("k", "")], "sm_80")
    with pytest.raises(CompileError, match=r"libdevice is not installed: pip install"):
        toolchain.libdevice()
    toolchain._part.cache_clear()


def test_without_ptxas_there_is_ptx_alone(monkeypatch):
    monkeypatch.setattr(toolchain, "program", lambda name: None)
    (module,) = ptx.compile_kernels([kernel("no_ptxas", "")], "sm_80")
    assert module.cubin is None and ".entry no_ptxas" in module.ptx
    store.forget()


def test_frames_of_any_length_go_through_pipes():
    text = EMPTY + "\n; " + "x" * 3_000_000
    assert ".entry k(" in Worker().ask(request(text))["ptx"]
    assert literals.readable(text) == text and backend.TRIPLE.startswith("nvptx64")


@pytest.mark.parametrize(
    ("chip", "width", "line"),
    [
        ("sm_75", 32, "chip sm_75 has no kernel of attention"),
        ("sm_86", 192, "chip sm_86: a block has 101376 bytes of shared memory, of 139264 for attention"),
    ],
)  # fmt: skip
def test_a_chip_without_room_for_attention_says_what_does(chip, width, line):
    case = Case("wide", attention, ((2, 64, width),) * 3)
    with pytest.raises(
        CompileError, match=rf'{line} without its scores: compile with kernels="-flash"'
    ):
        case.build("bf16", "emulate", chip)
    bundle = case.build("bf16", "emulate", chip, "-flash -cublaslt")
    assert bundle.manifest.kernels and "flash" not in {k.family for k in bundle.manifest.kernels}
