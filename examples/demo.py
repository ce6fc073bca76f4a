"""Run four programs that JAX exported on four ranks of this machine: what `make demo` does.

Each command is shown as it could be typed. `--expect` compares with what JAX computed on one
device, `--check` with the same program compiled for one rank.
"""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = {
    "mlp": "a two-layer perceptron: rows over dp, the hidden dim over tp",
    "attention": "softmax attention: batch over dp, heads over tp",
    "block": "a transformer block: layer norm, causal attention, MLP",
    "gpt2l": "two such blocks with embedding lookup and tied logits",
}


def arguments(name: str) -> list[str]:
    """Return the `meshweave run` command of a program: its inputs in order, and the expected result."""
    folder = HERE / name
    count = len(list(folder.glob("in*.npy")))
    inputs = [str((folder / f"in{i}.npy").relative_to(HERE.parent)) for i in range(count)]
    program = str((folder / f"{name}.mlir").relative_to(HERE.parent))
    expected = str((folder / "out0.npy").relative_to(HERE.parent))
    return ["meshweave", "run", program, "--input", *inputs, "--expect", expected, "--repeat", "5"]


def shown(command: list[str]) -> str:
    """Return the command as it could be typed; of a row of inputs only the first and the last."""
    text = shlex.join(command)
    inputs = [a for a in command if "/in" in a]
    if len(inputs) > 2:
        text = text.replace(" ".join(inputs), f"{inputs[0]} .. {inputs[-1]}")
    return text


def run(title: str, command: list[str]) -> None:
    """Run one command of the demonstration; a failure ends it."""
    print(f"\n==> {title}\n$ {shown(command)}", flush=True)
    script = Path(sys.executable).parent / command[0]
    start = [str(script)] if script.exists() else [sys.executable, "-m", "meshweave.tools.cli"]
    # Not from the cache of compiled programs: the times to compile are those of compiling.
    environment = {**os.environ, "MESHWEAVE_CACHE": "off"}
    status = subprocess.run([*start, *command[1:]], cwd=HERE.parent, env=environment).returncode
    if status:
        sys.exit(status)


def main() -> None:
    """Run all programs with ranks as threads, then one with ranks as processes."""
    begin = time.perf_counter()
    for name, what in PROGRAMS.items():
        run(f"{name}, {what}", arguments(name))
    run("block on another mesh", [*arguments("block"), "--mesh", "dp=1,tp=4"])
    run("block with an MPI process per rank", [*arguments("block"), "--engine", "mpi"])
    print(f"\nAll results agree with JAX's. ({time.perf_counter() - begin:.0f} s)")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)  # the command at work has said so
