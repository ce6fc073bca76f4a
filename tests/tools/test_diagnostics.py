"""Comments that expect diagnostics: how they are read and what meets them."""

import pytest

from meshweave.errors import UsageError
from meshweave.tools.diagnostics import Diagnostic, Expectation, expectations, mismatches


@pytest.mark.parametrize(
    ("comment", "severity", "line"),
    [
        ("// expected-error {{m}}", "error", 3),
        ("%0 = f() // expected-error{{m}}", "error", 3),
        ("// expected-error @below {{m}}", "error", 4),
        ("// expected-warning@above {{m}}", "warning", 2),
        ("// expected-remark @+2 {{m}}", "remark", 5),
        ("// expected-error-re @-1 {{m}}", "error", 2),
        ("// expected-note @unknown {{m}}", "note", None),
    ],
)
def test_a_comment_names_severity_and_line(comment: str, severity: str, line: int | None) -> None:
    assert expectations(f"\n\n{comment}\n") == [Expectation(severity, line, "m", 3)]


@pytest.mark.parametrize(
    "comment",
    [
        "// expected-eror {{m}}",
        "// expected-error m",
        "// expected-error @beneath {{m}}",
        "// expected-error {{a {{(}} b}}",
    ],
)
def test_a_comment_that_cannot_be_read_is_wrong_usage(comment: str) -> None:
    with pytest.raises(UsageError, match="line 1"):
        expectations(comment)


def test_words_outside_of_comments_expect_nothing() -> None:
    assert expectations('%0 = "expected-error {{m}}"\n// what is expected: nothing') == []


def error(message: str, where: str = "f.mlir:3:1", severity: str = "error") -> Diagnostic:
    return Diagnostic(severity, where, message)


def test_the_text_is_a_part_of_the_message_with_patterns_in_braces() -> None:
    (e,) = expectations("\n\n// expected-error {{dim {{[0-9]+}} of (8x6)}}")
    assert e.meets(error("what: dim 12 of (8x6)."))
    assert not e.meets(error("dim x of (8x6)"))
    assert not e.meets(error("dim 1 of 8x6"))


def test_line_and_severity_must_agree() -> None:
    e = Expectation("error", 3, "m", 2)
    assert e.meets(error("m"))
    assert not e.meets(error("m", "f.mlir:4:1"))
    assert not e.meets(error("m", severity="remark"))
    assert not e.meets(error("m", "<unknown>"))
    assert Expectation("error", None, "m", 2).meets(error("m", "<unknown>"))


def test_each_expectation_is_met_once() -> None:
    one = Expectation("error", 3, "m", 2)
    assert mismatches([one], [error("m")], "f.mlir") == []
    (again,) = mismatches([one], [error("m"), error("m")], "f.mlir")
    assert str(again) == "f.mlir:3:1: error: unexpected error: m"
    (missing,) = mismatches([one, one], [error("m")], "f.mlir")
    assert str(missing) == 'f.mlir:2:1: error: expected error "m" was not produced'


def test_notes_may_be_expected_but_need_not_be() -> None:
    assert mismatches([], [error("m", severity="note")], "f.mlir") == []
    note = Expectation("note", 3, "m", 2)
    assert mismatches([note], [error("m", severity="note")], "f.mlir") == []
