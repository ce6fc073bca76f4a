"""Measure this machine for predictions: what a core multiplies and copies, what collectives take; read and write that.

    [machine]
    iteration = 2.1e-11     # seconds of a multiply-add in the loops of an op
    copy_beta = 1.3e-10     # seconds of a byte read or written
    launch = 2.2e-05        # seconds to enter and leave a collective
    alpha = 1.1e-05         # seconds of a message
    beta = 3.1e-10          # seconds of a byte received

All ranks work at once while they are measured, as in a program: where they share cores, a rank is that much slower.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshweave.errors import UsageError, did_you_mean
from meshweave.layout.mesh import Link
from meshweave.plan.cost import SHARED_MEMORY, Profile
from meshweave.plan.placement.prices import MachinePrices
from meshweave.see.budget import read_toml

KEYS = ("iteration", "copy_beta", "launch", "alpha", "beta")
SECONDS = 0.6  # that each figure is measured for
PRODUCT, LONG, SHORT, WIDE = 512, 1 << 21, 16, 1 << 21  # rows of a product; elements on a rank


def prices_text(prices: MachinePrices, about: str) -> str:
    """Return a machine as a file of TOML. about: where the numbers come from."""
    profile = prices.profile
    rates = (prices.iteration, profile.copy_beta, profile.launch, *_link(profile))
    rows = [f"{key} = {rate:.3e}" for key, rate in zip(KEYS, rates)]
    return "\n".join((f"# {about}", "[machine]", *rows, ""))


def _link(profile: Profile) -> tuple[float, float]:
    return profile.link.alpha, profile.link.beta


def read_prices(path: str | Path) -> MachinePrices:
    """Read a machine from a file. Raises UsageError, which names the file and the key, for what is none."""
    given = read_toml(path).get("machine")
    if not isinstance(given, dict):
        raise UsageError(f"{path}: a table [machine] with {', '.join(KEYS)} is right")
    for key, rate in given.items():
        if key not in KEYS:
            near = did_you_mean(key, KEYS) or f"; there are {', '.join(KEYS)}"
            raise UsageError(f'{path}: a machine has no "{key}"{near}')
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1e9:
            raise UsageError(f"{path}: {key} is {rate!r:.40}: seconds, 0 or more, are right")
    rates = {
        "iteration": MachinePrices().iteration,
        "copy_beta": SHARED_MEMORY.copy_beta,
        "launch": SHARED_MEMORY.launch,
        **dict(zip(("alpha", "beta"), _link(SHARED_MEMORY))),
        **given,
    }
    link = Link(float(rates["alpha"]), float(rates["beta"]))
    profile = Profile(link, float(rates["launch"]), float(rates["copy_beta"]))
    return MachinePrices(profile, float(rates["iteration"]))


@dataclass(frozen=True)
class _Bench:
    """Hold a mesh of one axis, on which everything is measured."""

    ranks: int

    @property
    def mesh(self) -> str:
        return f"x={self.ranks}"

    def array(self, rows: int, width: int, layout: str) -> Any:
        """Return ones, `rows` of them on each rank."""
        import meshweave as mw

        value = np.ones((rows * self.ranks, width), np.float32)
        return mw.Array.from_numpy(value, mesh=self.mesh, layout=layout)

    def seconds(self, action: Callable[[], Any]) -> float:
        """Return the least seconds of an action that is repeated for a while."""
        action(), action()
        ends, best = time.perf_counter() + SECONDS, float("inf")
        while time.perf_counter() < ends or best == float("inf"):
            began = time.perf_counter()
            action()
            best = min(best, time.perf_counter() - began)
        return best

    def call(self) -> float:
        """Return the seconds of a call that computes nothing to speak of."""
        import meshweave as mw

        x = self.array(SHORT, 1, "[x, _]")
        f = mw.jit(lambda a: a + a, mesh=self.mesh)
        return self.seconds(lambda: f(x))

    def iteration(self, call: float) -> float:
        """Return the seconds of a multiply-add of a product, on each rank at once."""
        import meshweave as mw

        x, w = self.array(PRODUCT, PRODUCT, "[x, _]"), np.ones((PRODUCT, PRODUCT), np.float32)
        whole = mw.Array.from_numpy(w, mesh=self.mesh, layout="[_, _]")
        f = mw.jit(lambda a, b: a @ b, mesh=self.mesh)
        return max(self.seconds(lambda: f(x, whole)) - call, 0.0) / PRODUCT**3

    def copy(self, call: float) -> float:
        """Return the seconds of a byte that is read or written, on each rank at once."""
        import meshweave as mw

        x = self.array(LONG, 1, "[x, _]")
        f = mw.jit(lambda a: a + a, mesh=self.mesh)
        return max(self.seconds(lambda: f(x)) - call, 0.0) / (8 * LONG)

    def gather(self, elements: int) -> float:
        """Return the seconds of an all_gather in which each rank gives so many elements."""
        import meshweave as mw

        x = self.array(elements, 1, "[x, _]")
        f = mw.jit(lambda a: mw.redistribute(a + a, "[_, _]"), mesh=self.mesh, out_layouts="[_, _]")
        return self.seconds(lambda: f(x))


def measured(ranks: int | None = None) -> tuple[MachinePrices, str]:
    """Return what this machine takes on engine "local", and a sentence on how that was found.

    ranks: that work at once; None: one for each core, 2 at least. A launch counts as twice a message, since groups of
    one size cannot tell them apart.
    """
    ranks = ranks or min(max(2, len(os.sched_getaffinity(0))), 16)
    bench = _Bench(ranks)
    call = bench.call()
    iteration, copy = bench.iteration(call), bench.copy(call)
    short, long = bench.gather(SHORT), bench.gather(WIDE // ranks)
    received = 4 * (WIDE // ranks) * (ranks - 1)
    once = max(short - call, 0.0)
    worked = 8 * (WIDE // ranks) * copy  # the addition in front of the gather
    beta = max(long - short - worked, 0.0) / received
    launch = once / (1 + (ranks - 1) / 2)
    profile = Profile(Link(launch / 2, beta), launch, copy)
    about = f"measured on engine local, {ranks} ranks, {os.cpu_count()} cores"
    return MachinePrices(profile, iteration), about
