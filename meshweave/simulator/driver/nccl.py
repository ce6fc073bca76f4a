"""Play NCCL: communicators, collectives, and groups of sends and receives."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass, field
from typing import Any

from meshweave.errors import RankError
from meshweave.runtime.gpu.interface import (
    NCCL_INVALID,
    NCCL_NAMES,
    NCCL_OPS,
    NCCL_USAGE,
    UNIQUE_ID_BYTES,
    UniqueId,
)
from meshweave.simulator.driver.memory import put
from meshweave.simulator.driver.move import itemsize
from meshweave.simulator.driver.replay import Comm, NcclOp
from meshweave.simulator.driver.session import Session


@dataclass(eq=False)
class Member:
    """Hold one rank's handle of a communicator."""

    comm: Comm
    index: int


@dataclass(eq=False)
class _Meeting:
    """Collect the ranks that make a communicator together.

    It has (color, order) of each rank, and the communicators made.
    """

    size: int
    there: dict[int, tuple[int, int]] = field(default_factory=dict)
    made: dict[int, Comm] = field(default_factory=dict)  # by color

    def join(self, rank: int, color: int, order: int) -> None:
        """Add a rank; the last one makes the communicators."""
        self.there[rank] = color, order
        if len(self.there) < self.size:
            return
        for wanted in sorted({color for color, _ in self.there.values() if color >= 0}):
            members = sorted((o, r) for r, (c, o) in self.there.items() if c == wanted)
            ranks = tuple(r for _, r in members)
            self.made[wanted] = Comm(f"the communicator of ranks {_listed(ranks)}", ranks)

    @property
    def complete(self) -> bool:
        """Tell whether all ranks have joined."""
        return len(self.there) == self.size


