"""The examples in the docstrings of public names run as they stand."""

import doctest
from typing import Any

import pytest

import meshweave as mw
from meshweave.trace import PUBLIC

NAMES = sorted({*mw.__all__, *PUBLIC} - {"__version__"})
NEED = {"from_jax": "jax", "from_torch": "torch", "torch_backend": "torch"}


def examples(name: str) -> list[doctest.DocTest]:
    value: Any = getattr(mw, name)
    scope = {"mw": mw, "Mesh": mw.Mesh, "Layout": mw.Layout, "P": mw.P}
    found = doctest.DocTestFinder(exclude_empty=True).find(value, f"mw.{name}", globs=scope)
    return [test for test in found if test.examples]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NEED])
def test_every_public_name_is_described_and_its_examples_run(name: str) -> None:
    value = getattr(mw, name)
    if callable(value):
        assert (value.__doc__ or "").strip(), f"mw.{name} has no docstring"
    for test in examples(name):
        said: list[str] = []
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
        assert not said, "".join(said)


@pytest.mark.parametrize(("name", "package"), NEED.items())
def test_examples_that_need_a_package(name: str, package: str) -> None:
    pytest.importorskip(package)
    test_every_public_name_is_described_and_its_examples_run(name)


def test_programs_are_written_after_examples() -> None:
    shown = {name for name in NAMES if name not in NEED and examples(name)}
    needed = {"Array", "Layout", "Mesh", "P", "compile", "cond", "constrain", "from_mlir"}
    needed |= {"from_stablehlo", "hint", "jit", "kernels", "load", "redistribute", "scan", "show"}
    assert needed <= shown, f"no example: {sorted(needed - shown)}"
