"""Define the errors of users: one line each, with who, what is wrong with its values, and what would be right.

`MeshweaveError` is the only family of exceptions that the command line turns into a message without a traceback; any
other exception is a defect of ours and keeps its traceback. `exit_status` is the status of the command: 1 wrong
program or input, 2 wrong usage, 3 a rank failed.
"""

from collections.abc import Iterable
from typing import TypeVar

Told = TypeVar("Told", bound="MeshweaveError")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean "x"?` for the nearest known name, or nothing when none is near."""
    from difflib import get_close_matches  # imported here: it loads slowly

    near = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f'; did you mean "{near[0]}"?' if near else ""


class MeshweaveError(Exception):
    """Report what a user did wrong; the kinds below say what.

    message:  one line without the location: who, what with its values, what would be right.
    location: "file.mlir:7:8", which `str()` puts before the message; None, or "<unknown>", where there is none.
    exit_status: of the command that ends with this error.

    >>> import meshweave as mw
    >>> try:
    ...     mw.Layout.parse("[x, x]")
    ... except mw.MeshweaveError as error:
    ...     print(type(error).__name__, error.exit_status, error)
    LayoutError 1 layout "[x, x]": axis x is used twice
    """

    exit_status = 1

    def __init__(self, message: str, location: str | None = None) -> None:
        known = location if location != "<unknown>" else None
        super().__init__(f"{known}: {message}" if known else message)
        self.message = message
        self.location = known

    def told(self: Told, message: str, location: str | None = None) -> Told:
        """Return the error in other words, or at another place: its class, and what else it carries, stay."""
        made = type(self)(message, location)
        own = {"message": made.message, "location": made.location}
        vars(made).update(vars(self) | own)
        return made


class LayoutError(MeshweaveError):
    """Report a mesh or layout text that cannot be read, or that does not fit its shape or mesh."""


class PlanError(MeshweaveError):
    """Report that no plan exists, or that its limits (memory, supported steps) rule every plan out."""


class CompileError(MeshweaveError):
    """Report a program that cannot be parsed, verified, propagated, partitioned or lowered."""


class DimError(CompileError, IndexError):
    """Report an axis or an index that is out of range: Python and NumPy have an IndexError for these."""


class ShapeError(CompileError, ValueError):
    """Report a shape that does not suit a function: Python and NumPy have a ValueError for these."""


class UsageError(MeshweaveError):
    """Report wrong use of a command or function: an unknown pass, option or engine, or arguments that do not fit."""

    exit_status = 2


class RankError(MeshweaveError):
    """Report a rank that raised, died or fell silent while a program ran; names rank, step and source line."""

    exit_status = 3


class BudgetError(MeshweaveError, AssertionError):
    """Report that programs took more than was expected of them; its further lines say why."""
