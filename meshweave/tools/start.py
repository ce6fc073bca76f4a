"""Start the commands of the shell; Ctrl-C gives one line even while the rest still loads."""

import sys
from importlib import import_module

INTERRUPTED = 130
"""Exit status after Ctrl-C, as for any command that SIGINT ends."""


def meshweave() -> int:
    """Run the command `meshweave`; return the exit status."""
    return _started("meshweave", "meshweave.tools.cli")


def meshweave_opt() -> int:
    """Run the command `meshweave-opt`; return the exit status."""
    return _started("meshweave-opt", "meshweave.tools.opt")


def _started(name: str, module: str) -> int:
    try:
        return int(import_module(module).main())
    except KeyboardInterrupt:
        return interrupted(name)


def interrupted(name: str) -> int:
    """Print that the command was interrupted; return the exit status."""
    print(f"{name}: interrupted", file=sys.stderr)
    return INTERRUPTED
