"""Read what the body of an op says.

That is how it reduces, what it reads besides its operands, whether padding harms it and what it is linear in. Anything
that is not plain to see is answered with "no".
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.build import IteratorType, iterator_types
from meshweave.ir.expressions import (
    EMPTY,
    Apply,
    Argument,
    Body,
    BodyNode,
    Gather,
    Scalar,
    inputs,
    read_body,
)
from meshweave.ir.ops import producer, terminator
from meshweave.ir.scans import SCAN
from meshweave.ir.scatters import SCATTER
from meshweave.ir.selections import Selection, selection_of
from meshweave.transforms.propagation.padding import DIVISIONS, within_ends

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
    """Describe a tensor from outside that the body of an op reads, as an embedding lookup does.

    reader, operand: where it is read. loops: for each dim of the tensor the loop whose index a `tensor.extract` reads
    it at, None where the place is computed, so that the dim must be whole.
    """

    reader: ir.Operation
    operand: int
    loops: tuple[int | None, ...]

    @property
    def value(self) -> ir.Value:
        """Return the tensor."""
        return self.reader.operands[self.operand]


def is_tensor(type_: ir.Type) -> bool:
    """Tell whether a type is a ranked tensor."""
    return isinstance(type_, ir.RankedTensorType)


def captured_by(op: ir.Operation) -> list[Captured]:
    """Return what the regions of `op` read from outside, at any depth."""
    if not any(len(region.blocks) for region in op.regions):
        return []
    return [
        Captured(inner, i, _loops_of(op, inner, value))
        for inner in _inside(op)
        for i, value in enumerate(inner.operands)
        if is_tensor(value.type) and not _within(value, op)
    ]


def body_of(op: ir.Operation) -> Body | None:
    """Return what the body of `op` computes.

    It is empty for an op without one, None for one that is no list of scalar ops.
    """
    if not len(op.regions):
        return EMPTY
    blocks = op.regions[0].blocks
    if not len(blocks):
        return EMPTY
    if (
        len(op.regions) > 1
        or len(blocks) > 1
        or not op.name.startswith(("linalg.", "tensor.", SCAN, SCATTER))
    ):
        return None
    try:
        return read_body(blocks[0])
    except CompileError:
        return None


BodyKey = tuple[tuple["str | int | ir.Attribute", ...], ...]
"""For each op of a body its name, the numbers of what it reads, and what it depends on besides."""


def body_key(op: ir.Operation) -> BodyKey | None:
    """Return what tells the body of `op` from others, at less cost than reading it.

    For each inner op it has the name and where the operands come from (argument or inner result by number, -1 for a
    scalar from outside). Whether integers may be divided depends on constants and comparisons too: a body that divides
    has those, as attributes.

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
    key: list[tuple[str | int | ir.Attribute, ...]] = []
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
    if any(name in DIVISIONS for name, *_ in key):
        key += [tuple(_said(view.operation)) for view in block.operations]
    return tuple(key)


def _said(op: ir.Operation) -> Iterator[ir.Attribute]:
    """Yield what a comparison or a constant says, and the constants that an op reads from outside of its body."""
    if op.name in ("arith.cmpi", "arith.constant"):
        yield from (op.attributes[name] for name in op.attributes)
    for value in op.operands:
        made = producer(value)
        if made is not None and made.name == "arith.constant":
            yield made.attributes["value"]


def _inside(op: ir.Operation) -> list[ir.Operation]:
    """Return the ops in the regions of `op`, at any depth, in order."""
    found = []
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                found.append(inner.operation)
                found += _inside(inner.operation)
    return found


def _within(value: ir.Value, op: ir.Operation) -> bool:
    """Tell whether `value` is defined in a region of `op`."""
    owner = value.owner
    above = owner.owner if isinstance(owner, ir.Block) else owner.operation.parent
    while above is not None and above.operation != op:
        above = above.operation.parent
    return above is not None


def _loops_of(op: ir.Operation, reader: ir.Operation, value: ir.Value) -> tuple[int | None, ...]:
    if reader.name == "tensor.extract" and op.name in BODIES:
        return tuple([_loop_of(index) for index in list(reader.operands)[1:]])
    return (None,) * len(value.type.shape)


def _loop_of(index: ir.Value) -> int | None:
    owner = index.owner
    if isinstance(owner, ir.Block) or owner.name != "linalg.index":
        return None
    return int(owner.attributes["dim"].value)


def combiner(op: ir.Operation, body: Body | None = None) -> str | None:
    """Return how a linalg op combines over its reduction loops: sum, prod, max, min.

    None when that is not plain to see. body: of `op`, where it has been read.
    """
    element = _element(op)
    if element.startswith("complex"):
        return None
    if op.name in SUM_OPS or op.name.startswith("linalg.conv"):
        return "sum" if element != "i1" else None
    if len(op.results) != 1 or op.name not in ("linalg.generic", "linalg.reduce"):
        return None
    body = body or body_of(op)
    if body is None:
        return None
    return _accumulated(body, element)


def _accumulated(body: Body, element: str) -> str | None:
    """Return how the last thing that a body gives is combined with its last argument, which nothing else reads."""
    made, accumulator = body.nodes[body.results[-1]], _arguments(body) - 1
    reads = [k for node in body.nodes for k in inputs(node)]
    if not isinstance(made, Apply) or reads.count(accumulator) != 1:
        return None
    if accumulator not in made.operands:
        return None
    return (COMBINERS_I1 if element == "i1" else COMBINERS).get(made.name)


