"""Derive functions inside of traced ones: values, gradients of scalars, and pullbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from meshweave.frontends.python import tree
from meshweave.frontends.python.builder import TraceBuilder, fail
from meshweave.frontends.python.dtypes import Scalar
from meshweave.frontends.python.functions.create import ones_like, zeros_like
from meshweave.frontends.python.gradients.walk import walk
from meshweave.frontends.python.tape import Tape, alias
from meshweave.frontends.python.tracer import Tracer, is_operand, splat, tensor, tracing


class Followed(NamedTuple):
    """Hold what a function returned while a tape followed some of its arguments.

    leaves, structure: of these arguments. results, form: of what it returned.
    """

    tape: Tape
    leaves: list[Tracer]
    structure: tree.Structure
    results: list[Tracer]
    form: tree.Structure
    aux: Any


def follow(
    name: str,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    argnums: Sequence[int],
    has_aux: bool,
) -> Followed:
    """Call a function, and follow what it computes from the arguments `argnums`.

    Raises CompileError where one of these is not floating, or the function returns no arrays.
    """
    trace = tracing()
    given = list(args)
    chosen = {number: args[number] for number in argnums}
    raw, structure = tree.flatten(tuple(chosen.values()))
    paths = [path for n, a in chosen.items() for path in tree.paths(tree.flatten(a)[1], f"{n}")]
    leaves = [_leaf(name, trace, leaf, path) for leaf, path in zip(raw, paths)]
    for number, value in zip(chosen, tree.unflatten(structure, iter([v.again() for v in leaves]))):
        given[number] = value
    with _taping(trace, leaves) as tape:
        returned = function(*given, **kwargs)
        aux = None
        if has_aux:
            if not isinstance(returned, tuple) or len(returned) != 2:
                fail(
                    f"{name}: has_aux: the function must return two things, the value and what else there is"
                )
            returned, aux = returned
        found, form = tree.flatten(returned)
        results = [tensor(leaf).again() for leaf in found]
    return Followed(tape, leaves, structure, results, form, aux)


def _leaf(name: str, trace: TraceBuilder, leaf: Any, path: str) -> Tracer:
    """Return a leaf of an argument as a value of its own. Raises CompileError where it is not floating."""
    if not is_operand(leaf):
        fail(f"{name}: argument {path} is a {type(leaf).__name__}: gradients are of arrays")
    if isinstance(leaf, float):
        number = splat(trace, (), leaf, trace.weak_float)
        number.weak = True
        return alias(number)
    value = leaf if isinstance(leaf, Tracer) else tensor(leaf)
    if value.dtype.kind not in ("fc" if name == "mw.vjp" else "f"):
        fail(
            f"{name}: argument {path} has dtype {value.dtype!r}: gradients are of floating ones, "
            "mw.astype makes one, argnums chooses others"
        )
    return alias(value)


@contextmanager
def _taping(trace: TraceBuilder, leaves: Sequence[Tracer]) -> Iterator[Tape]:
    tape = Tape(trace, walk, {v.key for v in leaves}, set())
    trace.tapes.append(tape)
    try:
        yield tape
    finally:
        trace.tapes.remove(tape)


def back(followed: Followed, cotangents: Sequence[Tracer]) -> tuple[Any, ...]:
    """Return the cotangents of the arguments that were followed, given those of the results."""
    seeds: dict[str, Tracer] = {}
    for value, g in zip(followed.results, cotangents):
        if value.dtype.kind in "fc":
            seeds[value.key] = seeds[value.key] + g if value.key in seeds else g
    found = walk(followed.tape, seeds, {})
    made = [found[v.key] if v.key in found else zeros_like(v) for v in followed.leaves]
    result: tuple[Any, ...] = tree.unflatten(followed.structure, iter(made))
    return result


def value_and_grad(
    name: str,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    argnums: int | Sequence[int],
    has_aux: bool,
) -> tuple[Any, Any]:
    """Return the value of a function (with `has_aux` also what else it returns), and its gradient."""
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    followed = follow(name, function, args, kwargs, _checked(name, numbers, len(args)), has_aux)
    if (
        followed.form != tree.LEAF
        or followed.results[0].shape
        or followed.results[0].dtype.kind != "f"
    ):
        what = ", ".join(repr(v) for v in followed.results) or "nothing"
        fail(
            f"{name}: the function returns {what}: one floating scalar is right (mw.sum, mw.mean; mw.vjp takes all)"
        )
    (value,) = followed.results
    slopes = back(followed, [ones_like(value)])
    gradient = slopes[0] if isinstance(argnums, int) else slopes
    return ((value, followed.aux) if has_aux else value), gradient


def _checked(name: str, argnums: Sequence[int], count: int) -> list[int]:
    for number in argnums:
        if not isinstance(number, int) or not -count <= number < count:
            fail(f"{name}: argnums {number!r}: the call has {count} positional arguments")
    chosen = [number % count for number in argnums]
    if len(set(chosen)) < len(chosen):
        fail(f"{name}: argnums {tuple(argnums)!r}: an argument is there twice, once is right")
    return chosen


def vjp(
    function: Callable[..., Any], primals: Sequence[Any], has_aux: bool
) -> tuple[Any, Callable[[Any], tuple[Any, ...]], Any]:
    """Return what a function returns, its pullback, and what else it returns."""
    followed = follow("mw.vjp", function, primals, {}, range(len(primals)), has_aux)

    def pullback(cotangents: Any) -> tuple[Any, ...]:
        leaves, form = tree.flatten(cotangents)
        if form != followed.form:
            count = len(followed.results)
            fail(
                f"mw.vjp: {len(leaves)} cotangents, {count} in the structure of the result are right"
            )
        values = [_like(g, v) for g, v in zip(leaves, followed.results)]
        return back(followed, values)

    results = [v.again() for v in followed.results]
    return tree.unflatten(followed.form, iter(results)), pullback, followed.aux


def _like(g: Any, value: Tracer) -> Tracer:
    """Return a cotangent as a tensor. Raises CompileError unless it has the shape and dtype of the value."""
    if isinstance(g, Scalar):
        return tensor(g, value.dtype) if not value.shape else zeros_like(value) + g
    found = tensor(g)
    if (found.shape, found.dtype) != (value.shape, value.dtype):
        fail(f"mw.vjp: a cotangent is {found!r}, that of {value!r} is like it")
    return found
