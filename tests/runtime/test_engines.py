"""An engine is a class and a row: what a row says is all that the rest of the package asks."""

import sys
from dataclasses import replace

import numpy as np
import pytest

import meshweave as mw
from meshweave.api import redistribution
from meshweave.errors import MeshweaveError, UsageError
from meshweave.runtime import engine
from meshweave.runtime.local.engine import LocalEngine
from meshweave.targets import ENGINES, TARGETS, Goal, engine_traits, engines_of

ADD = """
func.func @main(%a: tensor<4xf32> {dist.layout = #dist.layout<"[x]">}) -> tensor<4xf32> {
  %0 = stablehlo.add %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


class Counted(LocalEngine):
    """Threads, as of `local`, that count what is loaded."""

    name = "counted"
    loaded = 0

    def load(self, bundle):
        Counted.loaded += 1
        return super().load(bundle)


@pytest.fixture
def counted(monkeypatch):
    """Register a new engine: its class, which is in this file, and its row."""
    monkeypatch.setitem(sys.modules, "counted_engine", sys.modules[__name__])
    row = replace(ENGINES["local"], name="counted", home="counted_engine:Counted")
    monkeypatch.setitem(ENGINES, "counted", row)
    Counted.loaded = 0
    return row


def test_a_new_engine_is_a_class_and_a_row(counted):
    a = np.arange(4, dtype=np.float32)
    with mw.compile(ADD, mesh="x=2", engine="counted") as program:
        assert program.bundle.manifest.engine == "counted"
        np.testing.assert_array_equal(program(a)[0], a + a)
    array = mw.Array.from_numpy(a, mesh="x=2", layout="[x]")
    for _ in range(2):  # the second move is compiled: its collective pulls from peers
        moved = array.redistribute("[_]", engine="counted")
        np.testing.assert_array_equal(moved.numpy(), a)
    assert Counted.loaded == 2
    redistribution.clear()


def test_a_bundle_runs_on_every_engine_of_the_same_code(counted):
    bundle = mw.compile(ADD, mesh="x=2").bundle
    with mw.Program(bundle, engine("counted")) as program:
        np.testing.assert_array_equal(program(np.ones(4, np.float32))[0], np.full(4, 2.0))
    assert counted.runs_code_of(ENGINES["local"])
    assert ENGINES["emulate"].runs_code_of(ENGINES["nccl"])
    assert not ENGINES["mpi"].runs_code_of(ENGINES["local"])


def test_each_row_leads_to_a_class_of_its_name():
    for name, row in ENGINES.items():
        made = engine(name)
        assert made.name == name and type(made).__name__ == row.home.partition(":")[2]
        assert row.target in TARGETS
        made.close()


def test_the_first_row_of_a_target_is_its_default():
    assert engines_of("cpu")[0] == "local" and engines_of("gpu")[0] == "nccl"
    assert Goal.of("gpu") == Goal("gpu", "nccl", "sm_90") and Goal.of().traits.reads_peers
    with pytest.raises(
        UsageError, match=r"^engine list\(..\): an engine's name is right: local, mpi"
    ):
        Goal.of(engine=["local"])
    with pytest.raises(UsageError, match='no engine "tcp"; there are local, mpi, nccl, emulate'):
        engine_traits("tcp")


def test_an_engine_whose_part_is_missing_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "meshweave.simulator.engine", None)
    with pytest.raises(MeshweaveError) as caught:
        engine("emulate")
    assert str(caught.value) == (
        "engine emulate needs meshweave.simulator.engine, which is not installed: "
        "pip install 'meshweave[simulator]'"
    )
