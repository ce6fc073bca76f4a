"""What the witness does with small kernels written in LLVM IR: what threads see of each other, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="the back end for gpus is not installed")

from meshweave.simulator.witness import WitnessError, missing_here, witnessed

if missing_here():
    pytest.skip(f"no {missing_here()} here", allow_module_level=True)

TID = "%t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()"
DECLARED = """
@shared = external addrspace(3) global [0 x i8], align 16
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
declare void @llvm.nvvm.barrier.cta.sync.count(i32, i32)
declare void @llvm.nvvm.barrier.cta.arrive.count(i32, i32)
declare i32 @llvm.nvvm.shfl.sync.{way}.i32(i32, i32, i32, i32)
declare void @llvm.nvvm.cp.async.ca.shared.global.4(ptr addrspace(3), ptr addrspace(1))
declare void @llvm.nvvm.cp.async.commit.group()
declare void @llvm.nvvm.cp.async.wait.group(i32 immarg)
"""


def run(body: str, *arrays: Any, block: int = 32, shared: int = 0, seed: int = 0, grid: int = 1,
        more: str = "", way: str = "bfly") -> None:  # fmt: skip
    """Launch a kernel of this body on arrays, in place: pointers %p0, %p1, ..; %t is the thread's number."""
    listed = ", ".join(f"ptr addrspace(1) %p{k}" for k in range(len(arrays)))
    text = f"{DECLARED.replace('{way}', way)}{more}\ndefine ptx_kernel void @k({listed}) {{\n{TID}\n{body}\n}}"
    given = [x.ctypes.data.to_bytes(8, "little") for x in arrays]
    buffers = [(x.ctypes.data, x.nbytes) for x in arrays]
    witnessed(text).launch("k", (grid, 1, 1), (block, 1, 1), shared, given, buffers, seed)


def place(name: str, index: str, pointer: str = "%p0", space: int = 1, size: int = 4) -> str:
    return f"%{name} = getelementptr [{size} x i8], ptr addrspace({space}) {pointer}, i32 {index}"


EXCHANGE = f"""{place("mine", "%t", "@shared", 3)}
store i32 %t, ptr addrspace(3) %mine, align 4
BARRIER
%o = sub i32 63, %t
{place("other", "%o", "@shared", 3)}
%v = load i32, ptr addrspace(3) %other, align 4
{place("out", "%t")}
store i32 %v, ptr addrspace(1) %out, align 4
ret void"""


@pytest.mark.parametrize("seed", range(3))
def test_witness_threads_meet_at_a_barrier(seed):
    out = np.zeros(64, np.int32)
    barrier = "call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)"
    run(EXCHANGE.replace("BARRIER", barrier), out, block=64, shared=256, seed=seed)
    assert (out == 63 - np.arange(64)).all()
    run(EXCHANGE.replace("BARRIER", ""), out, block=64, shared=256, seed=seed)
    assert (out == -1).any(), "somebody reads before it is written, in every order"


def test_witness_barriers_that_one_side_does_not_wait_at():
    out = np.zeros(64, np.int32)
    body = f"""{place("out", "%t")}
    {place("mine", "%t", "@shared", 3)}
    %first = icmp ult i32 %t, 32
    br i1 %first, label %give, label %take
    give:
    store i32 %t, ptr addrspace(3) %mine, align 4
    call void @llvm.nvvm.barrier.cta.arrive.count(i32 3, i32 64)
    ret void
    take:
    call void @llvm.nvvm.barrier.cta.sync.count(i32 3, i32 64)
    %o = sub i32 %t, 32
    {place("other", "%o", "@shared", 3)}
    %v = load i32, ptr addrspace(3) %other, align 4
    store i32 %v, ptr addrspace(1) %out, align 4
    ret void"""
    for seed in range(3):
        run(body, out, block=64, shared=256, seed=seed)
        assert (out[32:] == np.arange(32)).all()


LANES = np.arange(32)
SHUFFLES = {  # way, distance or lane, clamp -> the lane that a value comes from
    ("bfly", 5, 31): LANES ^ 5,
    ("bfly", 3, 0x1C1F): LANES ^ 3,
    ("down", 3, 31): np.where(LANES + 3 < 32, LANES + 3, LANES),
    ("down", 3, 0x181F): np.where(LANES % 8 + 3 < 8, LANES + 3, LANES),
    ("up", 2, 0): np.where(LANES >= 2, LANES - 2, LANES),
    ("up", 2, 0x1800): np.where(LANES % 8 >= 2, LANES - 2, LANES),
    ("idx", 7, 31): np.full(32, 7),
    ("idx", 1, 0x181F): LANES // 8 * 8 + 1,
}


@pytest.mark.parametrize("case", SHUFFLES)
def test_witness_shuffles(case):
    (way, by, clamp), out = case, np.zeros(64, np.int32)
    body = f"""%v = call i32 @llvm.nvvm.shfl.sync.{way}.i32(i32 -1, i32 %t, i32 {by}, i32 {clamp})
    {place("out", "%t")}
    store i32 %v, ptr addrspace(1) %out, align 4
    ret void"""
    run(body, out, block=64, way=way)
    assert (out[:32] == SHUFFLES[case]).all() and (out[32:] == SHUFFLES[case] + 32).all()


COPY = f"""{place("from", "%t")}
{place("to", "%t", "@shared", 3)}
call void @llvm.nvvm.cp.async.ca.shared.global.4(ptr addrspace(3) %to, ptr addrspace(1) %from)
call void @llvm.nvvm.cp.async.commit.group()
WAIT
%v = load i32, ptr addrspace(3) %to, align 4
{place("out", "%t", "%p1")}
store i32 %v, ptr addrspace(1) %out, align 4
LATER
ret void"""


