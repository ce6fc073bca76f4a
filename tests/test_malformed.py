"""Whatever is wrong with a program, both commands end within seconds, with one clear line and status 1: no traceback, no
crash, no hang.

Most cases run in a fork of this process; a sample through the real commands. Inputs that do not fit are in
tests/tools/test_run.py, StableHLO that cannot be lowered in tests/frontends/test_malformed.py, random damage in tests/fuzz.
"""

# ruff: noqa: E501 (lines of MLIR text)

import os
import re
import time
from pathlib import Path

import pytest
from commands import ROOT, Outcome, meshweave, meshweave_opt, real
from depth import sampled, thinned

from meshweave.runtime import limits

EXAMPLES = ROOT / "examples"
SECONDS = 60
"""In which every command must have ended; most take 0.2 s."""
PIPELINE = ("-p", "dist-pipeline")
F = "tensor<4xf32>"


def refused(outcome: Outcome, says: str) -> None:
    """One line that matches, status 1."""
    assert outcome.status == 1, outcome
    assert re.search(says, outcome.err), outcome.err
    assert outcome.err.count("\n") == 1 and outcome.err.endswith("\n"), outcome.err
    assert "Traceback" not in outcome.err and "crashed" not in outcome.err, outcome.err
    assert outcome.out == ""


def settled(outcome: Outcome) -> None:
    """It worked, or it was refused in one line."""
    if outcome.status != 0:
        refused(outcome, "error: .")


def laid_out(mesh: str, layout: str, shape: str = "8x6", out: str = "") -> str:
    """A program of one argument in `layout` and one result in `out`."""
    type_ = f"tensor<{shape}xf32>" if shape else "tensor<f32>"
    out = out or re.sub(r"[^,\[\]]+", "_", layout.partition("]")[0] + "]")
    return f"""module {{
  "dist.mesh"() {{sym_name = "mesh", axes = "{mesh}"}} : () -> ()
  func.func @main(%a: {type_} {{dist.layout = #dist.layout<"{layout}">}})
      -> ({type_} {{dist.layout = #dist.layout<"{out}">}}) {{
    %0 = arith.addf %a, %a : {type_}
    return %0 : {type_}
  }}
}}
"""


def main(body: str, more: str = "", before: str = "func.func @main", type_: str = F) -> str:
    """A program whose @main has this body, with `more` behind it."""
    return f"module {{\n  {before}(%a: {type_}) -> {type_} {{\n    {body}\n    return %0 : {type_}\n  }}\n{more}}}\n"


def identity(type_: str) -> str:
    return f"func.func @main(%a: {type_}) -> {type_} {{\n  return %a : {type_}\n}}\n"


CALL = f"%0 = call @{{}}(%a) : ({F}) -> {F}"


def private(name: str, callee: str) -> str:
    """A private function that calls another."""
    call = CALL.format(callee)
    return (
        f"  func.func private @{name}(%a: {F}) -> {F} {{\n    {call}\n    return %0 : {F}\n  }}\n"
    )


HUGE = """%e = tensor.empty() : tensor<4xNxf32>
    %b = linalg.broadcast ins(%a : tensor<4xf32>) outs(%e : tensor<4xNxf32>) dimensions = [1, 2]
    %0 = linalg.reduce {arith.maximumf} ins(%b : tensor<4xNxf32>) outs(%a : tensor<4xf32>) dimensions = [1, 2]"""

