"""`meshweave doctor`: what it looks at, how it says what is missing, and that it survives whatever it finds."""

import json

import pytest
from commands import meshweave, real

from meshweave.errors import MeshweaveError
from meshweave.tools import doctor
from meshweave.tools.doctor import CHECKS, Check, _package


def test_here_everything_works():
    done = real("meshweave", "doctor")
    assert (done.status, done.err) == (0, "")
    for words in ("MLIR bindings", "OpenBLAS", "engine local", "engine mpi", "two ranks ran"):
        assert words in done.out
    assert done.out.endswith("everything needed is here\n")


def test_json_has_every_finding():
    done = meshweave("doctor", "--json")
    said = json.loads(done.out)
    assert done.status == 0 and list(said) == ["meshweave", "findings"]
    assert len(said["findings"]) == len(CHECKS)
    for finding in said["findings"]:
        assert list(finding) == ["what", "ok", "found", "needed_for", "optional"]
        assert finding["ok"] or finding["optional"]


@pytest.fixture
def found(monkeypatch, capsys):
    """What the command prints, and its status, when these are its checks."""

    def run(*checks, as_json=False):
        monkeypatch.setattr(doctor, "CHECKS", checks)
        status = doctor.doctor(as_json)
        return status, capsys.readouterr().out

    return run


def test_what_is_missing_is_status_1_and_named(found):
    def absent():
        raise MeshweaveError("not [found]")

    status, out = found(Check("mpiexec", absent, "engine mpi"))
    assert status == 1 and "missing" in out and "not [found]" in out
    assert out.endswith("to be fixed: mpiexec\n")


def test_what_is_optional_may_be_absent(found):
    status, out = found(_package("jax of another world", "benchmarks", optional=True))
    assert status == 0 and "absent" in out and "pip install jax of" in out


def test_a_check_that_breaks_is_a_finding(found):
    def broken():
        raise RuntimeError("first line\nsecond line")

    status, out = found(Check("driver", broken, ""), as_json=True)
    (finding,) = json.loads(out)["findings"]
    assert status == 1
    assert (
        finding["what"] == "driver" and finding["found"] == "RuntimeError: first line second line"
    )


def test_an_engine_that_does_not_run_says_why(monkeypatch):
    def wrong(*_, **__):
        raise OSError("no\nMPI")

    monkeypatch.setattr("meshweave.api.program.compile", wrong)
    (trial,) = (check.finding() for check in CHECKS if check.what == "engine mpi")
    assert not trial.ok and trial.found == "OSError: no MPI"
