"""Tests on GPUs: skipped, each by name, on a machine without one.

`--gpu-engine emulate` runs them on the emulator instead: so that they are right before they meet a
device. `--gpu-bundles DIR` takes compiled programs from a folder, and puts there those that are not:
for a machine with a GPU and no compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.gpu.device import Device, gpus
from benchmarks.gpu.programs import Case
from meshweave.api.program import Program
from meshweave.bundle import Bundle
from meshweave.runtime import engine

HERE = Path(__file__).parent
NO_GPU = "no GPU"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu-engine", default="nccl", help="nccl, or emulate where there is no GPU")
    parser.addoption("--gpu-bundles", metavar="DIR", help="compiled programs, taken and kept")
    parser.addoption("--gpu-chip", default=None, help="instead of the GPU's own")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--gpu-engine", "nccl") != "nccl" or gpus():
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=NO_GPU))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [r for r in terminalreporter.stats.get("skipped", ()) if NO_GPU in str(r.longrepr)]
    if skipped:
        terminalreporter.write_line(f"skipped: {NO_GPU} ({len(skipped)} tests)")


@pytest.fixture(scope="session")
def runs_on(request: pytest.FixtureRequest) -> str:
    """The engine."""
    return request.config.getoption("--gpu-engine", "nccl")


@pytest.fixture(scope="session")
def bundle_of(request: pytest.FixtureRequest, runs_on: str) -> Callable[..., Bundle]:
    """The compiled program of a case: `bundle_of(case, dtype)`."""
    folder = request.config.getoption("--gpu-bundles", None)
    asked = request.config.getoption("--gpu-chip", None)
    made_for = asked or (Device().chip if runs_on == "nccl" else "sm_90")

    def find(case: Case, dtype: str) -> Bundle:
        if folder is None:
            return case.build(dtype, runs_on, made_for)
        path = Path(folder) / f"{case.name}_{dtype}_{made_for}.mwb"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            case.build(dtype, runs_on, made_for).write(path)
        return Bundle.read(path)

    return find


@pytest.fixture
def load(runs_on: str) -> Iterator[Callable[..., Program]]:
    """`load(bundle, **options)`: a loaded program, closed at the end. Where there are fewer GPUs than
    ranks, ranks share them.
    """
    loaded: list[Program] = []

    def loading(bundle: Bundle, **options: object) -> Program:
        if runs_on == "nccl":
            ranks = 1
            for size in bundle.manifest.mesh.split(","):
                ranks *= int(size.split("=")[1])
            options = {"share": ranks > gpus(), **options}
        program = Program(bundle, engine(runs_on, timeout=120.0, **options))
        loaded.append(program)
        return program

    yield loading
    for program in loaded:
        program.close()
