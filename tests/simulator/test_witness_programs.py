"""Programs through the witness, which runs LLVM IR, and the emulator, which runs PTX: they share no code, and
must agree.

Bits may differ where the compiler may choose which of two products is fused with their sum (`contract`), and by
the last place of what NumPy and the host's library compute in f64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="the back end for gpus is not installed")

from gpu.programs import causal
from lowering.gpu import maps_and_rows as programs
from lowering.gpu.device_runs import NUMPY, DeviceRun
from lowering.gpu.maps_and_rows import FLOATS, stored
from lowering.gpu.products import Case
from simulator.witnesses import apart, witness

from benchmarks.gpu.programs import Case as Attention
from meshweave.lowering.gpu.families import registry as families
from meshweave.lowering.gpu.families.gemm import wgmma
from meshweave.lowering.gpu.kernel import Target

PASSES = "dist-propagate,dist-partition,select-kernels{target=gpu},canonicalize,cse"
Made = tuple[DeviceRun, Sequence[np.ndarray]]


def numbers(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Random ones."""
    rng = np.random.default_rng(len(shape) + sum(shape))
    if dtype not in FLOATS:
        return rng.integers(-100, 100, shape).astype(NUMPY[dtype])
    return stored(rng.standard_normal(shape) * 3, dtype)


def special(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Among floats also zeros of both signs, infinities, a NaN, and numbers too small for a normal one."""
    values = numbers(shape, dtype)
    given = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 65504.0]
    if dtype in FLOATS:
        places = values.reshape(-1)[:: values.size // len(given)]
        places[: len(given)] = stored(np.array(given), dtype)
    return values


def of(text: str, *inputs: np.ndarray, **target: Any) -> Made:
    return DeviceRun(text, Target(**{"chip": "sm_80", **target}), assemble=False), inputs


def product(chip: str = "sm_80", whole: bool = True, **sizes: Any) -> Made:
    case = Case(**sizes)
    return of(
        case.text(), *case.inputs(3, whole), chip=chip, tf32=case.dtype == "f32" and chip == "sm_90"
    )


def attention(chip: str, queries: int, keys: int, width: int, dtype: str) -> Made:
    shapes = (1, queries, width), (1, keys, width), (1, keys, width)
    case = Attention("attention", causal, shapes)
    run = DeviceRun(case.text(dtype), Target(chip=chip), assemble=False, passes=PASSES)
    return run, [stored(x, dtype) for x in case.arguments(dtype)]


def functions(dtype: str) -> Made:
    names = ("exp", "log", "sqrt", "rsqrt", "tanh", "sin", "cos", "erf", "log1p")
    kind = programs.tensor((40,), dtype)
    lines = "\n".join(f"%{k} = math.{n} %a0 : {kind}" for k, n in enumerate(names))
    results, kinds = ", ".join(f"%{k}" for k in range(len(names))), ", ".join([kind] * len(names))
    text = f"func.func @main(%a0: {kind}) -> ({kinds}) {{\n{lines}\nreturn {results} : {kinds}\n}}"
    return of(text, special((40,), dtype))


def softmax(rows: int, columns: int, dtype: str) -> Made:
    return of(programs.softmax(rows, columns, dtype), numbers((rows, columns), dtype))


def norm(rows: int, columns: int, dtype: str) -> Made:
    edge = numbers((columns,), dtype)
    return of(
        programs.layer_norm(rows, columns, dtype), numbers((rows, columns), dtype), edge, edge
    )


def reduced(shape: Sequence[int], over: Sequence[int], dtype: str, how: Any, **target: Any) -> Made:
    return of(programs.reduced(shape, over, dtype, how), special(shape, dtype), **target)


def transposed(shape: Sequence[int], order: Sequence[int], dtype: str) -> Made:
    left = [shape[d] for d in order]
    return of(programs.transposed(shape, order, dtype), special(shape, dtype), numbers(left, dtype))


# Name -> the program, and how far apart results may be: units of the last place of the largest element.
PROGRAMS: dict[str, tuple[Callable[[], Made], float]] = {
    "gemm_mma, bf16": (lambda: product(m=32, n=40, k=130, dtype="bf16", result="f32"), 0),
    "softmax in a block": (lambda: softmax(2, 1100, "f32"), 2),
    "sums of columns": (lambda: reduced((70, 64), [0], "f32", programs.SUM), 0),
    "transpose in tiles": (lambda: transposed((37, 41), (1, 0), "bf16"), 0),
    "functions of f32": (lambda: functions("f32"), 2),
    "flash": (lambda: attention("sm_80", 9, 70, 16, "bf16"), 4),
    "gemm_wgmma": (lambda: product("sm_90a", m=64, n=64, k=130, dtype="bf16", result="f32"), 0),
    "gemm_fma": (lambda: product(m=33, n=40, k=20, dtype="f32"), 0),
    "gemm_mma, f16, turned": (lambda: product(m=33, n=32, k=70, dtype="f16", turned_a=True, turned_b=True), 0),
    "gemm_tf32": (lambda: product("sm_90", m=33, n=40, k=70, dtype="f32"), 0),
    "gemm_rows": (lambda: product(m=4, n=64, k=256, dtype="bf16", result="f32"), 0),
    "softmax in warps": (lambda: softmax(9, 33, "bf16"), 1),
    "norm": (lambda: norm(5, 70, "f32"), 32),
    "functions of f64": (lambda: functions("f64"), 4),
    "largest of all": (lambda: reduced((40003,), [0], "bf16", programs.LARGEST), 0),
    "sum of whole numbers": (lambda: reduced((9, 300), [1], "i32", programs.WHOLE_SUM), 0),
    "product of f64": (lambda: reduced((3, 50), [1], "f64", programs.PRODUCT), 0),
    "any, plain": (lambda: reduced((3, 50), [1], "i1", programs.ANY, disabled=frozenset(families.FAMILIES)), 0),
    "transpose in registers": (lambda: transposed((32, 64), (1, 0), "f32"), 0),
    "transpose of bytes": (lambda: transposed((3, 37, 41), (2, 0, 1), "i8"), 0),
    "norm of f16": (lambda: norm(3, 1030, "f16"), 2),
    "random gemm_mma": (lambda: product(m=33, n=40, k=70, dtype="bf16", whole=False), 2),
    "flash on hopper": (lambda: attention("sm_90a", 70, 70, 64, "f16"), 4),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_witness_and_emulator_agree(name, monkeypatch):
    monkeypatch.setattr(wgmma, "ENOUGH", 1)
    make, limit = PROGRAMS[name]
    run, inputs = make()
    wanted = run.run(*inputs)
    first = run.run(*inputs, launch=witness(run.target.chip))
    for one, other, (_, kind) in zip(first, wanted, run.results):
        assert apart(one, other, kind) <= limit
    again = run.run(*inputs, launch=witness(run.target.chip, seed=1))
    assert [x.tobytes() for x in first] == [x.tobytes() for x in again], (
        "the order of threads shows"
    )
