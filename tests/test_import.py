"""What importing costs: nothing before a name is used, and then no compiler, no plotting, no archives."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from depth import sampled

ROOT = Path(__file__).resolve().parent.parent


def fresh(code: str) -> Any:
    """What a new interpreter prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def loaded_by(code: str) -> list[str]:
    """The modules that these statements load, in a process that has NumPy."""
    start = "import numpy, json, sys\nbefore = set(sys.modules)\n"
    return fresh(f"{start}{code}\nprint(json.dumps(sorted(set(sys.modules) - before)))")


def test_importing_costs_nothing() -> None:
    assert loaded_by("import meshweave") == ["meshweave"]


@sampled(4)
@pytest.mark.parametrize("name", ["jit", "Array", "load", "show", "from_jax", "exp"])
def test_names_load_little(name: str) -> None:
    code = (
        "import meshweave, json, sys\n"
        f"meshweave.{name}\n"
        "print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    loaded = set(fresh(code))
    assert "numpy" in loaded
    assert not loaded & {
        "torch_mlir",
        "mlir",
        "jax",
        "torch",
        "rich",
        "mpi4py",
        "zipfile",
        "IPython",
    }


def test_a_program_from_disk_loads_little(disk_cache: Path) -> None:
    code = (
        "import json, sys\nimport meshweave\n"
        "meshweave.compile('examples/block/block.mlir', engine='local').close()\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    assert "torch_mlir" in fresh(code)
    heavy = {"torch_mlir", "numpy.random", "difflib", "email", "socket", "subprocess", "tempfile"}
    assert not heavy & set(fresh(code))


def test_the_first_names_load_little() -> None:
    """Counted, since seconds are those of the machine and its load; these take about 60 ms."""
    assert len(loaded_by("import meshweave\nmeshweave.Mesh, meshweave.Array")) < 76
