"""Functions of arrays: what holds for all of a family, and an example of each with what it gives, as docs/api.md shows
them. tests/test_docstrings.py runs the examples, and holds those that NumPy has too against NumPy.
"""

FAMILIES = (
    (
        "Element types",
        "dtypes",
        """
bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bfloat16, float16, float32, float64, complex64 and
complex128; `mw.float32`, `"f32"`, `"float32"` and `np.float32` are the same wherever a dtype is asked for. Two arrays
promote as the standard says; besides, float16 with bfloat16 gives float32, uint64 beside an integer with sign float64,
an integer array beside a floating or complex one takes its type, and bool beside a number the number's. The functions
work outside of traced functions too, and raise UsageError for what is no
dtype.
""",
    ),
    (
        "Elementwise",
        "elementwise logic",
        """
x, x1, x2, condition: arrays of any shapes that broadcast, or numbers. The result has the shape that they broadcast to
and, where nothing else is said, the dtype that they promote to; floating functions of integers and bools give float32.
float16 and bfloat16 are computed in float32 and rounded once. Angles are in radians.
Complex numbers have sums, products, quotients, powers, parts, exponentials, logarithms, roots, the circular and
hyperbolic functions but not their inverses; what needs an order is refused for them.
""",
    ),
    (
        "Linear algebra",
        "linear linalg",
        """
The dims in front of those that are multiplied broadcast, and the result has the dtype that the operands promote to.
float16 and bfloat16 add up in float32 and are rounded once.
""",
    ),
    (
        "Fourier transforms",
        "fft",
        """
`mw.fft`, the array API's extension, compiled for the cpu. Integers and floats become complex64, float64 complex128; the
dim of a transform is whole on a rank, all others may be cut. n: how many elements along the dim, cut off or filled up
with zeros; s: that of several dims. norm: "backward" scales transforms back by 1/n, "forward" the others, "ortho" both
by 1/sqrt(n).
""",
    ),
    (
        "Shapes and places",
        "manipulate index",
        """
The elements as they are, in another shape or order; the dtype is that of x, of several arrays what they promote to.
axis: a dim, negative from the end; shape: a tuple of whole numbers. Slices, integers, `...` and `mw.newaxis` in
brackets work as in NumPy.
""",
    ),
    (
        "Reductions",
        "reduce",
        """
axis: a dim, negative from the end, a tuple of dims, or None: all of them; the result lacks these dims, or has them with
extent 1 where keepdims is True. Sums of float16 and bfloat16 add up in float32 and are rounded once; sums and products
of narrower integers and bools are int64; where nothing else is said, results have the dtype of x.
""",
    ),
    (
        "Creation",
        "create arrays",
        """
shape: a whole number or a tuple of them, known when the program is traced. dtype: any of the above; None: float32, or
that of the values given (Python whole numbers: int64).
""",
    ),
    (
        "Sorting",
        "sort",
        """
Along one dim of an x of any shape and dtype. descending: the largest first. stable: equal elements keep their order,
which they do in any case.
""",
    ),
    (
        "Refused",
        "dynamic",
        """
Of the standard, but with results whose shapes only the run knows: each raises CompileError and says what to do instead.
""",
    ),
)
"""Functions of one family take and raise the same: title, files of frontends/python/functions, what holds for all."""

NAMES = {
    "v": [1.0, 2.0, 4.0],
    "w": [4.0, 1.0, 2.0],
    "m": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]],
    "i": [5, 3, 0],
    "b": [True, False, True],
}
"""The arrays of the examples: v, w, m are float32, i is int64, b is bool."""

