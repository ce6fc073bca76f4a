"""Random programs of the local view: the same one as MLIR text and as NumPy, all ranks at once, with what is padding.

A value is one array per rank, and one of booleans that says which elements mean anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from programs import DTYPES, tensor_type

from meshweave.layout import Mesh

LIMIT = 4096.0  # numbers stay below, so that sums are exact


@dataclass(frozen=True, eq=False)
class Value:
    """name: in the text. parts, valid: per rank."""

    name: str
    element: str
    parts: tuple[np.ndarray, ...]
    valid: tuple[np.ndarray, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parts[0].shape

    @property
    def type(self) -> str:
        return tensor_type(self.shape, self.element)


@dataclass
class Program:
    """A program under construction; all values are results."""

    mesh: Mesh
    inputs: list[Value] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    hidden: set[str] = field(default_factory=set)

    @property
    def results(self) -> list[Value]:
        made = [v for v in self.values if v.name not in self.hidden and v not in self.inputs]
        return made or self.values[-1:]

    def text(self) -> str:
        arguments = ", ".join(f"{v.name}: {v.type}" for v in self.inputs)
        types = ", ".join(v.type for v in self.results)
        names = ", ".join(v.name for v in self.results)
        body = "\n  ".join(self.lines)
        return (
            f'"dist.mesh"() {{sym_name = "mesh", axes = "{self.mesh}"}} : () -> ()\n'
            f"func.func public @main({arguments}) -> ({types}) {{\n  {body}\n  return {names} : {types}\n}}\n"
        )

    def collective(self, op: str, a: Value, axes: Sequence[str], **more: Any) -> Value | None:
        """Append `dist.<op>` of `a`; None where its numbers would be too large."""
        ranks = range(self.mesh.nranks)
        groups = [self.mesh.group(axes, rank) for rank in ranks]
        with np.errstate(all="ignore"):
            made = [
                SIMULATED[op](
                    [a.parts[m] for m in groups[r]],
                    [a.valid[m] for m in groups[r]],
                    self.mesh.group_index(axes, r),
                    **more,
                )
                for r in ranks
            ]
        attributes = [f"axes = [{', '.join(map(_quoted, axes))}]"]
        attributes += [
            f"{name} = {_quoted(v) if isinstance(v, str) else f'{v} : i64'}"
            for name, v in more.items()
            if name != "cut"
        ]
        text = f'"dist.{op}"({a.name}) {{{", ".join(attributes)}}} : ({a.type}) -> $T'
        return self.append(text, a.element, [p for p, _ in made], [v for _, v in made])

    def add(self, a: Value, b: Value) -> Value | None:
        """Append the sum of two values, elementwise."""
        name = "arith.addf" if "f" in a.element else "arith.addi"
        parts = [x + y for x, y in zip(a.parts, b.parts)]
        valid = [x & y for x, y in zip(a.valid, b.valid)]
        return self.append(f"{name} {a.name}, {b.name} : $T", a.element, parts, valid)

    def append(self, text: str, element: str, parts: Any, valid: Any) -> Value | None:
        parts = tuple(np.asarray(p, DTYPES[element]) for p in parts)
        for part, known in zip(parts, valid):
            if not np.all(np.abs(part[known].astype("f8")) <= LIMIT):
                return None
        new = Value(f"%v{len(self.values)}", element, parts, tuple(valid))
        self.lines.append(f"{new.name} = {text.replace('$T', new.type)}")
        self.values.append(new)
        return new


def _quoted(text: str) -> str:
    return f'"{text}"'


def _piece(x: np.ndarray, dim: int, number: int, size: int) -> np.ndarray:
    """Piece `number` of `size` along `dim`, with zeros beyond the end."""
    wide = [(0, 0)] * x.ndim
    wide[dim] = (0, max(0, (number + 1) * size - x.shape[dim]))
    return np.take(np.pad(x, wide), range(number * size, (number + 1) * size), dim)


def _reduced(parts: Any, valid: Any, kind: str) -> tuple[np.ndarray, np.ndarray]:
    fold = {"sum": np.sum, "avg": np.sum, "prod": np.prod, "max": np.max, "min": np.min}[kind]
    value = fold(np.stack(parts), axis=0)
    if kind == "avg":
        value = value / len(parts)
        value = np.trunc(value) if parts[0].dtype.kind == "i" else value
    return value.astype(parts[0].dtype), np.logical_and.reduce(valid)


def all_reduce(parts: Any, valid: Any, me: int, kind: str) -> Any:
    return _reduced(parts, valid, kind)


def all_slice(parts: Any, valid: Any, me: int, dim: int) -> Any:
    size = -(-parts[me].shape[dim] // len(parts))
    return tuple(_piece(x[me], dim, me, size) for x in (parts, valid))


def all_gather(parts: Any, valid: Any, me: int, dim: int, cut: int) -> Any:
    extent = sum(p.shape[dim] for p in parts) - cut
    return tuple(np.take(np.concatenate(x, dim), range(extent), dim) for x in (parts, valid))


def reduce_scatter(parts: Any, valid: Any, me: int, dim: int, kind: str) -> Any:
    size = -(-parts[me].shape[dim] // len(parts))
    return tuple(_piece(x, dim, me, size) for x in _reduced(parts, valid, kind))


SIMULATED = {f.__name__: f for f in (all_reduce, all_slice, all_gather, reduce_scatter)}


@st.composite
def local_programs(draw: st.DrawFn, mesh: Mesh, axes: Sequence[str], most: int = 7) -> Program:
    """Programs of collectives over some of `axes` (or sub-axes), most in a row, with sums in between."""
    p = Program(mesh)
    element = draw(st.sampled_from(["f32", "f32", "i32", "f64"]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    for i in range(draw(st.integers(1, 4))):
        shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 5, 6, 8, 12]), max_size=2)))
        parts = tuple(
            np.asarray(rng.integers(-2, 3, shape), DTYPES[element]) for _ in range(mesh.nranks)
        )
        valid = tuple(np.ones(shape, bool) for _ in parts)
        p.inputs.append(Value(f"%a{i}", element, parts, valid))
    p.values += p.inputs
    kind = draw(st.sampled_from(["sum", "sum", "max", "min", "prod", "avg"]))
    for _ in range(draw(st.integers(2, most))):
        _step(draw, p, axes, kind)
    return p


def _step(draw: st.DrawFn, p: Program, axes: Sequence[str], kind: str) -> None:
    """One more op, often of the last value, which then is no result."""
    last = p.values[-1] not in p.inputs and draw(st.booleans())
    a = p.values[-1] if last else draw(st.sampled_from(p.values))
    op = draw(st.sampled_from(["add", *SIMULATED, "all_reduce"]))
    group = _group(draw, p.mesh, axes)
    new = None
    if op == "add":
        new = p.add(a, draw(st.sampled_from([v for v in p.values if v.type == a.type])))
    elif op == "all_reduce":
        new = p.collective(op, a, group, kind=kind)
    elif a.shape:
        more: dict[str, Any] = {"dim": draw(st.integers(0, len(a.shape) - 1))}
        if op == "reduce_scatter":
            more["kind"] = kind
        if op == "all_gather":
            more["cut"] = draw(st.sampled_from([0, 0, 0, 1])) if a.shape[more["dim"]] > 1 else 0
        if np.prod(a.shape) * p.mesh.nranks <= 600 or op != "all_gather":
            new = p.collective(op, a, group, **more)
    if new is not None and a not in p.inputs and draw(st.integers(0, 3)):
        p.hidden.add(a.name)


def _group(draw: st.DrawFn, mesh: Mesh, axes: Sequence[str]) -> tuple[str, ...]:
    """Axes that do not overlap, in any order; mostly one."""
    count = draw(st.sampled_from([1, 1, 1, 2]))
    group: list[str] = []
    for name in draw(st.permutations(list(axes)))[:count]:
        whole = {n.partition(":")[0] for n in group}
        if name.partition(":")[0] not in whole or (
            ":" in name and name not in group and not (whole & set(group))
        ):
            group.append(name)
    return tuple(group)
