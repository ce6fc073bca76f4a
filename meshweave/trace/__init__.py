"""Programs written in Python: functions over array-API names, traced into the global view and compiled by `jit`.

`PUBLIC` says where each public name of `meshweave` that belongs here lives; nothing is imported before it is used.
"""

_NAMES = {
    "dtypes": (
        "as_dtype bfloat16 can_cast e finfo float16 float32 float64 iinfo inf int16 int32 int64 int8 isdtype nan pi"
    ),
    "elementwise": (
        "abs acos acosh add asin asinh astype atan atan2 atanh ceil clip conj copysign cos cosh divide erf exp "
        "exp2 expm1 floor floor_divide hypot imag log log10 log1p log2 logaddexp maximum minimum multiply negative "
        "positive pow real reciprocal relu remainder result_type round rsqrt sigmoid sign sin sinh sqrt square "
        "subtract tan tanh trunc where"
    ),
    "logic": (
        "bitwise_and bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor equal "
        "greater greater_equal isfinite isinf isnan less less_equal logical_and logical_not logical_or "
        "logical_xor nextafter not_equal signbit"
    ),
    "linear": "einsum matmul matrix_transpose outer tensordot vecdot",
    "manipulate": (
        "broadcast_arrays broadcast_to concat expand_dims flip moveaxis permute_dims repeat reshape roll squeeze stack "
        "tile unstack"
    ),
    "index": "newaxis searchsorted take take_along_axis",
    "reduce": (
        "all any argmax argmin count_nonzero cumulative_prod cumulative_sum diff log_softmax logsumexp max mean "
        "min prod softmax std sum var"
    ),
    "create": (
        "arange asarray empty empty_like eye from_dlpack full full_like linspace meshgrid ones ones_like tril triu "
        "zeros zeros_like"
    ),
    "sort": "argsort sort",
    "dynamic": "nonzero unique_all unique_counts unique_inverse unique_values",
    "control": "cond scan while_loop",
    "place": "constrain hint kernels redistribute",
    "jit": "jit",
}

PUBLIC = {
    name: f"meshweave.trace.{home}" for home, names in _NAMES.items() for name in names.split()
}
"""Public name -> the module that defines it. `bool` is `dtypes.bool_`; `Array` is the runtime's."""

RENAMED = {"bool": ("meshweave.trace.dtypes", "bool_")}
"""Public names that are called otherwise where they are defined."""

MODULES = {"linalg": "meshweave.trace.linalg"}
"""Public names that are modules of functions."""
