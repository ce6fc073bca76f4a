"""Layout texts: what is printed is read again as the same; garbage is one LayoutError, in no time."""

from hypothesis import strategies as st
from strategies import notations

from fuzz.search import Kind
from fuzz.text import garbled
from meshweave.errors import LayoutError
from meshweave.layout import Layout, Mesh

TOKENS = (
    *(
        "[",
        "]",
        ",",
        "*",
        "_",
        "x",
        "y",
        ":",
        "(",
        ")",
        "{",
        "}",
        "0",
        "1",
        "2",
        "9" * 20,
        "+sum",
        "+",
        ".",
        "=",
        " ",
    ),
    *("order", "uneven", "nested", "-1", "x:(1)2", "é", "\0", "+prod(x, y)", "order(0.0)"),
)
MESHES = ("x=2, y=3", "x=N, y=2", "", "one=1", "a=4, b=2, c=8")
CASES = st.one_of(
    notations().map(str),
    garbled(notations().map(str), TOKENS),
    garbled(st.sampled_from(MESHES), (*TOKENS, "N", "N*2", "x=2")),
)


def check(text: str) -> None:
    """Read the text as a layout and as a mesh."""
    for parse in (Layout.parse, Mesh.parse):
        try:
            value = parse(text)
        except LayoutError as error:
            assert "\n" not in str(error), f"more than a line: {error}"
            continue
        assert parse(str(value)) == value, f"{value} is read as {parse(str(value))}"


KINDS = (Kind("layouts", CASES, check, repr, batch=500),)
