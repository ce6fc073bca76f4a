"""mw.show: who holds what, in a terminal and in a notebook."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from depth import sampled
from rich.console import Console

import meshweave as mw
from meshweave.errors import LayoutError, UsageError
from meshweave.layout import Layout, Mesh
from meshweave.layout.picture import COLOURS, html, ink, picture_of
from meshweave.tools.picture import picture


def shown(*args: Any, **options: Any) -> str:
    out = io.StringIO()
    mw.show(*args, file=out, **options)
    return out.getvalue()


def cells(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")]
        for line in text.splitlines()
        if line.startswith(("│", "┃"))
    ]


def test_two_dims_are_a_grid() -> None:
    text = shown("[x, y]", shape=(8, 6), mesh="x=2, y=3")
    assert cells(text) == [
        ["", "0..1", "2..3", "4..5"],
        ["0..3", "0", "1", "2"],
        ["4..7", "3", "4", "5"],
    ]
    assert text.startswith("[x, y]\n")


def test_cyclic_partial_and_replicated() -> None:
    assert cells(shown("[2*x*_]", shape=(8,), mesh="x=2"))[1] == ["ranks", "0", "1", "0", "1"]
    array = mw.Array.from_numpy(np.zeros((4, 2)), mesh="x=2, y=2", layout="[x, _] +sum(y)")
    text = shown(array)
    assert cells(text)[1:] == [["0..1", "0,1"], ["2..3", "2,3"]]
    assert "still to do: sum over y" in text


def test_three_dims_are_a_list() -> None:
    text = shown(mw.P("x"), shape=(4, 2, 2), mesh=mw.Mesh(x=2))
    assert cells(text)[1:] == [["0", "0..1", "0..1", "0..1"], ["1", "2..3", "0..1", "0..1"]]


def test_a_terminal_gets_colours_and_a_file_none() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="truecolor", width=80)
    console.print(picture(Layout.parse("[x]"), Mesh(x=2), (4,)))
    red, green, blue = (int(COLOURS[1][i : i + 2], 16) for i in (1, 3, 5))
    assert f"48;2;{red};{green};{blue}" in out.getvalue()
    assert "\x1b" not in shown("[x]", shape=(4,), mesh="x=2")


def test_every_rank_in_a_cell_holds_it_and_has_its_colour() -> None:
    drawn = picture_of(Layout.parse("[x, _]"), Mesh(x=3, y=2), (6, 2))
    assert [[c.rank for c in row[1:]] for row in drawn.rows] == [[0], [2], [4]]
    assert drawn.rows[1][1].text == "2,3" and drawn.rows[1][1].colour == COLOURS[2]
    many = picture_of(Layout.parse("[x]"), Mesh(x=13), (13,))
    assert many.rows[0][13].colour == COLOURS[0]  # they come round again


def test_a_notebook_gets_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    display = SimpleNamespace(display=lambda data, raw: given.append(data))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    array = mw.Array.from_numpy(np.zeros((4, 2), "f4"), mesh="x=2", layout="[x, _]")
    mw.show(array)
    (data,) = given
    assert data["text/html"] in array._repr_html_()
    assert data["text/plain"] == repr(array)
    table = array._repr_html_()
    assert "<code>4x2xf32 [x, _] on (x=2)</code>" in table
    assert table.count("<tr>") == 3 and f"background:{COLOURS[1]}" in table
    assert "still to do" in html(Layout.parse("[_] +sum(x)"), Mesh(x=2), (2,))


def test_an_ipython_in_a_terminal_is_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = SimpleNamespace()  # no kernel
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    mw.show("[x]", shape=(4,), mesh="x=2")
    assert cells(capsys.readouterr().out)[1] == ["ranks", "0", "1"]


def test_what_is_missing_is_said() -> None:
    with pytest.raises(UsageError, match="show: a layout needs a shape"):
        mw.show("[x]", mesh="x=2")
    with pytest.raises(UsageError, match="show: a layout needs a mesh"):
        mw.show("[x]", shape=(4,))
    with pytest.raises(UsageError, match="an Array has a shape and a mesh of its own"):
        mw.show(mw.Array.from_numpy(np.zeros(2), mesh="", layout="[_]"), mesh="x=2")
    with pytest.raises(LayoutError, match="z"):
        mw.show("[z]", shape=(4,), mesh="x=2")
    with pytest.raises(UsageError, match="show: an Array or a layout is needed, got int"):
        mw.show(3, shape=(4,), mesh="x=2")


def test_very_long_dims_are_not_looked_at_one_by_one() -> None:
    assert cells(shown("[x, _]", shape=(1 << 40, 4), mesh="x=2"))[1:] == [
        ["0", f"0:{1 << 39}", "0..3"],
        ["1", f"{1 << 39}:{1 << 40}", "0..3"],
    ]
    assert cells(shown("[_*x]", shape=(1 << 40,), mesh="x=2"))[1:] == [["0", ".."], ["1", ".."]]


def test_many_ranks_are_cut() -> None:
    text = shown("[x, _]", shape=(1 << 16, 4), mesh="x=4096")
    assert len(cells(text)) == 18 and cells(text)[-1] == ["...", "...", "..."]


@sampled(1)
@pytest.mark.parametrize(
    ("environment", "colours"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours_where_a_terminal_wants_them(environment: dict[str, str], colours: bool) -> None:
    """In a pseudo-terminal 24 columns wide: nothing is wider than that."""
    code = 'import meshweave as mw; mw.show("[x, y]", shape=(4000, 6), mesh="x=2, y=2")'
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 24, 0, 0))
    given = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")}
    given |= {"TERM": "xterm-256color", **environment}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=theirs, env=given)
    os.close(theirs)
    found = b""
    with suppress(OSError):  # the end, as Linux says it
        while part := os.read(ours, 4096):
            found += part
    os.close(ours)
    assert process.wait() == 0
    text = found.decode()
    assert ("\x1b[48" in text or ";48;" in text) == colours
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    narrow = max(map(len, plain.splitlines())) <= 24  # a dumb terminal is taken to have 80
    assert (narrow or "TERM" in environment) and "2000" in plain


def test_notebooks_get_no_html_from_names() -> None:
    text = html(Layout.parse("[x]"), Mesh(x=2), (4,), "<script>")
    assert "<script>" not in text and "&lt;script&gt;" in text


@pytest.mark.parametrize(
    ("what", "shape", "says"),
    [
        (np.zeros((4, 4)), (4, 4), "an Array or a layout is needed, got ndarray"),
        ("[x]", "4", "show: shape '4', integers are right"),
        ("[x]", 4, "show: shape 4, integers are right"),
        ("[x]", (4.0,), "integers are right"),
    ],
)
def test_what_cannot_be_shown_is_refused(what: Any, shape: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        mw.show(what, shape=shape, mesh="x=2")


def test_text_on_every_colour_is_told_apart() -> None:
    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in COLOURS:
        low, high = sorted((light(colour), light(f"#{2 * ink(colour)[1:]}")))
        assert (high + 0.05) / (low + 0.05) >= 4.5, colour  # of the WCAG's level AA