# Text, and what the line of both commands says. The file is called p.mlir.
BOTH = {
    "layout of another ndim": (laid_out("x=2, y=2", "[x, y, _]"), r"p.mlir:3:3: .*layout \[x, y, _\] has 3 dims, .* 8x6 has 2"),
    "unknown axis": (laid_out("x=2, y=2", "[x, z]"), r'p.mlir:3:3: .*no axis "z" in mesh \(x=2, y=2\)'),
    "axis used twice": (laid_out("x=2, y=2", "[x, x]"), "p.mlir:3:3: .*axis x is used twice"),
    "layout cut short": (laid_out("x=2", "[x, "), "p.mlir:3:3: .*expected a factor"),
    "no layout": (laid_out("x=2", ""), "p.mlir:3:3: .*expected"),
    "mesh axis twice": (laid_out("x=2, x=2", "[x, _]"), "p.mlir:2:3: .*axis x only once"),
    "mesh of size 0": (laid_out("x=0", "[x, _]"), "p.mlir:2:3: .*axis x=0: a size is at least 1"),
    "mesh of negative size": (laid_out("x=-2", "[x, _]"), "p.mlir:2:3: .*axis x=-2: a size"),
    "mesh without size": (laid_out("x", "[x, _]"), 'p.mlir:2:3: .*"x" is not NAME=SIZE'),
    "mesh of symbols": (laid_out("x=N", "[x, _]"), r"p.mlir:2:3: .*mesh \(x=N\).* symbolic sizes"),
    "mesh of 10^12 ranks": (laid_out("x=1000000, y=1000000", "[x, _]"), "has 1000000000000 ranks, at most"),
    "mesh of 10^22 ranks": (laid_out("x=9999999999999999999999", "[x, _]"), "p.mlir:2:3: .*a size"),
    "two meshes": (laid_out("x=2", "[x, _]").replace("  func", '  "dist.mesh"() {sym_name = "m", axes = "x=2"} : () -> ()\n  func', 1), "p.mlir:.*one mesh per module"),
    "number of dim too large": (laid_out("x=2", "[x, _]", "99999999999999999999x2"), "p.mlir:3:30: .*invalid dimension"),
    "more bytes than can be counted": (laid_out("x=2", "[x]", "9223372036854775807"), "p.mlir:.*9223372036854775807"),
    "product beyond 64 bits": (laid_out("x=2", "[x, _]", "4294967296x4294967296"), "p.mlir:.*4294967296x4294967296"),
    "dynamic dim with a layout": (laid_out("x=2", "[x, _]", "?x2"), r"p.mlir:3:\d+: .*(dim 0 of argument 0 is open: a bound is right, --dim n=4096|static shape)"),
    "binary": (bytes(range(256)) * 4, "p.mlir: .*is not text: byte 0x80 at offset 128"),
    "a zero byte": (b"module {\0}", "p.mlir: .*is not text: byte 0x00 at offset 8"),
    "UTF-16": ("module {}".encode("utf-16"), "p.mlir: .*is not text: byte 0xff at offset 0"),
    "bytecode": (b"ML\xefR\x0dMLIR23", "p.mlir: .*is MLIR bytecode"),
    "Python": ("import meshweave\n", "p.mlir:1:1: .*'import' is unknown"),
    "JSON": ('{"a": [1]}', "p.mlir:1:1: "),
    "unknown op": (main(f"%0 = arith.frob %a : {F}"), "p.mlir:3:10: .*custom op 'arith.frob' is unknown"),
    "unknown dist op": (main(f'%0 = "dist.frob"(%a) : ({F}) -> {F}'), "p.mlir:3:10: .*'dist.frob'"),
    "unknown dialect": (main(f"%0 = foo.bar %a : {F}"), "p.mlir:3:10: .*foo"),
    "unknown dialect, generic": (main(f'%0 = "foo.bar"(%a) : ({F}) -> {F}'), "p.mlir:3:1"),
    "custom syntax of dist": (main(f'%0 = dist.all_reduce %a {{axes = ["x"]}} : {F}'), r'p.mlir:3:10: .*generic form, "dist.all_reduce"\(\.\.\.\)'),
    "unknown callee": (main(CALL.format("g")), "p.mlir:3:10: .*'g' does not reference"),
    "symbol twice": (main(f"%0 = math.exp %a : {F}", "  func.func private @main()\n"), "p.mlir:6:3: .*redefinition of symbol named 'main'"),
    "public without body": (f"module {{\n  func.func @main({F}) -> {F}\n}}\n", "p.mlir:2:3: .*public visibility"),
    "types that do not agree": (main("%0 = arith.addf %a, %a : tensor<5xf32>"), "p.mlir:3:.*different type"),
    "slice out of bounds": (main(f"%0 = tensor.extract_slice %a[2] [4] [1] : {F} to {F}"), "p.mlir:3:10: .*out-of-bounds"),
    "value not defined": (main(f"%0 = arith.addf %a, %q : {F}"), "p.mlir:3:.*undeclared"),
    "nested too deep": ("module attributes {a = " + "[" * 100000 + "]" * 100000 + "} {}", "p.mlir:1:279: .*nested deeper than 256"),
    "regions nested too deep": (main('"scf.execute_region"() ({\n' * 400), r"p.mlir:\d+:\d+: .*nested deeper than 256"),
    "element type of none": (identity("tensor<4xnone>"), "p.mlir:1:.*invalid tensor element type"),
}  # fmt: skip

