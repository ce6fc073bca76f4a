"""Tell the static arguments of a call from the others, as `jax.jit` does: by number, by name, or by both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from meshweave.api.signature import told_apart
from meshweave.errors import UsageError

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Chosen(NamedTuple):
    """Name arguments: by number for calls that give them by position, by name for those that do by name."""

    numbers: tuple[int, ...]
    names: tuple[str, ...]


class SplitCall(NamedTuple):
    """Hold a call without its static arguments. key: of their values; `bound` puts them back."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    key: tuple[Hashable, ...]
    positional: Mapping[int, Any]
    named: Mapping[str, Any]

    def bound(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function of the other arguments alone."""
        if not self.positional and not self.named:
            return fn

        def called(*args: Any, **kwargs: Any) -> Any:
            others, count = iter(args), len(args) + len(self.positional)
            whole = [
                self.positional[n] if n in self.positional else next(others) for n in range(count)
            ]
            return fn(*whole, **kwargs, **self.named)

        called.__name__ = getattr(fn, "__name__", type(fn).__name__)
        called.__signature__ = self._signature(fn)  # type: ignore[attr-defined]
        return called

    def _signature(self, fn: Callable[..., Any]) -> inspect.Signature | None:
        signature = signature_of(fn)
        if signature is None:
            return None
        left = [
            p
            for n, p in enumerate(signature.parameters.values())
            if n not in self.positional and p.name not in self.named
        ]
        return inspect.Signature([p.replace(default=inspect.Parameter.empty) for p in left])


def signature_of(fn: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function, None where Python knows none."""
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None


def chosen(
    fn: Callable[..., Any], what: str, numbers: int | Iterable[int], names: str | Iterable[str]
) -> Chosen:
    """Read `static_argnums` and `static_argnames`, or those of donations: each says what the other does not.

    what: "static" or "donate". Raises UsageError for what is no argument.
    """
    by_number = _as_tuple(numbers, int, f"{what}_argnums", "a number or several")
    by_name = _as_tuple(names, str, f"{what}_argnames", "a name or several")
    signature = signature_of(fn)
    if signature is None:
        return Chosen(by_number, by_name)
    parameters = list(signature.parameters.values())
    positional = [p.name for p in parameters if p.kind in _POSITIONAL]
    known = [p.name for p in parameters]
    takes_any = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    takes_named = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    count = len(positional)
    for number in by_number:
        if not -count <= number < count and not takes_any:
            raise UsageError(
                f"jax.jit: {what}_argnums has {number}, the function has {count} arguments by position"
            )
    for name in by_name:
        if name not in known and not takes_named:
            raise UsageError(
                f"jax.jit: {what}_argnames has {name!r}, the function's arguments are {', '.join(known)}"
            )
    by_number = tuple(n if n >= 0 else n + count for n in by_number)
    if by_number and not by_name:
        by_name = tuple(positional[n] for n in by_number if n < count)
    elif by_name and not by_number:
        by_number = tuple(positional.index(name) for name in by_name if name in positional)
    return Chosen(by_number, by_name)


def _as_tuple(given: Any, kind: type, what: str, right: str) -> tuple[Any, ...]:
    found = () if given is None else (given,)
    if isinstance(given, Iterable) and not isinstance(given, str):
        found = tuple(given)
    if not all(isinstance(one, kind) and not isinstance(one, bool) for one in found):
        raise UsageError(f"jax.jit: {what} is {given!r:.40}: {right} is right")
    return found


def split(static: Chosen, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SplitCall:
    """Take the static arguments out of a call. Raises UsageError for one that is not hashable."""
    if not static.numbers and not static.names:
        return SplitCall(tuple(args), dict(kwargs), (), {}, {})
    positional = {n: args[n] for n in static.numbers if n < len(args)}
    named = {name: kwargs[name] for name in static.names if name in kwargs}
    key = []
    for who, value in (*positional.items(), *named.items()):
        try:
            hash(value)
        except TypeError:
            raise UsageError(
                f"jax.jit: the static argument {who} is a {type(value).__name__}, which has no hash: "
                "a tuple, say, is right"
            ) from None
        key.append((who, told_apart(value)))
    left = tuple(value for n, value in enumerate(args) if n not in positional)
    others = {name: value for name, value in kwargs.items() if name not in named}
    return SplitCall(left, others, tuple(key), positional, named)
