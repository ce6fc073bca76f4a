"""Redistributions compiled and run on an engine, many of them in one program: each case an argument,
a redistribute with its plan, and a result.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby, islice
from typing import TYPE_CHECKING

import numpy as np
from strategies import numbered

from meshweave.layout import Layout, Mesh, gather, scatter
from meshweave.layout.digits import from_allocation
from meshweave.plan.redistribute import Plan, plan_redistribute

if TYPE_CHECKING:
    from meshweave.runtime.engine import Engine

Case = tuple[Mesh, tuple[int, ...], Layout, Layout]

DTYPE = "f4"
BATCH = 64  # cases of one program


def planned(case: Case) -> Plan:
    """The default plan."""
    mesh, shape, source, target = case
    return plan_redistribute(source, target, mesh, shape, np.dtype(DTYPE).itemsize)


def run_cases(cases: Iterable[Case], engine: str) -> Iterator[tuple[Case, str | None]]:
    """Each case, and what is wrong with what the engine gives: None if nothing is."""
    from meshweave.runtime.engine import engine as engine_named

    with closing(engine_named(engine, timeout=60.0)) as runs_on:
        for mesh, group in groupby(cases, key=lambda case: case[0]):
            while batch := list(islice(group, BATCH)):
                plans = [(case, planned(case)) for case in batch]
                results = _run(mesh, plans, runs_on)
                for at, (case, made) in enumerate(plans):
                    wrong = _wrong(case, [row[at] for row in results])
                    yield case, wrong and f"{_story(case)}: {wrong}; {list(map(str, made))}"


def _story(case: Case) -> str:
    mesh, shape, source, target = case
    return f"{shape} on ({mesh}), {source} -> {target}"


def _run(
    mesh: Mesh, plans: Sequence[tuple[Case, Plan]], runs_on: "Engine"
) -> list[list[np.ndarray]]:
    """The results of every rank."""
    from meshweave.dialects import context
    from meshweave.ir.bindings import ir
    from meshweave.lowering import compile_program
    from meshweave.pipeline import run_pipeline

    ctx = context()
    with ctx, ir.Location.unknown(ctx):
        module = ir.Module.parse(_text(mesh, plans))
        run_pipeline(module, "dist-partition,canonicalize,cse")
        bundle = compile_program(module, runs_on.name)
    shards = [scatter(numbered(shape, DTYPE), mesh, source) for (_, shape, source, _), _ in plans]
    inputs = [[np.asarray(row[rank], order="C") for row in shards] for rank in range(mesh.nranks)]
    with closing(runs_on.load(bundle)) as executable:
        return executable.run(inputs)


def _text(mesh: Mesh, plans: Sequence[tuple[Case, Plan]]) -> str:
    from meshweave.transforms.redistribution.legalize_redistribute import step_attr

    arguments, body, types, layouts = [], [], [], []
    for k, ((_, shape, source, target), made) in enumerate(plans):
        type_ = f"tensor<{''.join(f'{size}x' for size in shape)}f32>"
        first, last = (f'#dist.layout<"{layout}">' for layout in (source, target))
        arguments.append(f"%a{k}: {type_} {{dist.layout = {first}}}")
        types.append(f"{type_} {{dist.layout = {last}}}")
        layouts.append(last)
        steps = ", ".join(str(step_attr(step)) for step in made)
        body.append(
            f'  %r{k} = "dist.redistribute"(%a{k}) {{source = {first}, target = {last}, '
            f"plan = [{steps}]}} : ({type_}) -> {type_}\n"
        )
    names = ", ".join(f"%r{k}" for k in range(len(plans)))
    plain = ", ".join(type_.split(" {")[0] for type_ in types)
    return (
        f'"dist.mesh"() {{sym_name = "mesh", axes = "{mesh}"}} : () -> ()\n'
        f"func.func @main({', '.join(arguments)}) -> ({', '.join(types)}) {{\n{''.join(body)}"
        f"  return {{dist.layouts = {{operands = [{', '.join(layouts)}], results = []}}}} "
        f"{names} : {plain}\n}}\n"
    )


def _wrong(case: Case, shards: Sequence[np.ndarray]) -> str | None:
    mesh, shape, _, target = case
    value = numbered(shape, DTYPE)
    buffer = target.allocation_shape(mesh, shape)
    shards = [shard.reshape(buffer) for shard in shards]
    with np.errstate(all="ignore"):
        count = int((gather(shards, mesh, target, shape) != value).sum())
    if count:
        return f"{count} wrong elements"
    if target.partial:
        return None
    for rank, right in enumerate(scatter(value, mesh, target)):
        have, want = (from_allocation(b, target, mesh, shape) for b in (shards[rank], right))
        inside = ~np.isnan(want)
        if not np.array_equal(have[inside], want[inside]):
            return f"wrong elements on rank {rank}"
    return None
