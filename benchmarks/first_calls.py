"""What a user waits for before code runs: import, the first compile, the same from disk, the first call of a new shape.

    python -m benchmarks first_calls [--repeat N]

Each is taken in processes of their own, after one that is not counted, which writes Python's bytecode as an
installation does. From the interpreter's start, which is not counted, to the end of the statement, so NumPy's import
is in all rows but the last. Wall time is the fastest and the middle of N; processor time, of all threads, the middle.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import ROOT, milliseconds, show, table

NEW_SHAPES = 8
_TIMED = """
import json, time
began = time.perf_counter(), time.process_time()
def took():
    print(json.dumps([time.perf_counter() - began[0], time.process_time() - began[1]]))
"""
_JIT = """
import numpy as np, meshweave as mw
@mw.jit(mesh="x=2", in_layouts=("[x, _]", "[_, _]"))
def f(a, b): return mw.tanh(a @ b)
def call(rows): f(np.ones((rows, 8), np.float32), np.ones((8, 8), np.float32))
"""
_BLOCK = "import meshweave as mw\nmw.compile('examples/block/block.mlir')\n"
IMPORT = "import numpy, meshweave\n"
FIRST = f"{_JIT}call(8)\n"
NEW = f"""{_JIT}call(8)
call(16)
times = []
for rows in range(24, 24 + 8 * {NEW_SHAPES}, 8):
    began = time.perf_counter(), time.process_time()
    call(rows)
    times.append((time.perf_counter() - began[0], time.process_time() - began[1]))
print(json.dumps([sum(column) / len(times) for column in zip(*times)]))
"""
ROWS = (  # what, its code, whether programs are kept on disk, the aim in seconds
    ("import meshweave", IMPORT, False, 0.15),
    ("first compile of examples/block", _BLOCK, False, 1.0),
    ("the same from the disk cache", _BLOCK, True, 0.1),
    ("first call of tanh(a @ b) on two ranks", FIRST, False, None),
    ("the same from the disk cache", FIRST, True, None),
    ("a new shape of it", NEW, False, None),
)


def run(code: str, folder: str, disk: bool) -> tuple[float, float]:
    """Wall and processor seconds of `code` in a new process, whose caches are below `folder`."""
    script = Path(folder) / "program.py"  # its name is in the places of what it traces
    ending = "" if code == NEW else "took()\n"
    script.write_text(_TIMED + code + ending)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "bytecode")
    environment["MESHWEAVE_CACHE"] = str(Path(folder) / "programs") if disk else "off"
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{code}: {done.stderr.strip()}")
    wall, cpu = json.loads(done.stdout)
    return wall, cpu


def main(options: argparse.Namespace) -> None:
    """Print the table."""
    made = table("before code runs", "what", "fastest", "middle", "processor", "aim")
    with tempfile.TemporaryDirectory() as folder:
        for what, code, disk, aim in ROWS:
            run(code, folder, disk)
            times = [run(code, folder, disk) for _ in range(options.repeat)]
            walls, cpus = zip(*times)
            middle = statistics.median(walls)
            made.add_row(
                what,
                *map(milliseconds, (min(walls), middle, statistics.median(cpus), aim)),
            )
    show(made)
