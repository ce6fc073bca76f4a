"""Write traces and programs for other tools: XProf's protocol buffers, graphs and node data for Model Explorer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from meshweave.report import Report
from meshweave.runtime.tracing import Slice

# XProf.


def xspace(slices: Sequence[Slice], began: int) -> bytes:
    """Return slices as an XSpace of XProf: a plane for each rank, a line for what it did and one for what ran beside.

    began: when the trace began, in nanoseconds since 1970. XProf shows planes whose name begins as theirs do, in its
    trace viewer; its other tools want HLO, which we have none of.
    """
    ranks: dict[int, dict[bool, list[Slice]]] = defaultdict(lambda: defaultdict(list))
    for each in slices:
        ranks[each.rank][each.aside].append(each)
    return b"".join(_field(1, _plane(rank, lines, began)) for rank, lines in sorted(ranks.items()))


def _plane(rank: int, lines: dict[bool, list[Slice]], began: int) -> bytes:
    """Return an XPlane: its lines, and the names of events and of what they say."""
    names: dict[str, int] = defaultdict(count(1).__next__)
    written = [_line(aside, own, began, names) for aside, own in sorted(lines.items())]
    about = [
        _field(4, _field(1, n) + _field(2, _field(1, n) + _field(2, name)))
        for name, n in names.items()
    ]
    said = [
        _field(5, _field(1, n) + _field(2, _field(1, n) + _field(2, name)))
        for n, name in enumerate(_STATS, 1)
    ]
    head = _field(1, rank) + _field(2, f"/device:CUSTOM:rank {rank}")
    return head + b"".join(_field(3, line) for line in written) + b"".join(about + said)


_STATS = ("kind", "where", "call", "bytes")  # what events say, by their numbers from 1 on


def _line(aside: bool, slices: Sequence[Slice], began: int, names: dict[str, int]) -> bytes:
    head = _field(1, int(aside)) + _field(2, "beside" if aside else "ops") + _field(3, began)
    return head + b"".join(_field(4, _event(each, names[each.name])) for each in slices)


def _event(each: Slice, name: int) -> bytes:
    """Return an XEvent, in picoseconds from when the trace began."""
    times = _field(2, round(1000 * each.start)) + _field(3, round(1000 * each.duration))
    said: list[tuple[int, int | str]] = [(1, each.kind), (3, each.call)]
    said += [(2, each.where)] if each.where else []
    said += [(4, each.nbytes)] if each.nbytes else []
    stats = [_field(4, _field(1, n) + _field(5 if isinstance(v, str) else 4, v)) for n, v in said]
    return _field(1, name) + times + b"".join(stats)


def _field(number: int, value: int | str | bytes) -> bytes:
    """Return a field of a message of protocol buffers: a number, or a text or message with its length before it."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(max(0, value))
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Return a number in groups of seven bits, the low ones first."""
    groups = [value >> shift & 0x7F for shift in range(0, max(1, value.bit_length()), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


# Model Explorer.


def model_graphs(report: Report) -> list[dict[str, Any]]:
    """Return a program as graphs of Model Explorer, one for each function, whose nodes are its ops by layer.

    The number of an op in `Report.ops` is the id of its node.
    """
    graphs: dict[str, list[dict[str, Any]]] = {}
    for number, row in enumerate(report.ops):
        said = {"result": row.tensor, "layout": row.layout, "code": row.code, "where": row.where}
        if row.reason is not None:
            reason = report.reasons[row.reason]
            said |= {"bytes": f"{reason.nbytes}", "why": "\n".join(reason.lines())}
        node = {
            "id": f"{number}",
            "label": row.op,
            "namespace": row.layer.replace(".", "/"),  # modules of PyTorch, so that they nest
            "subgraphIds": [row.calls] if row.calls else [],
            "attrs": [{"key": key, "value": value} for key, value in said.items() if value],
            "incomingEdges": [
                {"sourceNodeId": f"{n}", "sourceNodeOutputId": "0", "targetNodeInputId": f"{k}"}
                for k, n in enumerate(row.reads)
            ],
        }
        graphs.setdefault(row.function, []).append(node)
    return [{"id": function, "nodes": nodes} for function, nodes in graphs.items()]


def node_data(report: Report) -> dict[str, Any]:
    """Return node data for these graphs: the bytes that the busiest rank receives in each move."""
    graphs: dict[str, Any] = {}
    for function, number, nbytes in _received(report):
        results = graphs.setdefault(function, {"results": {}, "gradient": _COLOURS})["results"]
        results[f"{number}"] = {"value": nbytes}
    return graphs


_COLOURS = [{"stop": 0, "bgColor": "#fff3e0"}, {"stop": 1, "bgColor": "#f28e2b"}]


def _received(report: Report) -> Iterator[tuple[str, int, int]]:
    for number, row in enumerate(report.ops):
        if row.reason is not None:
            yield row.function, number, report.reasons[row.reason].nbytes
