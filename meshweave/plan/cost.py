"""Estimate the cost of a step: bytes received by the busiest rank, and seconds in the alpha-beta model.

A message of n bytes takes alpha + beta * n seconds. All collectives are counted as their bandwidth-optimal algorithms
in g - 1 rounds: ring all_gather and reduce_scatter, pairwise all_to_all and exchange [Thakur, Rabenseifner, Gropp,
IJHPCA 2005], and the ring all_reduce, which is a reduce_scatter and an all_gather [Patarasuk, Yuan, JPDC 2009].
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import log2

from meshweave.errors import PlanError
from meshweave.layout.mesh import Link, Mesh
from meshweave.plan.collectives import BY_OP
from meshweave.plan.steps import LOCAL_OPS


@dataclass(frozen=True)
class Profile:
    """Describe a machine, as far as plans need it.

    link:      link of the mesh axes that state none.
    launch:    seconds to enter and leave any collective, however small.
    copy_beta: seconds per byte read or written in local memory.
    """

    link: Link
    launch: float
    copy_beta: float


EXCHANGE_SLOWDOWN = 1.0625
"""Time of a byte in an exchange over that in a collective: messages are smaller, and packed piece by piece."""

SHARED_MEMORY = Profile(link=Link(alpha=1e-6, beta=2e-10), launch=2e-6, copy_beta=1e-10)
"""Ranks as threads of one host: the default. The axes of a mesh that spans machines state their links."""


def link_of(mesh: Mesh, axes: Iterable[str], profile: Profile = SHARED_MEMORY) -> Link:
    """Return the link that a group over `axes` waits for: the largest alpha and the largest beta among them."""
    links = [mesh.axis(name).link or profile.link for name in axes]
    return Link(max(link.alpha for link in links), max(link.beta for link in links))


SMALL_LAUNCH = 1 / 32
"""See `halvings`."""


def halvings(profile: Profile, nbytes: int) -> int:
    """Count how often 1/32 must be halved to approximate a launch as a share of the time that nbytes take on the link.

    The result is 0 for small tensors, whose launches take more than 1/32.
    """
    once = profile.launch + profile.link.alpha
    share = SMALL_LAUNCH * nbytes * profile.link.beta / once if once else 0.0
    return max(0, round(log2(share))) if share else 0


def steady(profile: Profile, nbytes: int, halved: int) -> Profile:
    """Return the profile with launches that take (1/32) / 2**halved of the time that nbytes need on the link.

    A launch never counts more than its true time. With `halvings` of these bytes, plans made with this profile do not
    change where tensors get small: they keep to few bytes, and use the launches that a large tensor uses. They depend
    on the proportions of a tensor, not on its size.
    """
    link, once = profile.link, profile.launch + profile.link.alpha
    scale = SMALL_LAUNCH * nbytes * link.beta / once / (1 << halved) if once else 1.0
    return Profile(Link(link.alpha * scale, link.beta), profile.launch * scale, profile.copy_beta)


def received(op: str, unit: int, ranks: int) -> int:
    """Return the elements (or bytes) that the busiest of `ranks` members receives in a step.

    unit: for exchange, what the busiest member receives; for all_gather and permute, the local input; for
          reduce_scatter, the local output; for all_to_all, one block; for all_reduce, the tensor. Ring all_reduce cuts
          it in chunks of ceil(unit / ranks); a member receives its own chunk ranks - 1 times to reduce it and then
          every other chunk.

    Raises PlanError for an unknown op or a group without ranks.
    """
    if ranks < 1:
        raise PlanError(f"{op}: a group needs at least 1 rank, got {ranks}")
    if op in LOCAL_OPS or ranks == 1:
        return 0
    row = BY_OP.get(op)
    if row is None or row.received is None:
        raise PlanError(f"no step is called {op!r}")
    return row.received(unit, ranks)


def seconds(
    op: str, nbytes: int, ranks: int, link: Link, profile: Profile = SHARED_MEMORY
) -> float:
    """Return the seconds a collective takes in a group of `ranks`; nbytes as `received` gives them.

    A group of one takes 0 s. For an exchange, ranks counts the ranks that send to one rank, and that rank.
    """
    if ranks == 1 or op in LOCAL_OPS:
        return 0.0
    if op == "exchange":
        nbytes = int(nbytes * EXCHANGE_SLOWDOWN)
    return profile.launch + BY_OP[op].rounds(ranks) * link.alpha + nbytes * link.beta


def exchange_seconds(
    nbytes: int, own: int, senders: int, link: Link, profile: Profile = SHARED_MEMORY
) -> float:
    """Return the seconds of an exchange in which the busiest rank receives nbytes from `senders` ranks.

    own: bytes that a rank copies from itself; a plan of slices and a collective would do that work in the slices.
    """
    moved = seconds("exchange", nbytes, senders + 1, link, profile) if senders else profile.launch
    return moved + local_seconds("all_slice", own, 0, profile)


def copy_seconds(nbytes: int, profile: Profile = SHARED_MEMORY) -> float:
    """Return the seconds to copy nbytes within a rank: each byte is read and written."""
    return 2 * nbytes * profile.copy_beta


def local_seconds(op: str, nbytes: int, ndim: int, profile: Profile = SHARED_MEMORY) -> float:
    """Return the seconds of a step without communication, with a result of nbytes.

    It is never 0, so that no plan has idle steps. A slice (or its reverse) counts as a quarter of a copy, since its
    reader may read it in place; filling with a neutral element counts as half of one. A relayout costs enough that it
    is used only where no slices of dims will do.
    """
    times = {"relayout": 1.0 + ndim, "all_slice": 0.25, "embed": 0.25}.get(op, 0.5)
    return copy_seconds(1 + nbytes, profile) * times
