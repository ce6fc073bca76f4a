"""Write docs/passes.md, docs/dialects/*.md and docs/api.md from docstrings, and meshweave/__init__.pyi.

python docs/generate.py            writes them
python docs/generate.py --check    exit status 1, naming the files, when one is not current
"""

import inspect
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshweave.dialects import DIALECTS
from meshweave.ir.bindings import ext, ir
from meshweave.ir.pipeline_text import type_text
from meshweave.pipeline import PIPELINES, all_passes, summary
from meshweave.transforms.base import Pass

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import generate_api  # noqa: E402
import generate_stub  # noqa: E402

NOTE = "<!-- Written by docs/generate.py from the docstrings: change those. -->"


def pages() -> dict[Path, str]:
    """Every generated page: its path and its text."""
    found = {HERE / "passes.md": _passes_page(), HERE / "api.md": generate_api.page(NOTE)}
    found[HERE.parent / "meshweave" / "__init__.pyi"] = generate_stub.text()
    for dialect in DIALECTS:
        found[HERE / "dialects" / f"{dialect.DIALECT_NAMESPACE}.md"] = _dialect_page(dialect)
    return found


def _passes_page() -> str:
    parts = [NOTE, "# Passes", _PASSES_INTRO]
    parts += [_pass_section(kind) for kind in all_passes().values()]
    parts.append("# Named pipelines")
    parts += [f"`{name}` stands for\n\n```\n{text}\n```" for name, text in PIPELINES.items()]
    return "\n\n".join(parts) + "\n"


_PASSES_INTRO = """\
In pipeline order. Each runs on the whole module and stands in a pipeline beside MLIR's own passes,
`meshweave-opt FILE -p "dist-propagate,func.func(canonicalize)"`, or is a flag,
`meshweave-opt FILE --dist-propagate`. Options are written `name{a=1 b=x,y}`, or
`--name="a=1 b=x,y"`."""


def _pass_section(kind: type[Pass]) -> str:
    module = sys.modules[kind.__module__]
    body = inspect.cleandoc(module.__doc__ or "").split("\n\n", 1)[1:]
    parts = [f"## `{kind.name}`", f"{_sentence(summary(kind))}"]
    if body and body[0].strip():
        parts.append(_prose(body[0].strip()))
    if kind.options():
        rows = [
            (f"`{n}`", type_text(t), f"`{_default(kind, n)}`") for n, t in kind.options().items()
        ]
        parts.append(generate_api.table(("option", "type", "default"), rows))
    return "\n\n".join(parts)


def _default(kind: type[Pass], option: str) -> str:
    value = inspect.signature(kind).parameters[option.replace("-", "_")].default
    if value is inspect.Parameter.empty:
        return "(needed)"
    if value in ("", ()):
        return "none"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def _dialect_page(dialect: Any) -> str:
    module = sys.modules[dialect.__module__]
    own = [
        c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__
    ]
    attributes = [c for c in own if issubclass(c, dialect.Attribute)]
    operations = [
        c for c in own if issubclass(c, dialect.Operation) and hasattr(c, "OPERATION_NAME")
    ]
    parts = [NOTE, f"# The `{dialect.DIALECT_NAMESPACE}` dialect"]
    parts.append(_prose(inspect.cleandoc(module.__doc__ or dialect.__doc__)))
    if attributes:
        parts.append("## Attributes")
        parts += [_section(f"#{c.attr_name}", c) for c in attributes]
    parts.append("## Operations")
    parts += [_section(c.OPERATION_NAME, c) for c in operations]
    return "\n\n".join(parts) + "\n"


def _section(name: str, kind: Any) -> str:
    parts = [f"### `{name}`", _prose(inspect.cleandoc(kind.__doc__ or ""))]
    fields = {n: a for c in reversed(kind.__mro__) for n, a in inspect.get_annotations(c).items()}
    if fields:
        parts.append(
            generate_api.table(("field", "what"), [(f"`{n}`", _what(a)) for n, a in fields.items()])
        )
    return "\n\n".join(parts)


def _what(annotation: Any) -> str:
    """What a field of an op or attribute is, in words: operand, results, region, or the attribute's
    class.
    """
    many = getattr(annotation, "__origin__", None) is not None and "Sequence" in repr(annotation)
    inner = annotation.__args__[0] if many else annotation
    origin = getattr(inner, "__origin__", inner)
    for kind, word in ((ir.OpResult, "result"), (ir.Value, "operand"), (ir.Region, "region")):
        if inspect.isclass(origin) and issubclass(origin, kind):
            return word + ("s" if many else "")
    if inspect.isclass(origin) and issubclass(origin, ext.Attribute):
        return f"`#{origin.attr_name}`"
    return f"attribute, `{getattr(origin, '__name__', str(origin))}`"


def _prose(text: str) -> str:
    """A docstring as Markdown: indented paragraphs, and what stands before and after a pass, become
    code.
    """
    return "\n\n".join(_paragraph(p) for p in _paragraphs(text))


def _paragraphs(text: str) -> list[str]:
    """Parts between empty lines; an indented one takes the indented ones behind it along."""
    found: list[str] = []
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        if found and _is_indented(part) and _is_indented(found[-1]):
            found[-1] += "\n\n" + part
        else:
            found.append(part)
    return found


def _is_indented(part: str) -> bool:
    return part.startswith("    ")


def _paragraph(part: str) -> str:
    if _is_indented(part) or part.startswith("before:"):
        return f"```\n{textwrap.dedent(part)}\n```"
    return part


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", ":", "?")) else text + "."


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with --check compare them."""
    stale = []
    for path, text in pages().items():
        if path.exists() and path.read_text() == text:
            continue
        stale.append(path.relative_to(HERE.parent))
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {stale[-1]}")
    if "--check" in arguments and stale:
        print(f"not current: {', '.join(map(str, stale))}; run make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
