"""Compile JAX functions: `from_jax`.

compiled = meshweave.from_jax(step, params, batch, in_shardings=(P("tp"), P("dp")), mesh="dp=2, tp=2")
loss, params = compiled(params, batch)       # pytrees like the function's, of NumPy arrays, JAX arrays or Arrays
"""

from __future__ import annotations

import inspect
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from meshweave.api import program as api
from meshweave.api.lowered import Compiled, Lowered
from meshweave.api.signature import fast_key
from meshweave.bundle import numpy_dtype
from meshweave.errors import MeshweaveError, UsageError
from meshweave.frontends.python import tree
from meshweave.frontends.python.dtypes import DType, as_dtype
from meshweave.frontends.python.program import ArgumentSpec, TracedProgram
from meshweave.jax.captured import take_captured
from meshweave.jax.placements import PyTree, abstract_mesh, our_mesh, placements, with_layouts
from meshweave.layout import Mesh
from meshweave.runtime.arrays.array import Array, as_mesh
from meshweave.runtime.engine import engine as engine_named

if TYPE_CHECKING:  # JAX is optional, and takes a second to import
    from jax.sharding import AbstractMesh
    from jax.sharding import Mesh as JaxMesh
    from jax.stages import Lowered as JaxLowered
    from jax.tree_util import PyTreeDef

    MeshLike: TypeAlias = Mesh | str | JaxMesh | AbstractMesh


def from_jax(
    fn: Callable[..., PyTree],
    *args: PyTree,
    in_shardings: PyTree = None,
    mesh: MeshLike | None = None,
    engine: str = "local",
    timeout: float = 60.0,
) -> JaxProgram:
    """Compile a JAX function for arguments like `args`. JAX traces it, but runs nothing of it.

    fn:           a function, or the result of `jax.jit` (its own shardings count where in_shardings is None).
    args:         arrays, or anything with shape and dtype (`jax.ShapeDtypeStruct`), in pytrees.
    in_shardings: the layouts of the arguments: a pytree like `args`, or a prefix of it, of layout texts, Layouts (of
                  any kind, uneven and cyclic ones too), PartitionSpecs, NamedShardings, or None for what propagation
                  finds.
    mesh:         the devices: a Mesh, its text, or JAX's. The devices need not exist: JAX sees an abstract mesh. None
                  takes the mesh of the function's shardings, or one rank.
    engine, timeout (in seconds): as in `meshweave.compile`.
    Raises UsageError when jax is not installed or the arguments are wrong, and one CompileError that lists all that is
    not supported.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> x = np.ones((4, 4), np.float32)
    >>> with mw.from_jax(lambda a: a @ a, x, in_shardings="[dp, _]", mesh="dp=2") as program:
    ...     y = program(x)
    >>> y.numpy()[0].tolist()
    [4.0, 4.0, 4.0, 4.0]
    """
    began = time.perf_counter()
    jax, on = _jax(), None if mesh is None else _mesh(mesh)
    traced, on = _traced(jax, fn, args, in_shardings, on)
    return JaxProgram(jax, traced, on, engine, timeout, began)


