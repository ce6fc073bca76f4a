"""Loops of many trips, and of a number of trips that the data says."""

import pytest
from verify.pairs import compared, mesh

EXP = """
func.func @main(%a: tensor<400x6xf32> {dist.layout = #dist.layout<"[x, _]">})
    -> (tensor<400x6xf32> {dist.layout = #dist.layout<"[x, _]">}) {
  %r = math.exp %a : tensor<400x6xf32>
  return %r : tensor<400x6xf32>
}
"""
ROWS = """
func.func @main(%a: tensor<200x6xf32> {dist.layout = #dist.layout<"[x, _]">})
    -> (tensor<200x6xf32> {dist.layout = #dist.layout<"[x, _]">}) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %two = arith.constant 2 : index
  %three = arith.constant 3 : index
  %trips = arith.constant 100 : index
  %e = tensor.empty() : tensor<200x6xf32>
  %r = scf.for %t = %zero to %trips step %one iter_args(%m = %e) -> (tensor<200x6xf32>) {
    %i = arith.muli %t, %two : index
    %n = scf.for %u = %zero to %two step %one iter_args(%o = %m) -> (tensor<200x6xf32>) {
      %j = arith.muli %u, %three : index
      %s = tensor.extract_slice %a[%i, %j] [2, 3] [1, 1] : tensor<200x6xf32> to tensor<2x3xf32>
      %v = math.exp %s : tensor<2x3xf32>
      %w = tensor.insert_slice %v into %o[%i, %j] [2, 3] [1, 1] : tensor<2x3xf32> into tensor<200x6xf32>
      scf.yield %w : tensor<200x6xf32>
    }
    scf.yield %n : tensor<200x6xf32>
  }
  return %r : tensor<200x6xf32>
}
"""
SUM = """
func.func @main(%a: tensor<400x6xf32> {dist.layout = #dist.layout<"[x, _]">}, %b: tensor<6xf32>) -> (tensor<6xf32>) {
  %r = linalg.reduce { arith.addf } ins(%a : tensor<400x6xf32>) outs(%b : tensor<6xf32>) dimensions = [0]
  return %r : tensor<6xf32>
}
"""
ADDED = """
func.func @main(%a: tensor<200x6xf32> {dist.layout = #dist.layout<"[x, _]">}, %b: tensor<6xf32>) -> (tensor<6xf32>) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %two = arith.constant 2 : index
  %trips = arith.constant 100 : index
  %none = arith.constant dense<0.0> : tensor<6xf32>
  %r = scf.for %t = %zero to %trips step %one iter_args(%m = %none) -> (tensor<6xf32>) {
    %i = arith.muli %t, %two : index
    %s = tensor.extract_slice %a[%i, 0] [2, 6] [1, 1] : tensor<200x6xf32> to tensor<2x6xf32>
    %n = linalg.reduce { arith.addf } ins(%s : tensor<2x6xf32>) outs(%m : tensor<6xf32>) dimensions = [0]
    scf.yield %n : tensor<6xf32>
  }
  %f = "dist.all_reduce"(%r) {axes = ["x"], kind = "sum"} : (tensor<6xf32>) -> tensor<6xf32>
  %g = arith.addf %f, %b : tensor<6xf32>
  return %g : tensor<6xf32>
}
"""
UNTIL = """
func.func @main(%a: tensor<{n}x6xf32> {{dist.layout = #dist.layout<"[x, _]">}}, %b: tensor<f32>)
    -> (tensor<{n}x6xf32> {{dist.layout = #dist.layout<"[x, _]">}}) {{
  %none = arith.constant dense<{init}> : tensor<f32>
  %zeros = arith.constant dense<0.0> : tensor<{n}x6xf32>
  %r:3 = scf.while (%s = %a, %z = %zeros, %l = %b) : (tensor<{n}x6xf32>, tensor<{n}x6xf32>, tensor<f32>)
      -> (tensor<{n}x6xf32>, tensor<{n}x6xf32>, tensor<f32>) {{
    %k = tensor.extract %l[] : tensor<f32>
    %limit = arith.constant {limit} : f32
    %more = arith.cmpf olt, %k, %limit : f32
    scf.condition(%more) %s, %z, %l : tensor<{n}x6xf32>, tensor<{n}x6xf32>, tensor<f32>
  }} do {{
  ^bb0(%s: tensor<{n}x6xf32>, %z: tensor<{n}x6xf32>, %l: tensor<f32>):
    %e = {op} %s : tensor<{n}x6xf32>
    %y = arith.addf %z, {added} : tensor<{n}x6xf32>
    %p = linalg.reduce {{ arith.addf }} ins(%e : tensor<{n}x6xf32>) outs(%none : tensor<f32>) dimensions = [0, 1]
    {reduced}
    scf.yield {handed}, %y, %q : tensor<{n}x6xf32>, tensor<{n}x6xf32>, tensor<f32>
  }}
  return %r#{result} : tensor<{n}x6xf32>
}}
"""
REDUCED = '%q = "dist.all_reduce"(%p) {axes = ["x"], kind = "sum"} : (tensor<f32>) -> tensor<f32>'
KEPT = "%q = tensor.cast %p : tensor<f32> to tensor<f32>"
MOVED = (
    REDUCED
    + '\n%m = "dist.permute"(%e) {axes = ["x"], sources = [1, 0]} : (tensor<4x6xf32>) -> tensor<4x6xf32>'
)
AS_IS = {
    "init": "0.0",
    "limit": "1.0",
    "op": "math.sin",
    "added": "%e",
    "handed": "%e",
    "result": "1",
    "reduced": REDUCED,
}
BEYOND = "%i = arith.muli %t, %two"


