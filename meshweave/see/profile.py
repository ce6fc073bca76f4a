"""Measure this machine for predictions: what a core computes and its memory gives, what collectives take.

    [machine]
    iteration = 4.1e-11     # seconds of an addition in the loops of an op, among many
    function = 5.3e-10      # seconds of an exponential
    kernel = 3.0e-07        # seconds to start a kernel
    call = 2.0e-05          # seconds to call a program
    copy_beta = 1.3e-10     # seconds of a byte read or written in memory
    products = [..]         # seconds of a multiply-add in products whose least side is 1, 4, 16, 64, 256
    read = [..]             # seconds of a byte that was touched 512 KiB, 8 MiB, 128 MiB ago, to read it
    written = [..]          # and to write it

    [local]                 # an engine; in a file without such tables these stand in [machine]
    launch = 2.6e-06        # seconds to enter and leave a collective
    alpha = 1.3e-06         # seconds of a message
    beta = 1.5e-10          # seconds of a byte received

All ranks work at once while they are measured, as in a program: where they share memory, a rank is that much slower.
What a rank computes is taken from the processor time of all ranks, so that other work on the machine counts little.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from meshweave.errors import UsageError, did_you_mean
from meshweave.layout.mesh import Link
from meshweave.plan.cost import Profile
from meshweave.plan.placement.prices import SIDES, SIZES, MachinePrices
from meshweave.see.budget import read_toml

NUMBERS = ("iteration", "function", "kernel", "call", "copy_beta")
TABLES = {"products": SIDES, "read": SIZES, "written": SIZES}
LINK = ("launch", "alpha", "beta")
ENGINES = ("local", "mpi", "nccl")
KNOWN = Path(__file__).with_name("machines")
SECONDS = 0.1  # that each figure is measured for
WIDTH, LONG = 256, 1 << 17  # of products; elements of a rank that its cache holds
CHAIN = 32  # collectives of a program that follow one another
WIDE = 1 << 19  # elements of a rank in a collective


def prices_text(prices: MachinePrices, about: str, links: dict[str, Profile] | None = None) -> str:
    """Return a machine as a file of TOML. about: where the numbers come from. links: of engines, by name."""
    profile = prices.profile
    numbers = {name: getattr(prices, name) for name in NUMBERS[:-1]}
    rows = [f"{name} = {rate:.3e}" for name, rate in numbers.items()]
    rows.append(f"copy_beta = {profile.copy_beta:.3e}")
    for name, at in TABLES.items():
        rates = ", ".join(f"{rate:.3e}" for rate in getattr(prices, name))
        rows.append(f"{name} = [{rates}]  # at {', '.join(map(str, at))}")
    for engine, own in (links or {"local": profile}).items():
        three = zip(LINK, (own.launch, own.link.alpha, own.link.beta))
        rows += ["", f"[{engine}]", *[f"{key} = {rate:.3e}" for key, rate in three]]
    return "\n".join((f"# {about}", "[machine]", *rows, ""))


def read_prices(path: str | Path, engine: str = "local") -> MachinePrices:
    """Read a machine from a file, or one that comes along: h100, h200, ethernet.

    engine: whose links count; where a file has none of it, those that it has.
    Raises UsageError, which names the file and the key, for what is none.
    """
    along = KNOWN / f"{path}.toml"
    given = read_toml(along if along.is_file() else path)
    known = ("machine", *ENGINES)
    for name, table in given.items():
        keys = (*NUMBERS, *LINK, *TABLES) if name in ("machine", *NUMBERS, *TABLES) else LINK
        if not isinstance(table, dict):
            where = name if name in ENGINES else "machine"
            raise UsageError(f"{path}: a table [{where}] with {', '.join(keys)} is right")
        if name not in known:
            near = did_you_mean(name, known) or f"; there are {', '.join(known)}"
            raise UsageError(f'{path}: a machine has no "{name}"{near}')
        for key, rate in table.items():
            _check(path, key, rate, keys)
    if not given:
        raise UsageError(
            f"{path}: a table [machine] with {', '.join((*NUMBERS, *TABLES))} is right"
        )
    prices = MachinePrices()
    profile, own = prices.profile, dict(given.get("machine", {}))
    links = [given[name] for name in (engine, *ENGINES) if name in given]
    links.append({key: own.pop(key) for key in LINK if key in own})
    copied = float(own.pop("copy_beta", profile.copy_beta))
    has = {"launch": profile.launch, "alpha": profile.link.alpha, "beta": profile.link.beta}
    launch, alpha, beta = (float({**has, **links[0]}[key]) for key in LINK)
    rates: dict[str, Any] = {
        k: tuple(map(float, v)) if k in TABLES else float(v) for k, v in own.items()
    }
    return replace(prices, profile=Profile(Link(alpha, beta), launch, copied), **rates)


def _check(path: str | Path, key: str, rate: object, keys: Sequence[str]) -> None:
    """Raise UsageError unless a key is known and has seconds, as many as are right."""
    if key not in keys:
        near = did_you_mean(key, keys) or f"; there are {', '.join(keys)}"
        raise UsageError(f'{path}: a machine has no "{key}"{near}')
    many = len(TABLES[key]) if key in TABLES else None
    rows = rate if many is not None and isinstance(rate, list) else [rate]
    good = [isinstance(r, int | float) and not isinstance(r, bool) and 0 <= r < 1e9 for r in rows]
    if not all(good) or len(rows) != (many or 1):
        right = f"{many} numbers of seconds" if many else "seconds"
        raise UsageError(f"{path}: {key} is {rate!r:.40}: {right}, 0 or more, are right")


@dataclass(frozen=True)
class _Bench:
    """Measure programs on a mesh of one axis."""

    ranks: int
    engine: str = "local"

    @property
    def mesh(self) -> str:
        return f"x={self.ranks}"

    def seconds(self, function: Callable[..., Any], layout: str, *values: Any) -> float:
        """Return the least seconds of a rank in a program that is called for a while.

        On engine local they are of the processor; between processes, of the clock.
        """
        import meshweave as mw

        whole = [f"[{', '.join(['_'] * np.ndim(v))}]" for v in values]
        layouts = (layout, *whole[1:])
        jitted = mw.jit(function, mesh=self.mesh, in_layouts=layouts, engine=self.engine)
        compiled = jitted.lower(*values).compile()
        arrays = [
            mw.Array.from_numpy(v, mesh=self.mesh, layout=text) for v, text in zip(values, layouts)
        ]
        clock = time.process_time if self.engine == "local" else time.perf_counter
        share = self.ranks if self.engine == "local" else 1
        try:
            compiled.call(arrays)
            ends, best = time.perf_counter() + SECONDS, float("inf")
            while time.perf_counter() < ends or best == float("inf"):
                began = clock()
                compiled.call(arrays)
                best = min(best, clock() - began)
        finally:
            compiled.close()
            jitted.close()
        return best / share

    def ones(self, rows: int, *dims: int) -> Any:
        """Return an array of `rows` on each rank."""
        return np.full((rows * self.ranks, *dims), 0.5, np.float32)

    def product(self, side: int, call: float) -> float:
        """Return the seconds of a multiply-add of products with a least side."""
        many = max(4, 64 // side)

        def chain(x: Any, w: Any) -> Any:
            for _ in range(many):
                x = x @ w
            return x

        w = np.full((WIDTH, WIDTH), 1 / WIDTH, np.float32)
        taken = self.seconds(chain, "[x, _]", self.ones(side, WIDTH), w) - call
        return max(taken, 0.0) / (many * side * WIDTH**2)

    def kernel(self, call: float) -> float:
        """Return the seconds that a kernel takes to start."""
        many = 64

        def chain(x: Any, w: Any) -> Any:
            for _ in range(many):
                x = x @ w
            return x

        w = np.full((4, 4), 0.25, np.float32)
        return max(self.seconds(chain, "[x, _]", self.ones(4, 4), w) - call, 0.0) / many

    def loops(self, function: Callable[[Any], Any], call: float) -> float:
        """Return the seconds of an element of loops over what the cache holds."""
        return max(self.seconds(function, "[x]", self.ones(LONG)) - call, 0.0) / LONG

    def byte(self, nbytes: int, call: float) -> float:
        """Return the seconds of a byte read or written by loops that touch so many bytes."""
        taken = self.seconds(lambda x: x * 0.5, "[x]", self.ones(nbytes // 8)) - call
        return max(taken, 0.0) / nbytes

    def read(self, nbytes: int, call: float) -> float:
        """Return the seconds of a byte of a matrix of so many bytes that is multiplied with a vector."""
        matrix = self.ones(nbytes // (4 * WIDTH), WIDTH)
        taken = self.seconds(lambda w, x: w @ x, "[x, _]", matrix, np.ones(WIDTH, np.float32))
        return max(taken - call, 0.0) / nbytes

    def launch(self, machine: MachinePrices) -> float:
        """Return the seconds of a sum over all ranks of one number."""
        import meshweave as mw

        def chain(x: Any) -> Any:
            for _ in range(CHAIN):
                x = x / (1.0 + mw.mean(x))
            return x

        taken = self.seconds(chain, "[x]", self.ones(16)) - machine.call
        return max(taken / CHAIN - 2 * machine.kernel, 1e-8)

    def received(self, target: str) -> float:
        """Return the seconds to redistribute rows of WIDE elements on each rank."""
        import meshweave as mw

        value = self.ones(WIDE // 512, 512)
        alone = self.seconds(lambda x: x * 0.5, "[x, _]", value)
        return self.seconds(lambda x: mw.redistribute(x * 0.5, target), "[x, _]", value) - alone


def measured(
    ranks: int | None = None, engines: Sequence[str] = ("local",)
) -> tuple[MachinePrices, str, dict[str, Profile]]:
    """Return what this machine takes, a sentence on how that was found, and the links of engines.

    ranks: that work at once; None: one for each core, 2 at least. A launch counts as twice a message, since groups of
    one size cannot tell them apart.
    """
    import meshweave as mw

    ranks = ranks or min(max(2, len(os.sched_getaffinity(0))), 16)
    bench = _Bench(ranks)
    call = bench.seconds(lambda x: x + x, "[x]", bench.ones(16))
    copied = [bench.byte(nbytes, call) for nbytes in SIZES]
    read = [min(bench.read(nbytes, call), copied[i]) for i, nbytes in enumerate(SIZES)]
    cached = 8 * copied[0]  # of an element that is read and written

    def exponentials(x: Any) -> Any:
        return mw.exp(-mw.exp(-mw.exp(-mw.exp(-x))))

    def additions(x: Any) -> Any:
        for n in range(32):
            x = mw.maximum(x * 0.5, 0.25 * n)
        return x

    found = MachinePrices(
        iteration=max(bench.loops(additions, call) - cached, 0.0) / 64,
        function=max(bench.loops(exponentials, call) - cached, 0.0) / 4,
        kernel=bench.kernel(call),
        call=call,
        products=tuple(bench.product(side, call) for side in SIDES),
        read=tuple(read),
        written=tuple(2 * both - one for both, one in zip(copied, read)),
    )
    links = {engine: _link(_Bench(ranks, engine), found) for engine in engines}
    about = f"measured on engine {' and '.join(engines)}, {ranks} ranks, {os.cpu_count()} cores"
    return replace(found, profile=links[engines[0]]), about, links


def _link(bench: _Bench, machine: MachinePrices) -> Profile:
    """Return the links of an engine: of a sum of one number, and of rows that are gathered, or become columns."""
    call = bench.seconds(lambda x: x + x, "[x]", bench.ones(16))
    ring = bench.launch(replace(machine, call=call))  # a launch and 2 (ranks - 1) messages
    launch = ring / (1 + (bench.ranks - 1))
    part = 4 * WIDE * (bench.ranks - 1)
    taken = bench.received("[_, _]") + bench.received("[_, x]")
    beta = (taken - 2 * launch * (1 + (bench.ranks - 1) / 2)) / (part + part / bench.ranks)
    return Profile(Link(launch / 2, max(beta, 1e-12)), launch, _copied(machine))


def _copied(machine: MachinePrices) -> float:
    return (machine.read[-1] + machine.written[-1]) / 2
