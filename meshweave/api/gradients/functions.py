"""Define grad, value_and_grad and vjp.

@mw.jit(mesh="dp=2", in_layouts=(None, "[dp, _]"))
def step(w, x):
    return w - 0.1 * mw.grad(loss)(w, x)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from meshweave.api.callables.methods import Method
from meshweave.api.jit import Jitted, jit
from meshweave.errors import UsageError
from meshweave.frontends.python import tree
from meshweave.frontends.python.builder import current
from meshweave.frontends.python.gradients import transform
from meshweave.layout import Mesh
from meshweave.runtime.arrays.array import Array

Argnums = int | Sequence[int]


def grad(
    function: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return the function that computes the gradient of `function`, which returns one floating scalar.

    argnums: which positional arguments the gradient is of, a number or several; each is a pytree of floating arrays, as
    is its gradient. has_aux: `function` returns a pair, of which the second is no part of the gradient: a pair of the
    gradient and it is returned. Outside of traced functions the gradient is compiled for the mesh of the arrays.

    Raises CompileError, at the line at fault, where an argument is not floating, the result no scalar, or the function
    has no derivative.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> slope = mw.grad(lambda x: mw.sum(x**2))
    >>> np.asarray(slope(np.array([1.0, 2.0], np.float32))).tolist()
    [2.0, 4.0]
    """

    def derived(*args: Any, **kwargs: Any) -> Any:
        value, slopes = transform.value_and_grad(
            "mw.grad", function, args, kwargs, argnums, has_aux
        )
        return (slopes, value[1]) if has_aux else slopes

    return either("mw.grad", function, derived)


def value_and_grad(
    function: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return the function that computes the value of `function` and its gradient, as `grad` does.

    argnums: which positional arguments the gradient is of. has_aux: the value is the pair that `function` returns.
    Raises CompileError where `grad` does.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> both = mw.value_and_grad(lambda x: mw.sum(x**2))
    >>> value, slope = both(np.array([1.0, 2.0], np.float32))
    >>> float(value), np.asarray(slope).tolist()
    (5.0, [2.0, 4.0])
    """

    def derived(*args: Any, **kwargs: Any) -> Any:
        return transform.value_and_grad(
            "mw.value_and_grad", function, args, kwargs, argnums, has_aux
        )

    return either("mw.value_and_grad", function, derived)


def vjp(function: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Return what `function` returns for `primals`, and its pullback.

    primals: pytrees of floating or complex arrays. has_aux: `function` returns a pair, of which the second is returned
    too, behind the pullback.

    The pullback takes cotangents, a pytree like the result, and returns a tuple with a cotangent for each primal.
    Inside a traced function it uses what the function has computed; outside, where each call is a program of its own,
    it computes the function again. Raises CompileError where `grad` does, and for cotangents that do not fit.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> y, back = mw.vjp(lambda x: x**2, np.array([1.0, 2.0], np.float32))
    >>> np.asarray(y).tolist(), np.asarray(back(np.array([1.0, 10.0], np.float32))[0]).tolist()
    ([1.0, 4.0], [2.0, 40.0])
    """
    if current() is not None:
        made, back, aux = transform.vjp(function, primals, has_aux)
        return (made, back, aux) if has_aux else (made, back)

    def forward(*args: Any) -> Any:
        value, _, aux = transform.vjp(function, args, has_aux)
        return (value, aux) if has_aux else (value,)

    def backward(args: Any, cotangents: Any) -> Any:
        return transform.vjp(function, args, has_aux)[1](cotangents)

    once = either("mw.vjp", function, forward)
    value, *rest = once(*primals)
    again = jit(backward, mesh=mesh_of("mw.vjp", function, primals), engine=_engine(function))
    return value, lambda cotangents: again(primals, cotangents), *rest


def either(
    name: str, function: Callable[..., Any], derived: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function that is traced inside of traced functions, and compiled outside, once for each mesh."""
    named = wraps(function, updated=())  # without the attributes of what `jit` made
    derived = named(derived)
    compiled: dict[Mesh, Jitted] = {}

    @named
    def call(*args: Any, **kwargs: Any) -> Any:
        if current() is not None:
            return derived(*args, **kwargs)
        mesh = mesh_of(name, function, (args, kwargs))
        if mesh not in compiled:
            compiled[mesh] = jit(derived, mesh=mesh, engine=_engine(function))
        return compiled[mesh](*args, **kwargs)

    return call


def mesh_of(name: str, function: Callable[..., Any], values: Any) -> Mesh:
    """Return the mesh of a function that is compiled for one, else that of the Arrays among its arguments.

    Raises UsageError for two meshes of several ranks.
    """
    made = _compiled(function)
    if made is not None:
        return made.mesh
    leaves, _ = tree.flatten(values, lambda v: isinstance(v, Array))
    several = list(dict.fromkeys(v.mesh for v in leaves if isinstance(v, Array) and v.mesh.axes))
    if len(several) > 1:
        raise UsageError(
            f"{name}: arrays on the meshes ({several[0]}) and ({several[1]}): "
            "mw.redistribute or x.to_device(mesh) takes one to the other"
        )
    return several[0] if several else Mesh()


def _compiled(function: Callable[..., Any]) -> Jitted | None:
    """Return what `jit` made of a function or method, None for any other."""
    made = function.__wrapped__ if isinstance(function, Method) else function
    return made if isinstance(made, Jitted) else None


def _engine(function: Callable[..., Any]) -> str:
    made = _compiled(function)
    return "local" if made is None else made.engine
