"""Measure this machine for predictions: what a core computes and its memory gives, what collectives take.

    [machine]
    iteration = 4.1e-11     # seconds of an addition in the loops of an op, among many
    function = 5.3e-10      # seconds of an exponential
    kernel = 3.0e-07        # seconds to start a kernel
    call = 2.0e-05          # seconds to call a program
    copy_beta = 1.3e-10     # seconds of a byte read or written in memory
    products = [..]         # seconds of a multiply-add in products whose least side is 1, 4, 16, 64, 256
    read = [..]             # seconds of a byte that was touched 512 KiB, 8 MiB, 64 MiB ago, to read it
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
from dataclasses import replace
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
SECONDS, TURN, MOST_CALLS = 0.15, 0.01, 200  # for each program, all by turns; a turn; calls in it
ROW = 1024  # elements of a row of the matrix that is read
WIDTH, LONG = 256, 1 << 17  # of products; elements of a rank that its cache holds
CHAIN, KERNELS = 32, 64  # sums, and kernels, of a program that follow one another
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


class _Bench:
    """Measure programs on a mesh of one axis, all by turns: the least of each is of when the machine had most time."""

    def __init__(self, ranks: int, engine: str) -> None:
        self.ranks, self.engine = ranks, engine
        self.mesh = f"x={ranks}"
        self.best: dict[str, float] = {}
        self._runs: dict[str, tuple[Any, Any, list[Any]]] = {}

    def ones(self, rows: int, *dims: int) -> Any:
        """Return an array of `rows` on each rank."""
        return np.full((rows * self.ranks, *dims), 0.5, np.float32)

    def add(self, name: str, function: Callable[..., Any], layout: str, *values: Any) -> None:
        """Compile a program whose first argument has a layout, and whose others are whole on each rank."""
        import meshweave as mw

        whole = [f"[{', '.join(['_'] * np.ndim(v))}]" for v in values]
        layouts = (layout, *whole[1:])
        jitted = mw.jit(function, mesh=self.mesh, in_layouts=layouts, engine=self.engine)
        arrays = [
            mw.Array.from_numpy(v, mesh=self.mesh, layout=text) for v, text in zip(values, layouts)
        ]
        self._runs[name] = jitted, jitted.lower(*values).compile(), arrays

    def run(self) -> None:
        """Take turns for a while; what is found are seconds of the processor, between processes of the clock."""
        clock = time.process_time if self.engine == "local" else time.perf_counter
        share = self.ranks if self.engine == "local" else 1
        for _, compiled, arrays in self._runs.values():
            compiled.call(arrays)
        ends = time.perf_counter() + SECONDS * len(self._runs)
        self.best = dict.fromkeys(self._runs, float("inf"))
        while time.perf_counter() < ends or float("inf") in self.best.values():
            for name, (_, compiled, arrays) in self._runs.items():
                turn = time.perf_counter() + TURN
                for number in range(MOST_CALLS):
                    began = clock()
                    compiled.call(arrays)
                    if number:  # the first call finds in the caches what another program left
                        self.best[name] = min(self.best[name], (clock() - began) / share)
                    if number and time.perf_counter() > turn:
                        break

    def close(self) -> None:
        """Let the programs go."""
        for jitted, compiled, _ in self._runs.values():
            compiled.close()
            jitted.close()

    def over(self, name: str, other: str = "call") -> float:
        """Return what a program takes more than another one, 0 at least."""
        return max(self.best[name] - self.best[other], 0.0)


def _chain(many: int) -> Callable[[Any, Any], Any]:
    """Return so many products one after the other."""

    def run(x: Any, w: Any) -> Any:
        for _ in range(many):
            x = x @ w
        return x

    return run


def _products(side: int) -> int:
    """Return how many products with a least side are measured in a program."""
    return max(4, 64 // side)


def _add_work(bench: _Bench) -> None:
    """Add what tells the figures of a rank's own work."""
    import meshweave as mw

    def exponentials(x: Any) -> Any:
        return mw.exp(-mw.exp(-mw.exp(-mw.exp(-x))))

    def additions(x: Any) -> Any:
        for n in range(32):
            x = mw.maximum(x * 0.5, 0.25 * n)
        return x

    bench.add("functions", exponentials, "[x]", bench.ones(LONG))
    bench.add("additions", additions, "[x]", bench.ones(LONG))
    bench.add("long", lambda x: x * 0.5, "[x]", bench.ones(LONG))
    few, square = np.full((4, 4), 0.25, np.float32), np.full((WIDTH, WIDTH), 1 / WIDTH, np.float32)
    bench.add("kernels", _chain(KERNELS), "[x, _]", bench.ones(4, 4), few)
    for side in SIDES:
        many = _products(side)
        bench.add(f"product {side}", _chain(many), "[x, _]", bench.ones(side, WIDTH), square)
    row = np.ones(ROW, np.float32)
    for n in SIZES:
        bench.add(f"copy {n}", lambda x: x * 0.5, "[x]", bench.ones(n // 8))
        bench.add(f"read {n}", lambda w, x: w @ x, "[x, _]", bench.ones(n // 4 // ROW, ROW), row)


def _add_moves(bench: _Bench) -> None:
    """Add what tells the links: sums of one number that follow one another, and rows that move."""
    import meshweave as mw

    def sums(x: Any) -> Any:
        for _ in range(CHAIN):
            x = x / (1.0 + mw.mean(x))
        return x

    value = bench.ones(WIDE // 512, 512)
    bench.add("call", lambda x: x + x, "[x]", bench.ones(16))
    bench.add("sums", sums, "[x]", bench.ones(16))
    bench.add("stay", lambda x: x * 0.5, "[x, _]", value)
    bench.add("gather", lambda x: mw.redistribute(x * 0.5, "[_, _]"), "[x, _]", value)
    bench.add("turn", lambda x: mw.redistribute(x * 0.5, "[_, x]"), "[x, _]", value)


def measured(
    ranks: int | None = None, engines: Sequence[str] = ("local",)
) -> tuple[MachinePrices, str, dict[str, Profile]]:
    """Return what this machine takes, a sentence on how that was found, and the links of engines, the first "local".

    ranks: that work at once; None: one for each core, 2 at least. A launch counts as twice a message, since groups of
    one size cannot tell them apart.
    """
    ranks = ranks or min(max(2, len(os.sched_getaffinity(0))), 16)
    found, links = MachinePrices(), dict[str, Profile]()
    for engine in engines:
        bench = _Bench(ranks, engine)
        try:
            _add_moves(bench)
            if engine == engines[0]:
                _add_work(bench)
            bench.run()
        finally:
            bench.close()
        found = _work(bench) if engine == engines[0] else found
        links[engine] = _link(bench, found)
    about = f"measured on engine {' and '.join(engines)}, {ranks} ranks, {os.cpu_count()} cores"
    return replace(found, profile=links[engines[0]]), about, links


def _work(bench: _Bench) -> MachinePrices:
    """Return the figures of a rank's own work."""
    copied = [bench.over(f"copy {n}") / n for n in SIZES]
    read = [min(bench.over(f"read {n}") / n, copied[i]) for i, n in enumerate(SIZES)]
    products = [
        bench.over(f"product {side}") / (_products(side) * side * WIDTH**2) for side in SIDES
    ]
    return MachinePrices(
        iteration=bench.over("additions", "long") / LONG / 63,
        function=bench.over("functions", "long") / LONG / 4,
        kernel=bench.over("kernels") / KERNELS,
        call=bench.best["call"],
        products=tuple(products),
        read=tuple(read),
        written=tuple(2 * both - one for both, one in zip(copied, read)),
    )


def _link(bench: _Bench, machine: MachinePrices) -> Profile:
    """Return the links: a sum of one number is a launch and a message for each rank but one, twice."""
    others = bench.ranks - 1
    ring = max(bench.over("sums") / CHAIN - 2 * machine.kernel, 1e-8)
    launch = ring / (1 + others)
    part = 4 * WIDE * others
    taken = bench.over("gather", "stay") + bench.over("turn", "stay")
    beta = (taken - 2 * launch * (1 + others / 2)) / (part + part / bench.ranks)
    copied = (machine.read[-1] + machine.written[-1]) / 2
    return Profile(Link(launch / 2, max(beta, 1e-12)), launch, copied)
