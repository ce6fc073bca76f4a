"""Tell each rank of a job how the others end: a link to a server in rank 0's process, and a thread that listens to it.

Nothing here waits for a rank: a link that closes is heard at once, also by ranks that are in compiled code.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

from meshweave.errors import RankError
from meshweave.runtime.processes.store import TcpStore
from meshweave.runtime.processes.wire import receive, send

_CONNECT = 10.0  # seconds for each address of rank 0
_HEARD = 1.0  # seconds in which the server has passed on what a rank says
_ENDED = 0.25  # seconds in which a launcher that ends all ranks ends the next: rank 0 was not the one that died then


class Lifeline:
    """Hold this rank's link."""

    def __init__(
        self,
        rank: int,
        nranks: int,
        store: TcpStore,
        token: bytes,
        ended: Callable[[str], None],
        left: Callable[[int, int], None],
    ) -> None:
        """Listen. ended: called with a line when another rank has failed; left: with a rank, and the calls it made."""
        self._rank, self._nranks, self._store = rank, nranks, store
        self._ended, self._left = ended, left
        self._link = store.watched(rank, token)
        self._said = threading.Event()
        self._all_left, self._all_done = threading.Event(), threading.Event()
        self._listener = threading.Thread(
            target=self._listen, name="meshweave-lifeline", daemon=True
        )
        self._listener.start()

    def _listen(self) -> None:
        leaving, done = set[int](), set[int]()
        while True:
            try:
                message, _, _ = receive(self._link)
            except (OSError, EOFError, ValueError):
                self._said.set()
                if not self._all_left.is_set():
                    time.sleep(_ENDED)
                    self._ended("rank 0 has died")
                return
            rank = int(message["rank"])
            if "end" in message and rank == self._rank:
                self._said.set()
                return
            if "end" in message:
                self._ended(str(message["end"]))
                return
            if "left" in message:
                leaving.add(rank)
                self._left(rank, int(message["left"]))
            if "done" in message:
                done.add(rank)
            if len(leaving) == self._nranks:
                self._all_left.set()
            if len(done) == self._nranks:
                self._all_done.set()

    def fail(self, line: str) -> None:
        """Tell all others that this rank ends, and why; return when they have been told."""
        with contextlib.suppress(OSError):
            send(self._link, {"end": line})
            if threading.current_thread() is self._listener:
                receive(self._link)  # nobody else listens for the answer
            else:
                self._said.wait(_HEARD)

    def leave(self, calls: int, close: Callable[[], None]) -> None:
        """Wait until all ranks leave in order; then `close`, which needs all, and let rank 0 end last."""
        with contextlib.suppress(OSError):
            send(self._link, {"left": calls})
            self._all_left.wait()
            close()
            send(self._link, {"done": True})
            if self._rank == 0:
                self._all_done.wait(_CONNECT)


def reach(hosts: Sequence[str], port: int, token: bytes) -> TcpStore:
    """Connect to rank 0's server at the first of its addresses that answers. Raises RankError when none does."""
    for host in hosts[:-1]:
        with contextlib.suppress(RankError):
            return TcpStore(host, port, token, serve=False, seconds=_CONNECT / 4)
    return TcpStore(hosts[-1], port, token, serve=False, seconds=_CONNECT)