# These are MLIR, but no programs that can be run.
RUN = {
    "nothing": ("", "p.mlir: the program is empty"),
    "white space": (" \n\n", "p.mlir: the program is empty"),
    "a comment": ("// nothing\n", "p.mlir: the program has no function @main"),
    "an empty module": ("module {}\n", "p.mlir:1:1: the program has no function @main$"),
    "no main": (main(f"%0 = math.exp %a : {F}", before="func.func @f"), "p.mlir:1:1: .*no function @main; it has @f"),
    "several public functions, none main": (identity(F).replace("main", "f") + identity(F).replace("main", "g"), "no function @main; it has @f, @g"),
    "main in a module inside": (f"module {{\n{main(f'%0 = math.exp %a : {F}')}}}\n", "no function @main"),
    "main is private": (main(f"%0 = math.exp %a : {F}", before="func.func private @main"), "p.mlir:2:3: @main is private"),
    "main has no body": (f"module {{\n  func.func private @main({F}) -> {F}\n}}\n", "p.mlir:2:3: @main has no body"),
    "callee without body": (main(CALL.format("g"), f"  func.func private @g({F}) -> {F}\n"), "p.mlir:3:10: call of @g"),
    "main calls itself": (main(CALL.format("main")), "p.mlir:3:10: .*@main.* calls itself"),
    "functions that call each other": (main(CALL.format("g"), private("g", "h") + private("h", "g")), r"p.mlir:\d+:10: .* calls itself"),
    "dynamic shape": (identity("tensor<?xf32>"), r"p.mlir:1:17: dim 0 of argument 0 is open: a bound is right, --dim n=4096"),
    "no rank": (identity("tensor<*xf32>"), r"p.mlir:1:17: argument 0 of @main is tensor<\*xf32>"),
    "a number": (identity("f32"), "argument 0 of @main is f32: only tensors"),
    "a memref": (identity("memref<4xf32>"), "argument 0 of @main is memref<4xf32>: only tensors"),
    "a vector": (identity("vector<4xf32>"), "argument 0 of @main is vector<4xf32>: only tensors"),
    "a tuple": (identity(f"tuple<{F}>"), "argument 0 of @main is tuple"),
    "a result that is no tensor": (f"func.func @main(%a: {F}) -> index {{\n  %c = arith.constant 0 : index\n  return %c : index\n}}\n", "p.mlir:1:1: result 0 of @main is index"),
    "no buffers of i3": (identity("tensor<4xi3>"), "p.mlir:1:17: argument 0 of @main is tensor<4xi3>: no buffers of i3"),
    "no buffers of f8": (identity("tensor<4xf8E3M4>"), "no buffers of f8E3M4"),
    "no buffers of complex": (identity("tensor<4xcomplex<f16>>"), "no buffers of complex<f16>"),
    "an encoding": (identity('tensor<4xf32, "csr">'), "a tensor must have no encoding"),
    "2000 dims": (identity(f"tensor<{'1x' * 2000}f32>"), "argument 0 of @main has 2000 dims, at most 32 work"),
    "blocks": (main(f"cf.br ^b(%a : {F})\n  ^b(%0: {F}):"), "p.mlir:2:3: .*one block"),
    "a layout without a mesh": (laid_out("", "[x, _]").replace('"dist.mesh"() {sym_name = "mesh", axes = ""} : () -> ()', ""), r'p.mlir:3:3: .*no axis "x"'),
    "10^6 ranks": (laid_out("x=1000, y=1000", "[x, _]"), "has 1000000 ranks, engine local runs at most 1024"),
    "a value beyond 64 bits inside": (main(HUGE.replace("N", "4294967296x4294967296")), r"p.mlir:3:10: tensor.empty: .* more elements than any machine"),
    "more memory than there is": (laid_out("x=2", "[x, _]", "1000000x1000000"), r"the program needs .* TiB .*2 ranks of .* are free"),
}  # fmt: skip


def write(folder: Path, text: "str | bytes") -> Path:
    file = folder / "p.mlir"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


