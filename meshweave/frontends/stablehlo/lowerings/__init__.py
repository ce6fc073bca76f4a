"""Lower the ops that upstream leaves or gets wrong: each module has a table LOWER, op -> function that replaces it.

A new op is a function and its row in a module here: nothing else lists it.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshweave.ir.bindings import ir


def lowerings() -> "dict[str, Callable[[ir.Operation], None]]":
    """Return the function that lowers each op, from the tables of all modules here."""
    modules = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
    return {name: lower for module in modules for name, lower in module.LOWER.items()}
