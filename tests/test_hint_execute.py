"""Random programs with their ops in a region that asks for slices, against NumPy; and the ledger closes."""

import re

import numpy as np
import pytest
from depth import sampled
from hint_programs import built
from hypothesis import event, given, settings
from hypothesis import strategies as st
from programs import Program, programs
from test_execute import FAMILIES

from meshweave.api.program import Program as Compiled
from meshweave.layout import Mesh
from meshweave.runtime.local.engine import LocalEngine

MESHES = [Mesh(one=1), Mesh(x=2), Mesh(x=2, y=2)]
SCHEDULES = ("", 'order = "dfs"', 'order = "bfs"', "width = 2", "width = 3")


def in_region(p: Program, start: int, hints: str) -> str:
    """The module of `p` with the ops from number `start` on in a region."""
    text = p.text()
    inside = p.lines[start:]
    made = {name for line in inside for name in re.findall(r"%\w+", line.split(" = ", 1)[0])}
    given = list(dict.fromkeys(v for v, _ in p.results if v.name.split("#")[0] in made))
    types = ", ".join(v.type for v in given)
    names = ", ".join(v.name for v in given)
    body = "\n  ".join(inside)
    spelt = re.sub(r"= call @", "= func.call @", body)
    region = (
        f'%region:{len(given)} = "hint.region"() ({{\n  {spelt}\n'
        f'  "hint.yield"({names}) : ({types}) -> ()\n'
        f"  }}) {{hints = {{{hints}}}}} : () -> ({types})"
    )
    old_end = ", ".join(v.name for v, _ in p.results)
    new_end = ", ".join(f"%region#{given.index(v)}" if v in given else v.name for v, _ in p.results)
    text = text.replace(body, region, 1)
    return text.replace(f"return {old_end} :", f"return {new_end} :", 1)


@sampled(4)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_region_in_slices_gives_what_numpy_gives(family: str) -> None:
    steps, count = FAMILIES[family]

    @settings(max_examples=max(8, count // 10))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        p = data.draw(st.sampled_from(MESHES).flatmap(lambda m: programs(m, only=steps)))
        first = next((i for i, line in enumerate(p.lines) if p.results[0][0].name in line), None)
        if first is None:
            return  # the result is an input
        start = data.draw(st.integers(0, first))
        axes = data.draw(st.sampled_from(["t=2", "t=3", "t:2", "t=8", "t=2, u=2"]))
        slices = f'slice = {{value = "{axes}", strength = "preferred"}}'
        schedule = data.draw(st.sampled_from(SCHEDULES))
        text = in_region(p, start, ", ".join(filter(None, [slices, schedule])))
        bundle, ledger, _ = built(text)
        sliced = any("slices along" in e.reason for e in ledger.entries())
        event("in slices" if sliced else "not in slices")
        with Compiled(bundle, LocalEngine(timeout=30)) as program:
            results = program(*[v.value for v, _ in p.inputs])
        for i, (result, (value, layout)) in enumerate(zip(results, p.results)):
            np.testing.assert_array_equal(result, value.value, f"result {i}, {layout}\n{text}")

    check()
