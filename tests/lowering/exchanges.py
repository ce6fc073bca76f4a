"""Programs that are exchanges of layouts, and what they must give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from lowering.harness import compile_text

from meshweave.bundle import Bundle, numpy_dtype
from meshweave.exchange.table import Table
from meshweave.layout import Layout, Mesh
from meshweave.plan.simulate import simulate
from meshweave.plan.steps import PlanStep


@dataclass(frozen=True)
class Exchange:
    """One exchange of the program."""

    shape: tuple[int, ...]
    source: str
    target: str
    dtype: str = "f32"

    def table(self, mesh: Mesh) -> Table:
        """Its table on a mesh."""
        return Table(Layout.parse(self.source), Layout.parse(self.target), mesh, self.shape)

    def axes(self, mesh: Mesh) -> tuple[str, ...]:
        """The axes it goes over: none where no rank receives from another."""
        table = self.table(mesh)
        moved = any(p.peer != r for r in range(mesh.nranks) for p in table.receives(r))
        return table.axes if moved else ()


def tensor(shape: Sequence[int], dtype: str) -> str:
    """A tensor type."""
    return f"tensor<{''.join(f'{n}x' for n in shape)}{dtype}>"


def compiled(
    mesh: Mesh,
    cases: Sequence[Exchange],
    engine: str,
    over: Sequence[str] | None = None,
    early: bool = False,
) -> Bundle:
    """A program that does all of them, argument i to result i. over: their axes, where they are known. early: all are
    started before any is waited for.
    """
    arguments, body, results = [], [], []
    mark = ", dist.early" if early else ""
    for k, case in enumerate(cases):
        ends = [Layout.parse(text) for text in (case.source, case.target)]
        given, made = (tensor(e.allocation_shape(mesh, case.shape), case.dtype) for e in ends)
        layouts = [f'#dist.layout<"{e}">' for e in ends]
        whole = tensor(case.shape, case.dtype)
        arguments.append(f"%a{k}: {given}")
        results.append(made)
        axes = ", ".join(f'"{axis}"' for axis in over or case.axes(mesh))
        shape = f": {', '.join(map(str, case.shape))}" if case.shape else ""
        body.append(
            f'%r{k} = "dist.exchange"(%a{k}) {{axes = [{axes}], source = {layouts[0]}, '
            f"target = {layouts[1]}, shape = array<i64{shape}>{mark}}} : ({given}) -> {made}  // {whole}"
        )
    lines = "\n  ".join(body)
    return compile_text(
        f'"dist.mesh"() {{sym_name = "mesh", axes = "{mesh}"}} : () -> ()\n'
        f"func.func @main({', '.join(arguments)}) -> ({', '.join(results)}) {{\n  {lines}\n"
        f"  return {', '.join(f'%r{k}' for k in range(len(cases)))} : {', '.join(results)}\n}}\n",
        engine,
    )


def values(case: Exchange, count: int, rng: np.random.Generator) -> np.ndarray:
    """Random bits of a dtype: no two of the wide ones are equal in practice."""
    dtype = numpy_dtype(case.dtype)
    if dtype == np.bool_:
        return rng.random(count) < 0.5
    return rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)


def run_and_check(running, mesh: Mesh, cases: Sequence[Exchange], bundle: Bundle) -> int:
    """Run a program on random values; the number of elements that were compared with the element
    simulator. Only padding may hold anything.
    """
    rng = np.random.default_rng(len(cases))
    inputs: list[list[np.ndarray]] = [[] for _ in range(mesh.nranks)]
    for case in cases:
        local = Layout.parse(case.source).allocation_shape(mesh, case.shape)
        for row in inputs:
            row.append(values(case, int(np.prod(local)), rng).reshape(local))
    kept = [[value.copy() for value in row] for row in inputs]
    executable = running.load(bundle)
    try:
        outputs = executable.run(inputs)
    finally:
        executable.close()
    compared = 0
    for k, case in enumerate(cases):
        given = [row[k] for row in kept]
        size = given[0].size
        numbers = [np.arange(size).reshape(v.shape) + r * size for r, v in enumerate(given)]
        ends = (Layout.parse(case.source), Layout.parse(case.target))
        step = PlanStep("exchange", case.axes(mesh), *ends, 0)
        whole = np.concatenate([value.reshape(-1) for value in given])
        for rank, ids in enumerate(simulate([step], numbers, mesh, case.shape).shards):
            known = (ids >= 0) & (ids < len(whole))
            right, result = whole[ids[known]], outputs[rank][k].reshape(ids.shape)[known]
            assert right.tobytes() == result.tobytes(), (case, str(mesh), rank)
            compared += right.size
    return compared
