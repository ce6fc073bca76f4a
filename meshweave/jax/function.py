"""Compile a JAX function for a mesh when it is called: what `jax.jit` is to JAX.

@mw.jax.jit(mesh="dp=2, tp=2", in_shardings=({"w": P(None, "tp")}, P("dp")), donate_argnums=0)
def step(params, x):
    ...
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial, update_wrapper
from types import MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload

import numpy as np

from meshweave.api.jit import CacheInfo
from meshweave.api.program import aim
from meshweave.api.signature import fast_key, told_apart
from meshweave.errors import MeshweaveError, UsageError
from meshweave.frontends.python.place import chosen_kernels
from meshweave.jax.arrays import is_spread, to_jax
from meshweave.jax.foreign import ForeignFunction
from meshweave.jax.modules import ModuleCall, module_call
from meshweave.jax.placements import PyTree, constrained, spread
from meshweave.jax.program import JaxProgram, the_jax
from meshweave.jax.statics import Chosen, SplitCall, chosen, signature_of, split
from meshweave.jax.tracing import NUMBERS, Inside, Wanted, inside, is_array, name_of, trace
from meshweave.runtime.arrays.array import Array
from meshweave.runtime.forks import new_lock

if TYPE_CHECKING:  # JAX is optional
    from meshweave.api.explain import Explanation
    from meshweave.jax.placements import MeshLike
    from meshweave.see.page import Page
    from meshweave.see.trace import RankTrace

_LOG = logging.getLogger("meshweave")
_Numbers: TypeAlias = int | Sequence[int]
_Names: TypeAlias = str | Sequence[str]
RESULTS = ("mw", "jax")


@overload
def jit(
    fn: Callable[..., PyTree],
    *,
    mesh: MeshLike | None = None,
    in_shardings: PyTree = None,
    out_shardings: PyTree = None,
    donate_argnums: _Numbers = (),
    donate_argnames: _Names = (),
    static_argnums: _Numbers = (),
    static_argnames: _Names = (),
    results: str = "mw",
    engine: str = "local",
    timeout: float | None = None,
    verify: bool = True,
    layouts: str | None = None,
    peak_bytes: int | str | None = None,
    objective: str = "time",
) -> JaxFunction: ...
@overload
def jit(
    fn: None = None,
    *,
    mesh: MeshLike | None = None,
    in_shardings: PyTree = None,
    out_shardings: PyTree = None,
    donate_argnums: _Numbers = (),
    donate_argnames: _Names = (),
    static_argnums: _Numbers = (),
    static_argnames: _Names = (),
    results: str = "mw",
    engine: str = "local",
    timeout: float | None = None,
    verify: bool = True,
    layouts: str | None = None,
    peak_bytes: int | str | None = None,
    objective: str = "time",
) -> Callable[[Callable[..., PyTree]], JaxFunction]: ...
def jit(
    fn: Callable[..., PyTree] | None = None,
    *,
    mesh: MeshLike | None = None,
    in_shardings: PyTree = None,
    out_shardings: PyTree = None,
    donate_argnums: _Numbers = (),
    donate_argnames: _Names = (),
    static_argnums: _Numbers = (),
    static_argnames: _Names = (),
    results: str = "mw",
    engine: str = "local",
    timeout: float | None = None,
    verify: bool = True,
    layouts: str | None = None,
    peak_bytes: int | str | None = None,
    objective: str = "time",
) -> JaxFunction | Callable[[Callable[..., PyTree]], JaxFunction]:
    """Compile a JAX function when it is called, once for each kind of call; JAX traces it, and runs nothing of it.

    It is called, and decorates, as `jax.jit` is.

    fn:            a function, or the result of `jax.jit`. None makes a decorator.
    mesh:          the devices: a Mesh, its text, or JAX's, whose devices need not exist. None takes the mesh of the
                   shardings, or of `jax.set_mesh`, or one rank.
    in_shardings:  where the arguments lie that are not static: a pytree like them, or a prefix of it, of
                   PartitionSpecs, NamedShardings, layout texts, Layouts, or None for where the argument lies already,
                   else what propagation finds. out_shardings: where the results lie, likewise.
    donate_argnums, donate_argnames: arguments whose buffers results may take; they cannot be used again.
    static_argnums, static_argnames: arguments that are values for Python; they must be hashable.
    results:       "mw" gives Arrays, which stay on the ranks and which jax.numpy takes; "jax" gives `jax.Array`s, over
                   the devices of `mesh` where that is one of JAX's with devices, else put together on the default one.
    peak_bytes:    the intermediate bytes that a rank may take, "64MiB": as `mw.hint(peak_bytes=..)` around all of it.
    engine, timeout (in seconds), verify, layouts, objective: as in `meshweave.compile`. `mw.kernels(...)` around a call
                   chooses kernels.

    A kind of call is: the structure of the arguments, shapes, dtypes, whether they are weakly typed, where Arrays and
    sharded `jax.Array`s lie, static values, leaves that are no arrays, kernels, and JAX's configuration. Under
    `jax.jit`, `jax.grad` and `jax.vmap` the function is a call of a compiled program; inside another one it is a part
    of that. Raises UsageError for what is wrong with the arguments, and one CompileError that lists all that is not
    supported.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> @mw.jax.jit(mesh="x=2", in_shardings=("[x, _]", None))
    ... def product(a, b):
    ...     return a @ b
    >>> y = product(np.ones((4, 4), np.float32), np.ones((4, 2), np.float32))
    >>> y.numpy()[0].tolist(), str(y.layout), product.cache_info().misses
    ([4.0, 4.0], '[x, _]', 1)
    """
    make = partial(
        JaxFunction, mesh=mesh, in_shardings=in_shardings, out_shardings=out_shardings,
        donate=(donate_argnums, donate_argnames), static=(static_argnums, static_argnames),
        results=results, engine=engine, timeout=timeout, verify=verify, layouts=layouts, peak_bytes=peak_bytes,
        objective=objective,
    )  # fmt: skip
    return make if fn is None else make(fn)


class _Call(NamedTuple):
    """Hold a call: what is left of it without static arguments, the leaves, and the key of its program."""

    rest: SplitCall
    leaves: list[PyTree]
    key: Hashable
    anywhere: Hashable  # the key, but for where Arrays lie


class JaxFunction:
    """Run a JAX function compiled; call it like the function that `jit` was given."""

    def __init__(
        self,
        fn: Callable[..., PyTree],
        *,
        mesh: MeshLike | None,
        in_shardings: PyTree,
        out_shardings: PyTree,
        donate: tuple[_Numbers, _Names],
        static: tuple[_Numbers, _Names],
        results: str,
        engine: str,
        timeout: float | None,
        verify: bool,
        layouts: str | None,
        peak_bytes: int | str | None,
        objective: str,
    ) -> None:
        if not callable(fn):
            raise UsageError(f"jax.jit: a function is needed, got {type(fn).__name__}")
        if results not in RESULTS:
            raise UsageError(f'jax.jit: results={results!r:.40}: "mw" or "jax" is right')
        self._function, self._mesh, self._results = fn, mesh, results
        self._in, self._out = in_shardings, out_shardings
        self._engine, self._timeout, self._verify = engine, timeout, verify
        self._layouts, self._peak_bytes, self._objective = layouts, peak_bytes, objective
        self._static, self._donated = chosen(fn, "static", *static), chosen(fn, "donate", *donate)
        self._signature = signature_of(fn)
        self._holds_numbers = False  # programs are for the values of Python numbers
        self._said: dict[Hashable, list[bool]] = {}
        self._programs: dict[Hashable, JaxProgram] = {}
        self._pure: dict[Hashable, JaxFunction] = {}  # for calls with modules of flax.nnx
        self._foreigns: dict[Hashable, ForeignFunction] = {}
        self._foreign_programs: list[JaxProgram] = []
        self._quick: dict[Hashable, JaxProgram] = {}  # of calls that have a cheap key
        self._anywhere: dict[Hashable, list[JaxProgram]] = {}
        self._calls = self._misses = 0
        self._last: JaxProgram | None = None
        self._lock = new_lock()
        update_wrapper(self, fn)
        self.__name__: str = name_of(fn)

    def __call__(self, /, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Run the function; the first call of a kind compiles it.

        Raises MeshweaveError for what is wrong with the arguments or the program; RankError if a rank fails.
        """
        jax = the_jax()
        around = inside()
        if around is not None:
            return self._inline(jax, around, args, kwargs)
        modules = module_call(args, kwargs)
        if modules is not None:
            returned, changed = self._of_modules(modules)(*modules.args, **modules.kwargs)
            modules.put_back(changed)
            return returned
        quick, leaves = self._quick_key(jax, args, kwargs)
        known = self._quick.get(quick)
        if known is not None:
            self._calls, self._last = self._calls + 1, known
            return known.returned(self._given(jax, known, known.run(leaves), leaves))
        call = self._call(jax, args, kwargs)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in call.leaves):
            return self._foreign(jax, call)
        self._calls += 1
        program = self._program(jax, call, (args, kwargs))
        if quick is not None:
            self._quick[quick] = program
        results = program.run(call.leaves)
        self._give_up(jax, program, call)
        return program.returned(self._given(jax, program, results, call.leaves))

    def _quick_key(
        self, jax: ModuleType, args: Sequence[PyTree], kwargs: dict[str, PyTree]
    ) -> tuple[Hashable, list[PyTree]]:
        """Return a cheap key of a call on Arrays and NumPy arrays alone, None for any other call; and its leaves."""
        # What is given by name may have to be given by position: its leaves are in another order then.
        moved = self._in is not None and kwargs
        if self._static.numbers or self._static.names or moved:
            return None, []
        leaves, structure = jax.tree.flatten((args, kwargs))
        kinds = fast_key(leaves)
        if kinds is None or any(type(a) is Array and a.weak_type for a in leaves):
            return None, []
        return (structure, kinds, chosen_kernels(), _config(jax)), leaves

    def _call(self, jax: ModuleType, args: Sequence[PyTree], kwargs: dict[str, PyTree]) -> _Call:
        rest = split(self._static, args, kwargs)
        if self._in is not None and rest.kwargs:
            rest = self._by_position(rest)
        leaves, structure = jax.tree.flatten((rest.args, rest.kwargs))
        said = self._says(jax, rest, structure)
        kinds: list[Hashable] = []
        anywhere: list[Hashable] = []
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, Array):
                kind = leaf.kind
                loose: Hashable = (kind.shape, kind.dtype, leaf.weak_type, None)
                free = kind.is_plain or (number < len(said) and said[number])
                kinds.append(loose if free else (kind, leaf.weak_type))
            else:
                held = self._holds_numbers and _is_number(leaf)
                loose = told_apart(leaf) if held else _kind(jax, leaf)
                kinds.append(loose)
            anywhere.append(loose)
        more = (chosen_kernels(), _config(jax))
        keys = [(structure, rest.key, tuple(found), *more) for found in (kinds, anywhere)]
        return _Call(rest, leaves, keys[0], keys[1])

    def _by_position(self, rest: SplitCall) -> SplitCall:
        """Return a call that gives by position what it gave by name, where it can: in_shardings is by position."""
        args, kwargs = list(rest.args), dict(rest.kwargs)
        parameters = [] if self._signature is None else list(self._signature.parameters.values())
        left = [
            p
            for n, p in enumerate(parameters)
            if n not in rest.positional and p.name not in rest.named
        ]
        for parameter in left[len(args) :]:
            by_name = parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
            if not by_name or parameter.name not in kwargs:
                break
            args.append(kwargs.pop(parameter.name))
        return rest._replace(args=tuple(args), kwargs=kwargs)

    def _in_for(self, rest: SplitCall) -> PyTree:
        """Return in_shardings for the arguments that a call gives: those at the end may have defaults."""
        given = self._in
        if type(given) not in (tuple, list) or self._signature is None:
            return given
        parameters = self._signature.parameters.values()
        optional = sum(p.default is not inspect.Parameter.empty for p in parameters)
        missing = len(rest.args) - len(given)
        if not 0 < missing <= optional:
            return tuple(given[: len(rest.args)])
        return (*given, *(None,) * missing)

    def _says(self, jax: ModuleType, rest: SplitCall, structure: Hashable) -> list[bool]:
        """Tell for which leaves in_shardings says where they lie: there it is no matter where an Array does."""
        if self._in is None:
            return []
        found = self._said.get(structure)
        if found is None:
            asked = _ours(spread, jax, self._in_for(rest), rest.args)
            found = self._said[structure] = [value is not None for value in asked]
        return found

    def _of_modules(self, call: ModuleCall) -> JaxFunction:
        """Return the pure function for a call with modules of flax.nnx."""
        found = self._pure.get(call.key)
        if found is None:
            found = self._pure[call.key] = JaxFunction(
                call.pure(self._function), mesh=self._mesh, in_shardings=self._in,
                out_shardings=None if self._out is None else (self._out, None),
                donate=self._donated, static=self._static, results=self._results,
                engine=self._engine, timeout=self._timeout, verify=self._verify,
                layouts=self._layouts, peak_bytes=self._peak_bytes, objective=self._objective,
            )  # fmt: skip
            found._signature = self._signature
        return found

    def _foreign(self, jax: ModuleType, call: _Call) -> PyTree:
        """Call it where JAX traces: under `jax.jit`, `jax.grad`, `jax.vmap`."""
        numbers = [n for n, v in enumerate(call.leaves) if is_array(v) or type(v) in NUMBERS]
        arrays = [_jax_array(jax, call.leaves[n]) for n in numbers]
        foreign = self._foreigns.get(call.key)
        if foreign is None:
            foreign = self._foreigns[call.key] = self._as_foreign(jax, call, numbers)
        program = foreign.program(arrays)
        return program.returned(foreign(*arrays))

    def _as_foreign(self, jax: ModuleType, call: _Call, numbers: Sequence[int]) -> ForeignFunction:
        """Return the function of the arrays among its leaves."""
        rest, fn = call.rest, call.rest.bound(self._function)
        structure = jax.tree.structure((rest.args, rest.kwargs))
        held = {n: leaf for n, leaf in enumerate(call.leaves) if n not in numbers}
        asked: list[PyTree] = [None] * len(call.leaves)
        if self._in is not None:
            said = _ours(spread, jax, self._in_for(rest), rest.args)
            asked[: len(said)] = said

        def flat(*arrays: PyTree) -> PyTree:
            given = iter(arrays)
            leaves = [held[n] if n in held else next(given) for n in range(len(call.leaves))]
            args, kwargs = jax.tree.unflatten(structure, leaves)
            return fn(*args, **kwargs)

        flat.__name__ = self.__name__
        return ForeignFunction(jax, flat, [asked[n] for n in numbers], self._compile_flat)

    def _compile_flat(
        self, fn: Callable[..., PyTree], shardings: Sequence[PyTree], shapes: Sequence[PyTree]
    ) -> JaxProgram:
        """Compile a function that JAX shall call; counted as any other program."""
        jax, began = the_jax(), time.perf_counter()
        traced = _ours(
            trace,
            jax,
            fn,
            shapes,
            {},
            Wanted(tuple(shardings), mesh=self._mesh, peak_bytes=self._peak_bytes),
        )
        options = (self._engine, self._timeout, self._verify, began)
        make = partial(JaxProgram, auto=aim(self._layouts, self._objective))
        made: JaxProgram = _ours(make, jax, traced, *options)
        self._foreign_programs.append(made)
        return made

    def _program(
        self, jax: ModuleType, call: _Call, given: tuple[Sequence[PyTree], dict[str, PyTree]]
    ) -> JaxProgram:
        found = self._programs.get(call.key)
        if found is None:
            with self._lock:
                found = self._programs.get(call.key)
                found = found or self._lying_so(call)
                if found is None:
                    found = self._compiled(jax, call)
                    if not self._holds_numbers and any(map(_is_number, found.held_values)):
                        self._holds_numbers = True  # as static arguments of a function of jax.jit
                        call = self._call(jax, *given)
                    self._anywhere.setdefault(call.anywhere, []).append(found)
                self._programs[call.key] = found
        self._last = found
        return found

    def _lying_so(self, call: _Call) -> JaxProgram | None:
        """Return a program whose arguments lie where the Arrays of a call do, as those of the step before do."""
        arrays = [(n, leaf) for n, leaf in enumerate(call.leaves) if isinstance(leaf, Array)]
        if not arrays:
            return None  # it is for propagation, whatever was called before
        for program in self._anywhere.get(call.anywhere, ()):
            layouts = program.argument_layouts
            if all(
                leaf.mesh == program.mesh and layouts.get(n, leaf.layout) == leaf.layout
                for n, leaf in arrays
            ):
                return program
        return None

    def _compiled(self, jax: ModuleType, call: _Call) -> JaxProgram:
        began, rest = time.perf_counter(), call.rest
        donated = _left(self._donated, rest)
        wanted = Wanted(
            *(self._in_for(rest), self._out, self._mesh, donated.numbers, donated.names),
            self._peak_bytes,
        )
        args, kwargs = jax.tree.unflatten(
            jax.tree.structure((rest.args, rest.kwargs)), [_for_trace(jax, v) for v in call.leaves]
        )
        traced = _ours(trace, jax, rest.bound(self._function), args, kwargs, wanted)
        options = (self._engine, self._timeout, self._verify, began)
        make = partial(JaxProgram, auto=aim(self._layouts, self._objective))
        made: JaxProgram = _ours(make, jax, traced, *options)
        self._misses += 1
        _LOG.info("%s compiled in %.0f ms", self.__name__, 1000 * (time.perf_counter() - began))
        return made

    def _given(
        self,
        jax: ModuleType,
        program: JaxProgram,
        results: Iterable[Array],
        leaves: Sequence[PyTree],
    ) -> Iterable[PyTree]:
        """Return the results as `results` asks for them."""
        if self._results == "mw":
            return program.all_given(results)
        devices = _devices(self._mesh, leaves)
        return [
            program.given(array, leaf)
            if leaf.key is not None
            else to_jax(jax, array, devices, leaf.weak)
            for array, leaf in zip(results, program.outputs, strict=True)
        ]

    def _give_up(self, jax: ModuleType, program: JaxProgram, call: _Call) -> None:
        """Delete JAX's arrays that a call was given for good, as JAX does."""
        for number in program.donated:
            leaf = call.leaves[number]
            if isinstance(leaf, jax.Array) and not leaf.is_deleted():
                leaf.delete()

    def _inline(
        self, jax: ModuleType, around: Inside, args: Sequence[PyTree], kwargs: dict[str, PyTree]
    ) -> PyTree:
        """Trace the function as a part of another one, whose mesh it shares."""
        rest = split(self._static, args, kwargs)
        if self._in is not None:
            rest = self._by_position(rest)
            placed = _ours(
                constrained,
                *(jax, self._in_for(rest), rest.args, "in_shardings"),
                *(around.mesh, around.abstract),
            )
            rest = rest._replace(args=tuple(placed))
        returned = rest.bound(self._function)(*rest.args, **rest.kwargs)
        if self._out is None:
            return returned
        out = (jax, self._out, returned, "out_shardings", around.mesh, around.abstract)
        return _ours(constrained, *out)

    def cache_info(self) -> CacheInfo:
        """Count the calls that found their program, and those that compiled one.

        A call whose Arrays lie as the arguments of a program do finds that. The programs that are kept now include
        those that JAX calls, of which a gradient is one.
        """
        kept = len(self._all_programs()) + len(self._foreign_programs)
        pure = [function.cache_info() for function in self._pure.values()]
        return CacheInfo(
            self._calls - self._misses + sum(info.hits for info in pure),
            self._misses + sum(info.misses for info in pure),
            kept + sum(info.size for info in pure),
        )

    def lower(self, /, *args: PyTree, **kwargs: PyTree) -> JaxProgram:
        """Compile the function for arguments like these, arrays or `jax.ShapeDtypeStruct`s, without a call.

        The JaxProgram takes all arguments but the static ones. Calls of this kind find it. Raises UsageError where
        there are modules of flax.nnx.
        """
        jax = the_jax()
        if module_call(args, kwargs) is not None:
            raise UsageError("jax.jit: lower: modules of flax.nnx are taken by a call")
        return self._program(jax, self._call(jax, args, kwargs), (args, kwargs))

    def explain(self) -> Explanation:
        """Return tables about the program of the last call: layouts, collectives with their bytes, memory.

        Raises UsageError if nothing has been called yet.
        """
        if self._last is None:
            raise UsageError(f"{self.__name__}.explain: no call has compiled yet: call it")
        return self._last.explain()

    def view(self, trace: RankTrace | None = None) -> Page:
        """Return the page about the program of the last call; trace: what was measured, to show beside the prediction.

        Raises UsageError if nothing has been called yet.
        """
        if self._last is None:
            raise UsageError(f"{self.__name__}.view: no call has compiled yet: call it first")
        return self._last.view(trace)

    def close(self) -> None:
        """Free the threads, processes and memory of all its programs; a later call compiles again."""
        with self._lock:
            programs = [*self._all_programs(), *self._foreign_programs]
            for kept in (self._programs, self._quick, self._anywhere, self._foreigns):
                kept.clear()
            self._foreign_programs.clear()
            self._last = None
        for function in self._pure.values():
            function.close()
        for program in programs:
            program.close()

    def _all_programs(self) -> list[JaxProgram]:
        """Return the programs that calls have compiled; several kinds of call may have one."""
        return [program for found in self._anywhere.values() for program in found]

    clear_cache = close  # as functions of jax.jit have it

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., PyTree]:
        """Bind a method: the instance is its first argument."""
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<meshweave.jax.jit {self.__name__} on ({self._mesh})>"


