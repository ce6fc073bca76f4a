"""The commands, run in forks of a process that has loaded them: no crash or hang of theirs is ours.

That process is small: two forks of one that has run many tests take 80 ms. They have the guard and the signals of the
real command.
"""

import os
import runpy
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from patience import ends_within

ROOT = Path(__file__).resolve().parent.parent
MODULES = {"meshweave": "meshweave.tools.cli", "meshweave-opt": "meshweave.tools.opt"}

SECONDS = 60
"""Of an idle machine, after which a command is taken to hang: its status is then 128 + SIGALRM."""


@dataclass(frozen=True)
class Outcome:
    """What a command did: exit status and what it wrote."""

    status: int
    out: str
    err: str


def meshweave(*arguments: Any, stdin: bytes = b"") -> Outcome:
    """`meshweave ARGUMENTS`."""
    return _called("meshweave", arguments, stdin)


def meshweave_opt(*arguments: Any, stdin: bytes = b"") -> Outcome:
    """`meshweave-opt ARGUMENTS`."""
    return _called("meshweave-opt", arguments, stdin)


def start(tool: str, *arguments: Any, **options: Any) -> "subprocess.Popen[str]":
    """The real command, in a session of its own, as a process that has been started."""
    return subprocess.Popen(
        [sys.executable, "-m", MODULES[tool], *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        start_new_session=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )


def real(tool: str, *arguments: Any, stdin: str = "") -> Outcome:
    """The real command, run to its end."""
    process = start(tool, *arguments, stdin=subprocess.PIPE)
    try:
        out, err = process.communicate(stdin)
    finally:
        process.kill()
    return Outcome(process.returncode, out, err)


@cache
def forked() -> SimpleNamespace:
    """Return what lit's commands are run by: a fork each, of one process that has loaded them."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / "lit" / "forked.py"), run_name="forked"))


@cache
def forks() -> str:
    """Start that process, once; return where it listens."""
    return str(forked().start("shared", f"{ROOT}:{ROOT / 'tests'}"))


def _called(name: str, arguments: tuple[Any, ...], stdin: bytes) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, stream) for stream in ("in", "out", "err")]
        files[0].write_bytes(stdin)
        with files[0].open("rb") as given, files[1].open("wb") as out, files[2].open("wb") as err:
            streams = (given.fileno(), out.fileno(), err.fileno())
            call = forked().Call(forks(), [name, *map(str, arguments)], streams)
        is_late = not ends_within(call.server, SECONDS)
        if is_late:
            os.kill(call.runs, signal.SIGALRM)
        status = call.status()
        return Outcome(
            128 + signal.SIGALRM if is_late else status,
            files[1].read_text(),
            files[2].read_text(errors="replace"),
        )


def load() -> None:
    """Load what is heavy, once for all forks of this process."""
    import meshweave.frontends.entry
    import meshweave.lowering
    import meshweave.pipeline
    import meshweave.tools.run  # noqa: F401
