"""dist-fold-redistribute: the same values in the same layouts with fewer and cheaper redistributes.

before:  b = redistribute(a, "[_]");  c = redistribute(b, "[x]")         b has no other reader
after:   c = redistribute(a, "[x]")

Five rules, until none applies: one that nothing reads goes; one that moves nothing hands on its operand; of equal ones
that stand below each other the first serves all; and of a chain a -> b -> c the end reads the start where that takes
less time by the costs of plans, or no more and b goes with it. Chains into loops are judged by c alone, which runs more
often than b. A slice or a pad that is moved to windows alone runs on them, and its operand comes in windows of its own,
where that takes no longer (through_slices.py); so does a pad for each of several windows, and elementwise ops whose
result is moved to windows alone, where that takes less time (through_maps.py).

Values stay the same, but for rounding: where b goes with its last reader, reductions pending before and after b are
done in one, not one after the other. Where b stays, nothing is reduced twice: c reads the start only if b has done no
reduction.
"""

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from meshweave.dialects.dist import LayoutAttr
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.ops import producer, replace_op
from meshweave.transforms.base import (
    Pass,
    erase,
    mesh_of_module,
    ops_of,
    unused,
    use_count,
    users,
)
from meshweave.transforms.propagation.symbolic import is_given
from meshweave.transforms.propagation.values import is_made_free
from meshweave.transforms.redistribution.plans import MOVE, Plans
from meshweave.transforms.redistribution.through_maps import run_in_windows
from meshweave.transforms.redistribution.through_slices import PAD, SLICE, read_for


@dataclass(frozen=True)
class FoldRedistribute(Pass):
    """Remove redundant redistributes, and let chains be skipped where that is cheaper.

    On a mesh with symbolic sizes nothing has a cost: a chain is skipped where its middle has no other reader.
    """

    name: ClassVar[str] = "dist-fold-redistribute"

    def run(self, module: ir.Module) -> None:
        mesh = mesh_of_module(module)
        if mesh is None:
            return
        fold_redistributes(module, None if mesh.is_symbolic else Plans(mesh))


def fold_redistributes(module: ir.Module, plans: Plans | None = None) -> None:
    """Apply the rules of this file to every redistribute of `module`.

    plans: None: costs are not known; chains are skipped where the middle has no other reader.
    """
    for op in reversed(_moves(module)):
        if unused(op):
            erase(op)
    while True:
        _fold_equal(module, plans)
        if not _fold_chains(module, plans) and not _fold_slices(module, plans):
            return


def _moves(module: ir.Module) -> list[ir.Operation]:
    """Return the redistributes, except those that stay until the mesh has numbers."""
    return [view.operation for view in ops_of(module, MOVE) if not is_given(view)]


def _ends(op: ir.Operation) -> tuple[ir.Attribute, ir.Attribute]:
    """Return the layout attributes of a redistribute."""
    return op.attributes["source"], op.attributes["target"]


def _fold_equal(module: ir.Module, plans: Plans | None) -> None:
    """Remove redistributes that move nothing, and repetitions of one that stands above."""
    known: dict[tuple[ir.Attribute, ir.Attribute], list[ir.Operation]] = {}
    for op in _moves(module):
        value, (source, target) = op.operands[0], _ends(op)
        if source == target or (plans is not None and _moves_nothing(op, plans)):
            replace_op(op, [value])
            continue
        earlier = known.setdefault((value, target), [])
        above = next((e for e in earlier if _encloses(e.block, op)), None)
        if above is None:
            earlier.append(op)
        else:
            replace_op(op, [above.results[0]])


def _moves_nothing(op: ir.Operation, plans: Plans) -> bool:
    plan = plans.plan(op.results[0].type, *_ends(op))
    return plan is not None and not plan.steps


def _encloses(block: ir.Block, op: ir.Operation) -> bool:
    """Tell whether `op` is in `block`, at any depth."""
    while op is not None and op.name != "builtin.module":
        if op.block == block:
            return True
        op = op.parent and op.parent.operation
    return False


def _fold_chains(module: ir.Module, plans: Plans | None) -> bool:
    """Let redistributes that read redistributes read what comes before. Return whether any did."""
    changed = False
    for middle in _moves(module):
        readers = [u.operation for u in users(middle.results[0])]
        ends = [r for r in readers if r.name == MOVE and not is_given(r)]
        folded = _skipping(middle, ends, len(ends) == len(readers), plans) if ends else []
        for end in folded:
            end.operands[0] = middle.operands[0]
            end.attributes["source"] = middle.attributes["source"]
            if "plan" in end.attributes:
                del end.attributes["plan"]
        changed |= bool(folded)
        if len(folded) == len(readers):
            middle.erase()
    return changed


def _fold_slices(module: ir.Module, plans: Plans | None) -> bool:
    """Let slices run on the windows that their results are moved to. Return whether any does."""
    changed = False
    for op in _moves(module) if plans is not None else []:
        made = producer(op.operands[0])
        if made is None or plans is None or made.block != op.block:
            continue
        if made.name in (SLICE, PAD) and use_count(op.operands[0]) == 1:
            changed |= _sliced_in_windows(made, op, plans)
        elif (made.name == PAD and _padded_apart(made, plans)) or run_in_windows(op, plans):
            return True  # moves further down may be gone
    return changed