def _ours(work: Callable[..., Any], *args: Any) -> Any:
    """Let errors say that `jax.jit` was called, not `from_jax`."""
    try:
        return work(*args)
    except MeshweaveError as error:
        if not error.message.startswith("from_jax: "):
            raise
        message = error.message.replace("from_jax: ", "jax.jit: ", 1)
        raise error.told(message, error.location) from None


def _jax_array(jax: ModuleType, leaf: PyTree) -> PyTree:
    """Return an argument as JAX's array, as JAX takes it: a Python number weakly typed."""
    return leaf if isinstance(leaf, jax.Array) else jax.numpy.asarray(leaf)


def _is_number(value: object) -> bool:
    return type(value) in NUMBERS


def _kind(jax: ModuleType, leaf: PyTree) -> Hashable:
    """Return what a program depends on of a leaf of the arguments."""
    kind = type(leaf)
    if kind is np.ndarray or isinstance(leaf, np.generic):
        return leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype), False, None
    if isinstance(leaf, jax.core.Tracer):
        return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False), None
    if kind in NUMBERS:
        return (), jax.dtypes.canonicalize_dtype(kind), kind is not bool, None
    if is_array(leaf) and hasattr(leaf, "shape"):
        sharding = getattr(leaf, "sharding", None)
        lies = sharding if sharding is not None and sharding.num_devices > 1 else None
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
        return tuple(leaf.shape), dtype, bool(getattr(leaf, "weak_type", False)), lies
    try:
        hash(leaf)
    except TypeError:
        raise UsageError(
            f"jax.jit: an argument has a {kind.__name__}, which is no array and has no hash"
        ) from None
    return told_apart(leaf)


