"""Let functions change modules of flax.nnx: what a call changes in them is among its results, and is put back.

Modules are Python objects, and JAX traces pure functions. As `nnx.jit` does, the arguments that are modules are taken
apart, all together, so that what they share is there once: into a static description and a tree of arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from meshweave.errors import UsageError


class ModuleCall(NamedTuple):
    """Hold a call with its modules taken apart.

    modules: by position or name. structure: what they are besides arrays. args, kwargs: the call, with trees of arrays
    in the places of the modules.
    """

    modules: Mapping[int | str, Any]
    structure: Hashable
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def key(self) -> Hashable:
        """Return what a pure function is made for."""
        return self.structure, tuple(self.modules)

    def pure(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function of the trees of arrays, which returns those of after the call too."""
        nnx, structure, places = _nnx(), self.structure, tuple(self.modules)

        def called(*args: Any, **kwargs: Any) -> Any:
            given = dict(enumerate(args)) | kwargs
            state = nnx.State({number: given[place] for number, place in enumerate(places)})
            merged = nnx.merge(structure, state)
            given |= dict(zip(places, merged, strict=True))
            returned = fn(*[given[n] for n in range(len(args))], **{k: given[k] for k in kwargs})
            after, changed = nnx.split(merged)
            if after != structure:
                raise UsageError(
                    f"jax.jit: {getattr(fn, '__name__', 'the function')} changes the structure of a module: "
                    "only its arrays may change"
                )
            return returned, [changed.get(n, nnx.State({})) for n in range(len(places))]

        called.__name__ = getattr(fn, "__name__", type(fn).__name__)
        return called

    def put_back(self, changed: Sequence[Any]) -> None:
        """Give the modules the arrays of after the call."""
        nnx = _nnx()
        nnx.update(tuple(self.modules.values()), nnx.State(dict(enumerate(changed))))


def _nnx() -> Any:
    return sys.modules["flax.nnx"]


def module_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> ModuleCall | None:
    """Take the modules among the arguments of a call apart; None where there are none, or no flax."""
    if "flax.nnx" not in sys.modules:
        return None
    nnx = _nnx()
    given: dict[int | str, Any] = dict(enumerate(args)) | dict(kwargs)
    modules = {place: value for place, value in given.items() if isinstance(value, nnx.Pytree)}
    if not modules:
        return None
    structure, state = nnx.split(tuple(modules.values()))
    for number, place in enumerate(modules):
        given[place] = state.get(number, nnx.State({}))
    positional = tuple(given[n] for n in range(len(args)))
    return ModuleCall(modules, structure, positional, {name: given[name] for name in kwargs})
