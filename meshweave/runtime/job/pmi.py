"""Let MPI start in processes whose launcher serves no PMI, such as torchrun's: each asks itself, a store passes it on.

PMI is how MPI processes find each other (`processes/launcher.py`). MPI gets one end of a pair of sockets in its own
process; a thread at the other end answers. What ranks put for each other goes through the job's store when all meet.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import threading
from itertools import groupby
from pathlib import Path

from meshweave.runtime.processes.bootstrap import JobStore
from meshweave.runtime.processes.launch import FOREIGN
from meshweave.runtime.processes.launcher import reply


class Served:
    """Serve PMI to the MPI library of this process, which is to be initialised in the `with`.

    hosts: of each rank. Every rank makes one.
    """

    def __init__(self, store: JobStore, rank: int, nranks: int) -> None:
        self._ours, self._theirs = socket.socketpair()
        own = {"PMI_FD": self._theirs.fileno(), "PMI_RANK": rank, "PMI_SIZE": nranks}
        self._own = {name: str(value) for name, value in own.items()}
        self.hosts = _hosts(store, rank, nranks)
        threading.Thread(
            target=_serve,
            args=(self._ours, store, rank, nranks, self.hosts),
            name="meshweave-pmi",
            daemon=True,
        ).start()

    def __enter__(self) -> Served:
        self._others = {n: text for n, text in os.environ.items() if n.startswith(FOREIGN)}
        for name in self._others:
            del os.environ[name]
        os.environ.update(self._own)
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._own:
            os.environ.pop(name, None)
        os.environ.update(self._others)
        self._theirs.detach()  # MPI has it

    def farewell(self) -> None:
        """Answer what MPI asks last, in advance: it asks when this process ends, and has no threads any more."""
        self._ours.sendall(f"cmd={reply('cmd=finalize', 0, {})}\n".encode())


def host_name() -> str:
    """Return a text that processes of one host share, and no others."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{platform.node()} {boot}"


def _hosts(store: JobStore, rank: int, nranks: int) -> list[str]:
    """Return the host of each rank."""
    store.put(f"host{rank}", host_name().encode())
    return [store.get(f"host{other}").decode() for other in range(nranks)]


def process_mapping(hosts: list[str]) -> str:
    """Say in PMI's words which ranks share a host: a block (host, 1, ranks) for each run of ranks.

    >>> process_mapping(["a", "a", "b", "a"])
    '(vector,(0,1,2),(1,1,1),(0,1,1))'
    """
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    runs = [f"({numbers[host]},1,{len(list(same))})" for host, same in groupby(hosts)]
    return f"(vector,{','.join(runs)})"


def _serve(link: socket.socket, store: JobStore, rank: int, nranks: int, hosts: list[str]) -> None:
    """Answer the messages of this process's MPI until it ends."""
    if rank == 0:
        store.put("kvsname", f"meshweave_{os.urandom(8).hex()}".encode())
    name = store.get("kvsname").decode()
    values = {"PMI_process_mapping": process_mapping(hosts)}
    seen, meetings = set(values), 0
    with link, link.makefile() as lines:
        for line in lines:
            if "cmd=get_my_kvsname" in line:
                answer = f"my_kvsname kvsname={name}"
            elif "cmd=barrier_in" in line:
                new = {key: values[key] for key in values if key not in seen}
                _meet(store, rank, nranks, meetings, new, values)
                seen, meetings, answer = set(values), meetings + 1, "barrier_out"
            else:
                answer = reply(line, nranks, values)
            link.sendall(f"cmd={answer}\n".encode())


def _meet(
    store: JobStore,
    rank: int,
    nranks: int,
    number: int,
    new: dict[str, str],
    values: dict[str, str],
) -> None:
    """Give what this rank has put to the others, and take what they have; returns when all have come."""
    store.put(f"pmi{number}.{rank}", json.dumps(new).encode())
    for other in range(nranks):
        values |= json.loads(store.get(f"pmi{number}.{other}"))
