"""Programs with loops, branches, and bodies that are local already, each against NumPy."""

import numpy as np
import pytest
from executed import equal, partitioned, run, whole

from meshweave.errors import MeshweaveError


def test_a_body_that_reads_a_tensor_inside_a_branch() -> None:
    text = partitioned(
        "x=2",
        """func.func @main(%a: tensor<4xf32> {[x]}, %t: tensor<4xf32> {[x]}) -> (tensor<4xf32> {[x]}) {
             %e = tensor.empty() : tensor<4xf32>
             %three = arith.constant 3 : index
             %zero = arith.constant 0.0 : f32
             %r = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
                                  iterator_types = ["parallel"]}
               ins(%a : tensor<4xf32>) outs(%e : tensor<4xf32>) {
               ^bb0(%i: f32, %o: f32):
                 %c = arith.cmpf ogt, %i, %zero : f32
                 %d = linalg.index 0 : index
                 %v = scf.if %c -> (f32) {
                   %k = arith.subi %three, %d : index
                   %u = tensor.extract %t[%k] : tensor<4xf32>
                   scf.yield %u : f32
                 } else { scf.yield %i : f32 }
                 linalg.yield %v : f32
             } -> tensor<4xf32>
             return %r : tensor<4xf32> }""",
    )
    assert "dist.all_gather" in text  # %t is read anywhere: it must be whole


def test_generate_reads_a_cut_tensor() -> None:
    x = whole(4)
    (y,) = run(
        "x=2",
        """func.func @main(%a: tensor<4xf32> {[x]}) -> (tensor<4xf32> {[x]}) {
             %three = arith.constant 3 : index
             %r = tensor.generate {
               ^bb0(%i: index):
                 %k = arith.subi %three, %i : index
                 %u = tensor.extract %a[%k] : tensor<4xf32>
                 tensor.yield %u : f32
             } : tensor<4xf32>
             return %r : tensor<4xf32> }""",
        x,
    )
    equal(y, x[::-1])


def test_control_flow_between_blocks_is_refused() -> None:
    with pytest.raises(MeshweaveError, match="one block"):
        run(
            "x=2",
            """func.func @main(%a: tensor<4xf32> {[x]}) -> tensor<4xf32> {
                 cf.br ^bb1(%a : tensor<4xf32>)
               ^bb1(%b: tensor<4xf32>):
                 return %b : tensor<4xf32> }""",
            whole(4),
        )


MANUAL = """
  func.func @main(%a: tensor<4xf32> {[x]}, %b: tensor<4xf32> {[_]}) -> tensor<4xf32> {
    %two = arith.constant dense<2.0> : tensor<2xf32>
    %r = scf.execute_region -> tensor<4xf32> no_inline {
      %l = "dist.to_local"(%a) {layout = #dist.layout<"[x]">} : (tensor<4xf32>) -> tensor<2xf32>
      BODY
      %g = "dist.to_global"(%t) {layout = #dist.layout<"[x]">} : (tensor<2xf32>) -> tensor<4xf32>
      scf.yield %g : tensor<4xf32>
    } {dist.manual}
    %s = arith.addf %r, %r : tensor<4xf32>
    return %s : tensor<4xf32> }"""


def test_a_manual_body_that_reads_from_outside_is_refused() -> None:
    body = """%s = tensor.extract_slice %b[0] [2] [1] : tensor<4xf32> to tensor<2xf32>
              %t = arith.addf %l, %s : tensor<2xf32>"""
    with pytest.raises(MeshweaveError, match="outside"):
        run("x=2", MANUAL.replace("BODY", body), whole(4), whole(4))


def test_a_manual_body_that_gives_a_constant() -> None:
    (y,) = run("x=2", MANUAL.replace("BODY", "").replace("%t)", "%two)"), whole(4), whole(4))
    equal(y, np.full(4, 4, "f4"))


BOTH = """
  func.func @main(%a: tensor<5xf32>, %b: tensor<2xf32>) -> (tensor<5xf32>, tensor<5xf32>) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c3 = arith.constant 3 : index
    %old = arith.addf %a, %a : tensor<5xf32>
    UPDATE
    return %new, %old : tensor<5xf32>, tensor<5xf32> }"""


UPDATES = {
    "generic": """%new = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
                                        iterator_types = ["parallel"]}
                    ins(%a : tensor<5xf32>) outs(%old : tensor<5xf32>) {
                    ^bb0(%x: f32, %o: f32):
                      %s = arith.addf %x, %o : f32
                      linalg.yield %s : f32 } -> tensor<5xf32>""",
    "insert": "%new = tensor.insert_slice %b into %old[1][2][1] : tensor<2xf32> into tensor<5xf32>",
    "loop": """%new = scf.for %i = %c0 to %c3 step %c1 iter_args(%t = %old) -> tensor<5xf32> {
                 %u = tensor.insert_slice %b into %t[%i][2][1] : tensor<2xf32> into tensor<5xf32>
                 scf.yield %u : tensor<5xf32> }""",
}


@pytest.mark.parametrize("update", sorted(UPDATES))
def test_a_tensor_and_its_update_are_both_results(update: str) -> None:
    a, b = whole(5), whole(2)
    new, old = run("x=1", BOTH.replace("UPDATE", UPDATES[update]), a, b)
    wanted = 2 * a
    equal(old, wanted)
    if update == "generic":
        wanted = 3 * a
    elif update == "insert":
        wanted[1:3] = b
    else:
        wanted[:4] = b[[0, 0, 0, 1]]
    equal(new, wanted)


def test_a_branch_gives_a_slice() -> None:
    a = whole(3, 4)
    for flag in (True, False):
        (y,) = run(
            "x=2",
            """func.func @main(%a: tensor<3x4xf32> {[_, x]}, %p: tensor<i1>) -> tensor<3x2xf32> {
                 %c = tensor.extract %p[] : tensor<i1>
                 %v = arith.addf %a, %a : tensor<3x4xf32>
                 %i = scf.if %c -> (tensor<3x2xf32>) {
                   %s = tensor.extract_slice %v[0, 1] [3, 2] [1, 1] : tensor<3x4xf32> to tensor<3x2xf32>
                   scf.yield %s : tensor<3x2xf32>
                 } else {
                   %z = arith.constant dense<1.0> : tensor<3x2xf32>
                   scf.yield %z : tensor<3x2xf32>
                 }
                 return %i : tensor<3x2xf32> }""",
            a,
            np.array(flag),
        )
        equal(y, 2 * a[:, 1:3] if flag else np.ones((3, 2), "f4"))


def test_a_while_loop_keeps_one_layout() -> None:
    a, b = whole(4), whole(4)
    (y,) = run(
        "x=2",
        """func.func @main(%a: tensor<4xf32> {[_]}, %b: tensor<4xf32>) -> (tensor<4xf32> {[x]}) {
             %zero = arith.constant 0 : i32
             %one = arith.constant 1 : i32
             %r:2 = scf.while (%n = %zero, %t = %b) : (i32, tensor<4xf32>) -> (i32, tensor<4xf32>) {
               %more = arith.cmpi slt, %n, %one : i32
               scf.condition(%more) %n, %t : i32, tensor<4xf32>
             } do {
             ^bb0(%n: i32, %t: tensor<4xf32>):
               %next = arith.addi %n, %one : i32
               %v = arith.mulf %a, %a : tensor<4xf32>
               scf.yield %next, %v : i32, tensor<4xf32>
             }
             return %r#1 : tensor<4xf32> }""",
        a,
        b,
    )
    equal(y, a * a)
