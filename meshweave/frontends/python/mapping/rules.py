"""Hold the rules of primitives under `mw.vmap`: each computes all places at once, and is traced outside of the map.

A rule takes the map, the primitive, and the arguments of the call; it returns the whole of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.dtypes import DEFAULT_INT
from meshweave.frontends.python.functions.create import iota
from meshweave.frontends.python.functions.elementwise import add, multiply
from meshweave.frontends.python.functions.index import in_range
from meshweave.frontends.python.functions.manipulate import (
    axes_of,
    axis_of,
    moveaxis,
    reshaped,
    stack,
    unstack,
)
from meshweave.frontends.python.functions.update import Reach
from meshweave.frontends.python.mapping.batched import Batched, Level
from meshweave.frontends.python.tracer import Tracer, tensor

Rule = Callable[..., Any]


def compute(level: Level, name: str, function: Rule, call: Rule, args: Any, kwargs: Any) -> Any:
    """Compute a primitive on values of a map, by its rule. Raises CompileError for one that has none."""
    if name in MADE_OF_OTHERS:
        return function(*args, **kwargs)
    rule = RULES.get(name)
    if rule is None:
        fail(f"mw.vmap: {name} {REFUSED.get(name, 'has no rule')}")
    with level.outside():
        found = rule(level, call, *args, **kwargs)
    if isinstance(found, Tracer):
        return Batched(level, found)
    made = [Batched(level, v) for v in found]
    return type(found)(*made) if hasattr(found, "_fields") else type(found)(made)


def _whole(level: Level, value: Any) -> Any:
    """Return the whole of a value of the map, any other as it is."""
    return value.whole if level.has(value) else value


def _aligned(level: Level, call: Rule, *args: Any, **kwargs: Any) -> Any:
    """Compute what broadcasts: the places come first, in front of as many dims as the largest operand has."""
    most = max(v.ndim for v in args if isinstance(getattr(v, "ndim", None), int))  # no dtype
    return call(*[_with_ndim(level, v, most) for v in args], **kwargs)


def _with_ndim(level: Level, value: Any, ndim: int) -> Any:
    if not level.has(value):
        return value
    missing = (1,) * (ndim - value.ndim)
    return reshaped(value.whole, (level.size, *missing, *value.shape))


def _direct(level: Level, call: Rule, *args: Any, **kwargs: Any) -> Any:
    """Compute what works on the last dims, whatever is in front of them."""
    return call(*[_whole(level, v) for v in args], **kwargs)


def _reduce(level: Level, call: Rule, x: Any, dims: Sequence[int], *rest: Any) -> Any:
    return call(x.whole, tuple([d + 1 for d in dims]), *rest)


def _along(level: Level, call: Rule, x: Any, dim: int, *rest: Any) -> Any:
    return call(x.whole, dim + 1, *rest)


def _transformed(level: Level, call: Rule, x: Any, kind: str, dim: int, length: int) -> Any:
    return call(x.whole, kind, dim + 1, length)


def _extract(level: Level, call: Rule, x: Any, starts: Any, sizes: Any, steps: Any) -> Any:
    return call(x.whole, [0, *starts], [level.size, *sizes], [1, *steps])


def _insert(level: Level, call: Rule, x: Any, shape: Any, starts: Any, steps: Any) -> Any:
    return call(x.whole, (level.size, *shape), [0, *starts], [1, *steps])


def _reshaped(level: Level, call: Rule, x: Any, shape: tuple[int, ...]) -> Any:
    return call(x.whole, (level.size, *shape))


def _permuted(level: Level, call: Rule, x: Any, axes: Sequence[int]) -> Any:
    return call(x.whole, (0, *[d + 1 for d in axes_of("permute_dims", tuple(axes), x.ndim)]))


def _broadcast(level: Level, call: Rule, x: Any, shape: Any) -> Any:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    return call(_with_ndim(level, x, len(sizes)), (level.size, *sizes))


def _flip(level: Level, call: Rule, x: Any, axis: Any = None) -> Any:
    return call(x.whole, tuple([d + 1 for d in axes_of("flip", axis, x.ndim)]))


def _concat(level: Level, call: Rule, arrays: Sequence[Any], axis: int | None = 0) -> Any:
    values = [tensor(x) for x in arrays]
    wholes = level.wholes_outside(values)
    if axis is None:
        return call([reshaped(v, (level.size, v.size // max(level.size, 1))) for v in wholes], 1)
    return call(wholes, axis_of("concat", axis, values[0].ndim) + 1)


def _contract(
    level: Level, call: Rule, name: str, a: Any, b: Any, left: str, right: str, out: str
) -> Any:
    place = next(c for c in map(chr, range(0x410, 0x500)) if c not in left + right + out)
    left, right = (place * level.has(v) + t for v, t in ((a, left), (b, right)))
    return call(name, _whole(level, a), _whole(level, b), left, right, place + out)


def _solve(level: Level, call: Rule, a: Any, b: Any) -> Any:
    if tensor(b).ndim != 1:
        return _aligned(level, call, a, b)
    own = b.whole if level.has(b) else tensor(b)
    column = reshaped(own, (*own.shape, 1))
    return _aligned(level, call, a, Batched(level, column) if level.has(b) else column)[..., 0]


def _padded(level: Level, call: Rule, x: Any, ends: Any, fill: Any) -> Any:
    return call(x.whole, [(0, 0), *ends], fill)


def _put_slice(level: Level, call: Rule, whole: Any, new: Any, starts: Any, steps: Any) -> Any:
    return call(*level.wholes_outside([whole, new]), [0, *starts], [1, *steps])


def _put_at(
    level: Level, call: Rule, whole: Any, new: Any, places: Any, reach: Reach, how: str
) -> Any:
    own = [_whole(level, v) for v in places]
    further = reach.mapped(level.size, [level.has(v) for v in places])
    return call(*level.wholes_outside([whole, new]), own, further, how)


def _read_at(level: Level, call: Rule, whole: Any, places: Any, reach: Reach) -> Any:
    own = [_whole(level, v) for v in places]
    further = reach.mapped(level.size, [level.has(v) for v in places])
    return call(*level.wholes_outside([whole]), own, further)


def _gather(level: Level, call: Rule, x: Any, indices: Any, dim: int) -> Any:
    """Look rows up: where both have places, in rows of all of them side by side."""
    if not level.has(indices):
        return call(x.whole, indices, dim + 1)
    if not level.has(x):
        return moveaxis(call(x, indices.whole, dim), dim, 0)
    size = x.shape[dim]
    rows = moveaxis(x.whole, dim + 1, 1)
    rows = reshaped(rows, (level.size * size, *rows.shape[2:]))
    own = iota((level.size, *(1,) * indices.ndim), 0, DEFAULT_INT)
    at = add(in_range(indices.whole, size, dim), multiply(own, size))
    found = call(rows, at, 0)  # places, dims of indices, the other dims of x
    k = indices.ndim
    return moveaxis(found, tuple(range(1, k + 1)), tuple(range(dim + 1, dim + k + 1)))


def _take_along(level: Level, call: Rule, x: Any, indices: Any, axis: int = -1) -> Any:
    dim = axis_of("take_along_axis", axis, tensor(x).ndim)
    whole = [_whole(level, v) if level.has(v) else tensor(v)[None] for v in (x, indices)]
    return call(*whole, axis=dim + 1)


def _put_back(level: Level, call: Rule, value: Any, places: Any, dim: int) -> Any:
    return call(_whole(level, value), _whole(level, places), dim + 1)


def _add_along(level: Level, call: Rule, value: Any, indices: Any, dim: int, shape: Any) -> Any:
    return call(*level.wholes_outside([value, indices]), dim + 1, (level.size, *shape))


def _add_rows(level: Level, call: Rule, value: Any, indices: Any, dim: int, size: int) -> Any:
    """Add rows up: to those of all places, side by side."""
    values, at = level.wholes_outside([value, indices])
    own = iota((level.size, *(1,) * indices.ndim), 0, DEFAULT_INT)
    at = add(in_range(at, size, dim), multiply(own, size))
    found = call(moveaxis(values, 0, dim), at, dim, level.size * size)
    apart = (*found.shape[:dim], level.size, size, *found.shape[dim + 1 :])
    return moveaxis(reshaped(found, apart), dim, 0)


def _images(level: Level, call: Rule, image: Any, *rest: Any) -> Any:
    """Compute on more images: the first dim of the function's is theirs."""
    whole, count = image.whole, image.shape[0]
    made = call(reshaped(whole, (level.size * count, *whole.shape[2:])), *rest)
    return reshaped(made, (level.size, count, *made.shape[1:]))


