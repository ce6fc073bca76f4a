"""Ports of TCP for tests: each is one process's until that ends."""

import os
import socket
from pathlib import Path

FIRST = 20000
_held: list[socket.socket] = []


def free_port() -> int:
    """Return a port to listen at that no other test gets, and that the system gives to nobody who asks for any."""
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    most = max(end - FIRST, 1000)
    for turn in range(most):
        port = FIRST + (os.getpid() * 37 + turn) % most
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0meshweave-test-port-{port}")
            socket.create_server(("", port)).close()
        except OSError:
            mark.close()
            continue
        _held.append(mark)
        return port
    raise OSError("no port is free")
