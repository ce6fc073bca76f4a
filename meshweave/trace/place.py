"""Where values lie, and what the programmer asks of a part of the program: constrain, redistribute, hint, kernels."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from meshweave.errors import LayoutError, UsageError
from meshweave.fast_paths import Choice
from meshweave.hints import Hint, HintError
from meshweave.layout import Axis, Layout, Mesh
from meshweave.layout.spec import P
from meshweave.runtime.array import as_layout
from meshweave.trace.builder import Region, Trace, current, fail, quoted, where
from meshweave.trace.tracer import Tracer, tensor, tracing


def is_layout(value: Any) -> bool:
    """Does it stand for one layout (None: for any), rather than for a container of such?"""
    return (
        value is None
        or isinstance(value, str | Layout | P)
        or type(value).__name__ == "PartitionSpec"
    )


def checked(value: Any, mesh: Mesh, shape: Sequence[int]) -> Layout:
    """A layout that fits mesh and shape. Raises LayoutError."""
    try:
        layout = as_layout(value, len(shape))
    except UsageError as error:
        raise LayoutError(error.message) from None
    layout.check(mesh, tuple(shape))
    return layout


def layout_attr(layout: Layout) -> str:
    """The layout as an attribute in IR."""
    return f'#dist.layout<"{layout}">'


def constrain(x: Any, layout: Any) -> Tracer:
    """x, which from here on lies as `layout` says (text, `P(...)` or a Layout); its global value does not change.

    Under `mw.hint(slice="t=4")` the layout may name the time axis t too. Raises CompileError, at the line of
    the call, for what is no layout, or does not fit x or the mesh.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> f = mw.jit(lambda x: mw.constrain(x * 2, "[_, x]"), mesh="x=2", in_layouts="[x, _]")
    >>> f(np.ones((4, 4), np.float32)).layout
    Layout.parse("[_, x]")
    """
    value, trace = tensor(x), tracing(x)
    try:
        found = checked(layout, _with_time_axes(trace), value.shape)
    except LayoutError as error:
        fail(f"constrain: {error.message}")
    name = trace.let(
        f'"dist.constrain"({trace.name(value)}) {{layout = {layout_attr(found)}}} '
        f": ({value.type}) -> {value.type}"
    )
    return Tracer(trace, name, value.shape, value.dtype)


def _with_time_axes(trace: Trace) -> Mesh:
    """The mesh and the axes of the slices around; one that is given by its size has a symbol for its count."""
    axes, block = list(trace.mesh.axes), trace.block
    while block.parent is not None:
        if block.region is not None:
            known = {axis.name for axis in axes}
            sliced = [axis for axis in block.region.time_axes if axis[0] not in known]
            axes += [Axis(name, count or name.upper()) for name, count in sliced]
        block = block.parent
    return Mesh(*axes)


def redistribute(x: Any, layout: Any, engine: str = "local") -> Any:
    """The same global value in another layout: of an Array a new Array, moved by `engine`, at once; inside a traced
    function a value of its program, as `constrain`.

    x: an Array, or a traced value. layout: text, `P(...)` or a Layout.
    Raises LayoutError (inside a traced function CompileError, at the line of the call) for a layout that does not fit
    x or its mesh, UsageError for an x of another kind.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> rows = mw.Array.from_numpy(np.arange(8).reshape(2, 4), mesh="x=2", layout="[x, _]")
    >>> mw.redistribute(rows, "[_, x]").shards[1].tolist()
    [[2, 3], [6, 7]]
    """
    if isinstance(x, Tracer):
        return constrain(x, layout)
    from meshweave.redistribution import redistribute as move

    return move(x, layout, engine=engine)


class hint(AbstractContextManager["hint"]):
    """`with mw.hint(slice="t=4", order="dfs"):` asks something of the ops traced inside; hints nest.

    strength: "required", "preferred" or "advisory"; by default that of each key. The keys are those of the `hint`
    dialect (slice, order, width, peak_bytes, ...), their values texts or numbers.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> @mw.jit
    ... def mlp(x, w):
    ...     with mw.hint(slice="t=4", order="dfs"):
    ...         return mw.relu(x @ w) @ w.T
    >>> y = mlp(np.ones((8, 4), np.float32), np.ones((4, 16), np.float32))
    >>> "honoured" in mlp.explain()
    True
    """

    def __init__(self, *, strength: str | None = None, **hints: str | int) -> None:
        place = where()
        try:
            said = [Hint.make(key, value, strength, place or "") for key, value in hints.items()]
        except HintError as error:
            raise HintError(error.message, place) from None
        if not said:
            raise HintError('hint: nothing is asked for, slice="t=4" for example', place)
        self._text = ", ".join(f"{h.key} = {_attribute(h, strength)}" for h in said)
        self._axes = tuple(
            (axis.name, axis.count) for h in said if h.key == "slice" for axis in h.parsed
        )
        self._regions: list[tuple[Trace, Region]] = []

    def __enter__(self) -> hint:
        trace = tracing()
        region = Region(trace, self._text, trace.loc(), self._axes)
        trace.block.lines.append(region)
        trace.block = region.block
        self._regions.append((trace, region))
        return self

    def __exit__(self, *_: object) -> None:
        trace, region = self._regions.pop()
        region.block.open = False
        assert region.block.parent is not None
        trace.block = region.block.parent


def _attribute(said: Hint, strength: str | None) -> str:
    value = quoted(said.value)
    return value if strength is None else f'{{value = {value}, strength = "{strength}"}}'


_state = threading.local()


class kernels(AbstractContextManager["kernels"]):
    """`with mw.kernels(only=("reference",)):` or `mw.kernels(flash=False)`: which kernels calls inside may take.

    only:     names of the only ones allowed. switches: single ones on or off. An inner context has precedence over the
    outer one, and one that says `only` starts anew. It holds for this thread, and is part of what compiled calls are
    cached by. Around ops of a traced function it switches for those ops only, whoever calls it.
    Raises UsageError for what is no kernel (`meshweave.fast_paths.KERNELS`).

    >>> import numpy as np
    >>> import meshweave as mw
    >>> f = mw.jit(lambda x: mw.exp(x))
    >>> x = np.zeros(4, np.float32)
    >>> y = f(x)
    >>> with mw.kernels(only=("reference",)):
    ...     z = f(x)
    >>> f.cache_info().size
    2
    """

    def __init__(self, only: Sequence[str] | None = None, **switches: bool) -> None:
        if isinstance(only, str) or not all(isinstance(name, str) for name in only or ()):
            raise UsageError(f'kernels: only={only!r}, names are right: only=("reference",)')
        for name, value in switches.items():
            if not isinstance(value, bool):
                raise UsageError(f"kernels: {name}={value!r}, True or False is right")
        if only is None and not switches:
            raise UsageError('kernels: nothing is chosen, only=("reference",) for example')
        self._choice = Choice.of(only, switches)
        self._before: list[Any] = []

    def __enter__(self) -> kernels:
        words = [f"-{name}" for name in self._choice.disabled]
        words += [f"+{name}" for name in self._choice.enabled]
        if current() is not None and words:
            region = hint(kernels=" ".join(words))
            self._before.append(region.__enter__())
            return self
        outer = chosen_kernels()
        self._before.append(outer)
        _state.kernels = self._choice if outer is None else self._choice.within(outer)
        return self

    def __exit__(self, *_: object) -> None:
        before = self._before.pop()
        if isinstance(before, hint):
            before.__exit__()
        else:
            _state.kernels = before


def chosen_kernels() -> Choice | None:
    """What the contexts around this call choose; None where there are none."""
    found: Choice | None = getattr(_state, "kernels", None)
    return found
