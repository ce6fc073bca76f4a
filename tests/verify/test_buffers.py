"""Programs on buffers: what plan-memory makes is proven, and what is wrong is said with buffer and place."""

import re
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from depth import sampled
from verify.pairs import PROGRAMS

import meshweave as mw
from meshweave.api.program import Program, build
from meshweave.bundle import Bundle
from meshweave.certificate import Certificate
from meshweave.dialects import lent_context
from meshweave.errors import CompileError
from meshweave.frontends.load import load_module
from meshweave.ir.bindings import ir
from meshweave.ir.locations import parse_module
from meshweave.ir.unlocked import LlvmCompiler
from meshweave.lowering import bundle_of, stages
from meshweave.lowering.buffers.plan_memory import plan_memory
from meshweave.pipeline import run_pipeline
from meshweave.runtime.engine import engine
from meshweave.targets import Goal
from meshweave.transforms.base import copied, ops_of
from meshweave.verification.answer import Answer
from meshweave.verification.buffers.check import verify_buffers

TENSORS = "lower-collectives{{engine={}}},fuse-kernels"


def lowered(text: str, engine: str = "local", before: str = "dist-pipeline,") -> tuple[str, str]:
    """A whole program's rank, on tensors and on buffers. before: passes that make it that of a rank."""
    with lent_context(unregistered=False) as ctx, ctx, ir.Location.unknown():
        module = load_module(text, ctx, "program")
        run_pipeline(module, before + TENSORS.format(engine))
        after = copied(module)
        run_pipeline(after, "plan-memory")
        return str(module), str(after)


def answer(before: str, after: str) -> Answer:
    with lent_context(unregistered=False) as ctx, ctx, ir.Location.unknown():
        first = parse_module(before, ctx, "before")
        return verify_buffers(first, parse_module(after, ctx, "after"))


def changed(text: str, pattern: str, new: str) -> str:
    made = re.sub(pattern, new, text, count=1)
    assert made != text
    return made


