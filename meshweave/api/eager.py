"""Compute functions of arrays at once, outside of traced functions: each is compiled once for each kind of call.

A kind is what a program depends on: shapes, dtypes, layouts and mesh of Arrays, the types of Python numbers, and all
other arguments by value. Small Arrays that lie alike need no program where NumPy gives the same bits.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np

from meshweave.abi import DirectCall
from meshweave.api.alike import LIMIT, alike, is_small, made, whole
from meshweave.api.callables.often import Run, called_often
from meshweave.api.callables.told import tell
from meshweave.api.lowered import Compiled, Lowered
from meshweave.api.signature import check_fits, leaf_spec, told_apart
from meshweave.bundle import OF_A_BYTE
from meshweave.errors import UsageError
from meshweave.frontends.python import tree
from meshweave.frontends.python.builder import STATE
from meshweave.frontends.python.dtypes import CHOSEN, DTYPES, DType, float32, limits
from meshweave.frontends.python.program import ArgumentSpec, trace_program
from meshweave.frontends.python.scopes import OPEN
from meshweave.frontends.python.tracer import Tracer, apart
from meshweave.layout import Layout, Mesh
from meshweave.runtime.arrays.array import Array, copied
from meshweave.runtime.arrays.kind import Kind, kind_of
from meshweave.runtime.forks import new_lock
from meshweave.runtime.local.direct import DirectCalls, NumberForm
from meshweave.runtime.local.engine import LocalExecutable
from meshweave.runtime.local.small import SmallCall
from meshweave.runtime.watched import WATCHERS

ONE_RANK = Mesh()
_ELEMENTS = {d.numpy: name for name, d in DTYPES.items() if name not in ("bf16", *OF_A_BYTE)}
KEPT, KEPT_APART = 2048, 64  # programs kept loaded: of one rank, and of several, which have threads
_NUMBERS = frozenset({bool, int, float, complex})

DirectRun = Callable[[DirectCalls, Run], Run | None]


class _Kept:
    """Remember where programs are kept, so that the oldest beyond a number are forgotten."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, new_lock()
        self._places: OrderedDict[Any, dict[Any, Run]] = OrderedDict()

    def add(self, name: Hashable, key: Hashable, where: dict[Any, Run]) -> None:
        """Note that `where[key]` is a program."""
        with self._lock:
            self._places[name, key] = where
            while len(self._places) > self._most:
                (_, old), place = self._places.popitem(last=False)
                place.pop(old, None)


_ALONE, _TOGETHER = _Kept(KEPT), _Kept(KEPT_APART)


