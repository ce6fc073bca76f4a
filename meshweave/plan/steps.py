"""Steps and plans: what a redistribution does, in the words of the local program.

A step turns one buffer of `source.allocation_shape` into one of `target.allocation_shape` on every
rank. Its `axes` name groups of ranks (equal in all other coordinates), whose g members are numbered
by linear coordinate over `axes`, the first major:

    all_slice       keep own piece k of ceil(n / g) along `dim`
    all_gather      concatenate the members' tensors along `dim`, cut at the size of the result
    all_to_all      cut `split_dim` in g pieces of ceil(n / g), piece j to member j; concatenate
                    what comes along `concat_dim`, cut at the size of the result
    reduce_scatter  reduce with `kind`, then keep own piece k of ceil(n / g) along `dim`
    all_reduce      reduce with `kind`
    permute         member k receives the tensor of member sources[k]
    exchange        every element of the target comes once, from the rank that `exchange.Table` of
                    the two layouts says: the general all-to-all-v
    relayout        the same with nothing to receive: each rank rearranges what it holds
    local           member 0 keeps its tensor, the others hold the neutral element of `kind`
                    (avg: all keep theirs)
    embed           member k puts its tensor at piece k of `dim` of the result, which elsewhere
                    holds the neutral element of `kind`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, overload

import numpy as np

from meshweave.layout.layout import Layout

COLLECTIVES = ("permute", "all_to_all", "all_gather", "reduce_scatter", "all_reduce", "exchange")
LOCAL_OPS = ("all_slice", "local", "relayout", "embed")
OPS = LOCAL_OPS + COLLECTIVES
BLOCK_OPS = ("all_slice", "local", *COLLECTIVES[:-1])
"""The steps that keep to blocks: fixed collectives and slices, no table of pieces."""


@dataclass(frozen=True)
class Shuffle(Sequence[int]):
    """The sources of a permute, by digits: expanded to one number a member when they are read.

    sizes:      of the axes that the members count over, the first major.
    have, want: per row of blocks the axes (by number) that index it, before and after.

    Who has the block it wants keeps it; of those that want another, the first receives from the
    first who has it to give.
    """

    sizes: tuple[int, ...]
    have: tuple[tuple[int, ...], ...]
    want: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return int(np.prod(self.sizes, dtype=np.int64))

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...
    def __getitem__(self, at: "int | slice") -> "int | Sequence[int]":
        return _expanded(self)[at]

    def __iter__(self) -> Iterator[int]:
        return iter(_expanded(self))


@lru_cache(maxsize=256)
def _expanded(shuffle: Shuffle) -> tuple[int, ...]:
    members = np.arange(len(shuffle))
    digits = np.unravel_index(members, shuffle.sizes)
    blocks = []
    for rows in (shuffle.have, shuffle.want):
        index = np.zeros_like(members)
        for axis in (axis for row in rows for axis in row):
            index = index * shuffle.sizes[axis] + digits[axis]
        blocks.append(index)
    have, want = blocks
    moved = np.flatnonzero(have != want)
    sources = members.copy()
    givers = moved[np.argsort(have[moved], kind="stable")]
    sources[moved[np.argsort(want[moved], kind="stable")]] = givers
    return tuple(sources.tolist())


@dataclass(frozen=True)
class Step:
    """One step of a plan; see this file's docstring. `nbytes` is what the busiest rank receives."""

    op: str
    axes: tuple[str, ...]
    source: Layout
    target: Layout
    nbytes: int
    dim: int | None = None
    split_dim: int | None = None
    concat_dim: int | None = None
    kind: str | None = None
    sources: Sequence[int] | None = None

    def details(self) -> dict[str, Any]:
        """The fields that this op has besides op, axes and layouts."""
        fields = ("dim", "split_dim", "concat_dim", "kind")
        found = {name: getattr(self, name) for name in fields if getattr(self, name) is not None}
        if self.sources is not None:
            found["sources"] = tuple(self.sources)
        return found

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.details().items()]
        inside = ", ".join([f"({', '.join(self.axes)})", *words])
        return f"{self.op} {inside}: {self.source} -> {self.target}, {self.nbytes} bytes"


@dataclass(frozen=True)
class Plan:
    """How to get from one layout to another.

    nbytes:         received by the busiest rank of each step, in all.
    lower_bound:    bytes that some rank receives in every plan: what the worst rank misses of its
                    target.
    launches:       steps in which ranks talk to each other.
    peak_bytes:     the most that input and output of a step take together on a rank.
    staging_bytes:  of that, what is needed beyond the larger one of source and target.
    proved_minimal: no plan of any steps whatever has fewer bytes: nbytes is the lower bound.
    seconds:        what it takes in the alpha-beta model of costs.
    """

    steps: tuple[Step, ...]
    nbytes: int
    lower_bound: int
    launches: int
    peak_bytes: int
    staging_bytes: int
    proved_minimal: bool
    seconds: float

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def as_dict(self) -> dict[str, Any]:
        """The plan as `meshweave plan --json` prints it."""
        return {
            "steps": [
                {"op": step.op, "axes": list(step.axes), "bytes": step.nbytes, **step.details()}
                for step in self.steps
            ],
            "bytes": self.nbytes,
            "lower_bound": self.lower_bound,
            "launches": self.launches,
            "peak_bytes": self.peak_bytes,
            "staging_bytes": self.staging_bytes,
            "proved_minimal": self.proved_minimal,
        }
