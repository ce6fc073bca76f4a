"""outline-repeats: ops that come again and again in a row, as the layers of a model do, become calls of one function.

before:  ops of layer 1, ops of layer 2, .., ops of layer n in @main
after:   %1 = call @repeat_0(%x, weights of layer 1), %2 = call @repeat_0(%1, weights of layer 2), ..

Every pass and the lowering then look at one layer, however deep the model is. The same ops in the same order, with the
same attributes and reading each other in the same way, are one function; what they read from elsewhere becomes its
arguments, constants move into it. Tensors that come in with different layouts of the user keep their ops apart.

Repeats that only map elements and do not read each other, as an optimiser's updates of each layer's parameters, stay as
they are: each becomes a loop anyway, in the buffer of what it updates and right behind what it reads.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import ClassVar

import numpy as np

from meshweave.dialects.again import op_attributes, op_key
from meshweave.ir.bindings import ir
from meshweave.ir.build import IteratorType, OpBuilder, iterator_types
from meshweave.transforms.base import Pass, clone_with, functions
from meshweave.transforms.propagation.bodies import is_tensor
from meshweave.transforms.propagation.values import is_free

CANDIDATES = 32  # distances between equal ops that are tried as the length of a layer
_MOVES = (
    "linalg.map", "linalg.broadcast", "linalg.transpose", "linalg.fill", "linalg.copy", "tensor.empty",
    "tensor.splat", "tensor.cast", "tensor.collapse_shape", "tensor.expand_shape",
)  # fmt: skip
MOST_RUNS = 8  # rows of repeats that are looked for in one function


@dataclass(frozen=True)
class OutlineRepeats(Pass):
    """Make a function of ops that repeat: at least `least-length` ops, `least-times` times, `least-ops` ops fewer."""

    name: ClassVar[str] = "outline-repeats"
    least_ops: int = 200
    least_times: int = 3
    least_length: int = 8

    def run(self, module: ir.Module) -> None:
        for f in functions(module):
            if len(f.operation.regions[0].blocks) == 1:
                codes = _Codes()
                for _ in range(MOST_RUNS):
                    if not self._outline(module, f, codes):
                        break

    def _outline(self, module: ir.Module, f: ir.Operation, codes: "_Codes") -> bool:
        """Outline the row of repeats that saves most. Return whether there was one."""
        body = _BlockKeys(f, codes)
        while (run := self._longest_run(body.codes)) is not None:
            segments = body.segments(run)
            if (len(segments) - 1) * run.period < self.least_ops:
                return False
            if len(segments) < self.least_times:
                return False
            if not body.are_updates(segments):
                return body.outline(module, segments)
            body.leave(run)
        return False

    def _longest_run(self, codes: Sequence[int]) -> "_Run | None":
        """Return the run whose repeats are the most ops; of equal ones the shortest period."""
        row = np.asarray(codes, np.int64)
        best, saved = None, self.least_ops - 1
        for period in _periods(codes, self.least_length):
            breaks = np.flatnonzero(row[:-period] != row[period:])
            edges = np.concatenate([[-1], breaks, [len(row) - period]])
            longest = int(np.argmax(np.diff(edges)))
            start, end = int(edges[longest]) + 1, int(edges[longest + 1]) + period
            times = (end - start) // period
            if times >= self.least_times and (times - 1) * period > saved:
                best, saved = _Run(start, end, period), (times - 1) * period
        return best


@dataclass(frozen=True)
class _Run:
    """Describe ops start..end of a block, of which each equals the one `period` before it."""

    start: int
    end: int
    period: int


def _periods(codes: Sequence[int], least: int) -> list[int]:
    """Return the lengths that a layer may have, from the distances between equal ops.

    Short ones are doubled, tripled, ...
    """
    last: dict[int, int] = {}
    gaps: Counter[int] = Counter()
    for i, code in enumerate(codes):
        if code in last:
            gaps[i - last[code]] += 1
        last[code] = i
    found = {-(-least // gap) * gap for gap, _ in gaps.most_common(CANDIDATES)}
    return sorted(period for period in found if period < len(codes))


@dataclass
class _Segment:
    """Describe ops start..start + period.

    `outer`: what they read from elsewhere, in order; `form`: how they read it and each other.
    """

    start: int
    outer: list[ir.Value] = field(default_factory=list)
    form: Hashable = None


_OUTSIDE = (-1, 0)


@dataclass(frozen=True)
class _Codes:
    """Number ops by what they are; keep the numbers of those that are in place and read their operands alone."""

    numbers: dict[Hashable, int] = field(default_factory=dict)
    known: dict[ir.Operation, int] = field(default_factory=dict)

    def of(self, op: ir.Operation) -> tuple[int, list[ir.Value]]:
        """Return the number of an op, and the values that it reads."""
        read = list(op.operands)
        code = self.known.get(op)
        if code is None:
            inside = list[ir.Value]()
            code = self.numbers.setdefault(op_key(op, read, inside), len(self.numbers))
            if not inside:
                self.known[op] = code
            read += inside
        return code, read


class _BlockKeys:
    """Number the ops of a function's block by what they are and the values that they read."""

    def __init__(self, function: ir.Operation, codes: _Codes) -> None:
        block = function.operation.regions[0].blocks[0]
        *ops, end = (view.operation for view in block.operations)
        self.ops: list[ir.Operation] = ops
        self.reads = []
        self.codes: list[int] = []
        self.made = {r: (i, k) for i, op in enumerate(ops) for k, r in enumerate(op.results)}
        self.placed = _placed_arguments(function)
        self.known = codes.known
        for op in ops:
            code, read = codes.of(op)
            self.codes.append(code)
            self.reads.append(read)
        self.reads.append(list(end.operands))

    @cached_property
    def sources(self) -> list[list[tuple[int, int]]]:
        """Return of each value that each op reads the op that makes it, and which of its results it is."""
        return [[self.made.get(value, _OUTSIDE) for value in read] for read in self.reads]

    def segments(self, run: _Run) -> list[_Segment]:
        """Cut the run where the fewest values cross, tensors all, into segments that are the same function."""
        first = self._cut(run)
        starts = range(first, run.end - run.period + 1, run.period)
        every = [self._segment(start, run.period) for start in starts]
        rows = [list(row) for _, row in groupby(every, key=lambda segment: segment.form)]
        return max(rows, key=len, default=[])

    def _cut(self, run: _Run) -> int:
        """Return where the first segment begins."""
        last_read = [-1] * len(self.ops)
        for i, sources in enumerate(self.sources):
            for index, _ in sources:
                if index >= 0:
                    last_read[index] = i
        # Values made in the run, alive before op i; one that is no tensor is in the way of a function.
        crossing = np.zeros(len(self.ops) + 2, np.int64)
        weights: dict[int, int] = {}  # by what the op is
        for i in range(run.start, run.end):
            weight = weights.get(self.codes[i], 0)
            if not weight:
                weight = 1 if all(is_tensor(r.type) for r in self.ops[i].results) else len(self.ops)
                weights[self.codes[i]] = weight
            crossing[i + 1] += weight
            crossing[max(last_read[i], i) + 1] -= weight
        crossing = np.cumsum(crossing)
        times = (run.end - run.start) // run.period
        middle = run.start + times // 2 * run.period

        def price(offset: int) -> tuple[int, int, int]:
            whole = (run.end - run.start - offset) // run.period
            return int(crossing[min(middle + offset, run.end - 1)]), -whole, offset

        return run.start + min(range(run.period), key=price)

    def _segment(self, start: int, period: int) -> _Segment:
        outer: dict[ir.Value, int] = {}
        form: list[Hashable] = []
        for i in range(start, start + period):
            for value, (index, number) in zip(self.reads[i], self.sources[i], strict=True):
                if start <= index < start + period:
                    form.append((index - start, number))
                else:
                    form.append(outer.setdefault(value, len(outer)))
        layouts = tuple(self._placed(value) for value in outer)
        return _Segment(start, list(outer), (tuple(form), layouts))

    def _placed(self, value: ir.Value) -> Hashable:
        """Return what the user says of the layout of a value; () where nothing."""
        if value in self.made:
            op = self.ops[self.made[value][0]]
            return ("constrained", op_attributes(op)) if op.name == "dist.constrain" else ()
        return ("argument", self.placed[value]) if value in self.placed else ()

    def are_updates(self, segments: list[_Segment]) -> bool:
        """Tell whether the segments only map elements, and nothing goes through one into the next and on."""
        if len(segments) < 3:
            return False
        first, second, third = (segment.start for segment in segments[:3])
        if not all(_maps(op) for op in self.ops[first:second]):
            return False
        through: set[int] = set()  # ops of the second segment that need one of the first
        for index in range(second, third):
            if any(first <= i < second or i in through for i, _ in self.sources[index]):
                through.add(index)
        last = range(third, third + second - first)
        return not any(i in through for index in last for i, _ in self.sources[index])

    def leave(self, run: _Run) -> None:
        """Let no op of a run be equal to any other, so that it is not found again."""
        for number, index in enumerate(range(run.start, run.end), 1):
            self.codes[index] = -number - run.start

    def outline(self, module: ir.Module, segments: list[_Segment]) -> bool:
        """Put calls of a new function in the place of the segments.

        Returns False where something that is no tensor goes in or out.
        """
        first = segments[0]
        period = segments[1].start - first.start
        inside = [self._moves_in(k, segments) for k in range(len(first.outer))]
        given = [k for k, moves in enumerate(inside) if not moves]
        leaving = self._leaving(segments, period)
        results = [self.ops[first.start + i].results[k] for i, k in leaving]
        if not all(is_tensor(v.type) for v in (*(first.outer[k] for k in given), *results)):
            return False
        ops = self.ops[first.start : first.start + period]
        constants = [first.outer[k] for k, moves in enumerate(inside) if moves]
        name = _build(module, ops, [first.outer[k] for k in given], constants, results)
        new: dict[ir.Value, ir.Value] = {}  # what calls give instead of the ops' results
        for segment in segments:
            old = self.ops[segment.start : segment.start + period]
            call = OpBuilder.before(old[0]).op(
                "func.call",
                [r.type for r in results],
                [new.get(segment.outer[k], segment.outer[k]) for k in given],
                callee=ir.FlatSymbolRefAttr.get(name),
            )
            for (i, k), result in zip(leaving, call.results):
                new[old[i].results[k]] = result
                old[i].results[k].replace_all_uses_with(result)
        for segment in reversed(segments):
            for op in reversed(self.ops[segment.start : segment.start + period]):
                self.known.pop(op, None)
                op.erase()
        return True

    def _moves_in(self, k: int, segments: list[_Segment]) -> bool:
        """Tell whether what all segments read as their k-th value from outside is one constant: it then moves in."""
        value = segments[0].outer[k]
        return all(s.outer[k] == value for s in segments) and _is_constant(value)

    def _leaving(self, segments: list[_Segment], period: int) -> list[tuple[int, int]]:
        """Return results of a segment that are read outside of it, as (op, result)."""
        start, end = segments[0].start, segments[-1].start + period
        found = set()
        for reader, sources in enumerate(self.sources):
            for index, number in sources:
                if start <= index < end:
                    where = (index - start) // period
                    if not start + where * period <= reader < start + (where + 1) * period:
                        found.add(((index - start) % period, number))
        return sorted(found)


