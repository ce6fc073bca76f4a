"""Compiled functions are what functions are: methods, partial ones, of any pytree; and they are pickled."""

import asyncio
import io
import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

import meshweave as mw
from meshweave.errors import CompileError, UsageError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Linear:
    def __init__(self, weight, scale=2.0):
        self.weight, self.scale, self.name = weight, scale, "linear"

    @mw.jit
    def __call__(self, x):
        return x @ self.weight * self.scale

    @mw.jit(static_argnames=("times",))
    def several(self, x, times=2):
        for _ in range(times):
            x = self(x)
        return x

    @mw.jit
    def keeps(self, x):
        self.last = x
        return x

    @staticmethod
    @mw.jit
    def double(x):
        return x * 2

    @classmethod
    @mw.jit
    def called(cls, x):
        return x + len(cls.__name__)


class Model:
    def __init__(self):
        self.layers = [Linear(np.eye(3, dtype=np.float32) * k) for k in (1, 2)]
        self.log = []

    @mw.jit
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Placed:
    def __init__(self):
        self.weight = np.arange(9, dtype=np.float32).reshape(3, 3)

    @mw.jit(mesh="x=2", in_layouts=(None, "[x, _]"))
    def loss(self, x):
        return mw.sum((x @ self.weight) ** 2)

    @mw.jit(mesh="x=2", in_layouts=(None, "[x, _]"))
    def keeps(self, x):
        self.last = x
        return x


def test_a_method_with_in_layouts_is_a_part_of_other_functions_too():
    p = Placed()
    right, slope = np.sum((X @ p.weight) ** 2), 2 * X @ p.weight @ p.weight.T
    assert p.loss(X).item() == right
    assert mw.jit(lambda x: p.loss(x), mesh="x=2")(X).item() == right
    derived = mw.grad(p.loss)(X)
    np.testing.assert_array_equal(derived, slope)
    assert derived.mesh == Placed.loss.mesh
    _, back = mw.vjp(p.loss, X)
    np.testing.assert_array_equal(back(np.float32(1))[0], slope)
    with pytest.raises(CompileError, match="last"):
        mw.jit(lambda x: p.keeps(x), mesh="x=2")(X)


def test_a_method_takes_the_arrays_of_its_object_as_arguments():
    m = Linear(np.eye(3, dtype=np.float32))
    np.testing.assert_array_equal(m(X), X * 2)
    before = Linear.__call__.cache_info().misses
    m.weight[0, 0] = 5.0  # in place: what a captured array would miss
    np.testing.assert_array_equal(m(X), X @ m.weight * 2)
    other = Linear(np.ones((3, 3), np.float32))
    np.testing.assert_array_equal(other(X), X @ other.weight * 2)
    assert Linear.__call__.cache_info().misses == before
    m.scale = 3.0  # a static value: another program
    np.testing.assert_array_equal(m(X), X @ m.weight * 3)
    assert m.__call__.cache_info().misses == before + 1
    assert (
        "on one rank" in m.__call__.explain(X) and m.double(X)[0, 1] == 2 and m.called(X)[0, 0] == 6
    )


def test_methods_call_methods_of_what_they_hold():
    model = Model()
    with pytest.raises(
        UsageError, match="an attribute is a set, which is neither array nor hashable"
    ):
        replace_list(model, log=[set()])
    model.log = ()
    np.testing.assert_array_equal(model.forward(X), X * 8)
    model.layers[1].weight = np.ones((3, 3), np.float32)
    np.testing.assert_array_equal(model.forward(X), X * 2 @ np.ones((3, 3)) * 2)
    np.testing.assert_array_equal(model.layers[0].several(X, times=3), X * 8)


def replace_list(model, log):
    model.log = log
    model.forward(X)


def test_a_method_that_sets_an_attribute_says_so():
    with pytest.raises(CompileError, match=r"keeps sets self\.last, .*return it") as caught:
        Linear(np.eye(3, dtype=np.float32)).keeps(X)
    assert "\n" not in str(caught.value)


class Slotted:
    __slots__ = ("weight",)

    def __init__(self, weight):
        self.weight = weight

    @mw.jit
    def times(self, x):
        return x * self.weight

    @mw.jit(static_argnames="self")
    def kind(self, x):
        return x + len(type(self).__name__)


@dataclass
class Pair:
    a: object
    b: object

    @mw.jit
    def both(self, x):
        return replace(self, a=self.a + x)


