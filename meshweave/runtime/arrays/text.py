"""Show an Array: its values, of a large one those at the edges, which alone are read, and what the ranks hold."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from meshweave.layout.digits import Values, gather, gather_at
from meshweave.layout.ownership import ownership_summary
from meshweave.layout.places import Indices
from meshweave.runtime.arrays.elements import wide
from meshweave.runtime.arrays.kind import Kind

Shards = Sequence[Values]


def described(kind: Kind, shards: Shards) -> str:
    """Return the values and, behind them, shape, dtype, layout, mesh and what the first ranks hold."""
    told = f"{kind}: {ownership_summary(kind.layout, kind.mesh, kind.shape)}"
    shown = values(kind, shards, "Array(")
    together = len(shown) + len(told) < 100 and "\n" not in shown
    return f"Array({shown},{' ' if together else chr(10) + '      '}{told})"


def part(kind: Kind, own: Values) -> str:
    """Return the values of a rank's own part and, behind them, what `described` says: the others are elsewhere."""
    shown = np.array2string(own, separator=", ", prefix="Array(")
    told = f"{kind}: {ownership_summary(kind.layout, kind.mesh, kind.shape)}"
    return f"Array({shown},\n      rank {kind.rank}'s part of {told})"


def part_html(kind: Kind, own: Values) -> str:
    """Return what `part` does, as HTML."""
    from html import escape  # here, for what starts loads little

    return f"<pre>{escape(part(kind, own))}</pre>"


def values(kind: Kind, shards: Shards, prefix: str = "") -> str:
    """Return the values as NumPy writes them, with its print options: of a large array those at the edges.

    prefix: what stands before them, by whose length their rows are set in.
    """
    options = np.get_printoptions()
    edge, large = options["edgeitems"], prod(kind.shape) > options["threshold"]
    if not large:
        return np.array2string(_read(kind, shards, None), separator=", ", prefix=prefix)
    at = [_ends(n, edge) if n > 2 * edge else np.arange(n) for n in kind.shape]
    with np.printoptions(threshold=0, edgeitems=edge):  # leaves out the middle
        return np.array2string(_read(kind, shards, at), separator=", ", prefix=prefix)


def _ends(size: int, edge: int) -> Indices:
    """Return the indices at both ends of a dim, and one between, which stands for all that is left out."""
    return np.array([*range(edge), edge, *range(size - edge, size)])


def _read(kind: Kind, shards: Shards, at: Sequence[Indices] | None) -> Values:
    """Return the values at some indices of each dim; None: all."""
    if at is None or kind.layout.partial:  # which is to be added up, as numbers
        shards = [wide(shard, kind.element) for shard in shards]
    if at is None:
        return gather(shards, kind.mesh, kind.layout, kind.shape)
    found = gather_at(shards, kind.mesh, kind.layout, kind.shape, at)
    return found if kind.layout.partial else wide(found, kind.element)


def html(kind: Kind, shards: Shards) -> str:
    """Return the values, and a picture of what each rank holds, as HTML that needs nothing else."""
    from html import escape  # here, for what starts loads little

    from meshweave.layout.picture import html as picture

    shown = f"<pre>{escape(values(kind, shards))}</pre>"
    return f"<div>{shown}{picture(kind.layout, kind.mesh, kind.shape, kind.element)}</div>"
