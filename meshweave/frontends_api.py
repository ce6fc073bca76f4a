"""Programs of others as functions to call: `from_jax`, `from_stablehlo`, `from_mlir`.

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
from typing import Any, NamedTuple

import numpy as np

from meshweave.bundle import numpy_dtype
from meshweave.errors import MeshweaveError, UsageError
from meshweave.layout import Mesh
from meshweave.runtime.array import Array, as_mesh
from meshweave.sources import read_source


def from_stablehlo(
    source: str | os.PathLike[str],
    *,
    mesh: Mesh | str | None = None,
    engine: str = "local",
    timeout: float = 60.0,
) -> Any:
    """Compile a program in StableHLO, with Shardy shardings or without: a Program to call with its arguments in order.

    source: a file, or its text. mesh, engine, timeout (in seconds): as of `meshweave.compile`. Raises
    UsageError for a text that is no StableHLO, CompileError for what is wrong in it, or not supported: one error that
    lists it all.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> text = "module @m { func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> { "
    >>> text += "%y = stablehlo.add %x, %x : tensor<3xf32> return %y : tensor<3xf32> } }"
    >>> program = mw.from_stablehlo(text)
    >>> program(np.ones(3, np.float32))[0].tolist()
    [2.0, 2.0, 2.0]
    """
    from meshweave.api import compile

    if isinstance(source, str | os.PathLike):
        text, name = read_source(source, named=False)
        if not any(f"{dialect}." in text for dialect in ("stablehlo", "chlo", "sdy")):
            raise UsageError(
                f"from_stablehlo: {name} has no op of stablehlo, chlo or sdy: "
                "from_mlir takes programs on linalg"
            )
    return compile(source, mesh=mesh, engine=engine, timeout=timeout)


def from_mlir(
    source: str | os.PathLike[str],
    *,
    mesh: Mesh | str | None = None,
    engine: str = "local",
    timeout: float = 60.0,
) -> Any:
    """Compile a program in MLIR: `@main` on linalg, tensor, arith, math and scf, with `dist` and `hint` ops.

    source: a file, or its text. mesh, engine, timeout (in seconds): as of `meshweave.compile`, which gives a Program
    too. Raises UsageError for wrong arguments, CompileError, at its line, for what is wrong in the program.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> text = "func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> { return %x : tensor<3xf32> }"
    >>> program = mw.from_mlir(text)
    >>> program(np.ones(3, np.float32))[0].tolist()
    [1.0, 1.0, 1.0]
    """
    from meshweave.api import compile

    return compile(source, mesh=mesh, engine=engine, timeout=timeout)


def from_jax(
    fn: Callable[..., Any],
    *args: Any,
    in_shardings: Any = None,
    mesh: Any = None,
    engine: str = "local",
    timeout: float = 60.0,
) -> JaxProgram:
    """Compile a JAX function for arguments like `args`: JAX traces it, nothing of it is run by JAX.

    fn:           a function, or what `jax.jit` made of one (its own shardings count where in_shardings is None).
    args:         arrays, or anything with shape and dtype (`jax.ShapeDtypeStruct`), in pytrees.
    in_shardings: where the arguments lie: a pytree like `args`, or a prefix of it, of layout texts, Layouts (of any
                  kind, uneven and cyclic ones too), PartitionSpecs, NamedShardings, or None: what propagation finds.
    mesh:         the devices: a Mesh, its text, or JAX's. They need not be there: JAX sees an abstract mesh. None: the
                  mesh of the function's shardings, or one rank.
    engine, timeout (in seconds): as of `meshweave.compile`.
    Raises UsageError when jax is not installed or the arguments are wrong; CompileError for what is not supported: one
    error that lists it all.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> x = np.ones((4, 4), np.float32)
    >>> with mw.from_jax(lambda a: a @ a, x, in_shardings="[dp, _]", mesh="dp=2") as program:
    ...     y = program(x)
    >>> y.numpy()[0].tolist()
    [4.0, 4.0, 4.0, 4.0]
    """
    began = time.perf_counter()
    jax, on = _jax(), None if mesh is None else _our_mesh(mesh)
    traced, on = _traced(jax, fn, args, in_shardings, on)
    return JaxProgram(jax, traced, on, engine, timeout, began)


class _Leaf(NamedTuple):
    """An argument or result as JAX sees it. name: as Python writes it, `params["w"]`."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class _Traced(NamedTuple):
    """What JAX made of a function."""

    name: str
    text: str
    inputs: tuple[_Leaf, ...]
    kept: tuple[int, ...]  # the inputs that the program takes
    outputs: tuple[_Leaf, ...]
    in_tree: Any
    out_tree: Any


