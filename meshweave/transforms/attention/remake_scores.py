"""remake-scores: let the backward of an attention make its scores anew, so that the forward need not keep them.

before:  p = softmax(q kᵀ);  o = p v;  ..;  dv = pᵀ do
after:   p = softmax(q kᵀ);  o = p v;  ..;  r = softmax(q kᵀ);  dv = rᵀ do

Ops are copied, and nothing else: every value stays what it is. Then nothing but `o` reads the scores of the forward,
and all that reads those of the backward is in one place: `select-kernels` makes neither of them as a whole. An
attention stays as it is where that would not come of it: with `flash` off, or scores that something else needs too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from meshweave.hints.fast_paths import Choice
from meshweave.ir.bindings import ir
from meshweave.transforms.attention import whole
from meshweave.transforms.attention.backward import backward_of
from meshweave.transforms.attention.expressions import RESHAPES
from meshweave.transforms.attention.match import Attention, made_of, match
from meshweave.transforms.attention.product import adds_products
from meshweave.transforms.attention.reduced import ReducedBackward
from meshweave.transforms.attention.softmax import NotAttention
from meshweave.transforms.base import Pass, clone_with, functions, in_block, ops_of, unused, users
from meshweave.transforms.kernels.generalize import decompose, generic_copy
from meshweave.transforms.kernels.kernel_choice import Askings
from meshweave.transforms.kernels.kernel_patterns import is_product
from meshweave.transforms.slicing.ledger import number, read_ledger

_PLACE = "mw.place"


@dataclass(frozen=True)
class RemakeScores(Pass):
    """Copy the scores of attentions for their backward.

    disable: kernels that nothing may take; target: what the program is compiled for.
    """

    name: ClassVar[str] = "remake-scores"
    disable: tuple[str, ...] = ()
    target: str = "cpu"

    def run(self, module: ir.Module) -> None:
        if not any(map(_first_product, _exponentials(module))):
            return
        asked = Askings(read_ledger(module), Choice.of(None, dict.fromkeys(self.disable, False)))
        if not any(one.allows("flash") for one in asked):
            return
        decompose(module)
        blocks = [f.operation.regions[0].blocks[0] for f in functions(module)]
        ops = [view.operation for block in blocks for view in block.operations]
        found = [_first_product(op) for op in _exponentials(module)]
        firsts = {op for op in found if op is not None}
        firsts |= {view.operation for op in firsts for view in users(op.results[0])}
        for n, op in enumerate(ops):
            op.attributes[_PLACE] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), n)
        ends = {_place(op) for op in firsts if _PLACE in op.attributes}
        plans = list(_plans(generic_copy(module), ends, asked, self.target))
        for op in ops:
            del op.attributes[_PLACE]
        for plan in plans:
            _copy([ops[n] for n in plan.made], [ops[n] for n in plan.readers])


@dataclass(frozen=True)
class _Plan:
    """Hold the numbers of the ops to copy, and of those that read the copies."""

    made: tuple[int, ...]
    readers: tuple[int, ...]


def _exponentials(module: ir.Module) -> Iterator[ir.Operation]:
    """Yield the ops that take exponentials of tensors."""
    for f in functions(module):
        for view in f.operation.regions[0].blocks[0].operations:
            op = view.operation
            if op.name in ("math.exp", "linalg.exp", "linalg.softmax") or (
                op.name in ("linalg.generic", "linalg.map")
                and any(
                    inner.operation.name == "math.exp"
                    for inner in op.regions[0].blocks[0].operations
                )
            ):
                yield op


def _first_product(op: ir.Operation) -> ir.Operation | None:
    """Return the first of the products that read what is made of an op, before any other; None for less than two."""
    seen, products, left = {op}, set[ir.Operation](), [op]
    while left:
        for view in (user for result in left.pop().results for user in users(result)):
            reader = view.operation
            if reader.block != op.block or reader in seen:
                continue
            seen.add(reader)
            if reader.name.startswith("linalg.") and is_product(reader):
                products.add(reader)
            else:
                left.append(reader)
    return min(products, key=in_block) if len(products) > 1 else None


def _plans(made: ir.Module, ends: Collection[int], asked: Askings, target: str) -> Iterator[_Plan]:
    """Yield what to copy of a module of generics, which is tried on it. ends: where attentions may end."""
    generics = [op.operation for op in ops_of(made, "linalg.generic")]
    for final in [op for op in generics if _place(op) in ends]:
        try:
            found = _attention(final, target, shared=True)
            may = all(asked.of(o).allows("flash") for o in found.ops)
            plan = _plan(found, target) if may else None
        except NotAttention:
            continue
        yield from [] if plan is None else [plan]


def _attention(final: ir.Operation, target: str, shared: bool = False) -> Attention:
    """Return the attention that ends in `final`, of a form that the target has a kernel for."""
    if target != "gpu":
        return match(final, shared=shared)
    found = match(final, whole.SCORES, 0, alone=True, shared=shared)
    whole.suitable(found)
    return found


def _has_backward(op: ir.Operation, target: str) -> bool:
    """Tell whether a backward begins with `op` that the target has kernels for."""
    if target != "gpu":
        return backward_of(op) is not None
    found = backward_of(op, whole.SCORES, 0)
    if found is not None:
        ReducedBackward(found)
    return found is not None


def _plan(found: Attention, target: str) -> _Plan | None:
    """Try to copy the scores of one attention: return how, None where nothing comes of it."""
    inside, outside = made_of(found.first, set(found.visited))
    made, left = set(inside), [op for op in outside if op != found.final]
    readers = set[ir.Operation]()
    while left:
        op = left.pop()
        if op.block != found.first.block:
            return None
        if not _is_of_scores(op, made, found.first):
            readers.add(op)
            continue
        made.add(op)
        readers.discard(op)
        more = [view.operation for view in users(op.results[0])]
        left += [o for o in more if o not in made]
    if not readers or any(op.name not in ("linalg.generic", *RESHAPES) for op in readers):
        return None
    copies, reading = sorted(made, key=in_block), sorted(readers, key=in_block)
    plan = _Plan(tuple(map(_place, copies)), tuple(map(_place, reading)))
    new = _copy(copies, reading)
    _attention(found.final, target)
    begin = new[found.first.results[0]].owner.operation
    return plan if _has_backward(begin, target) else None


def _is_of_scores(op: ir.Operation, made: set[ir.Operation], first: ir.Operation) -> bool:
    """Tell whether an op reads nothing but scores, what is made of them, and what was there before them."""
    if op.name not in ("linalg.generic", *RESHAPES):
        return False
    if op.name == "linalg.generic" and adds_products(op):
        return False
    for value in op.operands:
        owner = value.owner
        if isinstance(owner, ir.Block) or owner.operation in made or _is_constant(owner.operation):
            continue
        if owner.operation.block == first.block and first.is_before_in_block(owner.operation):
            return False
    return True


def _is_constant(op: ir.Operation) -> bool:
    """Tell whether an op reads no tensor with numbers in it."""
    if op.name in ("arith.constant", "tensor.empty", "linalg.fill", "tensor.splat"):
        return True
    return op.name == "linalg.generic" and all(
        not isinstance(v.owner, ir.Block) and _is_constant(v.owner.operation) for v in op.operands
    )


def _place(op: ir.Operation) -> int:
    """Return the number that an op, or arithmetic on tensors inside it, was given; -1 where there is none."""
    if _PLACE in op.attributes or not len(op.regions):
        return number(op, _PLACE)
    inner = [v.operation for v in op.regions[0].blocks[0].operations]
    return next((number(o, _PLACE) for o in inner if _PLACE in o.attributes), -1)


def _copy(
    made: Sequence[ir.Operation], readers: Iterable[ir.Operation]
) -> dict[ir.Value, ir.Value]:
    """Copy ops in front of the first reader, and let the readers read the copies: return those by what they copy."""
    first, *others = readers
    new: dict[ir.Value, ir.Value] = {}
    ip = ir.InsertionPoint(first)
    for op in made:
        clone_with(op, new, ip)
    for reader in (first, *others):
        for n, value in enumerate(reader.operands):
            if value in new:
                reader.operands[n] = new[value]
    for op in reversed(made):
        if unused(op):
            op.erase()
    return new
