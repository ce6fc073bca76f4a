"""What may be computed on padding: divisors that cannot be 0, whatever the operands hold."""

import pytest
from executed import partitioned

PROGRAM = """
  func.func @main(%a: tensor<7xi32> {{[x]}}, %b: tensor<7xi32> {{[x]}}, %n: i32)
      -> tensor<7xi32> {{
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %minus = arith.constant -1 : i32
    %three = arith.constant 3 : i32
    %least = arith.constant -2147483648 : i32
    %e = tensor.empty() : tensor<7xi32>
    %r = linalg.map ins(%a, %b : tensor<7xi32>, tensor<7xi32>) outs(%e : tensor<7xi32>)
      (%x: i32, %y: i32, %o: i32) {{
        %none = arith.cmpi eq, %y, %zero : i32
        %some = arith.cmpi ne, %y, %zero : i32
        %back = arith.cmpi eq, %y, %minus : i32
        %far = arith.cmpi eq, %x, %least : i32
        %large = arith.andi %far, %back : i1
        {0}
        %q = arith.{1} %x, %d : i32
        linalg.yield %q : i32
      }}
    return %r : tensor<7xi32> }}"""

BY_Y = "%bad = arith.ori %none, {} : i1\n %d = arith.select %bad, %one, %y : i32"

SAFE = (
    ("%d = arith.addi %three, %zero : i32", "divsi", False),
    ("%d = arith.select %none, %one, %three : i32", "remsi", True),
    ("%d = arith.select %none, %one, %y : i32", "remui", True),
    ("%d = arith.select %none, %one, %y : i32", "remsi", False),  # by -1 it may trap
    ("%d = arith.select %none, %minus, %y : i32", "divui", True),
    ("%d = arith.select %some, %one, %y : i32", "divui", False),
    ("%d = arith.select %none, %zero, %y : i32", "divui", False),
    ("%d = arith.select %none, %one, %x : i32", "divui", False),
    (BY_Y.format("%back"), "divsi", True),
    (BY_Y.format("%large"), "divsi", True),
    (BY_Y.format("%far"), "divsi", False),
    (
        "%bad = arith.andi %none, %back : i1\n %d = arith.select %bad, %one, %y : i32",
        "divui",
        False,
    ),
)


@pytest.mark.parametrize(("divisor", "division", "safe"), SAFE)
def test_divisions_of_padding(divisor, division, safe):
    """What is not safe runs on whole tensors, for which 7 numbers in blocks of 4 are gathered."""
    text = partitioned("x=2", PROGRAM.format(divisor, division))
    assert ("dist.all_gather" in text) == (not safe)


def test_divisors_of_equal_bodies_are_told_apart():
    """The bodies differ by constants alone, in front of them or in them, and the first may be computed on padding."""
    body = """
    %r{0} = linalg.map ins(%a : tensor<7xi32>) outs(%e : tensor<7xi32>) (%x: i32, %o: i32) {{
        %q = arith.divsi %x, {1} : i32
        linalg.yield %q : i32
      }}"""
    text = """
  func.func @main(%a: tensor<7xi32> {{[x]}}, %n: i32) -> (tensor<7xi32>, tensor<7xi32> {{[x]}}) {{
    %three = arith.constant 3 : i32
    %e = tensor.empty() : tensor<7xi32>
    {}{}
    return %r0, %r1 : tensor<7xi32>, tensor<7xi32> }}"""
    one = text.format(body.format(0, "%three"), body.format(1, "%three"))
    two = text.format(body.format(0, "%three"), body.format(1, "%n"))
    assert "tensor<4xi32>" in partitioned("x=2", one)
    assert partitioned("x=2", two).count("dist.all_slice") > partitioned("x=2", one).count(
        "dist.all_slice"
    )
