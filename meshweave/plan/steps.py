"""Steps and plans: what a redistribution does, in the words of the local program.

A step turns one local tensor of `source.local_shape` into one of `target.local_shape` on every
rank. Its `axes` name groups of ranks (equal in all other coordinates), whose g members are numbered
by linear coordinate over `axes`, the first major:

    all_slice       keep own piece k of ceil(n / g) along `dim`
    all_gather      concatenate the members' tensors along `dim`, cut at the size of the result
    all_to_all      cut `split_dim` in g pieces of ceil(n / g), piece j to member j; concatenate
                    what comes along `concat_dim`, cut at the size of the result
    reduce_scatter  reduce with `kind`, then keep own piece k of ceil(n / g) along `dim`
    all_reduce      reduce with `kind`
    permute         member k receives the tensor of member sources[k]
    local           member 0 keeps its tensor, the others hold the neutral element of `kind`
                    (avg: all keep theirs)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from meshweave.layout.layout import Layout

COLLECTIVES = ("permute", "all_to_all", "all_gather", "reduce_scatter", "all_reduce")
LOCAL_OPS = ("all_slice", "local")
OPS = LOCAL_OPS + COLLECTIVES


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
    sources: tuple[int, ...] | None = None

    def details(self) -> dict[str, Any]:
        """The fields that this op has besides op, axes and layouts."""
        fields = ("dim", "split_dim", "concat_dim", "kind", "sources")
        return {name: getattr(self, name) for name in fields if getattr(self, name) is not None}

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
    proved_minimal: no plan has fewer bytes: nbytes is the lower bound.
    """

    steps: tuple[Step, ...]
    nbytes: int
    lower_bound: int
    launches: int
    peak_bytes: int
    proved_minimal: bool

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
            "proved_minimal": self.proved_minimal,
        }
