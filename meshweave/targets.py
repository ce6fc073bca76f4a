"""Describe targets and engines: what code is made for, and what runs it.

A new engine is a class with the methods of `runtime.engine.Engine` and a row in `ENGINES`. Both the compiler and the
runtime ask the row for a trait; neither asks for an engine by its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshweave.device import CHIPS
from meshweave.errors import UsageError, did_you_mean

TARGETS: dict[str, tuple[str, ...]] = {"cpu": (), "gpu": tuple(CHIPS)}
"""Each target, and the chips that it makes code for."""
CHIP = "sm_90"  # the default chip


@dataclass(frozen=True)
class EngineTraits:
    """Describe one engine: the code it runs, and what that code may rely on.

    home:          "module:Class"; imported when the engine is asked for.
    target:        what its code is made for.
    processes:     each rank is a process of its own; otherwise all ranks are threads of the caller's process.
    reads_peers:   ranks see each other's buffers, so that a collective copies straight out of them.
    shares_window: ranks of one host share a window of memory through which collectives go.
    rank_bytes:    memory that a rank takes besides its buffers.
    options:       switches of `meshweave run` that its class takes.
    install:       the command that installs what the engine needs.
    """

    name: str
    home: str
    target: str = "cpu"
    processes: bool = False
    reads_peers: bool = False
    shares_window: bool = False
    rank_bytes: int = 0
    options: tuple[str, ...] = ()
    install: str = "pip install meshweave"

    def runs_code_of(self, other: EngineTraits) -> bool:
        """Tell whether a program compiled for `other` runs on this engine too."""
        return (
            self.target == other.target
            and self.reads_peers == other.reads_peers
            and self.shares_window == other.shares_window
        )


_ROWS = (
    EngineTraits(
        "local",
        "meshweave.runtime.local.engine:LocalEngine",
        reads_peers=True,
        rank_bytes=1 << 16,
    ),
    EngineTraits(
        "mpi",
        "meshweave.runtime.mpi.engine:MpiEngine",
        processes=True,
        shares_window=True,
        rank_bytes=48 << 20,
    ),
    EngineTraits(
        "nccl",
        "meshweave.runtime.gpu.engine:NcclEngine",
        target="gpu",
        processes=True,
        rank_bytes=256 << 20,
        options=("graph", "share"),
        install="pip install 'meshweave[gpu-run]'",
    ),
    EngineTraits(
        "emulate",
        "meshweave.simulator.engine:EmulateEngine",
        target="gpu",
        install="pip install 'meshweave[simulator]'",
    ),
)
ENGINES: dict[str, EngineTraits] = {row.name: row for row in _ROWS}
"""Each engine by its name; the first of a target is the target's default."""


def engine_traits(name: str) -> EngineTraits:
    """Return the row of an engine. Raises UsageError when there is none of that name, or for what is no name."""
    if not isinstance(name, str):
        raise UsageError(
            f"engine {type(name).__name__}(..): an engine's name is right: {', '.join(ENGINES)}; "
            "mw.Program(bundle, engine) takes an engine that is made already"
        )
    if name not in ENGINES:
        raise UsageError(f'no engine "{name}"{_near(name, ENGINES)}')
    return ENGINES[name]


def engines_of(target: str) -> tuple[str, ...]:
    """List the engines that run a target's programs, the default first."""
    return tuple(row.name for row in ENGINES.values() if row.target == target)


@dataclass(frozen=True)
class Goal:
    """Say what a program is compiled for. chip: empty for a target without chips."""

    target: str = "cpu"
    engine: str = "local"
    chip: str = ""

    @property
    def traits(self) -> EngineTraits:
        """Return the row of the engine."""
        return ENGINES[self.engine]

    @staticmethod
    def of(target: str | None = None, engine: str | None = None, chip: str | None = None) -> Goal:
        """Complete what is asked for: an engine has its target, a target its first engine, and its chip is CHIP.

        A target without chips has none. Raises UsageError when a part is unknown or the parts do not fit together.
        """
        if target is not None and target not in TARGETS:
            raise UsageError(f'no target "{target}"{_near(target, TARGETS)}')
        runner = engine_traits(engine or engines_of(target or Goal.target)[0])
        target = target or runner.target
        if runner.target != target:
            right = " or ".join(engines_of(target))
            raise UsageError(
                f"engine {engine} runs target {runner.target}: target {target} needs engine {right}"
            )
        chips = TARGETS[target]
        if chip is not None and not chips:
            right = " or ".join(name for name, some in TARGETS.items() if some)
            raise UsageError(f"chip {chip}: target {target} has no chips, target {right} has")
        if chip is not None and chip not in chips:
            raise UsageError(f'no chip "{chip}"{_near(chip, chips)}')
        return Goal(target, runner.name, (chip or CHIP) if chips else "")


def _near(name: str, names: Iterable[str]) -> str:
    """Suggest the nearest known name, or list all of them."""
    return did_you_mean(name, names) or f"; there are {', '.join(names)}"
