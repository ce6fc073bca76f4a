"""Shardy's custom syntax to generic form, so that text of a dialect nobody has registered parses.

    sdy.mesh @mesh = <["dp"=2, "tp"=2]>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"dp"}, {}]> : tensor<8x4xf32>

become `"sdy.mesh"() {..} : () -> ()` and `"sdy.sharding_constraint"(%0) {sharding = ..} : ..`.
Each rewritten op keeps its lines: diagnostics still point at the user's file. Properties in
generic form (`<{..}>`) become plain attributes, because those of unregistered ops cannot be read.
Everything else is left as it is; it is not even looked at.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from meshweave.frontends.cursor import Cursor

Edit = tuple[int, int, str]  # replace text[start:end] with this

_CALL = re.compile(r'"func\.call"|(?:func\.call|(?<![\w.$"])call)(?=\s+@)')

_REFUSED = {
    "all_gather": "it comes from Shardy's partitioner: export the program before that",
    "sharding_group": "values that must share a sharding: give each its own sharding_constraint",
    "named_computation": "export the program before Shardy's import passes",
    "propagation_barrier": "directions of propagation cannot be restricted",
    "func_data_flow_edge": "export the program before Shardy's import passes",
    "data_flow_edge": "export the program before Shardy's import passes",
    "constant": "export the program before Shardy's import passes",
}
_REFUSED.update(
    dict.fromkeys(
        (
            "all_reduce",
            "all_slice",
            "all_to_all",
            "collective_permute",
            "reduce_scatter",
            "sharded_to_unreduced",
            "replicated_to_unreduced",
        ),
        _REFUSED["all_gather"],
    )
)


def to_generic(text: str, name: str = "-") -> str:
    """`text` with its sdy ops in generic form; the same lines.

    name: what errors call the text. Raises CompileError at an sdy op that cannot be read or is not
    supported.
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
        elif use.op in _REFUSED:
            raise cursor.error(f"sdy.{use.op} is not supported: {_REFUSED[use.op]}", use.start)
        else:
            raise cursor.error(f"sdy.{use.op}: no such op is known", use.start)
    return _apply(text, sorted(set(edits)))


@dataclass(frozen=True)
class _Use:
    """An sdy op in the text: text[start:end] is its name, in quotes when the op is in generic
    form.
    """

    op: str
    start: int
    end: int
    quoted: bool


def _uses(text: str) -> Iterator[_Use]:
    """The sdy ops of `text`, in order; names of attributes, strings and comments are passed
    over.
    """
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
    """Whether what follows `prefix` on its line is neither inside a string nor in a comment."""
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
    out, at = [], 0
    for start, end, new in edits:
        missing = text.count("\n", start, end) - new.count("\n")
        out += (text[at:start], new, "\n" * missing)
        at = end
    out.append(text[at:])
    return "".join(out)


def _mesh(c: Cursor, start: int) -> list[Edit]:
    """`sdy.mesh @mesh = <["x"=2]> {..}`"""
    symbol = c.take_symbol()
    c.take("=")
    mesh = c.take_group("<")
    if c.at("{"):  # the same mesh once more, as StableHLO writes it
        c.take_group("{")
    return [
        (start, c.pos, f'"sdy.mesh"() {{sym_name = "{symbol}", mesh = #sdy.mesh{mesh}}} : () -> ()')
    ]


def _constraint(c: Cursor, start: int) -> list[Edit]:
    """`sdy.sharding_constraint %0 <@mesh, [..]> {..} : type`, and `sdy.reshard`, which says the
    same.
    """
    value = c.take_value()
    sharding = c.take_group("<")
    if c.at("{"):
        c.take_group("{")
    c.take(":")
    kind = c.take_type()
    attrs = f"{{sharding = #sdy.sharding{sharding}}}"
    return [(start, c.pos, f'"sdy.sharding_constraint"({value}) {attrs} : ({kind}) -> {kind}')]


def _return(c: Cursor, start: int) -> list[Edit]:
    """`sdy.return %1, %2 : type, type`"""
    end = c.pos
    values = c.take_values()
    types: list[str] = []
    if values:
        c.take(":")
        types = c.take_types()
        end = c.pos
    return [(start, end, f'"sdy.return"({", ".join(values)}) : ({", ".join(types)}) -> ()')]


def _manual(c: Cursor, start: int) -> list[Edit]:
    """`sdy.manual_computation(%0) in_shardings=[..] out_shardings=[..] manual_axes={..} (%arg:
    type) { .. } : ..`
    """
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
    """Calls inside a region of an unregistered op do not find their functions: name them sdy.call,
    inline.py knows it.
    """
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
        yield (m.start(), inner.pos, f'"sdy.call"{operands} {{callee = @"{callee}"}}')


def _generic_op(c: Cursor, use: _Use) -> list[Edit]:
    """`"sdy.op"(..) <{properties}> ({ region }) {attributes} : ..`: the properties join the
    attributes.
    """
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
    "manual_computation": _manual,
}