class RecordedNccl:
    """Implement the functions nccl*. Each returns an error code, or None for success."""

    def __init__(self, session: Session) -> None:
        self._r = session
        self._ids = itertools.count(1)
        self._meetings: dict[Any, _Meeting] = {}
        self._splits: dict[int, int] = {}  # of each handle, how often it was split
        self._groups: dict[int, tuple[int, str, list[tuple[int, str, NcclOp]]]] = {}
        self._text = ctypes.create_string_buffer(b"recorded")

    def ncclGetVersion(self, version: int) -> None:
        put(version, self._r.nccl_version, ctypes.c_int32)

    def ncclGetLastError(self, comm: int | None) -> int:
        return ctypes.addressof(self._text)

    def ncclGetUniqueId(self, unique: int) -> None:
        data = next(self._ids).to_bytes(8, "little").ljust(UNIQUE_ID_BYTES, b"\1")
        ctypes.memmove(unique, data, UNIQUE_ID_BYTES)

    def ncclCommInitRank(self, comm: int, nranks: int, unique: UniqueId, rank: int) -> int | None:
        if not 0 <= rank < nranks:
            return NCCL_INVALID
        key = ctypes.string_at(ctypes.addressof(unique), UNIQUE_ID_BYTES)
        return self._meet(comm, key, nranks, 0, rank, "ncclCommInitRank")

    def ncclCommSplit(
        self, comm: int, color: int, key: int, made: int, config: int | None
    ) -> int | None:
        member = self._r.find(comm, Member)
        if member is None:
            return NCCL_INVALID
        count = self._splits[comm] = self._splits.get(comm, 0) + 1
        size = len(member.comm.ranks)
        return self._meet(made, (id(member.comm), count), size, color, key, "ncclCommSplit")

    def _meet(self, out: int, key: Any, size: int, color: int, order: int, what: str) -> int | None:
        rank = self._r.rank
        meeting = self._meetings.setdefault(key, _Meeting(size))
        if rank in meeting.there or meeting.size != size:
            return NCCL_USAGE
        meeting.join(rank, color, order)
        self._r.block(lambda: meeting.complete, f"the others in {what}")
        if color < 0:
            put(out, 0)
            return None
        comm = meeting.made[color]
        put(out, self._r.new(Member(comm, comm.ranks.index(rank))))
        return None

    def ncclCommDestroy(self, comm: int | None) -> int | None:
        return NCCL_INVALID if self._r.drop(comm, Member) else None

    def ncclCommAbort(self, comm: int | None) -> int | None:
        return self.ncclCommDestroy(comm)

    def ncclCommGetAsyncError(self, comm: int | None, code: int) -> int | None:
        if self._r.find(comm, Member) is None:
            return NCCL_INVALID
        put(code, 0, ctypes.c_int32)
        return None

    # Collectives: the bytes that a rank gives are `count` elements times what is said here.

    def ncclAllReduce(
        self, source: int, target: int, count: int, dtype: int, op: int, comm: int | None,
        stream: int | None,
    ) -> int | None:  # fmt: skip
        return self._collective("all_reduce", source, target, count, dtype, comm, stream, op=op)

    def ncclAllGather(
        self, source: int, target: int, count: int, dtype: int, comm: int | None,
        stream: int | None,
    ) -> int | None:  # fmt: skip
        return self._collective("all_gather", source, target, count, dtype, comm, stream)

    def ncclReduceScatter(
        self, source: int, target: int, count: int, dtype: int, op: int, comm: int | None,
        stream: int | None,
    ) -> int | None:  # fmt: skip
        return self._collective("reduce_scatter", source, target, count, dtype, comm, stream, op=op)

    def ncclSend(
        self, source: int, count: int, dtype: int, peer: int, comm: int | None, stream: int | None
    ) -> int | None:
        return self._pair("send", source, count, dtype, peer, comm, stream)

    def ncclRecv(
        self, target: int, count: int, dtype: int, peer: int, comm: int | None, stream: int | None
    ) -> int | None:
        return self._pair("recv", target, count, dtype, peer, comm, stream)

    def _collective(
        self, kind: str, source: int, target: int, count: int, dtype: int, comm: int | None,
        stream: int | None, op: int | None = None,
    ) -> int | None:  # fmt: skip
        member = self._r.find(comm, Member)
        if member is None or dtype not in NCCL_NAMES or op not in (None, *NCCL_OPS):
            return NCCL_INVALID
        nbytes, size = count * itemsize(NCCL_NAMES[dtype]), len(member.comm.ranks)
        given = nbytes * size if kind == "reduce_scatter" else nbytes
        taken = nbytes * size if kind == "all_gather" else nbytes
        self._r.memory.view(self._r.rank, source, given, kind)
        self._r.memory.view(self._r.rank, target, taken, kind)
        mine = member.index * nbytes
        in_place = {
            "all_reduce": source == target,
            "all_gather": source == target + mine,
            "reduce_scatter": target == source + mine,
        }
        if not in_place[kind] and source < target + taken and target < source + given:
            raise RankError(
                f"rank {self._r.rank}: {kind} from {self._r.memory.describe(source)} to "
                f"{self._r.memory.describe(target)}: they overlap, and not as in-place use allows"
            )
        how = NCCL_OPS[op] if op is not None else ""
        name = f"{kind}_{how}" if how else kind
        signature = (count, NCCL_NAMES[dtype], how)
        item = NcclOp(kind, member.comm, member.index, signature, source, target)
        places = f"{self._r.memory.describe(source)} -> {self._r.memory.describe(target)}"
        return self._enqueue(
            stream, f"{name} {NCCL_NAMES[dtype]} {count} {places} {_of(member)}", item
        )

    def _pair(
        self, kind: str, buffer: int, count: int, dtype: int, peer: int, comm: int | None,
        stream: int | None,
    ) -> int | None:  # fmt: skip
        member = self._r.find(comm, Member)
        if member is None or dtype not in NCCL_NAMES or not 0 <= peer < len(member.comm.ranks):
            return NCCL_INVALID
        self._r.memory.view(self._r.rank, buffer, count * itemsize(NCCL_NAMES[dtype]), kind)
        item = NcclOp(kind, member.comm, member.index, (count, NCCL_NAMES[dtype]), peer=peer)
        item.source = item.target = buffer
        way = "to" if kind == "send" else "from"
        what = f"{kind} {NCCL_NAMES[dtype]} {count} {self._r.memory.describe(buffer)} {way} {peer}"
        return self._enqueue(stream, f"{what} {_of(member)}", item)

    # Groups.

    def ncclGroupStart(self) -> None:
        rank = self._r.rank
        depth, where, calls = self._groups.get(rank, (0, self._r.where(rank), []))
        self._groups[rank] = depth + 1, where, calls

    def ncclGroupEnd(self) -> int | None:
        rank = self._r.rank
        if rank not in self._groups:
            return NCCL_USAGE
        depth, where, calls = self._groups.pop(rank)
        if depth > 1:
            self._groups[rank] = depth - 1, where, calls
            return None
        for stream in dict.fromkeys(stream for stream, _, _ in calls):
            mine = [(what, item) for s, what, item in calls if s == stream]
            what = "; ".join(what for what, _ in mine)
            items = tuple(item for _, item in mine)
            self._check_apart(mine)
            code = self._r.streams.submit(stream, f"group [{what}]", None, items=items, where=where)
            if code:
                return NCCL_INVALID
        return None

    def _check_apart(self, calls: list[tuple[str, NcclOp]]) -> None:
        """Raise RankError when a message of a group is received where another one is received or sent from.

        Both are in flight at the same time.
        """
        pairs = [call for call in calls if call[1].kind in ("send", "recv")]
        for k, (what, item) in enumerate(pairs):
            for other_what, other in pairs[:k]:
                apart = _end(item) <= other.source or _end(other) <= item.source
                if not apart and "recv" in (item.kind, other.kind):
                    raise RankError(
                        f"rank {self._r.rank}: {other_what} and {what} are in one group and touch "
                        "the same bytes"
                    )

    def _enqueue(self, stream: int | None, what: str, item: NcclOp) -> int | None:
        rank = self._r.rank
        if rank in self._groups:
            self._groups[rank][2].append((stream or 0, what, item))
            return None
        code = self._r.streams.submit(stream, what, None, items=(item,))
        return NCCL_INVALID if code else None

    def check_closed(self, rank: int) -> None:
        """Raise RankError when a rank waits for its device within a group that it has not ended."""
        if rank in self._groups:
            _, where, calls = self._groups.pop(rank)
            raise RankError(
                f"rank {rank}: waits for its device within a group of {len(calls)} NCCL calls that "
                f"nobody has ended{' in ' + where if where else ''}: ncclGroupEnd is missing"
            )


def _end(item: NcclOp) -> int:
    """Return the address after the bytes of a message."""
    count, dtype = item.signature
    return item.source + int(count) * itemsize(dtype)


def _of(member: Member) -> str:
    return f"on ranks {_listed(member.comm.ranks)}"


def _listed(ranks: tuple[int, ...]) -> str:
    return ",".join(map(str, ranks))
