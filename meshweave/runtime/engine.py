"""Say what an engine does: load a bundle, and run it on local arrays, `arrays[rank][index]`.

Every engine runs the same local program and answers in the same way. A new engine is a class with these methods and
a row in `targets.ENGINES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from meshweave.bundle import Bundle, Manifest
from meshweave.errors import MeshweaveError
from meshweave.runtime.job import current
from meshweave.runtime.memory import Values
from meshweave.targets import ENGINES, engine_traits


class BoundCall(Protocol):
    """Run a program on buffers that it is bound to. A call runs every rank once, without checks or allocation.

    `inputs[rank][i]` may be written between calls; `outputs[rank][i]` hold what the last call wrote.
    Calling raises RankError when a rank raises, dies or stalls.
    """

    inputs: list[list[Values]]
    outputs: list[list[Values]]

    def __call__(self) -> None: ...


class Executable(Protocol):
    """Run a program that an engine has loaded. cores: those that each rank computes on."""

    bundle: Bundle
    manifest: Manifest
    cores: int

    def run(self, inputs: Sequence[Sequence[Values]], fixed: int = 0) -> list[list[Values]]:
        """Run once and return new arrays, `outputs[rank][index]`.

        fixed: how many inputs, the last ones, nobody writes between calls: an engine need not copy them twice.
        Raises MeshweaveError, which names input, rank and dim of an array that does not fit, and RankError, which
        names rank, op and source line of a failure.
        """

    def bind(self, inputs: Sequence[Sequence[Values]]) -> BoundCall:
        """Bind the program to fixed buffers that hold these inputs."""

    def close(self) -> None:
        """Release threads and memory; the program cannot run after that."""


class Engine(Protocol):
    """Load and run bundles."""

    name: str

    def load(self, bundle: Bundle) -> Executable:
        """Load a bundle. Raises MeshweaveError when it is for another engine or cannot be loaded here."""

    def close(self) -> None:
        """End everything that the engine has started."""


def engine(name: str, **options: object) -> Engine:
    """Make the engine of that name: "local", "mpi", "nccl" or "emulate".

    In a job (`mw.init`) "mpi" runs on its processes. options: `timeout`, the seconds without progress after which a run
    ends with RankError; and those of the engine's class. Raises UsageError when there is no such engine, MeshweaveError
    when a part of it is not installed.

    >>> from meshweave.runtime import engine
    >>> engine("local", timeout=10.0).name
    'local'
    """
    row = engine_traits(name)
    module, _, kind = row.home.partition(":")
    if current.current() is not None and name == current.ENGINE:
        module, kind = "meshweave.runtime.job.engine", "JobEngine"
    try:
        home = import_module(module)
    except ModuleNotFoundError as error:
        raise MeshweaveError(
            f"engine {name} needs {error.name}, which is not installed: {row.install}"
        ) from None
    made: Engine = getattr(home, kind)(**options)
    return made


def check_engine(manifest: Manifest, name: str) -> None:
    """Raise MeshweaveError unless engine `name` runs the code of this program."""
    row, made_for = engine_traits(name), ENGINES.get(manifest.engine)
    if manifest.target != row.target:
        raise MeshweaveError(
            f'the bundle is for target "{manifest.target}", engine "{name}" runs "{row.target}"'
        )
    if made_for is None or not row.runs_code_of(made_for):
        raise MeshweaveError(f'the bundle is for engine "{manifest.engine}", not "{name}"')
