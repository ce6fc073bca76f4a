"""`python -m meshweave.frontends FILE`: print what the frontend makes of a program, the module in
the global view.
"""

import sys

from meshweave.bindings import context
from meshweave.dialects.alias import module_text
from meshweave.errors import MeshweaveError, UsageError
from meshweave.frontends import load_module


def main(arguments: list[str]) -> int:
    """The exit status: 0 done, 1 the program is wrong, 2 wrong usage."""
    try:
        if len(arguments) != 1:
            raise UsageError("usage: python -m meshweave.frontends FILE")
        print(module_text(load_module(arguments[0], context())), end="")
    except MeshweaveError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
