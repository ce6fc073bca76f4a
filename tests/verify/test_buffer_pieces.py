"""Parts of buffers that are put into others: where they lie, and what is said of those that lie over each other."""

import re

from verify.test_buffers import answer, lowered

from meshweave.verification.buffers.contents import Contents
from meshweave.verification.buffers.regions import ZERO, ByteRegion, Form, within
from meshweave.verification.buffers.relation import Given, Relation


def test_a_run_within_parts_with_gaps_is_found() -> None:
    """Twelve numbers of four bytes, back to back among those that lie eight bytes apart."""
    every_second = ByteRegion(ZERO, ((24, 8), (4, 1)))
    assert within(ByteRegion(Form(8), ((40, 1),)), every_second) == ByteRegion(
        Form(16), ((10, 8), (4, 1))
    )
    assert within(ByteRegion(Form(2), ((40, 1),)), every_second) is None


def test_every_second_element_of_rows_is_found_in_rows_that_are_shorter() -> None:
    """In rows of 16 bytes elements 8 bytes apart are one run over all rows, in rows of 12 they are not."""
    text = """
    func.func public @main(%a: tensor<5x4x2xf32>, %b: tensor<5x4x1xf32>) -> tensor<5x4x4xf32> {
      %zero = arith.constant 0.0 : f32
      %e = tensor.empty() : tensor<5x4x3xf32>
      %f = linalg.fill ins(%zero : f32) outs(%e : tensor<5x4x3xf32>) -> tensor<5x4x3xf32>
      %spread = tensor.insert_slice %a into %f[0, 0, 0] [5, 4, 2] [1, 1, 2] : tensor<5x4x2xf32> into tensor<5x4x3xf32>
      %r = tensor.concat dim(2) %spread, %b : (tensor<5x4x3xf32>, tensor<5x4x1xf32>) -> tensor<5x4x4xf32>
      return %r : tensor<5x4x4xf32>
    }
    """
    before, after = lowered(text)
    assert answer(before, after).status == 0
    copies = re.findall(r".*memref\.copy.*\n", after)
    for copy in copies:
        assert answer(before, after.replace(copy, "")).status == 1


def test_a_piece_that_another_lies_over_is_not_refuted_for_what_that_hides() -> None:
    contents = Contents()
    relation = Relation(contents)
    base, over, own, other = (
        contents.leaf(Given("input", k), n) for k, n in enumerate((16, 8, 8, 4))
    )
    first, second = ByteRegion(ZERO, ((8, 1),)), ByteRegion(Form(4), ((8, 1),))
    hidden = contents.insert(own, ByteRegion(Form(4), ((4, 1),)), other)
    seen = contents.insert(own, ByteRegion(ZERO, ((4, 1),)), other)
    want, got, wrong = (
        contents.insert(contents.insert(base, first, piece), second, over)
        for piece in (own, hidden, seen)
    )
    doubts = relation.refines(got, want), relation.refines(wrong, want)
    assert all(doubt is not None and not doubt.sure for doubt in doubts)