class _Leaf(NamedTuple):
    """Describe an argument or result as JAX sees it. name: as Python writes it, `params["w"]`."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class _Traced(NamedTuple):
    """Hold the program that JAX made of a function, and its interface."""

    name: str
    text: str
    captured: tuple[np.ndarray[Any, Any], ...]  # arrays that the function holds, behind `inputs`
    inputs: tuple[_Leaf, ...]
    kept: tuple[int, ...]  # the inputs that the program takes
    outputs: tuple[_Leaf, ...]
    in_tree: PyTreeDef
    out_tree: PyTreeDef


class JaxProgram:
    """Run a compiled JAX function: call it with pytrees like those that it was traced with; close it when done.

    program: the Program inside, with its ports. text: the StableHLO that JAX made, with the lines of the function;
    calls of @meshweave.captured in it stand for large arrays that the function holds.
    """

    def __init__(
        self,
        jax: ModuleType,
        traced: _Traced,
        mesh: Mesh | None,
        engine: str,
        timeout: float,
        began: float,
    ) -> None:
        runs_on = engine_named(engine, timeout=timeout)
        self._jax, self._traced, self.text = jax, traced, traced.text
        kept = [traced.inputs[i] for i in traced.kept]
        specs = [ArgumentSpec(leaf.shape, _our_dtype(leaf)) for leaf in kept]
        bundle = api.build(traced.text, mesh=mesh, engine=engine, name=traced.name, here=True)
        self.program = api.Program(bundle, runs_on)
        self.mesh = self.program.mesh
        structure = tree.Container(tuple, None, (tree.LEAF,) * len(traced.outputs))
        names = [leaf.name for leaf in kept]
        program = TracedProgram(traced.text, structure, captured=traced.captured)
        lowered = Lowered(traced.name, program, specs, names, self.mesh, engine)
        self._compiled = Compiled(lowered, self.program, time.perf_counter() - began)
        self._fast: dict[object, Callable[[Sequence[object]], Sequence[Array]]] = {}

    def __call__(self, *args: PyTree) -> PyTree:
        """Run it; return a pytree like the function's, of Arrays.

        Raises MeshweaveError that names the argument which does not fit, RankError when a rank fails.
        """
        traced = self._traced
        leaves, structure = self._jax.tree.flatten((args, {}))
        if structure != traced.in_tree:
            raise UsageError(
                f"{traced.name}: arguments of structure {structure}, {traced.in_tree} is right"
            )
        taken = [self._taken(leaves[i], traced.inputs[i]) for i in traced.kept]
        key = fast_key(taken)
        found = self._fast.get(key)
        if found is None:
            results = self._compiled.call(taken)
            self._fast[key] = self._compiled.fast(taken)
        else:
            results = found(taken)
        signed = [  # as JAX's types are
            _retyped(array, f"u{array.dtype}") if leaf.dtype.kind == "u" else array
            for array, leaf in zip(results, traced.outputs, strict=True)
        ]
        return self._jax.tree.unflatten(traced.out_tree, signed)

    def _taken(self, value: object, leaf: _Leaf) -> Array | np.ndarray[Any, Any]:
        """Return an argument as the program takes it: only JAX's own conversions (float64 to float32) are made."""
        if isinstance(value, Array):
            if leaf.dtype.kind == "u" and value.dtype.startswith("ui"):
                return _retyped(value, value.dtype[1:])
            return value
        array = np.asarray(value)
        if len(array.shape) != len(leaf.shape):
            raise MeshweaveError(f"{leaf.name}: {array.ndim} dims, {len(leaf.shape)} are right")
        for dim, (size, right) in enumerate(zip(array.shape, leaf.shape)):
            if size != right:
                raise MeshweaveError(f"{leaf.name}: dim {dim} has size {size}, {right} is right")
        if array.dtype != leaf.dtype:
            canonical = self._jax.dtypes.canonicalize_dtype(array.dtype)
            python = isinstance(value, bool | int | float) and _holds(leaf.dtype, value)
            if canonical != leaf.dtype and not python:
                raise MeshweaveError(f"{leaf.name}: dtype {array.dtype}, {leaf.dtype} is right")
            array = array.astype(leaf.dtype)
        return array.view(f"i{array.dtype.itemsize}") if array.dtype.kind == "u" else array

    def explain(self) -> str:
        """Return tables about the program: layouts, collectives with their bytes, memory."""
        return self._compiled.explain()

    def close(self) -> None:
        """Free threads, processes and memory."""
        self._compiled.close()

    def __enter__(self) -> JaxProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        kinds = ", ".join(f"{i.name}: {i.dtype}{list(i.shape)}" for i in self._traced.inputs)
        return f"<meshweave.from_jax {self._traced.name}({kinds}) on ({self.mesh})>"


def _jax() -> ModuleType:
    try:
        jax = import_module("jax")
    except ImportError:
        raise UsageError(
            "from_jax needs jax, which is not installed (pip install jax); nothing else does: "
            "from_stablehlo takes what jax exports"
        ) from None
    _leave_out_our_lines()
    return jax


@cache
def _leave_out_our_lines() -> None:
    """Tell JAX that this package is not the user's code, so that locations are the user's lines."""
    from jax.extend import source_info_util

    source_info_util.register_exclusion(os.path.dirname(os.path.dirname(__file__)))