def eager(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a public function that traces inside traced functions, and computes at once outside of them.

    Its attribute `direct` has what computes calls, by the kind of the only Array, or by the kinds of Arrays and the
    types of numbers, as long as no thread traces, has chosen anything, or watches: `open` says so, and WATCHERS.newest.
    """
    takes = _Takes(function)
    narrow: dict[Any, Run] = {}  # programs, by the default floating dtype
    wide: dict[Any, Run] = {}
    direct: dict[Any, Run] = {}
    said: dict[Any, Run] = {}  # the same for calls with axes and so on

    def computed(*args: Any, **kwargs: Any) -> Any:
        """Compute a call of any kind."""
        if STATE.trace is not None:
            return apart(function(*args, **kwargs), args)
        programs = narrow if CHOSEN.floating is float32 else wide
        if not kwargs and STATE.kernels is None:  # of Arrays and numbers alone: a shorter key
            found = programs.get(tuple([v.kind if type(v) is Array else type(v) for v in args]))
            if found is not None:
                return found(*args)
        leaves: list[Any] = []
        key: Hashable = takes.key(args, kwargs, leaves)
        if STATE.kernels is not None:
            key = key, STATE.kernels
        found = programs.get(key)
        if found is not None:
            return found(*leaves)
        if not kwargs and any(type(v) is np.ndarray for v in args):
            own = tuple([_as_array(v) if takes.place(k) else v for k, v in enumerate(args)])
            if any(a is not b for a, b in zip(own, args)):
                return call(*own)
        asked = Call(function, name, takes, args, kwargs, leaves)
        made = asked.run(key, programs, direct, said)
        if name == "reshape" and is_small(args[0]) and len(args) == 2 and not (kwargs or OPEN):
            again, of = partial(_reshaped, computed), args[0].kind
            quick(name, direct, (of, type(args[1])), again, partial(_as_reshape, of))
        return made

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not (OPEN or WATCHERS.newest):
            if not kwargs:
                if len(args) == 1:
                    (a,) = args
                    found = direct.get(a.kind if type(a) is Array else type(a))
                elif len(args) == 2:
                    a, b = args
                    found = direct.get(
                        (
                            a.kind if type(a) is Array else type(a),
                            b.kind if type(b) is Array else type(b),
                        )
                    )
                elif len(args) == 3:
                    a, b, c = args
                    found = direct.get(
                        (
                            a.kind if type(a) is Array else type(a),
                            b.kind if type(b) is Array else type(b),
                            c.kind if type(c) is Array else type(c),
                        )
                    )
                else:
                    found = None
                if found is not None:
                    return found(*args)
            if said:
                key, leaves = _said(args, kwargs)
                try:
                    found = said.get(key)
                except TypeError:  # what has no hash
                    found = None
                if found is not None:
                    return found(*leaves)
        return computed(*args, **kwargs)

    call.__module__, call.__qualname__, call.__name__ = "meshweave", name, name.rpartition(".")[2]
    call.__dict__.update(direct=direct, open=OPEN, computed=computed)
    return call


_SAID = frozenset({int, bool, str, type(None), DType, type})
"""Types of what is said beside Arrays, such as axes and dtypes; tuples of integers are told apart too."""


def _said(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Hashable, Sequence[Any]]:
    """Return a key of a call of Arrays, one or a list of them, with other arguments behind them; and the Arrays."""
    first: Sequence[Any] = args[:1]
    if not first:
        return None, ()
    (one,) = first
    if type(one) is list or type(one) is tuple:
        first = one
    key: tuple[Any, ...] = tuple([v.kind if type(v) is Array else None for v in first])
    if len(args) > 1:
        key += (len(args), *args[1:], *_types(args[1:]))
    if kwargs:
        key += (*kwargs.items(), *_types(kwargs.values()))
    return (type(one), key), (() if None in key[: len(first)] else first)


def _types(values: Iterable[Any]) -> list[object]:
    """Return the types of values, of a tuple those of its own: 1, 1.0 and True are equal."""
    return [tuple(map(type, v)) if type(v) is tuple else type(v) for v in values]


def _reshaped(computed: Run, value: Array, sizes: Any) -> Any:
    """Reshape an Array, and note what Arrays of this shape have in common: `DirectCalls.of_move` looks it up."""
    made = computed(value, sizes)
    value.kind.of_shape(made.shape)
    return made


def _as_reshape(kind: Kind, how: DirectCalls, slow: Run) -> Run:
    return how.of_move(np.ndarray.reshape, kind, slow)


def quick(name: str, direct: dict[Any, Run], key: Any, run: Run, later: DirectRun) -> None:
    """Let `direct[key]` be `run`, and what `later` makes where it is called often.

    name: of the function that they compute.
    """

    def put(made: Run) -> None:
        if key in direct:  # not forgotten meanwhile
            direct[key] = made

    direct[key] = called_often(run, lambda how: later(how, run), put)
    _ALONE.add((name, "direct"), key, direct)


def _as_array(value: object) -> object:
    """Return a small array of NumPy's as an Array of one rank, a large one and any other value as it is."""
    if type(value) is not np.ndarray or value.nbytes > LIMIT or not value.size:
        return value
    element = _ELEMENTS.get(value.dtype)
    if element is None:
        return value
    kind = kind_of(ONE_RANK, Layout.replicated(value.ndim), value.shape, element)
    return made(kind, (copied(value),))


class _Takes:
    """Tell which parameters of a function take arrays, by name and by place."""

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = inspect.signature(function).parameters.values()
        data = {p.name: "ArrayLike" in str(p.annotation) for p in parameters}
        self._by_name, self._by_place = data, tuple(data.values())
        several = [p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL]
        self._rest = any(data[name] for name in several)

    def place(self, place: int) -> bool:
        """Tell whether the argument at a place may be an array."""
        return self._by_place[place] if place < len(self._by_place) else self._rest

    def name(self, name: str) -> bool:
        """Tell whether an argument by name may be one."""
        return self._by_name.get(name, False)

    def key(self, args: Sequence[Any], kwargs: dict[str, Any], leaves: list[Any]) -> Hashable:
        """Return what the program of a call depends on, and append its arrays and numbers to `leaves`."""
        by_place, parts = self._by_place, list[Hashable]()
        if len(args) > len(by_place):
            by_place += (self._rest,) * (len(args) - len(by_place))
        for value, data in zip(args, by_place):
            if type(value) is Array:
                leaves.append(value)
                parts.append(value.kind)
            else:
                parts.append(_part(value, data, leaves))
        if kwargs:
            parts += [(k, _part(v, self.name(k), leaves)) for k, v in sorted(kwargs.items())]
        return tuple(parts)


_BY_VALUE = {int, bool, str, type(None)}
"""Types of arguments that are told apart by type and value as they are."""
_INT = frozenset({int})


def _part(value: Any, data: bool, leaves: list[Any], within: bool = False) -> Hashable:
    """Return the part of the key that an argument is, and keep its leaves; `data` tells whether it may have any."""
    kind: Any = type(value)
    key: Hashable = kind
    if kind in _NUMBERS and data and not within:
        leaves.append(value)
        return key
    if kind in _BY_VALUE:
        return kind, value
    if kind is Array:
        leaves.append(value)
        key = value.kind
        return key
    if kind is tuple and _INT.issuperset(map(type, value)):
        return kind, value
    if kind is tuple or kind is list:
        return kind, tuple([_part(v, data, leaves, True) for v in value])
    if kind is slice:
        ends = (value.start, value.stop, value.step)
        return kind, tuple([_part(v, data, leaves, True) for v in ends])
    if data and _is_leaf(value, within):
        leaves.append(value)
        return np.dtype, value.dtype, tuple(value.shape)
    if kind is np.ndarray:
        return kind, value.dtype, value.shape, value.tobytes()
    return told_apart(value)


class Call:
    """Make what computes calls of a kind: of a function, from arrays and numbers, the leaves, among its arguments."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        takes: _Takes,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        leaves: Sequence[Any],
    ) -> None:
        self._function, self._name = function, name
        self._args, self._kwargs, self._leaves = args, kwargs, leaves
        self._by_place = [takes.place(place) for place in range(len(args))]
        self._by_name = {key: takes.name(key) for key in kwargs}

    def _rebuilt(self, value: Any, data: bool, leaves: Iterator[Any], within: bool = False) -> Any:
        """Return an argument with other leaves, taken in the order of `_part`."""
        kind = type(value)
        if kind is tuple or kind is list:
            return kind([self._rebuilt(v, data, leaves, True) for v in value])
        if kind is slice:
            ends = (value.start, value.stop, value.step)
            return slice(*[self._rebuilt(v, data, leaves, True) for v in ends])
        if kind is Array or (data and _is_leaf(value, within)):
            return next(leaves)
        return value

    def _arguments(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves = iter(values)
        args = tuple([self._rebuilt(v, d, leaves) for v, d in zip(self._args, self._by_place)])
        kwargs = {
            key: self._rebuilt(v, self._by_name[key], leaves)
            for key, v in sorted(self._kwargs.items())
        }
        return args, kwargs

    def run(
        self,
        key: Hashable,
        programs: dict[Any, Run],
        direct: dict[Any, Run],
        said: dict[Any, Run],
    ) -> Any:
        """Compute, and keep what does under a key, and under that of quick calls where all arguments are leaves.

        direct, said: where what is called often is kept besides, by the kinds of leaves alone and by other arguments.
        """
        if any(isinstance(v, Tracer) for v in tree.flatten((self._args, self._kwargs))[0]):
            return self._function(*self._args, **self._kwargs)  # it says that their trace has ended
        run, several, later = self._made()
        kept = _TOGETHER if several else _ALONE
        keys = [key]
        if self._is_quick():
            kinds = tuple([v.kind if type(v) is Array else type(v) for v in self._args])
            keys.append(kinds)
            if later is not None and not OPEN:
                quick(self._name, direct, kinds[0] if len(kinds) == 1 else kinds, run, later)
        elif later is not None and not (OPEN or several) and self._is_said():
            quick(self._name, said, _said(self._args, self._kwargs)[0], run, later)
        for one in keys:
            programs[one] = run
            kept.add((self._name, CHOSEN.floating), one, programs)
        return run(*self._leaves)

    def _is_said(self) -> bool:
        """Tell whether `_said` describes the call: Arrays come first, all else is told apart by type and value."""
        leaves = _said(self._args, self._kwargs)[1]
        if not leaves or [*map(id, leaves)] != [*map(id, self._leaves)]:
            return False
        rest = [*self._kwargs.values(), *self._args[1:]]
        return all(
            type(v) in _SAID or (type(v) is tuple and {int} >= {*map(type, v)}) for v in rest
        )

    def _is_quick(self) -> bool:
        """Tell whether Arrays and numbers by place are all that the program depends on."""
        if self._kwargs or STATE.kernels is not None or len(self._leaves) != len(self._args):
            return False
        return all(type(v) is Array or type(v) in _NUMBERS for v in self._args)

    def _made(self) -> tuple[Run, bool, DirectRun | None]:
        """Return what computes calls of this kind from their leaves, whether several ranks do, and what does so later.

        That is None where there is nothing quicker.
        """
        alone = self._is_quick()
        by_numpy = alike(self._name, self._leaves) if alone else None
        if by_numpy is not None and by_numpy.run is not None:
            return by_numpy.run, False, by_numpy.direct
        mesh = self._mesh()
        specs = [self._spec(number, value, mesh) for number, value in enumerate(self._leaves)]
        program = trace_program(
            self._function,
            self._arguments,
            specs,
            [spec.layout for spec in specs],
            mesh,
            None,
            f"mw.{self._name}",
            place=f"mw.{self._name}",
        )
        if mesh == ONE_RANK:
            moved = whole(self._name, self._leaves, self._arguments, program)
            if moved is not None and moved.run is not None:
                return moved.run, False, moved.direct
        names = [f"argument {number}" for number in range(len(specs))]
        lowered = Lowered(self._name, program, program.specs, names, mesh, "local", STATE.kernels)
        compiled = lowered.compile()
        kinds = ", ".join(map(str, specs))
        tell(f"mw.{self._name}({kinds})", compiled, "")
        run = runner(compiled, self._leaves)
        later = partial(_direct, compiled) if by_numpy is None else by_numpy.direct
        return run, mesh.nranks > 1, later

    def _spec(self, number: int, value: Any, mesh: Mesh) -> ArgumentSpec:
        spec = leaf_spec(value, str(number))
        if isinstance(value, Array) and value.mesh != mesh:
            return ArgumentSpec(spec.shape, spec.dtype)
        return spec

    def _mesh(self) -> Mesh:
        """Return the mesh that the arguments are for; Arrays of one rank go to that of others.

        Raises UsageError for two meshes of several ranks.
        """
        found = [v.mesh for v in self._leaves if isinstance(v, Array)]
        device = self._kwargs.get("device")
        found += [device] if isinstance(device, Mesh) else []
        several = list(dict.fromkeys(mesh for mesh in found if mesh != ONE_RANK))
        if len(several) > 1:
            raise UsageError(
                f"mw.{self._name}: arrays on the meshes ({several[0]}) and ({several[1]}): "
                "x.to_device(mesh) takes one to the other"
            )
        return several[0] if several else ONE_RANK


def _is_leaf(value: object, within: bool) -> bool:
    """Tell whether an argument for arrays is one, or a number; numbers within lists are part of the program."""
    if type(value) in _NUMBERS:
        return not within
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, Tracer)


def runner(compiled: Compiled, leaves: Sequence[Any]) -> Run:
    """Return the quickest way to call a program with leaves of the kinds of these."""
    specs = compiled.lowered.specs
    numbers = [(i, spec) for i, spec in enumerate(specs) if spec.weak]
    ours = all(type(v) is Array or s.weak for v, s in zip(leaves, specs))
    right = ours and all(
        v.mesh == compiled.lowered.mesh for v, s in zip(leaves, specs) if not s.weak
    )
    if not right or compiled.captured:
        return lambda *values: compiled.call(values)
    executable = compiled.program.executable
    if isinstance(executable, LocalExecutable) and SmallCall.applies(executable):
        return _small(compiled, executable, [(i, s) for i, s in numbers if s.narrow is not None])
    return _fast(compiled, numbers)


def _small(
    compiled: Compiled, executable: LocalExecutable, narrow: Sequence[tuple[int, ArgumentSpec]]
) -> Run:
    """Return a call of a program on small arrays of one rank."""
    small, kinds = SmallCall(executable), compiled.result_kinds()
    names = compiled.lowered.names

    def run(*values: Any) -> Any:
        for i, spec in narrow:
            check_fits(values[i], spec, names[i])
        try:
            found = small([(v._held or v.held)[0] if type(v) is Array else v for v in values])
        except OverflowError as error:
            raise UsageError(f"mw.{compiled.lowered.name}: {error}") from None
        return compiled.returned([made(k, (v,)) for k, v in zip(kinds, found)])

    if narrow or not compiled.whole:
        return run
    only = kinds[0]
    if len(compiled.lowered.specs) == 1 and not compiled.lowered.specs[0].weak:
        return lambda v: made(only, (small.of_one((v._held or v.held)[0]),))

    def run_whole(*values: Any) -> Any:
        try:
            found = small.first([(v._held or v.held)[0] if type(v) is Array else v for v in values])
        except OverflowError as error:
            raise UsageError(f"mw.{compiled.lowered.name}: {error}") from None
        return made(only, (found,))

    return run_whole


def _direct(compiled: Compiled, how: DirectCalls, run: Run) -> Run | None:
    """Return a builtin function that calls a program on small Arrays of one rank, and numbers; None where none does."""
    executable, specs = compiled.program.executable, compiled.lowered.specs
    if not isinstance(executable, LocalExecutable) or executable.mesh.nranks > 1:
        return None
    if compiled.captured or not compiled.whole or len(specs) > DirectCall.MOST:
        return None
    forms = [_form(spec) if spec.weak else None for spec in specs]
    if any(spec.weak and form is None for spec, form in zip(specs, forms)):
        return None
    if len({form.bounds for form in forms if form is not None and form.given is int}) > 1:
        return None
    return how.of_step(executable, forms, compiled.result_kinds()[0], run)


def _form(spec: ArgumentSpec) -> NumberForm | None:
    """Return how a program takes a number of Python's; None where no builtin function can give it one."""
    if spec.dtype.name in ("f32", "f64"):
        return NumberForm(spec.dtype.name, float)
    if spec.dtype.name == "i64":
        low, high = limits(spec.narrow or spec.dtype)
        return NumberForm("i64", int, (int(low), int(high)))
    return None


def _fast(compiled: Compiled, numbers: Sequence[tuple[int, ArgumentSpec]]) -> Run:
    """Return a call of a program on Arrays, whose first call checks them."""
    kept: list[Callable[[Sequence[Any]], Any]] = []

    def run(*values: Any) -> Any:
        given = list(values)
        for i, spec in numbers:
            check_fits(given[i], spec, compiled.lowered.names[i])
            given[i] = np.asarray(given[i], spec.dtype.numpy)
        if not kept:
            returned = compiled.call(values)
            kept.append(compiled.fast(given))
            return returned
        return kept[0](given)

    return run
