"""Tensors to buffers: the function's results become buffers of the caller, upstream's one-shot
bufferisation does the rest.

Every kernel writes a buffer of its own, a part of one (where upstream finds that safe) or an
output; updates of loop-carried tensors stay in place. Inputs are never written. What is left are
carriers on memrefs, allocations, copies where the program's meaning needs them, and control flow.
"""

from __future__ import annotations

from typing import Any

from meshweave.bindings import PassManager, ir
from meshweave.errors import CompileError
from meshweave.locations import compile_error, location_text
from meshweave.lowering.steps import WAIT
from meshweave.transforms.base import copied, functions, ops_of, use_count

BUFFERIZE = (
    "builtin.module(eliminate-empty-tensors,empty-tensor-to-alloc-tensor,"
    "one-shot-bufferize{bufferize-function-boundaries=true function-boundary-type-conversion=identity-layout-map},"
    "cse,canonicalize)"
)


def run_passes(module: Any, pipeline: str) -> None:
    """Run upstream passes, without the verifier (carriers would not pass it). CompileError with the
    first diagnostic.
    """
    passes = PassManager.parse(pipeline)
    passes.enable_verifier(False)
    try:
        passes.run(module.operation)
    except ir.MLIRError as error:
        raise compile_error(error) from None


def boundary(function: Any, indices: int) -> None:
    """Turn tensor arguments and results of `function` into buffers: arguments are then the inputs',
    the outputs' buffers and `indices` numbers of type index (already block arguments at the end).
    """
    op = function.operation
    block = op.regions[0].blocks[0]
    arguments = list(block.arguments)
    tensors = arguments[: len(arguments) - indices]
    end = block.operations[len(block.operations) - 1].operation
    first = block.operations[0].operation
    types = []
    for value in (*tensors, *end.operands):
        if not isinstance(value.type, ir.RankedTensorType) or not value.type.has_static_shape:
            raise CompileError(
                f"arguments and results must be tensors of static shape, not {value.type}",
                location_text(op.location),
            )
        types.append(ir.MemRefType.get(value.type.shape, value.type.element_type))
    types += [a.type for a in arguments[len(tensors) :]]
    buffers = [block.add_argument(t, op.location) for t in types]
    for old, new in zip(tensors, buffers):
        old.replace_all_uses_with(_to_tensor(new, old.type, first))
    for value, buffer in zip(
        list(end.operands), buffers[len(tensors) :]
    ):  # an input may be a result
        _store(*_before_reshapes(value, buffer, end), end)
    for old, new in zip(arguments[len(tensors) :], buffers[len(types) - indices :]):
        old.replace_all_uses_with(new)
    ir.Operation.create("func.return", loc=end.location, ip=ir.InsertionPoint(end))
    end.erase()
    for number in reversed(range(len(arguments))):
        block.erase_argument(number)
    op.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, []))
    for name in ("arg_attrs", "res_attrs"):
        if name in op.attributes:
            del op.attributes[name]


def _to_tensor(buffer: Any, type_: Any, before: Any) -> Any:
    return ir.Operation.create(
        "bufferization.to_tensor",
        results=[type_],
        operands=[buffer],
        attributes={"restrict": ir.UnitAttr.get()},
        loc=before.location,
        ip=ir.InsertionPoint(before),
    ).result


def _before_reshapes(value: Any, buffer: Any, before: Any) -> tuple[Any, Any]:
    """What `value` is a reshape of, and `buffer` seen in that shape: then the result is made in
    place.
    """
    while not isinstance(value.owner, ir.Block):
        op = value.owner.operation
        if op.name not in ("tensor.collapse_shape", "tensor.expand_shape"):
            break
        value = op.operands[0]
        shape = list(value.type.shape)
        attributes = {"reassociation": op.attributes["reassociation"]}
        name = "memref.collapse_shape"
        if op.name == "tensor.collapse_shape":
            name = "memref.expand_shape"
            attributes["static_output_shape"] = ir.DenseI64ArrayAttr.get(shape)
        buffer = ir.Operation.create(
            name,
            results=[ir.MemRefType.get(shape, value.type.element_type)],
            operands=[buffer],
            attributes=attributes,
            loc=before.location,
            ip=ir.InsertionPoint(before),
        ).result
    return value, buffer


