"""Write a program on complex tensors as one on real tensors, two for each.

before:  %c = linalg.generic ins(%a, %b : tensor<4xcomplex<f32>>, ...) {complex.mul}
after:   %re = linalg.generic ins(%a_re, %a_im, %b_re, %b_im : tensor<4xf32>, ...) {arith}, and %im

An argument or result of a function keeps its bytes: it is a tensor of real numbers whose last dim, of 2, is added
(`ports`). Ops that move elements are made twice (`moves`), those that compute with the parts of all operands
(`bodies`), functions by formulas (`functions`). Upstream's `convert-complex-to-standard` then writes complex arithmetic
as real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from meshweave.errors import CompileError
from meshweave.frontends.complex.bodies import PAIR, expand_body, multiply_real, separate
from meshweave.frontends.complex.constants import constant_parts
from meshweave.frontends.complex.functions import expand_functions
from meshweave.frontends.complex.pairs import Pairs, is_complex, part_type, real_types
from meshweave.frontends.complex.ports import join_results, packed_type, split_arguments, unpacked
from meshweave.ir.bindings import PassManager, ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.fft import FFT
from meshweave.ir.locations import location_text
from meshweave.ir.ops import body_of, functions_of, ops_where
from meshweave.ir.pipeline_text import CANONICALIZE, CLEAN_UP
from meshweave.ir.sorting import SORT

_ROUNDS = 2  # what the first one makes of powers chooses between complex numbers
_TO_REAL = f"builtin.module(convert-complex-to-standard,{CANONICALIZE},cse)"
_BODIES = ("linalg.", "mw.scan", "mw.scatter")
_MOVES = ("tensor.", "dist.", "hint.place", "arith.select")
_ENDS = ("scf.yield", "scf.condition", "hint.yield", "linalg.yield", "mw.yield", "tensor.yield")
_REGIONS = ("scf.", "hint.region")
_REFUSED = ("tensor.bitcast", "tensor.generate")


def split_complex(module: ir.Module) -> None:
    """Write the complex numbers of a module as real ones. Raises CompileError for what there is no way to write."""
    expand_functions(module)
    for _ in range(_ROUNDS):
        for function in functions_of(module).values():
            if len(function.regions[0].blocks):
                _FunctionSplitter(function).split()
        _run(module, _TO_REAL)
    for op in ops_where(module.operation, lambda op: PAIR in op.attributes):
        separate(op)
    _run(module, CLEAN_UP)
    for op in ops_where(module.operation, _has_complex):
        raise CompileError(f"{op.name} of complex numbers is not supported", location_text(op))


def _run(module: ir.Module, passes: str) -> None:
    manager = PassManager.parse(passes)
    manager.enable_verifier(False)
    manager.run(module.operation)


def _has_complex(op: ir.Operation) -> bool:
    return any(is_complex(v.type) for v in (*op.operands, *op.results))


def _arguments(op: ir.Operation) -> Iterable[ir.Value]:
    return (a for region in op.regions for block in region for a in block.arguments)


class _FunctionSplitter:
    """Split the ops of one function, in place: old ops go when all have been replaced."""

    def __init__(self, function: ir.Operation) -> None:
        self.function, self.pairs = function, Pairs()
        self.old: list[ir.Operation] = []

    def split(self) -> None:
        """Split its arguments, its ops, and its results."""
        block = body_of(self.function)
        ops = [view.operation for view in block.operations]
        self.old += split_arguments(self.function, self.pairs)
        self.ops(ops)
        join_results(self.function, self.pairs)
        for op in reversed(self.old):
            op.erase()

    def ops(self, ops: Sequence[ir.Operation]) -> None:
        """Split ops of a block, in order."""
        for op in ops:
            if op.name in _ENDS:
                if _has_complex(op):
                    self.end(op)
            elif op.name.startswith(_BODIES):
                if _touches(op):
                    self.replace(op, self.body)
            elif len(op.regions) and op.name.startswith(_REGIONS):
                if _has_complex(op) or any(is_complex(a.type) for a in _arguments(op)):
                    self.replace(op, self.region)
                else:
                    self.inside(op)
            elif op.name != "func.return" and _has_complex(op):
                self.replace(op, _ROWS.get(op.name) or self.other)

    def inside(self, op: ir.Operation) -> None:
        """Split the ops in the regions of an op."""
        for region in op.regions:
            for block in region:
                self.ops([view.operation for view in block.operations])

    def replace(self, op: ir.Operation, make: Callable[..., Sequence[ir.Value]]) -> None:
        """Replace an op. make: gives the parts of each result, one after the other."""
        made = list(make(op, self.pairs))
        for result in op.results:
            if is_complex(result.type):
                self.pairs.put(result, (made.pop(0), made.pop(0)))
            else:
                result.replace_all_uses_with(made.pop(0))
        self.old.append(op)

    def other(self, op: ir.Operation, pairs: Pairs) -> Sequence[ir.Value]:
        """Make an op that moves elements twice, and one of scalars on complex scalars."""
        if op.name.startswith("complex."):
            return _boxed(op, pairs)
        if not op.name.startswith(_MOVES) or op.name in _REFUSED or _combines(op):
            where = location_text(op)
            raise CompileError(f"{op.name} of complex numbers is not supported", where)
        return _moved(op, pairs)

    def body(self, op: ir.Operation, pairs: Pairs) -> Sequence[ir.Value]:
        """Make an op with a scalar body on the parts of its operands."""
        if op.name == "linalg.fill":
            return _fill(op, pairs)
        products = multiply_real(op, pairs)
        return products if products is not None else expand_body(op, pairs, self.ops)

    def region(self, op: ir.Operation, pairs: Pairs) -> Sequence[ir.Value]:
        """Make an op with regions that hands on the parts of what it handed on."""
        attributes = {name: op.attributes[name] for name in op.attributes}
        types = real_types(op.results)
        operands = pairs.flat(op.operands)
        count = len(op.regions)
        made = OpBuilder.before(op).op(op.name, types, operands, count, **attributes)
        for source, target in zip(op.regions, made.regions, strict=True):
            for block in list(source):
                block.append_to(target)
                ops = [view.operation for view in block.operations]
                self._arguments(block)
                self.ops(ops)
        return list(made.results)

    def _arguments(self, block: ir.Block) -> None:
        """Put the arguments of a block behind those that it has, a pair for each complex one, and drop the old."""
        old = list(block.arguments)
        b = OpBuilder(ir.InsertionPoint.at_block_begin(block), ir.Location.unknown())
        for argument in old:
            made = [block.add_argument(t, b.loc) for t in real_types([argument])]
            if len(made) == 2:
                self.old.append(stands := self.pairs.stand_in(b, argument))
                self.pairs.put(stands.result, (made[0], made[1]))
            else:
                argument.replace_all_uses_with(made[0])
        for number in reversed(range(len(old))):
            block.erase_argument(number)

    def end(self, op: ir.Operation) -> None:
        """Hand on the parts of what a terminator hands on."""
        OpBuilder.before(op).op(op.name, [], self.pairs.flat(op.operands))
        op.erase()


def _touches(op: ir.Operation) -> bool:
    """Tell whether an op reads, makes or computes with complex numbers that others hand to it."""
    inner = ops_where(op, _has_complex)
    return bool(inner) or any(is_complex(a.type) for a in _arguments(op))


def _combines(op: ir.Operation) -> bool:
    """Tell whether an op reduces in a way that parts do not on their own."""
    return "kind" in op.attributes and op.attributes["kind"].value not in ("sum", "avg")


def _boxed(op: ir.Operation, pairs: Pairs) -> Sequence[ir.Value]:
    """Make an op on complex scalars, whose parts are put together before and taken apart behind."""
    b, made = OpBuilder.before(op), op.clone(ir.InsertionPoint(op)).operation
    for number, value in enumerate(op.operands):
        if is_complex(value.type):
            parts = (pairs.part(value, 0), pairs.part(value, 1))
            before = OpBuilder.before(made)
            made.operands[number] = before.one("complex.create", value.type, *parts)
    if not is_complex(made.result.type):
        return [made.result]
    part = part_type(made.result.type)
    return [b.one(name, part, made.result) for name in ("complex.re", "complex.im")]


def _moved(op: ir.Operation, pairs: Pairs) -> Sequence[ir.Value]:
    """Make an op for each part of its operands; results that are not complex come from the first."""
    b = OpBuilder.before(op)
    attributes = {name: op.attributes[name] for name in op.attributes}
    made = []
    for part in (0, 1):
        operands = [pairs.part(v, part) for v in op.operands]
        types = [part_type(r.type) for r in op.results]
        new = b.op(op.name, types, operands, len(op.regions), **attributes)
        for region, target in zip(op.regions, new.regions):
            _copy_region(region, target, pairs, part)
        made.append(list(new.results))
    return [
        value
        for number, result in enumerate(op.results)
        for value in (
            (made[0][number], made[1][number]) if is_complex(result.type) else (made[0][number],)
        )
    ]


def _copy_region(region: ir.Region, target: ir.Region, pairs: Pairs, part: int) -> None:
    """Copy the region of a tensor.pad: what it yields is a constant."""
    block, (end,) = region.blocks[0], [list(region.blocks[0].operations)[-1].operation]
    types = [a.type for a in block.arguments]
    inner, _ = OpBuilder(ir.InsertionPoint(end), end.location).block(target, types)
    value = end.operands[0]
    made = value.owner
    if not isinstance(made, ir.Block) and made.operation.name == "complex.constant":
        attr = made.operation.attributes["value"][part]
        inner.op("tensor.yield", [], [inner.constant(attr)])
    else:
        inner.op("tensor.yield", [], [pairs.part(value, part)])


def _constant(op: ir.Operation, pairs: Pairs) -> Sequence[ir.Value]:
    b = OpBuilder.before(op)
    return [b.constant(attr) for attr in constant_parts(op)]


def _scalar_constant(op: ir.Operation, pairs: Pairs) -> Sequence[ir.Value]:
    b = OpBuilder.before(op)
    return [b.constant(attr) for attr in op.attributes["value"]]


def _create(op: ir.Operation, pairs: Pairs) -> Sequence[ir.Value]:
    return list(op.operands)


def _part(op: ir.Operation, pairs: Pairs) -> Sequence[ir.Value]:
    return [pairs.part(op.operands[0], int(op.name == "complex.im"))]


def _fill(op: ir.Operation, pairs: Pairs) -> Sequence[ir.Value]:
    b, (type_, _) = OpBuilder.before(op), real_types(op.results)
    return [b.fill(part, type_) for part in pairs.flat([op.operands[0]])]


def _fft(op: ir.Operation, pairs: Pairs) -> Sequence[ir.Value]:
    """Make a transform of parts; it reads an argument, and makes a result, as these are."""
    attributes = {name: op.attributes[name] for name in op.attributes}
    (given,), (made,), b = op.operands, op.results, OpBuilder.before(op)
    operands = [pairs.woven[given]] if given in pairs.woven else pairs.flat([given])
    users = [use.owner.operation.name for use in made.uses]
    if not is_complex(made.type) or users != ["func.return"]:
        return list(b.op(FFT, real_types([made]), operands, **attributes).results)
    pairs.woven[made] = b.one(FFT, packed_type(made.type), *operands, **attributes)
    return unpacked(b, pairs.woven[made])


def _sort(op: ir.Operation, pairs: Pairs) -> Sequence[ir.Value]:
    """Let both parts go with what is sorted, which is real."""
    if is_complex(op.operands[0].type):
        raise CompileError(f"{SORT} by complex numbers is not supported", location_text(op))
    attributes = {name: op.attributes[name] for name in op.attributes}
    b = OpBuilder.before(op)
    return list(b.op(SORT, real_types(op.results), pairs.flat(op.operands), **attributes).results)


_ROWS: Mapping[str, Callable[[ir.Operation, Pairs], Sequence[ir.Value]]] = {
    "arith.constant": _constant,
    "complex.constant": _scalar_constant,
    "complex.create": _create,
    "complex.re": _part,
    "complex.im": _part,
    FFT: _fft,
    SORT: _sort,
}
"""Ops whose parts are known without computing; `_fill` is one of linalg."""
