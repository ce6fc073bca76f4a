"""Run the commands of the tests in forks of one process, which has loaded them: Python and MLIR take a second to start.

forked.py FD [MODULE]             serve: FD is a socket that listens; until standard input ends
forked.py SOCKET COMMAND ARG..    run the command with this process's files, folder and environment

What runs tests calls `start` once and `write_commands` for its folder of commands, or `Call` for a single one. MODULE
is imported first, and its `begin` called in each fork.
"""

import json
import os
import socket
import sys

COMMANDS = {
    "meshweave": "meshweave.tools.cli",
    "meshweave-opt": "meshweave.tools.opt",
    "filecheck": "filecheck.main",
}
NO_ANSWER = 70  # the exit status where the fork died before it said its own
SOCKET = "MESHWEAVE_FORKS"  # the variable that says where the commands find the process that forks
ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def start(module: str = "", path: str = ROOT) -> str:
    """Start the process that forks, on this very tree; return the socket where it listens until this process ends.

    path: where it finds modules.
    """
    import atexit
    import shutil
    import subprocess
    import tempfile

    folder = tempfile.mkdtemp(prefix="meshweave-forks-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    address = os.path.join(folder, "commands")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(address)
    listening.listen(64)
    server = subprocess.Popen(
        [sys.executable, __file__, str(listening.fileno()), *([module] if module else [])],
        stdin=subprocess.PIPE,  # which ends when this process does
        pass_fds=[listening.fileno()],
        env={**os.environ, "PYTHONPATH": path},
    )
    atexit.register(server.terminate)
    listening.close()  # the server alone answers: a call of one that has died fails
    return address


def write_commands(folder: str) -> None:
    """Write the commands into a folder: what runs them has the socket in its environment."""
    for name in COMMANDS:
        path = os.path.join(folder, name)
        call = f'"{sys.executable}" -IS "{__file__}" "${SOCKET}" {name}'
        with open(path, "w") as script:
            script.write(f'#!/bin/sh\nexec {call} "$@"\n')
        os.chmod(path, 0o755)


def serve(listening: socket.socket, module: str = "") -> None:
    """Answer each caller in a fork; return once standard input has ended: lit has gone."""
    import selectors
    import signal
    from importlib import import_module

    begin = import_module(module).begin if module else lambda: None
    mains = {name: import_module(module).main for name, module in COMMANDS.items()}
    for name in ("frontends.entry", "lowering", "pipeline", "tools.run", "tools.verify"):
        import_module(f"meshweave.{name}")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    events = selectors.DefaultSelector()
    events.register(listening, selectors.EVENT_READ)
    events.register(0, selectors.EVENT_READ)
    while all(key.fd != 0 for key, _ in events.select()):
        caller, _ = listening.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            begin()
            status = _answered(caller, mains)
            caller.sendall(bytes([status]))
            os._exit(0)
        caller.close()


def _answered(caller: socket.socket, mains: dict) -> int:
    """Become the caller, and run what it asks for; return the exit status."""
    try:
        caller.sendall(os.getpid().to_bytes(8, "little"))
    except BrokenPipeError:
        os._exit(0)  # the caller was ended before
    text, files, _, _ = socket.recv_fds(caller, 1 << 20, 3)
    asked = json.loads(text)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = os.fdopen(0, "r")
    sys.stdout = os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = asked["command"]
    try:
        status = mains[asked["command"][0]]()
    except SystemExit as end:
        status = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return int(status or 0)


class Call:
    """Have `command` run by the process behind the socket at `path`. files: its standard input, output and error."""

    def __init__(self, path: str, command: list[str], files: tuple[int, int, int]) -> None:
        """Start it. `runs` is the process that runs it."""
        asked = {"command": command, "folder": os.getcwd(), "environment": dict(os.environ)}
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.server.connect(path)
        socket.send_fds(self.server, [json.dumps(asked).encode()], list(files))
        self.runs = int.from_bytes(self.server.recv(8), "little")

    def status(self) -> int:
        """Wait until it has ended; return its exit status."""
        with self.server:
            return (self.server.recv(1) or bytes([NO_ANSWER]))[0]


def call(path: str, command: list[str]) -> int:
    """Have `command` run with this process's files; return the exit status.

    A signal that ends this process goes to the one that runs the command.
    """
    import signal

    made = Call(path, command, (0, 1, 2))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if made.runs else ():
        signal.signal(number, lambda given, _: os.kill(made.runs, given))
    return made.status()


if __name__ == "__main__":
    if sys.argv[1].isdecimal():
        serve(socket.socket(fileno=int(sys.argv[1])), *sys.argv[2:])
    else:
        sys.exit(call(sys.argv[1], sys.argv[2:]))
