"""Programs with hints as text, compiled and run on the local engine: global arrays in, global arrays out."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshweave.api.program import Program
from meshweave.bundle import Bundle
from meshweave.dialects import lent_context
from meshweave.ir.bindings import ir
from meshweave.lowering import compile_local
from meshweave.pipeline import run_pipeline
from meshweave.runtime.local.engine import LocalEngine
from meshweave.transforms.slicing.ledger import read_ledger

GLOBAL = "dist-propagate,dist-insert-redistribute,dist-legalize-redistribute,dist-partition"
HINTED = f"hint-apply,{GLOBAL},hint-slice,dist-overlap,hint-verify,canonicalize,cse"
STRIPPED = f"hint-strip,{GLOBAL},canonicalize,cse"
NO_MESH = '"dist.mesh"() {sym_name = "mesh", axes = "one=1"} : () -> ()\n'


SCHEDULES = (
    'order = "dfs"',
    "width = 2 : i64",
    "width = 3 : i64",
    'order = "bfs"',
    'order = "strict"',
)


def built(text: str, pipeline: str = HINTED) -> tuple[Bundle, Any, str]:
    """The bundle of a program, its ledger, and the program behind the passes."""
    with lent_context(unregistered=False) as ctx, ctx, ir.Location.unknown():
        module = ir.Module.parse(text if "dist.mesh" in text else NO_MESH + text)
        run_pipeline(module, pipeline)
        return compile_local(module), read_ledger(module), str(module)


def run(text: str, inputs: Sequence[Any], pipeline: str = HINTED) -> list[np.ndarray]:
    """The results of a program."""
    bundle, _, _ = built(text, pipeline)
    with Program(bundle, LocalEngine(timeout=120)) as program:
        return [np.asarray(r) for r in program(*inputs)]


def tensor(*shape: int, element: str = "f32") -> str:
    return f"tensor<{'x'.join(map(str, (*shape, element)))}>"


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def function(arguments: Sequence[str], results: Sequence[str], body: str, mesh: str = "") -> str:
    """A module with @main; arguments and results may carry attributes."""
    given = ", ".join(f"%a{i}: {text}" for i, text in enumerate(arguments))
    head = f'"dist.mesh"() {{sym_name = "mesh", axes = "{mesh}"}} : () -> ()\n' if mesh else ""
    return f"{head}func.func @main({given}) -> ({', '.join(results)}) {{\n{body}\n}}\n"


def region(name: str, body: str, gives: str, types: str, hints: str) -> str:
    """A region of one or more results of one type."""
    n = len(gives.split(","))
    many = f":{n}" if n > 1 else ""
    out = types if n == 1 else f"({', '.join([types] * n)})"
    listed = ", ".join([types] * n)
    return (
        f'%{name}{many} = "hint.region"() ({{\n{body}\n"hint.yield"({gives}) : ({listed}) -> ()\n'
        f"}}) {{hints = {{{hints}}}}} : () -> {out}\n"
    )


def zeros(name: str, type_: str) -> str:
    return (
        f"%{name}_z = arith.constant 0.0 : f32\n%{name}_e = tensor.empty() : {type_}\n"
        f"%{name} = linalg.fill ins(%{name}_z : f32) outs(%{name}_e : {type_}) -> {type_}\n"
    )


def constrain(name: str, value: str, type_: str, layout: str) -> str:
    return (
        f'%{name} = "dist.constrain"(%{value}) {{layout = #dist.layout<"{layout}">}} '
        f": ({type_}) -> {type_}\n"
    )


def matmul(name: str, a: str, b: str, m: int, k: int, n: int) -> str:
    A, B, C = tensor(m, k), tensor(k, n), tensor(m, n)
    return zeros(f"{name}_i", C) + (
        f"%{name} = linalg.matmul ins(%{a}, %{b} : {A}, {B}) outs(%{name}_i : {C}) -> {C}\n"
    )


def check(
    make: Any,
    inputs: Sequence[np.ndarray],
    wanted: Sequence[np.ndarray],
    schedules: Any = SCHEDULES,
) -> None:
    """make(hints) is a program: run it under all schedules and with hints stripped."""
    promised = bits_are_promised(make(""))
    results = [run(make(schedule), inputs) for schedule in schedules]
    for schedule, result in zip(schedules, results):
        for value, first, right in zip(result, results[0], wanted, strict=True):
            np.testing.assert_allclose(value, right, rtol=2e-5, atol=2e-5, err_msg=schedule)
            if promised:
                np.testing.assert_array_equal(
                    value, first, err_msg=f"{schedule} is not bit-identical"
                )
    stripped = run(make(schedules[0]), inputs, STRIPPED)
    for value, first, right in zip(stripped, results[0], wanted, strict=True):
        np.testing.assert_allclose(value, right, rtol=2e-5, atol=2e-5, err_msg="stripped")
        if promised:
            np.testing.assert_array_equal(value, first, err_msg="stripped is not bit-identical")


def bits_are_promised(text: str) -> bool:
    """Are results the same to the bit under every schedule, and without hints: no sums, nor products?"""
    return not any(
        word in text for word in ("softmax", "matmul", "dot", "matvec", '"reduction"', ".reduce")
    )


def softmax(name: str, value: str, type_: str, dim: int) -> str:
    return (
        f"%{name}_e = tensor.empty() : {type_}\n%{name} = linalg.softmax dimension({dim}) "
        f"ins(%{value} : {type_}) outs(%{name}_e : {type_}) -> {type_}\n"
    )


def np_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


REDUCE = """%{name}_s = arith.constant {init} : f32
%{name}_0 = tensor.empty() : tensor<{m}xf32>
%{name}_1 = linalg.fill ins(%{name}_s : f32) outs(%{name}_0 : tensor<{m}xf32>) -> tensor<{m}xf32>
%{name} = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
  iterator_types = ["parallel", "reduction"]}}
  ins(%{value} : tensor<{m}x{n}xf32>) outs(%{name}_1 : tensor<{m}xf32>) {{
^bb0(%x: f32, %o: f32):
  %y = {op} %x, %o : f32
  linalg.yield %y : f32
}} -> tensor<{m}xf32>
"""


def attention(heads: int, length: int, width: int, hints: str) -> str:
    Q, S = tensor(heads, length, width), tensor(heads, length, length)
    K = tensor(heads, width, length)
    body = zeros("si", S) + zeros("oi", Q)
    body += f"%s = linalg.batch_matmul ins(%a0, %a1 : {Q}, {K}) outs(%si : {S}) -> {S}\n"
    body += softmax("p", "s", S, 2)
    body += f"%o = linalg.batch_matmul ins(%p, %a2 : {S}, {Q}) outs(%oi : {Q}) -> {Q}\n"
    inside = region("r", body, "%o", Q, hints)
    return function([Q, K, Q], [Q], f"{inside}return %r : {Q}")


def laid_out(type_: str, layout: str) -> str:
    return f'{type_} {{dist.layout = #dist.layout<"{layout}">}}'


def moves(text: str) -> list[tuple[str, int]]:
    return [(c.op, c.bytes) for c in built(text)[0].manifest.collectives]


def local_view(text: str) -> str:
    with lent_context(unregistered=False) as ctx, ctx, ir.Location.unknown():
        module = ir.Module.parse(text)
        run_pipeline(module, f"hint-apply,{GLOBAL}")
        return str(module)