class JaxProgram:
    """A compiled JAX function: call it with pytrees like those that it was traced with; close it when done.

    program: the Program inside, with its ports; text: the StableHLO that JAX made, with the lines of the function.
    """

    def __init__(
        self,
        jax: Any,
        traced: _Traced,
        mesh: Mesh | None,
        engine: str,
        timeout: float,
        began: float,
    ) -> None:
        from meshweave import api
        from meshweave.runtime.engine import engine as engine_named
        from meshweave.trace import tree
        from meshweave.trace.lowered import Compiled, Lowered
        from meshweave.trace.program import Program, Spec

        runs_on = engine_named(engine, timeout=timeout)
        self._jax, self._traced, self.text = jax, traced, traced.text
        kept = [traced.inputs[i] for i in traced.kept]
        specs = [Spec(leaf.shape, _our_dtype(leaf)) for leaf in kept]
        bundle = api.build(traced.text, mesh=mesh, engine=engine, name=traced.name)
        self.program = api.Program(bundle, runs_on)
        self.mesh = self.program.mesh
        structure = (tuple, None, (tree.LEAF,) * len(traced.outputs))
        names = [leaf.name for leaf in kept]
        program = Program(traced.text, structure)
        lowered = Lowered(traced.name, program, specs, names, self.mesh, engine)
        self._compiled = Compiled(lowered, self.program, time.perf_counter() - began)
        self._fast: dict[Any, Callable[[Any], Any]] = {}

    def __call__(self, *args: Any) -> Any:
        """Run it: a pytree like the function's, of Arrays. Raises MeshweaveError that names the argument which does not
        fit, RankError when a rank fails.
        """
        from meshweave.trace.signature import fast_key

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
        pairs = zip(results, traced.outputs, strict=True)
        return self._jax.tree.unflatten(traced.out_tree, [_given(*pair) for pair in pairs])

    def _taken(self, value: Any, leaf: _Leaf) -> Any:
        """An argument as the program takes it. JAX's own conversions are made (float64 to float32), no other."""
        if isinstance(value, Array):
            if leaf.dtype.kind == "u" and value.dtype.startswith("ui"):
                return _retyped(value, value.dtype[1:])
            return value
        array = np.asarray(value)
        if array.shape != leaf.shape:
            _refuse_shape(leaf, array.shape)
        if array.dtype != leaf.dtype:
            canonical = self._jax.dtypes.canonicalize_dtype(array.dtype)
            python = isinstance(value, bool | int | float) and _holds(leaf.dtype, value)
            if canonical != leaf.dtype and not python:
                raise MeshweaveError(f"{leaf.name}: dtype {array.dtype}, {leaf.dtype} is right")
            array = array.astype(leaf.dtype)
        return array.view(f"i{array.dtype.itemsize}") if array.dtype.kind == "u" else array

    def explain(self) -> str:
        """Tables about the program: layouts, collectives with their bytes, memory."""
        return self._compiled.explain()

    def close(self) -> None:
        """Let go of threads, processes and memory."""
        self._compiled.close()

    def __enter__(self) -> JaxProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        kinds = ", ".join(f"{i.name}: {i.dtype}{list(i.shape)}" for i in self._traced.inputs)
        return f"<meshweave.from_jax {self._traced.name}({kinds}) on ({self.mesh})>"


def _jax() -> Any:
    try:
        import jax
    except ImportError:
        raise UsageError(
            "from_jax needs jax, which is not installed (pip install jax); nothing else does: "
            "from_stablehlo takes what jax exports"
        ) from None
    _leave_out_our_lines()
    return jax


@cache
def _leave_out_our_lines() -> None:
    """Tell JAX that this package is not the user's code: locations are then the user's lines."""
    from jax.extend import source_info_util

    source_info_util.register_exclusion(os.path.dirname(__file__))


