"""Placement counts the tensors in memory that fuse-kernels makes: both ask the same rule."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from depth import sampled

import meshweave as mw
from meshweave.dialects import context
from meshweave.frontends.load import load_module
from meshweave.ir.bindings import ir
from meshweave.ir.pipeline_text import GLOBAL_PASSES
from meshweave.layout import Mesh
from meshweave.pipeline import run_pipeline
from meshweave.plan.placement.prices import NOTHING
from meshweave.transforms.base import walk
from meshweave.transforms.kernels.in_memory import (
    COPY,
    MAP,
    SPLAT,
    stored_for_inside,
    stored_for_product,
    stored_for_repeats,
    stored_for_several,
)
from meshweave.transforms.propagation.graph import build
from meshweave.transforms.propagation.works import op_works

X, W = mw.ShapeDtype((64, 48), "f32"), mw.ShapeDtype((48, 48), "f32")
Tensors = Counter[tuple[int, ...]]


def counted_and_made(f: Callable[..., Any], *kinds: mw.ShapeDtype) -> tuple[Tensors, Tensors]:
    """Return the shapes of the tensors that placement counts, and of those that kernels make, on one rank."""
    text = mw.jit(f, mesh="x=1").lower(*kinds).program.text
    before = GLOBAL_PASSES.index("dist-propagate")
    with context() as ctx, ir.Location.unknown():
        module = load_module(text, ctx, "-")
        run_pipeline(module, ",".join(GLOBAL_PASSES[:before]))
        built = build(module, Mesh.parse("x=1"), windows=True)
        counted, made = Tensors(), Tensors()
        for site, work in zip(built.sites, op_works(built)):
            if site.results and work.kind != NOTHING:
                kept = work.kept[len(site.operands) :]
                counted.update(tuple(v.type.shape) for v, k in zip(site.results, kept) if k)
        passes = [*GLOBAL_PASSES[before:], "lower-collectives{engine=local}", "fuse-kernels"]
        run_pipeline(module, ",".join(passes))
        for op in walk(module.operation):
            if op.name == "mw.launch":
                made.update(tuple(v.type.shape) for v in op.results)
    return counted, made


WHOLE, ROWS = (64, 48), (64,)

PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "a chain is one kernel": (lambda x, w: mw.tanh(mw.exp(x) + 1) * 2, [WHOLE]),
    "what is dear and read by two is stored": (
        lambda x, w: ((e := mw.exp(x)) + 1, mw.sum(e)), [WHOLE, WHOLE, ()],
    ),
    "what is cheap and read by two is computed by both": (
        lambda x, w: ((e := x + 1) * 2, mw.sum(e * e)), [WHOLE, ()],
    ),
    "a product reads tensors": (lambda x, w: (x + 1) @ w, [WHOLE, WHOLE]),
    "a product reads through a transpose": (lambda x, w: x.T @ x, [(48, 48)]),
    "but not what a transpose shows of a map": (lambda x, w: mw.exp(x).T @ x, [(48, 64), (48, 48)]),
    "what all columns read is not computed for each": (
        lambda x, w: x * mw.exp(mw.sum(x, axis=1, keepdims=True)), [ROWS, (64, 1), WHOLE],
    ),
    "if it is dear": (lambda x, w: x * (mw.sum(x, axis=1, keepdims=True) + 1), [ROWS, WHOLE]),
    "a sum reads its map where it is made": (lambda x, w: mw.sum(mw.exp(x) * x, axis=1), [ROWS]),
}  # fmt: skip


@sampled(1)
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_placement_counts_the_tensors_that_kernels_make(name: str) -> None:
    f, shapes = PROGRAMS[name]
    counted, made = counted_and_made(f, X, W)
    assert counted == made == Counter(shapes)


def test_what_is_stored() -> None:
    assert stored_for_product(MAP, MAP) and stored_for_product(COPY, SPLAT)
    assert not stored_for_product(COPY, "reduce")
    assert stored_for_inside(MAP, 1) and not stored_for_inside(MAP, 0)
    assert not stored_for_inside(COPY, 1)
    assert stored_for_several(MAP, 4, 2) and not stored_for_several(MAP, 4, 1)
    assert stored_for_several(MAP, 3, 2, reads=2) and not stored_for_several(MAP, 3, 2)
    assert not stored_for_several(COPY, 4, 2)


def test_the_innermost_loop_repeats_only_what_is_dear() -> None:
    rows, columns = {0}, {1}
    assert stored_for_repeats(MAP, 16, (64, 48), rows)
    assert not stored_for_repeats(MAP, 15, (64, 48), rows)
    assert stored_for_repeats(MAP, 15, (64, 48), columns)
    assert not stored_for_repeats(MAP, 3, (64, 48), columns)
    assert not stored_for_repeats(MAP, 16, (64, 1), rows)
    assert not stored_for_repeats(MAP, 16, (64, 48), set())
    assert not stored_for_repeats(COPY, 16, (64, 48), rows)
