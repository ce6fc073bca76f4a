"""What the body of an op says: how it reduces, what it reads besides its operands, whether padding harms it, what it is
linear in. Read off the IR; anything that is not plain to see is answered with "no".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshweave.bindings import ir

COMBINERS = {
    "arith.addf": "sum",
    "arith.addi": "sum",
    "arith.mulf": "prod",
    "arith.muli": "prod",
    "arith.maximumf": "max",
    "arith.maxnumf": "max",
    "arith.maxsi": "max",
    "arith.minimumf": "min",
    "arith.minnumf": "min",
    "arith.minsi": "min",
}
"""The reduction an op performs when it combines an accumulator with a new value. Unsigned max and min are not here: the
collectives compare signed."""

COMBINERS_I1 = {"arith.ori": "max", "arith.andi": "min"}
UNSAFE_ON_PADDING = (
    "arith.divsi",
    "arith.divui",
    "arith.remsi",
    "arith.remui",
    "arith.ceildiv",
    "arith.floordiv",
    "math.ipowi",
    "tensor.extract",
    "memref.",
)
BODIES = ("linalg.generic", "linalg.map", "linalg.reduce")
"""Ops whose body may read a loop index."""
SUM_OPS = (
    "linalg.matmul",
    "linalg.batch_matmul",
    "linalg.vecmat",
    "linalg.matvec",
    "linalg.dot",
    "linalg.contract",
    "linalg.mmt4d",
    "linalg.batch_reduce_matmul",
    "linalg.batch_matvec",
    "linalg.batch_vecmat",
)


@dataclass(frozen=True)
class Captured:
    """A tensor from outside that the body of an op reads, as an embedding lookup does.

    reader, operand: where it is read. loops: for each dim of the tensor the loop whose index a `tensor.extract` reads
    it at, None where the place is computed, so that the dim must be whole.
    """

    reader: Any
    operand: int
    loops: tuple[int | None, ...]

    @property
    def value(self) -> Any:
        """The tensor."""
        return self.reader.operands[self.operand]


def is_tensor(type_: Any) -> bool:
    """A ranked tensor?"""
    return isinstance(type_, ir.RankedTensorType)


def captured_by(op: Any) -> list[Captured]:
    """What the regions of `op` read from outside, at any depth."""
    if not any(len(region.blocks) for region in op.regions):
        return []
    return [
        Captured(inner, i, _loops_of(op, inner, value))
        for inner in _inside(op)
        for i, value in enumerate(inner.operands)
        if is_tensor(value.type) and not _within(value, op)
    ]


def body_key(op: Any) -> tuple[Any, ...] | None:
    """What the body of `op` does, as a value: for each inner op its name and where its operands come from (argument or
    inner result by number, -1 for a scalar from outside).

    () for an op without a body, None for one that a plain list does not say all of: several blocks, nested regions,
    tensors from outside.
    """
    regions = op.regions
    if not len(regions):
        return ()
    blocks = regions[0].blocks
    if len(regions) > 1 or len(blocks) != 1:
        return None if len(regions) > 1 or len(blocks) else ()
    block = blocks[0]
    numbers = {argument: i for i, argument in enumerate(block.arguments)}
    key = []
    for view in block.operations:
        inner = view.operation
        if len(inner.regions):
            return None
        read = []
        for value in inner.operands:
            number = numbers.get(value, -1)
            if number < 0 and is_tensor(value.type):
                return None
            read.append(number)
        key.append((inner.name, *read))
        for result in inner.results:
            numbers[result] = len(numbers)
    return tuple(key)


def _inside(op: Any) -> list[Any]:
    """The ops in the regions of `op`, at any depth, in order."""
    found = []
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                found.append(inner.operation)
                found += _inside(inner.operation)
    return found


def _within(value: Any, op: Any) -> bool:
    """Is `value` defined in a region of `op`?"""
    owner = value.owner
    above = owner.owner if isinstance(owner, ir.Block) else owner.operation.parent
    while above is not None and above.operation != op:
        above = above.operation.parent
    return above is not None


def _loops_of(op: Any, reader: Any, value: Any) -> tuple[int | None, ...]:
    if reader.name == "tensor.extract" and op.name in BODIES:
        return tuple([_loop_of(index) for index in list(reader.operands)[1:]])
    return (None,) * len(value.type.shape)


def _loop_of(index: Any) -> int | None:
    owner = index.owner
    if isinstance(owner, ir.Block) or owner.name != "linalg.index":
        return None
    return int(owner.attributes["dim"].value)


def combiner(op: Any) -> str | None:
    """How a linalg op combines over its reduction loops: sum, prod, max, min; None when that is not plain to see."""
    if _element(op).startswith("complex"):
        return None
    if op.name in SUM_OPS or op.name.startswith("linalg.conv"):
        return "sum" if _element(op) != "i1" else None
    if len(op.results) != 1 or op.name not in ("linalg.generic", "linalg.reduce"):
        return None
    block = op.regions[0].blocks[0]
    ops = block.operations
    last = ops[len(ops) - 1].operation
    accumulator = block.arguments[len(block.arguments) - 1]
    made = last.operands[0].owner if len(last.operands) == 1 else None
    if made is None or isinstance(made, ir.Block):
        return None
    uses = [use.owner for use in accumulator.uses]
    if len(uses) != 1 or uses[0].operation != made.operation:
        return None
    # acc op f(ins): the other operand must not depend on the accumulator, which has this one use.
    if list(made.operation.operands).count(accumulator) != 1:
        return None
    name = made.operation.name
    return COMBINERS_I1.get(name) if _element(op) == "i1" else COMBINERS.get(name)


def _element(op: Any) -> str:
    return (
        str(op.results[0].type.element_type)
        if len(op.results) and is_tensor(op.results[0].type)
        else ""
    )


def padding_safe(op: Any) -> bool:
    """May `op` run on padding, whose content is undefined?"""
    return not any(inner.name.startswith(UNSAFE_ON_PADDING) for inner in _inside(op))


def monomials(op: Any) -> tuple[frozenset[int], ...]:
    """The products that the result of `op` is a sum of, each as the operands in it; () when it is no such sum.

    `out + a * b`, reduced or not, gives ({out}, {a, b}): where a is a sum over ranks that is still to do, so is the
    result, if out is one too. Constant factors do not count.
    """
    name, n = op.name, len(op.operands)
    if len(op.results) != 1:
        return ()
    if name in VIEWS:
        return (frozenset({0}),)
    if name in LINEAR:
        return _distinct(LINEAR[name]([_Support({frozenset({i})}) for i in range(n)]))
    if not name.startswith("linalg.") or len(op.regions) != 1 or not len(op.regions[0].blocks):
        return ()
    if name in BODIES and combiner(op) != "sum" and _reduces(op):
        return ()
    if name not in BODIES and name not in SUM_OPS and name not in ELEMENTWISE:
        return ()
    return _distinct(_of_body(op.regions[0].blocks[0], n))


_Support = set[frozenset[int]]
_FREE: _Support = {frozenset()}


def _of_body(block: Any, n: int) -> _Support | None:
    """What the one value that the block yields is a sum of; None when it is more than sums and products."""
    known = {a: {frozenset({i})} for i, a in enumerate(block.arguments)}
    if len(known) != n or len(block.operations) > 6:
        return None
    for view in block.operations:
        inner = view.operation
        of = [known.get(v, None if _inner(v, block) else _FREE) for v in inner.operands]
        if inner.name == "linalg.yield":
            return of[0] if len(of) == 1 else None
        if any(support is None for support in of) or len(inner.results) != 1 or len(inner.regions):
            continue
        if all(support == _FREE for support in of):
            known[inner.results[0]] = _FREE
        elif inner.name in LINEAR and (made := LINEAR[inner.name](of)) is not None:
            known[inner.results[0]] = made
    return None


def _inner(value: Any, block: Any) -> bool:
    """Is `value` made in `block`, by an op that no support is known of?"""
    owner = value.owner
    return not isinstance(owner, ir.Block) and owner.operation.block == block


def _product(of: list[_Support]) -> _Support | None:
    a, b = of
    pairs = [(x, y) for x in a for y in b]
    return {x | y for x, y in pairs} if not any(x & y for x, y in pairs) else None


def _reduces(op: Any) -> bool:
    if op.name == "linalg.map":
        return False
    return op.name == "linalg.reduce" or any(
        "parallel" not in str(a) for a in op.attributes["iterator_types"]
    )


def _distinct(support: _Support | None) -> tuple[frozenset[int], ...]:
    if support is None or frozenset() in support:
        return ()
    return tuple(sorted(support, key=sorted))


VIEWS = ("tensor.expand_shape", "tensor.collapse_shape", "tensor.extract_slice", "hint.place")
ELEMENTWISE = (
    "linalg.add",
    "linalg.sub",
    "linalg.mul",
    "linalg.negf",
    "linalg.copy",
    "linalg.transpose",
    "linalg.broadcast",
)
LINEAR: dict[str, Callable[[list[_Support]], _Support | None]] = {
    **dict.fromkeys(
        ("arith.addf", "arith.addi", "arith.subf", "arith.subi", "tensor.concat"),
        lambda of: set().union(*of),
    ),
    **dict.fromkeys(("arith.mulf", "arith.muli"), _product),
    "arith.negf": lambda of: of[0],
    "arith.divf": lambda of: of[0] if of[1] == _FREE else None,
}
"""Sums and products: what the result is a sum of, from what the operands are sums of."""
