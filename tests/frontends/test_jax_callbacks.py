"""JAX programs that call functions of Python while they run: what is given and comes back, who calls, what fails."""

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from depth import some

import meshweave as mw
from meshweave.errors import CompileError, MeshweaveError, RankError
from meshweave.jax.tokens import take_tokens

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
from jax.experimental import io_callback  # noqa: E402 (JAX may be missing)


def like(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def running(a: np.ndarray) -> np.ndarray:
    """Return what depends on whole columns."""
    return np.cumsum(a, 0)


MESHES = [
    ("x=2", "[x, _]"),
    ("x=3", "[x, _]"),
    ("x=3", "[_, x]"),
    ("x=2, y=2", "[y, x]"),
    ("x=2", "[_*x, _]"),
]


@pytest.mark.parametrize("placed", some(MESHES, 2))
def test_functions_see_whole_arrays_and_their_results_are_proven(placed: tuple[str, str]) -> None:
    mesh, layout = placed

    def f(x: Any) -> Any:
        return jax.pure_callback(running, like(x), x * 2).sum(1) + x[:, 0]

    x = np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32)
    made = mw.jax.jit(f, mesh=mesh, in_shardings=(layout,))
    np.testing.assert_allclose(np.asarray(made(x)), np.cumsum(2 * x, 0).sum(1) + x[:, 0], rtol=1e-5)
    assert "1 of 1 results proven" in str(made.explain())


@pytest.mark.parametrize("mesh", [None, "x=3"])
def test_what_has_effects_is_called_once_in_order_and_by_rank_0_alone(mesh: str | None) -> None:
    seen = list[Any]()

    def step(carry: Any, k: Any) -> Any:
        jax.debug.callback(lambda c, k: seen.append((float(c), int(k))), carry.sum(), k)
        lax.cond(
            k % 2 == 0,
            lambda c: io_callback(seen.append, None, c.sum() * 100),
            lambda c: None,
            carry,
        )
        return carry * 2, None

    def f(x: Any) -> Any:
        return lax.scan(step, x, jnp.arange(3))[0]

    made = mw.jax.jit(f, mesh=mesh, in_shardings=("[x]",) if mesh else None)
    result = made(np.ones(4, np.float32))
    assert np.asarray(result).tolist() == [8.0] * 4
    ours = [v if isinstance(v, tuple) else float(v) for v in seen]
    assert sorted(map(str, ours)) == sorted(
        map(str, [(4.0, 0), 400.0, (8.0, 1), (16.0, 2), 1600.0])
    )
    assert [v for v in ours if isinstance(v, tuple)] == [(4.0, 0), (8.0, 1), (16.0, 2)]


SCALAR = jax.ShapeDtypeStruct((), np.float32)


def in_order(note: Any, x: Any) -> Any:
    """Call `note` in a loop, in branches and in what a loop asks; what nothing reads is called too."""
    x = note("start", like(x), x)

    def step(carry: Any, k: Any) -> Any:
        note("unread", SCALAR, k)
        carry = note("step", like(carry), carry)
        return carry, carry.sum()

    x, sums = lax.scan(step, x, jnp.arange(3.0))
    x = lax.cond(
        sums[0] > 0,
        lambda x: note("yes", like(x), x),
        lambda x: note("no", like(x), x),
        x,
    )
    low = jax.ShapeDtypeStruct((), bool)
    x = lax.while_loop(lambda x: note("low", low, x), lambda x: x * 2, x)
    return x, sums


class Notes(list[Any]):
    """Note what is called in which order; give back what depends on how many calls there were."""

    def __call__(self, what: Any, value: Any) -> Any:
        self.append((str(what), np.asarray(value).tolist()))
        return np.bool_(value[0] < 60) if what == "low" else value + np.float32(len(self))


@pytest.mark.parametrize("mesh", [None, "x=3"])
def test_ordered_calls_and_their_results_are_those_of_jax(mesh: str | None) -> None:
    x, theirs, ours = np.arange(4, dtype=np.float32), Notes(), Notes()

    def named_calls(notes: Notes) -> Any:
        def note(what: str, kind: Any, value: Any) -> Any:
            return io_callback(lambda v: notes(what, v), kind, value, ordered=True)

        return lambda x: in_order(note, x)

    right = jax.block_until_ready(jax.jit(named_calls(theirs))(x))
    made = mw.jax.jit(named_calls(ours), mesh=mesh, in_shardings=("[x]",) if mesh else None)
    for one, other in zip(made(x), right, strict=True):
        np.testing.assert_array_equal(np.asarray(one), other)
    assert list(ours) == list(theirs)


