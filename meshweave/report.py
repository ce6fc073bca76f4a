"""Report what a compilation decided, as one plain value: memory, slices, hints, kernels and collectives."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from meshweave.certificate import UNCHECKED, Certificate

_PLACE = re.compile(r"/?([^/:]+/)*[^/:]+:\d+(:\d+)?")
_MOST_ROWS = 40  # rows of a table on the terminal; JSON has all


class _Row:
    def as_dict(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {name: value for name, value in vars(self).items() if name != "where"}


@dataclass(frozen=True)
class RegionRow(_Row):
    """Describe how a region of hints runs.

    slices, order, width: as hint-slice settled it; "strict" is the order of a region in one piece.
    intermediate_bytes: its peak use of the arena beyond its inputs and results.
    where: its place in the source.
    """

    name: str
    slices: int
    order: str
    width: int
    intermediate_bytes: int
    where: str


@dataclass(frozen=True)
class LedgerRow(_Row):
    """State what became of a hint for an op."""

    hint: str
    op: str
    location: str
    outcome: str
    reason: str


@dataclass(frozen=True)
class KernelRow(_Row):
    """State which kernel an op got, and why not a faster one. where: its place in the source."""

    op: str
    kernel: str
    why: str
    where: str


@dataclass(frozen=True)
class LaunchRow(_Row):
    """Describe what a program launches on a gpu at one or several places.

    launches: at how many. grid, block: blocks and threads; 0 of a product of the library. registers: of a thread;
    shared_bytes: of a block; blocks, occupancy: that a multiprocessor has at a time, and the share of its threads; None
    where there is no machine code to tell. nbytes: of memory that a launch has to touch at least; flops: its floating
    operations; seconds: that these two take at least by the GPU's data sheet, None where that is unknown; bound: by
    "memory" or "arithmetic". where: its first place in the source.
    """

    kernel: str
    launches: int
    grid: int
    block: int
    registers: int | None
    shared_bytes: int
    blocks: int | None
    occupancy: float | None
    nbytes: int
    flops: int
    seconds: float | None
    bound: str
    where: str

    def cells(self) -> tuple[str, ...]:
        """Return the row of a table."""
        known = self.registers is not None
        shape = f"{self.grid:,} x {self.block}" if self.grid else ""
        held = f"{self.blocks}, {100 * (self.occupancy or 0):.0f} %" if self.blocks else ""
        least = "" if self.seconds is None else f"{1e6 * self.seconds:,.1f} us, {self.bound}"
        return (
            f"{self.kernel} ({self.launches} x)" if self.launches > 1 else self.kernel,
            *(self.where, shape, f"{self.registers}" if known else ""),
            *(human_bytes(self.shared_bytes) if known else "", held),
            *(human_bytes(self.nbytes), f"{self.flops:,}", least),
        )


@dataclass(frozen=True)
class Cause:
    """Name one thing that decides where a value lies: an "argument", "constraint", "result" or "op", and its place."""

    kind: str
    text: str
    where: str

    def as_dict(self) -> dict[str, str]:
        """Return the link for JSON."""
        return {"kind": self.kind, "text": self.text, "where": self.where}


@dataclass(frozen=True)
class Reason:
    """Say why a tensor moves from one layout to another, what that costs, and what else would do.

    tensor: its global shape and dtype, `64x96xf32`. steps: op, axes and bytes of each step of the plan. nbytes: what
    the busiest rank receives; lower_bound: the least of any plan; microseconds: what the planner says it takes. given:
    why it lies as `source`, the nearest first. wanted: who wants it as `target`. following: the best plan without the
    first move of this one, and its price.
    remedy: what one would write to move less.
    """

    tensor: str
    source: str
    target: str
    where: str
    steps: tuple[tuple[str, tuple[str, ...], int], ...]
    nbytes: int
    lower_bound: int
    given: tuple[Cause, ...] = ()
    wanted: tuple[Cause, ...] = ()
    following: str = ""
    remedy: str = ""
    microseconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the reason for JSON."""
        simple = str | int | float
        plain = {name: value for name, value in vars(self).items() if isinstance(value, simple)}
        steps = [{"op": op, "axes": list(axes), "bytes": n} for op, axes, n in self.steps]
        chains = {name: [link.as_dict() for link in getattr(self, name)] for name in _CHAINS}
        return {**plain, "steps": steps, **chains}

    def lines(self) -> list[str]:
        """Return the reason as text, a line for each link."""
        found = [f"{self.tensor} comes as {self.source} and is wanted as {self.target}"]
        for word, chain in (("it lies so", self.given), ("it is wanted so", self.wanted)):
            for number, link in enumerate(chain):
                say = "since" if number else f"{word} since"
                at = f" ({_short(link.where)})" if link.where else ""
                found.append(f"  {say} {link.text}{at}")
        found.append(
            f"  {self.nbytes:,} bytes, {self.least}; {self.microseconds:,.1f} us as planned"
        )
        if self.following:
            found.append(f"  next best: {self.following}")
        if self.remedy:
            found.append(f"  to move less: {self.remedy}")
        return found

    @property
    def least(self) -> str:
        """Say how far the plan is from the least that any moves."""
        if self.nbytes == self.lower_bound:
            return "the least of any plan"
        return f"at least {self.lower_bound:,} by any plan"


