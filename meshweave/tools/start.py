"""Where the commands of the shell begin: Ctrl-C is one line from the first moment on, while the rest still loads."""

import sys
from importlib import import_module

INTERRUPTED = 130
"""Exit status after Ctrl-C, as of any command that SIGINT ends."""


def meshweave() -> int:
    """The command `meshweave`; returns the exit status."""
    return _started("meshweave", "meshweave.tools.cli")


def meshweave_opt() -> int:
    """The command `meshweave-opt`; returns the exit status."""
    return _started("meshweave-opt", "meshweave.tools.opt")


def _started(name: str, module: str) -> int:
    try:
        return int(import_module(module).main())
    except KeyboardInterrupt:
        return interrupted(name)


def interrupted(name: str) -> int:
    """Say so, in a line; returns the exit status."""
    print(f"{name}: interrupted", file=sys.stderr)
    return INTERRUPTED
