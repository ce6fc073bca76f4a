"""What is public says what it is, takes, measures and raises; examples in docstrings run as they stand."""

import doctest
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshweave as mw
from meshweave.frontends.python import MODULES, PUBLIC, RENAMED

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "docs"))
import functions
import generate_api as api

SHOWN = api.shown()
"""What has a section of its own in docs/api.md, by its full name."""
FUNCTIONS = sorted({*PUBLIC, *RENAMED} - {name.removeprefix("mw.") for name in SHOWN})
MADE = {f"what mw.{name} makes": api.returned(name) for name in api.RETURNED}
NEED = {
    "mw.from_jax": "jax",
    "meshweave.jax.jit": "jax",
    "mw.from_torch": "torch",
    "mw.torch_backend": "torch",
}
UNITS = {"timeout": "second", "seconds": "second", "nbytes": "byte", "peak_bytes": "byte"}
"""Names of arguments, fields and members that have a unit -> the word for it."""


def classes() -> Iterator[tuple[str, Any]]:
    """The public classes."""
    for name, value in (*SHOWN.items(), *MADE.items()):
        if inspect.isclass(value) and not issubclass(value, tuple | Exception):
            yield name, value


def described() -> Iterator[tuple[str, Any, str]]:
    """Every public thing: its name, itself, and the docstrings that speak of its arguments."""
    for name, value in SHOWN.items():
        own = value.__dict__.get("__init__") if inspect.isclass(value) else None
        more = own.__doc__ if inspect.isfunction(own) else ""
        yield name, value, f"{inspect.getdoc(value) or ''}\n{more or ''}"
    for name, kind in classes():
        for member in api.members(kind):
            value = inspect.getattr_static(kind, member)
            value = getattr(value, "fget", None) or getattr(value, "__func__", value)
            value = getattr(value, "func", value)  # of a cached_property
            yield f"{name}.{member}", value, f"{inspect.getdoc(value)}\n{kind.__doc__}"


def parameters(value: Any) -> list[str]:
    """The names of what a public thing takes; of exceptions, which nobody makes, none."""
    if inspect.isclass(value) and issubclass(value, Exception):
        return []
    try:
        names = inspect.signature(value).parameters
    except (TypeError, ValueError):
        return []
    return [name for name in names if name not in ("self", "cls", "args", "kwargs")]


def faults(name: str, value: Any, said: str) -> list[str]:
    """What a docstring lacks."""
    own = inspect.getdoc(value) or ""
    if not re.match(r"[\w`~.|(-].*[.:;,\w)`]$", own.split("\n")[0]):
        return ["a first line that says what it is"]
    found = [f"what {p} is" for p in parameters(value) if not re.search(rf"\b{p}\b", said)]
    measured = [*parameters(value), name.rpartition(".")[2]]
    found += [f"the unit of {p}" for p in measured if p in UNITS and UNITS[p] not in said.lower()]
    if inspect.isfunction(value):
        raises = re.search(r"^ +raise \w+Error", inspect.getsource(value), re.MULTILINE)
        top = name.count(".") == 1 and name.startswith("mw.")
        if (raises or top) and "Error" not in said:
            found.append("what it raises")
    return found


@pytest.mark.parametrize(
    ("name", "value", "said"), [pytest.param(*d, id=d[0]) for d in described()]
)
def test_a_docstring_says_what_it_takes_measures_and_raises(
    name: str, value: Any, said: str
) -> None:
    assert not (lacking := faults(name, value, said)), f"{name} lacks {', '.join(lacking)}"


def test_a_docstring_that_lacks_something_is_found() -> None:
    def wait(timeout: float, shape: tuple[int, ...]) -> None:
        """Wait for it."""
        raise ValueError(timeout)

    lacking = ["what timeout is", "what shape is", "the unit of timeout", "what it raises"]
    assert faults("mw.wait", wait, wait.__doc__ or "") == lacking
    assert faults("mw.f", lambda: None, "") == ["a first line that says what it is"]


def test_every_public_name_is_on_the_page() -> None:
    public = {f"mw.{name}" for name in mw.__all__} - {"mw.__version__"}
    assert public <= set(SHOWN)
    kinds = {module for _, modules, _ in functions.FAMILIES for module in modules.split()}
    homes = {name: RENAMED.get(name, (PUBLIC.get(name),))[0] for name in FUNCTIONS}
    assert {name for name, home in homes.items() if home.rpartition(".")[2] not in kinds} == set()