_CHAINS = ("given", "wanted")


@dataclass(frozen=True)
class OpRow:
    """Describe an op of the whole program, once its layouts are chosen.

    function, times: the function that it stands in, and how often a step runs that. op: what users call it. tensor: its
    result, `64x96xf32`; shape, layout: of that. work: iterations of its loops on a rank. reason: of a move, its number
    in `Report.reasons`. where: its place in the source. calls: the function that it calls. layer: the layer of a model
    that it is of, as its framework names it; code: what the framework, or the user's line, says for it. reads: the
    numbers in `Report.ops` of the ops of its function whose results it reads. region: the number of the region of
    hints that it stands in, as of `Report.regions`; -1: none. rounds: how often loops around it run it.
    """

    function: str
    times: int
    op: str
    tensor: str
    shape: tuple[int, ...]
    layout: str
    where: str
    work: int = 0
    reason: int | None = None
    calls: str = ""
    layer: str = ""
    code: str = ""
    reads: tuple[int, ...] = ()
    region: int = -1
    rounds: int = 1

    @property
    def named(self) -> str:
        """Return what users call it: with its layer, where a framework names that, else with their code."""
        if self.layer:
            return f"{self.op} in {self.layer}"
        return f"{self.op} `{self.code}`" if self.code else self.op


