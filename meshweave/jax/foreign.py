"""Let JAX call compiled programs under `jax.jit`, `jax.grad` and `jax.vmap`, as functions of another language.

A call is a `jax.pure_callback`. Its gradient is a second compiled program, made by `jax.vjp` of the original function
from the arguments alone: the forward pass is computed again in it. Under `jax.vmap` the function is traced again, for
all of the batch at once. Gradients of gradients, and batches of either, come of the same three.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from meshweave.jax.arrays import elements, weakly_typed
from meshweave.jax.placements import PyTree, batched_sharding
from meshweave.jax.program import JaxProgram
from meshweave.jax.tracing import Leaf, is_value

JaxValue: TypeAlias = Any  # a jax.Array, or what stands for one while JAX traces
Compile: TypeAlias = Callable[
    [Callable[..., PyTree], Sequence[PyTree], Sequence[JaxValue]], JaxProgram
]
"""Compiles a function, with in_shardings, for arguments of these kinds."""


class ForeignFunction:
    """Call a function of arrays compiled, where JAX traces: it returns the leaves of its results that are arrays.

    shardings: what is asked of each argument.
    """

    def __init__(
        self,
        jax: ModuleType,
        fn: Callable[..., PyTree],
        shardings: Sequence[PyTree],
        compiled: Compile,
    ) -> None:
        self._jax, self._function, self._shardings, self._compile = jax, fn, shardings, compiled
        self._programs: dict[Any, JaxProgram] = {}
        self._batched: dict[tuple[bool, ...], ForeignFunction] = {}
        self._pulled: dict[Any, ForeignFunction] = {}
        batchable = jax.custom_batching.custom_vmap(self._called)
        batchable.def_vmap(self._over_batch)
        self._differentiable = jax.custom_vjp(lambda *arrays: batchable(*arrays))
        self._differentiable.defvjp(
            lambda *arrays: (self._differentiable(*arrays), arrays), self._pull
        )

    def __call__(self, *arrays: JaxValue) -> list[JaxValue]:
        """Call it; the program is compiled at once, not when JAX runs."""
        return list(self._differentiable(*arrays))

    def program(self, arrays: Sequence[JaxValue]) -> JaxProgram:
        """Return the program for arguments like these."""
        key = tuple([(a.shape, a.dtype, getattr(a, "weak_type", False)) for a in arrays])
        found = self._programs.get(key)
        if found is None:
            shapes = [self._jax.ShapeDtypeStruct(s, d, weak_type=w) for s, d, w in key]
            found = self._compile(self._function, self._shardings, shapes)
            self._programs[key] = found
        return found

    def _called(self, *arrays: JaxValue) -> list[JaxValue]:
        jax, program = self._jax, self.program(arrays)
        made = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in program.outputs]
        data = [jax.random.key_data(a) if _is_key(jax, a) else a for a in arrays]

        def run(*given: Any) -> list[np.ndarray[Any, Any]]:
            results = program.run([np.asarray(value) for value in given], keys_are_data=True)
            return [elements(array) for array in results]

        found = jax.pure_callback(run, made, *data)
        return [_as(jax, value, leaf) for value, leaf in zip(found, program.outputs, strict=True)]

    def _over_batch(
        self, axis_size: int, batched: Sequence[bool], *arrays: JaxValue
    ) -> tuple[list[JaxValue], list[bool]]:
        """Call it for all of a batch: the rule of `jax.vmap`."""
        jax, which = self._jax, tuple(batched)
        found = self._batched.get(which)
        if found is None:
            axes = [0 if one else None for one in which]
            shardings = [
                batched_sharding(jax, asked, array.ndim - 1) if one else asked
                for asked, one, array in zip(self._shardings, which, arrays, strict=True)
            ]
            whole = jax.vmap(self._arrays_of, in_axes=axes)
            found = ForeignFunction(jax, whole, shardings, self._compile)
            self._batched[which] = found
        results = found(*arrays)
        return results, [True] * len(results)

    def _arrays_of(self, *arrays: JaxValue) -> list[JaxValue]:
        """Return the results of the original function that are arrays."""
        leaves = self._jax.tree.leaves(self._function(*arrays))
        return [leaf for leaf in leaves if is_value(leaf)]

    def _pull(
        self, arrays: Sequence[JaxValue], given: Sequence[JaxValue]
    ) -> tuple[JaxValue | None, ...]:
        """Return the gradients of the arguments, of which those that are no floats have none."""
        jax = self._jax
        outputs = self.program(arrays).outputs
        wanted = tuple(n for n, a in enumerate(arrays) if _is_float(jax, a))
        known = tuple(
            n for n, leaf in enumerate(outputs) if leaf.key is None and _is_float(jax, leaf)
        )
        found = dict.fromkeys(range(len(arrays)))
        if wanted and known:
            pulled = self._pulled.get((wanted, known))
            if pulled is None:
                pulled = self._pulled[wanted, known] = self._backward(len(arrays), wanted, known)
            gradients = pulled(*arrays, *(given[n] for n in known))
            found.update(zip(wanted, gradients, strict=True))
        return tuple(found.values())

    def _backward(self, count: int, wanted: Sequence[int], known: Sequence[int]) -> ForeignFunction:
        """Return the function of the arguments and of the results' cotangents that `jax.vjp` makes."""

        def backward(*given: JaxValue) -> list[JaxValue]:
            arrays, cotangents = list(given[:count]), list(given[count:])

            def of(*floats: JaxValue) -> list[JaxValue]:
                for number, value in zip(wanted, floats, strict=True):
                    arrays[number] = value
                results = self._arrays_of(*arrays)
                return [results[n] for n in known]

            _, pull = self._jax.vjp(of, *(arrays[n] for n in wanted))
            return list(pull(cotangents))

        backward.__name__ = f"backward_{getattr(self._function, '__name__', 'function')}"
        shardings = [*self._shardings, *(None for _ in known)]
        return ForeignFunction(self._jax, backward, shardings, self._compile)


def _is_key(jax: ModuleType, value: JaxValue) -> bool:
    return bool(jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key))


def _is_float(jax: ModuleType, value: JaxValue) -> bool:
    return bool(jax.numpy.issubdtype(value.dtype, jax.numpy.inexact))


def _as(jax: ModuleType, value: JaxValue, leaf: Leaf) -> JaxValue:
    """Return a result as JAX's types are: a PRNG key, or weakly typed."""
    if leaf.key is not None:
        return jax.random.wrap_key_data(value, impl=leaf.key.impl)
    return weakly_typed(value) if leaf.weak else value
