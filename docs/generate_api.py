"""The page docs/api.md: the public names of meshweave, from their docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from operator import attrgetter
from typing import Any

from functions import EXAMPLES, FAMILIES

import meshweave as mw
from meshweave.frontends.python import MODULES, PUBLIC, RENAMED

INTRO = """\
`import meshweave as mw`. Names load on first use. Examples are run by the tests. Every function raises
`mw.MeshweaveError` or one of its kinds for what is wrong with its arguments, in one line that says what would be right;
inside a traced function at the line that calls it."""

SECTIONS = (
    (
        "Programs",
        "jit log_compiles Dim ShapeDtype compile from_jax from_torch torch_backend from_stablehlo from_mlir Program "
        "verify",
    ),
    (
        "Arrays and layouts",
        "Array Mesh Layout P redistribute save load load_safetensors quantize show",
    ),
    (
        "What a traced program may say besides",
        "constrain hint kernels default_float cond scan while_loop vmap",
    ),
    ("What programs do, and what they may take", "trace expect"),
    ("Ranks that others start", "init rank size"),
    ("Gradients", "grad value_and_grad vjp stop_gradient"),
    ("Errors", "MeshweaveError"),
)
MORE = {
    "Programs": "jax.jit",
    "Errors": "LayoutError PlanError CompileError UsageError RankError",
    "Bundles, engines, ranks of your own": "Bundle Port engine InsideProgram",
    "Layouts of others": "from_spec to_spec from_dtensor to_dtensor from_shardy to_shardy",
}
"""Public names that live in modules of their own, by section."""
HOMES = {
    **dict.fromkeys(MORE["Errors"].split(), "meshweave.errors"),
    "jax.jit": "meshweave",
    **dict.fromkeys(("Bundle", "Port"), "meshweave.bundle"),
    "engine": "meshweave.runtime.engine",
    "InsideProgram": "meshweave.runtime.mpi.inside",
    **dict.fromkeys(MORE["Layouts of others"].split(), "meshweave.layout.interchange"),
}
RETURNED = {
    "jit": ("meshweave.api.jit", "Jitted"),
    "jax.jit": ("meshweave.jax.function", "JaxFunction"),
    "from_jax": ("meshweave.jax.program", "JaxProgram"),
    "from_torch": ("meshweave.torch.program", "TorchProgram"),
}
"""What a function makes, where that is called like the function, and has members."""


def shown() -> dict[str, Any]:
    """Everything that has a section of its own, by its full name."""
    found = {f"mw.{n}": getattr(mw, n) for _, names in SECTIONS for n in names.split()}
    return found | {f"{h}.{n}": attrgetter(n)(import_module(h)) for n, h in HOMES.items()}


def returned(name: str) -> Any:
    """The class of what `mw.name` makes, or None."""
    home, own = RETURNED.get(name, ("", ""))
    return getattr(import_module(home), own) if home else None


def members(kind: Any) -> list[str]:
    """The public methods and properties of a class, as it lists them."""
    found = {
        name: value
        for base in reversed(kind.__mro__)
        if base.__module__.startswith("meshweave.")
        for name, value in vars(base).items()
    }
    return [
        name
        for name, value in found.items()
        if not name.startswith("_")
        and (callable(value) or isinstance(value, property | staticmethod | cached_property))
    ]


def page(note: str) -> str:
    """The page's text."""
    parts = [note, "# The Python API", INTRO]
    for title, names in SECTIONS:
        parts.append(f"## {title}")
        for name in names.split():
            parts += _section(f"mw.{name}", getattr(mw, name), returned(name))
        parts += _more(title)
    parts += ["## Functions of arrays", _FUNCTIONS]
    for title, modules, text in FAMILIES:
        parts += [f"### {title}", text.strip(), _functions(modules.split())]
    for title in MORE:
        if title not in dict(SECTIONS):
            parts += [f"## {title}", *_more(title)]
    return "\n\n".join(parts) + "\n"


def _more(title: str) -> list[str]:
    parts: list[str] = []
    for name in MORE.get(title, "").split():
        value = attrgetter(name)(import_module(HOMES[name]))
        parts += _section(f"{HOMES[name]}.{name}", value, returned(name))
    return parts


_FUNCTIONS = """\
Written as the [array API standard](https://data-apis.org/array-api/latest/) has them, with the signatures of its
edition 2024.12. They compute with `mw.Array`s at once, each compiled once for a kind of call (shapes, dtypes,
layouts, mesh), and give Arrays that stay on the ranks; NumPy arrays and those of one rank go to the mesh of the
others. Inside functions that `mw.jit` traces they become part of the program: arrays are then what the function was
given, what other functions made of it, and NumPy arrays, which become constants. Python numbers take the dtype of the
arrays that they meet. Where the values lie is found by propagation: any layout goes in, and results are exact
whatever it is, up to the order of sums. Indices may be integers, slices, `None`, `...`, arrays of integers, and
masks, which a traced function has to know when it is traced. Functions whose results have shapes that depend on the
elements (`nonzero`, `unique_all`, ..) are refused in traced functions with what to do instead. All raise
CompileError, at the line of the call, for shapes, axes and dtypes that do not fit, saying what would.

In the examples v is `[1.0, 2.0, 4.0]`, w `[4.0, 1.0, 2.0]`, m `[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]`, all float32, i
`[5, 3, 0]`, b `[True, False, True]`."""


def _section(full: str, value: Any, made: Any = None) -> list[str]:
    name = full.rpartition(".")[2]
    parts = [f"### `{full}`", f"```\n{name}{_signature(value)}\n```", _prose(value)]
    kind = value if inspect.isclass(value) and value not in _PLAIN else made
    if made is not None:
        parts.append("What it makes is called like the function, and has:")
    if kind is not None and (names := members(kind)):
        rows = [(f"`{m}{_call(kind, m)}`", _first(inspect.getattr_static(kind, m))) for m in names]
        parts.append(table(("member", "what"), rows))
    return parts


_PLAIN = (mw.P, *(getattr(import_module("meshweave.errors"), n) for n in MORE["Errors"].split()))


def _call(kind: Any, name: str) -> str:
    """How a member is called; nothing for a property."""
    value = inspect.getattr_static(kind, name)
    if isinstance(value, property | cached_property):
        return ""
    return (
        _signature(getattr(value, "__func__", value)).replace("(self, ", "(").replace("(self", "(")
    )


def _functions(modules: Sequence[str]) -> str:
    shown = {name for _, names in SECTIONS for name in names.split()}
    rows = []
    homes = {name: PUBLIC.get(name) or RENAMED[name][0] for name in {*PUBLIC, *RENAMED} - shown}
    functions = {name: (getattr(mw, name), home) for name, home in homes.items()}
    for space, home in MODULES.items():
        module = getattr(mw, space)
        functions |= {f"{space}.{name}": (getattr(module, name), home) for name in module.__all__}
    for name, (value, home) in sorted(functions.items()):
        if home.rpartition(".")[2] in modules:
            called = callable(value) and not isinstance(value, type)
            said, gives = EXAMPLES.get(name, ("", ""))
            example = f"`{said}` is `{gives}`" if said else ""
            rows.append((f"`{name}{_signature(value) if called else ''}`", _first(value), example))
    return table(("function", "what", "example"), rows)


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
    if isinstance(value, mw.float32.__class__):
        return f"the dtype {value.name}"
    value = getattr(value, "__func__", value)
    text = inspect.cleandoc(value.__doc__ or "").split("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|")


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
