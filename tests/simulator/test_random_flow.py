"""Random programs of branches, loops and early ends, against an interpreter of one thread."""

from __future__ import annotations

from typing import Any

import numpy as np
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.kernels import entry, run

MASK = 0xFFFFFFFF
registers = st.integers(1, 3)
# ("set", a, b, number): a = a * 5 + b + number; ("if", a, bit, then, else); ("loop", a, body): body
# (a & 3) times, in a counter of its own; ("stop", a, number): end where a & 15 == number;
# ("leave", a, bit): out of the innermost loop.
simple = st.one_of(
    st.tuples(st.just("set"), registers, registers, st.integers(0, 99)),
    st.tuples(st.just("stop"), registers, st.integers(0, 15)),
    st.tuples(st.just("leave"), registers, st.integers(0, 4)),
)
programs = st.recursive(
    st.lists(simple, max_size=3),
    lambda inner: st.lists(
        st.one_of(
            simple,
            st.tuples(st.just("if"), registers, st.integers(0, 4), inner, inner),
            st.tuples(st.just("loop"), registers, inner),
        ),
        max_size=4,
    ),
    max_leaves=12,
)


class Text:
    """The PTX of a program."""

    def __init__(self, program: list[Any]) -> None:
        self.lines: list[str] = []
        self.count = 0
        self.block(program, "END")

    def block(self, program: list[Any], out: str) -> None:
        for statement in program:
            getattr(self, f"do_{statement[0]}")(out, *statement[1:])

    def fresh(self) -> int:
        self.count += 1
        return self.count

    def do_set(self, out: str, a: int, b: int, number: int) -> None:
        self.lines += [f"mad.lo.u32 %r{a}, %r{a}, 5, %r{b};", f"add.u32 %r{a}, %r{a}, {number};"]

    def do_stop(self, out: str, a: int, number: int) -> None:
        self.lines += [f"and.b32 %r9, %r{a}, 15;", f"setp.eq.u32 %p1, %r9, {number};", "@%p1 ret;"]

    def test(self, a: int, bit: int) -> None:
        self.lines += [f"bfe.u32 %r9, %r{a}, {bit}, 1;", "setp.ne.u32 %p1, %r9, 0;"]

    def do_leave(self, out: str, a: int, bit: int) -> None:
        self.test(a, bit)
        self.lines.append(f"@%p1 bra {out};")

    def do_if(self, out: str, a: int, bit: int, then: list[Any], other: list[Any]) -> None:
        number = self.fresh()
        self.test(a, bit)
        self.lines.append(f"@!%p1 bra ELSE{number};")
        self.block(then, out)
        self.lines += [f"bra JOIN{number};", f"ELSE{number}:"]
        self.block(other, out)
        self.lines.append(f"JOIN{number}:")

    def do_loop(self, out: str, a: int, body: list[Any]) -> None:
        number = self.fresh()
        counter = f"%c{number}"
        self.lines += [f".reg .b32 {counter};", f"and.b32 {counter}, %r{a}, 3;", f"HEAD{number}:"]
        self.lines += [f"setp.eq.u32 %p2, {counter}, 0;", f"@%p2 bra DONE{number};"]
        self.lines.append(f"sub.u32 {counter}, {counter}, 1;")
        self.block(body, f"DONE{number}")
        self.lines += [f"bra HEAD{number};", f"DONE{number}:"]


class _Leave(Exception):
    pass


class _Stop(Exception):
    pass


def interpreted(program: list[Any], r: list[int]) -> None:
    """Do a program on the registers of one thread."""
    for name, a, *rest in program:
        if name == "set":
            r[a] = (r[a] * 5 + r[rest[0]] + rest[1]) & MASK
        elif name == "stop" and r[a] & 15 == rest[0]:
            raise _Stop
        elif name == "leave" and r[a] >> rest[0] & 1:
            raise _Leave
        elif name == "if":
            interpreted(rest[1] if r[a] >> rest[0] & 1 else rest[2], r)
        elif name == "loop":
            try:
                for _ in range(r[a] & 3):
                    interpreted(rest[0], r)
            except _Leave:
                pass


def alone(program: list[Any], number: int) -> int:
    """What thread `number` stores: r1 + 7 r2 + 11 r3, or nothing (0)."""
    r = [0, number, number * 37 & MASK, 5]
    try:
        interpreted(program, r)
    except _Leave:
        pass  # outside of every loop it goes to the end
    except _Stop:
        return 0
    return (r[1] + 7 * r[2] + 11 * r[3]) & MASK


@settings(max_examples=examples(80), deadline=None)
@given(program=programs)
def test_each_thread_gets_what_it_would_get_alone(program):
    body = "mov.u32 %r1, %r30; mul.lo.u32 %r2, %r30, 37; mov.u32 %r3, 5;\n"
    body += "\n".join(Text(program).lines)
    body += """\nEND: mad.lo.u32 %r1, %r2, 7, %r1; mad.lo.u32 %r1, %r3, 11, %r1;
    mad.wide.u32 %d1, %r30, 4, %d20; st.global.u32 [%d1], %r1;"""
    out = np.zeros(96, np.uint32)
    run(entry(body, 1), [out], grid=2, block=48)
    assert out.tolist() == [alone(program, number) for number in range(96)]
