"""Programs that do a part at a time: panels, shares of cores, windows with halos, slices behind a mask, donated state.

`on_tensors` has whole programs beside those of a rank, `on_buffers` programs of a rank on tensors and on buffers.
"""

import numpy as np
from verify import test_masks
from verify.pairs import compared, mesh, texts
from verify.test_buffers import lowered, planned

import meshweave as mw
from meshweave.dialects import context
from meshweave.ir.bindings import ir
from meshweave.ir.locations import parse_module
from tests.executed import on

ROWS, DEPTH, COLUMNS, WIDTH = 6, 5, 10, 4
"""Sizes of the product by panels, and the columns of a panel: the last one is half full."""
PRODUCT = f"""
func.func @main(%a: tensor<{ROWS}x{DEPTH}xf32> {{dist.layout = #dist.layout<"[x, _]">}},
                %b: tensor<{DEPTH}x{COLUMNS}xf32> {{dist.layout = #dist.layout<"[_, _]">}})
    -> (tensor<{ROWS}x{COLUMNS}xf32> {{dist.layout = #dist.layout<"[x, _]">}}) {{
  %z = arith.constant dense<0.0> : tensor<{ROWS}x{COLUMNS}xf32>
  %r = linalg.matmul ins(%a, %b : tensor<{ROWS}x{DEPTH}xf32>, tensor<{DEPTH}x{COLUMNS}xf32>)
    outs(%z : tensor<{ROWS}x{COLUMNS}xf32>) -> tensor<{ROWS}x{COLUMNS}xf32>
  return %r : tensor<{ROWS}x{COLUMNS}xf32>
}}"""
PANELS = """
func.func @main(%a: tensor<3x5xf32> {dist.global = tensor<6x5xf32>, dist.layout = #dist.layout<"[x, _]">},
                %b: tensor<5x10xf32> {dist.global = tensor<5x10xf32>, dist.layout = #dist.layout<"[_, _]">})
    -> (tensor<3x10xf32> {dist.global = tensor<6x10xf32>, dist.layout = #dist.layout<"[x, _]">}) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %full = arith.constant 2 : index
  %width = arith.constant 4 : index
  %none = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<3x4x5xf32>
  %flat = tensor.empty() : tensor<4x5xf32>
  %some = scf.for %p = %c0 to %full step %c1 iter_args(%to = %empty) -> (tensor<3x4x5xf32>) {
    %at = arith.muli %p, %width : index
    %part = tensor.extract_slice %b[0, %at] [5, 4] [1, 1] : tensor<5x10xf32> to tensor<5x4xf32>
    %panel = linalg.transpose ins(%part : tensor<5x4xf32>) outs(%flat : tensor<4x5xf32>) permutation = [1, 0]
    %packed = tensor.insert_slice %panel into %to[%p, 0, 0] [1, 4, 5] [1, 1, 1]
      : tensor<4x5xf32> into tensor<3x4x5xf32>
    scf.yield %packed : tensor<3x4x5xf32>
  }
  %rest = tensor.extract_slice %b[0, 8] [5, 2] [1, 1] : tensor<5x10xf32> to tensor<5x2xf32>
  %half = tensor.empty() : tensor<2x5xf32>
  %last = linalg.transpose ins(%rest : tensor<5x2xf32>) outs(%half : tensor<2x5xf32>) permutation = [1, 0]
  %wide = tensor.pad %last low[0, 0] high[2, 0] {
  ^bb0(%i: index, %j: index):
    tensor.yield %none : f32
  } : tensor<2x5xf32> to tensor<4x5xf32>
  %all = tensor.insert_slice %wide into %some[2, 0, 0] [1, 4, 5] [1, 1, 1] : tensor<4x5xf32> into tensor<3x4x5xf32>
  %e = tensor.empty() : tensor<3x12xf32>
  %count = arith.constant 3 : index
  %made = scf.for %p = %c0 to %count step %c1 iter_args(%to = %e) -> (tensor<3x12xf32>) {
    %panel = tensor.extract_slice %all[%p, 0, 0] [1, 4, 5] [1, 1, 1] : tensor<3x4x5xf32> to tensor<4x5xf32>
    %z = arith.constant dense<0.0> : tensor<3x4xf32>
    %block = linalg.generic {
      indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d1, d2)>,
        affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %panel : tensor<3x5xf32>, tensor<4x5xf32>) outs(%z : tensor<3x4xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %m = arith.mulf %x, %y : f32
      %s = arith.addf %o, %m : f32
      linalg.yield %s : f32
    } -> tensor<3x4xf32>
    %at = arith.muli %p, %width : index
    %done = tensor.insert_slice %block into %to[0, %at] [3, 4] [1, 1] : tensor<3x4xf32> into tensor<3x12xf32>
    scf.yield %done : tensor<3x12xf32>
  }
  %r = tensor.extract_slice %made[0, 0] [3, 10] [1, 1] : tensor<3x12xf32> to tensor<3x10xf32>
  return %r : tensor<3x10xf32>
}"""
"""The second operand is packed in panels, turned over, the last one filled up with zeros."""
SHARED = """
func.func @main(%a: tensor<8x3xf32>) -> (tensor<8x3xf32>, tensor<3xf32>) {
  %zero = arith.constant dense<0.0> : tensor<3xf32>
  %y = math.exp %a : tensor<8x3xf32>
  %s = linalg.reduce { arith.addf } ins(%y : tensor<8x3xf32>) outs(%zero : tensor<3xf32>) dimensions = [0]
  return %y, %s : tensor<8x3xf32>, tensor<3xf32>
}"""
SHARES = """
func.func @main(%a: tensor<8x3xf32>) -> (tensor<8x3xf32>, tensor<3xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %cores = arith.constant 3 : index
  %rows = arith.constant 8 : index
  %share = arith.constant 3 : index
  %zero = arith.constant dense<0.0> : tensor<3xf32>
  %own = arith.constant dense<0.0> : tensor<3x3xf32>
  %e = tensor.empty() : tensor<8x3xf32>
  %y, %sums = scf.for %core = %c0 to %cores step %c1 iter_args(%into = %e, %parts = %own)
      -> (tensor<8x3xf32>, tensor<3x3xf32>) {
    %first = arith.muli %core, %share : index
    %next = arith.addi %first, %share : index
    %last = arith.minui %next, %rows : index
    %made, %part = scf.for %i = %first to %last step %c1 iter_args(%to = %into, %acc = %zero)
        -> (tensor<8x3xf32>, tensor<3xf32>) {
      %row = tensor.extract_slice %a[%i, 0] [1, 3] [1, 1] : tensor<8x3xf32> to tensor<3xf32>
      %new = math.exp %row : tensor<3xf32>
      %put = tensor.insert_slice %new into %to[%i, 0] [1, 3] [1, 1] : tensor<3xf32> into tensor<8x3xf32>
      %more = arith.addf %acc, %new : tensor<3xf32>
      scf.yield %put, %more : tensor<8x3xf32>, tensor<3xf32>
    }
    %kept = tensor.insert_slice %part into %parts[%core, 0] [1, 3] [1, 1] : tensor<3xf32> into tensor<3x3xf32>
    scf.yield %made, %kept : tensor<8x3xf32>, tensor<3x3xf32>
  }
  %s = linalg.reduce { arith.addf } ins(%sums : tensor<3x3xf32>) outs(%zero : tensor<3xf32>) dimensions = [0]
  return %y, %s : tensor<8x3xf32>, tensor<3xf32>
}"""
"""Each of three cores does three rows, the last one two, and has an accumulator of its own."""
ITERATIONS = """
func.func @main(%a: tensor<8x6xf32>, %b: tensor<6x6xf32>) -> (tensor<8x6xf32>, tensor<6xf32>) {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c8 = arith.constant 8 : index
  %e = tensor.empty() : tensor<8x6xf32>
  %zero = arith.constant dense<0.0> : tensor<6xf32>
  %z = arith.constant dense<0.0> : tensor<2x6xf32>
  %r = scf.for %i = %c0 to %c8 step %c2 iter_args(%to = %e) -> (tensor<8x6xf32>) {
    %x = tensor.extract_slice %a[%i, 0] [2, 6] [1, 1] : tensor<8x6xf32> to tensor<2x6xf32>
    %y = linalg.matmul ins(%x, %b : tensor<2x6xf32>, tensor<6x6xf32>) outs(%z : tensor<2x6xf32>) -> tensor<2x6xf32>
    %w = linalg.matmul ins(%y, %b : tensor<2x6xf32>, tensor<6x6xf32>) outs(%z : tensor<2x6xf32>) -> tensor<2x6xf32>
    %o = tensor.insert_slice %w into %to[%i, 0] [2, 6] [1, 1] : tensor<2x6xf32> into tensor<8x6xf32>
    scf.yield %o : tensor<8x6xf32>
  }
  %s = linalg.reduce { arith.addf } ins(%r : tensor<8x6xf32>) outs(%zero : tensor<6xf32>) dimensions = [0]
  return %r, %s : tensor<8x6xf32>, tensor<6xf32>
}"""
"""A loop whose iterations cores may share: each has buffers of its own, and writes rows of its own."""
CONVOLUTION = """
func.func public @main(%a: tensor<1x11x7x2xf32> {[_, x, _, _]}, %k: tensor<3x3x2x4xf32>)
    -> (tensor<1xROWSx5x4xf32> {[_, x, _, _]}) {
  %z = arith.constant dense<0.0> : tensor<1xROWSx5x4xf32>
  %r = linalg.conv_2d_nhwc_hwcf {dilations = dense<1> : tensor<2xi64>, strides = dense<[STEP, 1]> : tensor<2xi64>}
    ins(%a, %k : tensor<1x11x7x2xf32>, tensor<3x3x2x4xf32>) outs(%z : tensor<1xROWSx5x4xf32>) -> tensor<1xROWSx5x4xf32>
  return %r : tensor<1xROWSx5x4xf32>
}"""
"""A convolution of an image that is cut by rows: ranks bring halos, and do it by panels."""


