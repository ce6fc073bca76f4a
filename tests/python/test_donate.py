"""Donated arguments: results take their buffers, on every mesh and engine, and nothing is copied in a step."""

import copy
import re
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from depth import sampled

import meshweave as mw
from meshweave.errors import CompileError, UsageError
from meshweave.frontends.python.tracer import Tracer

RNG = np.random.default_rng(0)


def laid(value: np.ndarray, mesh: str = "", layout: str | None = None) -> mw.Array:
    whole = "[" + ", ".join("_" * value.ndim) + "]"
    return mw.Array.from_numpy(value, mesh=mesh, layout=layout or whole)


def buffers(array: mw.Array) -> list[int]:
    return [shard.ctypes.data for shard in array.held]


def copied_bytes(text: str) -> int:
    found = re.search(r"copied of donated state\s*│\s*([\d,]+)", text)
    assert found is not None, text
    return int(found[1].replace(",", ""))


@sampled(4)
@pytest.mark.parametrize("engine", ["local", "mpi", "emulate"])
@pytest.mark.parametrize(
    ("mesh", "layout"),
    [("", "[_, _]"), ("x=2", "[x, _]"), ("x=2", "[_, _*x]"), ("x=2, y=2", "[y, x]"), ("x=2", "[_, _]")],
)  # fmt: skip
def test_a_state_is_updated_in_its_buffer(engine: str, mesh: str, layout: str) -> None:
    @mw.jit(mesh=mesh, in_layouts=(layout, None), donate="state", engine=engine)
    def step(state: Tracer, x: Tracer) -> tuple[Tracer, Tracer]:
        new = state * 0.5 + x
        return new, mw.sum(new, axis=0)

    whole = RNG.standard_normal((7, 300)).astype(np.float32)
    state, first = laid(whole, mesh, layout), None
    for _ in range(4):
        x = RNG.standard_normal((7, 300)).astype(np.float32)
        state, total = step(state, x)
        first = first or buffers(state)
        assert engine != "local" or buffers(state) == first
        whole = whole * 0.5 + x
        np.testing.assert_allclose(state, whole, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(total, whole.sum(0), rtol=1e-4, atol=1e-5)
    assert copied_bytes(step.explain()) == 0
    assert step.cache_info().misses == 1
    step.close()


def test_a_copy_keeps_its_value_when_the_array_is_donated() -> None:
    twice = mw.jit(lambda x: x * 2, donate=(0,))
    array = laid(np.arange(8, dtype=np.float32))
    copies = [copy.copy(array), copy.deepcopy(array), array.copy()]
    assert twice(array).numpy()[3] == 6
    for each in copies:
        np.testing.assert_array_equal(each.numpy(), np.arange(8))


@pytest.mark.parametrize("engine", ["local", "emulate"])
def test_a_donated_array_says_so_when_it_is_used_again(engine: str) -> None:
    step = mw.jit(lambda state: state + 1, donate=0, engine=engine)
    state = laid(np.zeros((3, 4), np.float32))
    new = step(state)
    for use in (np.asarray, lambda a: a.shards, step, lambda a: a.redistribute("[_, _]"), float):
        with pytest.raises(UsageError, match=r"3x4xf32 .* was donated to a call"):
            use(state)
    assert "donated" in repr(state) and state.is_donated and not new.is_donated
    np.testing.assert_array_equal(new, np.ones((3, 4)))
    again = step(new)
    with pytest.raises(UsageError, match="donated"):
        step(new)
    np.testing.assert_array_equal(step(again), np.full((3, 4), 3.0))


@pytest.mark.parametrize("engine", ["local", "emulate"])
def test_what_others_may_hold_is_copied_first(engine: str) -> None:
    """Donation never writes memory that the caller sees under another name."""
    step = mw.jit(lambda state: state + 1, donate=0, engine=engine)
    given = np.zeros(40000, np.float32)
    shared = mw.Array.from_shards([given], mesh="", layout="[_]", shape=(40000,))
    seen = step(shared)
    view = np.asarray(seen, copy=False)
    after = step(seen)
    kept = after.shards[0]
    last = step(after)
    for value, right in ((given, 0), (view, 1), (kept, 2), (last, 3)):
        assert (np.asarray(value) == right).all()
    plain = np.zeros(40000, np.float32)
    assert (np.asarray(step(plain)) == 1).all() and not plain.any()
    same = laid(plain)
    moved = same.redistribute("[_]")  # which shares the shards
    step(same)
    assert not np.asarray(moved).any()


@pytest.mark.parametrize("engine", ["local", "emulate"])
def test_one_array_is_no_two_arguments(engine: str) -> None:
    step = mw.jit(lambda state, x: (state + x, mw.sum(x)), donate="state", engine=engine)
    for size in (3, 40000):
        state = laid(np.ones(size, np.float32))
        for _ in range(2):
            with pytest.raises(UsageError, match="inputs 0 and 1 are one Array, and input 0 is"):
                step(state, state)
            state, _ = step(state, laid(np.ones(size, np.float32)))
        np.testing.assert_array_equal(state, np.full(size, 3.0))


@pytest.mark.parametrize("engine", ["local", "emulate"])
def test_a_state_that_is_read_after_its_update_is_copied(engine: str) -> None:
    @mw.jit(donate="state", engine=engine)
    def step(state: Tracer) -> tuple[Tracer, Tracer, Tracer]:
        new = state @ state
        return mw.sum(state, axis=0), new, state

    value = RNG.standard_normal((12, 12)).astype(np.float32)
    total, new, old = step(laid(value))
    np.testing.assert_allclose(new, value @ value, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(total, value.sum(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(old, value)


@pytest.mark.parametrize("engine", ["local", "emulate"])
def test_states_that_change_places(engine: str) -> None:
    """Each result takes the buffer of its argument, whatever is in the other one."""
    step = mw.jit(lambda a, b: (b, a), donate=("a", "b"), engine=engine)
    one, two = (RNG.standard_normal((5, 9)).astype(np.float32) for _ in range(2))
    a, b = step(laid(one), laid(two))
    np.testing.assert_array_equal(a, two)
    np.testing.assert_array_equal(b, one)
    both = mw.jit(lambda a, b: (a + b, a - b), donate=("a", "b"), engine=engine)
    a, b = both(laid(one), laid(two))
    np.testing.assert_array_equal(a, one + two)
    np.testing.assert_array_equal(b, one - two)


def test_pytrees_of_state_keep_their_places() -> None:
    @mw.jit(donate="cache")
    def step(cache: dict[str, Tracer], x: Tracer) -> tuple[dict[str, Tracer], Tracer]:
        new = {"k": cache["k"] + x, "v": cache["v"] * x}
        return new, mw.sum(new["k"] * new["v"])

    cache = {name: laid(np.full((4, 50), n, np.float32)) for n, name in enumerate("kv", 1)}
    at = {name: buffers(value) for name, value in cache.items()}
    for _ in range(3):
        cache, _ = step(cache, np.full((4, 50), 2, np.float32))
    assert {name: buffers(value) for name, value in cache.items()} == at
    np.testing.assert_array_equal(cache["k"], np.full((4, 50), 7.0))
    np.testing.assert_array_equal(cache["v"], np.full((4, 50), 16.0))
    assert copied_bytes(step.explain()) == 0


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda state: mw.sum(state), "no result of its type is left"),
        (lambda state: mw.astype(state, mw.float64), "no result of its type is left"),
    ],
)
def test_a_donation_that_cannot_be_is_refused_with_its_reason(
    function: Callable[[Tracer], Tracer], reason: str
) -> None:
    value = laid(np.ones((4, 6), np.float32))
    step = mw.jit(function, donate="state")
    step(value)
    step(value)  # it was not taken
    with pytest.raises(
        CompileError, match=f"argument 0 is donated .required., which is .*{reason}"
    ):
        mw.jit(function, donate={"state": "required"})(value)


def test_layouts_that_differ_refuse_a_donation() -> None:
    jit = mw.jit(
        lambda state: state + 1, mesh="x=2", in_layouts="[x, _]", out_layouts="[_, x]",
        donate={"state": "required"},
    )  # fmt: skip
    with pytest.raises(CompileError, match=r"it lies in \[x, _\], result 0 in \[_, x\]"):
        jit(np.ones((4, 6), np.float32))


@pytest.mark.parametrize("engine", ["local", "emulate"])
def test_the_result_lies_where_the_argument_does(engine: str) -> None:
    """Propagation alone would leave the sum over x in another layout."""
    step = mw.jit(
        lambda state, x: state + x, mesh="x=2", in_layouts=("[_*x, _]", "[_, x]"), donate="state",
        engine=engine,
    )  # fmt: skip
    value = RNG.standard_normal((5, 6)).astype(np.float32)
    state = laid(value, "x=2", "[_*x, _]")
    for _ in range(2):
        state = step(state, value)
    assert str(state.layout) == "[_*x, _]"
    np.testing.assert_allclose(state, 3 * value, rtol=1e-6)


@pytest.mark.parametrize(
    ("donate", "message"),
    [
        ("stat", "donate: 'stat' is no argument that is an array: state are"),
        (1, "donate: 1 is no argument"),
        ({"state": "maybe"}, "donate: state is 'maybe': preferred or required is right"),
    ],
)
def test_a_wrong_donation_is_refused(donate: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mw.jit(lambda state: state, donate=donate)


TEXT = """
func.func @main(%a: tensor<4x300xf32>, %n: tensor<4x300xf32>) -> (tensor<4x300xf32>, tensor<f32>) {
  %e = tensor.empty() : tensor<4x300xf32>
  %0 = linalg.add ins(%a, %n : tensor<4x300xf32>, tensor<4x300xf32>) outs(%e : tensor<4x300xf32>) -> tensor<4x300xf32>
  %z = arith.constant dense<0.0> : tensor<f32>
  %s = linalg.reduce { arith.addf } ins(%0 : tensor<4x300xf32>) outs(%z : tensor<f32>) dimensions = [0, 1]
  return %0, %s : tensor<4x300xf32>, tensor<f32>
}
"""


@pytest.mark.parametrize("engine", ["local", "mpi", "emulate"])
def test_compile_donates_by_number(engine: str) -> None:
    one = np.ones((4, 300), np.float32)
    with mw.compile(TEXT, donate=(1,), engine=engine) as program:
        state = laid(one)
        for k in range(3):
            state, total = program(one, state)
            assert isinstance(state, mw.Array) and isinstance(total, np.ndarray)
            np.testing.assert_array_equal(state, one * (k + 2))
            assert total == 1200 * (k + 2)
        assert program.peak_bytes < 3 * one.nbytes
        given, _ = program(one, one)
        assert isinstance(given, np.ndarray) and (one == 1).all()
    with pytest.raises(CompileError, match="donate: @main has no argument 2, it has 2"):
        mw.compile(TEXT, donate=(2,))
    with pytest.raises(UsageError, match="donate: 'a' is no number of an argument"):
        mw.compile(TEXT, donate=("a",))


@pytest.mark.parametrize("old", ["[_*x]", "[x]", "[_]", "[_*2]"])
def test_a_state_whose_old_value_is_returned_too_in_another_layout(old: str) -> None:
    text = f"""
"dist.mesh"() {{sym_name = "mesh", axes = "x=3"}} : () -> ()
func.func @main(%a: tensor<7xi32> {{dist.layout = #dist.layout<"[_]">}})
    -> (tensor<7xi32> {{dist.layout = #dist.layout<"[_]">}}, tensor<7xi32> {{dist.layout = #dist.layout<"{old}">}}) {{
  %0 = arith.addi %a, %a : tensor<7xi32>
  return %0, %a : tensor<7xi32>, tensor<7xi32>
}}"""
    value = np.arange(7, dtype=np.int32)
    with mw.compile(text, donate=(0,)) as program:
        for given in (value, laid(value, "x=3", "[_]")):
            new, same = program(given)
            np.testing.assert_array_equal(new, 2 * value)
            np.testing.assert_array_equal(same, value)


def test_arrays_stay_where_the_processes_read_them() -> None:
    """A state and what comes again are not copied; two states in turns, and memory that others see, stay apart."""

    @mw.jit(
        mesh="x=2", in_layouts=("[_, x]", "[_, x]", "[x, _]"), out_layouts=("[_, x]", "[_, _]"),
        donate="state", engine="mpi",
    )  # fmt: skip
    def step(state: Tracer, x: Tracer, w: Tracer) -> tuple[Tracer, Tracer]:
        new = state + x
        return new, new @ w

    weights, x = (RNG.standard_normal(s).astype(np.float32) for s in ((6, 9), (1, 6)))
    w = laid(weights, "x=2", "[x, _]")
    sums = [np.zeros((1, 6), np.float32), np.full((1, 6), 7, np.float32)]
    states = [laid(value, "x=2", "[_, x]") for value in sums]
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    places, weights_at = [], []
    for turn in (0, 0, 0, 0, 1, 0, 1, 1, 0):
        states[turn], y = step(states[turn], x, w)
        sums[turn] = sums[turn] + x
        for state, right in zip(states, sums, strict=True):
            np.testing.assert_allclose(state, right, rtol=1e-5)
        np.testing.assert_allclose(y, sums[turn] @ weights, rtol=1e-4, atol=1e-4)
        places.append(buffers(states[turn]))
        weights_at.append(buffers(w))
        if turn and not seen:
            seen += [(shard, shard.copy()) for shard in states[turn].shards]
    assert places[0] == places[1] == places[2] == places[3]
    assert weights_at[1] == weights_at[2] == weights_at[3]
    assert len(seen) == 2 and all((now == then).all() for now, then in seen)
    np.testing.assert_array_equal(w, weights)
    step.close()
    np.testing.assert_allclose(states[0], sums[0], rtol=1e-5)


@pytest.mark.parametrize("shardings", [None, ("[_, x]", None)])
def test_donations_of_jax(shardings: object) -> None:
    """Also of a function that is jitted already, and then given shardings."""
    jax = pytest.importorskip("jax")

    @partial(jax.jit, donate_argnames=("state",))
    def step(state: object, row: object) -> object:
        return jax.lax.dynamic_update_slice(state, row, (1, 0)), state.sum()  # type: ignore[attr-defined]

    value, row = np.zeros((4, 6), np.float32), np.ones((1, 6), np.float32)
    mesh = "x=2" if shardings else None
    program = mw.from_jax(step, value, row, in_shardings=shardings, mesh=mesh)
    state = laid(value, "x=2", "[_, x]") if shardings else laid(value)
    at = buffers(state)
    for k in range(3):
        state, total = program(state, row)
        assert buffers(state) == at and float(total) == 6 * (k > 0)
        np.testing.assert_array_equal(np.asarray(state)[1], row[0])
    assert "donate=preferred" in program.explain()
    program.close()
