"""On one rank a program written alike is proven without deriving anything; anything else is looked into."""

import numpy as np
import pytest

import meshweave as mw
from meshweave.api.program import build
from meshweave.verification import check

WHOLE = """
func.func @main(%a: tensor<4x6xf32>, %b: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %e = tensor.empty() : tensor<4x6xf32>
  %s = linalg.add ins(%a, %b : tensor<4x6xf32>, tensor<4x6xf32>) outs(%e : tensor<4x6xf32>) -> tensor<4x6xf32>
  %c = call @f(%s) : (tensor<4x6xf32>) -> tensor<4x6xf32>
  return %c : tensor<4x6xf32>
}
func.func private @f(%a: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %e = tensor.empty() : tensor<4x6xf32>
  %s = linalg.exp ins(%a : tensor<4x6xf32>) outs(%e : tensor<4x6xf32>) -> tensor<4x6xf32>
  return %s : tensor<4x6xf32>
}
"""
MESH = '"dist.mesh"() {sym_name = "mesh", axes = "x=%d"} : () -> ()'
LAYOUT = '%a: tensor<4x6xf32> {dist.layout = #dist.layout<"[_, _]ORDER">}, %b'


@pytest.fixture
def derived(monkeypatch):
    """Whether terms were derived."""
    seen = []
    before = check._Check.function
    monkeypatch.setattr(check._Check, "function", lambda *a: seen.append(1) or before(*a))
    return seen


@pytest.mark.parametrize(
    "old, new, proven",
    [
        ("", "", True),
        ("linalg.add ins", 'linalg.add {mw.kernel = "codegen"} ins', True),
        ("ins(%a, %b", "ins(%a, %a", False),
        ("linalg.exp", "linalg.tanh", False),
        ("call @f(%s)", "call @f(%b)", False),
    ],
)
def test_what_differs_is_looked_into(derived, old, new, proven):
    found = mw.verify(WHOLE, WHOLE.replace(old, new, 1) if old else WHOLE)
    assert (found.status == 0) == proven
    assert bool(derived) != proven


def test_of_several_ranks_and_in_other_orders_everything_is_derived(derived):
    for axes, order in ((2, ""), (1, " order(1, 0)")):
        text = MESH % axes + WHOLE.replace(
            "%a: tensor<4x6xf32>, %b", LAYOUT.replace("ORDER", order), 1
        )
        mw.verify(text, text)
        assert derived
        derived.clear()


def test_a_compile_for_one_rank_is_proven_so(derived):
    bundle = build(WHOLE, name="alike")
    assert bundle.manifest.certificate.proven == ("@main result 0",) and not derived


def test_many_parts_at_computed_places_end_soon_and_are_right():
    """A sum of rows at places that arguments say: after a while nothing more is shown of it, the sooner the better."""
    jax = pytest.importorskip("jax")

    def gradient(table, places, rows):
        return jax.vjp(lambda t: t[places], table)[1](rows)[0]

    rng = np.random.default_rng(0)
    table, rows = np.ones((40, 3), np.float32), rng.integers(0, 9, (32, 3)).astype(np.float32)
    places = rng.integers(0, 40, 32).astype(np.int32)
    right = np.zeros_like(table)
    np.add.at(right, places, rows)
    shardings = ("[_, x]", "[_]", "[_, x]")
    with mw.from_jax(gradient, table, places, rows, in_shardings=shardings, mesh="x=3") as program:
        assert np.array_equal(np.asarray(program(table, places, rows)), right)
