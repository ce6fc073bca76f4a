"""Write down what one rank does in an exchange, as the words that compiled code follows (abi.SectionWords)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from meshweave.abi import INNER, SectionWords, rounded
from meshweave.errors import MeshweaveError
from meshweave.exchange.table import Piece, Table
from meshweave.layout.places import Indices

Level = tuple[int, int, int]  # count, step in the source, step in the target


class Box(NamedTuple):
    """Describe a piece in bytes: runs of `run` bytes, and levels with the innermost first."""

    source: int
    target: int
    run: int
    levels: tuple[Level, ...]

    @property
    def nbytes(self) -> int:
        """Return the bytes that are copied."""
        total = self.run
        for count, _, _ in self.levels:
            total *= count
        return total


def box_of(piece: Piece, width: int) -> Box:
    """Return the box of a piece of elements of `width` bytes, with as few levels as possible.

    Their order suits memory: the target's smallest step, the source's, then down to the target's largest.
    """
    steps = zip(piece.extents, piece.source_strides, piece.target_strides, strict=True)
    levels = [(n, s * width, t * width) for n, s, t in steps]
    return _simplified(Box(piece.source * width, piece.target * width, width, tuple(levels)))


def _simplified(box: Box) -> Box:
    """Return the same box in as few levels as possible, in the order that `box_of` says."""
    run, levels = box.run, [level for level in box.levels if level[0] != 1]
    levels.sort(key=lambda level: (abs(level[2]), abs(level[1])))
    while (found := next((x for x in levels if x[1] == x[2] == run), None)) is not None:
        run *= found[0]
        levels.remove(found)
    merged: list[Level] = []
    for level in levels:
        if merged and all(level[k] == merged[-1][0] * merged[-1][k] for k in (1, 2)):
            merged[-1] = (level[0] * merged[-1][0], *merged[-1][1:])
        else:
            merged.append(level)
    if len(merged) > INNER:
        nearest = min(merged[1:], key=lambda level: abs(level[1]))
        if abs(nearest[1]) < abs(merged[0][1]):
            merged.remove(nearest)
            merged.insert(1, nearest)
    return Box(box.source, box.target, run, tuple(merged))


Entry = tuple[int, Box]  # a member of the group, and a box that it sends or wants


@dataclass(frozen=True)
class Section:
    """Hold what one rank does in an exchange of elements of `width` bytes.

    group: the ranks that it is done with, itself among them, by member number. messages: whether they send each other
    messages; else each reads the others' memory.
    Raises MeshweaveError where it would receive from outside of the group.
    """

    table: Table
    rank: int
    group: tuple[int, ...]
    width: int
    messages: bool

    @cached_property
    def me(self) -> int:
        """Return the rank's member number."""
        return self.group.index(self.rank)

    @cached_property
    def received(self) -> tuple[Entry, ...]:
        """Return the boxes that it receives, by sender: its own first, then those of the members behind it."""
        entries = self._entries(self.table.receives(self.rank))
        return tuple(sorted(entries, key=lambda e: (e[0] - self.me) % len(self.group)))

    @cached_property
    def kept(self) -> tuple[Box, ...]:
        """Return the boxes that it copies at once: its own, and where there are no messages those of others."""
        return tuple(box for k, box in self.received if k == self.me or not self.messages)

    @cached_property
    def arriving(self) -> tuple[Entry, ...]:
        """Return the boxes that come in messages."""
        return tuple(e for e in self.received if self.messages and e[0] != self.me)

    @cached_property
    def leaving(self) -> tuple[Entry, ...]:
        """Return the boxes that go out in messages, by receiver."""
        entries = self._entries(self.table.sends(self.rank)) if self.messages else []
        return tuple(sorted(entries, key=lambda e: e[0]))

    def _entries(self, pieces: Iterable[Piece]) -> list[Entry]:
        numbers = {rank: k for k, rank in enumerate(self.group)}
        found = []
        for piece in pieces:
            if piece.peer not in numbers:
                raise MeshweaveError(
                    f"exchange of {self.table.source} to {self.table.target}: rank {piece.peer} "
                    f"is not in the group of rank {self.rank}"
                )
            found.append((numbers[piece.peer], box_of(piece, self.width)))
        return found

    @cached_property
    def mail(self) -> Mail:
        """Return the messages."""
        members, order = len(self.group), range(len(self.group))
        behind = [(self.me + k) % members for k in order]
        out, packs = _side(self.leaving, 0, members, order)
        into, unpacks = _side(self.arriving, 1, members, behind)
        rows = tuple(zip(*out, *into, strict=True))
        inbox = rounded(sum(out[0])) if packs else 0
        return Mail(rows, packs, unpacks, inbox, inbox + (sum(into[0]) if unpacks else 0))

    def words(self) -> Indices:
        """Return the words of the section. A message that lies back to back is sent or received where it is."""
        packed = self.leaving if self.messages and self.mail.packs else ()
        pieces, sends = (_pieces(entries) for entries in (self.received, packed))
        body = SectionWords.HEAD
        head = [0] * body
        head[SectionWords.PIECES], head[SectionWords.BODY] = len(self.received), body
        if not self.messages:
            return np.array([*head, *pieces], np.int64)
        mail = self.mail
        head[SectionWords.SENDS] = len(packed)
        head[SectionWords.SENT] = body + len(pieces)
        head[SectionWords.MESSAGES] = body + len(pieces) + len(sends)
        head[SectionWords.PACKS], head[SectionWords.UNPACKS] = mail.packs, mail.unpacks
        head[SectionWords.RECEIVED_AT] = mail.inbox
        head[SectionWords.LARGEST], head[SectionWords.END] = largest(self.table, self.width)
        rows = [number for row in mail.rows for number in row]
        return np.array([*head, *pieces, *sends, *rows], np.int64)