def _convolved(level: Level, call: Rule, image: Any, window: Any, *rest: Any) -> Any:
    """Convolve: windows of all places have their features side by side, unless images differ too."""
    if not level.has(window):
        return _images(level, call, image, window, *rest)
    windows, features = window.whole, window.shape[-1]
    if level.has(image):
        pairs = zip(unstack(image.whole), unstack(windows))
        return stack([call(x, w, *rest) for x, w in pairs])
    beside = moveaxis(windows, 0, -2)
    beside = reshaped(beside, (*beside.shape[:-2], level.size * features))
    made = call(image, beside, *rest)
    return moveaxis(reshaped(made, (*made.shape[:-1], level.size, features)), -2, 0)


_ELEMENTWISE = (
    "abs", "acos", "acosh", "add", "asin", "asinh", "astype", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "ceil", "conj",
    "copysign", "cos", "cosh", "divide", "equal", "erf", "exp", "exp2", "expm1", "floor", "floor_divide", "greater",
    "greater_equal", "hypot", "isfinite", "isinf", "isnan", "less", "less_equal", "log", "log10", "log1p", "log2",
    "logaddexp", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative",
    "nextafter", "not_equal", "part", "pow", "relu", "remainder", "round", "rsqrt", "sigmoid", "sign", "signbit",
    "sin", "sinh", "sqrt", "subtract", "tan", "tanh", "trunc", "where",
)  # fmt: skip
_SPECIAL = (
    "digamma", "erfc", "erfcinv", "erfcx", "erfinv", "gamma", "gammainc", "gammaincc", "gammaln", "i0", "i0e", "i1",
    "i1e", "log_ndtr", "ndtr", "ndtri", "zeta",
)  # fmt: skip
RULES: dict[str, Rule] = {
    "polygamma": lambda level, call, n, x: call(n, x.whole),
    **dict.fromkeys((*_ELEMENTWISE, *_SPECIAL, "erf_inv", "scaled"), _aligned),
    **dict.fromkeys(
        (
            *("cholesky", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "qr"),
            *("slogdet", "svd", "svdvals"),
        ),
        _direct,
    ),
    "triangle": lambda level, call, name, x, k, predicate: call(name, x.whole, k, predicate),
    "add_along": _add_along, "add_rows": _add_rows, "convolved": _convolved, "folded": _images, "padded": _padded,
    "put_at": _put_at, "put_slice": _put_slice, "read_at": _read_at,
    "broadcast_to": _broadcast, "concat": _concat, "contract": _contract,
    "extract": _extract, "flip": _flip, "gather": _gather, "insert": _insert, "permute_dims": _permuted,
    "places": _along, "put_back": _put_back, "reduce": _reduce, "reshaped": _reshaped,
    "scan_elements": _along, "solve": _solve, "sorted": _along,
    "take_along_axis": _take_along, "transformed": _transformed,
}  # fmt: skip
"""Primitive -> its rule."""
MADE_OF_OTHERS = {"alias", "log_softmax", "logsumexp", "pinv", "softmax"}
"""Primitives that are traced as they are: what they call has rules."""
REFUSED = {
    "constrain": "says where all dims of a value lie: constrain the whole, around mw.vmap",
}
"""Primitive -> why it has no rule, for an error."""
