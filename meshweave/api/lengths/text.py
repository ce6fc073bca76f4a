"""Give the open sizes of a program's text, `tensor<?x64xf32>`, bounds: one program for all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from meshweave.api.lengths.lowered import one_of_all
from meshweave.errors import CompileError, UsageError
from meshweave.files.sources import Source
from meshweave.layout.lengths import Dim, ShapeDtype, Sizes

Place: TypeAlias = tuple[int, int]
"""The number of an argument, and of its dim."""
_OPEN = re.compile(r"tensor<[\dx]*\?")
_OPTION = re.compile(r"(\w+)=(?:(\d+)\.\.)?(\d+)(?:@(\d+\.\d+(?:,\d+\.\d+)*))?", re.ASCII)


@dataclass(frozen=True)
class BoundedSize:
    """Hold a size that each call chooses, and the places of a program that have it; none: those of its name."""

    dim: Dim
    places: tuple[Place, ...] = ()

    @staticmethod
    def parse(text: str) -> BoundedSize:
        """Read "n=4096", "n=4..4096" from 4 on, or "n=4096@0.0,2.1" for dim 0 of argument 0 and dim 1 of argument 2.

        Raises UsageError for other text.
        """
        found = _OPTION.fullmatch(text)
        if found is None:
            raise UsageError(
                f'--dim {text}: a name and its bound is right, "n=4096", and places after @, "n=4096@0.0,1.0"'
            )
        pairs = [place.split(".") for place in (found[4] or "").split(",") if place]
        dim = Dim(found[1], int(found[3]), int(found[2] or 1))
        return BoundedSize(dim, tuple((int(a), int(d)) for a, d in pairs))


def bounded(source: Source, sizes: Sequence[BoundedSize]) -> Source:
    """Return the program for all sizes up to the bounds. What has no open sizes is returned as it is.

    Raises UsageError where it is not clear which open size is which, and CompileError, at the line at fault, for what
    cannot have such a size.
    """
    from meshweave.dialects import context
    from meshweave.dialects.alias import module_text
    from meshweave.frontends.open_sizes import OpenArgument, load_at, open_arguments

    if not sizes and not _OPEN.search(source.text):
        return source
    with context(unregistered=True) as ctx:
        arguments: list[OpenArgument] = open_arguments(source.text, ctx, source.name)
    opened = {(k, d): a.names[d] for k, a in enumerate(arguments) for d in a.open}
    if not sizes and not opened:
        return source
    named = _named(opened, sizes, [argument.where for argument in arguments])
    shapes = [
        tuple(named[k, d] if size is None else size for d, size in enumerate(argument.shape))
        for k, argument in enumerate(arguments)
    ]
    leaves = [ShapeDtype(shape, "f32") for shape in shapes]  # of which only shapes count here

    def text_at(chosen: Sizes) -> str:
        given = [[chosen[s.name] if isinstance(s, Dim) else s for s in shape] for shape in shapes]
        ctx = context(unregistered=True)
        with ctx:
            return module_text(load_at(source.text, ctx, source.name, given), debuginfo=True)

    dims = tuple(dict.fromkeys(named.values()))
    made = one_of_all(leaves, dims, text_at, lambda text: text)
    return replace(source, text=made.text)


def _named(
    opened: dict[Place, str], sizes: Sequence[BoundedSize], where: Sequence[str]
) -> dict[Place, Dim]:
    """Return the dim of each open size. where: the place of each argument in the source."""
    found: dict[Place, Dim] = {}
    only = sizes[0] if len(sizes) == 1 and not any(opened.values()) else None
    for size in sizes:
        name, alone = size.dim.name, size is only and not size.places
        places = size.places or [p for p, said in opened.items() if said == name or alone]
        for place in places:
            if place not in opened:
                raise UsageError(
                    f"--dim {name}: argument {place[0]} has no ? at dim {place[1]}; {_places(opened)}"
                )
            if found.setdefault(place, size.dim) != size.dim:
                raise UsageError(
                    f"--dim {name}: {_place(place)} is {found[place].name} already: one name is right"
                )
        if not places:
            raise UsageError(
                f'--dim {name}: no ? is called so: say which, "{name}={size.dim.max}@0.0"; {_places(opened)}'
            )
    left = {place: said for place, said in opened.items() if place not in found}
    if left:
        place, said = next(iter(left.items()))
        raise CompileError(
            f"{_place(place)} is open{f' ({said})' if said else ''}: a bound is right, "
            f"--dim {said or 'n'}=4096{'' if said or not sizes else f'@{place[0]}.{place[1]}'}",
            where[place[0]],
        )
    return found


def _place(place: Place) -> str:
    return f"dim {place[1]} of argument {place[0]}"


def _places(opened: dict[Place, str]) -> str:
    said = [f"{a}.{d}{f' ({name})' if name else ''}" for (a, d), name in opened.items()]
    return f"it has {', '.join(said)}" if said else "the program has none"
