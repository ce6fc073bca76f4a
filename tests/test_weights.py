"""Weights are data: programs read large constants and arguments where they lie, and compiling takes no second copy."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from depth import deep, sampled
from traced import mw

from meshweave.layout import Layout, Mesh
from meshweave.runtime.arrays.blocks import SMALL, views

MEASURE = """
import gc, os
import numpy as np
import meshweave as mw

def said(key):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(key))

def peak(nbytes, act):
    gc.collect()
    open("/proc/self/clear_refs", "w").write("5")
    before = said("VmRSS")
    kept = act()
    return (said("VmHWM") - before) / nbytes, kept

def large(rows=4096, columns=4096):
    return np.random.default_rng(0).random((rows, columns), np.float32)

x = np.ones((2, 4096), np.float32)
"""


def peaks(code: str, **environment: str) -> list[float]:
    """Run code in a process of its own; return the bytes per byte that it prints."""
    env = {**os.environ, "MESHWEAVE_CACHE": "off", **environment}
    command = [sys.executable, "-c", MEASURE + code]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=500)
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


@sampled(2)
@pytest.mark.parametrize("mesh", ["x=2", ""])
def test_arrays_that_a_function_holds_take_their_memory_once(mesh: str) -> None:
    (first, second) = peaks(f"""
made = lambda w: mw.jit(lambda a: a @ w, mesh={mesh!r} or None)
made(large()[:64])(x[:, :64])
w = large()
f = made(w)
first, y = peak(w.nbytes, lambda: f(x))
second, _ = peak(w.nbytes, lambda: f(x))
assert np.allclose(y, x @ w, rtol=1e-4)
print(first, second)
""")
    assert first < 1.2 and second < 0.1


@deep
def test_arrays_that_a_jax_function_holds_take_their_memory_once() -> None:
    pytest.importorskip("jax")
    (first, second) = peaks("""
made = lambda w, x: mw.from_jax(lambda a: a @ w, x)
made(large()[:64], x[:, :64])(x[:, :64])
w = large()
first, f = peak(w.nbytes, lambda: made(w, x))
second, y = peak(w.nbytes, lambda: f(x))
assert np.allclose(y, x @ w, rtol=1e-4)
print(first, second)
""")
    assert first < 1.2 and second < 0.1


def test_a_call_reads_a_large_numpy_array_where_it_lies() -> None:
    (again,) = peaks("""
f = mw.jit(lambda a, w: a @ w)
w = large()
f(x, w)
again, y = peak(w.nbytes, lambda: f(x, w))
w *= 2
assert np.allclose(f(x, w), x @ w, rtol=1e-4)
print(again)
""")
    assert again < 0.1


def _parts(array: np.ndarray[Any, Any], layout: str, mesh: str = "x=2, y=2") -> Any:
    return views(array, Mesh.parse(mesh), Layout.parse(layout))


def test_views_are_the_parts_that_lie_in_one_piece() -> None:
    array = np.arange(SMALL, dtype=np.float32).reshape(-1, 64)
    whole, rows = _parts(array, "[_, _]"), _parts(array, "[y*x, _]")
    assert all(part.base is array or part is array or part.base is array.base for part in whole)
    assert np.array_equal(np.concatenate([rows[r] for r in (0, 2, 1, 3)]), array)
    assert all(np.shares_memory(part, array) for part in (*whole, *rows))
    for layout in ("[_, x]", "[_*x, _]", "[x, _] order(1, 0)", "[_, _] +sum(x)"):
        assert _parts(array, layout) is None
    assert _parts(array[:-1], "[x, _]") is None  # padding
    assert _parts(array[:, ::2], "[_, _]") is None and _parts(array.T, "[_, _]") is None
    unaligned = np.zeros(array.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(array.shape)
    assert _parts(unaligned, "[_, _]") is None
    assert _parts(array[:8], "[_, _]") is None  # small


@sampled(1)
@pytest.mark.parametrize("shape", [(300, 129), (129, 300), (64, 1024), (1024, 64)])
@pytest.mark.parametrize(
    "layouts", [("[_, _]", "[x, _]"), ("[x, _]", "[_, _]"), ("[_, x]", "[x, _]")]
)
def test_arguments_at_any_address_give_the_same_bits(shape: Any, layouts: Any) -> None:
    rng = np.random.default_rng(3)
    rows, columns = shape
    values = [rng.random((rows, columns), np.float32), rng.random((columns, rows), np.float32)]
    function = mw.jit(lambda a, b: (a @ b, mw.exp(a) * 2), mesh="x=2", in_layouts=layouts)
    right = [np.asarray(r).tobytes() for r in function(*values)]
    for shift in (4, 20, 60):
        moved = [_at(value, shift) for value in values]
        assert [np.asarray(r).tobytes() for r in function(*moved)] == right


def _at(value: np.ndarray[Any, Any], shift: int) -> np.ndarray[Any, Any]:
    """Copy an array to memory that begins so many bytes behind a multiple of 64."""
    whole = np.empty(value.nbytes + 128, np.uint8)
    start = -whole.ctypes.data % 64 + shift
    moved = whole[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    moved[...] = value
    return moved


@pytest.mark.torch
def test_parameters_of_torch_take_their_memory_once() -> None:
    pytest.importorskip("torch")
    (program, compiled, again, changed) = peaks("""
import torch
torch.set_grad_enabled(False)
class Product(torch.nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w = torch.nn.Parameter(torch.from_numpy(w))
    def forward(self, a):
        return a @ self.w
a = torch.from_numpy(x)
small = Product(large()[:64])
mw.from_torch(small.eval(), (a[:, :64].clone(),))
torch.compile(small, backend="meshweave")(a[:, :64].clone())
module = Product(large())
n = module.w.nbytes
first, program = peak(n, lambda: mw.from_torch(module.eval(), (a,)))
program.close()
del program
torch._dynamo.reset()
fast = torch.compile(module, backend="meshweave")
compiled, _ = peak(n, lambda: fast(a))
again, _ = peak(n, lambda: fast(a))
module.w.data[5, 7] += 100
changed, y = peak(n, lambda: fast(a))
assert torch.allclose(y, a @ module.w, rtol=1e-4)
print(first, compiled, again, changed)
""")
    assert program < 1.2 and compiled < 1.2 and again < 0.1 and changed < 1.2


@pytest.mark.torch
def test_a_call_of_torch_reads_large_tensors_where_they_lie() -> None:
    torch = pytest.importorskip("torch")

    class Product(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, a: Any, b: Any) -> Any:
            return a @ b

    rng = np.random.default_rng(0)
    a, b = (torch.from_numpy(rng.random((256, 256), np.float32)) for _ in range(2))
    with mw.from_torch(Product().eval(), (a, b)) as program:
        seen = []
        for left, right in ((a, b), (b, a), (a.T, b), (a, b * 2), (a.numpy(), b), (a, a)):
            found = program(left, right)
            (held,) = program._ports.call._bound
            slots = program._ports._executable.slots
            at = [held[slots.input(k)] for k in range(2)]
            seen.append(
                [v.data_ptr() if isinstance(v, torch.Tensor) else 0 for v in (left, right)] == at
            )
            want = np.asarray(left) @ np.asarray(right)
            np.testing.assert_allclose(np.asarray(found), want, rtol=1e-5)
    assert seen == [True, True, False, True, False, True]
