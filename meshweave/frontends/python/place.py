"""Say where values lie, and what is asked of a part of the program: constrain, hint, kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ContextDecorator

from meshweave.errors import LayoutError, UsageError
from meshweave.frontends.python.builder import (
    STATE,
    HintRegion,
    TimeAxes,
    TraceBuilder,
    current,
    fail,
    quoted,
    where,
)
from meshweave.frontends.python.dtypes import (
    CHOSEN,
    DType,
    DTypeLike,
    as_dtype,
    default_floating,
    float32,
    float64,
)
from meshweave.frontends.python.tape import primitive
from meshweave.frontends.python.tracer import ArrayLike, Tracer, tensor, tracing
from meshweave.hints.fast_paths import Choice
from meshweave.hints.keys import Hint, HintError
from meshweave.layout import Axis, Layout, Mesh
from meshweave.layout.arguments import as_layout
from meshweave.layout.spec import LayoutLike, is_spec


def is_layout(value: object) -> bool:
    """Tell whether a value is one layout (None: any), rather than a container of layouts."""
    return value is None or isinstance(value, str | Layout) or is_spec(value)


def checked(value: LayoutLike, mesh: Mesh, shape: Sequence[int]) -> Layout:
    """Return a layout that fits mesh and shape. Raises LayoutError."""
    try:
        layout = as_layout(value, len(shape))
    except UsageError as error:
        raise LayoutError(error.message) from None
    layout.check(mesh, tuple(shape))
    return layout


def layout_attr(layout: Layout) -> str:
    """Return the layout as an attribute in IR."""
    return f'#dist.layout<"{layout}">'


@primitive
def constrain(x: ArrayLike, layout: LayoutLike, *, backward: LayoutLike | None = None) -> Tracer:
    """Give x a layout (text, `P(...)` or a Layout) from here on; its global value does not change.

    backward: the layout of what flows back to x in a gradient, by default the same. Under `mw.hint(slice="t=4")`
    the layout may name the time axis t too. Raises CompileError, at the line of the call, for what is no layout, or
    does not fit x or the mesh.

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


def _with_time_axes(trace: TraceBuilder) -> Mesh:
    """Return the mesh with the time axes of the slices around; a slice given by its size has a symbolic count."""
    axes, block = list(trace.mesh.axes), trace.block
    while block.parent is not None:
        if block.region is not None:
            known = {axis.name for axis in axes}
            sliced = [axis for axis in block.region.time_axes if axis[0] not in known]
            axes += [Axis(name, count or name.upper()) for name, count in sliced]
        block = block.parent
    return Mesh(*axes)


class hint(AbstractContextManager["hint"]):
    """Ask something of the ops traced inside: `with mw.hint(slice="t=4", order="dfs"):`; hints nest.

    strength: "required", "preferred" or "advisory"; by default that of each key. backward: what is asked of the ops of
    a gradient that come of those inside, by default the same, with {} nothing. The keys are those of the `hint`
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

    def __init__(
        self,
        *,
        strength: str | None = None,
        backward: Mapping[str, str | int] | None = None,
        **hints: str | int,
    ) -> None:
        self._text, self._axes = _said(hints, strength)
        if not self._text:
            raise HintError('hint: nothing is asked for, slice="t=4" for example', where())
        self._back = None if backward is None else _said(backward, strength)
        self._regions: list[tuple[TraceBuilder, HintRegion]] = []

    def __enter__(self) -> hint:
        trace = tracing()
        region = HintRegion(trace, self._text, trace.loc(), self._axes, self._back)
        trace.block.lines.append(region)
        trace.block = region.block
        self._regions.append((trace, region))
        return self

    def __exit__(self, *_: object) -> None:
        trace, region = self._regions.pop()
        region.block.open = False
        assert region.block.parent is not None
        trace.block = region.block.parent


def _said(hints: Mapping[str, str | int], strength: str | None) -> tuple[str, TimeAxes]:
    """Return hints as text in IR, and the time axes of the slices that they ask for."""
    place = where()
    try:
        said = [Hint.make(key, value, strength, place or "") for key, value in hints.items()]
    except HintError as error:
        raise HintError(error.message, place) from None
    form = "{}" if strength is None else f'{{{{value = {{}}, strength = "{strength}"}}}}'
    axes = [(axis.name, axis.count) for h in said if h.key == "slice" for axis in h.parsed]
    return ", ".join(f"{h.key} = {form.format(quoted(h.value))}" for h in said), tuple(axes)


class kernels(AbstractContextManager["kernels"]):
    """Choose the kernels that calls inside may take: `with mw.kernels(flash=False):` or `only=("reference",)`.

    only:     names of the only ones allowed. switches: single ones on or off. An inner context takes precedence over
    the outer one, and `only` ignores the outer one. It holds for this thread, and is part of the key of the cache of
    compiled programs. Around ops of a traced function it holds for those ops only, whoever calls the function.
    Raises UsageError for what is no kernel (`meshweave.hints.fast_paths.KERNELS`).

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
        self._before: list[hint | Choice | None] = []

    def __enter__(self) -> kernels:
        words = [f"-{name}" for name in self._choice.disabled]
        words += [f"+{name}" for name in self._choice.enabled]
        if current() is not None and words:
            region = hint(kernels=" ".join(words))
            self._before.append(region.__enter__())
            return self
        outer = chosen_kernels()
        self._before.append(outer)
        STATE.kernels = self._choice if outer is None else self._choice.within(outer)
        return self

    def __exit__(self, *_: object) -> None:
        before = self._before.pop()
        if isinstance(before, hint):
            before.__exit__()
        else:
            STATE.kernels = before


class default_float(ContextDecorator):
    """Choose the dtype of floats where nothing else says one: `with mw.default_float("float64"):`, or as a decorator.

    dtype: "float64", or "float32", which holds elsewhere. It is that of `mw.zeros` and other creation functions, of
    lists and Python floats that meet no floating array, and of what floating functions make of integers; complex dtypes
    follow. It holds for this thread, and is part of the key of the cache of compiled programs. Raises UsageError for
    another dtype.

    >>> import meshweave as mw
    >>> with mw.default_float("float64"):
    ...     x = mw.asarray([1.5, 2.5])
    >>> x.dtype, mw.asarray([1.5]).dtype
    (dtype('float64'), dtype('float32'))
    """

    def __init__(self, dtype: DTypeLike) -> None:
        self._dtype = as_dtype(dtype)
        if self._dtype not in (float32, float64):
            raise UsageError(f"default_float: {self._dtype!r}, float32 or float64 is right")
        self._before: list[DType] = []

    def __enter__(self) -> default_float:
        if current() is not None:
            fail("default_float: it holds around calls of compiled functions, not inside of them")
        self._before.append(default_floating())
        CHOSEN.floating = self._dtype
        return self

    def __exit__(self, *_: object) -> None:
        CHOSEN.floating = self._before.pop()


def chosen_kernels() -> Choice | None:
    """Return what the `kernels` contexts around this call choose; None if there are none."""
    return STATE.kernels
