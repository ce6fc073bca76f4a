"""What JAX users write gives what JAX gives: on one rank, in other types, on a mesh. Of `jax_expressions.txt` these are
samples of a minute, several at a time in one program; `python -m frontends.jax_cases` runs all, one by one.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from depth import deep, sampled
from frontends.jax_cases import DTYPES, Case, arguments, cases, differs, function, over_axes

import meshweave as mw
from meshweave.errors import MeshweaveError

jax = pytest.importorskip("jax")
TOGETHER = 16
REFUSED = [case for case in cases() if case.section == "refused"]
CASES = [case for case in cases() if case.section != "refused"]


def batches(chosen: Iterator[tuple[Case, str]]) -> list[Any]:
    """Cases with their types, those of a section and type together."""
    found = []
    ordered = sorted(chosen, key=lambda pair: (pair[0].section, pair[1]))
    for (section, dtype), pairs in groupby(ordered, key=lambda pair: (pair[0].section, pair[1])):
        members = [case for case, _ in pairs]
        for first in range(0, len(members), TOGETHER):
            name = f"{section}-{dtype}-{first}"
            found.append(pytest.param(members[first : first + TOGETHER], dtype, id=name))
    return found


def agree(members: list[Case], dtype: str, **options: Any) -> None:
    """One program of all of them; every result is JAX's."""
    names = tuple(sorted({name for case in members for name in case.names}))

    def together(*args: Any) -> Any:
        given = dict(zip(names, args, strict=True))
        return tuple(function(case)(*(given[n] for n in case.names)) for case in members)

    with jax.enable_x64("64" in dtype):
        args = arguments(names, DTYPES[dtype])
        wanted = jax.jit(together)(*args)
        if "mesh" in options:
            options["in_shardings"] = tuple(over_axes(np.ndim(arg)) for arg in args)
        with mw.from_jax(together, *args, **options) as compiled:
            got = compiled(*args)
            pairs = [list(map(jax.tree.leaves, pair)) for pair in zip(got, wanted, strict=True)]
            wrong = {
                case.text: text
                for case, pair in zip(members, pairs, strict=True)
                for text in map(differs, *pair)
                if text
            }
    assert not wrong


@sampled(6)
@pytest.mark.parametrize(
    ("members", "dtype"), batches((case, case.types[0]) for case in CASES[::3])
)
def test_expressions_give_what_jax_gives(members: list[Case], dtype: str) -> None:
    agree(members, dtype)


OTHERS = [case for case in CASES if len(case.types) > 1]


@sampled(4)
@pytest.mark.parametrize(
    ("members", "dtype"),
    batches(
        (case, case.types[1 + n // 9 % (len(case.types) - 1)])
        for n, case in enumerate(OTHERS)
        if n % 9 == 0
    ),
)
def test_so_they_do_in_other_types(members: list[Case], dtype: str) -> None:
    agree([case for case in members if known_to_jax(case, dtype)], dtype)


def known_to_jax(case: Case, dtype: str) -> bool:
    """Some functions of JAX take no floats of 16 bits."""
    with jax.enable_x64("64" in dtype):
        try:
            jax.eval_shape(function(case), *arguments(case.names, DTYPES[dtype]))
        except TypeError:
            return False
    return True


@sampled(4)
@pytest.mark.parametrize(
    ("members", "dtype"), batches((case, case.types[0]) for case in CASES[2::11])
)
def test_so_they_do_on_a_mesh(members: list[Case], dtype: str) -> None:
    agree(members, dtype, mesh="x=2, y=2")


@deep  # test_jax_linalg.py has one of each
@pytest.mark.parametrize(("dtype", "options"), [("f64", {"mesh": "x=2, y=2"}), ("f32", {})])
def test_all_decompositions_do(dtype: str, options: dict[str, str]) -> None:
    members = [case for case in CASES if case.section == "decompositions" and dtype in case.types]
    agree(members, dtype, **options)


@sampled(1)
@pytest.mark.parametrize("case", REFUSED, ids=[case.text for case in REFUSED])
def test_what_is_refused_says_so_in_a_line(case: Case) -> None:
    args = arguments(case.names, "float32")
    with pytest.raises(MeshweaveError, match=r"not supported|no lowering for this op") as caught:
        mw.from_jax(function(case), *args)
    assert "\n" not in str(caught.value)
