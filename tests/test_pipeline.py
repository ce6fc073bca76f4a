"""Pipelines: what is read, what is refused and how, in which order things run, what failures
become.
"""

import io
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshweave import pipeline
from meshweave.dialects import context
from meshweave.errors import CompileError, UsageError
from meshweave.ir.locations import parse_module
from meshweave.ir.pipeline_text import PassEntry, parse_options, parse_value, read
from meshweave.pipeline import Dumps, check_pipeline, pipeline_text, run_pipeline
from meshweave.transforms.base import Pass, fail, fail_all, ops_of, remark

ADD = """\
func.func @add(%a: i32) -> i32 {
  %0 = arith.addi %a, %a : i32
  %1 = arith.muli %0, %0 : i32
  return %1 : i32
}
func.func @none() { return }
"""


@dataclass(frozen=True)
class Refuse(Pass):
    """Refuse every op of a name; remark it when `softly`."""

    name: ClassVar[str] = "dist-refuse"
    op: str = "arith.addi"
    softly: bool = False
    also: tuple[str, ...] = ()
    limit: int = 9
    share: float | None = None

    def run(self, module: Any) -> None:
        found = [o for name in (self.op, *self.also) for o in ops_of(module, name)]
        for o in found:
            if self.softly:
                remark(o, f"{o.operation.name} is not liked")
        if found and not self.softly:
            if len(found) > 1:
                fail_all([(o, f"no {o.operation.name}") for o in found])
            fail(found[0], f"no {self.op}")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    known = pipeline.all_passes()
    monkeypatch.setattr(pipeline, "all_passes", lambda: {**known, Refuse.name: Refuse})


@pytest.fixture
def ctx() -> Any:
    return context()


@pytest.fixture
def module(ctx: Any) -> Any:
    return parse_module(ADD, ctx, "add.mlir")


NAMES = st.from_regex(r"[a-z][a-z0-9\-]{0,8}", fullmatch=True)
OPTIONS = st.none() | st.sampled_from(["", "a=1", "a={x, y} b", 'c="( }"', "d=[[1], [2]]"])
LEAVES = st.builds(PassEntry, NAMES, OPTIONS)
ELEMENTS = st.recursive(
    LEAVES,
    lambda inner: st.builds(
        PassEntry, NAMES, st.none(), st.lists(inner, min_size=1, max_size=3).map(tuple)
    ),
    max_leaves=6,
)


def text_of(e: PassEntry) -> str:
    options = "" if e.options is None else f"{{{e.options}}}"
    children = "" if e.children is None else f"({','.join(map(text_of, e.children))})"
    return e.name + options + children


@given(st.lists(ELEMENTS, min_size=1, max_size=4))
def test_reading_undoes_writing(elements: list[PassEntry]) -> None:
    assert read(", ".join(map(text_of, elements))) == tuple(elements)


@given(st.text(alphabet='abc-(){},="[] .', max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read(text)
        parse_options(text, "x")
    except UsageError as error:
        assert "\n" not in str(error)


def test_options_are_split_at_spaces_outside_of_quotes_and_brackets() -> None:
    found = parse_options('a=1 b=x,y c="two words" d e={p q} f=', "x")
    assert found == {"a": "1", "b": "x,y", "c": "two words", "d": None, "e": "p q", "f": ""}


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3", int, 3),
        ("0.5", float, 0.5),
        ("x=2, y=4", str, "x=2, y=4"),
        (None, bool, True),
        ("false", bool, False),
        ("a,b", tuple[str, ...], ("a", "b")),
        ("", tuple[str, ...], ()),
        ("1,2", tuple[int, ...], (1, 2)),
        ("none", int | None, None),
        ("4", int | None, 4),
    ],
)
def test_values_are_read_as_their_type(text: str | None, kind: Any, value: object) -> None:
    assert parse_value(text, kind, "x") == value


