"""How lit runs the tests beside it: the commands are those of this checkout, `filecheck` is the
environment's.
"""

import importlib.util
import os
import runpy
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import lit.formats

root = Path(__file__).resolve().parent.parent
output = root / "build" / "lit"
commands = output / "bin"

config.name = "meshweave"
config.test_format = lit.formats.ShTest(False)
config.suffixes = [".mlir", ".test"]
config.test_source_root = str(root / "lit")
config.test_exec_root = str(output)
config.excludes = ["inputs"]
if importlib.util.find_spec("llvmlite"):  # the back end for gpus
    config.available_features.add("llvmlite")

if shutil.which("objdump"):
    config.available_features.add("objdump")

# Not the installed scripts: forks of one process of whatever Python started lit, on this very tree.
forked = SimpleNamespace(**runpy.run_path(str(root / "lit" / "forked.py"), run_name="forked"))
commands.mkdir(parents=True, exist_ok=True)
forked.write_commands(str(commands))

config.environment["PATH"] = os.pathsep.join(
    [str(commands), str(Path(sys.executable).parent), os.environ["PATH"]]
)
config.environment[forked.SOCKET] = forked.start()
config.environment["PYTHONPATH"] = str(root)
config.environment["MESHWEAVE_CACHE"] = "off"  # the user's compiled programs stay as they are