def test_objects_with_slots_dataclasses_and_static_objects():
    s = Slotted(np.ones(3, np.float32))
    np.testing.assert_array_equal(s.times(X), X)
    s.weight = s.weight * 2
    np.testing.assert_array_equal(s.times(X), X * 2)
    assert s.kind(X)[0, 0] == 7
    made = Pair(X, X).both(X)
    assert isinstance(made, Pair)
    np.testing.assert_array_equal(made.a, X * 2)


def scaled(a, b, k):
    return a * b + k


def test_partial_functions_and_arguments_that_are_static_by_number():
    np.testing.assert_array_equal(mw.jit(partial(scaled, k=2.0))(X, X), X * X + 2)
    np.testing.assert_array_equal(partial(mw.jit(scaled, static_argnums=2), k=3)(X, X), X * X + 3)
    f = mw.jit(lambda x, axis: mw.sum(x, axis=axis), static_argnums=(-1,))
    np.testing.assert_array_equal(f(X, 1), X.sum(1))
    np.testing.assert_array_equal(f(X, 0), X.sum(0))
    with pytest.raises(UsageError, match=r"jit: static_argnums 3: there are 3 arguments"):
        mw.jit(scaled, static_argnums=3)


def test_containers_that_are_registered_with_jax_are_taken_apart():
    jax = pytest.importorskip("jax")

    @jax.tree_util.register_pytree_node_class
    class Named:
        def __init__(self, value, name):
            self.value, self.name = value, name

        def tree_flatten(self):
            return (self.value,), self.name

        @classmethod
        def tree_unflatten(cls, name, children):
            return cls(*children, name)

    f = mw.jit(lambda p: Named(p.value["x"] * 2, p.name + "!"))
    for name in ("a", "b", "a"):
        made = f(Named({"x": X}, name))
        assert isinstance(made, Named) and made.name == name + "!"
        np.testing.assert_array_equal(made.value, X * 2)
    assert f.cache_info().misses == 2


def test_containers_that_are_registered_with_optree_are_taken_apart():
    optree = pytest.importorskip("optree")

    for space in (vars(optree.registry)["__GLOBAL_NAMESPACE"], "tests of meshweave"):

        class Box:
            def __init__(self, value):
                self.value = value

        optree.register_pytree_node(
            Box, lambda b: ((b.value,), None, None), lambda _, c, box=Box: box(*c), namespace=space
        )
        made = mw.jit(lambda b, box=Box: box([b.value[0] * 2]), static_argnames=("box",))(Box([X]))
        np.testing.assert_array_equal(made.value[0], X * 2)


# Pickles.

MODULE = """
import meshweave as mw

@mw.jit
def double(x):
    return x * 2

class Scale:
    def __init__(self, by):
        self.by = by

    @mw.jit
    def __call__(self, x):
        return x * self.by
"""


def in_another_process(data, *paths):
    """What a pickled function gives for X in a process of its own."""
    code = (
        f"import sys, pickle; sys.path[:0] = {[str(p) for p in paths]!r}\n"
        "import numpy as np\nf = pickle.loads(sys.stdin.buffer.read())\n"
        "print(np.asarray(f(np.arange(6, dtype=np.float32).reshape(2, 3))).sum())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=data, capture_output=True, timeout=500
    )
    assert done.returncode == 0, done.stderr.decode()
    return float(done.stdout)


def test_functions_of_modules_are_pickled_by_name(tmp_path, monkeypatch):
    (tmp_path / "pickled_functions.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import pickled_functions as module

    assert pickle.loads(pickle.dumps(module.double)) is module.double
    method = module.Scale(np.float32(3)).__call__
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(method))(X), X * 3)
    assert in_another_process(pickle.dumps(module.double), tmp_path) == 30


def test_other_functions_are_pickled_with_their_options_by_cloudpickle():
    cloudpickle = pytest.importorskip("cloudpickle")
    f = mw.jit(lambda x, k: x * k, mesh="x=2", in_layouts="[x, _]", static_argnames="k")
    made = pickle.loads(cloudpickle.dumps(f))
    np.testing.assert_array_equal(made(X, k=3), X * 3)
    assert made.mesh == f.mesh and made(X, k=3).mesh == f.mesh
    assert in_another_process(cloudpickle.dumps(mw.jit(lambda x: x * 3))) == 45


def test_compiled_programs_are_pickled_whole():
    held = np.arange(1 << 15, dtype=np.float32)  # large enough to be an argument of the program
    f = mw.jit(keep(held), mesh="x=2", in_layouts="[x, _]")
    compiled = f.lower(X).compile()
    cloudpickle = pytest.importorskip("cloudpickle")
    data = cloudpickle.dumps(compiled)
    made = pickle.loads(data)
    np.testing.assert_array_equal(made(X), compiled(X))
    program = pickle.loads(pickle.dumps(mw.jit(scaled).lower(X, X, 1).compile().program))
    np.testing.assert_array_equal(program(X, X, np.int64(1))[0], X * X + 1)
    assert pickle.loads(pickle.dumps(mw.float32)) is mw.float32


