"""What a step costs: bytes received by the busiest rank, and seconds in the alpha-beta model.

A message of n bytes takes alpha + beta * n seconds. All collectives are counted as their
bandwidth-optimal algorithms in g - 1 rounds: ring all_gather and reduce_scatter, pairwise
all_to_all and exchange [Thakur, Rabenseifner, Gropp, IJHPCA 2005], and the ring all_reduce, which is a
reduce_scatter and an all_gather [Patarasuk, Yuan, JPDC 2009].
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import log2

from meshweave.errors import PlanError
from meshweave.layout.mesh import Link, Mesh
from meshweave.plan.steps import LOCAL_OPS


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


EXCHANGE_SLOWDOWN = 1.0625
"""How much longer a byte takes in an exchange than in a collective: its messages are smaller, and
packed piece by piece.
"""

SHARED_MEMORY = Profile(link=Link(alpha=1e-6, beta=2e-10), launch=2e-6, copy_beta=1e-10)
"""Ranks as threads of one host; the default. Meshes that span machines say so by their axes' links.
"""


def link_of(mesh: Mesh, axes: Iterable[str], profile: Profile = SHARED_MEMORY) -> Link:
    """The link that a group over `axes` waits for: the largest alpha and the largest beta among
    them.
    """
    links = [mesh.axis(name).link or profile.link for name in axes]
    return Link(max(link.alpha for link in links), max(link.beta for link in links))


SMALL_LAUNCH = 1 / 32
"""See `halvings`."""


def halvings(profile: Profile, nbytes: int) -> int:
    """How often 1/32 is halved until it is about the time of a launch in that of nbytes on the link.

    Of small tensors, whose launches take more than 1/32, it is 0.
    """
    once = profile.launch + profile.link.alpha
    share = SMALL_LAUNCH * nbytes * profile.link.beta / once if once else 0.0
    return max(0, round(log2(share))) if share else 0


def steady(profile: Profile, nbytes: int, halved: int) -> Profile:
    """The profile with launches that take 1/32, halved so often, of the time that nbytes need on the
    link; never more than they take.

    With `halvings` of these bytes, plans made with it do not change where tensors get small: they
    keep to few bytes, and take the launches that a large tensor takes. And they depend on the
    proportions of a tensor, not on its size.
    """
    link, once = profile.link, profile.launch + profile.link.alpha
    scale = SMALL_LAUNCH * nbytes * link.beta / once / (1 << halved) if once else 1.0
    return Profile(Link(link.alpha * scale, link.beta), profile.launch * scale, profile.copy_beta)


def received(op: str, unit: int, ranks: int) -> int:
    """Elements (or bytes) that the busiest of `ranks` members receives in a step.

    unit: of exchange what comes to the busiest, of all_gather and permute the local input, of
          reduce_scatter the local output, of all_to_all one block, of all_reduce the tensor. Ring
          all_reduce cuts it in chunks of ceil(unit / ranks); a member receives its own chunk
          ranks - 1 times to reduce it and then every other chunk.

    Raises PlanError for an unknown op or a group without ranks.
    """
    if ranks < 1:
        raise PlanError(f"{op}: a group needs at least 1 rank, got {ranks}")
    if op in LOCAL_OPS or ranks == 1:
        return 0
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) * unit
    if op in ("permute", "exchange"):
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

    Of an exchange, ranks counts those that send to one rank, and that rank.
    """
    if ranks == 1 or op in LOCAL_OPS:
        return 0.0
    if op == "exchange":
        nbytes = int(nbytes * EXCHANGE_SLOWDOWN)
    rounds = {"permute": 1, "all_reduce": 2 * (ranks - 1)}.get(op, ranks - 1)
    return profile.launch + rounds * link.alpha + nbytes * link.beta


def exchange_seconds(
    nbytes: int, own: int, senders: int, link: Link, profile: Profile = SHARED_MEMORY
) -> float:
    """Seconds of an exchange in which the busiest rank receives nbytes from so many senders.

    own: bytes that a rank copies from itself; that is work which slices before a collective, that
    brings the same, would have done.
    """
    moved = seconds("exchange", nbytes, senders + 1, link, profile) if senders else profile.launch
    return moved + local_seconds("all_slice", own, 0, profile)


def copy_seconds(nbytes: int, profile: Profile = SHARED_MEMORY) -> float:
    """Seconds to copy nbytes within a rank: each is read and written."""
    return 2 * nbytes * profile.copy_beta


def local_seconds(op: str, nbytes: int, ndim: int, profile: Profile = SHARED_MEMORY) -> float:
    """Seconds of a step in which no rank talks to another, with a result of nbytes; never 0, so that
    no plan has idle steps.

    A slice (or its reverse) counts as a quarter of a copy: its reader may read it where it lies; filling with a
    neutral element as half of one. A relayout is for where no slices of any dims will do.
    """
    times = {"relayout": 1.0 + ndim, "all_slice": 0.25, "embed": 0.25}.get(op, 0.5)
    return copy_seconds(1 + nbytes, profile) * times
