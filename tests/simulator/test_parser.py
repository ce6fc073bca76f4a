"""What is read of PTX text, and the one line that is said of what cannot be read or run."""

from __future__ import annotations

import numpy as np
import pytest
from simulator.kernels import HEAD, entry, run

from meshweave.simulator.ptx import EmulationError, launch, parse
from meshweave.simulator.ptx.memory import GlobalMemory
from meshweave.simulator.ptx.program import (
    Address,
    Immediate,
    PredicatePair,
    Register,
    Symbol,
    Vector,
)

CALL = (
    HEAD
    + """
.func (.param .align 8 .b8 func_retval0[8]) twice(.param .b32 twice_param_0) {
  .reg .pred %p<2>; .reg .b32 %r<9>;
  ld.param.u32 %r1, [twice_param_0]; setp.lt.u32 %p1, %r1, 8; @%p1 bra SMALL;
  st.param.b32 [func_retval0], 5; st.param.b32 [func_retval0+4], 6; ret;
SMALL: add.u32 %r2, %r1, %r1; st.param.b32 [func_retval0], %r2; st.param.b32 [func_retval0+4], %r1; ret;
}
.func (.param .b32 func_retval0) quadruple(.param .b32 quadruple_param_0) {
  .reg .b32 %r<9>; ld.param.u32 %r1, [quadruple_param_0];
  { .param .b32 param0; .param .align 8 .b8 retval0[8]; st.param.b32 [param0], %r1;
    call.uni (retval0), twice, (param0); ld.param.b32 %r2, [retval0]; ld.param.b32 %r3, [retval0+4]; }
  add.u32 %r4, %r2, %r2; add.u32 %r4, %r4, %r3; st.param.b32 [func_retval0], %r4; ret;
}
.visible .entry k(.param .u64 p0) {
  .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %d<9>;
  ld.param.u64 %d1, [p0]; mov.u32 %r1, %tid.x; mad.wide.u32 %d2, %r1, 4, %d1; mov.u32 %r3, 1000;
  setp.lt.u32 %p1, %r1, 20; @!%p1 bra SKIP;
  { .param .b32 param0; .param .b32 retval0; st.param.b32 [param0], %r1;
    call (retval0), quadruple, (param0); ld.param.b32 %r3, [retval0]; }
SKIP: st.global.u32 [%d2], %r3; ret;
}"""
)


def test_operands():
    text = """{ .reg .pred q; .reg .b32 t; setp.lt.and.u32 q|%p2, t, -5, !%p1;
    @!q ld.global.v2.b32 {%r1, _}, [%d1+-16]; mov.b32 t, 0f3F800000; bra.uni OUT; OUT: }"""
    code = parse(entry(text, 0)).functions["k"].code[4:]
    assert code[0].operands[0] == PredicatePair(Register("q@1"), Register("%p2"))
    assert code[0].operands[2] == Immediate(-5)
    assert (code[1].guard, code[1].negated) == ("q@1", True)
    assert code[1].operands == (
        Vector((Register("%r1"), Symbol("_"))),
        Address(Register("%d1"), -16),
    )
    assert code[2].operands[1] == Immediate(0x3F800000, "f32")
    assert code[1].types == ["b32"] and code[0].opcode == "setp.lt.and.u32"


def test_comments_directives_and_declarations_are_passed_over():
    text = f"""{HEAD}// a comment
    .extern .func (.param .b32 r) vprintf(.param .b64 f); /* more
    lines */ .file 1 "x.py"
    .visible .entry k(.param .u64 p) .maxntid 128, 1, 1 .minnctapersm 2 {{
    .loc 1 2 3
    .pragma "nounroll";
    ret; }}"""
    module = parse(text)
    assert module.entries == ("k",) and module.functions["k"].max_threads == 128
    with pytest.raises(EmulationError, match="k: 256 threads a block, made for at most 128"):
        launch(module, "k", (1, 1, 1), (256, 1, 1), 0, [bytes(8)], GlobalMemory())
    with pytest.raises(EmulationError, match='no kernel "other" in the module; there are: k'):
        launch(module, "other", (1, 1, 1), (32, 1, 1), 0, [], GlobalMemory())


def test_calls_of_functions():
    out = np.zeros(32, np.uint32)
    run(CALL, [out])
    x = np.arange(32)
    assert np.array_equal(out, np.select([x < 8, x < 20], [5 * x, 16], 1000))


UNREADABLE = {
    "a character": ("mov.u32 %r1, 5 ? 6;", r"ptx line 12: unexpected character '\?'"),
    "no instruction": ("5 %r1;", r'ptx line 12: cannot read "5" as an instruction'),
    "a type": (".reg .fast %x;", r'ptx line 12: cannot read "fast" as a type'),
    "an end": ("mov.u32 %r1 %r2;", r'ptx line 12: cannot read "%r2" after an operand of mov.u32'),
    "an offset": ("ld.global.u32 %r1, [%d1+x];", r'ptx line 12: cannot read "x" as a number'),
}
REFUSED = {
    "an instruction": ("frobnicate.u32 %r1, %r2;", r"ptx line 12: frobnicate.u32: not emulated"),
    "a tensor copy": (
        "cp.async.bulk.commit_group;", r"ptx line 12: cp.async.bulk.commit_group: not emulated"),
    "an mbarrier": ("mbarrier.init.shared.b64 [%r1], 1;", r"ptx line 12: mbarrier.init.*: not emulated"),
    "a register": ("add.u32 %r1, %r2, %q3;", r"k: special register %q3 is not emulated"),
    "a target": ("add.u32 5, %r1, %r2;", r"ptx line 12: add.u32: the first operand cannot be written"),
    "a guard": ("@%r1 bra NEAR; NEAR:", r"ptx line 12: bra: register %r1 has 32 bits and is used as pred"),
    "a half": ("mov.u64 %d1, %tid.x;", r"ptx line 12: mov.u64: %tid.x has 32 bits and is used as u64"),
    "a width": ("add.u64 %d1, %r1, %d2;", r"ptx line 12: add.u64: register %r1 has 32 bits"),
    "a missing operand": ("add.u32 %r1, %r2;", r"ptx line 12: add.u32: operand 3 is missing"),
    "a label": ("bra NOWHERE;", r"ptx line 12: bra: no label NOWHERE"),
    "a function": ("call.uni gone, (%r1);", r'ptx line 12: call.uni: no function "gone" in the module'),
    "a variable": ("mov.u64 %d1, gone;", r'k: no variable "gone"'),
    "a special register": ("mov.u32 %r1, %smid;", r"k: special register %smid is not emulated"),
    "a shape": (
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r1, %r2, %r3, %r4}, {%r1, %r2, %r3, %r4}, "
        "{%r1, %r2}, {%r1, %r2, %r3, %r4};", r"ptx line 12: mma.sync.*: not emulated"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREADABLE)
def test_text_that_cannot_be_read(name):
    body, message = UNREADABLE[name]
    with pytest.raises(EmulationError, match=message) as caught:
        parse(entry(body, 1))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_emulated_is_named_with_its_line(name):
    body, message = REFUSED[name]
    with pytest.raises(EmulationError, match=message) as caught:
        run(entry(body, 1), [np.zeros(4, np.uint8)])
    assert "\n" not in str(caught.value)


def test_text_that_ends_too_early():
    with pytest.raises(EmulationError, match="cannot read end of text"):
        parse(f"{HEAD}.visible .entry k(.param .u64 p) {{ mov.u32 %r1, ")
