"""Compile a Python function of arrays for a mesh, on its first call with arguments of a kind.

@mw.jit(mesh=mesh, in_layouts=("[dp, _]", "[_, tp]"), out_layouts="[dp, tp]")
def product(x, w):
    return x @ w
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload

from meshweave.api.callables.in_layouts import InLayouts, leaves_open
from meshweave.api.callables.methods import Method
from meshweave.api.callables.misses import Miss, plans_since, why_missed
from meshweave.api.callables.pickles import pickled
from meshweave.api.callables.told import LOG, MANY, tell
from meshweave.api.callables.waiting import in_a_thread
from meshweave.api.compiling.donations import Donations, donated_leaves, donated_names
from meshweave.api.compiling.meshes import mesh_of_ranks
from meshweave.api.lengths.call import LengthsCompiled
from meshweave.api.lengths.dims import DimsOf, checked_dims, opened
from meshweave.api.lengths.lowered import LengthsLowered, dims_of, lower_lengths
from meshweave.api.lowered import Compiled, Lowered
from meshweave.api.program import aim, budget_hints
from meshweave.api.signature import (
    FAST,
    argument_paths,
    argument_structures,
    fast_key,
    leaf_spec,
    told_apart,
)
from meshweave.errors import CompileError, UsageError
from meshweave.frontends.python import tree
from meshweave.frontends.python.builder import current, fail, where
from meshweave.frontends.python.dtypes import DType, default_floating
from meshweave.frontends.python.instances import Attributes, Receiver, unchanged
from meshweave.frontends.python.place import chosen_kernels, constrain
from meshweave.frontends.python.program import (
    ArgumentSpec,
    result_layouts,
    trace_program,
)
from meshweave.frontends.python.tracer import tensor, tracing
from meshweave.hints.fast_paths import Choice
from meshweave.layout import Mesh
from meshweave.plan import search_info
from meshweave.runtime.forks import new_lock

if TYPE_CHECKING:
    from meshweave.api.explain import Explanation
    from meshweave.api.program import Program
    from meshweave.see.page import Page
    from meshweave.see.trace import RankTrace

_Args: TypeAlias = tuple[Any, ...]
_Kwargs: TypeAlias = dict[str, Any]


class CacheInfo(NamedTuple):
    """Count calls: `hits` found a program, `misses` compiled one, `size` programs are kept now."""

    hits: int
    misses: int
    size: int


@overload
def jit(
    function: Callable[..., Any],
    *,
    mesh: Mesh | str | None = None,
    in_layouts: object = None,
    out_layouts: object = None,
    engine: str = "local",
    static_argnames: str | Sequence[str] = (),
    static_argnums: int | Sequence[int] = (),
    donate: Donations = (),
    dims: DimsOf | None = None,
    timeout: float | None = None,
    flight: str | None = None,
    verify: bool = True,
    layouts: str | None = None,
    ranks: int | None = None,
    objective: str = "time",
    peak_bytes: int | str | None = None,
) -> Jitted: ...
@overload
def jit(
    function: None = None,
    *,
    mesh: Mesh | str | None = None,
    in_layouts: object = None,
    out_layouts: object = None,
    engine: str = "local",
    static_argnames: str | Sequence[str] = (),
    static_argnums: int | Sequence[int] = (),
    donate: Donations = (),
    dims: DimsOf | None = None,
    timeout: float | None = None,
    flight: str | None = None,
    verify: bool = True,
    layouts: str | None = None,
    ranks: int | None = None,
    objective: str = "time",
    peak_bytes: int | str | None = None,
) -> Callable[[Callable[..., Any]], Jitted]: ...
def jit(
    function: Callable[..., Any] | None = None,
    *,
    mesh: Mesh | str | None = None,
    in_layouts: object = None,
    out_layouts: object = None,
    engine: str = "local",
    static_argnames: str | Sequence[str] = (),
    static_argnums: int | Sequence[int] = (),
    donate: Donations = (),
    dims: DimsOf | None = None,
    timeout: float | None = None,
    flight: str | None = None,
    verify: bool = True,
    layouts: str | None = None,
    ranks: int | None = None,
    objective: str = "time",
    peak_bytes: int | str | None = None,
) -> Jitted | Callable[[Callable[..., Any]], Jitted]:
    """Compile a function of arrays for a mesh when it is called.

    mesh:        the devices, a Mesh or its text; None: one rank; "auto": `ranks` of them, whose axes are chosen too.
    in_layouts:  where the arguments lie: a layout (text, `P(...)`, Layout, None for any) for each argument, or a pytree
                 of layouts, or one for several; a dict gives them by the arguments' names; by default an Array's own,
                 and else what propagation finds.
    out_layouts: where the results lie, likewise.
    engine:      what runs it: "local" (a thread per rank) or "mpi" (a process per rank).
    static_argnames: names of arguments that are values for Python, not arrays; they must be hashable.
    static_argnums: the numbers of such arguments.
    donate:      names or positions of arguments whose buffers results may take: such a state is updated in place, and
                 its Arrays cannot be used again. A dict gives strengths, "preferred" (the default) or "required".
    dims:        sizes that each call chooses, up to a bound: for an argument by its name a shape of `mw.Dim`s, None and
                 numbers, or a dict of its dims, as `{"x": (n, None)}` or `{"x": {0: n}}`. One program serves them all.
    timeout:     seconds without progress after which a call ends with RankError; None: 60 while a rank
                 waits for another, and no limit while all compute.
    flight:      a folder where a call that fails leaves what each rank did last, for `meshweave doctor --dump`.
    verify:      check each program of one rank against the whole program (`docs/verify.md`): a wrong one is refused.
    layouts:     "auto": what in_layouts, out_layouts and constraints do not say is chosen so that the predicted time is
                 least (`docs/placement.md`); None: propagation finds it. "auto" in in_layouts or out_layouts leaves one
                 open, whatever layout an Array has, and asks for this too.
    ranks:       for the mesh "auto".
    objective:   what is least where layouts are chosen: predicted "time", the "bytes" of a rank, or "bytes within 2e-3"
                 seconds of predicted time.
    peak_bytes:  the bytes that a rank may take, "64MiB": where layouts are chosen arguments and results count too, else
                 it is as `mw.hint(peak_bytes=..)` around all of the function.

    Arguments and results are pytrees (tuples, lists, dicts, None, namedtuples, dataclasses) of arrays: NumPy arrays,
    anything with `__array__`, Python scalars, or Arrays; results are Arrays. A program is compiled for each kind of
    arguments: shapes, dtypes, layouts of Arrays, structure, static arguments, and `mw.kernels` around the call. Arrays
    that the function holds have the elements of when it was compiled; those above 64 KiB are arguments of the program
    too (`captured0`, ...), laid out once for all calls.

    Python's logger `meshweave` is told (INFO) of each program that is compiled, how long it took and what was new about
    the call, and warned when one function has many.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> @mw.jit(mesh="x=2", in_layouts=("[_, x]", "[x, _]"), out_layouts="[_, _]")
    ... def product(a, b):
    ...     return a @ b
    >>> y = product(np.ones((2, 8), np.float32), np.ones((8, 3), np.float32))
    >>> np.asarray(y)[0, 0], product.cache_info().misses
    (np.float32(8.0), 1)
    """
    make = partial(
        Jitted, mesh=mesh, in_layouts=in_layouts, out_layouts=out_layouts, engine=engine,
        static_argnames=static_argnames, static_argnums=static_argnums, donate=donate, dims=dims,
        timeout=timeout, flight=flight, verify=verify, layouts=layouts, ranks=ranks,
        objective=objective, peak_bytes=peak_bytes,
    )  # fmt: skip
    return make if function is None else make(function)


def _fast_key(args: _Args) -> tuple[Hashable | None, Sequence[Any]]:
    """Return a cheap key of a call on pytrees of NumPy arrays and Arrays, None for any other call; and the leaves."""
    key, chosen = fast_key(args), (chosen_kernels(), default_floating().name)
    if key is not None:
        return (*chosen, key), args
    leaves, structure = tree.flatten(args, _is_array, FAST)
    key = fast_key(leaves)
    return (None if key is None else (*chosen, structure, key)), leaves


class Jitted:
    """Run a function compiled; call it like the function that `jit` was given."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        mesh: Mesh | str | None,
        in_layouts: object,
        out_layouts: object,
        engine: str,
        static_argnames: str | Sequence[str],
        static_argnums: int | Sequence[int],
        donate: Donations,
        dims: DimsOf | None,
        timeout: float | None,
        flight: str | None,
        verify: bool,
        layouts: str | None,
        ranks: int | None,
        objective: str,
        peak_bytes: int | str | None,
    ) -> None:
        if not callable(function):
            raise UsageError(f"jit: a function is needed, got {type(function).__name__}")
        if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
            raise UsageError(f"jit: timeout={timeout!r:.40}, seconds above 0 are right")
        self._options = {
            "mesh": mesh, "in_layouts": in_layouts, "out_layouts": out_layouts, "engine": engine,
            "static_argnames": static_argnames, "static_argnums": static_argnums, "donate": donate,
            "dims": dims, "timeout": timeout, "flight": flight, "verify": verify,
            "layouts": layouts, "ranks": ranks, "objective": objective, "peak_bytes": peak_bytes,
        }  # fmt: skip
        self._function, self.engine = function, engine
        self._timeout, self._flight, self._verify = timeout, flight, verify
        self.mesh = mesh_of_ranks(mesh, ranks)
        self._out_layouts = out_layouts
        opened = leaves_open(in_layouts) or leaves_open(out_layouts)
        opened = opened or self.mesh.ranks_to_arrange is not None
        self._auto = aim("auto" if opened and layouts is None else layouts, objective)
        self._peak_bytes = peak_bytes
        budget_hints(peak_bytes)  # refused here, not by the first call
        self._signature = inspect.signature(function)
        self._names = tuple(self._signature.parameters)
        static = (static_argnames,) if isinstance(static_argnames, str) else static_argnames
        self._static = (*static, *self._numbered(static_argnums))
        unknown = [name for name in self._static if name not in self._names]
        if unknown:
            raise UsageError(f"jit: static_argnames {unknown} are no arguments: {self._names}")
        self._donated = donated_names(donate, self._names, self._static)
        self._dims = checked_dims(dims, self._names, self._static)
        self._where = _where(function)
        self._in_layouts = InLayouts(
            in_layouts, self._signature.parameters, self._dynamic, self._where
        )
        self._programs: dict[Any, Compiled] = {}
        self._fast: dict[Any, Callable[[Any], Any]] = {}
        self._open: list[LengthsCompiled] = []  # programs for sizes that calls choose
        self._misses: list[Miss] = []
        self._calls = 0
        self._last: Compiled | None = None
        self._lock = new_lock()
        update_wrapper(self, function)
        self.__name__: str = getattr(function, "__name__", "function")

    def _numbered(self, static: int | Sequence[int]) -> list[str]:
        """Return the names of arguments that are static by their numbers. Raises UsageError where there is none."""
        numbers = tuple(static) if isinstance(static, Sequence) else (static,)
        count = len(self._names)
        for number in numbers:
            if not isinstance(number, int) or not -count <= number < count:
                raise UsageError(f"jit: static_argnums {number!r}: there are {count} arguments")
        return [self._names[number] for number in numbers]

    def __get__(self, instance: Any, owner: type | None = None) -> Jitted | Method:
        """Bind a method: the instance is a static argument if it is named so, else its arrays are arguments."""
        if instance is None:
            return self
        return Method(self, instance, self._names[:1] == self._static[:1] != ())

    def __reduce__(self) -> Any:
        return pickled(self, self._function, self._options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function; the first call with arguments of a kind compiles it.

        Raises MeshweaveError, at the line at fault, if the program is wrong; RankError if a rank fails. Inside another
        traced function it becomes a part of that program, for the same mesh: its layouts constrain its arguments and
        results there, its engine and timeout have no effect.
        """
        if current() is not None:
            return self._inside(args, kwargs)
        self._calls += 1
        key, given = (None, ()) if kwargs or self._static else _fast_key(args)
        if key is not None:
            found = self._fast.get(key)
            if found is not None:
                return found(given)
        leaves, compiled = self._compiled(args, kwargs)
        returned = compiled.call(leaves)
        if key is not None:
            self._fast[key] = compiled.fast(leaves)
        return returned

    async def call_async(self, *args: Any, **kwargs: Any) -> Any:
        """Call it in a thread, while other coroutines run; what it returns is what `await` gives."""
        return await in_a_thread(self, args, kwargs)

    def _inside(self, args: _Args, kwargs: _Kwargs) -> Any:
        """Trace the function as a part of another, with arguments and results in its layouts.

        Errors say that it is called from there.
        """
        called, function = where(), self._function
        try:
            if self._in_layouts.said is None:
                args = tuple([v.value if isinstance(v, Receiver) else v for v in args])
            else:
                function, args, kwargs = self._placed(args, kwargs)
            returned = function(*args, **kwargs)
            return returned if self._out_layouts is None else self._laid_out(returned)
        except CompileError as error:
            if error.location is None or error.location == called:
                raise
            within = f"{error.message} (in {self.__name__}, called at {called})"
            raise error.told(within, error.location) from None

    def _placed(self, args: _Args, kwargs: _Kwargs) -> tuple[Callable[..., Any], _Args, _Kwargs]:
        """Constrain the arguments of a call in another traced function to in_layouts; return what takes them too."""
        leaves, key = self._key(args, kwargs)
        layouts = self._in_layouts.of(key.structure, key.specs, self._outer_mesh())
        placed = [x if lay is None else constrain(x, lay) for x, lay in zip(leaves, layouts)]
        args, kwargs = tree.unflatten(key.structure, iter(placed))
        return self._traced(key), args, {**kwargs, **key.values}

    def _laid_out(self, returned: object) -> Any:
        """Constrain what is returned to another traced function to out_layouts."""
        mesh, (leaves, structure) = self._outer_mesh(), tree.flatten(returned)
        values = [tensor(leaf) for leaf in leaves]
        layouts = result_layouts(self._out_layouts, structure, values, mesh, self._where)
        placed = [x if lay is None else constrain(x, lay) for x, lay in zip(values, layouts)]
        return tree.unflatten(structure, iter(placed))

    def _outer_mesh(self) -> Mesh:
        """Return the mesh of the function that is being traced."""
        outer = tracing().mesh
        if self.mesh.axes and self.mesh != outer:
            fail(
                f"{self.__name__} is for the mesh ({self.mesh}), called in a program for ({outer}): "
                "its layouts need the same one"
            )
        return outer

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Trace the function for arguments of this kind (arrays, or anything with shape and dtype), uncompiled.

        A `ShapeDtype` may have `Dim`s, sizes that each call chooses: calls of the function of any such sizes take the
        program from when it is compiled, and none compiles another.

        Raises MeshweaveError, at the line at fault.
        """
        leaves, structure = tree.flatten((args, kwargs), _is_array)
        if not dims_of(leaves):
            _, key = self._key(args, kwargs)
            return self._lowered(key)
        return self._lengths(leaves, structure)

    def _open_for(self, leaves: Sequence[object], key: _Key) -> Lowered:
        """Trace the function for arguments like these, with the sizes that calls choose open."""
        given = [
            opened(leaf, spec, path, self._dims)
            for leaf, spec, path in zip(leaves, key.specs, key.paths)
        ]
        values = dict(key.values)
        args, kwargs = tree.unflatten(key.structure, iter(given))
        return self.lower(*args, **kwargs, **values)

    def _lengths(self, leaves: Sequence[object], structure: tree.Structure) -> Lowered:
        """Trace the function for arguments with `Dim`s."""
        if self._auto:
            raise UsageError(
                f"{self.__name__}: layouts are chosen for sizes that are known, and calls choose "
                f"{', '.join(map(str, dims_of(leaves)))}: state the mesh and in_layouts",
                self._where,
            )
        dims = dims_of(leaves)

        def lower(given: Sequence[object]) -> Lowered:
            args, kwargs = tree.unflatten(structure, iter(given))
            return self._lowered(self._key(args, kwargs)[1])

        def compiled(lowered: LengthsLowered, program: Program, seconds: float) -> LengthsCompiled:
            _, key = self._key(*tree.unflatten(structure, iter(lowered.bound_leaves(leaves))))
            made = LengthsCompiled(lowered, program, seconds, lowered.lengths, key.rest)
            self._open.append(made)
            return made

        return lower_lengths(leaves, dims, lower, compiled)

    def cache_info(self) -> CacheInfo:
        """Count the calls that found their program, and those that compiled one."""
        misses = len(self._misses)
        size = len(self._programs) + sum(not program.is_closed for program in self._open)
        return CacheInfo(self._calls - misses, misses, size)

    def explain_misses(self) -> str:
        """Say for each call that compiled, in a line, how it differs from the nearest earlier one.

        The line also counts the plans of redistributions that were taken from another shape, or searched.
        """
        lines = []
        for number, miss in enumerate(self._misses):
            why = why_missed(miss, self._misses[:number])
            lines.append(f"{number + 1}. {why} ({1000 * miss.seconds:.0f} ms{miss.plans})")
        return "\n".join(lines) or "no call has compiled"

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Draw tables about the program of the last call, or of arguments like these.

        They show layouts, collectives with their bytes, memory, what became of each hint, and kernels. Raises
        UsageError if nothing has been called yet.
        """
        if args or kwargs:
            return self._compiled(args, kwargs)[1].explain()
        if self._last is None:
            raise UsageError(
                f"{self.__name__}.explain: no call has compiled yet: call it, or give arguments"
            )
        return self._last.explain()

    def view(self, trace: RankTrace | None = None) -> Page:
        """Return the page about the program of the last call; see `Program.view`.

        trace: what was measured, to show beside the prediction.

        Raises UsageError if nothing has been called yet.
        """
        if self._last is None:
            raise UsageError(f"{self.__name__}.view: no call has compiled yet: call it first")
        return self._last.view(trace)

    def close(self) -> None:
        """Release all compiled programs, their threads, processes and memory."""
        with self._lock:
            for program in (*self._programs.values(), *self._open):
                program.close()
            self._programs.clear()
            self._open.clear()
            self._fast.clear()
            self._last = None

    def _traced(self, key: _Key) -> Callable[..., Any]:
        """Return the function, of an object that is taken apart one that sets nothing there."""
        args, _ = argument_structures(key.structure)
        first = args.children[0] if args.children else None
        taken = isinstance(first, tree.Container) and isinstance(first.kind, Attributes)
        return unchanged(self._function, self.__name__) if taken else self._function

    def __repr__(self) -> str:
        return f"<meshweave.jit {self.__name__} on ({self.mesh})>"

    # What a call is.

    def _leaves(self, compiled: _Key, args: Sequence[Any], kwargs: _Kwargs) -> list[Any]:
        """Return the leaves of the arguments of a call of a program that was compiled for a key."""
        leaves, key = self._key(tuple(args), kwargs)
        if (key.structure, key.static) != (compiled.structure, compiled.static):
            raise UsageError(
                f"{self.__name__}: arguments of another structure, or other static ones, than it was compiled for"
            )
        return leaves

    def _key(self, args: _Args, kwargs: _Kwargs) -> tuple[list[Any], _Key]:
        static, args, kwargs = self._without_static(args, kwargs)
        leaves, structure = tree.flatten((tuple(args), kwargs), _is_array)
        paths = tuple(argument_paths(structure, self._dynamic))
        specs = tuple(leaf_spec(leaf, path) for leaf, path in zip(leaves, paths))
        told = tuple((name, told_apart(value)) for name, value in static.items())
        floats = default_floating()
        return leaves, _Key(structure, specs, told, chosen_kernels(), floats, paths, static)

    @property
    def _dynamic(self) -> list[str]:
        return [name for name in self._names if name not in self._static]

    def _without_static(self, args: _Args, kwargs: _Kwargs) -> tuple[_Kwargs, _Args, _Kwargs]:
        """Split off the static arguments, by name; return them, and the positional and named others."""
        if not self._static:
            return {}, args, kwargs
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(f"{self.__name__}: {error}") from None
        bound.apply_defaults()
        given = [(n, bound.arguments[n]) for n in self._static if n in bound.arguments]
        for name, value in given:
            try:
                hash(value)
            except TypeError:
                raise UsageError(
                    f"{self.__name__}: static argument {name} is a {type(value).__name__}: "
                    "it must be hashable"
                ) from None
        static = dict(given)
        parameters = self._signature.parameters
        positional, named = [], {}
        for name, value in bound.arguments.items():
            kind = parameters[name].kind
            if name in self._static:
                continue
            if kind is inspect.Parameter.VAR_POSITIONAL:
                positional += value
            elif kind is inspect.Parameter.VAR_KEYWORD:
                named.update(value)
            elif kind is inspect.Parameter.POSITIONAL_ONLY:
                positional.append(value)
            else:
                named[name] = value
        return static, tuple(positional), named

    def _compiled(self, args: _Args, kwargs: _Kwargs) -> tuple[list[Any], Compiled]:
        leaves, key = self._key(args, kwargs)
        with self._lock:
            found = self._programs.get(key) or self._serving(key)
            if found is None:
                known = search_info()
                if self._dims:
                    found = self._open_for(leaves, key).compile(self._timeout, self._flight)
                else:
                    found = self._lowered(key).compile(self._timeout, self._flight)
                    self._programs[key] = found
                rest, plans = (
                    (key.structure, key.static, key.kernels),
                    plans_since(known.hits, known.misses),
                )
                self._misses.append(Miss(key.specs, key.paths, rest, found.seconds, plans))
                self._told(found)
            self._last = found
        return leaves, found

    def _serving(self, key: _Key) -> Compiled | None:
        """Return a program that takes arguments of these sizes among others.

        Raises UsageError for arguments that one would take, but for a size above its bound.
        """
        for program in reversed(self._open):
            if not program.is_closed and program.takes(key.rest, key.specs):
                return program
        return None

    def _told(self, compiled: Compiled) -> None:
        """Tell the logger of the last program: how long it took, and what was new about the call."""
        *before, last = self._misses
        why, count = why_missed(last, before), len(self._misses)
        tell(self.__name__, compiled, why, count)
        if count >= MANY and count & (count - 1) == 0:
            LOG.warning(
                "%s (%s) has compiled %d times, last: %s", self.__name__, self._where, count, why
            )

    def _lowered(self, key: _Key) -> Lowered:
        layouts = self._in_layouts.of(key.structure, key.specs, self.mesh)

        def arguments(values: Sequence[object]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            args, kwargs = tree.unflatten(key.structure, iter(values))
            return args, {**kwargs, **key.values}

        program = trace_program(
            *(self._traced(key), arguments, key.specs, layouts, self.mesh, self._out_layouts),
            self._where, donated=donated_leaves(self._donated, key.paths, [spec.weak for spec in key.specs]),
        )  # fmt: skip
        return Lowered(
            *(self.__name__, program, program.specs, key.paths, self.mesh, self.engine),
            *(key.kernels, self._verify, partial(self._leaves, key)),
            auto=self._auto,
            peak_bytes=self._peak_bytes,
        )


@dataclass(frozen=True)
class _Key:
    """Identify what a program is compiled for; equal keys have equal programs.

    values: of the static arguments, which `static` tells apart. floats: the default floating dtype.
    """

    structure: tree.Structure
    specs: tuple[ArgumentSpec, ...]
    static: tuple[Any, ...]
    kernels: Choice | None
    floats: DType
    paths: tuple[str, ...]
    values: dict[str, Any] = field(compare=False)

    @property
    def rest(self) -> Hashable:
        """Return all but the kinds of the arguments."""
        return self.structure, self.static, (self.kernels, self.floats)


def _is_array(value: object) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _where(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "a function" if code is None else f"{code.co_filename}:{code.co_firstlineno}"
