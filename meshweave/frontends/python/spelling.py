"""Say how names of NumPy's and of jax.numpy's are spelt here."""

from __future__ import annotations

from types import ModuleType

import numpy as np

# NumPy's name -> ours: what its arrays and scalars call when they are left of an operator
UFUNCS = {
    "add": "add", "subtract": "subtract", "multiply": "multiply", "divide": "divide",
    "true_divide": "divide", "floor_divide": "floor_divide", "remainder": "remainder",
    "mod": "remainder", "power": "pow", "matmul": "matmul", "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor", "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift", "equal": "equal", "not_equal": "not_equal",
    "less": "less", "less_equal": "less_equal", "greater": "greater",
    "greater_equal": "greater_equal",
}  # fmt: skip
SYNONYMS = {
    **{name: own for name, own in UFUNCS.items() if name != own},
    "absolute": "abs", "amax": "max", "amin": "min", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin",
    "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh", "around": "round",
    "array": "asarray", "asanyarray": "asarray", "ascontiguousarray": "asarray", "bitwise_not": "bitwise_invert",
    "concatenate": "concat", "conjugate": "conj", "cumprod": "cumulative_prod", "cumsum": "cumulative_sum",
    "degrees": "rad2deg", "fabs": "abs", "fix": "trunc", "invert": "bitwise_invert",
    "promote_types": "result_type", "radians": "deg2rad", "rint": "round", "row_stack": "vstack",
    "trapz": "trapezoid",
}  # fmt: skip
"""NumPy's names -> ours, of functions that do the same."""
NEAR = {
    "add.reduce": "sum", "multiply.reduce": "prod", "maximum.reduce": "max", "minimum.reduce": "min",
    "add.accumulate": "cumulative_sum", "array_equiv": "array_equal", "argwhere": "nonzero",
    "flatnonzero": "nonzero", "compress": "take", "extract": "where", "fill_diagonal": "where",
    "apply_along_axis": "vmap", "i0": "special.i0", "roots": "linalg.eigvals", "polyfit": "linalg.lstsq",
    "mgrid": "indices", "ogrid": "ix_", "r_": "concat", "c_": "column_stack", "issubdtype": "isdtype",
    "sort_complex": "sort", "unique": "unique_values", "vectorize": "vmap",
}  # fmt: skip
"""NumPy's names -> ours, of functions that do what is wanted as a rule, or more than that."""
NN = {
    "hard_swish": "hard_silu",
    "hardswish": "hard_silu",
    "logsigmoid": "log_sigmoid",
    "swish": "silu",
}
"""Names of functions of networks elsewhere -> ours in `mw.nn`."""
_MEMBERS = {
    "complex_": "mw.complex128",
    "float_": "mw.float64",
    "put": "x.put(indices, values)",
    "putmask": "x[mask] = values",
    "place": "x[mask] = values",
    "copyto": "x[...] = values",
    "s_": "a slice, as slice(1, None),",
    "index_exp": "a slice, as slice(1, None),",
    "ndim": "x.ndim",
    "shape": "x.shape",
    "size": "x.size",
    "iscomplexobj": "x.dtype",
    "isrealobj": "x.dtype",
}


def spelt(name: str) -> str:
    """Return how a name of NumPy's is spelt here, for an error; nothing where neither it nor JAX has such a name."""
    if name in SYNONYMS:
        return f": mw.{SYNONYMS[name]} is np.{name} of the array API"
    if name in NEAR:
        return f": mw.{NEAR[name]} does what np.{name} does, or more"
    if name in _MEMBERS:
        return f": {_MEMBERS[name]} is right"
    found = getattr(np, name, None)
    if isinstance(found, type) and issubclass(found, np.generic):
        return _of_scalars(found)
    if found is None or isinstance(found, ModuleType):
        return ""
    return (
        f": np.{name}(np.asarray(x), ..) computes it on this process"
        if callable(found)
        else f": np.{name} is right"
    )


def _of_scalars(kind: type[np.generic]) -> str:
    """Say which dtype of ours a type of NumPy's scalars is."""
    if kind in (np.generic, np.number, np.flexible, np.character):
        return ": mw.isdtype tells kinds of dtypes apart"
    try:
        return f": mw.{np.dtype(kind).name} is right" if np.dtype(kind).name in _DTYPES else ""
    except TypeError:  # abstract: of several dtypes
        return ": mw.isdtype tells kinds of dtypes apart"


_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_ELSEWHERE = {
    "addressable_data": "x.shards[i]", "addressable_shards": "x.shards", "clone": "x.copy()", "committed": "x.mesh",
    "copy_to_host_async": "x.numpy()", "delete": "mw.jit(.., donate=..)", "devices": "x.mesh",
    "global_shards": "x.shards", "is_deleted": "x.is_donated", "is_fully_addressable": "x.kind",
    "is_fully_replicated": "x.layout", "is_ready": "x.block_until_ready()", "numel": "x.size", "sharding": "x.layout",
    "detach": "mw.stop_gradient(x)", "cpu": "x.numpy()", "to": "x.to_device(mesh)", "contiguous": "x",
    "unsqueeze": "mw.expand_dims(x)", "permute": "mw.permute_dims(x, axes)",
}  # fmt: skip
"""Members of JAX's and PyTorch's arrays -> what says it here."""


def member(name: str) -> str:
    """Return how a member of other libraries' arrays is spelt here, for an error; nothing where they have none."""
    if name in _ELSEWHERE:
        return f": {_ELSEWHERE[name]} is right"
    if hasattr(np.ndarray, name) and not hasattr(np, name):
        return f": np.asarray(x).{name} is that of its value"
    return ""
