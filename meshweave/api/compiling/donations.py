"""Read which arguments of a call are donated: their buffers may become those of results."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from meshweave.errors import UsageError

Donations: TypeAlias = str | int | Sequence[str | int] | Mapping[str | int, str]
"""Arguments that may be donated: names or positions, or a dict of these with strengths."""
_STRENGTHS = ("preferred", "required")


def donated_names(
    given: Donations, names: Sequence[str], static: Collection[str] = ()
) -> dict[str, str]:
    """Return the names of the arguments that are donated, with their strengths.

    Raises UsageError for what is no argument, or no array.
    """
    found = {}
    for who, strength in _with_strengths(given).items():
        known = isinstance(who, str) and who in names
        if isinstance(who, int) and not isinstance(who, bool) and 0 <= who < len(names):
            who, known = names[who], True
        if not known or who in static:
            right = [name for name in names if name not in static]
            raise UsageError(
                f"donate: {who!r:.40} is no argument that is an array: {', '.join(right)} are"
            )
        found[str(who)] = strength
    return found


def donated_numbers(given: Donations) -> dict[int, str]:
    """Return the numbers of the donated arguments, with their strengths. Raises UsageError for what is no number."""
    found = {}
    for who, strength in _with_strengths(given).items():
        if not isinstance(who, int) or isinstance(who, bool) or who < 0:
            raise UsageError(f"donate: {who!r:.40} is no number of an argument: 0, 1, .. are right")
        found[who] = strength
    return found


def _with_strengths(given: Donations) -> dict[str | int, str]:
    """Return what is donated, by name or number, with a strength for each."""
    single = [given] if isinstance(given, str | int) else given
    asked = dict(given) if isinstance(given, Mapping) else dict.fromkeys(single, _STRENGTHS[0])
    for who, strength in asked.items():
        if strength not in _STRENGTHS:
            raise UsageError(
                f"donate: {who} is {strength!r:.40}: {' or '.join(_STRENGTHS)} is right"
            )
    return asked


def donated_leaves(
    donated: Mapping[str, str], paths: Sequence[str], weak: Sequence[bool]
) -> list[str | None]:
    """Return the strength with which each leaf of the arguments is donated; None: it is not.

    paths: what the leaves are called. weak: whether they are Python scalars, which have no buffer.
    """
    heads = [re.split(r"[\[.]", path, maxsplit=1)[0] for path in paths]
    return [None if scalar else donated.get(head) for head, scalar in zip(heads, weak)]