@dataclass(frozen=True)
class TransferRow:
    """Describe a collective of a step.

    nbytes: bytes that the busiest rank receives. tensor: its operand on a rank, `f32 64x96`. where: its place in the
            source. reasons: the numbers of those in `Report.reasons` that it is there for.
    """

    op: str
    axes: tuple[str, ...]
    nbytes: int
    tensor: str = ""
    where: str = ""
    reasons: tuple[int, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {"op": self.op, "axes": list(self.axes), "bytes": self.nbytes}


@dataclass(frozen=True)
class Moment:
    """Describe an op of a step: what it does, its place in the source, and the bytes of the arena in use then."""

    op: str
    where: str
    nbytes: int


@dataclass(frozen=True)
class PortChoice:
    """Say where an argument or result was placed, and in which other layout it would cost least, how much more.

    of: "argument 0", "result 1". otherwise: empty where it has no other layout.
    """

    of: str
    layout: str
    otherwise: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class PlanChoice:
    """Describe a plan that was not chosen: its predicted seconds, and which arguments and results lie otherwise."""

    seconds: float
    differs: tuple[str, ...]


@dataclass(frozen=True)
class ValueMadeAgain:
    """Describe a value that placement lets be computed again for its late readers, not kept: its bytes on a rank.

    of: the op that makes it, and where that is written.
    """

    of: str
    layout: str
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class MemoryChoice:
    """Hold what placement counts of the bytes of a rank, and what a bound on them costs.

    limit: the bound; 0: none. nbytes: predicted; of these `resident` ones are of arguments and results.
    free_seconds: what the program would take with no bound. again: seconds of what is computed again.
    price: the seconds that a further byte saves, at most. made_again: what placement has chosen for that.
    """

    limit: int
    nbytes: int
    resident: int
    free_seconds: float
    price: float
    again: float = 0.0
    made_again: tuple[ValueMadeAgain, ...] = ()

    def line(self, seconds: float) -> str:
        """Say it in a line. seconds: what the placement takes."""
        bound = (
            f"of {self.limit:,} bytes of a rank" if self.limit else "bytes of a rank, the fewest"
        )
        text = f"memory: {self.nbytes:,} {bound}, {self.resident:,} for arguments and results; "
        cost = seconds + self.again - self.free_seconds
        text += f"the bound costs {1e6 * cost:,.1f} us" if cost > 0 else "the bound costs nothing"
        if self.again:
            text += f", {1e6 * self.again:,.1f} us of it to compute values again"
        return f"{text}; a MiB more saves about {1e6 * self.price * (1 << 20):,.1f} us"


@dataclass(frozen=True)
class Placement:
    """Hold what a program that was placed is predicted to take, how far from the optimum at most, and what decided it.

    gap: as a share of the time; 0 is a proof, 1 no bound. memory: what a bound on bytes costs, if there is one.
    """

    mesh: str
    seconds: float
    gap: float
    decisions: tuple[PortChoice, ...] = ()
    plans: tuple[PlanChoice, ...] = ()
    memory: MemoryChoice | None = None

    def as_dict(self, nbytes: int) -> dict[str, Any]:
        """Return it for JSON. nbytes: what the busiest rank receives."""
        return {
            "mesh": self.mesh.replace(" ", ""),
            "gap": self.gap,
            "predicted_seconds": self.seconds,
            "bytes": nbytes,
            "decisions": [vars(d) for d in self.decisions],
            **({} if self.memory is None else {"memory": asdict(self.memory)}),
            "plans": [{"seconds": p.seconds, "differs": list(p.differs)} for p in self.plans],
        }

    def tables(self) -> list[Any]:
        """Return tables for `rich`: what each decision would cost otherwise, the next best plans."""
        proven = {0.0: "proven", 1.0: "with no bound"}.get(
            self.gap, f"at most {100 * self.gap:.1f} % from the optimum"
        )
        rows = [
            (
                d.of,
                d.layout,
                d.otherwise or "none",
                f"{1e6 * d.seconds:,.1f} us" if d.otherwise else "",
            )
            for d in self.decisions
        ]
        title = f"placement on ({self.mesh}): {1e6 * self.seconds:,.1f} us predicted, {proven}"
        plans = [(f"{1e6 * p.seconds:,.1f} us", "; ".join(p.differs)) for p in self.plans]
        memory = [] if self.memory is None else [self.memory.line(self.seconds)]
        values = () if self.memory is None else self.memory.made_again
        again = [(v.of, v.layout, f"{v.nbytes:,}", f"{1e6 * v.seconds:,.1f} us") for v in values]
        return memory + [
            _table(title, columns, found)
            for title, columns, found in (
                (title, "of,lies in,else best in,costs more", rows),
                ("next best plans", "predicted,differs in", plans),
                ("made again, not kept", "value of,lies in,bytes of a rank,takes again", again),
            )
            if found
        ]


@dataclass(frozen=True)
class Report:
    """Hold what a compilation decided about a program.

    peak_bytes:  the most a rank holds at a time: inputs, results, and arena_bytes for everything between.
    moments:     the ops of a step in the order they run, with the bytes that are live.
    certificate: what is proven of it.
    state_bytes: what a step copies of the arguments that are donated.
    reasons:     why tensors move, and ops the whole program, where that was asked for.
    placement:   how it was placed, if it was.
    launches:    what it launches on a gpu, where that was asked for.
    """

    peak_bytes: int
    arena_bytes: int
    regions: tuple[RegionRow, ...] = ()
    ledger: tuple[LedgerRow, ...] = ()
    kernels: tuple[KernelRow, ...] = ()
    collectives: tuple[TransferRow, ...] = ()
    moments: tuple[Moment, ...] = ()
    certificate: Certificate = UNCHECKED
    state_bytes: int = 0
    reasons: tuple[Reason, ...] = ()
    ops: tuple[OpRow, ...] = ()
    placement: Placement | None = None
    launches: tuple[LaunchRow, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON, with the keys that scripts rely on."""
        launches = {"launches": [vars(row) for row in self.launches]} if self.launches else {}
        return {
            "peak_bytes": self.peak_bytes,
            "state_bytes": self.state_bytes,
            "regions": [row.as_dict() for row in self.regions],
            "ledger": [row.as_dict() for row in self.ledger],
            "kernels": [row.as_dict() for row in self.kernels],
            "collectives": [row.as_dict() for row in self.collectives],
            "certificate": self.certificate.as_dict(),
            **launches,
        }

    @cached_property
    def _by_place(self) -> dict[str, OpRow]:
        """Hold for each place the op that does most there."""
        return {row.where: row for row in sorted(self.ops, key=lambda row: row.work)}

    def named(self, op: str, where: str) -> str:
        """Return what users call an op of MLIR at a place; its own name where the ops are not known."""
        row = self._by_place.get(where)
        if row is None:
            return op
        return f"the start of {row.named}" if op == "linalg.fill" else row.named

    def tables(self) -> list[Any]:
        """Return a table for `rich` to print for each kind of row that exists."""
        regions = []
        for r in self.regions:
            size = human_bytes(r.intermediate_bytes)
            regions.append((r.name, r.where, f"{r.slices}", r.order, f"{r.width}", size))
        ledger = [
            (r.hint, _times(self.named(r.op, r.location), n), r.location, r.outcome, r.reason)
            for r, n in Counter(self.ledger).items()
        ]
        kernels = [
            (
                _times(self.named(k.op, k.where), n),
                k.where,
                k.kernel,
                k.why.removeprefix(f"{k.kernel} is "),
            )
            for k, n in Counter(self.kernels).items()
        ]
        moved = [
            (c.op, ", ".join(c.axes), c.tensor, c.where, f"{n}", human_bytes(n * c.nbytes))
            for c, n in Counter(self.collectives).items()
        ]
        return [
            _table(title, columns, rows)
            for title, columns, rows in (
                ("regions", "name,place,slices,order,width,intermediate", regions),
                ("ledger", "hint,op,place,outcome,reason", ledger),
                ("kernels", "op,place,kernel,why", kernels),
                ("launches", _LAUNCHES, [row.cells() for row in self.launches]),
                ("collectives", "op,axes,of,place,times,received", moved),
            )
            if rows
        ]


_LAUNCHES = "kernel,place,grid x block,registers,shared,blocks on an SM,touches,flops,at least"


def _table(title: str, columns: str, rows: Sequence[Iterable[str]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    left = len(rows) - _MOST_ROWS
    more = f" ({left} more in --json)" if left > 0 else ""
    table = Table(title=f"{title}{more}", title_justify="left")
    for column in columns.split(","):
        table.add_column(column, overflow="fold")
    for row in rows[:_MOST_ROWS]:
        table.add_row(*(Text(_short(cell)) for cell in row))
    return table


def _times(op: str, count: int) -> str:
    """Name an op, and how many like it a place of the source has become."""
    return op if count == 1 else f"{op} ({count} x)"


def _short(cell: str) -> str:
    """Shorten a place in the source to the file's name, `mlp.py:8:16`; anything else stays. JSON has the full path."""
    return os.path.basename(cell) if _PLACE.fullmatch(cell) else cell


def human_bytes(nbytes: float) -> str:
    """Write a number of bytes with three digits and a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.3g} {unit}"