@pytest.mark.parametrize("mesh", [None, "x=2, y=2"])
def test_what_has_results_and_effects_is_called_as_often_as_it_is_written(
    mesh: str | None,
) -> None:
    calls = list[int]()

    def number() -> Any:
        calls.append(len(calls))
        return np.float32(len(calls))

    drawn = jax.jit(lambda: io_callback(number, SCALAR))

    def f(x: Any) -> Any:
        once = drawn() + drawn() * 10  # alike, and both are called
        return x + once, lax.scan(lambda c, _: (c, drawn()), 0, None, length=4)[1]

    made = mw.jax.jit(f, mesh=mesh, in_shardings=("[x]",) if mesh else None)
    x = np.zeros(3, np.float32)
    for first in (0, 6):
        shifted, rows = made(x)
        assert np.asarray(shifted).tolist() == [first + 1 + 10 * (first + 2)] * 3
        assert np.asarray(rows).tolist() == [first + k for k in (3, 4, 5, 6)]
    assert "2 of 2 results proven" in str(made.explain())


def test_ordered_prints_on_a_mesh_come_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    def f(x: Any) -> Any:
        jax.debug.print("first {}", x[0], ordered=True)
        lax.fori_loop(0, 3, lambda k, c: jax.debug.print("{}", k, ordered=True), None)
        return x

    x = jnp.arange(3.0)
    jax.block_until_ready(jax.jit(f)(x))
    jax.effects_barrier()
    right = capfd.readouterr().out
    mw.jax.jit(f, mesh="x=2", in_shardings=("[x]",))(x)
    assert capfd.readouterr().out == right == "first 0.0\n0\n1\n2\n"


@pytest.mark.parametrize("ordered", [False, True])
def test_in_a_shard_map_every_rank_has_its_own_results(ordered: bool) -> None:
    seen = list[Any]()

    def noted(a: np.ndarray) -> np.ndarray:
        seen.append(a.tolist())
        return a * 2

    axes = jax.sharding.AbstractMesh((2,), ("x",))
    spec = jax.sharding.PartitionSpec("x")
    body = jax.shard_map(
        lambda x: io_callback(noted, like(x), x, ordered=ordered),
        mesh=axes, in_specs=spec, out_specs=spec,
    )  # fmt: skip
    result = mw.jax.jit(body, mesh="x=2")(np.arange(4, dtype=np.float32))
    assert np.asarray(result).tolist() == [0, 2, 4, 6]
    assert sorted(seen) == [[0, 1], [2, 3]]


def test_in_a_shard_map_every_rank_calls_for_its_part() -> None:
    seen = list[Any]()

    @jax.jit
    def told(x: Any) -> None:
        jax.debug.callback(lambda a: seen.append(a.tolist()), x)

    def body(x: Any) -> Any:
        told(x)
        return jax.pure_callback(np.cumsum, like(x), x)

    axes = jax.sharding.AbstractMesh((2,), ("x",))
    spec = jax.sharding.PartitionSpec("x")
    f = jax.shard_map(body, mesh=axes, in_specs=spec, out_specs=spec)
    result = mw.jax.jit(f, mesh="x=2")(np.arange(6, dtype=np.float32))
    assert np.asarray(result).tolist() == [0, 1, 3, 3, 7, 12]
    assert sorted(seen) == [[0, 1, 2], [3, 4, 5]]


def test_prints_are_those_of_jax(capfd: pytest.CaptureFixture[str]) -> None:
    def f(x: Any) -> Any:
        jax.debug.print("x {x} of {}", x.shape[0], x=x)
        return x

    x = jnp.arange(3.0)
    jax.jit(f)(x).block_until_ready()
    right = capfd.readouterr().out
    mw.jax.jit(f)(x)
    assert capfd.readouterr().out == right == "x [0. 1. 2.] of 3\n"


KINDS = ["bool", "int8", "uint8", "int16", "uint32", "int32", "bfloat16", "float16", "float32"]


