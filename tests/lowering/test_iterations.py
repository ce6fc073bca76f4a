"""Loops whose iterations cores share, and loops that they must not share; what both compute on any number of cores."""

from __future__ import annotations

import numpy as np
import pytest
from lowering.harness import compile_text

from meshweave.api.program import Program
from meshweave.bundle import Bundle
from meshweave.lowering.cpu import emitter, iterations, pieces
from meshweave.runtime.local.engine import LocalEngine

ROWS, WIDTH = 12, 40


@pytest.fixture(autouse=True)
def loops(monkeypatch):
    """Cut all kernels and share all loops that allow it; the loops that were shared."""
    found = []

    def noted(*given):
        loop = iterations.shared_loop(*given)
        found.extend([loop] if loop is not None else [])
        return loop

    monkeypatch.setattr(pieces, "GRAIN", 1)
    monkeypatch.setattr(emitter, "shared_loop", noted)
    return found


def program(body: str, rows: int = ROWS, lower: int = 0, step: int = 1) -> Bundle:
    """A loop over `%i` from `lower` that makes a new `%into`, ROWS x WIDTH, of it and of the argument `%a`."""
    matrix = f"tensor<{ROWS}x{WIDTH}xf32>"
    return compile_text(f"""
func.func @main(%a: {matrix}) -> {matrix} {{
  %lower = arith.constant {lower} : index
  %upper = arith.constant {rows} : index
  %step = arith.constant {step} : index
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : {matrix}
  %start = linalg.fill ins(%zero : f32) outs(%e : {matrix}) -> {matrix}
  %r = scf.for %i = %lower to %upper step %step iter_args(%into = %start) -> {matrix} {{
    {body}
    scf.yield %new : {matrix}
  }}
  return %r : {matrix}
}}""")


def rows(count: int, read: str, write: str, of: str = "%a") -> str:
    """Write the order of each of `count` rows of `of`, plus the row, from row `read` to row `write`."""
    part, matrix = f"tensor<{count}x{WIDTH}xf32>", f"tensor<{ROWS}x{WIDTH}xf32>"
    return f"""
    %x = tensor.extract_slice {of}[{read}, 0] [{count}, {WIDTH}] [1, 1] : {matrix} to {part}
    %t = tensor.empty() : tensor<{WIDTH}x{count}xf32>
    %y = linalg.transpose ins(%x : {part}) outs(%t : tensor<{WIDTH}x{count}xf32>) permutation = [1, 0]
    %z = "mw.order"(%y) {{dim = 0 : i64, count = {WIDTH} : i64}}
      : (tensor<{WIDTH}x{count}xf32>) -> tensor<{WIDTH}x{count}xi32>
    %f = arith.sitofp %z : tensor<{WIDTH}x{count}xi32> to tensor<{WIDTH}x{count}xf32>
    %b = tensor.empty() : {part}
    %w = linalg.transpose ins(%f : tensor<{WIDTH}x{count}xf32>) outs(%b : {part}) permutation = [1, 0]
    %v = arith.addf %w, %x : {part}
    %new = tensor.insert_slice %v into %into[{write}, 0] [{count}, {WIDTH}] [1, 1] : {part} into {matrix}"""


def result(a: np.ndarray) -> np.ndarray:
    return (np.argsort(a, axis=1, kind="stable") + a).astype(np.float32)


def check(bundle: Bundle, a: np.ndarray, wanted: np.ndarray) -> None:
    for cores in (1, 2, 3, 20):
        with Program(bundle, LocalEngine(timeout=30, cores=cores)) as loaded:
            for _ in range(20):
                np.testing.assert_array_equal(np.asarray(loaded(a)[0]), wanted)


def given() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)


def test_iterations_that_write_rows_of_their_own_are_shared(loops):
    a = given()
    check(program(rows(1, "%i", "%i")), a, result(a))
    assert [loop.count for loop in loops] == [ROWS] and loops[0].own


def test_a_loop_may_begin_anywhere_and_take_steps(loops):
    a, wanted = given(), np.zeros((ROWS, WIDTH), np.float32)
    wanted[3:] = result(a)[3:]
    check(program(rows(3, "%i", "%i"), lower=3, step=3), a, wanted)
    assert not loops  # of three iterations
    wanted[2:] = result(a)[2:]
    check(program(rows(2, "%i", "%i"), lower=2, step=2), a, wanted)
    assert [loop.count for loop in loops] == [5]


def test_rows_that_are_computed_from_the_counter(loops):
    a, wanted = given(), np.zeros((ROWS, WIDTH), np.float32)
    wanted[1::2] = result(a)[0:6]
    place = """%two = arith.constant 2 : index
    %one = arith.constant 1 : index
    %d = arith.muli %i, %two : index
    %k = arith.addi %d, %one : index"""
    check(program(place + rows(1, "%i", "%k"), rows=6), a, wanted)
    assert [loop.count for loop in loops] == [6]


def test_iterations_that_write_over_each_other_are_not_shared(loops):
    a, wanted = given(), np.zeros((ROWS, WIDTH), np.float32)
    for i in range(ROWS - 1):
        wanted[i : i + 2] = result(a[i : i + 2])
    check(program(rows(2, "%i", "%i"), rows=ROWS - 1), a, wanted)
    constant = "%k = arith.constant 4 : index"
    wanted = np.zeros((ROWS, WIDTH), np.float32)
    wanted[4] = result(a)[ROWS - 1]
    check(program(constant + rows(1, "%i", "%k")), a, wanted)
    assert not loops


def test_iterations_that_read_what_another_wrote_are_not_shared(loops):
    a, wanted = given(), np.zeros((ROWS, WIDTH), np.float32)
    before = "%one = arith.constant 1 : index\n%k = arith.subi %i, %one : index"
    for i in range(1, ROWS):
        wanted[i] = result(wanted[i - 1 : i])[0]
    check(program(before + rows(1, "%k", "%i", of="%into"), lower=1), a, wanted)
    assert not loops


def test_slices_that_do_not_fit_the_cache_stay_one_after_the_other(loops, monkeypatch):
    monkeypatch.setattr(iterations, "cache_bytes", lambda: 64)
    a = given()
    check(program(rows(1, "%i", "%i")), a, result(a))
    assert not loops
