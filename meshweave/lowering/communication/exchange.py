"""Describe the exchange of two layouts as constant data, which compiled code follows: tables.py says how they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshweave.abi import rounded
from meshweave.errors import CompileError
from meshweave.layout.mesh import Mesh
from meshweave.lowering.communication.tables import INNER, MAIL_WORDS, SectionWords
from meshweave.plan.exchange import Piece, Table, busiest

LIMIT = 64 << 20  # bytes of a table

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


@dataclass(frozen=True)
class Data:
    """Hold the table of an exchange.

    words: its data; staging: bytes that a rank needs for messages; received: bytes that the busiest rank receives;
    runs: bytes copied at a time.
    """

    words: bytes
    staging: int
    received: int
    runs: frozenset[int]


def box_of(piece: Piece, width: int) -> Box:
    """Return the box of a piece of elements of `width` bytes, with as few levels as possible.

    Their order suits memory: the target's smallest step, the source's, then down to the target's largest.
    """
    steps = zip(piece.extents, piece.source_strides, piece.target_strides, strict=True)
    levels = [(n, s * width, t * width) for n, s, t in steps]
    return simplified(Box(piece.source * width, piece.target * width, width, tuple(levels)))


def simplified(box: Box) -> Box:
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


class _Section:
    """Hold what one rank receives: its boxes by sender, itself first, each with the member that sends it."""

    def __init__(self, group: Sequence[int], rank: int, boxes: list[tuple[int, Box]]) -> None:
        self.rank, self.group, self.me = rank, group, group.index(rank)
        self.boxes = sorted(boxes, key=lambda entry: (entry[0] - self.me) % len(group))
        self.places: list[int] = []  # of the boxes, in words from the start of the pieces

    def words(self) -> list[int]:
        """Return the pieces as words."""
        found: list[int] = []
        for member, box in self.boxes:
            levels = [*box.levels, *[(1, 0, 0)] * (INNER - len(box.levels))]
            self.places.append(len(found))
            found += [member, box.source, box.target, box.run, box.nbytes, len(levels) - INNER]
            found += [number for level in levels for number in level]
        return found

    def of(self, member: int) -> list[tuple[int, Box]]:
        """Return (place, box) of each that a member sends."""
        pairs = zip(self.places, self.boxes, strict=True)
        return [(place, box) for place, (sender, box) in pairs if sender == member]


def data_of(table: Table, axes: Sequence[str], width: int, messages: bool) -> Data:
    """Return the data of an exchange within the groups over `axes`, of elements of `width` bytes.

    messages: whether ranks send each other messages; else each reads the others' memory.
    Raises CompileError when the data are larger than LIMIT, or a rank would receive from outside of
    its group.
    """
    mesh = table.mesh
    sections = []
    nwords = mesh.nranks
    for rank in range(mesh.nranks):
        group = mesh.group(axes, rank) if axes else (rank,)
        sections.append(_Section(group, rank, _boxes(table, group, rank, width)))
        nwords += SectionWords.HEAD + sum(12 + 3 * len(box.levels) for _, box in sections[-1].boxes)
        if 8 * nwords > 4 * LIMIT:
            break  # far too large even when many sections are equal
    else:
        words, staging = _written(sections, mesh, messages)
        if words.nbytes <= LIMIT:
            received = busiest(table) * width if axes else 0
            return Data(words.tobytes(), staging, received, _runs(sections))
        nwords = words.size
    raise CompileError(
        f"dist.exchange: the table of {table.source} to {table.target} takes more than "
        f"{8 * nwords:,} bytes, the most is {LIMIT:,}: go by a layout in larger blocks"
    )


def data_of_boxes(
    mesh: Mesh, axes: Sequence[str], box: Callable[[int, int], Box], messages: bool
) -> Data:
    """Return the data of a move that is alike in every group over `axes`.

    box(k, j) is what member k takes from member j. `received` is left to the caller.
    """
    members = len(mesh.group(axes, 0))
    made = [
        [(j, simplified(found)) for j in range(members) if (found := box(k, j)).nbytes]
        for k in range(members)
    ]
    sections = []
    for rank in range(mesh.nranks):
        group = mesh.group(axes, rank)
        sections.append(_Section(group, rank, made[group.index(rank)]))
    words, staging = _written(sections, mesh, messages)
    return Data(words.tobytes(), staging, 0, _runs(sections))


def _runs(sections: Sequence[_Section]) -> frozenset[int]:
    """Return the lengths of the runs of all boxes."""
    return frozenset(box.run for section in sections for _, box in section.boxes)


def _boxes(table: Table, group: Sequence[int], rank: int, width: int) -> list[tuple[int, Box]]:
    """Return the boxes that a rank receives by the table, each with the number of the member that sends it."""
    numbers = {member: k for k, member in enumerate(group)}
    found = []
    for piece in table.receives(rank):
        if piece.sender not in numbers:
            raise CompileError(
                f"dist.exchange: rank {rank} receives from rank {piece.sender}, which is not "
                f"in its group {list(group)}; the exchange goes over {', '.join(table.axes)}"
            )
        found.append((numbers[piece.sender], box_of(piece, width)))
    return found


def _written(sections: list[_Section], mesh: Mesh, messages: bool) -> tuple[np.ndarray, int]:
    """Return all words, and the bytes of the staging buffer."""
    out = list(range(mesh.nranks))
    bodies: dict[tuple[int, ...], int] = {}
    starts = []
    for section in sections:
        body = tuple(section.words())
        if body not in bodies:
            bodies[body] = len(out)
            out += body
        starts.append(bodies[body])
    mail = _Mail(sections, starts) if messages else None
    heads: dict[tuple[int, ...], int] = {}
    for k, section in enumerate(sections):
        none = [0] * (SectionWords.HEAD - SectionWords.PACKS)
        key = (len(section.boxes), starts[k], *(mail.words(k) if mail is not None else none))
        if key not in heads:
            heads[key] = len(out)
            out += key
        out[section.rank] = heads[key]
    return np.array(out, np.int64), mail.staging if mail is not None else 0


class _Mail:
    """Hold the messages of all ranks: their lengths and the pieces in them."""

    def __init__(self, sections: list[_Section], starts: list[int]) -> None:
        self._sections = sections
        self._sent: list[list[list[tuple[int, Box]]]] = []  # of each rank, of each receiver
        for section in sections:
            self._sent.append([[] for _ in section.group])
        for section, start in zip(sections, starts, strict=True):
            for k, sender in enumerate(section.group):
                if sender != section.rank:
                    boxes = [(start + place, box) for place, box in section.of(k)]
                    self._sent[sender][section.me] = boxes
        lengths = [[_nbytes(m) for m in row] for row in self._sent]
        self._lengths = lengths
        self._received = [
            [lengths[sender][s.me] if sender != s.rank else 0 for sender in s.group]
            for s in sections
        ]
        every = [*lengths, *self._received]
        self._largest = max(max(row) for row in every)
        self._packs = any(not _straight(m, 0) for row in self._sent for m in row)
        self._unpacks = any(
            not _straight(s.of(k), 1) for s in sections for k in range(len(s.group)) if k != s.me
        )
        packed = max(sum(row) for row in lengths) if self._packs else 0
        unpacked = max(sum(row) for row in self._received) if self._unpacks else 0
        self._received_at = rounded(packed)
        self.staging = self._received_at + unpacked
        self._begun = [self._begins(rank) for rank in range(len(sections))]
        self._end = self._largest + max(max(row) for both in self._begun for row in both)

    def words(self, rank: int) -> list[int]:
        """Return the head of a rank's section from PACKS on, and what follows it."""
        messages, begins = SectionWords.HEAD, self._begun[rank]
        sends = messages + MAIL_WORDS * len(self._sections[rank].group)
        head = [int(self._packs), int(self._unpacks), sends, messages]
        head += [self._received_at, self._largest, self._end]
        columns = zip(self._lengths[rank], begins[0], self._received[rank], begins[1], strict=True)
        places = [place for message in self._sent[rank] for place, _ in message]
        return [*head, *(number for row in columns for number in row), len(places), *places]

    def _begins(self, rank: int) -> tuple[list[int], list[int]]:
        """Return where the messages of a rank to and from each member begin."""
        section = self._sections[rank]
        if self._packs:
            out = _running(self._lengths[rank], range(len(section.group)))
        else:
            out = [m[0][1].source if m else 0 for m in self._sent[rank]]
        if self._unpacks:
            size = len(section.group)
            order = [(section.me + k) % size for k in range(size)]
            return out, _running(self._received[rank], order)
        inwards = [section.of(k) for k in range(len(section.group))]
        return out, [m[0][1].target if m else 0 for m in inwards]


def _nbytes(message: list[tuple[int, Box]]) -> int:
    return sum(box.nbytes for _, box in message)


def _running(lengths: list[int], order: Sequence[int]) -> list[int]:
    """Return where each message begins when they lie one after the other in that order."""
    begins, end = [0] * len(lengths), 0
    for k in order:
        begins[k] = end
        end += lengths[k]
    return begins


def _straight(message: list[tuple[int, Box]], side: int) -> bool:
    """Tell whether a message is one run of bytes in the source (0) or in the target (1)."""
    if len(message) > 1:
        return False
    for _, box in message:
        size = box.run
        for level in box.levels:
            if level[1 + side] != size:
                return False
            size *= level[0]
    return True
