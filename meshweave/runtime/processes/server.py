"""Serve the messages of the process that started this rank, and end with that process.

A rank waits for messages without using the processor, does what they say and answers each but `bind`, `drop` and
`enqueue`: load (a bundle, and the status board's memory), bind (memory with a rank's inputs and outputs, and those of
the others), run, enqueue (on GPUs), drop, unload, exit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading

from meshweave.errors import MeshweaveError
from meshweave.runtime.processes.launcher import end_with_parent
from meshweave.runtime.processes.shared_files import mpi_memory, remove
from meshweave.runtime.processes.wire import receive, send


class Server:
    """Do what messages say: `{"do": "run"}` is done by the method `_run`."""

    def __init__(self, rank: int, nranks: int) -> None:
        self.rank, self.nranks = rank, nranks

    def serve(self, link: socket.socket) -> None:
        """Answer messages until `exit`. Raises EOFError when the launcher is gone."""
        while True:
            message, payload, files = receive(link)
            if message["do"] == "exit":
                return
            try:
                answer = getattr(self, "_" + message["do"])(message, payload, files)
            except Exception as error:  # the launcher ends the job and shows the line
                send(link, {"error": one_line(error), "kind": type(error).__name__})
                continue
            finally:
                for file in files:
                    os.close(file)
            if answer is not None:
                send(link, answer)


def one_line(error: BaseException) -> str:
    """Return an exception as one line: the text of a user's mistake, else kind, text and place."""
    text = " ".join(str(error).split())
    if isinstance(error, MeshweaveError):
        return text
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = (
        f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"
        if trace
        else ""
    )
    return f"{type(error).__name__}: {text}{place}"


def leave(status: int) -> None:
    """End this process at once, without MPI, and remove the shared memory that MPI would leave."""
    remove(mpi_memory("self"))
    os._exit(status)


def hold(lifeline: socket.socket) -> None:
    """Wait for the launcher's end, whatever this rank is doing then, and end with it."""
    with contextlib.suppress(OSError):
        lifeline.recv(1)
    leave(0)


def connect(path: str, kind: str, rank: int) -> socket.socket:
    """Open a link to the process that started the ranks."""
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    send(
        link, {"link": kind, "rank": rank, "pid": os.getpid(), "shared": sorted(mpi_memory("self"))}
    )
    return link


def follow() -> None:
    """End with the process that has started this one, and leave Ctrl-C to it."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def link_to(path: str, rank: int) -> socket.socket:
    """Open the link to the launcher that listens at `path`; this process ends when the launcher does."""
    lifeline = connect(path, "life", rank)
    link = connect(path, "control", rank)
    threading.Thread(target=hold, args=(lifeline,), daemon=True).start()
    return link
