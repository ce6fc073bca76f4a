"""Trace programs written in Python, over the names of the array API, into the global view, for `jit` to compile.

`PUBLIC` says where each public name of `meshweave` for such programs lives; nothing is imported before it is used.
"""

_NAMES = {
    "frontends.python.dtypes": (
        "as_dtype bfloat16 can_cast complex128 complex64 e finfo float16 float32 float64 float8_e4m3fn float8_e4m3fnuz "
        "float8_e5m2 float8_e5m2fnuz iinfo inf int16 int32 int4 int64 int8 isdtype nan pi result_type uint16 uint32 "
        "uint4 uint64 uint8"
    ),
    "frontends.python.functions.elementwise": (
        "abs acos acosh add asin asinh astype atan atan2 atanh ceil clip conj copysign cos cosh divide erf exp "
        "exp2 expm1 floor floor_divide hypot imag log log10 log1p log2 logaddexp maximum minimum multiply negative "
        "positive pow real reciprocal relu remainder round rsqrt sigmoid sign sin sinh sqrt square "
        "subtract tan tanh trunc where"
    ),
    "frontends.python.functions.logic": (
        "bitwise_and bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor equal "
        "greater greater_equal isfinite isinf isnan less less_equal logical_and logical_not logical_or "
        "logical_xor nextafter not_equal signbit view"
    ),
    "frontends.python.functions.linalg": "einsum matmul matrix_transpose outer tensordot vecdot",
    "frontends.python.functions.manipulate": (
        "broadcast_arrays broadcast_to concat expand_dims flip moveaxis permute_dims reshape roll squeeze stack tile "
        "unstack"
    ),
    "frontends.python.functions.index": ("newaxis repeat searchsorted take take_along_axis"),
    "frontends.python.functions.update": "put_along_axis",
    "frontends.python.functions.padding": "pad",
    "frontends.python.functions.sized": "nonzero unique_all unique_counts unique_inverse unique_values",
    "frontends.python.functions.reduce": (
        "all any argmax argmin count_nonzero cumulative_prod cumulative_sum diff log_softmax logsumexp max mean "
        "min prod softmax std sum var"
    ),
    "frontends.python.functions.create": (
        "arange asarray empty empty_like eye full full_like linspace meshgrid ones ones_like tril triu "
        "zeros zeros_like"
    ),
    "frontends.python.functions.sort": "argsort sort top_k",
    "frontends.python.extras.elementwise": (
        "allclose angle array_equal bitwise_count cbrt deg2rad divmod float_power fmax fmin fmod frexp gcd heaviside "
        "isclose iscomplex isneginf isposinf isreal lcm ldexp logaddexp2 modf nan_to_num rad2deg sinc spacing"
    ),
    "frontends.python.extras.manipulate": (
        "append argpartition array_split atleast_1d atleast_2d atleast_3d block choose column_stack delete dsplit "
        "dstack fliplr flipud hsplit hstack insert partition piecewise ravel ravel_multi_index resize rollaxis "
        "rot90 select split swapaxes transpose unravel_index vsplit vstack"
    ),
    "frontends.python.extras.create": (
        "bartlett blackman copy diag diag_indices diagflat fromfunction geomspace hamming hanning identity indices ix_ "
        "kaiser logspace tri tril_indices triu_indices vander"
    ),
    "frontends.python.extras.reduce": (
        "average bincount corrcoef cov digitize ediff1d gradient histogram interp isin lexsort median nanargmax "
        "nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin nanpercentile nanprod nanquantile nanstd "
        "nansum nanvar percentile ptp quantile trapezoid unwrap"
    ),
    "frontends.python.extras.linalg": (
        "convolve correlate cross diagonal dot inner kron matvec polyadd polyder polymul polysub polyval trace vdot "
        "vecmat"
    ),
    "frontends.python.control": "cond scan while_loop",
    "frontends.python.place": "constrain default_float hint kernels",
    "api.arrays": "from_dlpack",
    "frontends.python.tape": "stop_gradient",
    "api.gradients.functions": "grad value_and_grad vjp",
    "api.callables.mapping": "vmap",
    "api.callables.told": "log_compiles",
    "api.jit": "jit",
    "api.redistribution": "redistribute",
}

PUBLIC = {name: f"meshweave.{home}" for home, names in _NAMES.items() for name in names.split()}
"""Public name -> the module that defines it. `bool` is `dtypes.bool_`; `Array` is the runtime's."""

METHODS = {
    "FlatView": "meshweave.frontends.python.functions.flat",
    "put": "meshweave.frontends.python.functions.flat",
    "getitem": "meshweave.frontends.python.functions.index",
    "updated": "meshweave.frontends.python.functions.update",
    "at": "meshweave.frontends.python.functions.update",
}
"""Functions that methods of traced values call, and that have no public name -> the module that defines them."""

RENAMED = {"bool": ("meshweave.frontends.python.dtypes", "bool_")}
"""Public names that differ from those in the code."""

MODULES = {
    "fft": "meshweave.frontends.python.functions.fft",
    "linalg": "meshweave.frontends.python.functions.linalg",
    "nn": "meshweave.frontends.python.nn",
    "random": "meshweave.frontends.python.random",
    "special": "meshweave.frontends.python.special",
}
"""Public names that are modules."""
