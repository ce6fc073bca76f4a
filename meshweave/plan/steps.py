"""Define steps and plans: what a redistribution does, in the words of the local program.

A step turns one buffer of `source.allocation_shape` into one of `target.allocation_shape` on every rank. Its `axes`
name groups of ranks (equal in all other coordinates), whose g members are numbered by linear coordinate over `axes`,
the first major:

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

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from meshweave.layout.layout import Layout
from meshweave.plan.collectives import MOVING

COLLECTIVES = MOVING
LOCAL_OPS = ("all_slice", "local", "relayout", "embed")
OPS = LOCAL_OPS + COLLECTIVES
BLOCK_OPS = ("all_slice", "local", *COLLECTIVES[:-1])
"""The steps that keep to blocks: fixed collectives and slices, no table of pieces."""


DETAILS = ("dim", "split_dim", "concat_dim", "kind")
"""What moves and steps carry besides op, axes and layouts, where their op has it."""


@dataclass(frozen=True)
class PlanStep:
    """Describe one step of a plan; see this file's docstring. `nbytes` is what the busiest rank receives."""

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
        """Return the fields that this op has besides op, axes and layouts."""
        every = (*DETAILS, "sources")
        return {n: getattr(self, n) for n in every if getattr(self, n) is not None}

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.details().items()]
        inside = ", ".join([f"({', '.join(self.axes)})", *words])
        return f"{self.op} {inside}: {self.source} -> {self.target}, {self.nbytes} bytes"


@dataclass(frozen=True)
class Plan:
    """Describe how to get from one layout to another.

    nbytes:         received by the busiest rank of each step, in all.
    lower_bound:    bytes that some rank receives in every plan: what the worst rank lacks of its target.
    launches:       steps in which ranks talk to each other.
    peak_bytes:     the most that input and output of a step take together on a rank.
    staging_bytes:  the part of that beyond the larger one of source and target.
    proved_minimal: no plan of any steps has fewer bytes: nbytes is the lower bound.
    seconds:        what it takes in the alpha-beta model of costs.
    search_stopped: the search for the steps ended at its limit: they are right, but others may be cheaper.
    """

    steps: tuple[PlanStep, ...]
    nbytes: int
    lower_bound: int
    launches: int
    peak_bytes: int
    staging_bytes: int
    proved_minimal: bool
    seconds: float
    search_stopped: bool = False

    def __iter__(self) -> Iterator[PlanStep]:
        return iter(self.steps)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as `meshweave plan --json` prints it."""
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
            "search_stopped": self.search_stopped,
        }