EXAMPLES = {
    # dtypes
    "as_dtype": ("as_dtype('f32').bits", "32"),
    "can_cast": ("can_cast('i32', 'f32')", "True"),
    "finfo": ("finfo('f16').bits", "16"),
    "iinfo": ("iinfo('i8').min", "-128"),
    "isdtype": ("isdtype(float32, 'real floating')", "True"),
    "result_type": ("result_type(float16, 1.5).name", "'f16'"),
    # elementwise
    "abs": ("abs(v - 2)", "[1, 0, 2]"),
    "acos": ("acos(1 / v)", "[0, 1.047, 1.318]"),
    "acosh": ("acosh(v)", "[0, 1.317, 2.063]"),
    "add": ("add(v, w)", "[5, 3, 6]"),
    "asin": ("asin(1 / v)", "[1.571, 0.5236, 0.2527]"),
    "asinh": ("asinh(v)", "[0.8814, 1.444, 2.095]"),
    "astype": ("astype(v / 3, int32)", "[0, 0, 1]"),
    "atan": ("atan(v)", "[0.7854, 1.107, 1.326]"),
    "atan2": ("atan2(v, w)", "[0.245, 1.107, 1.107]"),
    "atanh": ("atanh(1 / (v + 1))", "[0.5493, 0.3466, 0.2027]"),
    "ceil": ("ceil(v / 3)", "[1, 1, 2]"),
    "clip": ("clip(v, 1.5, 3)", "[1.5, 2, 3]"),
    "conj": ("conj(v - 2j)", "[(1+2j), (2+2j), (4+2j)]"),
    "copysign": ("copysign(v, v - 3)", "[-1, -2, 4]"),
    "cos": ("cos(v)", "[0.5403, -0.4161, -0.6536]"),
    "cosh": ("cosh(v)", "[1.543, 3.762, 27.31]"),
    "divide": ("divide(v, w)", "[0.25, 2, 2]"),
    "erf": ("erf(1 / v)", "[0.8427, 0.5205, 0.2763]"),
    "exp": ("exp(v)", "[2.718, 7.389, 54.6]"),
    "exp2": ("exp2(v)", "[2, 4, 16]"),
    "expm1": ("expm1(v)", "[1.718, 6.389, 53.6]"),
    "floor": ("floor(v / 3)", "[0, 0, 1]"),
    "floor_divide": ("floor_divide(v, 3)", "[0, 0, 1]"),
    "hypot": ("hypot(v, w)", "[4.123, 2.236, 4.472]"),
    "imag": ("imag(v - 2j)", "[-2, -2, -2]"),
    "log": ("log(v)", "[0, 0.6931, 1.386]"),
    "log10": ("log10(v)", "[0, 0.301, 0.6021]"),
    "log1p": ("log1p(v)", "[0.6931, 1.099, 1.609]"),
    "log2": ("log2(v)", "[0, 1, 2]"),
    "logaddexp": ("logaddexp(v, w)", "[4.049, 2.313, 4.127]"),
    "maximum": ("maximum(v, w)", "[4, 2, 4]"),
    "minimum": ("minimum(v, w)", "[1, 1, 2]"),
    "multiply": ("multiply(v, w)", "[4, 2, 8]"),
    "negative": ("negative(v)", "[-1, -2, -4]"),
    "positive": ("positive(v)", "[1, 2, 4]"),
    "pow": ("pow(v, 2)", "[1, 4, 16]"),
    "real": ("real(v - 2j)", "[1, 2, 4]"),
    "reciprocal": ("reciprocal(v)", "[1, 0.5, 0.25]"),
    "relu": ("relu(v - 2)", "[0, 0, 2]"),
    "remainder": ("remainder(v, 3)", "[1, 2, 1]"),
    "round": ("round(v / 4)", "[0, 0, 1]"),
    "rsqrt": ("rsqrt(v)", "[1, 0.7071, 0.5]"),
    "sigmoid": ("sigmoid(v - 2)", "[0.2689, 0.5, 0.8808]"),
    "sign": ("sign(v - 2)", "[-1, 0, 1]"),
    "sin": ("sin(v)", "[0.8415, 0.9093, -0.7568]"),
    "sinh": ("sinh(v)", "[1.175, 3.627, 27.29]"),
    "sqrt": ("sqrt(v)", "[1, 1.414, 2]"),
    "square": ("square(v)", "[1, 4, 16]"),
    "subtract": ("subtract(v, w)", "[-3, 1, 2]"),
    "tan": ("tan(v)", "[1.557, -2.185, 1.158]"),
    "tanh": ("tanh(v)", "[0.7616, 0.964, 0.9993]"),
    "trunc": ("trunc(-v / 3)", "[-0, -0, -1]"),
    "where": ("where(b, v, 0)", "[1, 0, 4]"),
    # logic
    "bitwise_and": ("bitwise_and(i, 1)", "[1, 1, 0]"),
    "bitwise_invert": ("bitwise_invert(i)", "[-6, -4, -1]"),
    "bitwise_left_shift": ("bitwise_left_shift(i, 2)", "[20, 12, 0]"),
    "bitwise_or": ("bitwise_or(i, 8)", "[13, 11, 8]"),
    "bitwise_right_shift": ("bitwise_right_shift(i, 1)", "[2, 1, 0]"),
    "bitwise_xor": ("bitwise_xor(i, 1)", "[4, 2, 1]"),
    "equal": ("equal(v, w)", "[False, False, False]"),
    "greater": ("greater(v, w)", "[False, True, True]"),
    "greater_equal": ("greater_equal(v, 2)", "[False, True, True]"),
    "isfinite": ("isfinite(v / 0)", "[False, False, False]"),
    "isinf": ("isinf(v / 0)", "[True, True, True]"),
    "isnan": ("isnan(v / 0 - w / 0)", "[True, True, True]"),
    "less": ("less(v, w)", "[True, False, False]"),
    "less_equal": ("less_equal(v, 2)", "[True, True, False]"),
    "logical_and": ("logical_and(b, v > 2)", "[False, False, True]"),
    "logical_not": ("logical_not(b)", "[False, True, False]"),
    "logical_or": ("logical_or(b, v > 2)", "[True, False, True]"),
    "logical_xor": ("logical_xor(b, v > 2)", "[True, False, False]"),
    "nextafter": ("nextafter(v, w) > v", "[True, False, False]"),
    "not_equal": ("not_equal(v, 2)", "[True, False, True]"),
    "signbit": ("signbit(v - 3)", "[True, True, False]"),
    # linear
    "einsum": ("einsum('rc,c->r', m, v)", "[17, 38]"),
    "matmul": ("matmul(m, v)", "[17, 38]"),
    "matrix_transpose": ("matrix_transpose(m)", "[[1, 4], [2, 5], [3, 6]]"),
    "outer": ("outer(v, i)", "[[5, 3, 0], [10, 6, 0], [20, 12, 0]]"),
    "tensordot": ("tensordot(m, v, axes=1)", "[17, 38]"),
    "vecdot": ("vecdot(v, w)", "14"),
    "linalg.cholesky": ("linalg.cholesky(m @ m.mT)", "[[3.742, 0], [8.552, 1.964]]"),
    "linalg.det": ("linalg.det(m @ m.mT)", "54"),
    "linalg.eigh": ("linalg.eigh(m @ m.mT).eigenvalues", "[0.5973, 90.4]"),
    "linalg.eigvalsh": ("linalg.eigvalsh(m @ m.mT)", "[0.5973, 90.4]"),
    "linalg.inv": ("linalg.inv(m[:, :2])", "[[-1.667, 0.6667], [1.333, -0.3333]]"),
    "linalg.matrix_power": ("linalg.matrix_power(m[:, :2], 2)", "[[9, 12], [24, 33]]"),
    "linalg.matrix_rank": ("linalg.matrix_rank(m)", "2"),
    "linalg.pinv": ("linalg.pinv(m[:1])", "[[0.07143], [0.1429], [0.2143]]"),
    "linalg.qr": ("linalg.qr(m).R", "[[-4.123, -5.336, -6.548], [0, -0.7276, -1.455]]"),
    "linalg.slogdet": ("linalg.slogdet(m @ m.mT).logabsdet", "3.989"),
    "linalg.solve": ("linalg.solve(m[:, :2], m[:, 2])", "[-1, 2]"),
    "linalg.svd": ("linalg.svd(m).S", "[9.508, 0.7729]"),
    "linalg.svdvals": ("linalg.svdvals(m)", "[9.508, 0.7729]"),
    "linalg.cross": ("linalg.cross(v, w)", "[0, 14, -7]"),
    "linalg.diagonal": ("linalg.diagonal(m)", "[1, 5]"),
    "linalg.matrix_norm": ("linalg.matrix_norm(m)", "9.539"),
    "linalg.trace": ("linalg.trace(m)", "6"),
    "linalg.vector_norm": ("linalg.vector_norm(v)", "4.583"),
    # fft
    "fft.fft": ("real(fft.fft(w))", "[7, 2.5, 2.5]"),
    "fft.ifft": ("real(fft.ifft(fft.fft(w)))", "[4, 1, 2]"),
    "fft.rfft": ("real(fft.rfft(w))", "[7, 2.5]"),
    "fft.irfft": ("fft.irfft(w)", "[2, 0.5, 1, 0.5]"),
    "fft.hfft": ("fft.hfft(w)", "[8, 2, 4, 2]"),
    "fft.ihfft": ("real(fft.ihfft(w))", "[2.333, 0.8333]"),
    "fft.fftn": ("real(fft.fftn(m))", "[[21, -3, -3], [-9, 0, 0]]"),
    "fft.ifftn": ("real(fft.ifftn(m))", "[[3.5, -0.5, -0.5], [-1.5, 0, 0]]"),
    "fft.rfftn": ("real(fft.rfftn(m))", "[[21, -3], [-9, 0]]"),
    "fft.irfftn": ("fft.irfftn(m)", "[[3.5, -0.5, 0, -0.5], [-1.5, 0, 0, 0]]"),
    "fft.fftfreq": ("fft.fftfreq(4)", "[0, 0.25, -0.5, -0.25]"),
    "fft.rfftfreq": ("fft.rfftfreq(4)", "[0, 0.25, 0.5]"),
    "fft.fftshift": ("fft.fftshift(v)", "[4, 1, 2]"),
    "fft.ifftshift": ("fft.ifftshift(v)", "[2, 4, 1]"),
    # manipulate
    "broadcast_arrays": ("broadcast_arrays(m, v)[1]", "[[1, 2, 4], [1, 2, 4]]"),
    "broadcast_to": ("broadcast_to(v, (2, 3))", "[[1, 2, 4], [1, 2, 4]]"),
    "concat": ("concat([v, w])", "[1, 2, 4, 4, 1, 2]"),
    "expand_dims": ("expand_dims(v, axis=0)", "[[1, 2, 4]]"),
    "flip": ("flip(v)", "[4, 2, 1]"),
    "moveaxis": ("moveaxis(m, 0, 1)", "[[1, 4], [2, 5], [3, 6]]"),
    "permute_dims": ("permute_dims(m, (1, 0))", "[[1, 4], [2, 5], [3, 6]]"),
    "repeat": ("repeat(v, 2)", "[1, 1, 2, 2, 4, 4]"),
    "reshape": ("reshape(m, (3, -1))", "[[1, 2], [3, 4], [5, 6]]"),
    "roll": ("roll(v, 1)", "[4, 1, 2]"),
    "squeeze": ("squeeze(m[:1], axis=0)", "[1, 2, 3]"),
    "stack": ("stack([v, w])", "[[1, 2, 4], [4, 1, 2]]"),
    "tile": ("tile(v, (2,))", "[1, 2, 4, 1, 2, 4]"),
    "unstack": ("unstack(m)[1]", "[4, 5, 6]"),
    # index
    "searchsorted": ("searchsorted(v, w)", "[2, 0, 1]"),
    "take": ("take(v, i - 3, axis=0)", "[4, 1, 1]"),
    "take_along_axis": ("take_along_axis(v, argsort(w))", "[2, 4, 1]"),
    # reduce
    "all": ("all(b)", "False"),
    "any": ("any(b)", "True"),
    "argmax": ("argmax(m, axis=1)", "[2, 2]"),
    "argmin": ("argmin(w)", "1"),
    "count_nonzero": ("count_nonzero(i)", "2"),
    "cumulative_prod": ("cumulative_prod(v)", "[1, 2, 8]"),
    "cumulative_sum": ("cumulative_sum(v)", "[1, 3, 7]"),
    "diff": ("diff(v)", "[1, 2]"),
    "log_softmax": ("log_softmax(v)", "[-3.17, -2.17, -0.1698]"),
    "logsumexp": ("logsumexp(v)", "4.17"),
    "max": ("max(m, axis=0)", "[4, 5, 6]"),
    "mean": ("mean(m, axis=1)", "[2, 5]"),
    "min": ("min(m)", "1"),
    "prod": ("prod(v)", "8"),
    "softmax": ("softmax(v)", "[0.04201, 0.1142, 0.8438]"),
    "std": ("std(v)", "1.247"),
    "sum": ("sum(m, axis=1)", "[6, 15]"),
    "var": ("var(v)", "1.556"),
    # create
    "arange": ("arange(0, 6, 2)", "[0, 2, 4]"),
    "asarray": ("asarray([1.5, 2])", "[1.5, 2]"),
    "empty": ("empty((2,)).shape", "(2,)"),
    "empty_like": ("empty_like(m).shape", "(2, 3)"),
    "eye": ("eye(2)", "[[1, 0], [0, 1]]"),
    "from_dlpack": ("from_dlpack(v)", "[1, 2, 4]"),
    "full": ("full((2,), 7)", "[7, 7]"),
    "full_like": ("full_like(v, 7)", "[7, 7, 7]"),
    "linspace": ("linspace(0, 1, 3)", "[0, 0.5, 1]"),
    "meshgrid": ("meshgrid(v, w[:2])[1]", "[[4, 4, 4], [1, 1, 1]]"),
    "ones": ("ones((2,))", "[1, 1]"),
    "ones_like": ("ones_like(v)", "[1, 1, 1]"),
    "tril": ("tril(m)", "[[1, 0, 0], [4, 5, 0]]"),
    "triu": ("triu(m)", "[[1, 2, 3], [0, 5, 6]]"),
    "zeros": ("zeros((2,))", "[0, 0]"),
    "zeros_like": ("zeros_like(v)", "[0, 0, 0]"),
    # sort
    "argsort": ("argsort(w)", "[1, 2, 0]"),
    "top_k": ("top_k(w, 2)[1]", "[0, 2]"),
    "sort": ("sort(w, descending=True)", "[4, 2, 1]"),
}
"""Name: what is written, with `mw.` left out, and what it gives, floats with four digits."""