def _for_trace(jax: ModuleType, leaf: PyTree) -> PyTree:
    """Return an argument as JAX traces it: arrays on one device without their values."""
    if isinstance(leaf, jax.Array) and not is_spread(leaf):
        weak = getattr(leaf, "weak_type", False)  # PRNG keys have none
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=weak)
    return leaf


def _config(jax: ModuleType) -> Hashable:
    """Return what programs depend on of JAX's configuration."""
    config, mesh = jax.config, jax.sharding.get_abstract_mesh()
    return (
        *(config.jax_enable_x64, config.jax_default_matmul_precision),
        *(config.jax_numpy_dtype_promotion, config.jax_default_prng_impl),
        *(config.jax_threefry_partitionable, mesh),
    )


def _left(asked: Chosen, rest: SplitCall) -> Chosen:
    """Return the numbers and names of arguments in a call without its static ones."""
    numbers = [n - sum(s < n for s in rest.positional) for n in asked.numbers]
    kept = [n for n, old in zip(numbers, asked.numbers, strict=True) if old not in rest.positional]
    return Chosen(tuple(kept), tuple(name for name in asked.names if name not in rest.named))


def _devices(mesh: MeshLike | None, leaves: Sequence[PyTree]) -> Any:
    """Return JAX's mesh with devices, that of the function or of an argument; None where there is none."""
    if hasattr(mesh, "devices") and hasattr(mesh, "axis_names"):
        return mesh
    for leaf in leaves:
        if not isinstance(leaf, Array) and is_spread(leaf):
            found = getattr(leaf.sharding, "mesh", None)
            if hasattr(found, "devices"):
                return found
    return None
