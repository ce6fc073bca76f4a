"""Represent a value of a mapped function: a tensor for each place along the dim that the map goes over."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from meshweave.frontends.python.builder import Body, TraceBuilder, affine_map, fail
from meshweave.frontends.python.dtypes import DType
from meshweave.frontends.python.functions.manipulate import broadcast_to
from meshweave.frontends.python.tape import tracers
from meshweave.frontends.python.tracer import Tracer, tensor

Compute = Callable[..., Any]


class Batched(Tracer):
    """Stand for a tensor with the places of a map as its first dim, `whole`, which the function does not see."""

    __slots__ = ("level", "whole")
    is_batched = True

    def __init__(self, level: Level, whole: Tracer, key: str | None = None) -> None:
        trace = whole.trace
        super().__init__(trace, key or trace.fresh(), whole.shape[1:], whole.dtype, whole.weak)
        self.level, self.whole = level, whole

    def under(self, key: str, weak: bool) -> Tracer:
        """Return the value under a key."""
        return Batched(self.level, self.whole, key)

    def become(self, other: Tracer) -> None:
        """Stand for another value of this map from now on."""
        if not isinstance(other, Batched) or other.level is not self.level:
            fail(
                "x[...] = y: y is of another mw.vmap than x: x.at[...].set(y) makes a value of both"
            )
        super().become(other)
        self.whole = other.whole

    def __repr__(self) -> str:
        return f"{super().__repr__()} of {self.level.size}"


class Level:
    """Be one map that a program is in: over `size` places.

    compute: computes a primitive on Batched values by its rule. around: the state of gradients where the map begins,
    and again where it goes on within a loop or branch.
    """

    def __init__(self, trace: TraceBuilder, size: int, compute: Compute) -> None:
        """Prepare a map; `active` begins it."""
        self.trace, self.size, self._compute = trace, size, compute
        self._around: list[tuple[int, int]] = []

    @contextmanager
    def active(self) -> Iterator[Level]:
        """Trace inside of the map, the innermost meanwhile."""
        trace = self.trace
        self._around.append((len(trace.tapes), trace.within))
        trace.levels.append(self)
        try:
            yield self
        finally:
            trace.levels.pop()
            self._around.pop()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Trace around the map, as if it were not there."""
        trace = self.trace
        if self not in trace.levels:
            fail(
                "mw.vmap: a value of a mapped function is used outside of it: return it from there"
            )
        before = trace.levels, trace.tapes, trace.within
        count, within = self._around[-1]
        trace.levels = trace.levels[: trace.levels.index(self)]
        trace.tapes, trace.within = trace.tapes[:count], within
        try:
            yield
        finally:
            trace.levels, trace.tapes, trace.within = before

    def refuse_gradient(self, what: str) -> None:
        """Raise CompileError where a gradient inside of the map would have to go through a loop or branch."""
        if len(self.trace.tapes) > self._around[-1][0]:
            fail(
                f"mw.vmap: {what} inside of a gradient inside of the map: mw.grad around mw.vmap is right"
            )

    def compute(
        self, name: str, function: Compute, call: Compute, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Compute a primitive on values of which some may be Batched: by the innermost map among them."""
        found = [v.level for v in tracers((args, kwargs)) if isinstance(v, Batched)]
        if not found:
            return function(*args, **kwargs)
        active = self.trace.levels
        if not all(level in active for level in found):
            fail(
                "mw.vmap: a value of a mapped function is used outside of it: return it from there"
            )
        level = max(found, key=active.index)
        return self._compute(level, name, function, call, args, kwargs)

    def spread(
        self,
        parallel: Compute,
        inputs: Sequence[Tracer],
        maps: Sequence[str],
        shape: tuple[int, ...],
        dtype: DType,
        body: Callable[[Body, list[str]], str],
        weak: bool,
    ) -> Tracer:
        """Add a linalg.generic without reductions for all places of the innermost map among its inputs."""
        trace = self.trace
        batched = [v for v in inputs if isinstance(v, Batched)]
        if trace.tapes and not trace.within:
            for value in batched:
                trace.refuse_unknown(value)
        level = max([v.level for v in batched], key=trace.levels.index)
        own = [level.has(v) for v in inputs]

        def inside(b: Body, ins: list[str]) -> str:
            b.outer += 1
            found = body(b, ins)
            b.outer -= 1
            return found

        with level.outside():
            wholes = [v.whole if isinstance(v, Batched) and o else v for v, o in zip(inputs, own)]
            spread = [_with_place(text, o) for text, o in zip(maps, own)]
            made = parallel(wholes, spread, (level.size, *shape), dtype, inside, weak)
        return Batched(level, made)

    def has(self, value: object) -> bool:
        """Tell whether a value has a place for each of this map."""
        return isinstance(value, Batched) and value.level is self

    def whole(self, value: Any) -> Tracer:
        """Return the tensor of all places; one that is the same for all is repeated."""
        own = tensor(value)
        if isinstance(own, Batched) and own.level is self:
            return own.whole
        with self.outside():
            return _repeated(self.size, own)

    def wholes_outside(self, values: Sequence[Any]) -> list[Tracer]:
        """Return the tensors of all places of several values, where what is traced is outside already."""
        return [
            v.whole if isinstance(v, Batched) and v.level is self else _repeated(self.size, v)
            for v in values
        ]

    def wholes(self, values: Sequence[Any]) -> list[Tracer]:
        """Return the tensors of all places of several values."""
        return [self.whole(v) for v in values]


def _with_place(text: str, reads: bool) -> str:
    """Return an affine map with one more dim in front; reads: it is read along that dim."""
    head, _, results = text.removesuffix(">").partition(" -> ")
    moved = re.sub(r"d(\d+)", lambda m: f"d{int(m[1]) + 1}", results.strip("()"))
    parts = ["d0"] * reads + [moved] * bool(moved)
    return affine_map(len(re.findall(r"d\d+", head)) + 1, tuple(parts))


def _repeated(size: int, value: Any) -> Tracer:
    own = tensor(value)
    return broadcast_to(own, (size, *own.shape))
