"""Programs that multiply matrices: their text, inputs, and results in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from lowering.gpu.device_runs import NUMPY, bits, numbers

from meshweave.dialects import context
from meshweave.ir.bindings import ir
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.stages import lower

SIZES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}


@dataclass(frozen=True)
class Case:
    """C (+)= A B of an m x k and a k x n matrix, for each of a batch; turned_a: A lies as k x m."""

    m: int
    n: int
    k: int
    dtype: str
    result: str = ""
    turned_a: bool = False
    turned_b: bool = False
    turned_c: bool = False
    batch: tuple[int, ...] = ()
    accumulate: bool = False

    @property
    def kind(self) -> str:
        """Element type of the result."""
        return self.result or self.dtype

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """Of A, B and C, by name."""
        batch = tuple(f"b{k}" for k in range(len(self.batch)))
        a, b = (
            ("k", "m") if self.turned_a else ("m", "k"),
            ("n", "k") if self.turned_b else ("k", "n"),
        )
        c = ("n", "m") if self.turned_c else ("m", "n")
        return {"a": batch + a, "b": batch + b, "c": batch + c}

    def shape(self, which: str) -> tuple[int, ...]:
        """Of A, B or C."""
        sizes = {"m": self.m, "n": self.n, "k": self.k}
        sizes |= {f"b{k}": size for k, size in enumerate(self.batch)}
        return tuple(sizes[d] for d in self.dims[which])

    def type(self, which: str) -> str:
        """Of A, B or C, in MLIR."""
        kind = self.kind if which == "c" else self.dtype
        return f"tensor<{'x'.join(map(str, self.shape(which)))}x{kind}>"

    def product(self, start: str) -> str:
        """The op, on %a and %b, that adds to `start`."""
        types = [self.type(w) for w in "abc"]
        return contraction([self.dims[w] for w in "abc"], types, self.dtype, self.kind, start)

    def filled(self) -> str:
        """%f: zeros of C's type."""
        return zeros(self.type("c"), self.kind)

    def text(self) -> str:
        """The program."""
        arguments = [f"%a: {self.type('a')}", f"%b: {self.type('b')}"]
        arguments += [f"%f: {self.type('c')}"] if self.accumulate else []
        return f"""func.func @main({", ".join(arguments)}) -> {self.type("c")} {{
          {"" if self.accumulate else self.filled()}
          %0 = {self.product("%f")}
          return %0 : {self.type("c")}
        }}"""

    def inputs(self, seed: int, whole: bool) -> list[np.ndarray]:
        """A and B (and C). whole: small whole numbers, of which every sum is exact."""
        rng = np.random.default_rng(seed)
        names = "abc" if self.accumulate else "ab"
        values = []
        for which in names:
            shape = self.shape(which)
            made = rng.integers(-4, 5, shape) if whole else rng.standard_normal(shape)
            values.append(stored(made, self.kind if which == "c" else self.dtype))
        return values

    def expected(self, inputs: list[np.ndarray]) -> np.ndarray:
        """The result in double precision."""
        kinds = [self.dtype, self.dtype, self.kind]
        a, b, *rest = (doubles(v, kind) for v, kind in zip(inputs, kinds))
        letters = {d: chr(97 + k) for k, d in enumerate(sorted({*sum(self.dims.values(), ())}))}
        spec = ["".join(letters[d] for d in self.dims[w]) for w in "abc"]
        made = np.einsum(f"{spec[0]},{spec[1]}->{spec[2]}", a, b, optimize=True)
        return made + rest[0] if rest else made


def contraction(
    dims: Sequence[Sequence[str]], types: Sequence[str], dtype: str, kind: str, start: str
) -> str:
    """An op on %a and %b that adds to `start`. dims: letters of A, B and C, loops in their order of
    appearance; types: in MLIR; dtype: of the elements of A and B, kind: of those of C.
    """
    first = [*dims[2], *dims[0], *dims[1]]
    loops = list(dict.fromkeys(first))
    maps = [f"affine_map<({', '.join(loops)}) -> ({', '.join(d)})>" for d in dims]
    kinds = ", ".join(f'"{"parallel" if d in dims[2] else "reduction"}"' for d in loops)
    wide = kind != dtype
    widen = "".join(f"%{v}w = arith.extf %{v} : {dtype} to {kind}\n" for v in "xy" if wide)
    factors = "%xw, %yw" if wide else "%x, %y"
    return f"""linalg.generic {{indexing_maps = [{", ".join(maps)}], iterator_types = [{kinds}]}}
      ins(%a, %b : {types[0]}, {types[1]}) outs({start} : {types[2]}) {{
      ^bb0(%x: {dtype}, %y: {dtype}, %z: {kind}):
        {widen}%p = arith.mulf {factors} : {kind}
        %s = arith.addf %z, %p : {kind}
        linalg.yield %s : {kind}
      }} -> {types[2]}"""


def zeros(type_: str, kind: str) -> str:
    """%f: zeros of a type; %e: room for it, %zero: its element."""
    return f"""%zero = arith.constant 0.0 : {kind}
      %e = tensor.empty() : {type_}
      %f = linalg.fill ins(%zero : {kind}) outs(%e : {type_}) -> {type_}"""


def einsum(spec: str, sizes: dict[str, int], dtype: str, kind: str, more: str = "") -> str:
    """A program whose result is `np.einsum(spec, a, b)`. more: statements on %0, the last of which
    returns something else instead.
    """
    operands, result = spec.split("->")
    dims = [*operands.split(","), result]
    types = [
        f"tensor<{'x'.join(str(sizes[d]) for d in dim)}x{element}>"
        for dim, element in zip(dims, (dtype, dtype, kind))
    ]
    ends = more or f"return %0 : {types[2]}"
    gives = ends.rsplit(" : ", 1)[1]
    return f"""func.func @main(%a: {types[0]}, %b: {types[1]}) -> {gives} {{
      {zeros(types[2], kind)}
      %0 = {contraction(dims, types, dtype, kind, "%f")}
      {ends}
    }}"""


def units_of(text: str) -> tuple[list[KernelUnit], Any]:
    """The units of a program of one rank, and its schedule."""
    mesh = '"dist.mesh"() {sym_name = "mesh", axes = "x=1"} : () -> ()\n'
    with context(), ir.Location.unknown():
        schedule = lower(ir.Module.parse(mesh + text)).plan
        return [entry for entry in schedule.entries if isinstance(entry, KernelUnit)], schedule


def stored(values: np.ndarray, kind: str) -> np.ndarray:
    """Numbers as elements of that type."""
    return bits(values) if kind == "bf16" else np.asarray(values, NUMPY[kind])


def doubles(values: np.ndarray, kind: str) -> np.ndarray:
    """Elements of that type as doubles."""
    return (numbers(values) if kind == "bf16" else values).astype(np.float64)
