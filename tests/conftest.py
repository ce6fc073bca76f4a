"""What all tests share: Hypothesis without deadlines (compiling takes as long as it takes), the
driver as a function, and counts that are printed at the end.
"""

import gc
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shared
from _pytest.runner import runtestprotocol
from commands import Outcome
from depth import DEEP, deep, examples
from hypothesis import HealthCheck, settings

settings.register_profile(
    "meshweave",
    deadline=None,
    max_examples=examples(100),  # of tests that say no number
    derandomize=True,  # the same examples on every run: a failure is a change's, not the day's
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("meshweave")


def pytest_configure(config: pytest.Config) -> None:
    """Every test compiles anew, and leaves the user's cache of compiled programs alone. Ctrl-C means what it means to
    Python, also where a shell runs the tests in its background.
    """
    os.environ["MESHWEAVE_CACHE"] = "off"
    if not DEEP:  # JAX is what results are compared with: here its compiler takes an eighth of the time of such tests
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if shared.OBJECTS not in os.environ:
        os.environ[shared.OBJECTS] = tempfile.mkdtemp(prefix="meshweave-objects-")
        config.add_cleanup(
            lambda: shutil.rmtree(os.environ.pop(shared.OBJECTS), ignore_errors=True)
        )
        shared.share_objects(Path(os.environ[shared.OBJECTS]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Keep the garbage collector away from the modules and tests, which stay: it takes two seconds of each process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # Compiling leaves little garbage, and looking for it took a twentieth.
        gc.set_threshold(20_000, 30, 30)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as deep what a test that is sampled leaves out: of each `every` cases another one, so that none of several
    parameters always has one value.
    """
    seen = Counter[str]()
    for item in items:
        if "times" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))
        sampled = item.get_closest_marker("sampled")
        if sampled is not None and item.get_closest_marker("deep") is None:
            name = item.nodeid.partition("[")[0]
            row, place = divmod(seen[name], sampled.args[0])
            if place != row % sampled.args[0]:
                item.add_marker(deep)
            seen[name] += 1


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a test draw the same numbers whichever tests its process has run before."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


TIMES = pytest.StashKey[int]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: "pytest.Item | None") -> "bool | None":
    """Run a test that has fixture `times` again where it fails, with longer times: on a busy machine a limit that is to
    be over soon is over too soon. What had to be run again is told at the end.
    """
    if "times" not in getattr(item, "fixturenames", ()):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for times in (1, 5, 25):
        item.stash[TIMES] = times
        item._initrequest()  # type: ignore[attr-defined]
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        failed = next((report for report in reports if report.failed), None)
        if failed is None:
            break
        why = getattr(getattr(failed.longrepr, "reprcrash", None), "message", "")
        again = f"count of times too short in {item.nodeid}: {' '.join(why.split())[:400]}"
        item.user_properties.append((again, 1))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture
def times(request: pytest.FixtureRequest) -> int:
    """How many times as long as usual the limits and pauses of this test are."""
    return request.node.stash[TIMES]


@pytest.fixture
def disk_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this test's own for compiled programs, in use."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MESHWEAVE_CACHE", str(folder))
    return folder


@pytest.fixture
def opt(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """`meshweave-opt` in this process: `opt("FILE", "--cse")` gives its Outcome."""
    from meshweave.tools.opt import run

    def call(*arguments: str) -> Outcome:
        capfd.readouterr()
        status = run([str(a) for a in arguments])
        out, err = capfd.readouterr()
        return Outcome(status, out, err)

    return call


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what tests have counted, by `record_property("count of ...", number)`."""
    counts: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, number in report.user_properties:
            if name.startswith("count of "):
                counts[name.removeprefix("count of ")] += number
    for name, number in sorted(counts.items()):
        terminalreporter.write_line(f"{number} {name}")