@pytest.mark.parametrize("shape", some([(2, 3), (3,), (), (3, 0)], 2))
@pytest.mark.parametrize(("call", "mesh"), [(jax.pure_callback, None), (io_callback, "x=2")])
def test_arrays_of_all_dtypes_go_in_and_out(
    call: Any, mesh: str | None, shape: Sequence[int]
) -> None:
    rng = np.random.default_rng(1)
    values = [jnp.asarray(rng.integers(0, 100, shape)).astype(d) for d in KINDS] + [jnp.arange(2)]
    given = list[Any]()

    def turned(*arrays: Any) -> Any:
        given.extend(arrays)
        return tuple([np.asarray(a)[::-1] if np.ndim(a) else np.asarray(a) for a in arrays])

    def called(*arrays: Any) -> Any:
        return call(turned, tuple(map(like, arrays)), *arrays)

    made = mw.jax.jit(called, mesh=mesh, results="jax")
    for value, result, seen in zip(values, made(*values), given, strict=True):
        assert result.dtype == seen.dtype == value.dtype
        np.testing.assert_array_equal(result, value[::-1] if value.ndim else value)


@pytest.mark.parametrize("mesh", [None, "x=2"])
def test_floats_of_64_bits_where_the_program_was_traced_with_them(mesh: str | None) -> None:
    with jax.enable_x64(True):
        made = mw.jax.jit(lambda x: jax.pure_callback(np.sqrt, like(x), x), mesh=mesh)
        result = made(np.arange(3.0))
    np.testing.assert_array_equal(np.asarray(result), np.sqrt(np.arange(3.0)))


def test_results_of_rank_0_come_to_all_ranks_bit_by_bit() -> None:
    bits = np.array([0x80000000, 0x7FC12345, 0xFF800000, 1], np.uint32).view(np.float32)
    made = mw.jax.jit(lambda x: io_callback(lambda a: bits, like(x), x), mesh="x=2")
    result = np.asarray(made(np.zeros(4, np.float32)))
    assert result.view(np.uint32).tolist() == bits.view(np.uint32).tolist()


def test_an_error_ends_the_call_in_a_line_and_the_next_call_runs() -> None:
    def checked(a: np.ndarray) -> np.ndarray:
        if a.min() < 0:
            raise ValueError(f"{a.min()} is below 0")
        return a

    def f(x: Any) -> Any:
        def again(c: Any) -> Any:
            return jax.pure_callback(checked, like(c), c) + 1

        return lax.fori_loop(0, 5, lambda _, c: again(c), x).sum()

    for mesh in (None, "x=2"):
        made = mw.jax.jit(f, mesh=mesh, in_shardings=("[x]",) if mesh else None)
        for _ in range(2):
            with pytest.raises(
                RankError, match=r"pure_callback of Python raised ValueError: -1\.0 is below 0"
            ) as told:
                made(np.full(4, -1, np.float32))
            assert isinstance(told.value.__cause__, ValueError)
            assert float(made(np.zeros(4, np.float32))) == 20


@pytest.mark.parametrize("mesh", [None, "x=2"])
@pytest.mark.parametrize("wanted", [True, False])
def test_loops_that_wait_for_what_a_function_says_end_when_it_raises(
    wanted: bool, mesh: str | None
) -> None:
    seen = list[float]()

    def asked(place: Any) -> Any:
        seen.append(float(place))
        if place == 2:
            raise EOFError("no more")
        return np.bool_(not wanted)

    def step(state: tuple[Any, Any]) -> Any:
        io_callback(lambda c: seen.append(float(-c)), None, state[0][0], ordered=True)
        at = jax.pure_callback(np.abs, SCALAR, state[0][0])
        said = io_callback(asked, jax.ShapeDtypeStruct((), bool), at, ordered=True)
        return state[0] + 1, said

    def f(x: Any) -> Any:
        start = (x, jnp.asarray(not wanted))
        return lax.while_loop(lambda state: state[1] != wanted, step, start)[0]

    made = mw.jax.jit(f, mesh=mesh, in_shardings=("[x]",) if mesh else None)
    for _ in range(2):
        seen.clear()
        with pytest.raises(RankError, match="io_callback of Python raised EOFError: no more"):
            made(np.zeros(4, np.float32))
        assert seen == [0, 0, -1, 1, -2, 2]  # and no call after


