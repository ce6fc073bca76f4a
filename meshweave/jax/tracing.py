"""Let JAX trace and lower a function; describe its arguments and results.

JAX sees shapes, dtypes and shardings over a mesh without devices, never the arrays: what devices they are on is no
matter here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshweave.errors import CompileError, UsageError
from meshweave.jax.captured import take_captured
from meshweave.jax.placements import PyTree, placements, with_layouts
from meshweave.layout import Mesh

if TYPE_CHECKING:  # JAX is optional, and takes a second to import
    from jax.extend.core import Jaxpr
    from jax.stages import Lowered as JaxLowered
    from jax.stages import Traced as JaxTraced
    from jax.tree_util import PyTreeDef

    from meshweave.jax.placements import MeshLike


class PrngKeys(NamedTuple):
    """Describe the typed PRNG keys of a leaf: their dtype, and what `jax.random.wrap_key_data` calls it."""

    dtype: Any  # of JAX alone, no dtype of NumPy's
    impl: Any  # a name, or an object of JAX's


class Leaf(NamedTuple):
    """Describe an argument or result as the program has it. name: as Python writes it, `params["w"]`.

    key: of PRNG keys, which are their data in the program: `uint32` with a dim more.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    key: PrngKeys | None


class Traced(NamedTuple):
    """Hold the program that JAX made of a function, and its interface."""

    name: str
    text: str
    captured: tuple[np.ndarray[Any, Any], ...]  # arrays that the function holds, behind `inputs`
    inputs: tuple[Leaf, ...]
    kept: tuple[int, ...]  # the inputs that the program takes
    outputs: tuple[Leaf, ...]
    held: Mapping[int, tuple[str, Any]]  # leaves of the arguments that are no inputs: names, values
    in_tree: PyTreeDef  # of all leaves
    out_tree: PyTreeDef
    mesh: Mesh | None  # that it is for, if known


def trace(
    jax: ModuleType,
    fn: Callable[..., PyTree],
    args: Sequence[PyTree],
    kwargs: Mapping[str, PyTree],
    in_shardings: PyTree,
    mesh: MeshLike | None,
) -> Traced:
    """Trace and lower a function for these arguments, on an abstract mesh where one is known.

    Leaves that are no arrays are held: the program is for their values. Where a jitted function has static arguments,
    which JAX does not tell from others, so are all Python numbers.
    """
    if not callable(fn):
        raise UsageError(f"from_jax: a function is needed, got {type(fn).__name__}")
    given = (tuple(args), dict(kwargs))
    leaves = jax.tree.leaves(given)
    held = {n: v for n, v in enumerate(leaves) if not isinstance(v, _NUMBERS) and not _is_array(v)}
    numbers = {n: v for n, v in enumerate(leaves) if isinstance(v, _NUMBERS)}
    jitted = hasattr(fn, "trace") and hasattr(fn, "lower")
    own = jitted and in_shardings is None
    try:
        traced = _traced(jax, fn, given, {} if own else held, in_shardings, mesh)
    except (TypeError, ValueError):  # of JAX, where a tracer is static
        if not (jitted and numbers):
            raise
        traced = None
    if traced is None:
        traced = _traced(jax, fn, given, held | numbers, in_shardings, mesh)
    if traced is not None:
        return traced
    raise UsageError(
        f"from_jax: {_name(fn)} has static arguments: give a function that has their values in it "
        "(functools.partial)"
    )


_NUMBERS = (bool, int, float, complex)


def _is_array(value: object) -> bool:
    return hasattr(value, "dtype") or hasattr(value, "__jax_array__")