@sampled(1)
@pytest.mark.parametrize("engine", ["local", "mpi", "nccl"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_plan_memory_makes_is_proven(name: str, engine: str) -> None:
    found = answer(*lowered(PROGRAMS[name], engine))
    assert found.status == 0, str(found)


ONCE = """
func.func @main(%a: tensor<4x4xf32>, %at: tensor<4xindex>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %place = arith.constant 2 : i32
  %i = arith.index_cast %place : i32 to index
  %inside = arith.cmpi ult, %i, %c{size} : index
  %trips = arith.select %inside, %c1, %c0 : index
  %one = scf.for %k = %c0 to %trips step %c1 iter_args(%out = %a) -> (tensor<4x4xf32>) {{
    %f = arith.constant 1.0 : f32
    %o = tensor.insert %f into %out[%i, %c1] : tensor<4x4xf32>
    scf.yield %o : tensor<4x4xf32>
  }}
  %many = scf.for %k = %c0 to %c4 step %c1 iter_args(%out = %a) -> (tensor<4x4xf32>) {{
    %f = arith.constant 2.0 : f32
    %n = tensor.extract %at[%k] : tensor<4xindex>
    %o = tensor.insert %f into %out[%n, %c1] : tensor<4x4xf32>
    scf.yield %o : tensor<4x4xf32>
  }}
  return %one, %many : tensor<4x4xf32>, tensor<4x4xf32>
}}
"""


@pytest.mark.parametrize("size", [4, 1])
def test_a_loop_of_one_trip_or_none_is_found_though_its_bound_is_computed(size: int) -> None:
    before = ONCE.format(size=size)
    _, after = lowered(before, before="")
    assert (before.count("scf.for"), after.count("scf.for")) == (2, 1)
    assert answer(before, after).status == 0
    if size == 4:
        wrong = changed(after, r"(memref.store %cst, %\d+)\[%c2", r"\1[%c1")
        assert answer(before, wrong).status != 0


LOOP = """
func.func @main(%a: tensor<8x4xf32>, %b: tensor<4x4xf32>) -> (tensor<8x4xf32>, tensor<4x4xf32>) {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c8 = arith.constant 8 : index
  %e = tensor.empty() : tensor<8x4xf32>
  %f = tensor.empty() : tensor<4x4xf32>
  %z = arith.constant dense<0.0> : tensor<4x4xf32>
  %s = linalg.matmul ins(%b, %b : tensor<4x4xf32>, tensor<4x4xf32>) outs(%z : tensor<4x4xf32>) -> tensor<4x4xf32>
  %r:2 = scf.for %i = %c0 to %c8 step %c2 iter_args(%out = %e, %sum = %s) -> (tensor<8x4xf32>, tensor<4x4xf32>) {
    %x = tensor.extract_slice %a[%i, 0] [2, 4] [1, 1] : tensor<8x4xf32> to tensor<2x4xf32>
    %g = arith.constant dense<0.0> : tensor<2x4xf32>
    %y = linalg.matmul ins(%x, %sum : tensor<2x4xf32>, tensor<4x4xf32>) outs(%g : tensor<2x4xf32>) -> tensor<2x4xf32>
    %o = tensor.insert_slice %y into %out[%i, 0] [2, 4] [1, 1] : tensor<2x4xf32> into tensor<8x4xf32>
    %n = linalg.add ins(%sum, %s : tensor<4x4xf32>, tensor<4x4xf32>) outs(%f : tensor<4x4xf32>) -> tensor<4x4xf32>
    scf.yield %o, %n : tensor<8x4xf32>, tensor<4x4xf32>
  }
  return %r#0, %r#1 : tensor<8x4xf32>, tensor<4x4xf32>
}
"""


def planned(text: str, engine: str = "local") -> tuple[str, str]:
    """A program of one rank, on tensors and on buffers."""
    with lent_context(unregistered=False) as ctx, ctx, ir.Location.unknown():
        module = parse_module(text, ctx, "program")
        run_pipeline(module, TENSORS.format(engine))
        after = copied(module)
        run_pipeline(after, "plan-memory")
        return str(module), str(after)


def test_what_a_loop_carries_is_followed_from_trip_to_trip() -> None:
    found = answer(*planned(LOOP))
    assert found.status == 0, str(found)
    assert found.proven == ("@main output 0", "@main output 1")


def test_a_buffer_that_a_trip_overwrites_for_the_next_is_found() -> None:
    before, after = planned(LOOP)
    found = answer(
        before, changed(after, r"\(%1, %0, %1\) {kernel = @k2", "(%1, %0, %0) {kernel = @k2")
    )
    assert any("behind a trip of the loop" in f.reason for f in found.refuted), str(found)


def test_an_input_that_is_written_is_found() -> None:
    before, after = planned(LOOP)
    found = answer(
        before, changed(after, r"\(%1, %0, %1\) {kernel = @k2", "(%1, %0, %arg1) {kernel = @k2")
    )
    assert any(f.value == "input 1" and "is written" in f.reason for f in found.refuted), str(found)


def test_a_kernel_that_reads_what_it_has_overwritten_is_found() -> None:
    """A product in place: its buffer is dead behind it, but not yet within it."""
    before, after = planned(LOOP)
    found = answer(before, changed(after, r"\(%arg1, %0\) {kernel = @k0", "(%0, %0) {kernel = @k0"))
    assert any("what another iteration of it reads" in f.reason for f in found.refuted), str(found)


EARLY = """"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @main(%a: tensor<4x12xf32> {dist.global = tensor<8x12xf32>, dist.layout = #dist.layout<"[x, _]">})
    -> (tensor<8x6xf32> {dist.global = tensor<8x6xf32>, dist.layout = #dist.layout<"[_, _]">},
        tensor<4x12xf32> {dist.global = tensor<8x12xf32>, dist.layout = #dist.layout<"[x, _]">}) {
  %s = tensor.extract_slice %a[0, 6] [4, 6] [1, 1] : tensor<4x12xf32> to tensor<4x6xf32>
  %g = "dist.all_gather"(%s) {axes = ["x"], dim = 0 : i64, dist.early} : (tensor<4x6xf32>) -> tensor<8x6xf32>
  %p = math.exp %a : tensor<4x12xf32>
  %q = math.sin %p : tensor<4x12xf32>
  %e = math.exp %g : tensor<8x6xf32>
  return %e, %q : tensor<8x6xf32>, tensor<4x12xf32>
}
"""


@pytest.mark.parametrize("engine", ["local", "mpi", "nccl"])
def test_what_is_sent_early_stays_where_it_is_until_it_is_waited_for(engine: str) -> None:
    """Also where it is packed first: the wait is on the packed bytes."""
    before, after = planned(EARLY, engine)
    start = re.search(r'"mw\.start"\((.*?)\)', after)
    wait = re.search(r'"mw\.wait"\((.*?)\)', after)
    assert start is not None and wait is not None
    assert start[1].split(", ")[:2] == wait[1].split(", ")
    found = answer(before, after)
    assert found.status == 0, str(found)


def test_a_wait_that_is_gone_is_found() -> None:
    before, after = planned(EARLY)
    found = answer(before, changed(after, r'    "mw\.wait".*\n', ""))
    assert found.status == 1
    assert any("not waited for" in f.reason for f in found.refuted)


def test_an_area_within_the_arena_is_found() -> None:
    before, after = planned(EARLY)
    found = answer(before, changed(after, r"area = \d+", "area = 0"))
    assert any("area" in f.reason for f in found.refuted)


def test_an_op_without_a_rule_is_named() -> None:
    before, after = lowered(PROGRAMS["product of rows"])
    strange = changed(
        after, r"( +)return\n", r"\1%odd = memref.alloc() : memref<2xf32>\n\1return\n"
    )
    found = answer(before, strange)
    assert found.status == 3
    assert "memref.alloc: the check has no rule for this op" in str(found)


def test_a_compile_checks_its_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(module: ir.Module, *rest: object) -> None:
        plan_memory(module, *rest)  # type: ignore[arg-type]
        ops_of(module, "mw.launch")[0].operation.erase()

    with lent_context(unregistered=False) as ctx, ctx, ir.Location.unknown():
        module = load_module(PROGRAMS["softmax of columns"], ctx, "program")
        run_pipeline(module, "dist-pipeline")
        program = stages.lower(module)
        assert program.verified is not None and program.verified.status == 0
        assert stages.lower(module, verify=False).verified is None
        monkeypatch.setattr(stages, "plan_memory", wrong)
        with pytest.raises(CompileError, match=r"plan-memory: .*expected mw.launch"):
            stages.lower(module)


@pytest.fixture
def softmax() -> Iterator[ir.Module]:
    with lent_context(unregistered=False) as ctx, ctx, ir.Location.unknown():
        module = load_module(PROGRAMS["softmax of columns"], ctx, "program")
        run_pipeline(module, "dist-pipeline")
        yield module


def test_buffers_are_checked_beside_code_generation(softmax: ir.Module) -> None:
    program = stages.lower(softmax, later=True)
    assert program.verified is None and program.unchecked is not None
    threads: list[threading.Thread] = []
    check = program.unchecked

    def noted() -> Answer:
        threads.append(threading.current_thread())
        return check()

    program.unchecked = noted
    bundle_of(program, Goal())
    assert program.verified is not None and program.verified.status == 0
    assert threads and threads[0] is not threading.current_thread()


def test_other_threads_go_on_while_llvm_compiles(
    softmax: ir.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, turns, meanwhile = threading.Event(), [0], list[int]()

    def count() -> None:
        while not done.wait(0.001):
            turns[0] += 1

    compile_all = LlvmCompiler.compile

    def compiled(engine: LlvmCompiler, name: str) -> None:
        before = turns[0]
        compile_all(engine, name)
        meanwhile.append(turns[0] - before)

    monkeypatch.setattr(LlvmCompiler, "compile", compiled)
    thread = threading.Thread(target=count)
    thread.start()
    try:
        bundle_of(stages.lower(softmax), Goal())
    finally:
        done.set()
        thread.join()
    assert max(meanwhile) > 0


def test_code_made_before_its_certificate_is_known_runs_with_it(softmax: ir.Module) -> None:
    """The code names its manifest, and that it is run with this one only is looked at."""
    found = Certificate("a checker", proven=("@main result 0",))
    program = stages.lower(softmax, later=True)
    program.certify = lambda: found
    made = bundle_of(program, Goal())
    assert made.manifest.certificate == program.certificate == found
    assert sum(code.count(made.manifest.symbol.encode()) for code in made.objects) == 1
    again = Bundle.from_bytes(made.to_bytes())
    x = np.random.default_rng(0).standard_normal(again.manifest.inputs[0].global_shape)
    (y,) = Program(again, engine("local"))(x.astype(np.float32))
    assert y.shape == again.manifest.outputs[0].global_shape


def test_a_program_that_cannot_be_lowered_is_refused_first_where_it_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(whole: ir.Module, local: ir.Module) -> Certificate:
        raise CompileError("is not what the program says")

    def unlowered(module: ir.Module, *rest: object) -> None:
        raise CompileError("no rule for this")

    monkeypatch.setattr(stages, "plan_memory", unlowered)
    with pytest.raises(CompileError, match="no rule for this"):
        build(PROGRAMS["softmax of columns"])
    monkeypatch.setattr("meshweave.api.verify.certificate", refused)
    with pytest.raises(CompileError, match="is not what the program says"):
        build(PROGRAMS["softmax of columns"])


def test_what_the_check_beside_refuses_is_raised_and_not_what_came_of_it(
    softmax: ir.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> Answer:
        raise CompileError("plan-memory: is wrong")

    program = stages.lower(softmax, later=True)
    program.unchecked = refused
    with pytest.raises(CompileError, match="is wrong"):
        bundle_of(program, Goal())

    def without_code(*rest: object) -> None:
        raise CompileError("no code for this")

    monkeypatch.setattr("meshweave.lowering.cpu.target.machine_code", without_code)
    with pytest.raises(CompileError, match="is wrong"):
        bundle_of(program, Goal())
    with pytest.raises(CompileError, match="no code for this"):
        bundle_of(stages.lower(softmax, later=True), Goal())


def test_a_compile_that_is_refused_beside_code_generation_gives_no_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(module: ir.Module, *rest: object) -> None:
        plan_memory(module, *rest)  # type: ignore[arg-type]
        ops_of(module, "mw.launch")[0].operation.erase()

    with monkeypatch.context() as patched:
        patched.setattr(stages, "plan_memory", wrong)
        for _ in range(2):  # nor is anything kept of it
            with pytest.raises(CompileError, match=r"plan-memory: .*expected mw.launch"):
                build(PROGRAMS["softmax of columns"])
    assert build(PROGRAMS["softmax of columns"]).manifest.certificate.proven


def test_a_branch_that_gives_what_was_there_before_is_proven() -> None:
    @mw.jit
    def f(x: mw.Array) -> mw.Array:
        with mw.hint(slice="t=2", strength="preferred"):
            first = mw.cond(mw.sum(x) > 0, lambda: x * 2, lambda: x)
            with mw.hint(slice="a=2", strength="preferred"):
                return mw.cond(mw.sum(x) > 0, lambda: x * 2, lambda: first)

    x = np.arange(48, dtype=np.float32).reshape(8, 6)
    found = answer(*lowered(f.lower(x).program.text))
    assert found.status == 0, str(found)
    for value in (x, -x):
        np.testing.assert_array_equal(f(value), value * 2 if value.sum() > 0 else value)


BRANCHES = """
func.func @main(%a: tensor<8x4xf32>, %c: tensor<i1>) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c8 = arith.constant 8 : index
  %e = tensor.empty() : tensor<8x4xf32>
  %t = tensor.extract %c[] : tensor<i1>
"""
BRANCH = """
  %{0} = scf.for %i = %c0 to %c8 step %c2 iter_args(%out = %e) -> (tensor<8x4xf32>) {{
    %x = tensor.extract_slice {1}[%i, 0] [2, 4] [1, 1] : tensor<8x4xf32> to tensor<2x4xf32>
    %v = scf.if %t -> (tensor<2x4xf32>) {{
      %y = math.{2} %x : tensor<2x4xf32>
      scf.yield %y : tensor<2x4xf32>
    }} else {{
      scf.yield %x : tensor<2x4xf32>
    }}
    %o = tensor.insert_slice %v into %out[%i, 0] [2, 4] [1, 1] : tensor<2x4xf32> into tensor<8x4xf32>
    scf.yield %o : tensor<8x4xf32>
  }}
"""
TWICE = (
    BRANCHES
    + BRANCH.format("p", "%a", "exp")
    + "  %q = math.sin %p : tensor<8x4xf32>\n"
    + BRANCH.format("r", "%q", "cos")
    + "  return %p, %r : tensor<8x4xf32>, tensor<8x4xf32>\n}\n"
)


def test_branches_on_one_condition_take_one_way() -> None:
    """What the second gives lies in one of two buffers, of which it has written the one that it took."""
    found = answer(*planned(TWICE))
    assert found.status == 0, str(found)


WRITES = r"\n +(\"mw.launch\"\(%subview, %\d+\)|memref.copy %subview, %\d+ ).*"


@pytest.mark.parametrize("number", range(4))
def test_a_way_on_which_nothing_is_written_is_found(number: int) -> None:
    before, after = planned(TWICE)
    writes = list(re.finditer(WRITES, after))
    assert len(writes) == 4
    start, end = writes[number].span()
    found = answer(before, after[:start] + after[end:])
    assert found.status == 1, str(found)


def test_one_of_two_buffers_that_were_there_before_is_proven() -> None:
    """The first branch does nothing: what it gives was made before, and only the other one writes the output."""
    text = """
    func.func @main(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>, %c: tensor<i1>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
      %t = tensor.extract %c[] : tensor<i1>
      %x = math.cos %b : tensor<4x4xf32>
      %y = math.sin %x : tensor<4x4xf32>
      %r = scf.if %t -> (tensor<4x4xf32>) {
        scf.yield %y : tensor<4x4xf32>
      } else {
        %z = arith.addf %a, %a : tensor<4x4xf32>
        scf.yield %z : tensor<4x4xf32>
      }
      return %r, %x : tensor<4x4xf32>, tensor<4x4xf32>
    }
    """
    before, after = planned(text)
    assert "arith.select" in after
    found = answer(before, after)
    assert found.status == 0, str(found)
    assert answer(before, changed(after, r' +"mw.launch"\(%arg0, %arg3\).*\n', "")).status == 1


UPDATES = """
func.func @main(%a: tensor<4x4xf32>, %d: tensor<3x4x4xf32>, %c: tensor<i1>) -> tensor<4x4xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %t = tensor.extract %c[] : tensor<i1>
  %b = math.exp %a : tensor<4x4xf32>
  %m = linalg.matmul ins(%b, %b : tensor<4x4xf32>, tensor<4x4xf32>) outs(%b : tensor<4x4xf32>) -> tensor<4x4xf32>
  %r = scf.if %t -> (tensor<4x4xf32>) {
    %y = linalg.matmul ins(%m, %b : tensor<4x4xf32>, tensor<4x4xf32>) outs(%a : tensor<4x4xf32>) -> tensor<4x4xf32>
    scf.yield %y : tensor<4x4xf32>
  } else {
    %z = math.cos %m : tensor<4x4xf32>
    scf.yield %z : tensor<4x4xf32>
  }
  %s = scf.for %i = %c0 to %c3 step %c1 iter_args(%o = %r) -> (tensor<4x4xf32>) {
    %x = tensor.extract_slice %d[%i, 0, 0] [1, 4, 4] [1, 1, 1] : tensor<3x4x4xf32> to tensor<4x4xf32>
    %n = arith.mulf %o, %x : tensor<4x4xf32>
    scf.yield %n : tensor<4x4xf32>
  }
  return %s : tensor<4x4xf32>
}
"""
"""A loop updates one of two buffers: which one, a branch has said."""

TURNS = """
func.func @main(%a: tensor<4x4xf32>, %d: tensor<3x4x4xf32>, %c: tensor<3xi1>) -> tensor<4x4xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %s = scf.for %i = %c0 to %c3 step %c1 iter_args(%o = %a) -> (tensor<4x4xf32>) {
    %t = tensor.extract %c[%i] : tensor<3xi1>
    %m = linalg.matmul ins(%o, %o : tensor<4x4xf32>, tensor<4x4xf32>) outs(%a : tensor<4x4xf32>) -> tensor<4x4xf32>
    %r = scf.if %t -> (tensor<4x4xf32>) {
      %y = linalg.matmul ins(%m, %o : tensor<4x4xf32>, tensor<4x4xf32>) outs(%a : tensor<4x4xf32>) -> tensor<4x4xf32>
      scf.yield %y : tensor<4x4xf32>
    } else {
      %z = math.cos %m : tensor<4x4xf32>
      scf.yield %z : tensor<4x4xf32>
    }
    %n = scf.for %j = %c0 to %c3 step %c1 iter_args(%p = %r) -> (tensor<4x4xf32>) {
      %x = tensor.extract_slice %d[%j, 0, 0] [1, 4, 4] [1, 1, 1] : tensor<3x4x4xf32> to tensor<4x4xf32>
      %q = arith.mulf %p, %x : tensor<4x4xf32>
      scf.yield %q : tensor<4x4xf32>
    }
    scf.yield %n : tensor<4x4xf32>
  }
  return %s : tensor<4x4xf32>
}
"""
"""The same in each trip of a loop, where a condition of the trip says which one."""


@pytest.mark.parametrize("text", [UPDATES, TURNS], ids=["once", "in each trip"])
def test_a_loop_that_updates_one_of_two_buffers_is_proven(text: str) -> None:
    before, after = planned(text)
    assert re.search(r"= scf\.if .*memref", after)
    found = answer(before, after)
    assert found.status == 0, str(found)
    steps = list(re.finditer(r"\n +(\"mw.launch\"|memref.copy).*", after))
    for step in steps:  # nothing else does what one of them does
        start, end = step.span()
        assert answer(before, after[:start] + after[end:]).status != 0, step[0]


def test_a_choice_between_tensors_is_proven_and_right() -> None:
    """What the first branch makes is there before: MLIR finds that late, and leaves a select of whole tensors."""
    text = """
    func.func @main(%a: tensor<4x4xf64>, %b: tensor<4x4xf64>, %c: tensor<i1>, %d: tensor<i1>)
        -> (tensor<4x4xf64>, tensor<4x4xf64>) {
      %t = tensor.extract %c[] : tensor<i1>
      %u = tensor.extract %d[] : tensor<i1>
      %x = arith.addf %a, %b : tensor<4x4xf64>
      %r = scf.if %t -> (tensor<4x4xf64>) {
        %again = arith.addf %a, %b : tensor<4x4xf64>
        scf.yield %again : tensor<4x4xf64>
      } else {
        scf.yield %b : tensor<4x4xf64>
      }
      %s = scf.if %u -> (tensor<4x4xf64>) {
        %y = arith.mulf %a, %r : tensor<4x4xf64>
        scf.yield %y : tensor<4x4xf64>
      } else {
        scf.yield %x : tensor<4x4xf64>
      }
      return %s, %x : tensor<4x4xf64>, tensor<4x4xf64>
    }
    """
    before, after = lowered(text)
    assert re.search("arith.select .* tensor<4x4xf64>", before)
    found = answer(before, after)
    assert found.status == 0, str(found)
    swap = r"arith.select (%\d+), (%\w+), (%\w+) : memref", r"arith.select \1, \3, \2 : memref"
    assert answer(before, changed(after, *swap)).status == 1
    a, b = np.random.default_rng(0).standard_normal((2, 4, 4))
    with mw.compile(text) as program:
        for t, u in np.ndindex(2, 2):
            got, _ = program(a, b, np.array(bool(t)), np.array(bool(u)))
            np.testing.assert_allclose(got, a * (a + b if t else b) if u else a + b)


DONATED = """
func.func @main(%c: tensor<8x4xf32> {dist.donate = "preferred"}, %row: tensor<1x4xf32>, %where: tensor<i64>,
                %w: tensor<4x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>) {
  %i = tensor.extract %where[] : tensor<i64>
  %at = arith.index_cast %i : i64 to index
  %z = arith.constant dense<0.0> : tensor<8x4xf32>
  %old = linalg.matmul ins(%c, %w : tensor<8x4xf32>, tensor<4x4xf32>) outs(%z : tensor<8x4xf32>) -> tensor<8x4xf32>
  %new = tensor.insert_slice %row into %c[%at, 0] [1, 4] [1, 1] : tensor<1x4xf32> into tensor<8x4xf32>
  %y = linalg.matmul ins(%new, %w : tensor<8x4xf32>, tensor<4x4xf32>) outs(%z : tensor<8x4xf32>) -> tensor<8x4xf32>
  return %old, %y, %new : tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
}
"""


def test_a_donated_input_may_be_written() -> None:
    found = answer(*lowered(DONATED))
    assert found.status == 0 and len(found.proven) == 3, str(found)


@pytest.mark.parametrize(
    ("pattern", "new", "value", "reason"),
    [
        (r", mw\.taken = array<i64: -1, -1, 0>", "", "input 0", "is written, though it is an input"),
        (r"mw\.taken = array<i64: -1, -1, 0>", "mw.taken = array<i64: -1, -1, -1>", "input 0",
         "is written, though it is an input"),
        (r', takes = 0 : i64', "", "@main", r"writes inputs [-1, -1, 0], mw.program says []"),
        (r'takes = 0 : i64', "takes = 1 : i64", "@main", "mw.program says [-1, -1, 1]"),
    ],
)  # fmt: skip
def test_a_wrong_donation_is_found(pattern: str, new: str, value: str, reason: str) -> None:
    before, after = lowered(DONATED)
    found = answer(before, changed(after, pattern, new))
    assert found.status == 1, str(found)
    assert any(f.value == value and reason in f.reason for f in found.refuted), str(found)


@pytest.mark.parametrize("offset", ["%at", "3"])
@pytest.mark.parametrize("change", ["write first", "no write"])
def test_a_state_that_is_written_wrongly_is_found(offset: str, change: str) -> None:
    """The product of the old rows comes behind the new row, or there is no new row; at a computed place: not proven."""
    before, after = lowered(DONATED.replace("[%at, 0]", f"[{offset}, 0]"))
    lines = after.splitlines(keepends=True)
    launches = [k for k, line in enumerate(lines) if "mw.launch" in line and "(%arg0," in line]
    write = next(k for k, line in enumerate(lines) if "memref.copy %arg1" in line)
    assert launches[0] < write < launches[1]
    moved = lines.pop(launches[0] if change == "write first" else write)
    if change == "write first":
        lines.insert(write, moved)
    found = answer(before, "".join(lines))
    assert found.status == (3 if offset == "%at" else 1), str(found)
    assert any("operand 0" in f.reason for f in found.refuted + found.unproven), str(found)


def test_a_kernel_that_is_another_one_proves_nothing() -> None:
    before, after = planned(LOOP)
    found = answer(before, changed(after, r"arith\.addf", "arith.subf"))
    assert found.status == 3 and not found.proven
    assert "is another kernel than that of this name" in str(found)


def test_a_buffer_lies_at_one_place() -> None:
    """Kernels are written by the number of a buffer: places that differ would be one."""
    before, after = lowered(PROGRAMS["softmax of columns"])
    place = r'("mw\.place"\(\) {buffer = )\d+(.*offset = )\d+'
    first, other = list(re.finditer(place, after))[:2]
    number, offset = re.findall(r"\d+", first[0])[0], re.findall(r"\d+", other[0])[-1]
    wrong = after.replace(other[0], other[0].replace(re.findall(r"\d+", other[0])[0], number, 1))
    found = answer(before, wrong)
    assert found.status == 3 and f"mw.place: buffer {number} lies at byte" in str(found)
    with pytest.raises(CompileError, match=f"buffer {number} lies at byte .*, here at {offset}"):
        build(wrong)
