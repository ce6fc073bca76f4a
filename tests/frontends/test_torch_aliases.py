"""torch.compile: outputs that are arguments, views of them, or share memory, are so as in eager PyTorch."""

from typing import Any

import pytest
from depth import some

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import meshweave as mw  # noqa: E402


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def tensors(*shape: int) -> Any:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


class Held(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(tensors(3, 3), requires_grad=False)

    def forward(self, x: Any) -> Any:
        return self.weight, self.weight[1:], x @ self.weight


def shared(x: Any) -> Any:
    h = torch.relu(x.T - 4)
    return h[1], h, h.T, h[:, 1:].reshape(-1), h * 2


CASES = {
    "rows": lambda x: x[1:3],
    "itself": lambda x: (x, x + 1),
    "reshaped": lambda x: (x.view(3, 4), x * 2),
    "turned": lambda x: (x.T[1:], x.mT),
    "column": lambda x: x[:, 1],
    "element": lambda x: x[2, 1],
    "steps": lambda x: x[::2, ::2],
    "wide": lambda x: x.unsqueeze(0).expand(2, 4, 3),
    "parts": lambda x: (*x.chunk(2), *x.unbind(1)),
    "diagonal": lambda x: (x.diagonal(), x.sum()),
    "windows": lambda x: x.unfold(0, 2, 1),
    "integers": lambda x: x.view(torch.int32),
    "bytes": lambda x: (x[1:].view(torch.int16)[:, 2:], x.sum()),
    "same": lambda x: (x.contiguous(), x.to(torch.float32)),
    "copies": lambda x: (x.clone(), x.reshape(-1).clone()),
    "shared inside": shared,
    "twice": lambda x: (lambda y: (y, y, y[1]))(x * 3),
    "parts of one": lambda x: (x * 3).split(2),
    "written inside": lambda x: (lambda y: (y.add_(1), y[0], y))(x * 3),
    "no result": lambda x: None,
    "constants": lambda x: (x[1], 5, "word", None, x + 1),
    "nothing computed": lambda x: {"a": x[0], "b": [x[1], x.T]},
    "of a module": Held(),
}


def leaves(value: Any) -> list[Any]:
    return [
        leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)
    ]


def after_writes(function: Any, x: Any) -> tuple[list[Any], Any]:
    """What a call returns, and all of it and its argument after each output has been written in turn."""
    with torch.no_grad():
        found = function(x)
        seen = [leaf.clone() for leaf in leaves(found)]
        for number, leaf in enumerate(leaves(found)):
            if leaf.dtype.is_floating_point and leaf.numel() and 0 not in leaf.stride():
                leaf[(0,) * leaf.ndim] = 0
                leaf.add_(number + 1)
            seen += [other.clone() for other in (*leaves(found), x)]
    return seen, found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", some(["sliced", "plain", "turned"], 3))
def test_writing_an_output_changes_what_it_changes_in_eager_torch(name: str, form: str) -> None:
    def argument() -> Any:
        if form == "sliced":
            return tensors(6, 3)[1:5]
        return tensors(3, 4).T if form == "turned" else tensors(4, 3)

    if form == "turned" and name in ("reshaped", "integers", "bytes"):
        return  # torch refuses these views
    function = CASES[name]
    fast = torch.compile(function, backend="meshweave")
    for _ in range(2):
        if isinstance(function, torch.nn.Module):
            function.weight.data.copy_(tensors(3, 3))
        wanted, right = after_writes(function, argument())
        if isinstance(function, torch.nn.Module):
            function.weight.data.copy_(tensors(3, 3))
        seen, found = after_writes(fast, argument())
        assert len(seen) == len(wanted)
        for got, want in zip(seen, wanted, strict=True):
            assert got.dtype == want.dtype and torch.equal(got, want)
        assert type(found) is type(right)


def test_sizes_that_torch_makes_dynamic() -> None:
    fast = torch.compile(lambda x: (x[1:], x[: x.shape[0] // 2].T, x * 2), backend="meshweave")
    with torch.no_grad():
        for rows in (4, 6, 9, 7, 4):
            x = tensors(rows, 3)
            tail, head, double = fast(x)
            assert torch.equal(double, x * 2)
            tail[0], head[:, 0] = -1, -2
            assert x[1].tolist() == [-1] * 3 and x[0].tolist() == [-2] * 3


@pytest.mark.parametrize("mesh", ["x=2", "x=3"])
def test_on_several_ranks(mesh: str) -> None:
    fast = torch.compile(lambda x: (x[1:], x @ x.T), backend=mw.torch_backend(mesh=mesh))
    x = tensors(4, 3)
    with torch.no_grad():
        view, product = fast(x)
        view[0] = 7
        assert torch.equal(x[1], torch.full((3,), 7.0))
        product[0] = 9
        assert torch.equal(fast(x)[1], x @ x.T)


def test_an_argument_that_is_returned_is_the_argument() -> None:
    fast = torch.compile(lambda x, y: (y, x + y, x), backend="meshweave")
    x, y = tensors(2, 3), tensors(2, 3) + 1
    with torch.no_grad():
        found = fast(x, y)
    assert found[0] is y and found[2] is x and torch.equal(found[1], x + y)


def test_a_view_counts_the_writes_of_its_base() -> None:
    fast, x = torch.compile(lambda x: x[1:], backend="meshweave"), tensors(4, 3)
    with torch.no_grad():
        view = fast(x)
        before = x._version
        view[0] = 1
    assert x._version == before + 1


def test_outputs_alone_that_are_no_views_stay_contiguous() -> None:
    fast = torch.compile(lambda x: x.T + 1, backend="meshweave")
    with torch.no_grad():
        assert torch.equal(fast(tensors(4, 3)), tensors(4, 3).T + 1)
