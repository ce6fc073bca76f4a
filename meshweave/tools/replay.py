"""Run a plan: on the simulator, or compiled on an engine; and compare with what should come out."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from meshweave.bundle import numpy_dtype
from meshweave.layout import Layout, Mesh, gather, scatter
from meshweave.layout.digits import from_allocation
from meshweave.layout.places import indices_at
from meshweave.plan.redistribute import Plan
from meshweave.plan.simulate import simulate
from meshweave.redistribution import Move, run
from meshweave.runtime.array import narrow, wide

SIMULATOR = "simulate"

Values = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Replay:
    """A redistribution of the element numbers 0..n-1 as elements of `dtype`."""

    source: Layout
    target: Layout
    mesh: Mesh
    shape: tuple[int, ...]
    dtype: str

    def value(self) -> Values:
        """The global value, in a form that NumPy computes in."""
        numbers = np.arange(prod(self.shape)).reshape(self.shape)
        kind = np.dtype(np.float32) if self.dtype == "bf16" else numpy_dtype(self.dtype)
        value: Values = numbers.astype(kind)
        return wide(narrow(value, self.dtype), self.dtype)

    def run(self, plan: Plan, engine: str) -> list[Values]:
        """The allocation of every rank after the plan. Raises MeshweaveError when it cannot run."""
        shards = scatter(self.value(), self.mesh, self.source)
        if engine == SIMULATOR:
            ran = simulate(plan.steps, shards, self.mesh, self.shape).shards
            return [narrow(np.asarray(shard, order="C"), self.dtype) for shard in ran]
        narrowed = [narrow(np.asarray(shard, order="C"), self.dtype) for shard in shards]
        ends = (self.source, self.target, self.mesh, self.shape, self.dtype)
        return run(Move(*ends, plan.steps, engine), narrowed)

    def wrong(self, results: Sequence[Values]) -> int:
        """How many elements of the results are not what the target layout says."""
        value = self.value()
        shards = [wide(result, self.dtype) for result in results]
        if self.target.partial:
            buffer = self.target.allocation_shape(self.mesh, self.shape)
            shards = [shard.reshape(buffer) for shard in shards]
            with np.errstate(all="ignore"):
                found = gather(shards, self.mesh, self.target, self.shape)
            return int((found != value).sum())
        count = 0
        for rank, shard in enumerate(shards):
            local = from_allocation(shard, self.target, self.mesh, self.shape)
            index = [
                indices_at(self.target, self.mesh, self.shape, dim, at)
                for dim, at in enumerate(self._coordinates(rank))
            ]
            inside = np.ix_(*[np.flatnonzero(row >= 0) for row in index])
            right = value[np.ix_(*[row[row >= 0] for row in index])]
            count += int((local[inside] != right).sum()) if index else int(local != right)
        return count

    def _coordinates(self, rank: int) -> list[list[int]]:
        return [
            [self.mesh.coordinate(rank, name) for name in self.target.axes_of(dim)]
            for dim in range(len(self.shape))
        ]
