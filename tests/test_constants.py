"""Large constants of a program's text are data beside it, in bundles and on every engine; damaged ones are told."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import meshweave
from depth import examples, sampled
from hypothesis import given, settings
from hypothesis import strategies as st
from test_weights import peaks
from traced import mw

from meshweave.bundle import Bundle
from meshweave.errors import CompileError, MeshweaveError
from meshweave.files.constants import LARGE, without_constants
from meshweave.files.sections import Section
from meshweave.runtime.engine import engine

RNG = np.random.default_rng(11)
W = RNG.standard_normal((130, 136)).astype(np.float32)
X = RNG.standard_normal((4, 130)).astype(np.float32)


def digits(value: np.ndarray[Any, Any]) -> str:
    return np.ascontiguousarray(value).tobytes().hex().upper()


PRODUCT = """
module {{ func.func public @main(%x: tensor<4x130xf32>{layout}) -> tensor<4x136xf32> {{
  %w = stablehlo.constant {w} : tensor<130x136xf32>
  {more}
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<4x130xf32>, tensor<130x136xf32>) -> tensor<4x136xf32>
  return %y : tensor<4x136xf32> }} }}
"""
DENSE = f'dense<"0x{digits(W)}">'
CONSTRAINED = """
module {{ "dist.mesh"() {{axes = "x=2", sym_name = "mesh"}} : () -> ()
func.func public @main(%x: tensor<4x130xf32>) -> tensor<4x136xf32> {{
  %c = arith.constant {w} : tensor<130x136xf32>
  %w = "dist.constrain"(%c) {{layout = #dist.layout<"{layout}">}} : (tensor<130x136xf32>) -> tensor<130x136xf32>
  %z = arith.constant dense<0.0> : tensor<4x136xf32>
  %y = linalg.matmul ins(%x, %w : tensor<4x130xf32>, tensor<130x136xf32>) outs(%z : tensor<4x136xf32>)
    -> tensor<4x136xf32>
  return %y : tensor<4x136xf32> }} }}
"""


def product(w: str = DENSE, layout: str = "", more: str = "") -> str:
    return PRODUCT.format(w=w, layout=layout, more=more)


def resource(name: str, value: np.ndarray[Any, Any], alignment: int = 4) -> str:
    data = alignment.to_bytes(4, "little").hex() + digits(value)
    return f'\n{{-#\n  dialect_resources: {{ builtin: {{ {name}: "0x{data}" }} }}\n#-}}\n'


def right(found: Any) -> None:
    np.testing.assert_allclose(found, X @ W, rtol=1e-4, atol=1e-4)


FORMS = {
    "text": product(),
    "with attributes": product(DENSE.replace("dense<", "{sdy.x = 1} dense<")).replace(
        "{sdy.x = 1} ", ""
    ),
    "resource": product("dense_resource<w>") + resource("w", W),
    "quoted resource": product('dense_resource<"a b">') + resource('"a b"', W),
    "generic": product().replace(
        f"stablehlo.constant {DENSE} : tensor<130x136xf32>",
        f'"stablehlo.constant"() <{{value = {DENSE} : tensor<130x136xf32>}}> : () -> tensor<130x136xf32>',
    ),
    "mlir": CONSTRAINED.format(w=DENSE, layout="[_, _]"),
}


@sampled(1)
@pytest.mark.parametrize("form", FORMS)
def test_a_constant_in_every_form_is_a_weight(form: str, tmp_path: Path) -> None:
    path = tmp_path / "p.mlir"
    path.write_text(FORMS[form])
    for source in (FORMS[form], path):
        with mw.compile(source) as program:
            right(program(X)[0])
            (weight,) = program.bundle.weights
            assert weight.nbytes == W.nbytes and len(program.inputs) == 1
            assert sum(map(len, program.bundle.objects)) < W.nbytes


@sampled(3)
@pytest.mark.parametrize("layout", ["[x, _]", "[_, x]", "[_*x, _]", "[_, x] order(1, 0)", "[_, _]"])
@pytest.mark.parametrize("name", ["local", "mpi"])
def test_a_weight_is_laid_out_as_the_program_asks(name: str, layout: str, tmp_path: Path) -> None:
    text, path = CONSTRAINED.format(w=DENSE, layout=layout), tmp_path / "p.mwb"
    with mw.compile(text, engine=name) as program:
        for _ in range(2):
            right(program(X)[0])
        program.bundle.write(path)
    with mw.Program(Bundle.read(path), engine(name)) as again:
        for factor in (1, 2):
            np.testing.assert_allclose(again(X * factor)[0], X @ W * factor, rtol=1e-4, atol=1e-4)
    assert W.nbytes < path.stat().st_size < W.nbytes + 100_000


def elements(dtype: str) -> tuple[str, np.ndarray[Any, Any]]:
    if dtype == "bf16":
        return "bf16", RNG.integers(0, 0x7F00, (300, 200)).astype(np.uint16)
    value = RNG.integers(0, 256, (300, 200 * np.dtype(dtype).itemsize)).astype(np.uint8).view(dtype)
    name = {"f": "f", "i": "i", "u": "ui"}[np.dtype(dtype).kind] + str(8 * np.dtype(dtype).itemsize)
    return name, np.nan_to_num(value) if value.dtype.kind == "f" else value


@sampled(1)
@pytest.mark.parametrize(
    "dtype", ["f8", "f4", "f2", "bf16", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1"]
)
def test_every_dtype_keeps_its_bits(dtype: str) -> None:
    kind, value = elements(dtype)
    value = np.concatenate([value, value])
    shape = "x".join(map(str, value.shape))
    text = f"""func.func @main(%i: tensor<i32>) -> tensor<1x200x{kind}> {{
      %w = stablehlo.constant dense<"0x{digits(value)}"> : tensor<{shape}x{kind}>
      %z = stablehlo.constant dense<0> : tensor<i32>
      %r = stablehlo.dynamic_slice %w, %i, %z, sizes = [1, 200]
        : (tensor<{shape}x{kind}>, tensor<i32>, tensor<i32>) -> tensor<1x200x{kind}>
      return %r : tensor<1x200x{kind}> }}"""
    with mw.compile(text) as program:
        assert len(program.bundle.weights) == 1
        for row in (0, 3, len(value) - 1):
            (found,) = program(np.int32(row))
            want = value[row] if dtype != "bf16" else (value[row].astype("u4") << 16).view("f4")
            assert found.tobytes() == want.tobytes()


@pytest.mark.parametrize(
    "kind, count",
    [("i1", 80_000), ("complex<f32>", 10_000), ("f32", 1)],
    ids=["bits", "complex", "small"],
)
def test_other_constants_stay_in_the_program(kind: str, count: int) -> None:
    value = RNG.integers(0, 2, count).astype(np.uint8) if kind == "i1" else np.arange(count) + 1.5j
    if kind == "i1":
        data, value = value, value.astype(bool)
    elif count == 1:
        value = data = np.float32([2.5])
    else:
        value = data = value.astype(np.complex64)
    text = f"""func.func @main(%x: tensor<{count}x{kind}>) -> tensor<{count}x{kind}> {{
      %w = stablehlo.constant dense<"0x{digits(data)}"> : tensor<{count}x{kind}>
      %y = stablehlo.{"and" if kind == "i1" else "add"} %x, %w : tensor<{count}x{kind}>
      return %y : tensor<{count}x{kind}> }}"""
    with mw.compile(text) as program:
        assert not program.bundle.weights
        x = np.ones_like(value)
        np.testing.assert_array_equal(program(x)[0], value if kind == "i1" else x + value)


def test_functions_that_are_called_pass_weights_on() -> None:
    two = RNG.standard_normal((130, 136)).astype(np.float32)
    text = f"""
    func.func private @inner(%x: tensor<130x136xf32>) -> tensor<130x136xf32> {{
      %w = arith.constant dense<"0x{digits(W)}"> : tensor<130x136xf32>
      %y = arith.addf %x, %w : tensor<130x136xf32>
      return %y : tensor<130x136xf32> }}
    func.func private @outer(%x: tensor<130x136xf32>) -> tensor<130x136xf32> {{
      %v = arith.constant dense<"0x{digits(two)}"> : tensor<130x136xf32>
      %w = arith.constant dense<"0x{digits(W)}"> : tensor<130x136xf32>
      %a = func.call @inner(%x) : (tensor<130x136xf32>) -> tensor<130x136xf32>
      %b = arith.mulf %a, %v : tensor<130x136xf32>
      %c = arith.mulf %b, %w : tensor<130x136xf32>
      return %c : tensor<130x136xf32> }}
    func.func @main(%x: tensor<130x136xf32>) -> (tensor<130x136xf32>, tensor<130x136xf32>) {{
      %v = arith.constant dense<"0x{digits(two)}"> : tensor<130x136xf32>
      %a = func.call @outer(%x) : (tensor<130x136xf32>) -> tensor<130x136xf32>
      %b = func.call @inner(%v) : (tensor<130x136xf32>) -> tensor<130x136xf32>
      return %a, %b : tensor<130x136xf32>, tensor<130x136xf32> }}"""
    for source in (text, text.replace("arith.constant", "stablehlo.constant")):
        with mw.compile(source) as program:
            assert len(program.bundle.weights) == 2
            x = RNG.standard_normal(W.shape).astype(np.float32)
            found = program(x)
        np.testing.assert_allclose(found[0], (x + W) * two * W, rtol=1e-5)
        np.testing.assert_allclose(found[1], two + W, rtol=1e-5)


MANUAL = """
module {{ sdy.mesh @mesh = <["x"=2]>
func.func public @main(%a: tensor<8x130xf32>) -> tensor<8x136xf32> {{
  %1 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{{"x"}}, {{}}]>] out_shardings=[<@mesh, [{{"x"}}, {{}}]>]
      manual_axes={{"x"}} (%b: tensor<4x130xf32>) {{
    %w = stablehlo.constant {w} : tensor<130x136xf32>
    %y = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0]
      : (tensor<4x130xf32>, tensor<130x136xf32>) -> tensor<4x136xf32>
    %s = "stablehlo.all_reduce"(%y) <{{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}}> ({{
      ^bb0(%c: tensor<f32>, %d: tensor<f32>):
        %e = stablehlo.add %c, %d : tensor<f32>
        stablehlo.return %e : tensor<f32>
    }}) : (tensor<4x136xf32>) -> tensor<4x136xf32>
    sdy.return %s : tensor<4x136xf32>
  }} : (tensor<8x130xf32>) -> tensor<8x136xf32>
  return %1 : tensor<8x136xf32> }} }}
