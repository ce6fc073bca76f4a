"""The page docs/api.md: the public names of meshweave, from their docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import meshweave as mw
from meshweave.trace import PUBLIC

INTRO = """\
`import meshweave as mw`. Names load on first use. Examples are run by the tests. Every function raises
`mw.MeshweaveError` or one of its kinds for what is wrong with its arguments, in one line that says what would be right;
inside a traced function at the line that calls it."""

SECTIONS = (
    ("Programs", "jit compile from_jax from_torch torch_backend from_stablehlo from_mlir Program"),
    ("Arrays and layouts", "Array Mesh Layout P redistribute load show"),
    ("What a traced program may say besides", "constrain hint kernels cond scan while_loop"),
)
METHODS = {
    "Array": "from_numpy from_shards from_dlpack numpy item redistribute save",
    "Mesh": "parse group nranks",
    "Layout": "parse check local_shape valid_shape offsets allocation_shape",
    "Program": "inputs outputs peak_bytes close",
}
JITTED = "lower explain cache_info explain_misses close"


def page(note: str) -> str:
    """The page's text."""
    parts = [note, "# The Python API", INTRO]
    for title, names in SECTIONS:
        parts.append(f"## {title}")
        for name in names.split():
            parts += _section(name)
    parts += ["## Functions of arrays", _FUNCTIONS, _functions()]
    return "\n\n".join(parts) + "\n"


_FUNCTIONS = """\
Written as the [array API standard](https://data-apis.org/array-api/latest/) has them, inside functions that `mw.jit`
traces, with the signatures of its edition 2024.12; shapes broadcast, dtypes promote as the standard says, and Python
numbers take the dtype of what they meet. Functions whose results have shapes that depend on the elements (`nonzero`,
`unique_all`, ..) are refused with what to do instead. Indices may be integers, slices, `None`, `...`, arrays of
integers, and masks that are known when tracing."""


def _section(name: str) -> list[str]:
    value = getattr(mw, name)
    parts = [f"### `mw.{name}`", f"```\n{name}{_signature(value)}\n```", _prose(value)]
    members = [(value, METHODS[name])] if name in METHODS else []
    if name == "jit":
        from meshweave.trace.jit import Jitted

        parts.append("What it makes is called like the function, and has:")
        members = [(Jitted, JITTED)]
    for owner, names in members:
        rows = [(f"`{m}`", _first(getattr(owner, m))) for m in names.split()]
        parts.append(table(("member", "what"), rows))
    return parts


def _functions() -> str:
    shown = {name for _, names in SECTIONS for name in names.split()}
    rows = []
    functions = {name: getattr(mw, name) for name in set(PUBLIC) - shown}
    functions |= {f"linalg.{name}": getattr(mw.linalg, name) for name in mw.linalg.__all__}
    for name, value in sorted(functions.items()):
        called = callable(value) and not isinstance(value, type)
        rows.append((f"`{name}{_signature(value) if called else ''}`", _first(value)))
    return table(("function", "what"), rows)


def _signature(value: Any) -> str:
    """Names and defaults; what they may be is in the docstring."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    empty = inspect.Parameter.empty
    bare = [p.replace(annotation=empty) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=bare, return_annotation=empty))
    return re.sub(r"<function (\w+) at 0x[0-9a-f]+>|<factory>", lambda m: m[1] or "...", text)


def _first(value: Any) -> str:
    """The first sentence or paragraph of a docstring, in a line; of a constant its value."""
    if isinstance(value, float) or value is None:
        return f"the number {value}" if value is not None else "a new dim, in an index"
    text = inspect.cleandoc(value.__doc__ or "").split("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\\\|")


def _prose(value: Any) -> str:
    """A docstring as Markdown: lists of parameters and examples become code."""
    found = []
    for part in inspect.cleandoc(value.__doc__ or "").split("\n\n"):
        listed = re.match(r"[\w, ]+: +\S", part) and "\n" in part
        code = part.startswith(">>>")
        found.append(f"```{'pycon' if code else ''}\n{part}\n```" if listed or code else part)
    return "\n\n".join(found)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
