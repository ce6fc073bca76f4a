"""`explain()` is text, and a value: JSON, rows, a page; it compiles once."""

import json

import numpy as np

import meshweave as mw
from meshweave.api.explain import Explanation

X, W = np.ones((8, 16), np.float32), np.ones((16, 4), np.float32)


def layer() -> mw.Program:
    f = mw.jit(
        lambda x, w: mw.tanh(x @ w),
        mesh="x=2", in_layouts=("[_, x]", "[x, _]"), out_layouts="[_, _]",
    )  # fmt: skip
    f(X, W)
    return f


def test_an_explanation_is_text_and_values() -> None:
    said = layer().explain()
    assert isinstance(said, Explanation) and "1 collective brings the busiest rank" in said
    found = json.loads(json.dumps(said.as_dict()))
    names = [port["name"] for port in found["ports"]]
    assert names == ["x", "w", "result"] and found["ports"][1]["layout"] == "[x, _]"
    assert found["collectives"][0]["op"] == "all_reduce"
    (reason,) = found["reasons"]
    assert reason["source"] == "[_, _] +sum(x)" and reason["given"][-1]["kind"] == "argument"
    rows = {row["op"]: row for row in said.rows()}
    assert rows["a product"]["layout"] == "[_, _] +sum(x)" and rows["a product"]["work"] == 256
    assert 'argument w lies in "[x, _]"' in said.reasons or "argument x lies in" in said.reasons
    assert said.html.startswith("<!doctype html>") and said.page._repr_html_().startswith("<iframe")
    assert "<pre" in said._repr_html_() and "linalg." not in said and "a product `x @ w`" in said


def test_explaining_compiles_once_for_all_who_ask() -> None:
    f = layer()
    bundle = f._last.program.bundle
    assert f.explain().report.ops is f.explain().report.ops
    assert f.view().report.ops is bundle.origin().ops
    assert "1 of 1 results proven" in f.explain() and "1 of 1 results proven" in f.view().html


def test_results_are_called_by_their_places_and_the_ops_of_an_expression_once() -> None:
    @mw.jit(mesh="x=2", in_layouts=("[x, _]", "[_, _]"), out_layouts=("[_, _]", {"b": "[x, _]"}))
    def both(x: mw.Array, w: mw.Array) -> tuple[mw.Array, dict[str, mw.Array]]:
        return mw.nn.softmax(x @ w), {"b": x * 2.0}

    both(X, W)
    said = both.explain().reasons
    assert 'since result[0] is wanted in "[_, _]", as it was said' in said
    assert said.count("an elementwise op `mw.nn.softmax(x @ w)` works over x") == 1
    both.close()