@pytest.mark.parametrize("trips", [100, 10])
def test_slices_of_many_trips_are_the_whole(trips: int) -> None:
    whole, local = [s.replace("400", str(4 * trips)) for s in (EXP, ROWS)]
    local = local.replace("200", str(2 * trips)).replace("constant 100", f"constant {trips}")
    assert compared(mesh("x=2") + whole, mesh("x=2") + local).status == 0


@pytest.mark.parametrize(
    "right, wrong",
    [
        ("constant 100", "constant 99"),
        ("%t = %zero to", "%t = %one to"),
        ("%a[%i, %j]", "%a[%t, %j]"),
        ("into %o[%i, %j]", "into %o[%t, %j]"),
        ("into %o[", "into %e["),
        ("math.exp %s", "math.sin %s"),
        (BEYOND, "%i = arith.muli %t, %one"),
    ],
)
def test_slices_that_are_missing_or_others_are_not(right: str, wrong: str) -> None:
    assert right in ROWS
    assert compared(mesh("x=2") + EXP, mesh("x=2") + ROWS.replace(right, wrong)).status != 0


def test_a_sum_of_many_trips_is_a_sum() -> None:
    assert compared(mesh("x=2") + SUM, mesh("x=2") + ADDED).status == 0
    for right, wrong in (
        ("constant 100", "constant 99"),
        ("%t = %zero to", "%t = %one to"),
        ("%a[%i, 0]", "%a[%t, 0]"),
        ("%m = %none", "%m = %b"),
        ("addf } ins(%s", "maximumf } ins(%s"),
        ('axes = ["x"]', "axes = []"),
    ):
        assert right in ADDED
        assert compared(mesh("x=2") + SUM, mesh("x=2") + ADDED.replace(right, wrong)).status != 0


@pytest.mark.parametrize("result", ["0", "1"])
def test_a_loop_until_something_is_the_same_loop(result: str) -> None:
    names = AS_IS | {"result": result}
    whole = mesh("x=2") + UNTIL.format(n=8, **(names | {"reduced": KEPT}))
    assert compared(whole, mesh("x=2") + UNTIL.format(n=4, **names)).status == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"reduced": KEPT},
        {"limit": "2.0"},
        {"op": "math.cos"},
        {"added": "%s"},
        {"handed": "%s"},
        {"result": "0"},
        {"init": "1.0"},
        {"reduced": MOVED, "handed": "%m"},
    ],
    ids=str,
)
def test_a_loop_that_does_something_else_is_not(wrong: dict[str, str]) -> None:
    whole = mesh("x=2") + UNTIL.format(n=8, **(AS_IS | {"reduced": KEPT}))
    assert compared(whole, mesh("x=2") + UNTIL.format(n=4, **(AS_IS | wrong))).status != 0


COUNTED = """
func.func @main(%a: tensor<{n}x6xf32> {{dist.layout = #dist.layout<"[x, _]">}})
    -> (tensor<{n}x6xf32> {{dist.layout = #dist.layout<"[x, _]">}}) {{
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %trips = arith.constant {trips} : i32
  %r:2 = scf.while (%k = %zero, %s = %a) : (i32, tensor<{n}x6xf32>) -> (i32, tensor<{n}x6xf32>) {{
    %more = arith.cmpi slt, %k, %trips : i32
    scf.condition(%more) %k, %s : i32, tensor<{n}x6xf32>
  }} do {{
  ^bb0(%k: i32, %s: tensor<{n}x6xf32>):
    %e = math.sin %s : tensor<{n}x6xf32>
    %l = arith.addi %k, %one : i32
    scf.yield %l, %e : i32, tensor<{n}x6xf32>
  }}
  return %r#1 : tensor<{n}x6xf32>
}}
"""


@pytest.mark.parametrize("trips", [0, 3, 200])
def test_a_loop_that_counts_makes_so_many_trips(trips: int) -> None:
    whole = mesh("x=2") + COUNTED.format(n=8, trips=trips)
    for local in (trips, trips + 1):
        found = compared(whole, mesh("x=2") + COUNTED.format(n=4, trips=local))
        assert (found.status == 0) is (local == trips)
