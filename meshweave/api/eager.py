"""Compute functions of arrays at once, outside of traced functions: each is compiled once for each kind of call.

A kind is what a program depends on: shapes, dtypes, layouts and mesh of Arrays, the types of Python numbers, and all
other arguments by value. Small Arrays that lie alike need no program where NumPy gives the same bits.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import wraps
from typing import Any

import numpy as np

from meshweave.api.alike import LIMIT, alike, made
from meshweave.api.callables.told import tell
from meshweave.api.lowered import Compiled, Lowered
from meshweave.api.signature import check_fits, leaf_spec, told_apart
from meshweave.bundle import OF_A_BYTE
from meshweave.errors import UsageError
from meshweave.frontends.python.builder import STATE
from meshweave.frontends.python.dtypes import CHOSEN, DTYPES, float32
from meshweave.frontends.python.program import ArgumentSpec, trace_program
from meshweave.frontends.python.tracer import Tracer, apart
from meshweave.layout import Layout, Mesh
from meshweave.runtime.arrays.array import Array, copied
from meshweave.runtime.arrays.kind import kind_of
from meshweave.runtime.forks import new_lock
from meshweave.runtime.local.engine import LocalExecutable
from meshweave.runtime.local.small import SmallCall

ONE_RANK = Mesh()
_ELEMENTS = {d.numpy: name for name, d in DTYPES.items() if name not in ("bf16", *OF_A_BYTE)}
KEPT, KEPT_APART = 2048, 64  # programs kept loaded: of one rank, and of several, which have threads
_NUMBERS = (bool, int, float, complex)

Run = Callable[..., Any]


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
    """Return a public function that traces inside traced functions, and computes at once outside of them."""
    takes, rest = _parameters(function)
    narrow: dict[Any, Run] = {}  # programs, by the default floating dtype
    wide: dict[Any, Run] = {}

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if STATE.trace is not None:
            return apart(function(*args, **kwargs), args)
        programs = narrow if CHOSEN.floating is float32 else wide
        if not kwargs and STATE.kernels is None:
            if len(args) == 2:
                a, b = args
                key: Any = (
                    a.kind if type(a) is Array else type(a),
                    b.kind if type(b) is Array else type(b),
                )
            else:
                key = tuple([v.kind if type(v) is Array else type(v) for v in args])
            found = programs.get(key)
            if found is not None:
                return found(*args)
        if not kwargs and any(type(v) is np.ndarray for v in args):
            own = tuple([_as_array(v) if takes.get(k, rest) else v for k, v in enumerate(args)])
            if any(a is not b for a, b in zip(own, args)):
                return call(*own)
        asked = Call(function, name, takes, rest, args, kwargs)
        return asked.run(programs)

    call.__module__, call.__qualname__, call.__name__ = "meshweave", name, name.rpartition(".")[2]
    return call


def _as_array(value: object) -> object:
    """Return a small array of NumPy's as an Array of one rank, a large one and any other value as it is."""
    if type(value) is not np.ndarray or value.nbytes > LIMIT or not value.size:
        return value
    element = _ELEMENTS.get(value.dtype)
    if element is None:
        return value
    kind = kind_of(ONE_RANK, Layout.replicated(value.ndim), value.shape, element)
    return made(kind, (copied(value),))


def _parameters(function: Callable[..., Any]) -> tuple[dict[str | int, bool], bool]:
    """Return which parameters of a function take arrays, by name and by place, and whether those after the last do."""
    takes: dict[str | int, bool] = {}
    rest = False
    for place, parameter in enumerate(inspect.signature(function).parameters.values()):
        data = "ArrayLike" in str(parameter.annotation)
        takes[place] = takes[parameter.name] = data
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            rest = data
    return takes, rest