class Mail(NamedTuple):
    """Describe the messages of a rank.

    rows: for each member bytes to send, where they begin, bytes to receive, where they begin (MAIL_WORDS). packs,
    unpacks: whether what is sent, or received, goes through the staging buffer. inbox: where received messages begin
    in it. staging: its bytes.
    """

    rows: tuple[tuple[int, int, int, int], ...]
    packs: bool
    unpacks: bool
    inbox: int
    staging: int


def _side(
    entries: Sequence[Entry], side: int, members: int, order: Sequence[int]
) -> tuple[tuple[list[int], list[int]], bool]:
    """Return the bytes of the messages with each member, and where they begin; and whether they are packed.

    side: of the boxes that lies on this rank, the source (0) or the target (1). order: of the messages, where packed.
    """
    boxes: list[list[Box]] = [[] for _ in range(members)]
    for member, box in entries:
        boxes[member].append(box)
    lengths = [sum(box.nbytes for box in message) for message in boxes]
    packed = not all(_is_straight(message, side) for message in boxes)
    first = [message[0] if message else None for message in boxes]
    begins = [0 if box is None else (box.source, box.target)[side] for box in first]
    if packed:
        end = 0
        for k in order:
            begins[k] = end
            end += lengths[k]
    return (lengths, begins), packed


def _is_straight(message: Sequence[Box], side: int) -> bool:
    """Tell whether a message is one run of bytes in the source (0) or in the target (1)."""
    for box in message:
        size = box.run
        for level in box.levels:
            if level[1 + side] != size:
                return False
            size *= level[0]
    return len(message) <= 1


def _pieces(entries: Sequence[Entry]) -> list[int]:
    """Return boxes as words."""
    found: list[int] = []
    for member, box in entries:
        levels = [*box.levels, *[(1, 0, 0)] * (INNER - len(box.levels))]
        found += [member, box.source, box.target, box.run, box.nbytes, len(levels) - INNER]
        found += [number for level in levels for number in level]
    return found


def largest(table: Table, width: int) -> tuple[int, int]:
    """Return bounds that all ranks agree on: the bytes of the largest message, and where any message ends."""
    source, target = (
        prod(layout.local_shape(table.mesh, table.shape)) * width
        for layout in (table.source, table.target)
    )
    return min(source, target), rounded(max(source * table.repeats, target))
