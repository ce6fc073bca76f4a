"""Price work in seconds by rates of the machine, and moves as the planner of redistributions prices them."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from math import prod
from threading import get_ident

import numpy as np

from meshweave.errors import PlanError
from meshweave.layout.factors import FOUND, PLACED, Rule
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Link, Mesh
from meshweave.plan.cost import SHARED_MEMORY, Profile
from meshweave.plan.placement.rates import MoveRates, move_rates
from meshweave.plan.placement.runs import RuleRuns
from meshweave.plan.placement.terms import Numbers

NOTHING, LOOPS, PRODUCT = "nothing", "loops", "product"
"""Kinds of work: none, as of views and passes; loops over elements; sums of products of two tensors."""


@dataclass(frozen=True)
class OpWork:
    """Say what an op computes, whatever the layouts.

    element: its element type. adds, functions: of one iteration of its loops: additions, and functions of many
    instructions, such as a sine. kept: of each operand and result, whether it is in memory, not only within a kernel.
    far: whether it was made long before it is read, as an argument. reads: how many of these are operands.
    launches: the op is a kernel of its own.
    """

    kind: str = NOTHING
    element: str = "f32"
    adds: int = 1
    functions: int = 0
    kept: tuple[bool, ...] = ()
    far: tuple[bool, ...] = ()
    reads: int = 0
    launches: bool = False


SIDES = (1, 4, 16, 64, 256)
"""Least side of a product, of its rows, columns and the dim that is summed, for which there is a rate."""

SIZES = (1 << 19, 1 << 23, 1 << 26)
"""Bytes touched between two reads of the same for which there is a rate of memory: as caches hold, and memory."""

ELEMENTS = {"f32": 1.0, "f64": 2.0, "bf16": 1.0, "f16": 1.0}
"""Element types, and the time of an iteration over that of one of f32: as many more bytes as fill a vector."""


@dataclass(frozen=True)
class MachinePrices:
    """Say what a machine takes, in seconds: its links and copies, and what a core computes.

    profile:   of links, and of a byte read or written in memory.
    iteration: of an addition in the loops of an op, among many.
    function:  of a function of many instructions, as an exponential.
    kernel:    to start a kernel. call: to call a program.
    products:  of a multiply-add of f32 in products with least sides of SIDES.
    read, written: of a byte that was touched SIZES bytes ago.
    """

    profile: Profile = SHARED_MEMORY
    iteration: float = 2e-11
    function: float = 6.5e-10
    kernel: float = 3e-7
    call: float = 3e-5
    products: tuple[float, ...] = (4.5e-11, 2.8e-11, 2.8e-11, 2.4e-11, 2.2e-11)
    read: tuple[float, ...] = (1.2e-11, 1.3e-11, 4.5e-11)
    written: tuple[float, ...] = (3.4e-11, 4e-11, 6e-11)

    def work(self, runs: RuleRuns, work: OpWork, reach: float) -> Numbers:
        """Return the seconds that the busiest rank computes in each run of an op.

        reach: bytes that a rank touches in a run of the program, before it reads an argument again.
        """
        link = self.profile.link
        once = self.profile.launch + link.alpha
        joined = runs.joined * link.beta + np.where(runs.joined, once, 0.0)
        if work.kind == NOTHING:
            return joined
        iterations = runs.iterations
        wide = ELEMENTS.get(work.element, 1.0)
        if work.kind == PRODUCT:
            each_loop = np.interp(np.log(runs.sides), np.log(SIDES), self.products)
            computed = iterations * each_loop * wide
        else:
            each = work.adds * self.iteration + work.functions * self.function
            computed = iterations * each * wide
        local = _local_bytes(runs, work)
        touched = sum([row for row, _, _ in local], np.zeros(len(runs.runs)))
        read = np.zeros(len(runs.runs))
        for row, far, made in local:
            after = np.maximum(touched, reach) if far else touched
            rates = self.written if made else self.read
            read += row * np.interp(np.log(np.maximum(after, 1.0)), np.log(SIZES), rates)
        return joined + np.maximum(computed, read) + (self.kernel if work.launches else 0.0)

    def least_work(self, rule: Rule, work: OpWork, mesh: Mesh) -> float:
        """Return seconds that no run of an op is below: all ranks share its loops and its bytes."""
        if work.kind == NOTHING:
            return 0.0
        each = work.adds * self.iteration + work.functions * self.function
        rate = min(self.products) if work.kind == PRODUCT else each
        loops = [f.size for f in rule.factors if f.kind not in (PLACED, FOUND)]
        computed = prod(loops) * rate * ELEMENTS.get(work.element, 1.0)
        rows = zip(rule.nbytes, rule.sizes, work.kept)
        kept = sum([nbytes for nbytes, shape, is_kept in rows if is_kept and shape])
        read = kept * min(*self.read, *self.written)
        return max(computed, read) / mesh.nranks + (self.kernel if work.launches else 0.0)

    def moves(
        self, sources: Sequence[Layout], targets: Sequence[Layout], mesh: Mesh, nbytes: int
    ) -> Numbers:
        """Return the seconds of a tensor of nbytes in all from each of some layouts in blocks to each of others."""
        once, each = self.rates(mesh).between(sources, targets)
        return once + each * nbytes

    def rates(self, mesh: Mesh) -> MoveRates:
        """Return the rates of moves on a mesh that this thread keeps."""
        return move_rates(mesh, self.profile, get_ident())

    def window(self, missing: Numbers, own: Numbers) -> Numbers:
        """Return the seconds of exchanges with neighbours that bring missing bytes, and copy own ones beside them."""
        profile = self.profile
        once = profile.launch + profile.link.alpha
        moved = once + missing * profile.link.beta + 2 * own * profile.copy_beta
        return np.where(missing, moved, 0.0)


def _local_bytes(runs: RuleRuns, work: OpWork) -> list[tuple[Numbers, bool, bool]]:
    """Return the bytes that the busiest rank has of each tensor in memory, for each run; whether far, and made."""
    found = []
    for t, (ends, at) in enumerate(zip(runs.ends, runs.at)):
        shape = runs.rule.sizes[t]
        if not ends or not shape or not (work.kept[t] if t < len(work.kept) else True):
            continue
        item = runs.rule.nbytes[t] / max(1, prod(shape))
        local = item * np.ceil(shape / runs.cuts[t]).prod(axis=1)
        found.append((local[at], t < len(work.far) and work.far[t], t >= work.reads))
    return found


def rates_of(prices: MachinePrices) -> tuple[float, ...]:
    """Return a machine as numbers, in a fixed order."""
    profile = prices.profile
    return (
        *(prices.iteration, profile.copy_beta, profile.launch, *astuple(profile.link)),
        *(prices.function, prices.kernel, prices.call),
        *(*prices.products, *prices.read, *prices.written),
    )


def machine_option(prices: MachinePrices) -> str:
    """Return the machine as an option of dist-place."""
    return f"machine={','.join(map(repr, rates_of(prices)))}"


def machine_of(rates: Sequence[float]) -> MachinePrices:
    """Return the machine of such an option. Raises PlanError for another number of rates."""
    right = len(rates_of(MachinePrices()))
    if len(rates) != right:
        raise PlanError(
            f"machine: {len(rates)} rates; {right} are right, as machine_option says them"
        )
    iteration, copied, launch, alpha, beta, function, kernel, call, *tables = rates
    first, second = len(SIDES), len(SIDES) + len(SIZES)
    rows = tuple(tables[:first]), tuple(tables[first:second]), tuple(tables[second:])
    profile = Profile(Link(alpha, beta), launch, copied)
    return MachinePrices(profile, iteration, function, kernel, call, *rows)
