"""Read a planned program: what targets make code of, whether its module comes from the passes or from text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meshweave.abi import AsyncArea, Slots
from meshweave.bundle import CollectiveInfo, ExchangeInfo, Port
from meshweave.certificate import UNCHECKED, Certificate
from meshweave.ir.bindings import ir
from meshweave.lowering.buffers.function_plan import FunctionPlan
from meshweave.lowering.communication.calls import Calls
from meshweave.lowering.host.emit import Code
from meshweave.lowering.host.functions import kept_functions, name_of
from meshweave.lowering.host.program_op import Interface, read_interface
from meshweave.lowering.nests.kernel_ops import read_kernels
from meshweave.lowering.nests.kernels import FusedKernel
from meshweave.lowering.nests.rows import Follow
from meshweave.report import OpRow, Reason
from meshweave.targets import Goal
from meshweave.verification.answer import Answer


def read_program(
    module: ir.Module, kernels: Mapping[str, FusedKernel] | None = None
) -> LoweredProgram:
    """Read the program of a module that plan-memory has planned. Raises CompileError where it has not.

    kernels: those of the module, by name, where the caller has them already.
    """
    engine, mesh, groups, inputs, outputs, exchanges = read_interface(module)
    target = Goal.of(engine=engine).target
    kernels = read_kernels(module) if kernels is None else kernels
    functions, times = kept_functions(module)
    numbers = {name_of(function): k for k, function in enumerate(functions)}
    calls, bodies = Calls(groups), list[FunctionBody]()
    for function in functions:
        name = name_of(function)
        plan = FunctionPlan(function, kernels, numbers, _follow(target))
        calls.add(plan.entries, times[name])
        bodies.append(FunctionBody(name, times[name], plan))
    return LoweredProgram(target, engine, inputs, outputs, exchanges, mesh, module, calls, bodies)


def _follow(target: str) -> Follow | None:
    """Return how a target orders nests that it computes with a contraction; None where it does not."""
    if target != "gpu":
        return None
    from meshweave.lowering.gpu.families.epilogues import in_order_of  # for gpus alone

    return in_order_of


@dataclass
class FunctionBody:
    """Hold a function of a program. times: how often a step runs it."""

    name: str
    times: int
    plan: FunctionPlan


@dataclass
class LoweredProgram:
    """Hold a program as units and steps.

    bodies: its functions, callees first, the step last. certificate: what is proven of it. verified: what the check of
    its buffers has found; None for a program that came with buffers, or was not checked. certify, unchecked: what gives
    each of these where that check is still to be made; it raises CompileError for what is wrong. reasons: why tensors
    move, and whole: the ops of the whole program, where that was asked for.
    """

    target: str
    engine: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    exchanges: tuple[ExchangeInfo, ...]
    mesh: str
    module: ir.Module
    collectives: Calls
    bodies: list[FunctionBody]
    certificate: Certificate = UNCHECKED
    verified: Answer | None = None
    certify: Callable[[], Certificate] | None = None
    unchecked: Callable[[], Answer] | None = None
    reasons: tuple[Reason, ...] = ()
    whole: tuple[OpRow, ...] = ()

    @property
    def interface(self) -> Interface:
        """Return what `mw.program` says of it."""
        groups = self.collectives.groups
        return Interface(self.engine, self.mesh, groups, self.inputs, self.outputs, self.exchanges)

    @property
    def plan(self) -> FunctionPlan:
        """Return the plan of the step."""
        return self.bodies[-1].plan

    @property
    def slots(self) -> Slots:
        """Return the table that the step is given."""
        parts = (self.collectives.groups, self.inputs, self.outputs, self.exchanges)
        return Slots(*map(len, parts))

    @property
    def areas(self) -> tuple[dict[int, int], int]:
        """Return the offsets of the areas of async collectives, by number, and where the arena ends."""
        places, end = self.collectives.areas, self.plan.arena_bytes
        for number, place in places.items():
            end = max(end, place + AsyncArea.nbytes(self.collectives.calls[number].early))
        return places, end

    @property
    def moved(self) -> tuple[CollectiveInfo, ...]:
        """Return the collectives that move data between ranks."""
        return tuple(info for info in self.collectives.infos if info.op != "relayout")

    def write(self, code: Code) -> None:
        """Write all functions into a module of host code."""
        for k, body in enumerate(self.bodies):
            code.add(body.plan, k if body is not self.bodies[-1] else None)

    def called(self, code: Code) -> set[str]:
        """Return the symbols of the collectives that the code calls."""
        symbols = {name for c in self.collectives.calls for name in c.symbols}
        return {name for name in symbols if name in code.declared}
