"""Changed programs of StableHLO and MLIR: each compiles and runs, or is refused in one line; none crashes or hangs."""

import signal
import tempfile
from pathlib import Path

from commands import ROOT, SECONDS, Outcome, meshweave, meshweave_opt

from fuzz.search import Kind, Refused
from fuzz.text import changed
from meshweave.errors import MeshweaveError, RankError, UsageError

STATUSES = {error.exit_status for error in (MeshweaveError, UsageError, RankError)}
NO_END = 128 + signal.SIGALRM
MOST = 20_000  # characters of a program that is changed


def _sources(*patterns: str) -> list[str]:
    files = sorted(file for pattern in patterns for file in ROOT.glob(pattern))
    return [text for file in files if len(text := file.read_text()) <= MOST]


STABLEHLO = _sources("tests/data/*.mlir", "tests/data/torch/*.mlir")
MLIR = _sources("lit/transforms/**/*.mlir", "examples/*/*.mlir", "lit/lowering/**/*.mlir")


def _file(folder: str, text: str) -> Path:
    file = Path(folder, "p.mlir")
    file.write_text(text)
    return file


def check(text: str) -> None:
    """Compile a program by the command, in a child process with limits of time and memory, and run it."""
    with tempfile.TemporaryDirectory(prefix="meshweave-fuzz-") as folder:
        bundle = Path(folder, "p.mwb")
        compiled = meshweave("compile", _file(folder, text), "-o", bundle)
        settled(compiled)
        if compiled.status == 0:
            ran = meshweave("run", bundle, "--timeout", SECONDS / 4)
            if ran.status == NO_END:
                raise Refused  # a program may be as long as it likes
            settled(ran)


def check_opt(text: str) -> None:
    """Run the pipeline of the global view on a program."""
    with tempfile.TemporaryDirectory(prefix="meshweave-fuzz-") as folder:
        settled(meshweave_opt(_file(folder, text), "-p", "dist-pipeline"))


def settled(outcome: Outcome) -> None:
    """Raise unless a command worked, or was refused in one line; remarks may come before it."""
    status, err = outcome.status, outcome.err
    assert status != NO_END, f"no end within {SECONDS} s"
    if status:
        assert "crashed" not in err, f"crash: {err}"
        assert "Traceback" not in err and "internal error" not in err, f"traceback: {err}"
        lines = [line for line in err.splitlines() if ": remark: " not in line]
        one = len(lines) == 1 and "error: " in lines[0]
        assert status in STATUSES and one, f"status {status}: {err}"


KINDS = (
    Kind("stablehlo", changed(STABLEHLO), check, seconds=3 * SECONDS, lines=True),
    Kind("mlir", changed(MLIR), check_opt, seconds=3 * SECONDS, lines=True),
)