def convolution(step: int, ranks: int) -> str:
    rows = (11 - 3) // step + 1
    text = CONVOLUTION.replace("ROWS", str(rows)).replace("STEP", str(step))
    return on(f"x={ranks}", text)


def flash(**options: object) -> str:
    arrays = [np.ones((2, 129, 4), "f4")] * 3
    return mw.jit(test_masks.causal, **options).lower(*arrays).as_text()


def updated(mesh: str = "", layout: "str | None" = None, whole: bool = False) -> str:
    """A step that updates its state, which is donated, and reads it again where `whole`."""

    def step(state, x):
        new = state * 0.5 + mw.roll(x, 1, axis=0)
        total = mw.sum(state if whole else new, axis=0)
        return new * total if whole else new, total

    options = {"mesh": mesh, "in_layouts": (layout, layout)} if mesh else {}
    array = np.ones((7, 6), "f4")
    return mw.jit(step, donate=0, **options).lower(array, array).as_text()


def on_tensors() -> dict[str, tuple[str, str]]:
    """Whole programs beside those of a rank, by name, as they are printed; all are proven."""
    found = {
        "panels": (mesh("x=2") + PRODUCT, mesh("x=2") + PANELS),
        "shares of cores": (SHARED, SHARES),
        "mask, causal": (test_masks.whole(test_masks.KEPT), test_masks.local(test_masks.KEPT)),
        "mask, window": (test_masks.whole(test_masks.WINDOW), test_masks.local(test_masks.WINDOW)),
        "flash": texts(flash()),
        "flash of heads": texts(flash(mesh="x=2", in_layouts="[x, _, _]", out_layouts="[x, _, _]")),
        "convolution": texts(convolution(1, 2)),
        "convolution in steps": texts(convolution(2, 3)),
        "stencil": texts(stencil("x=3", "[x, _]")),
        "stencil of a grid": texts(stencil("x=2, y=2", "[x, y]")),
    }
    assert all(compared(*pair).status == 0 for pair in found.values())
    return {name: (whole, printed(local)) for name, (whole, local) in found.items()}


def printed(text: str) -> str:
    with context() as ctx, ir.Location.unknown():
        return str(parse_module(text, ctx, "local"))


def stencil(mesh: str, layout: str) -> str:
    def f(a):
        return a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] * 2.0 - a[1:-1, 2:]

    options = {"mesh": mesh, "in_layouts": (layout,), "out_layouts": layout}
    return mw.jit(f, **options).lower(np.ones((10, 9), "f4")).as_text()


def donating() -> dict[str, tuple[str, str]]:
    """Programs of a rank that update a donated state, on tensors and on buffers."""
    return {
        "donated": lowered(updated()),
        "donated rows": lowered(updated("x=2", "[x, _]")),
        "donated, read again": lowered(updated(whole=True)),
    }


def on_buffers() -> dict[str, tuple[str, str]]:
    """Programs of a rank on tensors and on buffers, by name."""
    return donating() | {
        "panels": planned(mesh("x=2") + PANELS),
        "shared iterations": planned(ITERATIONS),
        "shares of cores": planned(SHARES),
        "convolution": lowered(convolution(1, 2)),
        "flash": lowered(flash()),
        "stencil": lowered(stencil("x=3", "[x, _]")),
    }