@sampled(4)
@pytest.mark.parametrize("name", BOTH)
def test_both_commands_refuse(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    text, says = BOTH[name]
    write(tmp_path, text)
    refused(meshweave("run", "p.mlir"), says)
    refused(meshweave_opt("p.mlir", *PIPELINE), says)


@sampled(4)
@pytest.mark.parametrize("name", RUN)
def test_run_refuses_and_opt_settles(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    text, says = RUN[name]
    write(tmp_path, text)
    refused(meshweave("run", "p.mlir"), says)
    if name in ("callee without body", "main calls itself", "blocks", "10^6 ranks", "2000 dims"):
        settled(meshweave_opt("p.mlir", *PIPELINE))


@sampled(4)
@pytest.mark.parametrize(
    ("mesh", "layout", "shape"),
    [
        ("x=3, y=4", "[x, y]", "7x5"),
        ("x=4, y=2", "[x, y]", "1x1"),
        ("x=4, y=2", "[x*y, _]", "3x5"),
        ("x=4, y=2", "[x, y]", "0x3"),
        ("x=4, y=2", "[_, _] +sum(x)", "3x5"),
        ("x=16", "[_, x]", "3x17"),
        ("x=2", "[]", ""),
        ("x=1", "[x]", "1"),
    ],
)
def test_sizes_that_do_not_divide_work(tmp_path, mesh, layout, shape):
    file = write(tmp_path, laid_out(mesh, layout, shape))
    done = meshweave("run", file, "--check", "--random", 1)
    assert (done.status, done.err) == (0, ""), done


def test_a_byte_order_mark_is_skipped(tmp_path):
    file = write(tmp_path, b"\xef\xbb\xbf" + identity(F).encode())
    assert meshweave("run", file).status == 0


@sampled(1)
@pytest.mark.parametrize("name", ["mlp", "block"])
def test_every_truncation_is_refused(tmp_path, name):
    data = (EXAMPLES / name / f"{name}.mlir").read_bytes()
    end = len(data.rstrip()) - 1  # without its last brace
    for number in thinned(range(16), 3):
        file = write(tmp_path, data[: end * number // 15])
        outcome = meshweave("run", file) if number % 2 else meshweave_opt(file, *PIPELINE)
        if number or outcome.status:  # an empty file is an empty module to the driver
            refused(outcome, r"p.mlir:\d+:\d+: |p.mlir: the program is empty")


def test_what_cannot_be_read_is_said(tmp_path):
    for tool in (lambda f: meshweave("run", f), meshweave_opt):
        refused(tool(tmp_path), "cannot read .*: Is a directory")
        refused(tool(tmp_path / "none.mlir"), "cannot read .*none.mlir: No such file")
        refused(tool("/proc/self/mem"), "cannot read /proc/self/mem: Input/output error")
    file = write(tmp_path, identity(F))
    file.chmod(0)
    if not os.access(file, os.R_OK):
        refused(meshweave("run", file), "cannot read .*: Permission denied")


def test_a_program_through_a_pipe_is_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    child = os.fork()
    if child == 0:
        writer = os.open(pipe, os.O_WRONLY)  # waits for the reader
        os.write(writer, identity(F).encode())
        os._exit(0)
    outcome = meshweave("run", pipe)
    os.waitpid(child, 0)
    assert outcome.status == 0, outcome


def test_long_names_and_lines_do_no_harm(tmp_path):
    name = "%" + "b" * 100_000
    text = main(f"{name} = math.exp %a : {F}\n    %0 = math.exp {name} : {F}")
    assert meshweave("run", write(tmp_path, text)).status == 0
    refused(
        meshweave("run", write(tmp_path, "module {} // " + "x" * 1_000_000)), "no function @main"
    )


@sampled(4)
@pytest.mark.parametrize(
    ("name", "tool"),
    [
        *(("unknown axis", "meshweave"), ("nested too deep", "meshweave-opt")),
        *(("binary", "meshweave"), ("product beyond 64 bits", "meshweave")),
    ],
)
def test_the_real_commands_do_the_same(tmp_path, monkeypatch, name, tool):
    monkeypatch.chdir(tmp_path)
    text, says = BOTH[name]
    write(tmp_path, text)
    arguments = ("run", "p.mlir") if tool == "meshweave" else ("p.mlir", *PIPELINE)
    refused(real(tool, *arguments), says)


def test_the_real_commands_are_quick(tmp_path):
    began = time.monotonic()
    refused(
        real("meshweave", "run", write(tmp_path, laid_out("x=1000, y=1000", "[x, _]"))), "ranks"
    )
    assert time.monotonic() - began < SECONDS


def test_memory_is_checked_before_anything_is_taken(tmp_path):
    """A third of what is free, for each of four ranks."""
    elements = limits.available_bytes() // 3 // 4
    text = laid_out("x=4", "[_]", str(elements))
    began = time.monotonic()
    refused(meshweave("run", write(tmp_path, text)), r"the program needs .*4 ranks of .*free")
    assert time.monotonic() - began < SECONDS
