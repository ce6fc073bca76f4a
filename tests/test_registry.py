"""A pass has one name in four spellings: command line, class, file, lit test."""

import re
from pathlib import Path

import pytest

from meshweave.dialects import DIALECTS
from meshweave.ir.pipeline_text import read
from meshweave.ir.upstream_passes import NAMES
from meshweave.pipeline import PIPELINES, all_passes, make_pass
from meshweave.transforms import PASSES

ROOT = Path(__file__).resolve().parent.parent


def short(name: str) -> str:
    """`fold-redistribute` of `dist-fold-redistribute`: that dialect is no part of the other
    spellings.
    """
    return name.removeprefix("dist-")


def file_of(name: str) -> str:
    """`apply` of `hint-apply`: the folder says what the dialect's prefix says."""
    return name.removeprefix("dist-").removeprefix("hint-").replace("-", "_")


def camel(text: str) -> str:
    return "".join(word.capitalize() for word in re.split(r"[-_]", text))


@pytest.mark.parametrize("name", all_passes())
def test_the_class_is_named_for_the_pass(name: str) -> None:
    kind = all_passes()[name]
    assert kind.name == name
    assert kind.__name__ == camel(short(name))


@pytest.mark.parametrize("name", PASSES)
def test_the_file_is_named_for_the_pass(name: str) -> None:
    room, file = PASSES[name].__module__.removeprefix("meshweave.transforms.").split(".")
    assert file == file_of(name), f"transforms/{room}/{file}.py"
    assert (PASSES[name].__doc__ or "").strip()


@pytest.mark.parametrize("name", all_passes())
def test_each_pass_has_a_lit_test_that_runs_it(name: str) -> None:
    folder = "/".join(all_passes()[name].__module__.split(".")[1:-1])
    tests = list((ROOT / "lit" / folder).glob(f"{file_of(name)}*.mlir"))
    assert tests, f"lit/{folder}/{file_of(name)}.mlir"
    assert any(re.search(rf"RUN:.*\b{name}\b", t.read_text()) for t in tests)


@pytest.mark.parametrize("name", all_passes())
def test_a_pass_prints_as_text_that_makes_it_again(name: str) -> None:
    kind = all_passes()[name]
    made = kind()
    (element,) = read(str(made))
    assert make_pass(kind, element.options or "") == made


def test_no_name_is_taken_twice() -> None:
    names = [*all_passes(), *PIPELINES, *NAMES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.DIALECT_NAMESPACE)
def test_op_classes_are_named_for_their_ops(dialect: type) -> None:
    for op in dialect.operations:
        assert op.__name__ == camel(op.OPERATION_NAME.split(".")[1]) + "Op"
    for attr in dialect.Attribute.__subclasses__():
        assert attr.__name__ == camel(attr.attr_name.split(".")[1]) + "Attr"