"""


def test_a_manual_computation_has_the_whole_weight_on_each_rank() -> None:
    with mw.compile(MANUAL.format(w=DENSE)) as program:
        (found,) = program(np.concatenate([X, 2 * X]))
        assert len(program.bundle.weights) == 1
    np.testing.assert_allclose(found, np.tile(3 * X @ W, (2, 1)), rtol=1e-4, atol=1e-4)


def test_one_value_of_two_types_lies_in_the_bundle_once() -> None:
    bits = RNG.integers(0, 100, 20_000).astype(np.int32)
    data = digits(bits)
    text = f"""func.func @main(%x: tensor<20000xi32>) -> (tensor<20000xi32>, tensor<20000xi32>) {{
      %a = stablehlo.constant dense<"0x{data}"> : tensor<20000xi32>
      %f = stablehlo.constant dense<"0x{data}"> : tensor<20000xf32>
      %b = stablehlo.bitcast_convert %f : (tensor<20000xf32>) -> tensor<20000xi32>
      %y = stablehlo.add %x, %a : tensor<20000xi32>
      return %y, %b : tensor<20000xi32>, tensor<20000xi32> }}"""
    with mw.compile(text) as program:
        found = program(bits)
        assert len(program.bundle.weights) == 1 and len(program.bundle.manifest.held) == 2
        assert np.array_equal(found[0], 2 * bits) and np.array_equal(found[1], bits)


def test_programs_that_differ_in_a_constant_are_told_apart(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("MESHWEAVE_CACHE", str(tmp_path))
    for factor in (1, 2, 1, 2):
        with mw.compile(product(f'dense<"0x{digits(W * factor)}">')) as program:
            np.testing.assert_allclose(program(X)[0], X @ W * factor, rtol=1e-4, atol=1e-4)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*")) < 10 * W.nbytes


WRONG = {
    'a constant "0x.." is no hexadecimal number': product(DENSE.replace("0x", "0xZZ", 1)),
    "half a byte": product(DENSE.replace('">', '0">')),
    "has no end": product()[: 2 * LARGE + 4000],
    "resource that the program does not have": product("dense_resource<v>") + resource("w", W),
    "70716 bytes, 70720 are right": product("dense_resource<w>")
    + resource("w", W.reshape(-1)[:-1]),
    "71": product(DENSE.replace('">', '00000000">')),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_constants_are_refused(message: str) -> None:
    with pytest.raises(CompileError, match=message if message != "71" else "."):
        mw.compile(WRONG[message])


def made(path: Path) -> bytes:
    with mw.compile(product()) as program:
        program.bundle.write(path)
        assert Bundle.read(path) == program.bundle
    return path.read_bytes()


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    path, read = tmp_path / "p.mwb", lambda: Bundle.read(path)
    data = made(path)
    at = data.index(W.tobytes())
    assert at % 64 == 0
    for place in (at, at + W.nbytes // 2, at + W.nbytes - 1):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(
            MeshweaveError, match=r"p\.mwb: the bundle is damaged: weight .* is another"
        ):
            read()
    for length in (at - 1, at + 100, at + W.nbytes, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(MeshweaveError, match=r"p\.mwb: "):
            read()
    path.write_bytes(data)
    code = read().code
    with pytest.raises(MeshweaveError, match="has no weights, only code"):
        mw.Program(code, engine("local"))
    (weight,) = read().weights
    with pytest.raises(MeshweaveError, match="has not the 70720 bytes of this weight"):
        code.with_weights({weight.digest: Section(weight.digest, 1, 0, weight.file)})


def test_commands_compile_and_run_weights(tmp_path: Path) -> None:
    text, bundle = tmp_path / "p.mlir", tmp_path / "p.mwb"
    text.write_text(CONSTRAINED.format(w=DENSE, layout="[_, x]"))
    np.save(tmp_path / "x.npy", X)
    given = ("--input", tmp_path / "x.npy", "--dump", tmp_path)
    compiled = meshweave("compile", text, "-o", bundle)
    assert compiled.status == 0 and f"{W.nbytes // 1000}," not in compiled.err
    for source, stdin in (
        (text, b""),
        (bundle, b""),
        ("-", bundle.read_bytes()),
        ("-", text.read_bytes()),
    ):
        done = meshweave("run", source, *given, stdin=stdin)
        assert done.status == 0, done.err
        right(np.load(tmp_path / "result0.npy"))
        (tmp_path / "result0.npy").unlink()
    done = meshweave("run", text, *given, "--check")
    assert done.status == 0, done.err


INSIDE = """
import sys
import numpy as np
from meshweave.bundle import Bundle
from meshweave.runtime.mpi.inside import InsideProgram
program = InsideProgram(Bundle.read(sys.argv[1]))
x = np.load(sys.argv[2])
for _ in range(2):
    (y,) = program.run([x])
