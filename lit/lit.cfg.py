"""How lit runs the tests beside it: the commands are those of this checkout, `filecheck` is the
environment's.
"""

import atexit
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

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
commands.mkdir(parents=True, exist_ok=True)
forked = Path(__file__).resolve().parent / "forked.py"
address = Path(tempfile.mkdtemp(prefix="meshweave-lit-")) / "commands"
atexit.register(shutil.rmtree, address.parent, ignore_errors=True)
listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listening.bind(str(address))
listening.listen(64)
server = subprocess.Popen(
    [sys.executable, forked, str(listening.fileno())],
    stdin=subprocess.PIPE,  # which ends when lit does
    pass_fds=[listening.fileno()],
    env={**os.environ, "PYTHONPATH": str(root)},
)
listening.close()  # the server alone answers: a call of one that has died fails
for name in ("meshweave-opt", "meshweave", "filecheck"):
    script = commands / name
    call = f'"{sys.executable}" -IS "{forked}" "$MESHWEAVE_LIT" {name}'
    script.write_text(f'#!/bin/sh\nexec {call} "$@"\n')
    script.chmod(0o755)

config.environment["PATH"] = os.pathsep.join(
    [str(commands), str(Path(sys.executable).parent), os.environ["PATH"]]
)
config.environment["MESHWEAVE_LIT"] = str(address)
config.environment["PYTHONPATH"] = str(root)
config.environment["MESHWEAVE_CACHE"] = "off"  # the user's compiled programs stay as they are
