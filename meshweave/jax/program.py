"""Compile JAX functions: `from_jax`.

compiled = meshweave.from_jax(step, params, batch, in_shardings=(P("tp"), P("dp")), mesh="dp=2, tp=2")
loss, params = compiled(params, batch)       # pytrees like the function's, of NumPy arrays, JAX arrays or Arrays
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property, partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from meshweave.api import program as api
from meshweave.api.lengths.call import Lengths, LengthsCompiled
from meshweave.api.lengths.lowered import dims_of, one_of_all
from meshweave.api.lowered import Compiled, Lowered
from meshweave.api.signature import fast_key, kinds_of
from meshweave.errors import MeshweaveError, UsageError
from meshweave.frontends.python import tree
from meshweave.frontends.python.dtypes import DType, as_dtype
from meshweave.frontends.python.place import chosen_kernels
from meshweave.frontends.python.program import ArgumentSpec, TracedProgram
from meshweave.jax.arrays import from_shards, is_spread, let_jax_take_arrays
from meshweave.jax.placements import PyTree
from meshweave.jax.tracing import Leaf, Traced, Wanted, trace
from meshweave.layout import Layout
from meshweave.layout.lengths import Dim, ShapeDtype, Sizes
from meshweave.runtime.arrays.array import Array
from meshweave.runtime.engine import engine as engine_named
from meshweave.runtime.job.current import engine_of

if TYPE_CHECKING:  # JAX is optional
    from meshweave.api.explain import Explanation
    from meshweave.jax.placements import MeshLike
    from meshweave.plan.placement.goal import PlacementGoal
    from meshweave.see.page import Page
    from meshweave.see.trace import RankTrace


def from_jax(
    fn: Callable[..., PyTree],
    /,
    *args: PyTree,
    in_shardings: PyTree = None,
    mesh: MeshLike | None = None,
    engine: str = "local",
    timeout: float | None = None,
    verify: bool = True,
    layouts: str | None = None,
    peak_bytes: int | str | None = None,
    objective: str = "time",
    **kwargs: PyTree,
) -> JaxProgram:
    """Compile a JAX function for arguments like `args` and `kwargs`. JAX traces it, but runs nothing of it.

    fn:           a function, or the result of `jax.jit` (its own shardings count where in_shardings is None).
    args, kwargs: arrays, PRNG keys, or anything with shape and dtype (`jax.ShapeDtypeStruct`), in pytrees. A
                  `mw.ShapeDtype` may have `Dim`s, sizes that each call chooses.
    in_shardings: the layouts of `args`: a pytree like them, or a prefix of it, of layout texts, Layouts (of any kind,
                  uneven and cyclic ones too), PartitionSpecs, NamedShardings, or None for the sharding that the
                  argument has, over several devices, else what propagation finds.
    mesh:         the devices: a Mesh, its text, or JAX's. The devices need not exist: JAX sees an abstract mesh. None
                  takes the mesh of the shardings, or of `jax.set_mesh`, or one rank.
    peak_bytes:   the intermediate bytes that a rank may take, "64MiB": as `mw.hint(peak_bytes=..)` around all of it.
                  With layouts="auto" those of arguments and results count too.
    engine, timeout (in seconds), verify, layouts, objective: as in `meshweave.compile`. `mw.kernels(...)` around this
                  call chooses kernels.
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
    jax = the_jax()
    leaves, structure = jax.tree.flatten((args, kwargs))
    dims = dims_of(leaves)

    def traced(sizes: Sizes) -> Traced:
        given = [_for_jax(jax, leaf, sizes) for leaf in leaves]
        args, kwargs = jax.tree.unflatten(structure, given)
        return trace(jax, fn, args, kwargs, Wanted(in_shardings, mesh=mesh, peak_bytes=peak_bytes))

    if not dims:
        make = partial(JaxProgram, auto=api.aim(layouts, objective))
        return make(jax, traced({}), engine, timeout, verify, began)
    if layouts is not None:
        raise UsageError(f"from_jax: layouts={layouts!r}: sizes that calls choose cannot be placed")
    made = one_of_all(leaves, dims, traced, lambda one: one.text)
    kept = [leaves[i] for i in made.traced[0].kept]
    if unread := set(dims) - set(dims_of(kept)):
        said = ", ".join(sorted(dim.name for dim in unread))
        raise UsageError(
            f"from_jax: {made.traced[0].name}: {said} is the size of arguments that nothing reads: jit it with "
            "keep_unused=True"
        )
    shapes = tuple([leaf.shape if isinstance(leaf, ShapeDtype) else None for leaf in kept])
    lengths = Lengths(dims, shapes, made.results, made.bounded)
    whole = made.traced[0]._replace(text=made.text)
    return JaxProgram(jax, whole, engine, timeout, verify, began, lengths)


