"""What torch.compile returns lies in memory that earlier results left, and in none that anything still sees."""

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import meshweave as mw  # noqa: E402
from meshweave.runtime import memory  # noqa: E402

LARGE = 1 << 15  # elements, 128 KiB


@pytest.fixture(autouse=True)
def fresh(monkeypatch: Any) -> None:
    torch._dynamo.reset()
    gc.collect()
    monkeypatch.setattr(memory, "_left", {})


def doubled(x: Any) -> Any:
    return x * 2


def compiled(mesh: str | None = None, f: Any = doubled) -> Any:
    return torch.compile(f, backend=mw.torch_backend(mesh=mesh))


def drawn(dtype: Any = torch.float32) -> Any:
    return torch.arange(LARGE).remainder(251).to(dtype).reshape(64, -1)


@pytest.mark.parametrize("mesh", [None, "x=2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_a_result_lies_where_one_lay_that_is_gone(mesh: str | None, dtype: Any) -> None:
    f, x = compiled(mesh), drawn(dtype)
    kept = f(x)
    places = {f(x).data_ptr() for _ in range(5)}
    assert len(places) <= (2 if mesh else 1) and kept.data_ptr() not in places
    assert torch.equal(kept, x * 2) and torch.equal(f(x), x * 2)


@pytest.mark.parametrize("view", [
    lambda y: y[3:5], lambda y: y.t(), lambda y: y.detach(), lambda y: y.numpy(), lambda y: y.view(torch.int32)[1],
    lambda y: y.untyped_storage(), lambda y: torch.from_dlpack(y), lambda y: torch.utils.dlpack.to_dlpack(y),
    lambda y: memoryview(y.numpy()),
])  # fmt: skip
def test_memory_that_a_view_sees_is_not_taken(view: Any) -> None:
    f, x = compiled(), drawn()
    y = f(x)
    where = y.data_ptr()
    seen = view(y)
    del y
    other = f(x)
    assert other.data_ptr() != where
    del seen
    gc.collect()
    assert f(x).data_ptr() == where


def test_what_is_written_to_a_result_stays_there() -> None:
    f, x = compiled(), drawn()
    one = f(x)
    one.zero_()
    other = f(x)
    other += 1
    assert not one.any() and torch.equal(other, x * 2 + 1) and torch.equal(f(x), x * 2)
    again = f(f(f(x)))
    assert torch.equal(again, x * 8)


def test_results_that_share_memory_keep_it_together() -> None:
    f, x = compiled(f=lambda x: ((y := x * 2), y[1:], y.t(), x.t() + 1)), drawn()
    whole, part, turned, other = f(x)
    whole[1, 0] = -5
    assert part[0, 0] == -5 and turned[0, 1] == -5
    assert torch.equal(other, x.t() + 1)
    del whole, turned
    assert torch.equal(f(x)[0], x * 2) and part[0, 0] == -5


@pytest.mark.parametrize("mesh", [None, "x=2"])
def test_gradients_of_calls_that_overlap(mesh: str | None) -> None:
    f, x, z = compiled(mesh, lambda x: torch.sin(x) * x), drawn(), drawn() / 7
    x.requires_grad_(), z.requires_grad_()
    one, other = f(x), f(z)
    other.sum().backward()
    one.sum().backward()
    for value in (x, z):
        torch.testing.assert_close(
            value.grad, value.cos() * value + value.sin(), rtol=1e-4, atol=1e-3
        )


def test_threads_never_share_memory() -> None:
    f, x = compiled(), drawn()
    f(x)

    def work(number: int) -> bool:
        given = torch.full_like(x, number)
        made = [f(given) for _ in range(20)]
        return all(bool((y == 2 * number).all()) for y in made)

    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(work, range(1, 7)))


def test_a_state_is_written_where_it_lies_and_returned_beside() -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(64, LARGE // 64))

        def forward(self, x: Any) -> Any:
            self.seen += x
            return self.seen * 2

    module, x = Counts(), drawn()
    f = torch.compile(module, backend=mw.torch_backend())
    with torch.no_grad():
        one, other = f(x), f(x)
    assert torch.equal(one, x * 2) and torch.equal(other, x * 4) and torch.equal(module.seen, x * 2)
