"""`meshweave plan`: the contract of its JSON, what --execute writes, the text, and wrong usage."""

import json

import numpy as np
import pytest
from depth import sampled

from meshweave.layout import Layout, Mesh, scatter
from meshweave.tools.cli import command

BASE = ("plan", "--mesh", "x=2,y=2", "--shape", "16x8", "--from", "[x, _]", "--to", "[_, y]")


@pytest.fixture
def plan(capsys):
    """The command in this process: exit status, standard output, standard error."""

    def call(*arguments):
        capsys.readouterr()
        status = command(arguments)
        out, err = capsys.readouterr()
        return status, out, err

    return call


def replaced(**changes):
    words = list(BASE)
    for name, value in changes.items():
        words[words.index("--" + name.rstrip("_")) + 1] = value
    return tuple(words)


def test_the_contract_of_json(plan):
    status, out, _ = plan(*BASE, "--json")
    made = json.loads(out)
    assert status == 0 and made["proved_minimal"] is True
    assert [(s["op"], s["axes"], s["bytes"]) for s in made["steps"]] == [
        ("all_slice", ["y"], 0),
        ("all_gather", ["x"], 128),
    ]
    keys = ("bytes", "lower_bound", "launches", "peak_bytes", "staging_bytes")
    assert [made[key] for key in keys] == [128, 128, 1, 384, 128]


@sampled(1)
@pytest.mark.parametrize("engine", ["local", "mpi", "simulate"])
def test_execute_writes_each_rank_s_allocation(plan, tmp_path, engine):
    words = replaced(shape="7x5", from_="[x, _] +sum(y)", to="[_, y]")
    status, out, err = plan(
        *words, "--json", "--execute", "--engine", engine, "--check", "--dump", str(tmp_path)
    )
    made = json.loads(out)
    assert status == 0, err
    assert made["wrong_elements"] == 0 and made["engine"] == engine
    value = np.arange(35, dtype=np.float32).reshape(7, 5)
    for rank, right in enumerate(scatter(value, Mesh(x=2, y=2), Layout.parse("[_, y]"))):
        held = np.load(tmp_path / f"rank{rank}.npy")
        assert held.ndim == 1 and held.dtype == np.float32
        inside = ~np.isnan(right.reshape(-1))
        assert np.array_equal(held[inside], right.reshape(-1)[inside])


@pytest.mark.parametrize("engine", ["local", "mpi", "simulate"])
def test_the_allocation_is_written_in_memory_order(plan, tmp_path, engine):
    words = ("plan", "--mesh", "x=1", "--shape", "6", "--from", "[_]")
    words += ("--to", "[2*_] order(0.1, 0.0)", "--execute", "--engine", engine)
    status, _, err = plan(*words, "--json", "--dump", str(tmp_path), "--dtype", "i32")
    assert status == 0, err
    assert np.load(tmp_path / "rank0.npy").tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize("dtype", ["bf16", "f64", "i8", "i1", "f16"])
def test_dtypes(plan, dtype):
    words = replaced(to="[_, x]")
    status, out, err = plan(*words, "--dtype", dtype, "--execute", "--check", "--json")
    assert status == 0 and json.loads(out)["wrong_elements"] == 0, err


def test_check_alone_runs_the_simulator(plan):
    status, out, _ = plan(*replaced(from_="[_*x*2, y]"), "--check")
    assert status == 0 and "executed on simulate: 0 wrong elements" in out


def test_the_text_shows_steps_proof_and_who_holds_what(plan):
    status, out, _ = plan(*BASE)
    assert status == 0
    for words in ("all_gather", "128 bytes", "no plan has fewer bytes", "8..15", "0,2"):
        assert words in out
    out = plan(*replaced(from_="[x, _] +sum(y)"))[1]
    assert "still to do: sum over y" in out
    out = plan(*replaced(from_="[_, _] order(1, 0)", shape="2x3"))[1]
    assert "rank 0 in memory: 0,0 1,0 0,1 1,1 0,2 1,2" in out
    out = plan(*replaced(shape="4x4x4", from_="[x, _, _]", to="[_, y, _]"))[1]
    assert "dim 2" in out
    assert "nothing to do" in plan(*replaced(to="[x, _]"))[1]


def test_a_symbolic_mesh_gives_formulas(plan):
    words = replaced(mesh="x=N,y=2", to="[_, x]")
    assert "4*ceil(16/N)*ceil(8/N)*(N - 1)" in plan(*words)[1]
    made = json.loads(plan(*words, "--json")[1])
    assert made["symbols"] == ["N"] and made["steps"][0]["op"] == "all_to_all"
    status, _, err = plan(*words, "--check")
    assert status == 2 and "is symbolic: --execute and --check need numbers" in err


def test_limits(plan):
    assert plan(*replaced(to="[_, x]"), "--memory", "512")[0] == 0
    status, _, err = plan(*replaced(to="[_, x]"), "--memory", "511")
    assert status == 1 and "no plan found within 511 bytes per rank" in err
    made = json.loads(plan(*replaced(to="[_, x]"), "--steps", "exchange", "--json")[1])
    assert [step["op"] for step in made["steps"]] == ["exchange"]


@pytest.mark.parametrize(
    "changes, extra, status, message",
    [
        ({"mesh": "x"}, (), 2, '--mesh: mesh "x": "x" is not NAME=SIZE'),
        ({"shape": "16y"}, (), 2, '--shape "16y": sizes joined by x'),
        ({"from_": "[x"}, (), 1, 'expected "," or "]" at column 3'),
        ({"to": "[_, z]"}, (), 1, 'no axis "z" in mesh (x=2, y=2)'),
        ({"to": "[x]"}, (), 1, "has 1 dims, the tensor 16x8 has 2"),
        ({}, ("--dtype", "f31"), 2, "--dtype f31: there are f64"),
        ({}, ("--dump", "d"), 2, "--dump goes with --execute"),
        ({}, ("--engine", "local"), 2, "--engine goes with --execute"),
        (
            {},
            ("--execute", "--engine", "e"),
            2,
            'no engine "e"; there are local, mpi, nccl, emulate, simulate',
        ),
        ({}, ("--steps", "gather"), 2, 'no step "gather"; there are all_slice'),
        ({}, ("--memory", "1k"), 2, "--memory 1k: a number of bytes"),
    ],
)
def test_wrong_usage(plan, changes, extra, status, message):
    got, out, err = plan(*replaced(**changes), *extra)
    assert (got, out) == (status, "") and message in err and err.count("\n") == 1