def selection(op: ir.Operation, body: Body | None = None) -> Selection | None:
    """Return how a linalg op selects one of the elements of its reduction loops; None for any other op.

    body: of `op`, where it has been read.
    """
    if (
        len(op.results) < 2
        or op.name not in ("linalg.generic", "linalg.reduce")
        or not _reduces(op)
    ):
        return None
    body = body or body_of(op)
    return None if body is None or captured_by(op) else selection_of(body)


def lookup(op: ir.Operation, body: Body | None) -> ir.Operation | None:
    """Return the `tensor.extract` by which each element of the result of a linalg op is read from another tensor.

    None for any other op, and where a place might lie beyond the end of a dim. body: of `op`.
    """
    if op.name not in BODIES or len(op.results) != 1 or _reduces(op) or body is None:
        return None
    made = body.nodes[body.results[0]]
    if not isinstance(made, Gather) or "complex" in _element(op):
        return None
    (given,) = terminator(op.regions[0].blocks[0]).operands
    return given.owner if all(within_ends(k, body) for k in made.operands) else None


def found_kind(op: ir.Operation) -> str:
    """Return how what ranks have found for an op is combined."""
    return "max" if _element(op) == "i1" else "sum"


def found_dims(captured: Captured, reader: ir.Operation | None) -> tuple[int, ...]:
    """Return the dims of a tensor that `reader` reads at places held within them; () where something else reads it."""
    if reader is None or captured.reader != reader or captured.operand != 0:
        return ()
    places = list(reader.operands)[1:]
    loose = [d for d, loop in enumerate(captured.loops) if loop is None]
    return tuple([d for d in loose if getattr(places[d].owner, "name", "") == "arith.minsi"])


def scatter_combiner(op: ir.Operation) -> str | None:
    """Return how a scatter into one tensor combines: sum, prod, max, min; None for any other."""
    body, element = body_of(op), _element(op)
    if body is None or len(op.results) != 1 or element.startswith("complex"):
        return None
    return _accumulated(body, element)


def scan_combiner(op: ir.Operation) -> str | None:
    """Return how a scan of one tensor combines: sum, prod, max, min; None for any other."""
    body, element = body_of(op), _element(op)
    if body is None or len(op.results) != 1 or element.startswith("complex"):
        return None
    made = body.nodes[body.results[0]]
    if not isinstance(made, Apply) or set(made.operands) != {0, 1} or len(body.nodes) != 3:
        return None
    return (COMBINERS_I1 if element == "i1" else COMBINERS).get(made.name)


def _arguments(body: Body) -> int:
    return sum(isinstance(node, Argument) for node in body.nodes)


def _element(op: ir.Operation) -> str:
    return (
        str(op.results[0].type.element_type)
        if len(op.results) and is_tensor(op.results[0].type)
        else ""
    )


def monomials(op: ir.Operation, body: Body | None = None) -> tuple[frozenset[int], ...]:
    """Return the products that the result of `op` is a sum of, each as the operands in it; () when it is no such sum.

    `out + a * b`, reduced or not, gives ({out}, {a, b}): where a is a sum over ranks that is still to do, so is the
    result, if out is one too. Constant factors do not count. body: of `op`, where it has been read.
    """
    name, n = op.name, len(op.operands)
    if len(op.results) != 1:
        return ()
    if name in VIEWS:
        return (frozenset({0}),)
    if name in LINEAR:
        return _distinct(LINEAR[name]([_Support({frozenset({i})}) for i in range(n)]))
    if name not in BODIES and name not in SUM_OPS and name not in ELEMENTWISE:
        return ()
    body = body or body_of(op)
    if body is None or (name in BODIES and combiner(op, body) != "sum" and _reduces(op)):
        return ()
    return _distinct(_of_body(body, n))


_Support = set[frozenset[int]]
_FREE: _Support = {frozenset()}
MOST_OPS = 5
"""Ops of a body whose sums and products are multiplied out."""


def _of_body(body: Body, n: int) -> _Support | None:
    """Return what the one value that a body gives is a sum of; None when it is more than sums and products."""
    made = sum(not isinstance(node, Argument | Scalar) for node in body.nodes)
    if _arguments(body) != n or len(body.results) != 1 or made > MOST_OPS:
        return None
    known: list[_Support | None] = []
    for node in body.nodes:
        known.append(_support(node, [known[k] for k in inputs(node)]))
    return known[body.results[0]]


def _support(node: BodyNode, of: list[_Support | None]) -> _Support | None:
    """Return what a node is a sum of, given that of the nodes that it reads."""
    if isinstance(node, Argument):
        return {frozenset({node.number})}
    sure = [support for support in of if support is not None]
    if len(sure) < len(of):
        return None
    if all(support == _FREE for support in sure):
        return _FREE
    return LINEAR[node.name](sure) if isinstance(node, Apply) and node.name in LINEAR else None


def _product(of: list[_Support]) -> _Support | None:
    a, b = of
    pairs = [(x, y) for x in a for y in b]
    return {x | y for x, y in pairs} if not any(x & y for x, y in pairs) else None


def _reduces(op: ir.Operation) -> bool:
    if op.name == "linalg.map":
        return False
    return op.name == "linalg.reduce" or IteratorType.REDUCTION in iterator_types(op)


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
