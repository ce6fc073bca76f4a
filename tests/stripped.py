"""Run programs with their hints and without, and compare the results."""

from typing import Any

import numpy as np
import pytest
from hint_programs import bits_are_promised

from meshweave.api import program as api
from meshweave.api.program import Program, lowered, random_arguments
from meshweave.layout import Mesh
from meshweave.lowering import bundle_of
from meshweave.runtime.local.engine import LocalEngine
from meshweave.targets import Goal
from meshweave.transforms.slicing.ledger import read_ledger


def results(text: str, mesh: "Mesh | None", strip: bool, seed: int = 1) -> tuple[list[Any], int]:
    """The results on random arguments, and how many hints were asked for."""
    with lowered(text, "shown", mesh, strip=strip) as (module, program):
        asked = len(read_ledger(module).said)
        bundle = bundle_of(program, Goal.of(engine="local"))
    with Program(bundle, LocalEngine(timeout=60)) as loaded:
        given = random_arguments(loaded.inputs, seed)
        small = [a * a.dtype.type(0.1) if a.dtype.kind in "fc" else a for a in given]
        return list(loaded(*small)), asked


def agree(text: str, mesh: "Mesh | None" = None) -> int:
    """Check a program with and without its hints; how many it has."""
    (hinted, asked), (plain, left) = results(text, mesh, False), results(text, mesh, True)
    assert left == 0
    for one, other in zip(hinted, plain, strict=True):
        if bits_are_promised(text):
            np.testing.assert_array_equal(one, other)
        else:
            largest = np.abs(other).max(initial=1) if other.dtype.kind in "fc" else 0
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5 * largest)
    return asked


class Built:
    """Programs that were compiled meanwhile: text and mesh."""

    def __init__(self) -> None:
        self.programs: dict[tuple[str, str], Mesh | None] = {}

    def hinted(self) -> list[tuple[str, "Mesh | None"]]:
        found = [(text, mesh) for (text, _), mesh in self.programs.items()]
        return [(text, mesh) for text, mesh in found if "hint.region" in text]


def listen(monkeypatch: pytest.MonkeyPatch) -> Built:
    """Collect the programs that a test compiles from now on."""
    made, build = Built(), api._built

    def listening(text: str, name: str, mesh: "Mesh | None", *rest: Any) -> Any:
        bundle = build(text, name, mesh, *rest)
        made.programs[text, str(mesh)] = mesh
        return bundle

    monkeypatch.setattr(api, "_built", listening)
    return made


def asks_for_hints(source: str) -> bool:
    return "mw.hint(" in source or '"meshweave": {' in source
