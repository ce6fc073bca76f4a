"""Every compile checks the program of one rank, and the bundle says what was proven."""

import gc
import json
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from commands import meshweave
from verify.pairs import EXAMPLES, matmul, texts

import meshweave as mw
from meshweave.api.program import build, lowered
from meshweave.api.verify import BYTECODE, certificate
from meshweave.bundle import Bundle
from meshweave.certificate import UNCHECKED
from meshweave.dialects import context
from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.locations import parse_module
from meshweave.verification.answer import Answer, Finding
from meshweave.verification.walk import ProgramWalk

PROGRAM = matmul("x=2, y=3", "[x, y]", "[y, _]", "[x, _]")


def test_a_bundle_carries_the_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWEAVE_CACHE", str(tmp_path))
    bundle = build(PROGRAM, name="product")
    found = bundle.manifest.certificate
    assert found.proven == ("@main result 0",) and found.unproven == ()
    assert found.checker == f"meshweave {mw.__version__}"
    with lowered(PROGRAM, "product", None) as (module, program):
        code = BytesIO()
        module.operation.write_bytecode(code, BYTECODE)
        assert found.local == sha256(code.getvalue()).hexdigest() != found.whole
        assert program.certificate == found
    assert Bundle.from_bytes(bundle.to_bytes()).manifest.certificate == found
    assert build(PROGRAM, name="product").manifest.certificate == found  # from the cache
    assert build(PROGRAM, name="product", verify=False).manifest.certificate == UNCHECKED


def test_the_whole_program_of_a_certificate_is_that_before_layouts_are_chosen() -> None:
    """It is the same on another mesh of as many axes, and for another program another."""
    other = PROGRAM.replace("math.exp", "math.absf")
    first, second, third = [
        build(text, name="product", mesh=axes).manifest.certificate
        for text, axes in ((PROGRAM, None), (PROGRAM, "x=2, y=3"), (other, None))
    ]
    assert first == second and first.whole != third.whole


def _certified(whole: str, local: str) -> mw.errors.MeshweaveError | list[str]:
    with context() as ctx, ir.Location.unknown():
        modules = [
            parse_module(text, ctx, f"{what}.mlir")
            for what, text in (("whole", whole), ("local", local))
        ]
        try:
            return list(certificate(*modules).unproven)
        except CompileError as error:
            return error


def test_a_wrong_program_is_an_error_of_one_line() -> None:
    whole, local = texts(PROGRAM)
    assert _certified(whole, local) == []
    error = _certified(whole, local.replace('kind = "sum"', 'kind = "max"'))
    assert isinstance(error, CompileError)
    said = str(error)
    assert said.startswith("local.mlir:") and "\n" not in said
    assert "@main result 0 is not what the program says, a fault of the passes" in said
    assert " expected " in said and ", is " in said and " instead of " in said
    assert said.endswith("(please report it; verify=False, or --no-verify, leaves the check out)")


def test_what_cannot_be_compared_is_unproven() -> None:
    _, local = texts(PROGRAM)
    whole, _ = texts(matmul("x=2, y=3", "[x, y]", "[y, _]", "[x, _]", (4, 12, 6)))
    said = _certified(whole, local)
    assert isinstance(said, list) and "[x, y] is [2, 4] on a rank, not [4, 4]" in said[0]


def test_explain_and_report_show_it(tmp_path: Path) -> None:
    double = mw.jit(lambda x: x + x, mesh="x=2", in_layouts="[x]", out_layouts="[x]")
    double(np.ones(4, np.float32))
    line = "1 of 1 results proven to be those of the whole program"
    assert line in double.explain()
    example = EXAMPLES / "mlp" / "mlp.mlir"
    assert line in meshweave("report", example).out
    assert (
        "not checked against the whole program" in meshweave("report", example, "--no-verify").out
    )
    out = tmp_path / "report.json"
    assert meshweave("compile", example, "-o", tmp_path / "p.mwb", "--report-json", out).status == 0
    said = json.loads(out.read_text())["certificate"]
    assert said["proven"] == ["@main result 0"] and len(said["whole"]) == len(said["local"]) == 64
    meshweave("compile", example, "-o", tmp_path / "q.mwb", "--no-verify")
    assert Bundle.read(tmp_path / "q.mwb").manifest.certificate == UNCHECKED


