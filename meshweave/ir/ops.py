"""Find, replace and ask about ops: what several rooms do with IR besides building it."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from meshweave.ir.bindings import ir

Ops = Mapping[str, Sequence[ir.Operation]]
"""Ops by name, so that one walk serves all who look for some."""

ADVANCE, SKIP = ir.WalkResult.ADVANCE, ir.WalkResult.SKIP
"""What a visitor of ops returns, to go on or not to look inside: to ask for it by its name is a third of a walk."""


def ops_where(root: ir.Operation, test: Callable[[ir.Operation], bool]) -> list[ir.Operation]:
    """Return the ops in and below `root` that pass `test`, inner ops before those around them.

    root: an op or a module. The list is taken before the caller changes anything.
    """
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if test(op):
            found.append(op)
        return ADVANCE

    root.operation.walk(visit)
    return found


def ops_named(root: ir.Operation, *names: str) -> list[ir.Operation]:
    """Return the ops in and below `root` of these names, inner ops before those around them."""
    wanted = frozenset(names)
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name in wanted:
            found.append(op)
        return ADVANCE

    root.operation.walk(visit)
    return found


def ops_by_name(root: ir.Operation, names: Collection[str] = ()) -> Ops:
    """Return the ops in and below `root` by name, inner ops before those around them.

    names: of which; of all where none is given.
    """
    found: dict[str, list[ir.Operation]] = defaultdict(list)
    if names:
        for op in ops_named(root, *names):
            found[op.name].append(op)
        return found

    def visit(op: ir.Operation) -> ir.WalkResult:
        found[op.name].append(op)
        return ADVANCE

    root.operation.walk(visit)
    return found


def replace_op(op: ir.Operation, values: Sequence[ir.Value]) -> None:
    """Let the users of `op` read `values`, one for each result, and erase it."""
    for result, value in zip(op.operation.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.operation.erase()


def functions_of(module: ir.Module) -> dict[str, ir.Operation]:
    """Return the `func.func` ops of a module by name."""
    ops = [op.operation for op in module.body.operations]
    return {op.attributes["sym_name"].value: op for op in ops if op.name == "func.func"}


def body_of(op: ir.Operation, region: int = 0) -> ir.Block:
    """Return the first block of a region of `op`."""
    return op.regions[region].blocks[0]


def terminator(block: ir.Block) -> ir.Operation:
    """Return the last op of `block`."""
    return block.operations[len(block.operations) - 1].operation


def producer(value: ir.Value) -> ir.Operation | None:
    """Return the op that makes `value`, or None for an argument of a block."""
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def is_used(value: ir.Value) -> bool:
    """Tell whether any op reads `value`."""
    return any(True for _ in value.uses)


def clone_body(
    block: ir.Block, arguments: Sequence[ir.Value], to: ir.InsertionPoint
) -> list[ir.Value]:
    """Copy the ops of `block`, which have no regions, but for its terminator, to `to`; return what it yields.

    arguments: what the copies read in the place of the block's arguments.
    """
    values = dict(zip(block.arguments, arguments, strict=True))
    *ops, end = (view.operation for view in block.operations)
    for op in ops:
        copy = op.clone(to).operation
        for number, value in enumerate(op.operands):
            copy.operands[number] = values.get(value, value)
        values.update(zip(op.results, copy.results, strict=True))
    return [values.get(value, value) for value in end.operands]


def move_body(block: ir.Block, to: ir.InsertionPoint) -> list[ir.Value]:
    """Move the ops of `block`, but for its terminator, to `to`; return what the terminator yields."""
    *ops, end = list(block.operations)
    values = list(end.operands)
    for op in ops:
        op.operation.move_before(to.ref_operation) if to.ref_operation else to.block.append(
            op.operation
        )
    return values
