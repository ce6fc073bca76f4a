"""Say where the arguments of a compiled function lie, by what `in_layouts` says of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshweave.api.signature import argument_structures
from meshweave.errors import MeshweaveError, UsageError
from meshweave.frontends.python import tree
from meshweave.frontends.python.place import is_layout
from meshweave.frontends.python.program import AUTO, ArgumentSpec, spread_layouts
from meshweave.layout import Layout, Mesh


@dataclass(frozen=True)
class InLayouts:
    """Hold what a function was told of its arguments.

    said: a layout, or a pytree of layouts. parameters: of the function. names: of those that are arrays, not static.
    where: the function is defined.
    """

    said: object
    parameters: Mapping[str, inspect.Parameter]
    names: Sequence[str]
    where: str

    def of(
        self, structure: tree.Structure, specs: Sequence[ArgumentSpec], mesh: Mesh
    ) -> list[Layout | None]:
        """Return where each leaf of the arguments lies: what in_layouts says, else what an Array has."""
        shapes = [spec.shape for spec in specs]
        args, kwargs = argument_structures(structure)
        given: Any = self.said
        own = [None if mesh.ranks_to_arrange else spec.layout for spec in specs]
        if given is None:
            return list(own)
        if not is_layout(given) and not isinstance(given, dict | tuple | list):
            raise UsageError(
                f"in_layouts is {given!r:.40}: a layout, or one for each argument is right",
                self.where,
            )
        if len(self.names) < len(self.parameters) or kwargs.children or isinstance(given, dict):
            given = self._by_name(given, args, kwargs)
        elif is_layout(given):
            given = ((given,) * len(args.children), {})
        else:
            count = len(args.children)
            left_out = self._left_out(list(self.parameters)[count : len(given)])
            given = tuple(given[:count] if left_out else given), {}
        try:
            found = spread_layouts(given, structure, shapes, mesh, "in_layouts")
        except MeshweaveError as error:
            raise error.told(self._named(error.message), self.where) from None
        is_open = tree.broadcast_prefix(given, structure, is_layout, "in_layouts")
        return [
            None if said == AUTO else layout if one is None else one
            for one, layout, said in zip(found, own, is_open)
        ]

    def _left_out(self, names: Sequence[str]) -> bool:
        """Tell whether all of these arguments have defaults."""
        return bool(names) and all(
            self.parameters[name].default is not inspect.Parameter.empty for name in names
        )

    def _named(self, message: str) -> str:
        """Put the argument's name and number into an error about in_layouts, whose pytree is (positional, named)."""
        names = self.names

        def place(found: re.Match[str]) -> str:
            by_name, number, rest = found[1], found[2], found[3]
            if number is None:
                number = names.index(by_name) if by_name in names else by_name
            name = by_name or (names[int(number)] if int(number) < len(names) else "")
            return f"in_layouts[{number}]{rest}" + (f" (argument {name}{rest})" if name else "")

        spread = r"in_layouts(?:\[1\]\['(\w+)'\]|\[0\]\[(\d+)\])([^:]*)"
        return re.sub(spread, place, message, count=1).replace("in_layouts[0]:", "in_layouts:", 1)

    def _by_name(
        self, given: Any, args: tree.Container, kwargs: tree.Container
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return in_layouts for the positional and the named arguments of a call that names some."""
        names = self.names
        if isinstance(given, dict):
            unknown = [name for name in given if name not in names]
            if unknown:
                raise UsageError(
                    f"in_layouts: {unknown} are no arguments: {', '.join(names)} are", self.where
                )
            given = tuple(given.get(name) for name in names)
        elif is_layout(given):
            given = (given,) * len(names)
        if len(given) != len(names):
            raise UsageError(
                f"in_layouts: {len(given)} entries, {len(names)} are right ({', '.join(names)})",
                self.where,
            )
        named = dict(zip(names, given))
        return tuple(given[: len(args.children)]), {
            name: named.get(name) for name in kwargs.keys or ()
        }


def leaves_open(given: object) -> bool:
    """Tell whether layouts, or a pytree of some, leave one to be chosen."""
    if isinstance(given, dict | tuple | list):
        return any(map(leaves_open, given.values() if isinstance(given, dict) else given))
    return isinstance(given, str) and given == AUTO
