"""State that stays on the GPU over many calls: donated caches, parameters that are copied once, results that go in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from gpu.programs import TOLERANCE

from benchmarks.gpu.programs import Case, Function, gelu, rounded, softmax
from meshweave.runtime.arrays.array import Array
from meshweave.runtime.arrays.elements import narrow, wide
from meshweave.runtime.gpu.inside import GpuProgram
from meshweave.runtime.gpu.interface import LT_UNSUPPORTED
from meshweave.runtime.gpu.libraries import SystemLibrary

STEPS, ROWS, WIDTH = 5, 8, 64


@dataclass(frozen=True)
class Step:
    """A program with state. function(xp, *arrays): gives a result, then the new state, which takes the buffers of the
    last `len(state)` arguments; the first `new` arguments are other ones in each call, the others are parameters.
    """

    name: str
    function: Function
    shapes: tuple[tuple[int, ...], ...]
    layouts: tuple[str, ...]
    result: str
    state: int
    new: int = 2
    mesh: str = "x=1"

    def build(self, dtype: str, engine: str, chip: str) -> Any:
        """Its bundle."""
        import meshweave as mw
        from meshweave.api.program import build

        first = len(self.shapes) - self.state
        jitted = mw.jit(
            lambda *arrays: self.function(mw, *arrays), mesh=self.mesh, in_layouts=self.layouts,
            out_layouts=(self.result, *self.layouts[first:]),
        )  # fmt: skip
        text = jitted.lower(*(np.zeros(s, np.float32) for s in self.shapes)).as_text()
        if dtype != "f32":
            text = text.replace("0xFF800000", "0xFF80").replace("f32", dtype)
        donated = dict.fromkeys(range(first, len(self.shapes)), "required")
        return build(text, name=self.name, engine=engine, chip=chip, donate=donated)

    def arguments(self, dtype: str, call: int) -> list[np.ndarray]:
        """What is new in a call, then the parameters, then the state at the beginning: zeros."""
        given = []
        for k, shape in enumerate(self.shapes):
            rng = np.random.default_rng(100 * k + (call if k < self.new else 0))
            given.append(rounded(rng.standard_normal(shape).astype(np.float32), dtype))
        if self.name.startswith("decode"):
            given[1] = (np.arange(ROWS) == call).astype(given[1].dtype)[:, None]
        for k in range(self.state):
            given[-1 - k] = np.zeros_like(given[-1 - k])
        return given


def decode(xp: Any, t: Any, at: Any, wk: Any, wv: Any, keys: Any, values: Any) -> Any:
    """One token of a layer of attention: its key and value go to row `at` of the caches."""
    keys, values = keys * (1 - at) + at * (t @ wk / 8), values * (1 - at) + at * (t @ wv / 8)
    scores = t @ xp.permute_dims(keys, (1, 0))
    return softmax(xp, scores) @ values, keys, values


def momentum(xp: Any, x: Any, y: Any, w: Any, speed: Any) -> Any:
    """One step of descent: the state is a matrix and how fast it moves."""
    apart = gelu(xp, x @ w) - y
    speed = 0.5 * speed + xp.permute_dims(x, (1, 0)) @ apart / 64
    return xp.sum(apart * apart, axis=0), w - 0.1 * speed, speed


_DECODE = ((1, WIDTH), (ROWS, 1), (WIDTH, WIDTH), (WIDTH, WIDTH), (ROWS, WIDTH), (ROWS, WIDTH))
STEPPED = {
    step.name: step
    for step in (
        Step("decode", decode, _DECODE, ("[_, _]",) * 6, "[_, _]", 2),
        Step(
            "decode_parallel", decode, _DECODE,
            ("[_, _]", "[_, _]", "[_, x]", "[_, x]", "[_, x]", "[_, x]"), "[_, _]", 2, mesh="x=2",
        ),
        Step(
            "momentum", momentum, ((32, 48), (32, 40), (48, 40), (48, 40)), ("[_, _]",) * 4, "[_]", 2,
        ),
        Step(
            "momentum_parallel", momentum, ((32, 48), (32, 40), (48, 40), (48, 40)),
            ("[x, _]", "[x, _]", "[_, _]", "[_, _]"), "[_]", 2, mesh="x=2",
        ),
    )
}  # fmt: skip


def arrays_of(step: Step, bundle: Any, given: list[np.ndarray]) -> list[Array]:
    ports = bundle.manifest.inputs
    return [
        Array.from_numpy(value, mesh=step.mesh, layout=port.layout, dtype=port.dtype)
        for value, port in zip(given[step.new :], ports[step.new :])
    ]


def check(value: np.ndarray, right: np.ndarray, dtype: str) -> None:
    """Compare with what float64 gives, to a few roundings of the largest element in each step."""
    limit = STEPS * TOLERANCE[dtype] * np.abs(right).max()
    np.testing.assert_allclose(value, right, rtol=0, atol=limit)


@pytest.mark.parametrize("graph", [False, True], ids=["enqueued", "graph"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", STEPPED)
def test_state_stays_on_the_gpu(name: str, dtype: str, graph: bool, bundle_of, load) -> None:
    step = STEPPED[name]
    bundle = bundle_of(step, dtype)
    assert len(bundle.manifest.donated) == step.state and bundle.manifest.graph
    program = load(bundle, graph=graph)
    kept = arrays_of(step, bundle, step.arguments(dtype, 0))
    wanted = [a.astype(np.float64) for a in step.arguments(dtype, 0)[step.new :]]
    parameters, state = kept[: len(kept) - step.state], kept[len(kept) - step.state :]
    earlier: list[tuple[Any, np.ndarray]] = []
    for call in range(STEPS):
        new = step.arguments(dtype, call)[: step.new]
        made = program.executable.run_arrays([*new, *parameters, *state])
        result, state = made[0], made[1:]
        right, *wanted[len(parameters) :] = step.function(
            np, *(a.astype(np.float64) for a in new), *wanted
        )
        earlier.append((result, right))
        assert all(a.away is not None for a in (*parameters, *state, result))
    for result, right in earlier:  # those of earlier calls have kept their values
        check(np.asarray(result), right, dtype)
    for value, right in zip([*parameters, *state], wanted):
        check(np.asarray(value), right, dtype)


def test_states_take_turns_and_move_between_programs(bundle_of, load) -> None:
    """States that take turns stay apart, and what one job of ranks gives goes into another."""
    step = STEPPED["momentum"]
    bundle = bundle_of(step, "f32")
    first = step.arguments("f32", 0)
    (x, y), states = first[: step.new], [arrays_of(step, bundle, first) for _ in range(2)]
    programs = [load(bundle), load(bundle)]
    for k, which in ((0, 0), (1, 1), (0, 0), (0, 1), (1, 1), (1, 0)):
        states[k] = programs[which].executable.run_arrays([x, y, *states[k]])[1:]
    for mine, other in zip(*states):
        assert np.asarray(mine).tobytes() == np.asarray(other).tobytes()
    left = states[0][0]
    for program in programs:
        program.close()
    assert np.abs(np.asarray(left)).max() > 0.1  # it came home


def test_state_stays_on_the_gpu_of_a_rank_that_others_start(bundle_of, load, runs_on) -> None:
    step = STEPPED["momentum"]
    bundle, given = bundle_of(step, "f32"), step.arguments("f32", 0)
    program = load(bundle)
    state: Any = arrays_of(step, bundle, given)
    inside = GpuProgram(bundle, environ={}, library=recorded() if runs_on == "emulate" else None)
    held: Any = given[step.new :]
    for call in range(STEPS):
        new = step.arguments("f32", call)[: step.new]
        state = program.executable.run_arrays([*new, *state])[1:]
        if call == STEPS - 1:
            _, *found = inside.run([*new, *held])
        else:
            _, *held = inside.run_on_device([*new, *held])
    for mine, other in zip(found, state, strict=True):
        assert mine.tobytes() == np.asarray(other).tobytes()
    inside.close()


def test_numpy_inputs_change_behind_queued_calls(bundle_of, load) -> None:
    """Each step reads what its input held when it was called: small ones, and ones that take several pieces."""
    for rows in (16, 4096):
        case = Case(f"halved{rows}", lambda xp, x, y: x * 0.5 + y, ((rows, 640),) * 2)
        program = load(bundle_of(case, "f32"))
        value = Array.from_numpy(np.ones((rows, 640), np.float32), mesh="x=1", layout="[_, _]")
        given, wanted, seen = np.zeros((rows, 640), np.float32), np.float32(1), []
        for k in range(40 if rows == 16 else 6):
            given[:] = k
            (value,) = program.executable.run_arrays([value, given])
            wanted = wanted * np.float32(0.5) + np.float32(k)
            seen.append((value, wanted))
        for array, right in seen:
            assert (np.asarray(array) == right).all()


class Without:
    """Libraries of which cuBLASLt has no algorithm for anything."""

    def __init__(self, libraries: Any) -> None:
        self.functions, self.address = self, libraries.address
        self._functions = libraries.functions

    def __getitem__(self, name: str) -> Any:
        if name == "cublasLtMatmulAlgoGetHeuristic":
            return lambda *_: LT_UNSUPPORTED
        return self._functions[name]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_products_that_the_library_has_no_algorithm_for(dtype: str, bundle_of, runs_on) -> None:
    case = Case("product_alone", lambda xp, a, b: a @ b, ((100, 77), (77, 90)))
    bundle = bundle_of(case, dtype)
    assert bundle.manifest.gemms
    library = Without(recorded() if runs_on == "emulate" else SystemLibrary())
    program = GpuProgram(bundle, environ={}, library=library)
    inputs = [narrow(a, dtype) for a in case.arguments(dtype)]
    (found,) = program.run(inputs)
    program.close()
    right = case.expected(dtype)
    np.testing.assert_allclose(
        wide(found, dtype), right, rtol=0, atol=TOLERANCE[dtype] * np.abs(right).max()
    )


def recorded() -> Any:
    """What stands in for the libraries where there is no GPU."""
    from meshweave.simulator.driver.emulated import EmulatedKernels
    from meshweave.simulator.driver.move import move
    from meshweave.simulator.driver.recorder import Recorder
    from meshweave.simulator.driver.replay import Scheduler

    return Recorder(1, EmulatedKernels(True), Scheduler(move))
