"""Run a plan: on the simulator, or compiled on an engine; and compare with what should come out."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from meshweave.bundle import numpy_dtype
from meshweave.errors import MeshweaveError, PlanError
from meshweave.layout import Layout, Mesh, gather, scatter
from meshweave.layout.digits import from_allocation
from meshweave.layout.places import indices_at
from meshweave.plan.redistribute import Plan
from meshweave.plan.simulate import simulate
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
            return [narrow(np.ascontiguousarray(shard), self.dtype) for shard in ran]
        narrowed = [narrow(np.ascontiguousarray(shard), self.dtype) for shard in shards]
        return self._compiled(plan, narrowed, engine) if plan.steps else narrowed

    def _compiled(self, plan: Plan, shards: list[Values], engine: str) -> list[Values]:
        from meshweave.bindings import context, ir
        from meshweave.lowering import compile_local
        from meshweave.pipeline import run_pipeline
        from meshweave.runtime.engine import engine as engine_named
        from meshweave.runtime.limits import check_ranks

        check_ranks(engine, self.mesh)
        ctx = context()
        with ctx, ir.Location.unknown(ctx):
            module = ir.Module.parse(self._module(plan))
            run_pipeline(module, "dist-partition,canonicalize,cse")
            bundle = compile_local(module, engine=engine)
        runs_on = engine_named(engine, timeout=60.0)
        try:
            executable = runs_on.load(bundle)
            try:
                outputs = executable.run([[shard] for shard in shards])
            finally:
                executable.close()
        finally:
            runs_on.close()
        return [row[0] for row in outputs]

    def _module(self, plan: Plan) -> str:
        """The program: one redistribute with its plan."""
        from meshweave.transforms.legalize_redistribute import step_attr

        shape = "".join(f"{size}x" for size in self.shape)
        type_ = f"tensor<{shape}{self.dtype}>"
        first, last = (f'#dist.layout<"{layout}">' for layout in (self.source, self.target))
        steps = ", ".join(str(step_attr(step)) for step in plan)
        return (
            f'"dist.mesh"() {{sym_name = "mesh", axes = "{self.mesh}"}} : () -> ()\n'
            f"func.func @main(%a: {type_} {{dist.layout = {first}}}) -> "
            f"({type_} {{dist.layout = {last}}}) {{\n"
            f'  %r = "dist.redistribute"(%a) {{source = {first}, target = {last}, '
            f"plan = [{steps}]}} : ({type_}) -> {type_}\n"
            f"  return {{dist.layouts = {{operands = [{last}], results = []}}}} %r : {type_}\n}}\n"
        )

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


def runnable(engine: str) -> tuple[str, ...]:
    """The steps that an engine runs."""
    from meshweave.plan.steps import OPS
    from meshweave.transforms.partition_steps import FIELDS

    if engine == SIMULATOR:
        return OPS
    return tuple(op for op in OPS if op in FIELDS or op == "local")


def refuse(engine: str, error: PlanError) -> MeshweaveError:
    """What to say when an engine lacks the steps that a plan needs."""
    return MeshweaveError(
        f"engine {engine} cannot run this yet: {error.message}; --engine {SIMULATOR} can"
    )
