"""Start the ranks of a job on this host, with no socket that anyone could connect to.

Its argument is a job in JSON: what the ranks do, what is added to the environment of each, and whether they speak PMI.
When a rank fails it writes how, and ends the others. For ranks that are a `command` the file is run by its path, on the
standard library alone, so that it starts at once. Ranks that are the `main` of a `module` are copies of this process,
which has imported it: NumPy is loaded once, not by each. MPI must not be: each rank starts it for itself.

PMI (its wire protocol of version 1, which ranks of MPICH speak) is how MPI processes find each other: each has a link
to its launcher, on which it puts and gets values and meets all others.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import io
import json
import os
import re
import selectors
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

_PARENT_DEATH_SIGNAL = 1  # prctl
_GRACE = (
    3  # seconds in which ranks whose job is over tidy up and end; they do not outlive this process
)
_REPLIES = {
    "init": "response_to_init pmi_version=1 pmi_subversion=1 rc=0",
    "get_maxes": "maxes kvsname_max=256 keylen_max=64 vallen_max=1024",
    "get_appnum": "appnum appnum=0",
    "get_my_kvsname": f"my_kvsname kvsname=meshweave_{os.urandom(8).hex()}",
    "finalize": "finalize_ack",
}
"""To what is answered the same always. MPICH names its shared memory after the kvsname: each job has its own."""


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the system send this process a signal when the one that has started it ends."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, number)


def how_ended(status: int) -> str:
    """Describe the status of a process: `Killed (signal 9)` for -9, "" for 0."""
    if status < 0:
        return f"{signal.strsignal(-status)} (signal {-status})"
    return f"status {status}" if status else ""


def reply(line: str, nranks: int, values: dict[str, str]) -> str:
    """Answer a message of PMI, other than `barrier_in`. values: what has been put."""
    said = dict(re.findall(r"(\w+)=(\S*)", line))
    command = said.get("cmd", "")
    if command == "put":
        values[said["key"]] = said["value"]
        return "put_result rc=0 msg=success"
    if command == "get":
        value = values.get(said["key"])
        if value is None:
            return "get_result rc=-1 msg=key_not_found"
        return f"get_result rc=0 msg=success value={value}"
    if command == "get_universe_size":
        return f"universe_size size={nranks}"
    return _REPLIES.get(command, f"{command}_result rc=-1 msg=not_supported")


def serve(links: list[socket.socket]) -> None:
    """Answer the messages of all ranks until they have closed their links. All are on one host."""
    values = {"PMI_process_mapping": f"(vector,(0,1,{len(links)}))"}
    waiting: list[socket.socket] = []
    with selectors.DefaultSelector() as selector:
        for link in links:
            selector.register(link, selectors.EVENT_READ, (link, link.makefile()))
        while selector.get_map():
            for key, _ in selector.select():
                link, lines = key.data
                line = lines.readline()
                if not line:
                    selector.unregister(link)
                elif "cmd=barrier_in" not in line:
                    link.sendall(f"cmd={reply(line, len(links), values)}\n".encode())
                elif len(waiting) + 1 < len(links):
                    waiting.append(link)
                else:
                    for each in (*waiting, link):
                        each.sendall(b"cmd=barrier_out\n")
                    waiting = []


def start(job: dict[str, Any]) -> dict[int, int]:
    """Start all ranks, and serve them PMI where they speak it; return the rank of each process."""
    links = [socket.socketpair() for _ in job["ranks"]] if job["pmi"] else []
    begin, ranks = _beginning(job), {}
    for rank, more in enumerate(job["ranks"]):
        names, own = {name: str(value) for name, value in more.items()}, None
        if links:
            own = links[rank][1]
            names |= {
                "PMI_FD": str(own.fileno()), "PMI_RANK": str(rank), "PMI_SIZE": str(len(links)),
            }  # fmt: skip
        pid = os.fork()
        if not pid:
            _become(names, own, [end for pair in links for end in pair if end is not own], begin)
        ranks[pid] = rank
    for _, link in links:
        link.close()
    if links:
        threading.Thread(target=serve, args=([link for link, _ in links],), daemon=True).start()
    return ranks


def _beginning(job: dict[str, Any]) -> Callable[[], object]:
    """Return what makes a process a rank: a command, or the `main` of a module, which is imported once for all."""
    if "command" in job:
        return lambda: os.execve(job["command"][0], job["command"], os.environ)
    main = importlib.import_module(job["module"]).main
    gc.freeze()
    return lambda: main(*job["arguments"])


def _become(
    names: dict[str, str],
    own: socket.socket | None,
    others: list[socket.socket],
    begin: Callable[[], object],
) -> NoReturn:
    """Make this process, a copy of the launcher, a rank. names: its environment. own: its link, of all links."""
    try:
        os.setsid()  # the system shares processors between sessions first
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for link in others:
            link.close()
        if own is not None:
            own.set_inheritable(True)
        os.environ.update(names)
        begin()
    except BaseException:  # at once: leaving MPI would wait for the other ranks
        traceback.print_exc()
        os._exit(1)
    sys.exit(0)


def _keep_lines_whole() -> None:
    """Write lines, not pieces of them, to what the launcher shares with the ranks that are copies of it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def main(job: dict[str, Any]) -> int:
    """Start the ranks and wait for them; return 0 when all have ended well."""
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_GRACE))
    end_with_parent(signal.SIGTERM)
    _keep_lines_whole()
    ranks = start(job)
    waiting = set(ranks)
    while waiting:
        pid, status = os.wait()
        if pid not in waiting:
            continue
        waiting.remove(pid)
        if how := how_ended(os.waitstatus_to_exitcode(status)):
            print(f"rank {ranks[pid]}: EXIT STRING: {how}", flush=True)
            for other in waiting:
                os.kill(other, signal.SIGKILL)
            for other in waiting:
                os.waitpid(other, 0)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