def _our_mesh(mesh: Any) -> Mesh:
    """The mesh that an argument means: ours, or JAX's."""
    from meshweave.frontends.jax_placements import our_mesh

    if hasattr(mesh, "axis_names") and hasattr(mesh, "axis_sizes"):
        return our_mesh(mesh)
    found = as_mesh(mesh)
    if found.is_symbolic:
        raise UsageError(f"mesh: {found} has a symbol for a size, a number is needed")
    return found


def _traced(
    jax: Any, fn: Any, args: Sequence[Any], in_shardings: Any, mesh: Mesh | None
) -> tuple[_Traced, Mesh | None]:
    """Let JAX trace and lower a function, on an abstract mesh where one is given; the mesh that it is for, if known."""
    from meshweave.frontends.jax_placements import abstract_mesh, placements, with_layouts

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
    text = lowered.as_text(debug_info=True)  # errors are at the lines of the function
    kept = _kept(lowered, text, len(inputs), name)
    text = with_layouts(text, {kept.index(n): t for n, t in layouts.items() if n in kept})
    traced = _Traced(name, text, inputs, kept, outputs, lowered.in_tree, lowered.out_tree)
    return traced, mesh


def _kept(lowered: Any, text: str, count: int, name: str) -> tuple[int, ...]:
    """The arguments that the program has: jit leaves out those that nothing reads."""
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


def _parameters(fn: Any) -> list[str]:
    try:
        return list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return []


def _leaves(jax: Any, infos: Any, parameters: list[str] | None) -> tuple[_Leaf, ...]:
    """The leaves of arguments (with the names of parameters) or of results (None)."""
    names = _leaf_names(jax, infos, parameters)
    leaves = jax.tree.leaves(infos)
    return tuple(
        _Leaf(name, tuple(info.shape), np.dtype(info.dtype))
        for name, info in zip(names, leaves, strict=True)
    )


def _leaf_names(jax: Any, tree: Any, parameters: list[str] | None) -> list[str]:
    """What Python calls the leaves of arguments: `params["w"]`; or of results, where there are no parameters."""
    keystr, found = jax.tree_util.keystr, []
    for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if parameters is None:
            found.append(f"result{keystr(path)}")
        else:
            first = path[0].idx
            here = parameters[first] if first < len(parameters) else f"argument {first}"
            found.append(f"{here}{keystr(path[1:])}")
    return found


def _our_dtype(leaf: _Leaf) -> Any:
    """The element type of a program's argument, which knows no sign."""
    from meshweave.trace.dtypes import as_dtype

    name = leaf.dtype.name
    try:
        return as_dtype(name.removeprefix("u") if leaf.dtype.kind == "u" else name)
    except UsageError as error:
        raise UsageError(f"from_jax: {leaf.name}: {error.message}") from None


def _holds(dtype: np.dtype[Any], value: bool | int | float) -> bool:
    """Does an array of this dtype hold a Python number without another meaning?"""
    if isinstance(value, bool):
        return dtype.kind == "b"
    if isinstance(value, int):
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            return int(limits.min) <= value <= int(limits.max)
        return dtype.kind not in "b"
    return dtype.kind not in "biu"


def _refuse_shape(leaf: _Leaf, shape: tuple[int, ...]) -> None:
    if len(shape) != len(leaf.shape):
        raise MeshweaveError(f"{leaf.name}: {len(shape)} dims, {len(leaf.shape)} are right")
    for dim, (size, right) in enumerate(zip(shape, leaf.shape, strict=True)):
        if size != right:
            raise MeshweaveError(f"{leaf.name}: dim {dim} has size {size}, {right} is right")


def _given(array: Array, leaf: _Leaf) -> Array:
    """A result with the sign that JAX's type has."""
    return _retyped(array, f"u{array.dtype}") if leaf.dtype.kind == "u" else array


def _retyped(array: Array, dtype: str) -> Array:
    """The same bits as elements of another type of their size."""
    shards = [shard.view(numpy_dtype(dtype)) for shard in array.shards]
    return Array(shards, array.mesh, array.layout, array.shape, dtype)