def _maps(op: ir.Operation) -> bool:
    """Tell whether an op computes each element of its result from elements of its operands, or moves elements."""
    if op.name == "linalg.generic":
        return IteratorType.REDUCTION not in iterator_types(op)
    return op.name.startswith(("arith.", "math.")) or op.name in _MOVES


def _build(
    module: ir.Module,
    ops: Sequence[ir.Operation],
    arguments: Sequence[ir.Value],
    constants: Sequence[ir.Value],
    results: Sequence[ir.Value],
) -> str:
    """Build a private function of copies of `ops` at the module's end; return its name."""
    taken = {
        op.operation.attributes["sym_name"].value
        for op in module.body.operations
        if "sym_name" in op.operation.attributes
    }
    name = next(n for n in (f"repeat_{k}" for k in range(len(taken) + 1)) if n not in taken)
    type_ = ir.FunctionType.get([v.type for v in arguments], [v.type for v in results])
    f = OpBuilder(ir.InsertionPoint(module.body), ops[0].location).op(
        "func.func",
        regions=1,
        sym_name=ir.StringAttr.get(name),
        function_type=ir.TypeAttr.get(type_),
        sym_visibility=ir.StringAttr.get("private"),
    )
    block = f.regions[0].blocks.append(*type_.inputs, arg_locs=[ops[0].location] * len(arguments))
    values = dict(zip(arguments, block.arguments))
    ip = ir.InsertionPoint(block)
    for constant in constants:
        _copy_constant(constant, values, ip)
    for op in ops:
        clone_with(op, values, ip)
    OpBuilder(ip, ops[-1].location).op("func.return", [], [values[v] for v in results])
    return name


def _is_constant(value: ir.Value) -> bool:
    """Tell whether a value is the same whenever it is made: a constant, or what only constants make."""
    if isinstance(value.owner, ir.Block):
        return False
    op = value.owner.operation
    return op.name == "arith.constant" or (
        is_free(op) and all(_is_constant(operand) for operand in op.operands)
    )


def _copy_constant(
    value: ir.Value, values: dict[ir.Value, ir.Value], ip: ir.InsertionPoint
) -> None:
    if value not in values:
        op = value.owner.operation
        for operand in op.operands:
            _copy_constant(operand, values, ip)
        clone_with(op, values, ip)


def _placed_arguments(function: ir.Operation) -> dict[ir.Value, Hashable]:
    """Return the attributes of the function's arguments."""
    arguments = function.operation.regions[0].blocks[0].arguments
    attributes = function.operation.attributes
    if "arg_attrs" not in attributes:
        return {}
    return dict(zip(arguments, attributes["arg_attrs"]))