def _started_from(value: Any) -> list[Any]:
    """The tensors whose buffer the op that makes `value` would update, if it may."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return []
    op = owner.operation
    number = [r == value for r in op.results].index(True)
    if op.name == "linalg.generic":
        return [op.operands[len(op.operands) - len(op.results) + number]]
    if op.name in ("tensor.insert", "tensor.insert_slice"):
        return [op.operands[1]]
    if op.name in _WINDOWS:
        return [op.operands[0]]
    ends = [
        r.blocks[0].operations[len(r.blocks[0].operations) - 1].operation
        for r in op.regions
        if r.blocks
    ]
    if op.name == "scf.for":
        return [op.operands[3 + number], ends[0].operands[number]]
    if op.name == "scf.while":
        return [*op.operands, ends[0].operands[1 + number]]
    return [end.operands[number] for end in ends] if op.name == "scf.if" else []


def _read_besides(value: Any, seen: set[Any]) -> bool:
    """Does anything else read a tensor that `value` is an update of?"""
    for tensor in _started_from(value):
        if tensor in seen or not isinstance(tensor.type, ir.RankedTensorType):
            continue
        seen.add(tensor)
        if sum(1 for _ in tensor.uses) > 1 or _read_besides(tensor, seen):
            return True
    return False


def _store(value: Any, buffer: Any, before: Any) -> None:
    if _read_besides(value, set()):
        # Upstream would make that tensor in `buffer` too, where this store ends it: keep them apart.
        value = _copied(value, before)
    ir.Operation.create(
        "bufferization.materialize_in_destination",
        operands=[value, buffer],
        attributes={"restrict": ir.UnitAttr.get(), "writable": ir.UnitAttr.get()},
        loc=before.location,
        ip=ir.InsertionPoint(before),
    )


def bufferize(module: Any, bodies: list[Any]) -> Any:
    """Tensors to buffers in place; the module to go on with. bodies: its functions.

    A loop hands each tensor on in the buffer it came in. First without copies, as far as that looks
    possible; where upstream finds a conflict, again with a copy for every tensor that a loop hands
    on.
    """
    for function in bodies:
        own_empties(function)
        give_whole_buffers(function)
        hand_on_in_order(function)
    spare = copied(module)
    try:
        for function in bodies:
            keep_in_place(function, careful=False)
        run_passes(module, BUFFERIZE)
        return module
    except CompileError:
        for function in functions(spare):
            keep_in_place(function, careful=True)
        run_passes(spare, BUFFERIZE)
        return spare


def own_empties(function: Any) -> None:
    """Give every reader of a tensor.empty its own: shared ones would become copies."""
    for op in ops_of(function, "tensor.empty"):
        for use in list(op.operation.results[0].uses)[1:]:
            user = use.owner.operation
            user.operands[use.operand_number] = op.operation.clone(ir.InsertionPoint(user)).result


def give_whole_buffers(function: Any) -> None:
    """Copy slices that a branch gives: the buffers of both branches must lie alike."""
    for op in ops_of(function, "scf.if"):
        for region in op.operation.regions:
            if not region.blocks:
                continue
            ops = region.blocks[0].operations
            end = ops[len(ops) - 1].operation
            for number, value in enumerate(end.operands):
                if _is_window(value):
                    end.operands[number] = _copied(value, end)


def hand_on_in_order(function: Any) -> None:
    """Let each scf.while hand on all that it carries, in order: canonicalization drops what nothing reads after the
    condition, and then the buffers of what is left no longer match.
    """
    for loop in ops_of(function, "scf.while"):
        before = loop.operation.regions[0].blocks[0]
        carried = list(before.arguments)
        given = list(before.operations[len(before.operations) - 1].operation.operands)[1:]
        if given != carried and all(value in carried for value in given):
            _rebuilt(loop.operation, [carried.index(value) for value in given])


def _rebuilt(loop: Any, places: list[int]) -> None:
    """The loop again, where values number `places` of those carried came out of the condition."""
    types = [value.type for value in loop.operands]
    new = ir.Operation.create(
        "scf.while", types, list(loop.operands), regions=2, loc=loop.location,
        ip=ir.InsertionPoint(loop),
    )  # fmt: skip
    for source, target in zip(loop.regions, new.regions, strict=True):
        source.blocks[0].append_to(target)
    before, after = (region.blocks[0] for region in new.regions)
    end = before.operations[len(before.operations) - 1].operation
    condition = end.operands[0]
    ir.Operation.create(
        "scf.condition", [], [condition, *before.arguments], loc=end.location,
        ip=ir.InsertionPoint(end),
    )  # fmt: skip
    end.erase()
    old = list(after.arguments)
    arguments = [after.add_argument(kind, loop.location) for kind in types]
    for argument, result, place in zip(old, loop.results, places, strict=True):
        argument.replace_all_uses_with(arguments[place])
        result.replace_all_uses_with(new.results[place])
    for number in reversed(range(len(old))):
        after.erase_argument(number)
    loop.erase()


def _is_window(value: Any) -> bool:
    """Is `value` a part of another tensor?"""
    while not isinstance(value.owner, ir.Block) and value.owner.operation.name in _WINDOWS:
        if value.owner.operation.name == "tensor.extract_slice":
            return True
        value = value.owner.operation.operands[0]
    return False


def _copied(value: Any, before: Any) -> Any:
    return ir.Operation.create(
        "bufferization.alloc_tensor", results=[value.type], operands=[value],
        attributes={"operandSegmentSizes": ir.DenseI32ArrayAttr.get([0, 1, 0])},
        loc=before.location, ip=ir.InsertionPoint(before),
    ).result  # fmt: skip


def keep_in_place(function: Any, careful: bool) -> None:
    """Let every tensor that a loop carries on end up in the buffer it came in: upstream refuses
    anything else.

    careful: copy them all first, also those that seem to be there already.
    """
    for loop in ops_of(function, "scf.for", "scf.while"):
        for region in loop.operation.regions:
            block = region.blocks[0]
            carried = list(block.arguments)[1 if loop.operation.name == "scf.for" else 0 :]
            end = block.operations[len(block.operations) - 1].operation
            skip = 1 if end.name == "scf.condition" else 0
            if len(end.operands) - skip == len(carried):
                _carry(block, carried, end, skip, careful)


def _carry(block: Any, carried: list[Any], end: Any, skip: int, careful: bool) -> None:
    stores = []
    for k, argument in enumerate(carried):
        value = end.operands[k + skip]
        if not isinstance(value.type, ir.RankedTensorType) or value == argument:
            continue
        if not careful and _updates(value, argument):
            continue
        if careful or not _fresh(value, block):
            value = _copied(value, end)
        stores.append((k, value, argument))
    for k, value, argument in stores:
        end.operands[k + skip] = _into(value, argument, end)


def _updates(value: Any, argument: Any) -> bool:
    """Whether `value` is `argument` with some of its elements written: upstream does that in place."""
    if value == argument:
        return True
    owner = value.owner
    if isinstance(owner, ir.Block):
        return False
    op = owner.operation
    number = [r == value for r in op.results].index(True)
    if op.name in ("tensor.insert", "tensor.insert_slice"):
        return _updates(op.operands[1], argument)
    if op.name == "linalg.generic":
        start = op.operands[len(op.operands) - len(op.results) + number]
        return use_count(start) == 1 and _updates(start, argument)  # another reader needs the old
    if op.name == "scf.for":
        return _updates(op.operands[3 + number], argument)
    if op.name == "scf.if":
        ends = [
            r.blocks[0].operations[len(r.blocks[0].operations) - 1].operation for r in op.regions
        ]
        return all(_updates(end.operands[number], argument) for end in ends)
    return False


_WINDOWS = ("tensor.expand_shape", "tensor.collapse_shape", "tensor.extract_slice", "tensor.cast")


def _fresh(value: Any, block: Any) -> bool:
    """Whether `value` is made in `block`, in a buffer of its own."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.block != block:
        return False
    op = owner.operation
    if op.name in _WINDOWS:
        return _fresh(op.operands[0], block)
    if op.name == "tensor.from_elements":
        return True
    if op.name == "linalg.generic":
        number = [r == value for r in op.results].index(True)
        start = op.operands[len(op.operands) - len(op.results) + number]
        if WAIT in op.attributes:  # for what was started in a buffer of its own
            return _fresh(start, block)
        return not isinstance(start.owner, ir.Block) and start.owner.name == "tensor.empty"
    return False


def _into(value: Any, destination: Any, before: Any) -> Any:
    return ir.Operation.create(
        "bufferization.materialize_in_destination",
        results=[value.type],
        operands=[value, destination],
        loc=before.location,
        ip=ir.InsertionPoint(before),
    ).result