def test_under_jax_transformations() -> None:
    @jax.custom_jvp
    def sine(x: Any) -> Any:
        return jax.pure_callback(np.sin, like(x), x, vmap_method="expand_dims")

    sine.defjvps(lambda t, _, x: t * jnp.cos(x))
    x = jnp.linspace(-1, 1, 6).reshape(2, 3)
    for f in (
        jax.grad(lambda x: sine(x).sum()),
        jax.vmap(sine),
        jax.vmap(jax.grad(lambda r: sine(r).sum())),
    ):
        np.testing.assert_allclose(np.asarray(mw.jax.jit(f)(x)), jax.jit(f)(x), rtol=1e-6)


def test_a_program_of_ours_inside_another() -> None:
    inner = mw.jit(lambda x: x * 3)
    made = mw.jax.jit(lambda x: jax.pure_callback(lambda a: np.asarray(inner(a)), like(x), x) + 1)
    assert np.asarray(made(jnp.arange(3.0))).tolist() == [1.0, 4.0, 7.0]


REFUSED = {
    "pure_callback of Python with arrays of complex": lambda x: jax.pure_callback(
        np.abs, jax.ShapeDtypeStruct((3,), np.float32), x + 0j
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_refused_is_refused_in_a_line(why: str) -> None:
    with pytest.raises(CompileError, match=why) as told:
        mw.jax.jit(REFUSED[why])(jnp.arange(3.0))
    assert "\n" not in str(told.value)


def test_threads_trace_and_call_side_by_side() -> None:
    def compiled(number: int) -> list[float]:
        f = mw.jax.jit(
            lambda x: jax.pure_callback(lambda a: a + number, like(x), x),
            mesh="x=2",
            in_shardings=("[x]",),
        )
        return cast(list[float], np.asarray(f(np.zeros(2, np.float32))).tolist())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(compiled, range(8))) == [[float(n)] * 2 for n in range(8)]


def callback(x: Any) -> Any:
    return jax.pure_callback(np.sin, like(x), x)


def test_other_engines_refuse_them() -> None:
    x = jnp.arange(4.0)
    with pytest.raises(MeshweaveError, match="engine mpi: the program calls functions of Python"):
        mw.from_jax(callback, x, mesh="x=2", engine="mpi")(x)
    with pytest.raises(
        CompileError, match="pure_callback: target gpu calls no functions of Python"
    ):
        mw.from_jax(callback, x, engine="emulate")


def test_a_bundle_in_another_process_says_that_it_lacks_the_function(tmp_path: Path) -> None:
    x = np.arange(3, dtype=np.float32)
    mw.from_jax(callback, x).program.bundle.write(tmp_path / "program.mwb")
    code = (
        "import sys, numpy as np, meshweave as mw\n"
        "from meshweave.bundle import Bundle\n"
        "from meshweave.runtime import engine\n"
        "program = mw.Program(Bundle.read(sys.argv[1]), engine('local'))\n"
        "try: program(np.arange(3, dtype=np.float32))\n"
        "except mw.MeshweaveError as error: print(error)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "program.mwb")],
        capture_output=True, text=True, timeout=500, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert "a function of the process that compiled it" in told.stdout, told
    assert not told.stderr


def test_the_order_in_which_jax_lists_kinds_of_calls_is_not_in_the_program(monkeypatch):
    kinds = import_module("jax._src.effects").EffectTypeSet
    listed = kinds.filter_in

    def step(carry, k):
        drawn = io_callback(lambda v: v, SCALAR, carry + k, ordered=True)
        jax.debug.callback(lambda d: None, drawn, ordered=True)
        return carry + drawn, drawn

    def texts():
        for turn in (1, -1):
            jax.clear_caches()
            monkeypatch.setattr(kinds, "filter_in", lambda *of, turn=turn: listed(*of)[::turn])
            lowered = jax.jit(lambda x: jax.lax.scan(step, x, jnp.arange(3.0))).lower(1.0)
            module = lowered.compiler_ir("stablehlo").operation.clone()
            take_tokens(module)
            yield str(module)

    one, other = texts()
    assert one == other and "!stablehlo.token" not in one