def keep(held):
    return lambda x: x + held[-1] + mw.sum(mw.asarray(held)) * 0


def test_a_program_for_many_sizes_is_not_pickled():
    n = mw.Dim("n", max=8)
    made = mw.jit(lambda x: x * 2).lower(mw.ShapeDtype((n,), "f32")).compile()
    with pytest.raises(TypeError, match="a program for sizes that calls choose is not pickled"):
        pickle.dumps(made)


# What the logger says.


def test_the_logger_says_what_was_kept_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("MESHWEAVE_CACHE", str(tmp_path / "cache"))
    said = io.StringIO()
    with mw.log_compiles(said):
        for _ in range(2):
            mw.jit(lambda x: x * 3.25 - 1)(X)
    first, second = said.getvalue().splitlines()
    assert re.fullmatch(r"meshweave: <lambda> compiled in \d+ ms: the first call", first)
    assert re.fullmatch(
        r"meshweave: <lambda> compiled in \d+ ms \(kept on disk\): the first call", second
    )
    mw.jit(lambda x: x + 3.25)(X)
    assert len(said.getvalue().splitlines()) == 2


def test_a_line_that_compiles_many_programs_is_warned_of_once(caplog):
    with caplog.at_level("WARNING", logger="meshweave"):
        for size in range(1, 20):
            mw.sinh(np.ones(size, np.float32))
        for _ in range(16):
            mw.jit(lambda x: x + 1)(X)
    one, two = [record.getMessage() for record in caplog.records]
    assert f"{__file__}:" in one and re.search(
        r"16 programs, last sinh\(16xf32.*\), before it sinh\(15xf32", one
    )
    assert (
        "last <lambda>(2x3xf32), before it <lambda>(2x3xf32)" in two and "outside of loops" in two
    )


# Coroutines and threads.


def test_programs_are_awaited_under_the_choices_around():
    f = mw.jit(lambda x: mw.zeros((2,)) + mw.sum(x) / 3)
    program = f.lower(X).compile()

    async def several():
        with mw.default_float("float64"):
            wide = await f.call_async(np.arange(3))
        found = await asyncio.gather(
            f.call_async(X), program.call_async(X), program.program.call_async(X),
            Linear(np.eye(3, dtype=np.float32)).several.call_async(X, times=1),
        )  # fmt: skip
        with pytest.raises(UsageError, match="is no array"):
            await f.call_async("text")
        return wide, found

    wide, (first, second, (third,), fourth) = asyncio.run(several())
    assert wide.dtype == np.float64 and first.dtype == np.float32
    np.testing.assert_array_equal(first, [5, 5])
    np.testing.assert_array_equal(second, [5, 5])
    np.testing.assert_array_equal(third, [5, 5])
    np.testing.assert_array_equal(fourth, X * 2)


def test_many_threads_compile_a_program_once():
    f = mw.jit(lambda x: x * 2 + 1.5, mesh="x=2", in_layouts="[x, _]")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda k: f(X + k), range(8)))
    for k, y in enumerate(found):
        np.testing.assert_array_equal(y, (X + k) * 2 + 1.5)
    assert f.cache_info().misses == 1


# Other libraries.


def test_arrow_tensors_come_in_and_go_out():
    pa = pytest.importorskip("pyarrow")
    a = mw.asarray(pa.Tensor.from_numpy(X))
    assert a.dtype == np.float32
    np.testing.assert_array_equal(a, X)
    np.testing.assert_array_equal(mw.asarray(pa.array([1, 2, 4])), [1, 2, 4])
    np.testing.assert_array_equal(pa.Tensor.from_numpy(np.asarray(a * 2)).to_numpy(), X * 2)
    vector = mw.Array.from_numpy(np.arange(3.0), mesh="x=2", layout="[x]")
    assert pa.array(vector).equals(pa.array([0.0, 1.0, 2.0]))
    assert pa.array(vector, pa.int32()).type == pa.int32()


class OnlyInterface:
    """An array that nothing but its interface describes."""

    def __init__(self, value):
        self.__array_interface__ = value.__array_interface__
        self.value = value


def test_objects_with_an_array_interface_are_arrays():
    np.testing.assert_array_equal(mw.asarray(OnlyInterface(X)), X)
    np.testing.assert_array_equal(
        mw.Array.from_numpy(OnlyInterface(X), mesh="x=2", layout="[x, _]"), X
    )
