"""From a module in the local view to units and steps, the same for every target.

tensors -> kernels fused, everything else in place (fuse.py) -> buffers (bufferize.py) -> units in
an arena (schedule.py). What comes out is code of no machine yet: the targets make that of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from meshweave.abi import Slots
from meshweave.bundle import CollectiveInfo, Port
from meshweave.lowering.bufferize import boundary, bufferize, run_passes
from meshweave.lowering.carrier import Collectives
from meshweave.lowering.early import areas
from meshweave.lowering.emit import Code
from meshweave.lowering.functions import carry_calls, keep_functions, kept_functions, name_of
from meshweave.lowering.fuse import Fusion
from meshweave.lowering.kernels import Kernel
from meshweave.lowering.narrow import round_once
from meshweave.lowering.prepare import (
    PREPARE,
    ports,
    refuse_unknown,
    spell_out,
)
from meshweave.lowering.schedule import Schedule
from meshweave.lowering.steps import Buffers
from meshweave.targets import Goal
from meshweave.transforms.base import copied, functions
from meshweave.transforms.generalize import decompose


def lower(source: Any, engine: str = "local", disabled: Collection[str] = ()) -> Program:
    """Everything before code generation, within the context of `source`, which is left as it is.

    engine: whose collectives the program calls; it has its target. disabled: kernels that are not
    to be used. Raises CompileError, with op and place, for what cannot be lowered.
    """
    target = Goal.of(engine=engine).target
    inputs, outputs, mesh = ports(source)
    module = copied(source)
    carry, schedule = _parts(target, disabled)
    collectives = carry(module, mesh, engine)
    decompose(module)
    wanted = keep_functions(module)
    run_passes(module, PREPARE)
    kept, times = kept_functions(module)
    bodies = [Body(function, times[name_of(function)]) for function in kept]
    numbers = {body.name: k for k, body in enumerate(bodies) if body.name in wanted}
    for body in bodies:
        body.groups = collectives.indices(body.function)
        refuse_unknown(body.function, set(numbers), target)
        spell_out(body.function)
        round_once(body.function)
        carry_calls(body.function, numbers)
    collectives.renumber([(body.function, body.times) for body in bodies])
    for body in bodies:
        body.fuse()
    module = bufferize(module, [body.function for body in bodies])
    made = {name_of(function): function for function in functions(module)}
    frames: list[int] = []
    for body in bodies:
        body.plan(made[body.name], frames, collectives.in_place, schedule)
        frames.append(body.schedule.arena_bytes)
    return Program(target, engine, inputs, outputs, mesh, module, collectives, bodies)


def _parts(target: str, disabled: Collection[str]) -> tuple[Any, Any]:
    """What a target has of its own: collectives and schedule. The gpu's are imported for gpus alone."""
    if target != "gpu":
        return Collectives, Schedule
    from meshweave.lowering.gpu.carrier import DeviceCollectives
    from meshweave.lowering.gpu.epilogues import schedule_for
    from meshweave.lowering.gpu.kernel import Target

    return DeviceCollectives, schedule_for(Target(disabled=frozenset(disabled)))


class Body:
    """A function on its way: `kernels` and `groups` (of each member index it uses) before
    bufferisation, `schedule` after it. `times`: how often a step runs it.
    """

    schedule: Schedule

    def __init__(self, function: Any, times: int) -> None:
        self.function, self.times, self.name = function, times, name_of(function)
        type_ = function.operation.attributes["function_type"].value
        self.inputs, self.outputs = len(type_.inputs), len(type_.results)
        self.kernels: list[Kernel] = []
        self.groups: list[int] = []

    def fuse(self) -> None:
        """Kernels in the place of linalg ops, buffers in the place of arguments and results."""
        fusion = Fusion(self.function.operation.regions[0].blocks[0])
        fusion.run()
        self.kernels = fusion.kernels
        boundary(self.function, len(self.groups))

    def plan(
        self, function: Any, frames: Sequence[int], in_place: frozenset[int], schedule: Any
    ) -> None:
        """Units and their places; frames: bytes of the functions it may call."""
        buffers = Buffers(function, self.inputs, self.outputs, frames)
        self.schedule = schedule(buffers, self.kernels, in_place)


@dataclass
class Program:
    """A program as units and steps. bodies: its functions, callees first, the step last."""

    target: str
    engine: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    mesh: str
    module: Any
    collectives: Collectives
    bodies: list[Body]

    @property
    def schedule(self) -> Schedule:
        """Of the step."""
        return self.bodies[-1].schedule

    @property
    def slots(self) -> Slots:
        """The table that the step is given."""
        return Slots(len(self.collectives.groups), len(self.inputs), len(self.outputs))

    @property
    def areas(self) -> tuple[dict[int, int], int]:
        """Where the collectives that are started early have their areas, and where the arena ends."""
        return areas([c.early for c in self.collectives.calls], self.schedule.arena_bytes)

    @property
    def moved(self) -> tuple[CollectiveInfo, ...]:
        """The collectives that move data between ranks."""
        return tuple(info for info in self.collectives.infos if info.op != "relayout")

    def write(self, code: Code) -> None:
        """Write all functions into a module of host code."""
        for k, body in enumerate(self.bodies):
            indices = list(zip(body.schedule.buffers.indices, body.groups))
            code.add(body.schedule, indices, k if body is not self.bodies[-1] else None)

    def called(self, code: Code) -> set[str]:
        """The symbols of the collectives that the code calls."""
        symbols = {name for c in self.collectives.calls for name in c.symbols}
        return {name for name in symbols if name in code.declared}