def _mesh(mesh: MeshLike) -> Mesh:
    """Return our mesh for an argument, which may be JAX's."""
    if hasattr(mesh, "axis_names") and hasattr(mesh, "axis_sizes"):
        return our_mesh(mesh)
    found = as_mesh(mesh)
    if found.is_symbolic:
        raise UsageError(f"mesh: {found} has a symbol for a size, a number is needed")
    return found


def _traced(
    jax: ModuleType,
    fn: Callable[..., PyTree],
    args: Sequence[PyTree],
    in_shardings: PyTree,
    mesh: Mesh | None,
) -> tuple[_Traced, Mesh | None]:
    """Let JAX trace and lower a function, on an abstract mesh where one is given.

    Return the program, and the mesh that it is for, if known.
    """
    if not callable(fn):
        raise UsageError(f"from_jax: a function is needed, got {type(fn).__name__}")
    layouts: Mapping[int, str] = {}
    if in_shardings is not None:
        names = _leaf_names(jax, tuple(args), _parameters(fn))
        shardings, layouts, mesh = placements(jax, in_shardings, args, names, mesh)
        jitted = jax.jit(fn, in_shardings=shardings, keep_unused=True)
    elif hasattr(fn, "trace") and hasattr(fn, "lower"):
        jitted = fn
    else:
        jitted = jax.jit(fn, keep_unused=True)
    abstract = abstract_mesh(jax, mesh)
    with nullcontext() if abstract is None else jax.sharding.use_abstract_mesh(abstract):
        lowered = jitted.trace(*args).lower(lowering_platforms=("cpu",))
    name = getattr(fn, "__name__", type(fn).__name__)
    structure = jax.tree.structure((tuple(args), {}))
    if lowered.in_tree != structure:
        raise UsageError(
            f"from_jax: {name} has static arguments: give a function that has their values in it "
            "(functools.partial)"
        )
    inputs = _leaves(jax, lowered.args_info[0], _parameters(fn))
    outputs = _leaves(jax, lowered.out_info, None)
    text, captured = take_captured(lowered.compiler_ir("stablehlo"))
    kept = _kept(lowered, text, len(inputs), name)
    text = with_layouts(text, {kept.index(n): t for n, t in layouts.items() if n in kept})
    trees = lowered.in_tree, lowered.out_tree
    return _Traced(name, text, captured, inputs, kept, outputs, *trees), mesh


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


def _leaves(jax: ModuleType, infos: PyTree, parameters: list[str] | None) -> tuple[_Leaf, ...]:
    """Describe the leaves of arguments, of these parameters, or of results (None)."""
    names = _leaf_names(jax, infos, parameters)
    leaves = jax.tree.leaves(infos)
    return tuple(
        _Leaf(name, tuple(info.shape), np.dtype(info.dtype))
        for name, info in zip(names, leaves, strict=True)
    )


def _leaf_names(jax: ModuleType, values: PyTree, parameters: list[str] | None) -> list[str]:
    """Return the names of the leaves of arguments, such as `params["w"]`, or of results (None)."""
    keystr, found = jax.tree_util.keystr, []
    for path, _ in jax.tree_util.tree_flatten_with_path(values)[0]:
        if parameters is None:
            found.append(f"result{keystr(path)}")
        else:
            first = path[0].idx
            here = parameters[first] if first < len(parameters) else f"argument {first}"
            found.append(f"{here}{keystr(path[1:])}")
    return found


def _our_dtype(leaf: _Leaf) -> DType:
    """Return the element type of a program's argument: integers are signless there."""
    name = leaf.dtype.name
    try:
        return as_dtype(name.removeprefix("u") if leaf.dtype.kind == "u" else name)
    except UsageError as error:
        raise UsageError(f"from_jax: {leaf.name}: {error.message}") from None


def _holds(dtype: np.dtype[Any], value: bool | int | float) -> bool:
    """Tell whether an array of this dtype holds a Python number without a change of meaning."""
    if isinstance(value, bool):
        return dtype.kind == "b"
    if isinstance(value, int):
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            return int(limits.min) <= value <= int(limits.max)
        return dtype.kind not in "b"
    return dtype.kind not in "biu"


def _retyped(array: Array, dtype: str) -> Array:
    """Return the same bits as elements of another type of their size."""
    shards = [shard.view(numpy_dtype(dtype)) for shard in array.shards]
    return Array(shards, array.mesh, array.layout, array.shape, dtype)
