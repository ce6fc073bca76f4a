"""bf16 between torch and mw.Array by DLPack: the same memory, the same bits, and nothing by way of float32."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import meshweave as mw  # noqa: E402


def all_patterns() -> Any:
    """Every bf16 there is, NaNs too."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def bits(value: Any) -> Any:
    return value.contiguous().view(torch.int16)


def test_every_bf16_goes_in_and_out_with_its_bits_and_its_memory() -> None:
    value = all_patterns().reshape(256, 256)
    array = mw.Array.from_dlpack(value)
    assert (array.dtype_name, array.shape) == ("bf16", (256, 256))
    back = torch.from_dlpack(array)
    assert back.dtype == torch.bfloat16 and torch.equal(bits(back), bits(value))
    assert back.data_ptr() == value.data_ptr() == array.shards[0].ctypes.data
    del value, array
    assert torch.equal(bits(back).reshape(-1), bits(all_patterns()))


@pytest.mark.parametrize("layout", ["[x, _]", "[_, x]", "[_, _]"])
def test_on_two_ranks(layout: str) -> None:
    value = torch.arange(24.0).reshape(4, 6).bfloat16()
    array = mw.Array.from_dlpack(value, mesh="x=2", layout=layout)
    assert array.dtype_name == "bf16" and np.array_equal(array.numpy(), value.float().numpy())
    whole = torch.from_dlpack(array.redistribute("[_, _]"))
    assert torch.equal(whole, value)


def test_views_and_tensors_without_elements_or_dims() -> None:
    base = torch.arange(24.0).reshape(4, 6).bfloat16()
    for value in (base.T, base[1:, ::2], base[:0], base[2, 3]):
        array = mw.Array.from_dlpack(value)
        assert array.shape == tuple(value.shape)
        assert np.array_equal(array.numpy(), value.float().numpy())


def test_a_program_takes_and_gives_bf16_bit_for_bit() -> None:
    class Same(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.reshape(256, 256).flip(0)

    value = all_patterns()
    with mw.from_torch(Same(), (value,), {"x": "[x]"}, "x=2") as program:
        assert torch.equal(bits(program(value)), bits(Same()(value)))
        found = program(mw.Array.from_dlpack(value))
        assert found.dtype_name == "bf16"


def test_other_dtypes_are_as_they_were() -> None:
    for dtype in (torch.float32, torch.int64, torch.float16, torch.bool):
        value = torch.ones(3, dtype=dtype)
        array = mw.Array.from_dlpack(value)
        assert torch.equal(torch.from_dlpack(array), value)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_of_8_bits_go_in_and_out_and_are_computed(name: str) -> None:
    kind = getattr(torch, name)
    value = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(kind)
    array = mw.asarray(value)
    assert array.dtype.name == name
    assert torch.equal(torch.from_dlpack(array).view(torch.uint8), value.view(torch.uint8))

    @torch.compile(backend="meshweave")
    def f(x: Any, w: Any) -> Any:
        return x @ w.to(torch.float32), x.to(kind)

    x = torch.linspace(-3, 3, 64).reshape(4, 16)
    w = value.view(torch.uint8)[:96].view(kind).reshape(16, 6)
    product, small = f(x, w)
    torch.testing.assert_close(product, x @ w.to(torch.float32))
    assert small.dtype == kind and torch.equal(
        small.view(torch.uint8), x.to(kind).view(torch.uint8)
    )
