"""Rewrite Shardy's custom syntax to generic form, so that the text of this unregistered dialect parses.

    sdy.mesh @mesh = <["dp"=2, "tp"=2]>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"dp"}, {}]> : tensor<8x4xf32>

become `"sdy.mesh"() {...} : () -> ()` and `"sdy.sharding_constraint"(%0) {sharding = ...} : ...`. Each rewritten op
keeps its lines: diagnostics still point at the user's file. Properties in generic form (`<{...}>`) become plain
attributes, because those of unregistered ops cannot be read. Nothing else is read or changed.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from meshweave.frontends.stablehlo.cursor import Cursor

Edit = tuple[int, int, str]  # replace text[start:end] with this

_CALL = re.compile(r'"func\.call"|(?:func\.call|(?<![\w.$"])call)(?=\s+@)')

_REFUSED = {
    "all_gather all_reduce all_slice all_to_all collective_permute reduce_scatter sharded_to_unreduced "
    "replicated_to_unreduced": "it comes from Shardy's partitioner: export the program before that",
    "named_computation func_data_flow_edge data_flow_edge constant": (
        "export the program before Shardy's import passes"
    ),
}
_REASONS = {name: reason for names, reason in _REFUSED.items() for name in names.split()}
"""Why an op is not supported."""


def to_generic(text: str, name: str = "-") -> str:
    """Return `text` with its sdy ops in generic form, on the same lines.

    name: of the text, in errors. Raises CompileError at an sdy op that cannot be read or is not supported.
    """
    if "sdy." not in text:
        return text
    edits: list[Edit] = []
    for use in _uses(text):
        cursor = Cursor(text, use.end, name)
        if use.quoted:
            edits += _generic_op(cursor, use)
        elif use.op in _READERS:
            edits += _READERS[use.op](cursor, use.start)
        elif use.op in _REASONS:
            raise cursor.error(f"sdy.{use.op} is not supported: {_REASONS[use.op]}", use.start)
        else:
            raise cursor.error(f"sdy.{use.op}: no such op is known", use.start)
    return _apply(text, sorted(set(edits)))


@dataclass(frozen=True)
class _Use:
    """Locate an sdy op: text[start:end] is its name, in quotes when the op is in generic form."""

    op: str
    start: int
    end: int
    quoted: bool


def _uses(text: str) -> Iterator[_Use]:
    """Yield the sdy ops of `text` in order; skip names of attributes, strings and comments."""
    at = text.find("sdy.")
    while at >= 0:
        end = at + 4
        while end < len(text) and (text[end].isalnum() or text[end] == "_"):
            end += 1
        before, after = text[at - 1 : at], text[end : end + 1]
        quoted = before == '"' and after == '"' and Cursor(text, end + 1).at("(")
        start, stop = (at - 1, end + 1) if quoted else (at, end)
        # a word before it: part of another name (`#sdy.sharding`); an equals sign behind it: an
        # attribute
        bare = not (before.isalnum() or before in tuple('#!@"._$-%')) and not Cursor(text, end).at(
            "="
        )
        if (quoted or bare) and _is_code(text[text.rfind("\n", 0, start) + 1 : start]):
            yield _Use(text[at + 4 : end], start, stop, quoted)
        at = text.find("sdy.", end)


def _is_code(prefix: str) -> bool:
    """Tell whether what follows `prefix` on its line is neither in a string nor in a comment."""
    if '"' not in prefix and "//" not in prefix:
        return True
    inside, i = False, 0
    while i < len(prefix):
        if inside and prefix[i] == "\\":
            i += 1
        elif prefix[i] == '"':
            inside = not inside
        elif not inside and prefix.startswith("//", i):
            return False
        i += 1
    return not inside


def _apply(text: str, edits: list[Edit]) -> str:
    out: list[str] = []
    at = 0
    for start, end, new in edits:
        missing = text.count("\n", start, end) - new.count("\n")
        out += (text[at:start], new, "\n" * missing)
        at = end
    out.append(text[at:])
    return "".join(out)


def _mesh(c: Cursor, start: int) -> list[Edit]:
    """Rewrite `sdy.mesh @mesh = <["x"=2]> {...}`."""
    symbol = c.take_symbol()
    c.take("=")
    c.take_if("#sdy.mesh")
    mesh = c.take_group("<")
    if c.at("{"):  # the same mesh once more, as StableHLO writes it
        c.take_group("{")
    return [
        (start, c.pos, f'"sdy.mesh"() {{sym_name = "{symbol}", mesh = #sdy.mesh{mesh}}} : () -> ()')
    ]


def _constraint(c: Cursor, start: int) -> list[Edit]:
    """Rewrite `sdy.sharding_constraint %0 <@mesh, [...]> {...} : type`, and `sdy.reshard`, which means the same."""
    value = c.take_value()
    c.take_if("#sdy.sharding")
    sharding = c.take_group("<")
    if c.at("{"):
        c.take_group("{")
    c.take(":")
    kind = c.take_type()
    attrs = f"{{sharding = #sdy.sharding{sharding}}}"
    return [(start, c.pos, f'"sdy.sharding_constraint"({value}) {attrs} : ({kind}) -> {kind}')]


def _group(c: Cursor, start: int) -> list[Edit]:
    """Rewrite `sdy.sharding_group %0 group_id=1 {...} : type`."""
    value = c.take_value()
    c.take("group_id")
    c.take("=")
    number = c.take_number()
    if c.at("{"):
        c.take_group("{")
    c.take(":")
    kind, attrs = c.take_type(), f"{{group_id = {number} : i64}}"
    return [(start, c.pos, f'"sdy.sharding_group"({value}) {attrs} : ({kind}) -> ()')]


def _barrier(c: Cursor, start: int) -> list[Edit]:
    """Rewrite `sdy.propagation_barrier %0 allowed_direction=NONE {...} : type`."""
    value = c.take_value()
    c.take("allowed_direction")
    c.take("=")
    c.take_name()
    attrs = f"{c.take_group('{')} " if c.at("{") else ""
    c.take(":")
    kind = c.take_type()
    return [(start, c.pos, f'"sdy.propagation_barrier"({value}) {attrs}: ({kind}) -> {kind}')]


def _return(c: Cursor, start: int) -> list[Edit]:
    """Rewrite `sdy.return %1, %2 : type, type`."""
    end = c.pos
    values = _listed(c, c.take_value) if c.at("%") else []
    types: list[str] = []
    if values:
        c.take(":")
        types = _listed(c, c.take_type)
        end = c.pos
    return [(start, end, f'"sdy.return"({", ".join(values)}) : ({", ".join(types)}) -> ()')]


def _listed(c: Cursor, take: Callable[[], str]) -> list[str]:
    items = [take()]
    while c.take_if(","):
        items.append(take())
    return items


def _manual(c: Cursor, start: int) -> list[Edit]:
    """Rewrite `sdy.manual_computation(%0) in_shardings=[...] ... (%arg: type) { ... } : ...`."""
    operands = c.take_group("(")
    attrs = []
    for key in ("in_shardings", "out_shardings"):
        c.take(key)
        c.take("=")
        attrs.append(f"{key} = #sdy.sharding_per_value<{c.take_group('[')}>")
    c.take("manual_axes")
    c.take("=")
    attrs.append(f"manual_axes = #sdy<manual_axes{c.take_group('{')}>")
    arguments = c.take_group("(")
    opening, end = c.take_block()
    head = f'"sdy.manual_computation"{operands} ({{' + (
        "" if arguments == "()" else f" ^bb0{arguments}:"
    )
    edits = [(start, opening + 1, head), (end - 1, end, f"}}) {{{', '.join(attrs)}}}")]
    edits += _calls(c, opening, end)
    if c.at("{"):
        extra = c.pos
        c.take_group("{")
        edits.append((extra, c.pos, ""))
    return edits


def _calls(c: Cursor, start: int, end: int) -> Iterator[Edit]:
    """Rename calls inside a region to sdy.call, which inline.py knows: an unregistered op hides their functions."""
    for m in _CALL.finditer(c.text, start, end):
        line = c.text.rfind("\n", 0, m.start()) + 1
        if not _is_code(c.text[line : m.start()]):
            continue
        inner = Cursor(c.text, m.end(), c.name)
        if m.group() == '"func.call"':
            inner.take_group("(")
            if inner.at("<{"):
                at = inner.pos
                callee = inner.take_group("<")[1:-1]
                yield (m.start(), m.end(), '"sdy.call"')
                yield (at, inner.pos, callee)
            continue
        callee = inner.take_symbol()
        operands = inner.take_group("(")
        given = inner.take_group("{")[1:-1] if inner.at("{") else ""
        attrs = f'{{callee = @"{callee}"{given and f", {given}"}}}'
        yield (m.start(), inner.pos, f'"sdy.call"{operands} {attrs}')


def _generic_op(c: Cursor, use: _Use) -> list[Edit]:
    """Move the properties of `"sdy.op"(...) <{properties}> ({ region }) {attributes} : ...` to its attributes."""
    c.take_group("(")
    edits: list[Edit] = []
    properties = ""
    if c.at("<{"):
        start = c.pos
        properties = c.take_group("<")[2:-2]
        edits.append((start, c.pos, ""))
    if c.take_if("("):
        opening, end = c.take_block()
        c.take(")")
        if use.op == "manual_computation":
            edits += _calls(c, opening, end)
    if not properties:
        return edits
    if c.take_if("{"):
        return [*edits, (c.pos, c.pos, properties + ("" if c.at("}") else ", "))]
    return [*edits, (c.pos, c.pos, f" {{{properties}}} ")]


_READERS = {
    "mesh": _mesh,
    "sharding_constraint": _constraint,
    "reshard": _constraint,
    "return": _return,
    "sharding_group": _group,
    "propagation_barrier": _barrier,
    "manual_computation": _manual,
}