def _for_jax(jax: ModuleType, leaf: object, sizes: Sizes) -> object:
    """Return an argument as JAX traces it."""
    if not isinstance(leaf, ShapeDtype):
        return leaf
    made = leaf.at(sizes)
    return jax.ShapeDtypeStruct(made.shape, as_dtype(made.dtype).numpy)


class JaxProgram:
    """Run a compiled JAX function: call it with pytrees like those that it was traced with; close it when done.

    program: the Program inside, with its ports. text: the StableHLO that JAX made, with the lines of the function;
    calls of @meshweave.captured in it stand for large arrays that the function holds.
    """

    def __init__(
        self,
        jax: ModuleType,
        traced: Traced,
        engine: str,
        timeout: float | None,
        verify: bool,
        began: float,
        lengths: Lengths | None = None,
        auto: PlacementGoal | None = None,
    ) -> None:
        engine = engine_of(engine, traced.mesh) if traced.mesh is not None else engine
        runs_on = engine_named(engine, timeout=timeout)
        self._jax, self._traced, self.text = jax, traced._replace(captured=()), traced.text
        kept = [traced.inputs[i] for i in traced.kept]
        specs = [ArgumentSpec(leaf.shape, _our_dtype(leaf)) for leaf in kept]
        kernels = chosen_kernels()
        names, results = ([leaf.name for leaf in leaves] for leaves in (kept, traced.outputs))
        held = [f"captured{number}" for number in range(len(traced.captured))]
        bundle = api.build(
            traced.text,
            mesh=traced.mesh,
            engine=engine,
            name=traced.name,
            kernels=kernels,
            here=True,
            verify=verify,
            names=(*names, *held, *results),
            auto=auto,
        )
        self.program = api.Program(bundle, runs_on, name=traced.name)
        self.mesh = self.program.mesh
        structure = tree.Container(tuple, None, (tree.LEAF,) * len(traced.outputs))
        program = TracedProgram(traced.text, structure, captured=traced.captured)
        described = (traced.name, program, specs, names, self.mesh, engine, kernels, verify)
        lowered = Lowered(*described, auto=auto, results=results)
        seconds = time.perf_counter() - began
        self._shapes: list[Sequence[int | Dim]] = [leaf.shape for leaf in kept]
        self._layouts = [Layout.parse(port.layout) for port in self.program.inputs[: len(kept)]]
        self._compiled = Compiled(lowered, self.program, seconds)
        if lengths is not None:
            self._compiled = LengthsCompiled(lowered, self.program, seconds, lengths)
            self._shapes = [s or leaf.shape for s, leaf in zip(lengths.shapes, kept)]
        self._fast: dict[object, Callable[[Sequence[object]], Sequence[Array]]] = {}
        self._alone: dict[object, Callable[[Sequence[object]], Sequence[Array]]] = {}
        # calls on Arrays alone that give one: of these `_fast` needs no look at trees

    def __call__(self, /, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Run it; return a pytree like the function's, of Arrays, and of JAX's arrays where it has PRNG keys.

        Raises MeshweaveError that names the argument which does not fit, RankError when a rank fails.
        """
        traced = self._traced
        known = self._alone.get(kinds_of(args)) if not kwargs else None
        if known is not None:
            (result,) = known(args)
            return result
        leaves, structure = self._jax.tree.flatten((args, kwargs))
        if structure != traced.in_tree:
            raise UsageError(
                f"{traced.name}: arguments of structure {structure}, {traced.in_tree} is right"
            )
        if traced.held:
            _check_held(leaves, traced)
        return self.returned(self.all_given(self.run(leaves)))

    def run(self, leaves: Sequence[PyTree], keys_are_data: bool = False) -> Sequence[Array]:
        """Run it on the leaves of its arguments, held ones among them; return its results, of PRNG keys their data.

        leaves: as the function's, in order. keys_are_data: PRNG keys come as their data too.
        """
        traced = self._traced
        if traced.held:
            leaves = [leaf for number, leaf in enumerate(leaves) if number not in traced.held]
        taken = [leaves[i] for i in traced.kept]
        known = self._fast.get(kinds_of(taken))
        if known is not None:
            return known(taken)
        taken = [
            leaf
            if type(leaf) is Array
            else self._taken(leaf, _as_data(traced.inputs[i], keys_are_data), shape, layout)
            for i, leaf, shape, layout in zip(traced.kept, taken, self._shapes, self._layouts)
        ]
        key = fast_key(taken)
        found = self._fast.get(key)
        if found is not None:
            return found(taken)
        results: Sequence[Array] = self._compiled.call(taken)
        if key is not None:  # of a subclass of NumPy's arrays there is none
            self._fast[key] = self._compiled.fast(taken)
            if self._is_plain and key == kinds_of(taken):
                self._alone[key] = self._fast[key]
        return results

    @cached_property
    def _is_plain(self) -> bool:
        """Tell whether the program takes just the arguments of a call, in order, and gives one array."""
        traced, tree = self._traced, self._jax.tree
        count = len(traced.kept)
        leaf = self._jax.tree.structure(0)
        return (
            traced.in_tree == tree.structure(((0,) * count, {}))
            and list(traced.kept) == list(range(count))
            and not traced.held
            and not traced.held_results
            and traced.out_tree == leaf
            and self._is_given
        )

    def returned(self, results: Iterable[PyTree]) -> PyTree:
        """Return what the function returns, of its arrays.

        results: these, in order.
        """
        traced, arrays = self._traced, iter(results)
        held, count = traced.held_results, traced.out_tree.num_leaves
        leaves = [held[n] if n in held else next(arrays) for n in range(count)] if held else arrays
        return traced.out_tree.unflatten(leaves)

    @property
    def held_values(self) -> list[object]:
        """List the leaves of the arguments that are no inputs: the program is for these."""
        return [value for _, value in self._traced.held.values()]

    @property
    def donated(self) -> tuple[int, ...]:
        """Number the leaves of the arguments, held ones among them, whose buffers a call writes."""
        numbers = self._leaf_numbers()
        taken = self.program.bundle.manifest.donated
        return tuple(numbers[n] for n in taken if n < len(numbers))

    @cached_property
    def argument_layouts(self) -> dict[int, Layout]:
        """Return where the leaves of the arguments lie that the program takes, by their numbers."""
        return dict(zip(self._leaf_numbers(), self._layouts, strict=True))

    def _leaf_numbers(self) -> list[int]:
        """Return which leaf of the arguments, held ones among them, each input is."""
        held = self._traced.held
        given = [n for n in range(self._traced.in_tree.num_leaves) if n not in held]
        return [given[n] for n in self._traced.kept]

    @property
    def outputs(self) -> tuple[Leaf, ...]:
        """Describe the results that are arrays."""
        return self._traced.outputs

    def all_given(self, results: Iterable[Array]) -> Iterable[PyTree]:
        """Return the results as JAX's types are, as `given` does each."""
        return results if self._is_given else map(self.given, results, self.outputs)

    @cached_property
    def _is_given(self) -> bool:
        """Tell whether no result is a PRNG key, or weakly typed."""
        return all(leaf.key is None and not leaf.weak for leaf in self.outputs)

    def given(self, array: Array, leaf: Leaf) -> PyTree:
        """Return a result as JAX's types are: PRNG keys of its own.

        array: the result, of keys their data. leaf: what the program knows of it.
        """
        if leaf.key is None:
            if leaf.weak:
                array.weak_type = True
            return array
        data = self._jax.numpy.asarray(np.asarray(array))
        return self._jax.random.wrap_key_data(data, impl=leaf.key.impl)

    def _taken(
        self, value: object, leaf: Leaf, shape: Sequence[int | Dim], layout: Layout
    ) -> Array | np.ndarray[Any, Any]:
        """Return an argument as the program takes it: only JAX's own conversions (float64 to float32) are made."""
        if isinstance(value, Array):
            return value
        if isinstance(value, self._jax.core.Tracer):
            raise UsageError(
                f"{leaf.name}: JAX traces this call (in jit, grad, vmap, ..), which a program of from_jax cannot "
                "be in: what mw.jax.jit makes can"
            )
        if leaf.key is not None:
            value = _key_data(self._jax, value, leaf)
        if is_spread(value) and tuple(getattr(value, "shape", ())) == leaf.shape:
            value = from_shards(value, leaf.name, self.mesh, layout)
            if isinstance(value, Array):
                return value
        array = np.asarray(value)
        if array.dtype == object:
            raise UsageError(
                f"{leaf.name}: a {type(value).__name__} has no values: arrays are right"
            )
        if len(array.shape) != len(leaf.shape):
            raise MeshweaveError(f"{leaf.name}: {array.ndim} dims, {len(leaf.shape)} are right")
        for dim, (size, right) in enumerate(zip(array.shape, shape)):
            if size != right and not isinstance(right, Dim):
                raise MeshweaveError(f"{leaf.name}: dim {dim} has size {size}, {right} is right")
        if array.dtype != leaf.dtype:
            canonical = self._jax.dtypes.canonicalize_dtype(array.dtype)
            python = isinstance(value, bool | int | float) and _holds(leaf.dtype, value)
            if isinstance(value, int) and leaf.dtype.kind in "iu" and not python:
                raise MeshweaveError(f"{leaf.name}: {value} is too large for {leaf.dtype}")
            if canonical != leaf.dtype and not python:
                raise MeshweaveError(f"{leaf.name}: dtype {array.dtype}, {leaf.dtype} is right")
            array = array.astype(leaf.dtype)
        return array

    def compile(self) -> JaxProgram:
        """Return the program, which is compiled already: `jax.jit(f).lower(..).compile()` reads so."""
        return self

    def explain(self) -> Explanation:
        """Return tables about the program: layouts, collectives with their bytes, memory."""
        return self._compiled.explain()

    def view(self, trace: RankTrace | None = None) -> Page:
        """Return the page about the program; trace: what was measured, to show beside the prediction."""
        return self._compiled.view(trace)

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


def the_jax() -> ModuleType:
    """Return JAX, which knows of us then. Raises UsageError where it is not installed."""
    try:
        jax = import_module("jax")
    except ImportError:
        raise UsageError(
            "from_jax needs jax, which is not installed (pip install jax); nothing else does: "
            "from_stablehlo takes what jax exports"
        ) from None
    _leave_out_our_lines()
    let_jax_take_arrays()
    return jax


@cache
def _leave_out_our_lines() -> None:
    """Tell JAX that this package is not the user's code, so that locations are the user's lines."""
    from jax.extend import source_info_util

    source_info_util.register_exclusion(os.path.dirname(os.path.dirname(__file__)))


def _check_held(leaves: Sequence[PyTree], traced: Traced) -> None:
    """Raise UsageError for a leaf that is no input and is not as it was."""
    for number, (name, value) in traced.held.items():
        given = leaves[number]
        if given is not value and (type(given) is not type(value) or given != value):
            raise UsageError(
                f"{traced.name}: {name} is {given!r:.60}, the program is for {value!r:.60}"
            )


def _key_data(jax: ModuleType, value: object, leaf: Leaf) -> object:
    """Return the numbers of PRNG keys. Raises MeshweaveError for what is no key of the kind that was traced."""
    assert leaf.key is not None
    kind = getattr(value, "dtype", type(value).__name__)
    if kind != leaf.key.dtype:
        raise MeshweaveError(f"{leaf.name}: dtype {kind}, {leaf.key.dtype} is right")
    return jax.random.key_data(value)


def _as_data(leaf: Leaf, keys_are_data: bool) -> Leaf:
    return leaf._replace(key=None) if keys_are_data else leaf


def _our_dtype(leaf: Leaf) -> DType:
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
