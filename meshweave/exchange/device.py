"""Write down what one rank does in an exchange, as the words that host code and kernels of a gpu follow (device.py)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from meshweave.device import CopyWords, ExchangeWords
from meshweave.exchange.section import Box, Entry, Section
from meshweave.layout.places import Indices

UNITS = (16, 8, 4, 2, 1)  # bytes that a thread moves at once


class DeviceSection(NamedTuple):
    """Hold the copies of a rank, for its device, and the words for its host, which lack the address of the copies.

    rows: one for each copy (device.CopyWords). head: device.ExchangeWords.
    """

    rows: Indices
    head: Indices

    def words(self, address: int) -> Indices:
        """Return the words for the host. address: of the rows on the device."""
        words: Indices = self.head.copy()
        words[[ExchangeWords.KEPT, ExchangeWords.PACKED, ExchangeWords.UNPACKED]] += address
        return words


def device_section(section: Section) -> DeviceSection:
    """Return what a rank's device and host do in an exchange."""
    mail = section.mail
    lists = [
        list(section.kept),
        list(_dense(section.leaving, 1)) if mail.packs else [],
        list(_dense(section.arriving, 0)) if mail.unpacks else [],
    ]
    every = [box for boxes in lists for box in boxes]
    depth = max((len(box.levels) for box in every), default=0)
    rows = np.array([_row(box, depth) for box in every], np.int64)
    rows = rows.reshape(len(every), CopyWords.LEVELS + 3 * depth)
    head, start = list[int](), 0
    for boxes in lists:
        head += [start * rows.itemsize * rows.shape[1], len(boxes)]
        head += [max((box.nbytes for box in boxes), default=0)]
        start += len(boxes)
    ends = (0 if mail.packs else -1, mail.inbox if mail.unpacks else -1)
    head += [_unit(every), depth, *ends, *(number for row in mail.rows for number in row)]
    return DeviceSection(rows, np.array(head, np.int64))


def _dense(entries: Iterable[Entry], side: int) -> Iterable[Box]:
    """Yield the boxes with their source (0) or target (1) one behind the other, as they lie in messages."""
    start = 0
    for _, box in entries:
        step, levels = box.run, []
        for count, *steps in box.levels:
            steps[side] = step
            levels.append((count, steps[0], steps[1]))
            step *= count
        ends = (start, box.target) if side == 0 else (box.source, start)
        yield Box(*ends, box.run, tuple(levels))
        start += box.nbytes


def _row(box: Box, depth: int) -> list[int]:
    """Return a copy as words."""
    levels = [*box.levels, *[(1, 0, 0)] * (depth - len(box.levels))]
    return [box.source, box.target, box.nbytes, box.run, *(n for level in levels for n in level)]


def _unit(boxes: Iterable[Box]) -> int:
    """Return the bytes that a thread can move at once, if both buffers begin at multiples of it."""
    common = UNITS[0]
    for box in boxes:
        steps = [step for _, *steps in box.levels for step in steps]
        common = math.gcd(common, box.source, box.target, box.run, *steps)
    return next(unit for unit in UNITS if common % unit == 0)
