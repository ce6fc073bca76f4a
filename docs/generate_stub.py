"""Write meshweave/__init__.pyi: the public names, which load on first use, as editors and type checkers see them."""

import re

import meshweave as mw
from meshweave.frontends.python import MODULES, PUBLIC, RENAMED

_HEAD = '''\
"""Declare the public names for editors and type checkers. Written by docs/generate.py (`make docs`)."""

'''


def text() -> str:
    """Return the text of the stub: an import of each public name from where it is defined, then what is left."""
    homes = {name: (home, name) for name, home in {**PUBLIC, **mw._HOMES}.items()}
    homes |= {name: (home.rpartition(".")[0], name) for name, home in MODULES.items()}
    homes |= {f"_{name}": place for name, place in RENAMED.items()}
    homes["jax"] = ("meshweave", "jax")
    homes["_Info"] = ("meshweave.frontends.python.dtypes", "Info")
    imports = sorted((home, _order(own), own, name) for name, (home, own) in homes.items())
    lines = [f"from {home} import {own} as {name}" for home, _, own, name in imports]
    lines += ["", *(f"{name} = _{name}" for name in RENAMED)]
    lines += ["__version__: str", "__array_api_version__: str", ""]
    lines += ["__all__ = [", *(f'    "{name}",' for name in mw.__all__), "]", ""]
    lines += ["def __array_namespace_info__() -> _Info: ...", "def __dir__() -> list[str]: ..."]
    return _HEAD + "\n".join(lines) + "\n"


def _order(name: str) -> tuple[int, list[str | int]]:
    """Return the place of a name in an import: constants, classes, then the rest; `log2` comes before `log10`."""
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
