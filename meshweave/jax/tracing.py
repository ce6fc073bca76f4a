"""Let JAX trace and lower a function; describe its arguments and results.

JAX sees shapes, dtypes and shardings over a mesh without devices, never the arrays: what devices they are on is no
matter here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshweave.errors import CompileError, UsageError
from meshweave.jax.callbacks import of_devices, take_callbacks, without_devices
from meshweave.jax.captured import take_captured
from meshweave.jax.placements import (
    PyTree,
    entry_of,
    placements,
    result_layouts,
    set_hints,
    set_layouts,
)
from meshweave.layout import Mesh

if TYPE_CHECKING:  # JAX is optional, and takes a second to import
    from jax.sharding import AbstractMesh
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

    key:  of PRNG keys, which are their data in the program: `uint32` with a dim more.
    weak: whether it takes the dtype of what it meets, as a Python number does.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    key: PrngKeys | None
    weak: bool = False


class Wanted(NamedTuple):
    """Hold what is asked of a program besides its function and arguments.

    donate_argnums, donate_argnames: the arguments that are donated, as `jax.jit` has them. peak_bytes: what it may take
    between its arguments and results; None: what it takes.
    """

    in_shardings: PyTree = None
    out_shardings: PyTree = None
    mesh: MeshLike | None = None
    donate_argnums: tuple[int, ...] = ()
    donate_argnames: tuple[str, ...] = ()
    peak_bytes: int | str | None = None

    @property
    def leaves_it(self) -> bool:
        """Tell whether all is left to what the function says, when it is jitted already."""
        rest = (self.in_shardings, self.out_shardings)
        return rest == (None, None) and not self.donate_argnums and not self.donate_argnames


class Traced(NamedTuple):
    """Hold the program that JAX made of a function, and its interface."""

    name: str
    text: str
    captured: tuple[np.ndarray[Any, Any], ...]  # arrays that the function holds, behind `inputs`
    inputs: tuple[Leaf, ...]
    kept: tuple[int, ...]  # the inputs that the program takes
    outputs: tuple[Leaf, ...]
    held: Mapping[int, tuple[str, Any]]  # leaves of the arguments that are no inputs: names, values
    held_results: Mapping[int, Any]  # leaves of the results that are no arrays
    in_tree: PyTreeDef  # of all leaves
    out_tree: PyTreeDef  # likewise
    mesh: Mesh | None  # that it is for, if known


class Inside(NamedTuple):
    """Hold the mesh of a program that is being traced."""

    mesh: Mesh | None
    abstract: AbstractMesh | None


_INSIDE: ContextVar[Inside | None] = ContextVar("inside", default=None)


def inside() -> Inside | None:
    """Return the mesh of the program that is being traced here; None while none is."""
    return _INSIDE.get()


def trace(
    jax: ModuleType,
    fn: Callable[..., PyTree],
    args: Sequence[PyTree],
    kwargs: Mapping[str, PyTree],
    wanted: Wanted,
) -> Traced:
    """Trace and lower a function for these arguments, on an abstract mesh where one is known.

    Leaves that are no arrays are held: the program is for their values. Where a jitted function has static arguments,
    which JAX does not tell from others, so are all Python numbers.
    """
    if not callable(fn):
        raise UsageError(f"from_jax: a function is needed, got {type(fn).__name__}")
    given = (tuple(args), dict(kwargs))
    leaves = jax.tree.leaves(given)
    held = {n: v for n, v in enumerate(leaves) if not is_value(v)}
    numbers = {n: v for n, v in enumerate(leaves) if isinstance(v, NUMBERS)}
    jitted = hasattr(fn, "trace") and hasattr(fn, "lower")
    own = jitted and wanted.leaves_it
    try:
        traced = _traced(jax, fn, given, {} if own else held, wanted)
    except (TypeError, ValueError):  # of JAX, where a tracer is static
        if not (jitted and numbers):
            raise
        traced = None
    if traced is None:
        traced = _traced(jax, fn, given, held | numbers, wanted)
    if traced is not None:
        return traced
    raise UsageError(
        f"from_jax: {name_of(fn)} has static arguments: give a function that has their values in it "
        "(functools.partial)"
    )


NUMBERS = (bool, int, float, complex)


def is_array(value: object) -> bool:
    """Tell whether JAX takes a value as an array, which Python numbers are not here."""
    return hasattr(value, "dtype") or hasattr(value, "__jax_array__")


def is_value(value: object) -> bool:
    """Tell whether programs compute with a leaf, an array or a Python number; others they hold."""
    return isinstance(value, NUMBERS) or is_array(value)


def name_of(fn: Callable[..., PyTree]) -> str:
    """Return what a function is called."""
    return getattr(fn, "__name__", type(fn).__name__)


def _traced(
    jax: ModuleType,
    fn: Callable[..., PyTree],
    given: tuple[PyTree, PyTree],
    held: Mapping[int, PyTree],
    wanted: Wanted,
) -> Traced | None:
    """Trace and lower a function that holds these leaves of its arguments; None if it has static ones besides."""
    names, tree = _leaf_names(jax, given, _parameters(fn)), jax.tree.structure(given)
    if held:
        fn, given = _holding(jax, fn, given, held)
    left = [name for n, name in enumerate(names) if n not in held]
    placed = placements(
        jax, wanted.in_shardings, given, left, wanted.mesh, results=wanted.out_shardings
    )
    own = wanted.leaves_it and hasattr(fn, "trace") and hasattr(fn, "lower")
    abstract, returned = placed.abstract, _Returned(jax)
    token = _INSIDE.set(Inside(placed.mesh, abstract))
    try:
        with nullcontext() if abstract is None else jax.sharding.use_abstract_mesh(abstract):
            jitted: Any = fn if own else _jitted(jax, fn, placed.arguments, returned, wanted)
            stage = jitted.trace(*placed.arguments[0], **placed.arguments[1])
            lowered = _lowered(stage)
    finally:
        _INSIDE.reset(token)
    if lowered.in_tree != jax.tree.structure(given):
        return None
    inputs = _leaves(jax, lowered.args_info, left)
    weak = [aval.weak_type for aval in stage.jaxpr.out_avals]
    outputs = _leaves(jax, lowered.out_info, _leaf_names(jax, lowered.out_info, None), weak)
    asked = result_layouts(jax, wanted.out_shardings, lowered.out_info, placed.mesh)
    module = lowered.compiler_ir("stablehlo").operation.clone()
    captured = take_captured(module)
    take_callbacks(module, _callbacks_of(lowered))
    kept = _kept(lowered, module, len(inputs), name_of(fn))
    layouts = {kept.index(n): text for n, text in placed.layouts.items() if n in kept}
    if wanted.peak_bytes is not None:
        set_hints(module, {"peak_bytes": wanted.peak_bytes})
    text = set_layouts(module, layouts, asked, placed.mesh)
    named = {n: (names[n], value) for n, value in held.items()}
    out_tree = lowered.out_tree if own else returned.tree
    trees = (named, returned.held, tree, out_tree, placed.mesh)
    return Traced(name_of(fn), text, captured, inputs, kept, outputs, *trees)


class _Returned:
    """Note what a function returns when it is traced: the structure, and what is no array in it (`held`)."""

    def __init__(self, jax: ModuleType) -> None:
        self._jax, self.tree = jax, jax.tree.structure(None)
        self.held: dict[int, Any] = {}

    def of(self, fn: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """Return the function with None, which has no leaves, in the place of what is no array."""

        @wraps(fn)
        def noted(*args: PyTree, **kwargs: PyTree) -> PyTree:
            leaves, self.tree = self._jax.tree.flatten(fn(*args, **kwargs))
            self.held = {n: leaf for n, leaf in enumerate(leaves) if not is_value(leaf)}
            left = [None if n in self.held else leaf for n, leaf in enumerate(leaves)]
            return self._jax.tree.unflatten(self.tree, left)

        return noted


def _jitted(
    jax: ModuleType, fn: Any, given: tuple[PyTree, PyTree], returned: _Returned, wanted: Wanted
) -> Any:
    """Return a function as JAX jits it, with the donations of one that is jitted already."""
    numbers, names = set(wanted.donate_argnums), set(wanted.donate_argnames)
    if hasattr(fn, "trace"):
        positional, named = fn.trace(*given[0], **given[1]).args_info

        def donated(info: PyTree) -> bool:
            return any(leaf.donated for leaf in jax.tree.leaves(info))

        numbers |= {number for number, info in enumerate(positional) if donated(info)}
        names |= {name for name, info in named.items() if donated(info)}
    return jax.jit(
        returned.of(fn),
        keep_unused=True,
        donate_argnums=sorted(n for n in numbers if n < len(given[0])),
        donate_argnames=sorted(name for name in names if name in given[1]) or None,
    )


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
    """Lower what JAX has traced. Raises CompileError for what JAX lowers for real devices only."""
    try:
        with without_devices():
            return stage.lower(lowering_platforms=("cpu",))
    except ValueError:
        found = list(of_devices(stage.jaxpr.jaxpr))
        if not found:
            raise
        named = "; ".join(f"{name} (at {at})" for name, at in found)
        raise CompileError(f"not supported: what needs devices: {named}", found[0][1]) from None


def _kept(lowered: JaxLowered, module: Any, count: int, name: str) -> tuple[int, ...]:
    """Return the numbers of the arguments that the program has: jit leaves out those that nothing reads."""
    inside = getattr(lowered, "_lowering", None)
    kept = (getattr(inside, "compile_args", None) or {}).get("kept_var_idx")
    if kept is not None:
        return tuple(sorted(kept))
    if len(entry_of(module).attributes["function_type"].value.inputs) != count:
        raise UsageError(
            f"from_jax: {name} has arguments that nothing reads: jit it with keep_unused=True"
        )
    return tuple(range(count))


def _callbacks_of(lowered: JaxLowered) -> Sequence[Callable[..., Any]]:
    """Return the functions of Python that a program calls, by the numbers that it has for them."""
    inside = getattr(lowered, "_lowering", None)
    found: Sequence[Callable[..., Any]] = (getattr(inside, "compile_args", None) or {}).get(
        "host_callbacks", ()
    )
    return found


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


def _leaves(
    jax: ModuleType, infos: PyTree, names: Sequence[str], weak: Sequence[bool] | None = None
) -> tuple[Leaf, ...]:
    """Describe the leaves of arguments or of results."""
    found = [
        _leaf(jax, name, info) for name, info in zip(names, jax.tree.leaves(infos), strict=True)
    ]
    if weak is None:
        return tuple(found)
    return tuple(leaf._replace(weak=one) for leaf, one in zip(found, weak, strict=True))


def _leaf(jax: ModuleType, name: str, info: Any) -> Leaf:
    if not jax.numpy.issubdtype(info.dtype, jax.dtypes.prng_key):
        return Leaf(name, tuple(info.shape), np.dtype(info.dtype), None)
    impls = []

    def data(keys: Any) -> Any:
        impls.append(jax.random.key_impl(keys))
        return jax.random.key_data(keys)

    inside = jax.eval_shape(data, jax.ShapeDtypeStruct(info.shape, info.dtype))
    return Leaf(name, tuple(inside.shape), np.dtype(inside.dtype), PrngKeys(info.dtype, impls[0]))