def _name(fn: Callable[..., PyTree]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _traced(
    jax: ModuleType,
    fn: Callable[..., PyTree],
    given: tuple[PyTree, PyTree],
    held: Mapping[int, PyTree],
    in_shardings: PyTree,
    mesh: MeshLike | None,
) -> Traced | None:
    """Trace and lower a function that holds these leaves of its arguments; None if it has static ones besides."""
    names, tree = _leaf_names(jax, given, _parameters(fn)), jax.tree.structure(given)
    if held:
        fn, given = _holding(jax, fn, given, held)
    left = [name for n, name in enumerate(names) if n not in held]
    placed = placements(jax, in_shardings, given, left, mesh)
    own = in_shardings is None and hasattr(fn, "trace") and hasattr(fn, "lower")
    abstract = placed.abstract
    with nullcontext() if abstract is None else jax.sharding.use_abstract_mesh(abstract):
        jitted: Any = fn if own else _jitted(jax, fn, placed.arguments)
        stage = jitted.trace(*placed.arguments[0], **placed.arguments[1])
        lowered = _lowered(stage)
    if lowered.in_tree != jax.tree.structure(given):
        return None
    inputs = _leaves(jax, lowered.args_info, left)
    outputs = _leaves(jax, lowered.out_info, _leaf_names(jax, lowered.out_info, None))
    text, captured = take_captured(lowered.compiler_ir("stablehlo"))
    kept = _kept(lowered, text, len(inputs), _name(fn))
    layouts = {kept.index(n): text for n, text in placed.layouts.items() if n in kept}
    text = with_layouts(text, layouts, placed.mesh)
    named = {n: (names[n], value) for n, value in held.items()}
    trees = (named, tree, lowered.out_tree, placed.mesh)
    return Traced(_name(fn), text, captured, inputs, kept, outputs, *trees)


def _jitted(jax: ModuleType, fn: Any, given: tuple[PyTree, PyTree]) -> Any:
    """Return a function as JAX jits it, with the donations of one that is jitted already."""
    if not hasattr(fn, "trace"):
        return jax.jit(fn, keep_unused=True)
    positional, named = fn.trace(*given[0], **given[1]).args_info

    def donated(info: PyTree) -> bool:
        return any(leaf.donated for leaf in jax.tree.leaves(info))

    numbers = [number for number, info in enumerate(positional) if donated(info)]
    names = [name for name, info in named.items() if donated(info)]
    return jax.jit(fn, keep_unused=True, donate_argnums=numbers, donate_argnames=names)


def _holding(
    jax: ModuleType, fn: Callable[..., PyTree], given: PyTree, held: Mapping[int, PyTree]
) -> tuple[Callable[..., PyTree], tuple[PyTree, PyTree]]:
    """Return a function that holds these leaves, and its arguments: None, which has no leaves, in their place."""
    leaves, tree = jax.tree.flatten(given)

    @wraps(fn)
    def holding(*args: PyTree, **kwargs: PyTree) -> PyTree:
        others = iter(jax.tree.leaves((args, kwargs)))
        whole = [held[n] if n in held else next(others) for n in range(len(leaves))]
        positional, named = jax.tree.unflatten(tree, whole)
        return fn(*positional, **named)

    return holding, jax.tree.unflatten(
        tree, [None if n in held else v for n, v in enumerate(leaves)]
    )


def _lowered(stage: JaxTraced) -> JaxLowered:
    """Lower what JAX has traced. Raises CompileError for callbacks, which JAX lowers for real devices only."""
    try:
        return stage.lower(lowering_platforms=("cpu",))
    except ValueError:
        found = list(_callbacks(stage.jaxpr.jaxpr))
        if not found:
            raise
        named = "; ".join(f"a callback into Python: {name} (at {at})" for name, at in found)
        raise CompileError(f"not supported: {named}", found[0][1]) from None


_CALLBACKS = ("pure_callback", "io_callback", "debug_callback", "debug_print", "inspect_sharding")


def _callbacks(jaxpr: Jaxpr) -> Iterator[tuple[str, str]]:
    """Give the name of each primitive that calls Python when it runs, and its line in the user's file."""
    from jax.extend.core import jaxprs_in_params
    from jax.extend.source_info_util import summarize

    for equation in jaxpr.eqns:
        if equation.primitive.name in _CALLBACKS:
            yield equation.primitive.name, summarize(equation.source_info).partition(" (")[0]
        for inner in jaxprs_in_params(equation.params):
            yield from _callbacks(inner)


def _kept(lowered: JaxLowered, text: str, count: int, name: str) -> tuple[int, ...]:
    """Return the numbers of the arguments that the program has: jit leaves out those that nothing reads."""
    inside = getattr(lowered, "_lowering", None)
    kept = (getattr(inside, "compile_args", None) or {}).get("kept_var_idx")
    if kept is not None:
        return tuple(sorted(kept))
    signature = text.partition("func.func public @main(")[2].partition("->")[0]
    if len(re.findall(r"%arg\d+: ", signature)) != count:
        raise UsageError(
            f"from_jax: {name} has arguments that nothing reads: jit it with keep_unused=True"
        )
    return tuple(range(count))


def _parameters(fn: Callable[..., PyTree]) -> list[str]:
    try:
        return list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return []


def _leaf_names(jax: ModuleType, values: PyTree, parameters: list[str] | None) -> list[str]:
    """Return the names of the leaves of (args, kwargs), such as `params["w"]`, or of results (None)."""
    keystr, found = jax.tree_util.keystr, []
    for path, _ in jax.tree_util.tree_flatten_with_path(values)[0]:
        if parameters is None:
            found.append(f"result{keystr(path)}")
            continue
        named, first = path[0].idx == 1, path[1]
        if named:
            here = str(first.key)
        else:
            here = parameters[first.idx] if first.idx < len(parameters) else f"argument {first.idx}"
        found.append(f"{here}{keystr(path[2:])}")
    return found


def _leaves(jax: ModuleType, infos: PyTree, names: Sequence[str]) -> tuple[Leaf, ...]:
    """Describe the leaves of arguments or of results."""
    return tuple(
        _leaf(jax, name, info) for name, info in zip(names, jax.tree.leaves(infos), strict=True)
    )


def _leaf(jax: ModuleType, name: str, info: Any) -> Leaf:
    if not jax.numpy.issubdtype(info.dtype, jax.dtypes.prng_key):
        return Leaf(name, tuple(info.shape), np.dtype(info.dtype), None)
    impls = []

    def data(keys: Any) -> Any:
        impls.append(jax.random.key_impl(keys))
        return jax.random.key_data(keys)

    inside = jax.eval_shape(data, jax.ShapeDtypeStruct(info.shape, info.dtype))
    return Leaf(name, tuple(inside.shape), np.dtype(inside.dtype), PrngKeys(info.dtype, impls[0]))
