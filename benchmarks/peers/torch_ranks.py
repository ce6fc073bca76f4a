"""Processes of a torch peer: one a rank, on this machine; nothing of meshweave is imported."""

import os
import socket
import subprocess
import sys


def run(module: str, count: int, arguments: list[str]) -> int:
    """Start `python -m module *arguments RANK PORT` for each rank and wait for all: the largest exit status."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen([*command, str(rank), port], env=environment) for rank in range(count)
    ]
    return max(abs(process.wait()) for process in started)
