"""What other tools read: traces as XProf's protocol buffers, programs as graphs and node data of Model Explorer."""

import json
from pathlib import Path

import pytest
from commands import ROOT, meshweave

from meshweave.runtime.tracing import Slice
from meshweave.see.trace import RankTrace


def test_a_trace_is_read_as_an_xspace(tmp_path: Path) -> None:
    """JAX's reader of profiles, which is XLA's, tells each slice as it was."""
    profiler = pytest.importorskip(
        "jax.profiler", reason="jax, whose profiler reads it, is not installed"
    )
    t = RankTrace()
    t.slices = (
        Slice(0, "kernel", "loops", 0.0, 127.0, 0, "a.py:3:1"),
        Slice(0, "collective", "all_gather[x] f32 8", 128.0, 1e9, 300, "b.py:1:1", 1 << 40),
        Slice(0, "collective", "loops", 200.0, 5.0, 0, aside=True),
        Slice(12, "wait", "wait for rank 0", 3.0, 0.0, 1, waits_for=0),
    )
    file = tmp_path / "host.xplane.pb"
    t.save(str(file))
    planes = list(profiler.ProfileData.from_file(str(file)).planes)
    assert [plane.name for plane in planes] == ["/device:CUSTOM:rank 0", "/device:CUSTOM:rank 12"]
    lines = {(p.name[-1], line.name): list(line.events) for p in planes for line in p.lines}
    assert set(lines) == {("0", "ops"), ("0", "beside"), ("2", "ops")}
    first, second = lines["0", "ops"]
    assert (first.name, first.duration_ns) == ("loops", 127.0)
    assert dict(first.stats) == {"kind": "kernel", "where": "a.py:3:1", "call": 0}
    assert second.start_ns - first.start_ns == 128.0 and second.duration_ns == 1e9
    said = {"kind": "collective", "where": "b.py:1:1", "call": 300, "bytes": 1 << 40}
    assert second.name == "all_gather[x] f32 8" and dict(second.stats) == said
    assert lines["0", "beside"][0].name == "loops" and lines["2", "ops"][0].duration_ns == 0


def test_a_program_is_a_graph_with_node_data(tmp_path: Path) -> None:
    page, file = tmp_path / "p.html", tmp_path / "g.json"
    done = meshweave("view", ROOT / "examples/mlp/mlp.mlir", "-o", page, "--explorer", file)
    assert done.status == 0, done
    (graph,) = json.loads(file.read_text())
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert graph["id"] == "main" and len(nodes) == len(graph["nodes"])
    reads = {n: [edge["sourceNodeId"] for edge in nodes[n]["incomingEdges"]] for n in nodes}
    assert all(int(source) < int(n) for n in nodes for source in reads[n])
    assert max(map(len, reads.values())) == 2  # a sum of two
    (move,) = [n for n, node in nodes.items() if node["label"] == "redistribute"]
    assert [nodes[source]["label"] for source in reads[move]] == ["a product"]
    attrs = {each["key"]: each["value"] for each in nodes[move]["attrs"]}
    assert attrs["layout"] == "[dp, _]" and "sums over a dim that lies over tp" in attrs["why"]
    data = json.loads((tmp_path / "g.bytes.json").read_text())
    assert data["main"]["results"] == {move: {"value": 12288}}
