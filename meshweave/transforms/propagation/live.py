"""Read which values of a program are alive at each of its ops, for the bytes that placement counts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from meshweave.ir.bindings import ir
from meshweave.plan.placement.memory import LiveMoment, LiveProgram
from meshweave.plan.placement.prices import OpWork
from meshweave.transforms.base import functions
from meshweave.transforms.propagation.bodies import is_tensor
from meshweave.transforms.propagation.graph import Built
from meshweave.transforms.propagation.values import is_free, item_bytes
from meshweave.transforms.slicing.works import is_elementwise, read_by

LOOPS = ("scf.for", "scf.while")
NESTING = (*LOOPS, "scf.if", "scf.execute_region", "hint.region")
"""Ops whose blocks hand values on to their results."""


VIEWS = ("tensor.expand_shape", "tensor.collapse_shape", "tensor.reshape", "tensor.cast")
"""Ops that make no new elements."""


@dataclass(frozen=True)
class LiveRow:
    """Hold the block that a program mostly is, by its number too, with its moments; `at` is the one of each op."""

    block: ir.Block
    number: int
    at: Mapping[ir.Operation, int]
    moments: Sequence[LiveMoment]

    @cached_property
    def held(self) -> Mapping[int, Sequence[int]]:
        """Return for each value that is held the moments."""
        found: dict[int, list[int]] = {}
        for number, moment in enumerate(self.moments):
            for value in moment.held:
                found.setdefault(value, []).append(number)
        return found


def live_program(
    module: ir.Module, built: Built, works: Sequence[OpWork]
) -> tuple[LiveProgram, LiveRow]:
    """Return the moments of a module, from @main on, or from its first function, and the block that it mostly is.

    works: what each op of the graph computes; what kernels compute inside has no bytes.
    """
    reader = _LiveReader(module, built, works)
    entry = reader.functions.get("main", functions(module)[0])
    reader.block(entry.operation.regions[0].blocks[0])
    arguments = entry.operation.regions[0].blocks[0].arguments
    numbers = [built.values.get(a, -1) for a in arguments]
    numbers += built.results[entry.operation.attributes["sym_name"].value]
    resides = tuple([n for n in numbers if n >= 0])
    program = LiveProgram(tuple(reader.blocks), reader.shapes, resides)
    block = _main_block(entry.operation.regions[0].blocks[0])
    number = reader.numbers[block]
    return program, LiveRow(block, number, reader.at, reader.blocks[number])


def _main_block(block: ir.Block) -> ir.Block:
    """Return a block, or that of the region in it which holds more ops than are around it."""
    ops = [view.operation for view in block.operations]
    for op in ops:
        if op.name == "hint.region" and len(inner := op.regions[0].blocks[0].operations) > len(ops):
            return _main_block(inner[0].operation.block)
    return block


class _LiveReader:
    """Walk blocks from the entry on, each once."""

    def __init__(self, module: ir.Module, built: Built, works: Sequence[OpWork]) -> None:
        self.built = built
        self.inside = {
            site.op
            for site, work in zip(built.sites, works)
            if site.results and work.kept and not any(work.kept[len(site.operands) :])
        }
        self.functions = {f.operation.attributes["sym_name"].value: f for f in functions(module)}
        self.ops: dict[ir.Operation, list[int]] = {}
        for number, site in enumerate(built.sites):
            self.ops.setdefault(site.op, []).append(number)
        self.blocks: list[tuple[LiveMoment, ...]] = []
        self.numbers: dict[ir.Block, int] = {}
        self.at: dict[ir.Operation, int] = {}
        self.shapes = self._shapes()

    def _shapes(self) -> dict[int, tuple[tuple[int, ...], int]]:
        """Return the shapes of all values, with the bytes of an element."""
        found = {
            number: (tuple(value.type.shape), item_bytes(value.type.element_type))
            for value, number in self.built.values.items()
        }
        for name, numbers in self.built.results.items():
            types = self.functions[name].operation.attributes["function_type"].value.results
            for number, type_ in zip(numbers, types):
                if number >= 0:
                    found[number] = tuple(type_.shape), item_bytes(type_.element_type)
        for number, spec in enumerate(self.built.graph.specs):
            if spec is not None and number not in found:
                found[number] = (1,) * len(spec.dims), 0  # the ends of a redistribute that is there
        return found

    def block(self, block: ir.Block) -> int:
        """Read a block; return its number. What is handed on by its end is held outside."""
        if block in self.numbers:
            return self.numbers[block]
        number = self.numbers[block] = len(self.blocks)
        self.blocks.append(())
        ops = [view.operation for view in block.operations]
        roots = dict.fromkeys(block.arguments, -1)
        handed, last = self._uses(ops, roots)
        alive: dict[int, None] = {}
        found: list[LiveMoment] = []
        for at, op in enumerate(ops):
            made = dict.fromkeys(
                n
                for r in op.results
                if (n := roots.get(r, -1)) >= 0 and r not in handed and op not in self.inside
            )
            ending = [v for v in alive if last[v] <= at]
            taken = ending if op.name in LOOPS else self._overwritten(op, made, ending)
            held = [*(v for v in alive if v not in taken), *(v for v in made if v not in alive)]
            inner = tuple(self._inner(op))
            mine = tuple(self.ops.get(op, ()))
            self.at[op] = len(found)
            if made or mine or inner:
                found.append(LiveMoment(tuple(held), mine, inner, tuple(alive)))
            alive.update(made)
            for v in [v for v in alive if last.get(v, at) <= at]:
                del alive[v]
        self.blocks[number] = tuple(found)
        return number

    def _overwritten(self, op: ir.Operation, made: Iterable[int], ending: list[int]) -> list[int]:
        """Return the value, read for the last time, whose buffer an elementwise op writes its result to."""
        if not is_elementwise(op):
            return []
        shapes = [self.shapes.get(v) for v in made]
        return [v for v in ending if [self.shapes.get(v)] == shapes][:1]

    def _uses(
        self, ops: list[ir.Operation], roots: dict[ir.Value, int]
    ) -> tuple[set[ir.Value], dict[int, int]]:
        """Return the values that the end of a block hands on, and the last op that reads each value.

        roots: filled with the number of the value that each value is, or is a view of; -1: of what comes from outside.
        """
        last: dict[int, int] = {}
        above: dict[ir.Value, ir.Value] = {}
        for op in ops:
            for result in op.results:
                if not is_tensor(result.type) or is_free(op):
                    continue
                if op.name in VIEWS and op.operands[0] in roots:
                    roots[result] = roots[op.operands[0]]
                    above[result] = op.operands[0]
                else:
                    roots[result] = self.built.values.get(result, -1)
        for at, op in reversed(list(enumerate(ops))):
            if op in self.inside:  # its kernel is that of a reader
                at = max([at, *[last.get(roots.get(r, -1), at) for r in op.results]])
            for value in read_by(op):
                number = roots.get(value, -1)
                if number >= 0:
                    last[number] = max(at, last.get(number, at))
        handed = set[ir.Value]()
        for value in ops[-1].operands if ops else ():
            while value in above:
                handed.add(value)
                value = above[value]
            handed.add(value)
        return handed, last

    def _inner(self, op: ir.Operation) -> Iterable[int]:
        if op.name == "func.call":
            callee = self.functions[op.attributes["callee"].value]
            yield self.block(callee.operation.regions[0].blocks[0])
        elif op.name in NESTING:
            for region in op.regions:
                if len(region.blocks):
                    yield self.block(region.blocks[0])
