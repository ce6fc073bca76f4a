"""The commands, run in a fork of this process: as fast as a call, and no crash or hang of theirs is ours.

MLIR is loaded once, here; the child has the guard and the signals of the real command.
"""

import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patience import wait_for

ROOT = Path(__file__).resolve().parent.parent
MODULES = {"meshweave": "meshweave.tools.cli", "meshweave-opt": "meshweave.tools.opt"}

SECONDS = 20
"""Of an idle machine, after which a command is taken to hang: its status is then 128 + SIGALRM."""

MEMORY = 8 << 30
"""Bytes of address space that a command gets beside what it finds: one that takes all memory must not take the
machine's. A process of many tests has the stacks of many idle ranks."""


@dataclass(frozen=True)
class Outcome:
    """What a command did: exit status and what it wrote."""

    status: int
    out: str
    err: str


def meshweave(*arguments: Any, stdin: bytes = b"") -> Outcome:
    """`meshweave ARGUMENTS`."""
    from meshweave.tools import cli

    return _forked(cli.command, "meshweave", arguments, stdin)


def meshweave_opt(*arguments: Any, stdin: bytes = b"") -> Outcome:
    """`meshweave-opt ARGUMENTS`."""
    from meshweave.tools import opt

    return _forked(opt.run, "meshweave-opt", arguments, stdin)


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
        out, err = process.communicate(stdin, timeout=SECONDS)
    finally:
        process.kill()
    return Outcome(process.returncode, out, err)


def _forked(
    command: Callable[..., int], name: str, arguments: tuple[Any, ...], stdin: bytes
) -> Outcome:
    load()
    from meshweave.tools.guard import guarded

    texts = [str(a) for a in arguments]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, stream) for stream in ("in", "out", "err")]
        files[0].write_bytes(stdin)
        child = os.fork()
        if child == 0:
            try:
                _take(files)
                most = _address_space() + MEMORY
                resource.setrlimit(resource.RLIMIT_AS, (most, most))
                os._exit(guarded(lambda stage: command(texts, stage), name))
            finally:
                os._exit(70)
        code, is_late = wait_for(child, SECONDS, signal.SIGALRM)
        status = 128 + signal.SIGALRM if is_late else code if code >= 0 else 128 - code
        return Outcome(status, files[1].read_text(), files[2].read_text(errors="replace"))


def _address_space() -> int:
    """Bytes of address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def load() -> None:
    """Everything heavy, once for all children."""
    import meshweave.frontends.entry
    import meshweave.lowering
    import meshweave.pipeline
    import meshweave.tools.run  # noqa: F401


def _take(files: list[Path]) -> None:
    """Standard input, output and error of this process become these files (pytest's stand there)."""
    for number, file in enumerate(files):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), number)
    sys.stdin = os.fdopen(0, "r")
    sys.stdout = os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1)
