"""Define `meshweave doctor --dump`, which reads flight recorders side by side and names who held the others up."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from meshweave.runtime.flight.diagnosis import named, where
from meshweave.runtime.flight.dump import read_dumps
from meshweave.runtime.flight.faults import Fault, faults
from meshweave.runtime.flight.records import ELSEWHERE, RankRecord

_BEFORE, _MOST = 4, 16  # collectives shown before the first that a rank has not reached, and in all


def dump_command(paths: Sequence[str], as_json: bool) -> int:
    """Print the faults that dumps tell of; return 1 where a file is none, with a line for each such, else 0."""
    dumps, errors = read_dumps(paths)
    found = faults(dumps)
    if as_json:
        print(json.dumps({"faults": [_summary(fault) for fault in found]}))
    else:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
        for fault in found:
            _print(fault, console)
    for error in errors:
        print(f"meshweave: error: {error}", file=sys.stderr)
    return 1 if errors else 0


def _summary(fault: Fault) -> dict[str, Any]:
    last = fault.dumps[-1]
    ranks = [asdict(rank) | {"host": host} for rank, host in zip(fault.ranks, fault.hosts)]
    return {
        "incident": last.incident, "reason": last.reason, "written": last.written, "engine": last.engine,
        "mesh": last.mesh, "program": last.program, "lines": [dump.line for dump in fault.dumps],
        "stragglers": [rank.rank for rank in fault.stragglers], "verdict": fault.verdict(),
        "ops": [asdict(op) for op in last.ops], "ranks": ranks,
    }  # fmt: skip


def _print(fault: Fault, console: Console) -> None:
    last = fault.dumps[-1]
    at = datetime.fromtimestamp(last.written / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    program = f"program {last.program}, engine {last.engine}, mesh ({last.mesh})"
    lines = [f"{last.reason} on {at}: {program}"]
    lines += [f"  {dump.host}: {dump.line}" for dump in fault.dumps]
    for line in lines:
        console.print(_text(line), soft_wrap=True)
    console.print(_ranks(fault))
    if fault.sequences():
        console.print(_collectives(fault))
    missing = [rank.rank for rank in fault.ranks if rank.state == ELSEWHERE]
    if missing:
        console.print(Text(f"no dump tells of {named(missing)}"))
    console.print(_text(f"verdict: {fault.verdict()}", "bold"), soft_wrap=True)


def _text(words: str, style: str = "") -> Text:
    """Return words of a file as text without characters that a terminal obeys."""
    return Text("".join(c if c.isprintable() else "?" for c in words), style=style)


def _ranks(fault: Fault) -> Table:
    table = Table("rank", "host", "process", "call", "collectives", "what it does", title="ranks")
    op, guilty = fault.dumps[0].op, fault.stragglers
    for rank, host in zip(fault.ranks, fault.hosts):
        if rank.state != ELSEWHERE:
            counts = str(rank.calls), str(rank.count)
            row = (str(rank.rank), host, _process(rank), *counts, where(rank, op))
            table.add_row(*map(_text, row), style="red" if rank in guilty else "")
    return table


def _process(rank: RankRecord) -> str:
    if not rank.pid:
        return "a thread"
    return f"{rank.pid}, {rank.process}"


def _collectives(fault: Fault) -> Table:
    """Return the collectives around the first that a rank has not reached; ranks of equal history share a column."""
    together: dict[tuple[int, bool, int], list[int]] = {}
    for rank in fault.ranks:
        if rank.state != ELSEWHERE:
            key = (rank.count, rank.within, len(rank.entries))
            together.setdefault(key, []).append(rank.rank)
    table = Table("#", "collective", "bytes", "place", title="last collectives")
    for members in together.values():
        table.add_column(named(members))
    op = fault.dumps[0].op
    for sequence in _shown(fault):
        entries = fault.entries(sequence)
        first = next(iter(entries.values()))
        info, half = op(first.op), f" ({first.half})" if first.half else ""
        marks = [_mark(fault, sequence, members[0], first.op) for members in together.values()]
        row = (str(sequence), f"{info.name}{half}", f"{info.bytes:,}", info.location, *marks)
        table.add_row(*map(_text, row))
    return table


def _shown(fault: Fault) -> list[int]:
    """Return the numbers of the collectives to show: around the first that not all ranks have reached."""
    known = [n for n in fault.sequences() if fault.entries(n)]
    least = min(rank.count for rank in fault.ranks if rank.state != ELSEWHERE)
    return [n for n in known if n > least - _BEFORE][:_MOST] or known[-_BEFORE:]


def _mark(fault: Fault, sequence: int, rank: int, op: int) -> str:
    """Say what a rank tells of a collective, which is `op` on other ranks."""
    entry = fault.entries(sequence).get(rank)
    if entry is None:
        return "-"
    said = "ended" if entry.ended else "started"
    return said if entry.op == op else f"{said} {fault.dumps[0].op(entry.op)}"
