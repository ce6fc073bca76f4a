"""The programs of docs/hints.md obey their hints, and its tables are those of the code."""

import re

import numpy as np
import pytest
from commands import ROOT
from depth import sampled

from meshweave.api.program import Program, build, lowered, random_arguments
from meshweave.errors import CompileError
from meshweave.hints.keys import KEYS, TARGETS
from meshweave.lowering.buffers.memory import region_bytes
from meshweave.lowering.cpu.target import bundle_of
from meshweave.runtime.local.engine import LocalEngine
from meshweave.transforms.slicing.ledger import read_ledger

PAGE = (ROOT / "docs" / "hints.md").read_text()
PROGRAMS = re.findall(r"```mlir \S+\n(.*?)```", PAGE, re.DOTALL)


@sampled(1)
@pytest.mark.parametrize("text", PROGRAMS)
def test_the_programs_give_the_same_with_and_without_hints(text: str) -> None:
    with Program(build(text), LocalEngine(timeout=30)) as program:
        given = random_arguments(program.inputs, 1)
        given = [a * np.float32(0.1) for a in given]
        (hinted,) = program(*given)
    with lowered(text, "page", None, strip=True) as (_, stripped):
        plain = Program(bundle_of(stripped), LocalEngine(timeout=30))
    with plain:
        np.testing.assert_allclose(hinted, plain(*given)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("text", PROGRAMS)
def test_every_hint_of_the_programs_is_honoured(text: str) -> None:
    with lowered(text, "page", None) as (module, program):
        ledger = read_ledger(module)
        assert {e.outcome for e in ledger.entries()} == {"honoured"}, ledger.report()
        budgets = [s for s in ledger.said if s.hint.key == "peak_bytes"]
        assert all(region_bytes(program)[s.region] <= s.hint.parsed for s in budgets)


def test_the_table_has_every_key_with_its_strength() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([^|]*) \| ([^|]*) \|$", PAGE, re.MULTILINE)
    assert [key for key, _, _ in rows] and {key for key, _, _ in rows} == set(KEYS)
    for key, strength, inner in rows:
        assert KEYS[key].strength in strength, key
        assert KEYS[key].inherited == (inner == "inherit"), key


def test_what_the_page_says_of_the_target_holds() -> None:
    assert {"slice", "order", "width", "peak_bytes", "bundle"} <= TARGETS["cpu"]
    assert "stream" not in TARGETS["cpu"] and "fuse" in TARGETS["cpu"]


def test_the_least_that_the_page_speaks_of() -> None:
    with pytest.raises(CompileError, match="in 512 slices along dim 0 of result 0"):
        build(PROGRAMS[1].replace("70kB", "1kB"))
