"""Say how names of NumPy's and of jax.numpy's are spelt here."""

from __future__ import annotations

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
    "issubdtype": "isdtype", "sort_complex": "sort", "unique": "unique_values", "vectorize": "vmap",
}  # fmt: skip
"""NumPy's names -> ours, of functions that do what is wanted as a rule, or more than that."""
_MEMBERS = {
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
        return f": {_MEMBERS[name]} says it"
    found = getattr(np, name, None)
    if not callable(found) or (isinstance(found, type) and issubclass(found, np.generic)):
        return ""
    return f": np.{name}(np.asarray(x), ..) computes it on this process"