def test_witness_copies_land_no_later_than_the_wait_for_them():
    given, out = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    wait = "call void @llvm.nvvm.cp.async.wait.group(i32 {})"
    body = COPY.replace("WAIT", wait.format(0)).replace("LATER", "")
    for seed in range(3):
        run(body, given, out, shared=128, seed=seed)
        assert (out == given).all()
    late = COPY.replace("WAIT", wait.format(1)).replace("LATER", wait.format(0))
    run(late, given, out, shared=128, seed=0)
    assert (out == -1).all()
    run(late, given, out, shared=128, seed=2)
    assert (out == given).all(), "or at once"
    with pytest.raises(WitnessError, match=r"ends before copies have landed that it asked for"):
        run(COPY.replace("WAIT", "").replace("LATER", ""), given, out, shared=128)


BAD = {
    "outside": (f"{place('a', '32')}\n%v = load i32, ptr addrspace(1) %a, align 4\nret void",
                r"4 bytes at 0x\w+ are outside every buffer: %v = load i32"),
    "askew": (f"{place('a', '1', size=2)}\n%v = load i32, ptr addrspace(1) %a, align 4\nret void",
              "not aligned as promised"),
    "shared": (f"{place('a', '2', '@shared', 3)}\nstore i32 1, ptr addrspace(3) %a, align 4\nret void",
               "outside every buffer"),
    "endless": ("br label %l\nl:\nbr label %l", "does not end: too many branches"),
    "zero": ("%q = udiv i32 5, %t\nret void", "a quotient that there is not: %q = udiv i32 5, %t"),
    "divided": ("%c = icmp eq i32 %t, 3\nbr i1 %c, label %l, label %m\nl:\n"
                "call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)\nret void\nm:\nret void",
                "thread 3 of block 0: waits for ever at barrier.cta.sync.aligned.all: 1 threads wait, 31 have ended"),
    "lane": ("%v = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 1, i32 %t, i32 1, i32 31)\nret void",
             "does not name itself"),
    "asm": ('call void asm sideeffect "griddepcontrol.wait;", ""()\nret void',
            "griddepcontrol.wait: not known to the witness"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_witness_says_what_a_thread_did(name):
    body, message = BAD[name]
    with pytest.raises(WitnessError, match=message):
        run(body, np.zeros(32, np.int32), shared=8)


@pytest.mark.parametrize(("declared", "message"), [
    ("declare i32 @llvm.nvvm.read.ptx.sreg.clusterid.x()", "read.ptx.sreg.clusterid.x: not known to the witness"),
    ("declare i32 @vprintf(ptr, ptr)", "vprintf: not known to the witness"),
])  # fmt: skip
def test_witness_refuses_by_name_what_it_does_not_know(declared, message):
    with pytest.raises(WitnessError, match=message):
        run("ret void", np.zeros(1, np.int32), more=declared)


def test_witness_rounds_as_the_instructions_say():
    """Each of them beside exact sums and quotients; approximations are rounded once, subnormals flushed."""
    rng = np.random.default_rng(4)
    x, y = (
        np.ldexp(rng.standard_normal(32), rng.integers(-9, 9, 32)).astype(np.float32) for _ in "xy"
    )
    x[0], y[0] = 1e-38, 3e-39
    calls = ["add.rz.f", "mul.rm.f", "div.rp.f", "fma.rz.f", "add.rn.ftz.f"]
    out = np.zeros((len(calls), 32), np.float32)
    lines = [place("a", "%t"), place("b", "%t", "%p1"), "%x = load float, ptr addrspace(1) %a, align 4",
             "%y = load float, ptr addrspace(1) %b, align 4"]  # fmt: skip
    for k, name in enumerate(calls):
        operands = "float %x, float %y" + (", float %x" if "fma" in name else "")
        lines += [f"%r{k} = call float @llvm.nvvm.{name}({operands})", f"%n{k} = add i32 %t, {32 * k}",
                  place(f"o{k}", f"%n{k}", "%p2"), f"store float %r{k}, ptr addrspace(1) %o{k}, align 4"]  # fmt: skip
    more = "\n".join(
        f"declare float @llvm.nvvm.{n}({', '.join(['float'] * (3 if 'fma' in n else 2))})"
        for n in calls
    )
    run("\n".join([*lines, "ret void"]), x, y, out, more=more)
    a, b = x.astype(np.longdouble), y.astype(np.longdouble)
    exact = [a + b, a * b, a / b, a * b + a]
    for found, wanted, name in zip(out, exact, calls):
        below = np.nextafter(found, np.float32(-np.inf)).astype(np.longdouble)
        above = np.nextafter(found, np.float32(np.inf)).astype(np.longdouble)
        value = found.astype(np.longdouble)
        if ".rz" in name:
            assert (abs(value) <= abs(wanted)).all() and (
                (below <= wanted) & (wanted <= above)
            ).all()
        else:
            assert (
                (value <= wanted) & (wanted < above)
                if ".rm" in name
                else (below < wanted) & (wanted <= value)
            ).all()
    assert out[4, 0] == np.float32(0) and (out[4, 1:] == x[1:] + y[1:]).all()


def test_witness_blocks_come_in_any_order():
    out = np.zeros(1, np.int32)
    body = """%b = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
    store i32 %b, ptr addrspace(1) %p0, align 4
    ret void"""
    last = set()
    for seed in range(8):
        run(body, out, block=1, grid=4, seed=seed)
        last.add(int(out[0]))
    assert len(last) > 1 and last <= set(range(4))