# Examples.


def examples(name: str, value: Any) -> list[doctest.DocTest]:
    scope = {"mw": mw, "Mesh": mw.Mesh, "Layout": mw.Layout, "P": mw.P}
    found = doctest.DocTestFinder(exclude_empty=True).find(value, name, globs=scope)
    return [test for test in found if test.examples]


def shown_names() -> list[Any]:
    """Return every name with an example; those that need PyTorch are marked."""
    marks = {"torch": [pytest.mark.torch]}
    return [pytest.param(name, marks=marks.get(NEED.get(name, ""), [])) for name in [*SHOWN, *MADE]]


@pytest.mark.parametrize("name", shown_names())
def test_the_examples_of_docstrings_run(name: str) -> None:
    if name in NEED:
        pytest.importorskip(NEED[name])
    for test in examples(name, SHOWN.get(name) or MADE[name]):
        said: list[str] = []
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
        assert not said, "".join(said)


def test_what_has_a_section_has_an_example() -> None:
    kinds = {f"meshweave.errors.{name}" for name in api.MORE["Errors"].split()}
    # docs/howto.md shows these.
    plain = {"meshweave.bundle.Port", "meshweave.runtime.mpi.inside.InsideProgram"}
    without = {name for name, value in SHOWN.items() if not examples(name, value)}
    assert without <= kinds | plain


def traced(v: Any, w: Any, m: Any, i: Any, b: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays that the examples of docs/functions.py give, and what else they give."""
    scope = {name: getattr(mw, name) for name in (*PUBLIC, *MODULES)} | {
        "v": v,
        "w": w,
        "m": m,
        "i": i,
        "b": b,
    }
    given = {name: eval(text, scope) for name, (text, _) in functions.EXAMPLES.items()}
    arrays = {name: value for name, value in given.items() if hasattr(value, "dtype")}
    return arrays, {name: value for name, value in given.items() if name not in arrays}


def as_shown(value: Any) -> str:
    """A value as docs/api.md shows it."""
    if isinstance(value, str | tuple | bool):
        return repr(value)
    return _listed(np.asarray(value).tolist())


def _listed(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_listed, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


ARGUMENTS = [
    np.asarray(value, np.float32 if name in "vwm" else None)
    for name, value in functions.NAMES.items()
]


def test_examples_of_functions_give_what_is_shown() -> None:
    plain: dict[str, Any] = {}

    def program(*arrays: Any) -> Any:
        made, others = traced(*arrays)
        plain.update(others)
        return made

    given = {**mw.jit(program)(*ARGUMENTS), **plain}
    wanted = {name: shown for name, (_, shown) in functions.EXAMPLES.items()}
    assert {name: as_shown(value) for name, value in given.items()} == wanted


def test_every_function_has_an_example() -> None:
    refused = {name for name in FUNCTIONS if name == "nonzero" or name.startswith("unique_")}
    called = {name for name in FUNCTIONS if inspect.isfunction(getattr(mw, name))} - refused
    every = {f"{space}.{name}" for space in MODULES for name in getattr(mw, space).__all__}
    also = every - {f"{space}.{name}" for name in called for space in ("linalg", "nn")}
    assert called | also == set(functions.EXAMPLES) - (every - also)


IN_NUMPY = {known: getattr(np, known) for known in (*PUBLIC, *MODULES) if hasattr(np, known)}


def numpy_has(name: str) -> bool:
    """Tell whether NumPy runs the example of a function too."""
    own = ("as_dtype", "can_cast", "finfo", "iinfo", "result_type")  # they know our dtypes' names
    own += ("put_along_axis",)  # NumPy's returns nothing
    text = functions.EXAMPLES[name][0]
    used = set(re.findall(r"\b[a-z]\w+(?=\()", text))
    return (
        name not in own
        and not name.startswith("special.")  # NumPy has expm1 and log1p, no module of that name
        and used <= set(IN_NUMPY)
        and not {"descending", "length"} & set(re.findall(r"\w+", text))
    )


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
@pytest.mark.parametrize("name", [n for n in functions.EXAMPLES if numpy_has(n)])
def test_an_example_gives_what_numpy_gives(name: str) -> None:
    text, shown = functions.EXAMPLES[name]
    assert as_shown(eval(text, IN_NUMPY | dict(zip(functions.NAMES, ARGUMENTS)))) == shown
