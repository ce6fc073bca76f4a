"""The child process that commands run in: statuses, crashes, signals."""

import mmap
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from commands import meshweave
from shared import MEMORY

from meshweave.tools.guard import GRACE

ROOT = Path(__file__).resolve().parent.parent.parent


def start(body: str, **options: Any) -> subprocess.Popen:
    """A Python process that guards `command`, defined by `body`."""
    code = "import ctypes, os, sys, time\nfrom meshweave.tools.guard import guarded\n"
    code += f"def command(stage):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"
    code += "sys.exit(guarded(command, 'tool'))\n"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **options,
    )


def outcome(body: str) -> tuple[int, str, str]:
    process = start(body)
    out, err = process.communicate(timeout=100)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("body", "status"),
    [("return 0", 0), ("return 3", 3), ("sys.exit(2)", 2), ("sys.exit()", 0), ("sys.exit('x')", 1)],
)
def test_the_status_is_the_commands(body: str, status: int) -> None:
    assert outcome(body)[0] == status


def test_what_was_printed_arrives() -> None:
    assert outcome("print('to out'); print('to err', file=sys.stderr); return 0") == (
        0,
        "to out\n",
        "to err\n",
    )


def test_asking_again_and_again_breaks_nothing_off() -> None:
    body = "print('there', flush=True); time.sleep(1000); return 0"
    started = [start(body, start_new_session=True) for _ in range(8)]
    for process in started:
        assert process.stdout is not None and process.stdout.readline() == "there\n"
        while process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.0003)
        assert process.communicate() == ("", "tool: interrupted\n") and process.returncode == 130


def test_a_command_that_does_not_end_when_asked_is_ended() -> None:
    process = start(
        """
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        print("ready", flush=True)
        time.sleep(1000)
        """
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert process.wait(timeout=100) == 128 + signal.SIGINT
    assert time.monotonic() - began < 50 + GRACE


def test_a_crash_is_one_line_that_says_what_was_done() -> None:
    status, _, err = outcome("stage('reading a.mlir'); ctypes.string_at(0)")
    assert (status, err) == (
        1,
        "tool: error: native code crashed (SIGSEGV) while reading a.mlir\n",
    )
    assert "(SIGABRT) while starting" in outcome("os.abort()")[2]


def test_a_defect_keeps_its_traceback() -> None:
    status, _, err = outcome("raise ZeroDivisionError")
    assert status == 1 and "Traceback" in err and "ZeroDivisionError" in err


def test_a_full_disk_is_one_line() -> None:
    code = "print('text'); return 0"
    script = f"from meshweave.tools.guard import guarded\ndef command(_):\n    {code}\n"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", f"{script}raise SystemExit(guarded(command, 'tool'))"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=100,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    said = "tool: error: cannot write: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_child_outlives_its_parent(number: int) -> None:
    process = start("print(os.getpid(), flush=True); time.sleep(1000)")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(number)
    process.communicate(timeout=100)
    for _ in range(2000):
        if not alive(child):
            return
        time.sleep(0.05)
    pytest.fail("the child is still there")


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_ends_a_process_in_mlirs_parser_is_one_line() -> None:
    """linalg.transpose with a wrong permutation is such a program."""
    text = (
        "func.func @t(%a: tensor<2x3xf32>, %b: tensor<3x2xf32>) -> tensor<3x2xf32> {\n"
        "  %t = linalg.transpose ins(%a : tensor<2x3xf32>) outs(%b : tensor<3x2xf32>) "
        "permutation = [x, 0]\n  return %t : tensor<3x2xf32>\n}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "meshweave.tools.opt", "-"],
        input=text,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line == "<stdin>:2:91: error: a list of numbers, [0, 1], is right here"


def test_a_crash_after_ctrl_c_is_an_interruption() -> None:
    process = start(
        """
        import signal
        signal.signal(signal.SIGINT, lambda *_: os.abort())  # as libraries do that are interrupted
        print("ready", flush=True)
        time.sleep(1000)
        """
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    for child in children(process.pid):
        os.kill(child, signal.SIGINT)  # a terminal tells the whole group
    _, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (130, "tool: interrupted\n")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_commands_have_their_memory_whatever_the_tests_before_them_hold(tmp_path: Path) -> None:
    """Address space that this process has taken is not the command's; what it takes itself is bounded."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, MEMORY + (1 << 30), flags=flags, prot=mmap.PROT_READ):  # takes no memory
        assert meshweave("doctor", "--dump", tmp_path).status == 2
