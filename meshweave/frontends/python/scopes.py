"""Hold what a thread is in: a trace, a choice of kernels, a default dtype; tell cheaply whether any thread is."""

from __future__ import annotations

import threading
from typing import Any

OPEN: set[tuple[int, str]] = set()
"""What threads are in now, by their numbers: calls that are quick only outside of all look whether it is empty."""


class ThreadScope(threading.local):
    """Hold attributes of each thread; those that differ from the class's are in OPEN."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        mark = threading.get_ident(), name
        if value is getattr(type(self), name):
            OPEN.discard(mark)
        else:
            OPEN.add(mark)