class Call:
    """Tell arrays and numbers of a call, its leaves, from the arguments that its program depends on.

    takes, rest: which parameters take arrays, as `_parameters` says.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        takes: dict[str | int, bool],
        rest: bool,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> None:
        self._function, self._name = function, name
        self._args, self._kwargs = args, kwargs
        self._by_place = [takes.get(place, rest) for place in range(len(args))]
        self._by_name = {key: takes.get(key, False) for key in kwargs}
        self.leaves: list[Any] = []
        self._in_trace = False
        parts = [self._part(v, data) for v, data in zip(args, self._by_place)]
        named = [(key, self._part(v, self._by_name[key])) for key, v in sorted(kwargs.items())]
        self._key: tuple[Hashable, ...] = (*parts, *named)

    def _part(self, value: Any, data: bool, within: bool = False) -> Hashable:
        """Return the part of the key that an argument is, and keep its leaves; `data` tells whether it may have any."""
        kind = type(value)
        if isinstance(value, Array):
            self.leaves.append(value)
            return value.kind
        if kind is tuple or kind is list:
            return kind, tuple([self._part(v, data, True) for v in value])
        if kind is slice:
            return kind, tuple(
                [self._part(v, data, True) for v in (value.start, value.stop, value.step)]
            )
        if data and _is_leaf(value, within):
            self.leaves.append(value)
            return (kind,) if kind in _NUMBERS else (np.dtype, value.dtype, tuple(value.shape))
        if kind is np.ndarray:
            return kind, value.dtype, value.shape, value.tobytes()
        self._in_trace |= isinstance(value, Tracer)
        return told_apart(value)

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

    def run(self, programs: dict[Any, Run]) -> Any:
        """Compute, by a program that is kept if there is one for this kind of call."""
        if self._in_trace:  # a value of a trace that has ended: the function says so
            return self._function(*self._args, **self._kwargs)
        key = (self._key, STATE.kernels)
        found = programs.get(key)
        if found is not None:
            return found(*self.leaves)
        run, several = self._made()
        quick = self._quick_key()
        for one in (key, quick) if quick is not None else (key,):
            programs[one] = run
            (_TOGETHER if several else _ALONE).add((self._name, CHOSEN.floating), one, programs)
        return run(*self.leaves)

    def _quick_key(self) -> Hashable | None:
        """Return the key of a call of Arrays and numbers by place alone, None for any other."""
        if self._kwargs or STATE.kernels is not None or len(self.leaves) != len(self._args):
            return None
        if not all(type(v) is Array or type(v) in _NUMBERS for v in self._args):
            return None
        return tuple([v.kind if type(v) is Array else type(v) for v in self._args])

    def _made(self) -> tuple[Run, bool]:
        """Return what computes calls of this kind from their leaves, and whether several ranks do."""
        direct = alike(self._name, self.leaves) if len(self.leaves) == len(self._args) else None
        if direct is not None and not self._kwargs:
            return direct, False
        mesh = self._mesh()
        specs = [self._spec(number, value, mesh) for number, value in enumerate(self.leaves)]
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
        names = [f"argument {number}" for number in range(len(specs))]
        lowered = Lowered(self._name, program, program.specs, names, mesh, "local", STATE.kernels)
        compiled = lowered.compile()
        kinds = ", ".join(map(str, specs))
        tell(f"mw.{self._name}({kinds})", compiled, "")
        return runner(compiled, self.leaves), mesh.nranks > 1

    def _spec(self, number: int, value: Any, mesh: Mesh) -> ArgumentSpec:
        spec = leaf_spec(value, str(number))
        if isinstance(value, Array) and value.mesh != mesh:
            return ArgumentSpec(spec.shape, spec.dtype)
        return spec

    def _mesh(self) -> Mesh:
        """Return the mesh that the arguments are for; Arrays of one rank go to that of others.

        Raises UsageError for two meshes of several ranks.
        """
        found = [v.mesh for v in self.leaves if isinstance(v, Array)]
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
    only = kinds[0] if compiled.whole else None

    def run(*values: Any) -> Any:
        for i, spec in narrow:
            check_fits(values[i], spec, names[i])
        try:
            found = small([(v._held or v.held)[0] if type(v) is Array else v for v in values])
        except OverflowError as error:
            raise UsageError(f"mw.{compiled.lowered.name}: {error}") from None
        if only is not None:
            return made(only, (found[0],))
        return compiled.returned([made(k, (v,)) for k, v in zip(kinds, found)])

    return run


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
