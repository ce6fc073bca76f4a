"""Print each `#dist...`/`#hint...` attribute once, as an alias at the top, and its name elsewhere.

Attributes of Python dialects are never printed as aliases by MLIR, but its parser takes aliases for
them: what is printed here reads back through any parser that knows the dialects, and prints alike
again.
"""

import re

from meshweave.ir.bindings import ir
from meshweave.ir.pipeline_text import group_end

PREFIXES = ("#dist.", "#hint.")

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|#[\w$.]+|//[^\n]*')
_ALIAS_LINES = re.compile(r"(?:[#!][^\n]*\n)*")
_TAKEN = re.compile(r"^#(\w+)[ \t]*=", re.MULTILINE)


def module_text(
    module: ir.Module,
    *,
    debuginfo: bool = False,
    generic: bool = False,
    elide_above: int | None = None,
) -> str:
    """Return `module` as MLIR text with our attributes hoisted to aliases; it ends without a newline.

    debuginfo, generic: as MLIR's flags; elide_above: leave out element lists longer than this.
    """
    text = module.operation.get_asm(
        enable_debug_info=debuginfo, print_generic_op_form=generic, large_elements_limit=elide_above
    )
    return hoist_aliases(text).rstrip("\n")


def hoist_aliases(text: str) -> str:
    """Return `text`, which MLIR printed, with each attribute that starts with one of PREFIXES as an alias.

    The definitions go behind MLIR's own (`#map = ...`), in order of first appearance: `#layout`,
    `#layout1`, ...
    """
    names = _Names(text)
    out: list[str] = []
    at = 0
    while (m := _TOKEN.search(text, at)) is not None:
        out.append(text[at : m.start()])
        at = m.end()
        if m[0].startswith(PREFIXES):
            if text[at : at + 1] == "<":
                at = group_end(text, at, "<[({", ">])}") or len(text)
            out.append(names.of(m[0], text[m.start() : at]))
        else:
            out.append(m[0])
    out.append(text[at:])
    body = "".join(out)
    head = _ALIAS_LINES.match(body)
    assert head is not None, "it matches the empty string"
    return body[: head.end()] + names.definitions() + body[head.end() :]


class _Names:
    """Choose alias names by attribute text.

    A name is the attribute's own, numbered, and never one that the text uses already.
    """

    def __init__(self, text: str) -> None:
        self.taken = set(_TAKEN.findall(text))
        self.by_text: dict[str, str] = {}
        self.counts: dict[str, int] = {}

    def of(self, token: str, attr: str) -> str:
        if attr not in self.by_text:
            self.by_text[attr] = self._fresh(token.rsplit(".", 1)[-1])
        return self.by_text[attr]

    def _fresh(self, base: str) -> str:
        while True:
            k = self.counts.get(base, 0)
            self.counts[base] = k + 1
            if (name := f"{base}{k or ''}") not in self.taken:
                return f"#{name}"

    def definitions(self) -> str:
        return "".join(f"{name} = {attr}\n" for attr, name in self.by_text.items())
