"""What a step costs: bytes received by the busiest rank, and seconds in the alpha-beta model.

A message of n bytes takes alpha + beta * n seconds. All collectives are counted as their
bandwidth-optimal algorithms in g - 1 rounds: ring all_gather and reduce_scatter, pairwise
all_to_all [Thakur, Rabenseifner, Gropp, IJHPCA 2005], and the ring all_reduce, which is a
reduce_scatter and an all_gather [Patarasuk, Yuan, JPDC 2009].
"""

from collections.abc import Iterable
from dataclasses import dataclass

from meshweave.errors import PlanError
from meshweave.layout.mesh import Link, Mesh


@dataclass(frozen=True)
class Profile:
    """A machine, as far as plans ask for it.

    link:      of mesh axes that state none.
    launch:    seconds to enter and leave any collective, however small.
    copy_beta: seconds per byte read or written in local memory.
    """

    link: Link
    launch: float
    copy_beta: float


SHARED_MEMORY = Profile(link=Link(alpha=1e-6, beta=2e-10), launch=2e-6, copy_beta=1e-10)
"""Ranks as threads of one host; the default. Meshes that span machines say so by their axes' links.
"""


def link_of(mesh: Mesh, axes: Iterable[str], profile: Profile = SHARED_MEMORY) -> Link:
    """The link that a group over `axes` waits for: the largest alpha and the largest beta among
    them.
    """
    links = [mesh.axis(name).link or profile.link for name in axes]
    return Link(max(link.alpha for link in links), max(link.beta for link in links))


def received(op: str, unit: int, ranks: int) -> int:
    """Elements (or bytes) that the busiest of `ranks` members receives in a step.

    unit: of all_gather and permute the local input, of reduce_scatter the local output, of
          all_to_all one block, of all_reduce the tensor. Ring all_reduce cuts it in chunks of
          ceil(unit / ranks); a member receives its own chunk ranks - 1 times to reduce it and then
          every other chunk. Raises PlanError for an unknown op or a group without ranks.
    """
    if ranks < 1:
        raise PlanError(f"{op}: a group needs at least 1 rank, got {ranks}")
    if op in ("all_slice", "local") or ranks == 1:
        return 0
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) * unit
    if op == "permute":
        return unit
    if op == "all_reduce":
        chunk = -(-unit // ranks)
        return (ranks - 1) * chunk + unit - chunk
    raise PlanError(f"no step is called {op!r}")


def seconds(
    op: str, nbytes: int, ranks: int, link: Link, profile: Profile = SHARED_MEMORY
) -> float:
    """Seconds a collective takes in a group of `ranks`; nbytes as `received` gives them. 0 for a
    group of one.
    """
    if ranks == 1 or op in ("all_slice", "local"):
        return 0.0
    rounds = {"permute": 1, "all_reduce": 2 * (ranks - 1)}.get(op, ranks - 1)
    return profile.launch + rounds * link.alpha + nbytes * link.beta


def copy_seconds(nbytes: int, profile: Profile = SHARED_MEMORY) -> float:
    """Seconds to copy nbytes within a rank: each is read and written."""
    return 2 * nbytes * profile.copy_beta