def test_a_pipeline_prints_as_it_runs(ctx: Any) -> None:
    text = (
        'dist-refuse{op="a b" softly=true also=x,y limit=3},func.func(canonicalize,cse),symbol-dce'
    )
    for given_text in (text, f"builtin.module({text})"):
        steps = check_pipeline(given_text, ctx)
        assert [s.name for s in steps] == ["dist-refuse", "canonicalize", "cse", "symbol-dce"]
        assert steps[0].own == Refuse("a b", True, ("x", "y"), 3)
        assert check_pipeline(pipeline_text(steps), ctx) == steps


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dist-refuze", 'no pass "dist-refuze"; did you mean "dist-refuse"?'),
        ("canonicalise", 'no pass "canonicalise"; did you mean "canonicalize"?'),
        ("zzzz", 'no pass "zzzz"'),
        ("dist-refuse{softy}", 'dist-refuse has no option "softy"; did you mean "softly"?'),
        ("dist-refuse{limit=many}", "option limit must be a whole number, not 'many'"),
        ("dist-refuse{softly=maybe}", "option softly must be true or false, not 'maybe'"),
        ("dist-refuse{limit}", "option limit needs a value (int)"),
        ("dist-refuse{limit=1 limit=2}", "option limit is given twice"),
        ("func.func(dist-refuse)", "dist-refuse runs on the whole module"),
        (
            "canonicalize{max-iteration=1}",
            'no option "max-iteration"; did you mean "max-iterations"?',
        ),
        (
            "func.func(one-shot-bufferize)",
            "one-shot-bufferize runs on builtin.module, not on func.func",
        ),
        ("func.fun(cse)", 'no op "func.fun" to nest passes in; did you mean "func.func"?'),
        ("func.func{a=1}(cse)", "func.func(...) holds a nested pipeline and takes no options"),
        ("cse,", "expected the name of a pass at character 5 (the end)"),
        ("cse cse", "expected a comma"),
        ("func.func(cse", '"func.func(" is not closed'),
        ("cse{a", '"{" is not closed'),
        ("func.func(dist-pipeline)", "dist-pipeline is a named pipeline"),
    ],
)
def test_wrong_pipelines_are_refused_before_anything_runs(
    module: Any, text: str, message: str
) -> None:
    before = str(module)
    with pytest.raises(UsageError) as caught:
        run_pipeline(module, f"canonicalize,{text}")
    assert message in str(caught.value) or message.replace("5", "18") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(module) == before


def test_a_pass_that_cannot_run_here_is_wrong_usage(module: Any) -> None:
    with pytest.raises(UsageError, match=r"does not run on builtin.module: nest it"):
        run_pipeline(module, "shard-partition")


def test_a_refusal_names_place_and_both_parties(module: Any) -> None:
    with pytest.raises(CompileError) as caught:
        run_pipeline(module, "dist-refuse")
    assert str(caught.value) == "add.mlir:2:8: no arith.addi"


def test_several_refusals_are_the_first_and_a_count(module: Any) -> None:
    with pytest.raises(CompileError, match=r"add.mlir:2:8: no arith.addi \(and 1 more error\)"):
        run_pipeline(module, "dist-refuse{also=arith.muli}")


def test_errors_of_mlirs_passes_are_one_line(module: Any) -> None:
    with pytest.raises(CompileError) as caught:
        run_pipeline(module, "transform-interpreter")
    assert "could not find a nested named sequence" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_remarks_go_to_who_listens(module: Any) -> None:
    heard: list[str] = []
    run_pipeline(
        module,
        "dist-refuse{softly=true}",
        remark=lambda where, text: heard.append(f"{where} {text}"),
    )
    assert heard == ['loc("add.mlir":2:8) arith.addi is not liked']
    run_pipeline(module, "dist-refuse{softly=true}")  # nobody listens: no harm


def test_progress_names_every_pass_in_order(module: Any) -> None:
    seen: list[str] = []
    run_pipeline(module, "func.func(canonicalize,cse),symbol-dce", progress=seen.append)
    assert seen == ["canonicalize", "cse", "symbol-dce"]


def test_dumps_are_where_they_were_asked_for(module: Any) -> None:
    out = io.StringIO()
    run_pipeline(
        module, "func.func(canonicalize,cse)", dumps=Dumps(before=("cse",), after=True), out=out
    )
    headings = [line for line in out.getvalue().splitlines() if "IR Dump" in line]
    assert [h.split("IR Dump ")[1].split(" //")[0] for h in headings] == [
        "After canonicalize",
        "Before cse",
        "After cse",
    ]


def test_a_failure_prints_the_module_when_asked(module: Any) -> None:
    out = io.StringIO()
    with pytest.raises(CompileError):
        run_pipeline(module, "dist-refuse", dumps=Dumps(after_failure=True), out=out)
    assert "IR Dump After Failure" in out.getvalue()


def test_an_empty_pipeline_does_nothing(module: Any) -> None:
    before = str(module)
    run_pipeline(module, "")
    assert str(module) == before


def test_our_defects_keep_their_traceback(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Refuse, module: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Refuse, "run", broken)
    with pytest.raises(ZeroDivisionError):
        run_pipeline(module, "dist-refuse")


def test_the_names_we_suggest_exist(ctx: Any) -> None:
    """A sample of the list, one of each fifty: MLIR knows the name, whatever it says about the
    place.
    """
    from meshweave.ir.upstream_passes import NAMES

    for name in NAMES[::8]:
        try:
            check_pipeline(name, ctx)
        except UsageError as error:
            assert "no pass" not in str(error)
