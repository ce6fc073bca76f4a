"""What all processes of a run share: the objects of collectives and the kernels of gpus, in a folder of the run."""

import os
import resource
from pathlib import Path

from meshweave import cache

OBJECTS = "MESHWEAVE_TEST_OBJECTS"
"""Names the folder."""

MEMORY = 8 << 30
"""Bytes of address space that a command gets beside what it finds: one that takes all memory must not take the
machine's. A process of many tests has the stacks of many idle ranks."""


def share_objects(shared: Path) -> None:
    """Keep them for the whole run: they depend on their text alone, and take LLVM and ptxas most time."""
    of_user = cache.folder
    kept = {within: shared / within for within in (cache.OBJECTS, cache.KERNELS)}
    for place in kept.values():
        place.mkdir(exist_ok=True)

    def folder(within: str = "") -> "Path | None":
        return of_user(within) or kept.get(within)

    cache.folder = folder


def begin() -> None:
    """Begin a command in a fork."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if OBJECTS in os.environ:  # in each process that imports this
    share_objects(Path(os.environ[OBJECTS]))