def _padded_apart(pad: ir.Operation, plans: Plans) -> bool:
    """Let a pad whose result is only moved to windows run on each of them, where that takes less time."""
    moves = [u.operation for u in users(pad.results[0])]
    record = pad.attributes.get("dist.layouts")
    if record is None or "values" in ir.DictAttr(record) or is_made_free(pad.operands[0]):
        return False
    if any(m.name != MOVE or is_given(m) or m.block != pad.block for m in moves):
        return False
    now = list(ir.DictAttr(record)["operands"])
    value, before = pad.operands[0], producer(pad.operands[0])
    start, outer = now[0], value
    if before is not None and before.name == MOVE and not is_given(before):
        start, outer = before.attributes["source"], before.operands[0]
    reads = {}
    for move in moves:
        target = LayoutAttr(move.attributes["target"]).layout
        read = read_for(pad, LayoutAttr(now[0]).layout, target, plans.mesh)
        if read is None or all(target.window(dim) is None for dim in range(target.ndim)):
            return False
        reads[move] = LayoutAttr.make(read)
    types = value.type, pad.results[0].type
    old = plans.seconds(types[0], start, now[0]) + sum(
        plans.seconds(types[1], *_ends(m)) for m in moves
    )
    if not sum(plans.seconds(types[0], start, wanted) for wanted in set(reads.values())) < old:
        return False
    for move, wanted in reads.items():
        b = OpBuilder.before(pad)
        made = pad.clone(ir.InsertionPoint(pad)).operation
        if start != wanted:
            b = OpBuilder.before(made)
            made.operands[0] = b.one(MOVE, types[0], outer, source=start, target=wanted)
        else:
            made.operands[0] = outer
        entry = {"operands": [wanted, *now[1:]], "results": [move.attributes["target"]]}
        made.attributes["dist.layouts"] = ir.DictAttr.get(
            {name: ir.ArrayAttr.get(layouts) for name, layouts in entry.items()}
        )
        replace_op(move, [made.results[0]])
    erase(pad)
    if before is not None and outer != value and unused(before):
        erase(before)
    return True


def _sliced_in_windows(made: ir.Operation, op: ir.Operation, plans: Plans) -> bool:
    """Let the slice `made` run on the windows that `op` moves its result to, where that takes no longer."""
    record = made.attributes.get("dist.layouts")
    source, target = _ends(op)
    layout = LayoutAttr(target).layout
    windows = any(layout.window(dim) is not None for dim in range(layout.ndim))
    if record is None or "values" in ir.DictAttr(record) or not windows:
        return False
    now = list(ir.DictAttr(record)["operands"])
    read = read_for(made, LayoutAttr(now[0]).layout, layout, plans.mesh)
    value, types = made.operands[0], (made.operands[0].type, op.results[0].type)
    if read is None or is_made_free(value):
        return False
    before = producer(value)
    start, outer = now[0], value
    if before is not None and before.name == MOVE and not is_given(before):
        start, outer = before.attributes["source"], before.operands[0]
    wanted = LayoutAttr.make(read)
    old = plans.seconds(types[0], start, now[0]) + plans.seconds(types[1], source, target)
    if not plans.seconds(types[0], start, wanted) <= old:
        return False
    if start != wanted:
        b = OpBuilder.before(made)
        outer = b.one(MOVE, types[0], outer, source=start, target=wanted)
    made.operands[0] = outer
    entry = {"operands": [wanted, *now[1:]], "results": [target]}
    made.attributes["dist.layouts"] = ir.DictAttr.get(
        {name: ir.ArrayAttr.get(layouts) for name, layouts in entry.items()}
    )
    replace_op(op, [made.results[0]])
    if before is not None and outer != value and unused(before):
        erase(before)
    return True


def _skipping(
    middle: ir.Operation, ends: list[ir.Operation], all_moves: bool, plans: Plans | None
) -> list[ir.Operation]:
    """Return those of `ends`, which read `middle`, that should read its operand instead.

    all_moves: nothing else reads `middle`.
    """
    if plans is None:
        alone = all_moves and len(ends) == 1 and ends[0].block == middle.block
        return ends if alone else []
    type_, (source, through) = middle.results[0].type, _ends(middle)
    whole = [plans.seconds(type_, source, _ends(e)[1]) for e in ends]
    rest = [plans.seconds(type_, through, _ends(e)[1]) for e in ends]
    single = all_moves and len(ends) == 1
    if not single and plans.reduces(source, through):
        return []
    inner = [e.block != middle.block for e in ends]
    in_all = plans.seconds(type_, source, through) + sum(rest)
    if all_moves and not any(inner) and sum(whole) < inf and sum(whole) <= in_all:
        return ends
    if single and inner[0] and whole[0] <= rest[0]:
        return ends
    return [e for e, a, b in zip(ends, whole, rest) if a < b]
