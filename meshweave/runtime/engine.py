"""Engines: what runs a bundle. Every engine runs the same local program and answers in the same
way.

An engine loads bundles that were compiled for it; an executable runs on lists of local arrays,
`arrays[rank][index]`. A new engine is a class with these methods and an entry in ENGINES.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from meshweave.bundle import Bundle, Manifest
from meshweave.errors import UsageError
from meshweave.runtime.program import Values


class Call(Protocol):
    """A program bound to buffers. Calling it runs every rank once: no checks, no allocation.

    `inputs[rank][i]` may be written between calls; `outputs[rank][i]` are what the last call wrote.
    Calling raises RankError when a rank raises, dies or stalls.
    """

    inputs: list[list[Values]]
    outputs: list[list[Values]]

    def __call__(self) -> None: ...


class Executable(Protocol):
    """A loaded program."""

    bundle: Bundle
    manifest: Manifest

    def run(self, inputs: Sequence[Sequence[Values]]) -> list[list[Values]]:
        """Run once; the outputs are new arrays.

        MeshweaveError names input, rank and dim of an array that does not fit; RankError names
        rank, op and source line of a failure.
        """

    def bind(self, inputs: Sequence[Sequence[Values]]) -> Call:
        """Prepare calls on fixed buffers that hold these inputs."""

    def close(self) -> None:
        """Let go of threads and memory; the program can not run any more."""


class Engine(Protocol):
    """Somewhere to run bundles."""

    name: str

    def load(self, bundle: Bundle) -> Executable:
        """Load a bundle; MeshweaveError when it is not for this engine or cannot be loaded here."""

    def close(self) -> None:
        """End whatever the engine has started."""


ENGINES = {
    "local": "meshweave.runtime.local:LocalEngine",
    "mpi": "meshweave.runtime.mpi:MpiEngine",
    "nccl": "meshweave.runtime.gpu.engine:NcclEngine",
    "emulate": "meshweave.runtime.gpu.emulate:EmulateEngine",
}
"""Each engine's name and class; it is imported when it is asked for."""


def engine(name: str, **options: Any) -> Engine:
    """The engine of that name: "local", "mpi", "nccl" or "emulate". UsageError when there is none.

    options: `timeout`, seconds without progress after which a run ends with RankError; and those
    of the engine's class.

    >>> from meshweave.runtime import engine
    >>> engine("local", timeout=10.0).name
    'local'
    """
    if name not in ENGINES:
        raise UsageError(f'no engine "{name}"; there are {", ".join(ENGINES)}')
    module, _, kind = ENGINES[name].partition(":")
    made: Engine = getattr(import_module(module), kind)(**options)
    return made