def test_nothing_of_the_check_waits_for_the_garbage_collector() -> None:
    """Values of MLIR that are freed after their program, in whichever thread collects, corrupt memory."""
    jitted = mw.jit(lambda x: mw.scan(lambda s, r: (mw.tanh(s + r), s * r), x[0], x), mesh="x=2")
    gc.collect()
    gc.disable()
    try:
        jitted(np.ones((4, 6), np.float32))
        assert not [one for one in gc.get_objects() if isinstance(one, ProgramWalk)]
    finally:
        gc.enable()


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_arrays_without_elements_are_proven(shape: tuple[int, ...]) -> None:
    double = mw.jit(lambda x: (x + x, mw.sum(x, axis=1)), mesh="x=2", in_layouts="[x, _]")
    program = double.lower(np.ones(shape, np.float32)).compile().program
    found = program.bundle.manifest.certificate
    program.close()
    assert found.proven[0] == "@main result 0" and len(found.proven + found.unproven) == 2


def test_a_fault_of_the_check_stops_no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise IndexError("none\n  there")

    monkeypatch.setattr("meshweave.verification.check.verify", broken)
    whole, local = texts(PROGRAM)
    assert _certified(whole, local) == ["the check ended with IndexError: none there"]


def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the check find every program wrong."""

    def wrong(*_: object, **__: object) -> Answer:
        return Answer((), (Finding("@main result 0", "here", "expected one, is two"),), ())

    monkeypatch.setattr("meshweave.verification.check.verify", wrong)
    monkeypatch.setenv("MESHWEAVE_CACHE", "off")


def test_jit_can_leave_the_check_out(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch)
    x = np.ones(4, np.float32)
    with pytest.raises(CompileError, match="verify=False, or --no-verify, leaves the check out"):
        mw.jit(lambda x: x + x)(x)
    double = mw.jit(lambda x: x + x, verify=False)
    assert np.asarray(double(x)).tolist() == [2.0] * 4
    assert "not checked against the whole program" in double.explain()
    double.close()


def test_sources_can_leave_the_check_out(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch)
    with pytest.raises(CompileError, match="please report it"):
        mw.from_mlir(PROGRAM)
    mw.from_mlir(PROGRAM, verify=False).close()
    text = "func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> { "
    text += "%y = stablehlo.add %x, %x : tensor<3xf32> return %y : tensor<3xf32> }"
    mw.from_stablehlo(text, verify=False).close()


def test_from_jax_can_leave_the_check_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    refuse(monkeypatch)
    x = np.ones(4, np.float32)
    with pytest.raises(CompileError, match="please report it"):
        mw.from_jax(lambda x: x + x, x)
    with mw.from_jax(lambda x: x + x, x, verify=False) as program:
        assert np.asarray(program(x)).tolist() == [2.0] * 4
        assert "not checked against the whole program" in program.explain()


@pytest.mark.torch
def test_torch_can_leave_the_check_out(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    refuse(monkeypatch)
    module, x = torch.nn.Linear(4, 2).eval(), torch.ones(3, 4)
    with pytest.raises(CompileError, match="please report it"):
        mw.from_torch(module, (x,))
    with mw.from_torch(module, (x,), verify=False) as program:
        assert torch.allclose(program(x), module(x), atol=1e-5)
        assert "not checked against the whole program" in program.explain()
        assert program.ledger() == []
    for options in ({"backend": mw.torch_backend(verify=False)},
                    {"backend": "meshweave", "options": {"verify": False}}):  # fmt: skip
        fast = torch.compile(module, **options)
        with torch.no_grad():
            assert torch.allclose(fast(x), module(x), atol=1e-5)
        torch._dynamo.reset()
