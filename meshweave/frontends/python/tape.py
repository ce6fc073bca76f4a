"""Note the ops of a program under construction, for gradients: each call of a primitive, on values that are followed.

A primitive is a function of tensors whose derivative is known as a whole; what it is made of is not noted. Its rule is
in `gradients`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from meshweave.frontends.python import tree
from meshweave.frontends.python.builder import Block, HintRegion, TraceBuilder, current, where
from meshweave.frontends.python.tracer import Tracer, same, tensor, tracing

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Values = Mapping[str, Tracer]
"""Values by their keys."""


@dataclass(frozen=True)
class Call:
    """Hold a call of a primitive.

    inputs, outputs: the tensors that it took and gave. regions: the hints around it, the outermost first, from where
    the tape begins. loc, place: the user's line, in IR and for errors.
    """

    primitive: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[Tracer, ...]
    outputs: tuple[Tracer, ...]
    regions: tuple[HintRegion, ...]
    loc: str
    place: str | None


Walk = Callable[["Tape", Values, Values], "dict[str, Tracer]"]
"""Go back over a tape: from cotangents of results, and values that stand for others, to those of what it follows."""


class Tape:
    """Note the calls that depend on some values, from now on.

    walk: what goes back over it. free: the values from outside of a body that its calls read.
    """

    def __init__(self, trace: TraceBuilder, walk: Walk, tracked: set[str], outer: set[str]) -> None:
        """Begin a tape. tracked: keys of the values that it follows; outer: of those from outside of a body."""
        self.trace, self.walk, self.tracked = trace, walk, tracked
        self.base, self.calls = trace.block, list[Call]()
        self._outer, self.free = outer, dict[str, Tracer]()

    def follows(self, values: Sequence[Tracer]) -> bool:
        """Tell whether one of the values depends on what the tape follows."""
        return any(v.key in self.tracked for v in values)

    def note(self, call: Call) -> None:
        """Note a call if its results can depend on what the tape follows."""
        made = [v for v in call.outputs if v.dtype.kind in "fc"]
        if not made or not self.follows(call.inputs):
            return
        self.reads(call.inputs)
        self.calls.append(call)
        self.tracked.update(v.key for v in made)

    def reads(self, values: Sequence[Tracer]) -> None:
        """Note values that are used, from outside of a body too."""
        self.free.update((v.key, v.again()) for v in values if v.key in self._outer)


def primitive(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Make a function one whose calls tapes note; its rule has the function's name, without what hides it."""
    name = function.__name__.strip("_")

    def _computed(trace: TraceBuilder, args: Any, kwargs: Any) -> Result:
        if not trace.levels:
            return function(*args, **kwargs)
        made: Result = trace.levels[-1].compute(name, function, call, args, kwargs)
        return made

    @wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        trace = current()
        if trace is None:
            return function(*args, **kwargs)
        if trace.within or not trace.tapes:
            return _computed(trace, args, kwargs)
        trace.within += 1
        try:
            found = _computed(trace, args, kwargs)
        finally:
            trace.within -= 1
        note(trace, name, args, kwargs, tracers((args, kwargs)), tracers(found))
        return found

    call.primitive = name  # type: ignore[attr-defined]  # what tests list the primitives by
    return call


def tracers(values: object) -> tuple[Tracer, ...]:
    """Return the tensors among values."""
    return tuple([v for v in tree.flatten(values)[0] if isinstance(v, Tracer)])


def note(
    trace: TraceBuilder,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inputs: Sequence[Tracer],
    outputs: Sequence[Tracer],
) -> None:
    """Let the tapes note a call."""
    known = {v.key for v in inputs}
    if all(v.key in known for v in outputs):
        return  # nothing is computed
    ends = tuple([v.again() for v in inputs]), tuple([v.again() for v in outputs])
    args = tuple([_kept(v) for v in args])
    for tape in trace.tapes:
        assert isinstance(tape, Tape)
        regions = _regions(trace.block, tape.base)
        tape.note(Call(name, args, kwargs, *ends, regions, trace.loc(), where()))


def _kept(value: Any) -> Any:
    """Return an argument with values of its own: those of the user may stand for others later."""
    if isinstance(value, Tracer):
        return value.again()
    return type(value)([_kept(v) for v in value]) if type(value) in (list, tuple) else value


def _regions(block: Block | None, base: Block) -> tuple[HintRegion, ...]:
    """Return the hint regions around a block, up to another block."""
    found = list[HintRegion]()
    while block is not None and block is not base:
        found += [block.region] if block.region is not None else []
        block = block.parent
    return tuple(reversed(found))


@contextmanager
def taped(trace: TraceBuilder, arguments: Sequence[Tracer]) -> Iterator[Tape | None]:
    """Note on a tape of its own what a body computes; None where nothing is to be noted.

    arguments: those of the body that are followed.
    """
    if trace.within or not trace.tapes:
        yield None
        return
    tapes = trace.tapes
    first = tapes[-1]
    assert isinstance(first, Tape)
    outer = set[str]().union(*[tape.tracked for tape in tapes])
    tape = Tape(trace, first.walk, outer | {v.key for v in arguments}, outer)
    trace.tapes = [tape]
    try:
        yield tape
    finally:
        trace.tapes = tapes


@contextmanager
def unnoted(trace: TraceBuilder) -> Iterator[None]:
    """Write an op by hand, whose call is noted as a whole."""
    trace.within += 1
    try:
        yield
    finally:
        trace.within -= 1


@primitive
def alias(x: Tracer) -> Tracer:
    """Return x as another value: a gradient that follows the one does not follow the other."""
    return _apart(x)


def _apart(x: Tracer) -> Tracer:
    return same(x, x.trace.fresh(), x.weak)


def stop_gradient(x: Any) -> Any:
    """Return x, a pytree of arrays, as a constant to `mw.grad`: nothing flows back through it.

    Raises CompileError for leaves that are no arrays.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> slope = mw.grad(lambda x: mw.sum(x * mw.stop_gradient(x)))
    >>> np.asarray(slope(np.array([3.0], np.float32))).tolist()
    [3.0]
    """
    leaves, structure = tree.flatten(x)
    if current() is None and not tracers(leaves):
        return x
    tracing(*leaves)
    return tree.unflatten(structure, iter([_apart(tensor(leaf)) for leaf in leaves]))
