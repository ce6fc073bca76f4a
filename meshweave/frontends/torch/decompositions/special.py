"""Decompose special functions that torch-mlir does not take: `mw.special`'s formulas, computed in f64."""

from collections.abc import Callable

import torch
from torch import Tensor

from meshweave.frontends.python.special import formulas


def decompositions() -> dict[object, Callable[..., object]]:
    """Return the decompositions by op."""
    aten = torch.ops.aten
    return {
        aten.erfc.default: lambda x: _wide(formulas.erfc, x),
        aten.erfinv.default: lambda x: _wide(formulas.erfinv, x),
        aten.lgamma.default: lambda x: _wide(formulas.gammaln, x),
        aten.digamma.default: lambda x: _wide(formulas.digamma, x),
        aten.polygamma.default: lambda n, x: _wide(lambda m, v: formulas.polygamma(m, n, v), x),
        aten.i0.default: lambda x: _wide(lambda m, v: formulas.bessel_i(m, 0, v), x),
        aten.special_i0e.default: lambda x: _wide(lambda m, v: formulas.bessel_ie(m, 0, v), x),
        aten.special_i1.default: lambda x: _wide(lambda m, v: formulas.bessel_i(m, 1, v), x),
        aten.special_i1e.default: lambda x: _wide(lambda m, v: formulas.bessel_ie(m, 1, v), x),
        aten.special_erfcx.default: lambda x: _wide(formulas.erfcx, x),
        aten.special_ndtri.default: lambda x: _wide(formulas.ndtri, x),
        aten.special_log_ndtr.default: lambda x: _wide(formulas.log_ndtr, x),
        aten.special_zeta.default: lambda x, q: _wide(formulas.zeta, x, q),
        aten.fmod.Scalar: lambda x, y: torch.fmod(
            x, torch.full((), y, dtype=torch.result_type(x, y))
        ),
        aten.put.default: _put,
        aten.view_copy.default: lambda x, size: x.reshape(size).clone(),
        aten.permute_copy.default: lambda x, dims: x.permute(dims).clone(),
        aten.unbind_copy.int: lambda x, dim=0: [row.clone() for row in x.unbind(dim)],
        aten.empty_strided.default: lambda size, stride, **how: torch.empty(size, **how),
        aten.narrow_copy.default: lambda x, dim, start, length: x.narrow(
            dim, start, length
        ).clone(),
        # Strides, which gradients of convolutions have, are the same elements.
        torch.ops.prims.copy_strided.default: lambda x, strides: x.clone(),
    }


def _wide(compute: Callable[..., Tensor], *values: Tensor) -> Tensor:
    """Compute in f64; return the dtype that torch has for the function."""
    dtype = values[0].dtype
    for value in values[1:]:
        dtype = torch.promote_types(dtype, value.dtype)
    found = compute(torch, *[value.double() for value in values])
    return found.to(dtype if dtype.is_floating_point else torch.float32)


def _put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Write or add to places of the tensor as if it had one dim."""
    flat, places = x.reshape(-1), index.reshape(-1)
    places = torch.where(places < 0, places + flat.shape[0], places)
    values = source.reshape(-1)
    if accumulate:
        return flat.scatter_add(0, places, values).reshape(x.shape)
    return flat.scatter(0, places, values).reshape(x.shape)
