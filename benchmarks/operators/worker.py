"""Measure cases in a process of its own, so that one that crashes or hangs takes no other with it.

It reads the number of a case a line, and answers with a line of JSON. Ours and the peers run on one core, by turns,
from arrays that lie where they belong to arrays; the least of each counts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import jax
import ml_dtypes
import numpy as np

import meshweave as mw
from benchmarks.operators.case import RANKS, Case, Split
from benchmarks.operators.families import CASES
from meshweave.api.program import reported
from meshweave.errors import MeshweaveError

try:
    import torch
except ImportError:
    torch = None

LEAST = 2e-4  # seconds of calls that are timed together
LONG = 1.0  # seconds of a call that is not repeated
ROUGH = {"f16": 1e-2, "bf16": 6e-2}  # of the largest element; f32 and the rest:
FINE = 2e-4

Action = Callable[[], Any]


def turns(actions: dict[str, Action], budget: float) -> dict[str, float]:
    """Return the least seconds of a call of each; they run by turns until the budget of seconds is spent."""
    counts, least = {}, {}
    for name, action in actions.items():
        action()
        least[name] = _seconds(action, 1)
        counts[name] = max(1, round(LEAST / max(least[name], 1e-7)))
    again = [name for name in actions if least[name] < LONG]
    end = time.perf_counter() + budget * len(again)
    while time.perf_counter() < end:
        for name in again:
            least[name] = min(least[name], _seconds(actions[name], counts[name]))
    return least


def _seconds(action: Action, count: int) -> float:
    """Return the seconds of a call, of `count` that are timed together."""
    began = time.perf_counter()
    for _ in range(count):
        action()
    return (time.perf_counter() - began) / count


def _tensor(array: np.ndarray[Any, Any]) -> Any:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


class Ours:
    """A case compiled by meshweave, with its arguments where they belong."""

    def __init__(self, case: Case, arrays: list[Any], split: Split | None) -> None:
        """split: of two ranks; None: one rank."""
        layouts = split.layouts if split else (None,) * len(arrays)
        self.program = mw.from_jax(
            case.function(jax),
            *arrays,
            in_shardings=layouts if split else None,
            mesh=f"x={RANKS}" if split else None,
        )
        placed = zip(arrays, layouts, strict=True)
        self.arguments = [self._placed(array, layout) for array, layout in placed]

    def _placed(self, array: np.ndarray[Any, Any], layout: str | None) -> Any:
        whole = f"[{', '.join('_' * array.ndim)}]"
        return mw.Array.from_numpy(array, mesh=self.program.mesh, layout=layout or whole)

    def __call__(self) -> Any:
        return self.program(*self.arguments)

    def received(self) -> int:
        """Return the bytes that the busiest rank receives."""
        decided = reported(self.program.text, "case", None, "local", verify=False)
        return sum(row.nbytes for row in decided.collectives)


def error(case: Case, ours: Any, theirs: Any) -> float:
    """Return the largest difference over what is allowed, relative to the largest element."""
    allowed = max([ROUGH.get(text.split("[")[0], FINE) for text in case.arguments])
    worst = 0.0
    for mine, right in zip(
        jax.tree.leaves(ours, is_leaf=_is_array), jax.tree.leaves(theirs), strict=True
    ):
        a, b = (np.asarray(x).astype(np.float64) for x in (mine, right))
        if a.shape != b.shape:
            return float("inf")
        if not a.size:
            continue
        with np.errstate(invalid="ignore"):
            apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        largest = float(np.abs(b[np.isfinite(b)]).max(initial=1e-30))
        worst = max(worst, float(np.nan_to_num(apart, nan=np.inf).max()) / largest / allowed)
    return worst


def _is_array(value: Any) -> bool:
    return isinstance(value, mw.Array)


def _peers(case: Case, arrays: list[Any]) -> tuple[dict[str, Action], dict[str, str]]:
    """Return what the peers run, and what they said where they cannot."""
    actions: dict[str, Action] = {}
    said: dict[str, str] = {}
    on_device = [jax.numpy.asarray(a) for a in arrays]
    compiled = jax.jit(case.function(jax))
    actions["jax"] = lambda: jax.block_until_ready(compiled(*on_device))
    written = case.torch_function(torch) if torch else None
    if written is not None:
        tensors = [_tensor(a) for a in arrays]
        actions["torch"] = lambda: written(*tensors)
    for name in list(actions):
        try:
            actions[name]()
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as fault:
            said[name] = _first_line(fault)
            del actions[name]
    return actions, said


def _first_line(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {str(fault).strip() or '-'}".splitlines()[0][:200]


def measured(case: Case, budget: float, ranks: bool, cores: set[int]) -> dict[str, Any]:
    """Measure a case: seconds of ours and of the peers, of two ranks, and bytes that they receive."""
    wide = any("64[" in text for text in case.arguments)
    with jax.enable_x64(True) if wide else nullcontext():
        arrays = case.drawn()
        os.sched_setaffinity(0, {min(cores)})
        actions, said = _peers(case, arrays)
        found: dict[str, Any] = {"peers": said}
        try:
            ours = Ours(case, arrays, None)
            if "jax" in actions:
                found["error"] = error(case, ours(), actions["jax"]())
            found["seconds"] = turns({"ours": ours, **actions}, budget)
            os.sched_setaffinity(0, cores)
            if ranks:
                found |= _shared(case, arrays, budget, ours())
        except MeshweaveError as fault:
            found["refused"] = str(fault).splitlines()[0][:300]
        finally:
            os.sched_setaffinity(0, cores)
    return found


def _shared(case: Case, arrays: list[Any], budget: float, right: Any) -> dict[str, Any]:
    """Compile and run a case on two ranks, for each way to cut it."""
    found: dict[str, Any] = {"received": {}, "two": {}}
    for way, split in (("dp", case.dp), ("tp", case.tp)):
        if split is None:
            continue
        try:
            ours = Ours(case, arrays, split)
            found["received"][way] = ours.received()
            apart = error(case, ours(), jax.tree.map(np.asarray, right, is_leaf=_is_array))
            found["error"] = max(found.get("error", 0.0), apart)
            found["two"][way] = turns({"ours": ours}, budget)["ours"]
            ours.program.close()
        except MeshweaveError as fault:
            found[f"refused_{way}"] = str(fault).splitlines()[0][:300]
    return found


def main(lines: Iterable[str]) -> None:
    """Answer each number of a case."""
    ranks, budget, cores = sys.argv[1] == "ranks", float(sys.argv[2]), os.sched_getaffinity(0)
    if torch is not None:
        torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(cores)})
    jax.devices()  # its threads are made for the cores that there are now
    for line in lines:
        case = CASES[int(line)]
        try:
            answer = measured(case, budget, ranks, cores)
        except Exception as fault:  # a fault of the compiler's own: what the sweep is to find
            answer = {"fault": _first_line(fault)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.stdin)
