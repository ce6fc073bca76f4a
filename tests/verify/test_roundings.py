"""A rank's program may keep what the whole program rounds in all its bits, but may not round anything else."""

import pytest
from verify.pairs import compared, mesh

PROGRAM = """
func.func @main(%x: tensor<{n}x6xf32> {{dist.layout = #dist.layout<"[x, _]">}},
                %c: tensor<{n}x6xf32> {{dist.layout = #dist.layout<"[x, _]">}})
    -> (tensor<{n}x6xf32> {{dist.layout = #dist.layout<"[x, _]">}}) {{
  %y = arith.mulf %x, %x : tensor<{n}x6xf32>
  %z = math.tanh %c : tensor<{n}x6xf32>
  %e = linalg.generic {{
      indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}}
      ins(%y : tensor<{n}x6xf32>) outs(%x : tensor<{n}x6xf32>) {{
  ^bb0(%a: f32, %o: f32):
    %s = arith.truncf %a : f32 to {short}
    %l = arith.extf %s : {short} to f32
    linalg.yield %l : f32
  }} -> tensor<{n}x6xf32>
  %zs = arith.truncf %z : tensor<{n}x6xf32> to tensor<{n}x6xbf16>
  %f = arith.extf %zs : tensor<{n}x6xbf16> to tensor<{n}x6xf32>
  %p = arith.addf {added} : tensor<{n}x6xf32>
  %r = arith.mulf {result} : tensor<{n}x6xf32>
  return %r : tensor<{n}x6xf32>
}}
"""
RIGHT = {"added": "%e, %f", "result": "%p, %f", "short": "bf16"}


def is_proven(whole: dict[str, str], local: dict[str, str]) -> bool:
    texts = [
        mesh("x=2") + PROGRAM.format(n=n, **(RIGHT | said)) for n, said in ((8, whole), (4, local))
    ]
    return compared(*texts).status == 0


@pytest.mark.parametrize(
    "kept",
    [{}, {"added": "%y, %f"}, {"added": "%y, %z"}, {"added": "%y, %z", "result": "%p, %z"}],
    ids=str,
)
def test_a_rounding_may_be_left_out(kept: dict[str, str]) -> None:
    assert is_proven({}, kept)


@pytest.mark.parametrize(
    ("whole", "local"),
    [
        ({"added": "%y, %f"}, {}),
        ({"added": "%y, %z", "result": "%p, %z"}, {}),
        ({"result": "%p, %y"}, {"result": "%p, %e"}),
        ({"result": "%p, %y"}, {"added": "%y, %f", "result": "%p, %e"}),
        ({"added": "%y, %f"}, {"short": "f16"}),
        ({}, {"short": "f16", "added": "%e, %z"}),
    ],
    ids=str,
)
def test_nothing_else_may_be_rounded(whole: dict[str, str], local: dict[str, str]) -> None:
    assert not is_proven(whole, local)


def test_what_is_kept_must_be_what_was_rounded() -> None:
    assert not is_proven({}, {"added": "%x, %f"})
    assert not is_proven({}, {"added": "%y, %f", "result": "%p, %y"})