np.save(f"{sys.argv[3]}/part{program.rank}.npy", y)
program.close()
"""


def test_processes_of_the_users_take_their_part_of_weights(tmp_path: Path) -> None:
    from meshweave.runtime.mpi.engine import mpiexec

    text = CONSTRAINED.format(w=DENSE, layout="[_, x]").replace(
        "-> tensor<4x136xf32> {",
        '-> (tensor<4x136xf32> {dist.layout = #dist.layout<"[_, x]">}) {',
        1,
    )
    with mw.compile(text, engine="mpi") as program:
        program.bundle.write(tmp_path / "p.mwb")
    np.save(tmp_path / "x.npy", X)
    command = [mpiexec(), "-n", "2", sys.executable, "-c", INSIDE]
    done = subprocess.run(
        [*command, tmp_path / "p.mwb", tmp_path / "x.npy", tmp_path],
        capture_output=True, text=True, timeout=500, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    parts = [np.load(tmp_path / f"part{rank}.npy") for rank in range(2)]
    right(np.concatenate(parts, axis=1))


@settings(max_examples=examples(40))
@given(data=st.data())
def test_a_text_is_read_in_pieces_of_any_size(data: st.DataObject) -> None:
    words = st.sampled_from(
        ["x", '"0x', '"', "0xAB", ' : "0x12" ', "constant dense<3>", "\n", '"a"', "dense<", "é"]
    )
    parts, texts, sections = [], [], []
    for number in range(data.draw(st.integers(0, 3), label="constants")):
        noise = "".join(data.draw(st.lists(words, max_size=6))).replace('"', "")
        value = (
            np.random.default_rng(number).integers(0, 256, LARGE + 4 * number + 4).astype(np.uint8)
        )
        count = len(value) // 4
        texts.append(noise + f'constant dense<"0x{digits(value)}"> : tensor<{count}xf32>')
        sections.append(value.tobytes())
        parts.append((noise, count))
    end = "".join(data.draw(st.lists(words, max_size=6)))
    whole = ("".join(texts) + end).encode()
    size = data.draw(st.sampled_from([1, 2, 3, 1000, LARGE, 1 << 20]))
    if size < 1000:
        whole, size = whole, max(size, len(whole) // 2000)
    pieces = [whole[k : k + size] for k in range(0, len(whole), size)]
    text, found = without_constants(pieces, "-")
    assert [b"".join(s.pieces()) for s in found.values()] == sections
    names = iter(found)
    wanted = "".join(
        f"{n}constant dense_resource<weight_{next(names)}> : tensor<{c}xf32>" for n, c in parts
    )
    assert text.decode() == wanted + end


def test_compiling_takes_little_memory_beside_the_constants(tmp_path: Path) -> None:
    shape = (4096, 4096)
    (compiled, first, again, loaded) = peaks(f"""
from meshweave.bundle import Bundle
from meshweave.runtime import engine
w = large()
path, to = {str(tmp_path / "p.mlir")!r}, {str(tmp_path / "p.mwb")!r}
text = {PRODUCT!r}.replace("130", "4096").replace("136", "4096").replace("4x", "2x").replace("409", "409")
head, tail = text.format(w='dense<"0x|">', layout="", more="").split("|")
with open(path, "w") as out:
    out.write(head)
    for row in w:
        out.write(row.tobytes().hex())
    out.write(tail)
want, n = x @ w, w.nbytes
del w
mw.compile(text.format(w="dense<1.0>", layout="", more=""))(x)
compiled, program = peak(n, lambda: mw.compile(path))
first, (y,) = peak(n, lambda: program(x))
again, (y,) = peak(n, lambda: program(x))
assert np.allclose(y, want, rtol=1e-4)
program.bundle.write(to)
program.close()
del program
loaded, program = peak(n, lambda: mw.Program(Bundle.read(to), engine("local")))
assert np.allclose(program(x)[0], want, rtol=1e-4)
print(compiled, first, again, loaded)
""")
    assert shape and compiled < 0.4 and first < 1.1 and again < 0.1 and loaded < 0.3
