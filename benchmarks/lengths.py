"""Programs for any size up to a bound, beside one compiled for each size: their processor time.

Both run on the same arguments in turn, and the least time of each counts, so that other work on the machine is seen
little. What a call takes beside the compiled code is told apart from it. Weights are laid out once; what a call gives
is copied.
"""

import argparse
import gc
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import meshweave as mw
from benchmarks.common import show, table
from benchmarks.length_programs import BOUND, CASES, SHAPES, WIDTH, Case, block, drawn
from meshweave.runtime.local.engine import LocalExecutable

SIZES = (1, 2, 7, 31, 64, 100, 333, 512, 1000)
FEWER = (1, 7, 100, 1000)
ROWS = (1, 2, 3, 8, 16, 64, 200, 1000)
TURNS, SECONDS = 20, 0.3  # at least so many turns, and so many seconds of turns
LAYOUTS = {
    **dict.fromkeys(("q", "k", "v", "up"), "[_, x]"), **dict.fromkeys(("o", "down"), "[x, _]"),
}  # fmt: skip


class Spent(NamedTuple):
    """Hold the least seconds of processor time of a call, and those of compiled code."""

    call: float = float("inf")
    code: float = float("inf")

    def least(self, other: "Spent") -> "Spent":
        """Return the least of both."""
        return Spent(min(self.call, other.call), min(self.code, other.code))


def main(options: argparse.Namespace) -> None:
    """Print the ratios for each program, then those of a block in other dtypes, and on ranks that share weights."""
    sizes = FEWER if options.quick else SIZES
    cases = [case for case in CASES if not options.only or case.name in options.only]
    ratios = table(f"any size up to {BOUND:,} over the own size", "program", *map(str, sizes))
    microseconds = table("microseconds, any size", "program", *map(str, sizes))
    beside = table("of these beside the code, own and any size", "program", *map(str, sizes))
    with _code_timed() as code:
        for case in cases:
            anysize = case.make(mw.Dim("n", max=BOUND))
            found = [_compared(case, rows, anysize, code) for rows in sizes]
            anysize.close()
            ratios.add_row(case.name, *(f"{other.call / one.call:.2f}" for one, other in found))
            microseconds.add_row(case.name, *(f"{other.call * 1e6:,.0f}" for _, other in found))
            pairs = [[(s.call - s.code) * 1e6 for s in pair] for pair in found]
            beside.add_row(case.name, *(f"{one:.0f} {other:.0f}" for one, other in pairs))
        for made in (ratios, microseconds, beside):
            show(made)
        if not options.only:
            for mesh, dtype in itertools.product(("", "x=2"), ("f32", "bf16")):
                _blocks(mesh, dtype, code)


def _compared(case: Case, rows: int, anysize: Any, code: list[float]) -> list[Spent]:
    """Return what a program for this size takes, and the one for any."""
    sized = case.make(rows)
    found = _least((sized, anysize), code, *case.arguments(rows))
    sized.close()
    return found


def _blocks(mesh: str, dtype: str, code: list[float]) -> None:
    """Print a table of a block in a dtype on a mesh."""
    made = table(
        f"a block of {WIDTH}, bound {BOUND}, {dtype}, mesh ({mesh})", "rows", "sized", "any size", "ratio",
    )  # fmt: skip
    layouts = {name: layout if mesh else "[_, _]" for name, layout in LAYOUTS.items()}
    kind = np.float32 if dtype == "f32" else ml_dtypes.bfloat16
    weights = {
        name: mw.Array.from_numpy(drawn(*SHAPES[name]).astype(kind), mesh=mesh, layout=layout)
        for name, layout in layouts.items()
    }
    settings: dict[str, Any] = {"mesh": mesh or None}
    settings |= {"in_layouts": ("[_, _]", layouts)} if mesh else {}
    anysize = mw.jit(block, dims={"x": (mw.Dim("n", max=BOUND), None)}, **settings)
    for rows in ROWS:
        x = np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(kind)
        sized = mw.jit(block, **settings)
        one, other = (spent.call for spent in _least((sized, anysize), code, x, weights))
        made.add_row(
            str(rows), f"{one * 1e6:,.0f} us", f"{other * 1e6:,.0f} us", f"{other / one:.2f}"
        )
        sized.close()
    anysize.close()
    show(made)


@contextmanager
def _code_timed() -> Iterator[list[float]]:
    """Yield the seconds that compiled code has taken, which may be set to 0."""
    spent, own = (
        [0.0],
        {name: getattr(LocalExecutable, name) for name in ("execute", "execute_here")},
    )

    def timed(inner: Callable[..., None]) -> Callable[..., None]:
        def run(*args: Any) -> None:
            began = time.process_time()
            inner(*args)
            spent[0] += time.process_time() - began

        return run

    for name, inner in own.items():
        setattr(LocalExecutable, name, timed(inner))
    try:
        yield spent
    finally:
        for name, inner in own.items():
            setattr(LocalExecutable, name, inner)


def _least(
    programs: tuple[Callable[..., Any], ...], code: list[float], *arguments: Any
) -> list[Spent]:
    """Return the least processor time of each program, of turns that they take."""
    for program in (*programs, *programs):
        program(*arguments)
    found = [Spent()] * len(programs)
    gc.collect()
    gc.disable()
    start, turn = time.process_time(), 0
    while turn < TURNS or time.process_time() - start < SECONDS:
        # Who comes second finds the weights in the cache.
        for k in sorted(range(len(programs)), reverse=turn % 2 == 1):
            code[0], began = 0.0, time.process_time()
            programs[k](*arguments)
            found[k] = found[k].least(Spent(time.process_time() - began, code[0]))
        turn += 1
    gc.enable()
    return found
