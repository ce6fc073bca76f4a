"""Turn tensors into buffers: results become buffers of the caller, upstream's one-shot bufferisation does the rest.

Every kernel writes a buffer of its own, a part of one (where upstream finds that safe) or an
output; updates of loop-carried tensors stay in place. Inputs are never written but those that are donated: a result
is made in the buffer of such an input, by updates in place where nothing needs the old any more. What is left are
proxies on memrefs, allocations, copies where the program's meaning needs them, and control flow.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.dialects.dist import TAKES
from meshweave.errors import CompileError
from meshweave.ir.bindings import PassManager, ir
from meshweave.ir.build import DYNAMIC, OpBuilder, i64, i64_array, segments
from meshweave.ir.locations import compile_error, location_text
from meshweave.ir.ops import body_of, producer, terminator
from meshweave.lowering.buffers.proxies import WAIT
from meshweave.lowering.buffers.steps import OUTPUTS, TAKEN
from meshweave.transforms.base import copied, functions, ops_of, port_attrs, use_count

BUFFERIZE = (
    "builtin.module(eliminate-empty-tensors,empty-tensor-to-alloc-tensor,"
    "one-shot-bufferize{bufferize-function-boundaries=true function-boundary-type-conversion=identity-layout-map},"
    "func.func(cse,canonicalize{disable-patterns={anonymous}::CombineIfs}))"
)
"""Two branches of one condition stay two, as they are on tensors, where the checker looks."""


MOST_LEVELS = 2  # of branches in branches between copies


def run_passes(module: ir.Module, pipeline: str) -> None:
    """Run upstream passes without the verifier, which proxies would not pass.

    Raises CompileError with the first diagnostic.
    """
    passes = PassManager.parse(pipeline)
    passes.enable_verifier(False)
    try:
        passes.run(module.operation)
    except ir.MLIRError as error:
        raise compile_error(error) from None


def boundary(function: ir.OpView) -> None:
    """Turn the tensor arguments and results of `function` into buffers.

    Its arguments are then the buffers of the inputs, followed by those of the outputs.
    """
    op = function.operation
    block = body_of(op)
    tensors = list(block.arguments)
    end = terminator(block)
    first = OpBuilder.before(block.operations[0].operation)
    taken = _taken(op, len(end.operands))
    types = []
    for value in (*tensors, *end.operands):
        if not isinstance(value.type, ir.RankedTensorType) or not value.type.has_static_shape:
            raise CompileError(
                f"arguments and results must be tensors of static shape, not {value.type}",
                location_text(op.location),
            )
        types.append(ir.MemRefType.get(value.type.shape, value.type.element_type))
    buffers = [block.add_argument(t, op.location) for t in types]
    unit = ir.UnitAttr.get()
    reads = []
    for k, (old, new) in enumerate(zip(tensors, buffers)):
        marks = {"restrict": unit, **({"writable": unit} if k in taken else {})}
        reads.append(first.one("bufferization.to_tensor", old.type, new, **marks))
        old.replace_all_uses_with(reads[-1])
    b = OpBuilder.before(end)
    outputs = buffers[len(tensors) :]
    for k, (value, buffer) in enumerate(zip(list(end.operands), outputs)):  # may be an input
        if taken[k] < 0:
            _store(b, *_before_reshapes(b, value, buffer))
    states = [(end.operands[k], reads[n], buffers[n]) for k, n in enumerate(taken) if n >= 0]
    _give(b, block, states)
    if states:
        op.attributes[TAKEN] = i64_array(taken)
    b.op("func.return")
    end.erase()
    for number in reversed(range(len(tensors))):
        block.erase_argument(number)
    op.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, []))
    op.attributes[OUTPUTS] = i64(len(outputs))
    for name in ("arg_attrs", "res_attrs"):
        if name in op.attributes:
            del op.attributes[name]


def _taken(function: ir.Operation, results: int) -> list[int]:
    """Return for each result of a function the argument whose buffer it takes, -1 where it has its own."""
    if "res_attrs" not in function.attributes:
        return [-1] * results
    return [e[TAKES].value if TAKES in e else -1 for e in port_attrs(function, "res_attrs")]


def _give(
    b: OpBuilder, block: ir.Block, states: Sequence[tuple[ir.Value, ir.Value, ir.Value]]
) -> None:
    """Store results in buffers of arguments. states: of each the value, the argument's as it comes in, its buffer.

    This is the last that is done. What is not made in that buffer, nor in one of its own, is copied first: it may be in
    the buffer of another argument. The second store is of a buffer into itself, so that nothing drops the first.
    """
    ready = []
    for value, read, _ in states:
        kept = value == read or _comes_of(value, read) or _fresh(value, block)
        ready.append(value if kept else _copied(b, value))
    for value, (_, read, buffer) in zip(ready, states):
        if value != read:
            unit, stored = ir.UnitAttr.get(), b.one(_MATERIALIZE, value.type, value, read)
            b.op(_MATERIALIZE, [], [stored, buffer], restrict=unit, writable=unit)


def _comes_of(value: ir.Value, argument: ir.Value) -> bool:
    """Tell whether `value` is `argument` after updates, which upstream makes in place where nothing needs the old."""
    op = producer(value)
    if value == argument or op is None:
        return op is not None or bool(value == argument)
    if op.name in _RESHAPES:
        return _comes_of(op.operands[0], argument)
    started = _started_from(value)[:1] if op.name in ("scf.for", "scf.while") else None
    if op.name in ("tensor.insert", "tensor.insert_slice", "linalg.generic", "scf.if"):
        started = _started_from(value)
    return bool(started) and all(_comes_of(start, argument) for start in started or ())


def _before_reshapes(b: OpBuilder, value: ir.Value, buffer: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return what `value` is a reshape of, and `buffer` seen in that shape: the result is then made in place."""
    while (op := producer(value)) is not None and op.name in _RESHAPES:
        value = op.operands[0]
        shape = list(value.type.shape)
        attributes = {"reassociation": op.attributes["reassociation"]}
        name = "memref.collapse_shape"
        if op.name == "tensor.collapse_shape":
            name = "memref.expand_shape"
            attributes["static_output_shape"] = i64_array(shape)
        type_ = ir.MemRefType.get(shape, value.type.element_type)
        buffer = b.one(name, type_, buffer, **attributes)
    return value, buffer


def _number(value: ir.Value) -> int:
    """Return which result of its op `value` is."""
    return int(ir.OpResult(value).result_number)


def _start(op: ir.Operation, number: int) -> ir.Value:
    """Return the operand that result `number` of a linalg op starts from."""
    return op.operands[len(op.operands) - len(op.results) + number]


def _ends(op: ir.Operation) -> list[ir.Operation]:
    """Return the terminators of the regions of an op."""
    return [terminator(region.blocks[0]) for region in op.regions if region.blocks]


def _started_from(value: ir.Value) -> list[ir.Value]:
    """Return the tensors whose buffer the op that makes `value` would update, if it may."""
    op = producer(value)
    if op is None:
        return []
    number = _number(value)
    if op.name == "linalg.generic":
        return [_start(op, number)]
    if op.name in ("tensor.insert", "tensor.insert_slice"):
        return [op.operands[1]]
    if op.name in _WINDOWS:
        return [op.operands[0]]
    ends = _ends(op)
    if op.name == "scf.for":
        return [op.operands[3 + number], ends[0].operands[number]]
    if op.name == "scf.while":
        return [*op.operands, ends[0].operands[1 + number]]
    return [end.operands[number] for end in ends] if op.name == "scf.if" else []


def _read_besides(value: ir.Value, seen: set[ir.Value]) -> bool:
    """Tell whether anything else reads a tensor that `value` is an update of."""
    for tensor in _started_from(value):
        if tensor in seen or not isinstance(tensor.type, ir.RankedTensorType):
            continue
        seen.add(tensor)
        if use_count(tensor) > 1 or _read_besides(tensor, seen):
            return True
    return False


def _store(b: OpBuilder, value: ir.Value, buffer: ir.Value) -> None:
    """Store a tensor in a buffer of the caller."""
    if _read_besides(value, set()):
        # Upstream would make that tensor in `buffer` too, where this store ends it: keep them apart.
        value = _copied(b, value)
    unit = ir.UnitAttr.get()
    b.op(_MATERIALIZE, [], [value, buffer], restrict=unit, writable=unit)


def bufferize(module: ir.Module, bodies: Sequence[ir.OpView]) -> ir.Module:
    """Turn tensors into buffers, and return the module to go on with: `module`, or a copy of it.

    bodies: its functions.

    A loop hands each tensor on in the buffer it came in, and the branches of an scf.if give buffers that lie alike. The
    first try makes no copies where that looks possible; where upstream finds a conflict, or branches differ, the second
    one copies what a loop starts from and others read, and the third, in each round, every tensor that a loop hands on
    or a branch gives.
    """
    for function in bodies:
        own_empties(function)
        give_whole_buffers(function)
        hand_on_in_order(function)
    spare = copied(module)
    if _is_buffers(module, bodies):
        return module
    second = copied(spare)
    starts = [copy_starts(function) for function in functions(second)]
    if any(starts) and _is_buffers(second, functions(second)):
        return second
    for function in functions(spare):
        copy_given(function)
        keep_in_place(function, careful=True)
    run_passes(spare, BUFFERIZE)
    return spare


def _is_buffers(module: ir.Module, bodies: Sequence[ir.OpView]) -> bool:
    """Turn tensors into buffers without copies of what loops hand on; tell whether that was possible."""
    try:
        for function in bodies:
            keep_in_place(function, careful=False)
        run_passes(module, BUFFERIZE)
    except CompileError:
        return False
    return not any(_differ(op.operation) for op in ops_of(module, "scf.if"))


def copy_starts(function: ir.OpView) -> int:
    """Copy what loops start from where anything else reads it; return how many copies that are."""
    made = 0
    for op in ops_of(function, "scf.for", "scf.while"):
        loop = op.operation
        for number in range(3 if loop.name == "scf.for" else 0, len(loop.operands)):
            value = loop.operands[number]
            if isinstance(value.type, ir.RankedTensorType) and use_count(value) > 1:
                loop.operands[number] = _copied(OpBuilder.before(loop), value)
                made += 1
    return made


def _differ(branches: ir.Operation) -> bool:
    """Tell whether the branches of an scf.if give buffers that lie in different ways."""
    types = [v.type for v in branches.results if isinstance(v.type, ir.MemRefType)]
    return any(DYNAMIC in type_.get_strides_and_offset()[0] for type_ in types)


def copy_given(function: ir.OpView) -> None:
    """Copy what branches give: the copies lie alike, in buffers of their own."""
    for op in ops_of(function, "scf.if"):
        for end in _ends(op.operation):
            for number, value in enumerate(end.operands):
                if isinstance(value.type, ir.RankedTensorType):
                    end.operands[number] = _copied(OpBuilder.before(end), value)


def own_empties(function: ir.OpView) -> None:
    """Give every reader of a tensor.empty its own: shared ones would become copies."""
    for op in ops_of(function, "tensor.empty"):
        for use in list(op.operation.results[0].uses)[1:]:
            user = use.owner.operation
            user.operands[use.operand_number] = op.operation.clone(ir.InsertionPoint(user)).result


def give_whole_buffers(function: ir.OpView) -> None:
    """Copy slices that a branch gives: the buffers of both branches must lie alike.

    What nested branches give is copied at every third level: upstream's analysis takes time that is exponential in how
    deep they nest.
    """
    levels: dict[ir.Value, int] = {}  # of branches that a value comes out of
    for op in reversed(ops_of(function, "scf.if")):  # the inner ones first
        for end in _ends(op.operation):
            for number, value in enumerate(end.operands):
                level = levels.get(value, 0)
                if _is_window(value) or level == MOST_LEVELS:
                    end.operands[number] = _copied(OpBuilder.before(end), value)
                    level = 0
                result = op.operation.results[number]
                levels[result] = max(levels.get(result, 0), 1 + level)


def hand_on_in_order(function: ir.OpView) -> None:
    """Let each scf.while hand on all that it carries, in order.

    Canonicalization drops what nothing reads after the condition; the buffers of the rest would then no longer match.
    """
    for loop in ops_of(function, "scf.while"):
        before = body_of(loop.operation)
        carried = list(before.arguments)
        given = list(terminator(before).operands)[1:]
        if given != carried and all(value in carried for value in given):
            _rebuild(loop.operation, [carried.index(value) for value in given])


def _rebuild(loop: ir.Operation, places: Sequence[int]) -> None:
    """Make a loop again whose condition hands on all values, not only those numbered `places`."""
    types = [value.type for value in loop.operands]
    new = OpBuilder.before(loop).op("scf.while", types, loop.operands, regions=2)
    for source, target in zip(loop.regions, new.regions, strict=True):
        source.blocks[0].append_to(target)
    before, after = (region.blocks[0] for region in new.regions)
    end = terminator(before)
    OpBuilder.before(end).op("scf.condition", [], [end.operands[0], *before.arguments])
    end.erase()
    old = list(after.arguments)
    arguments = [after.add_argument(kind, loop.location) for kind in types]
    for argument, result, place in zip(old, loop.results, places, strict=True):
        argument.replace_all_uses_with(arguments[place])
        result.replace_all_uses_with(new.results[place])
    for number in reversed(range(len(old))):
        after.erase_argument(number)
    loop.erase()


def _is_window(value: ir.Value) -> bool:
    """Tell whether `value` is a part of another tensor."""
    while (op := producer(value)) is not None and op.name in _WINDOWS:
        if op.name == "tensor.extract_slice":
            return True
        value = op.operands[0]
    return False


def _copied(b: OpBuilder, value: ir.Value) -> ir.Value:
    sizes = segments(0, 1, 0)
    return b.one("bufferization.alloc_tensor", value.type, value, operandSegmentSizes=sizes)


def keep_in_place(function: ir.OpView, careful: bool) -> None:
    """Let every tensor that a loop carries end up in the buffer it came in: upstream refuses anything else.

    careful: copy them all first, also those that seem to be there already.
    """
    for loop in ops_of(function, "scf.for", "scf.while"):
        for region in loop.operation.regions:
            block = region.blocks[0]
            carried = list(block.arguments)[1 if loop.operation.name == "scf.for" else 0 :]
            end = terminator(block)
            skip = 1 if end.name == "scf.condition" else 0
            if len(end.operands) - skip == len(carried):
                _carry(block, carried, end, skip, careful)


def _carry(
    block: ir.Block, carried: Sequence[ir.Value], end: ir.Operation, skip: int, careful: bool
) -> None:
    """Store what a block of a loop hands on where its arguments lie. skip: operands of `end` before these."""
    b, stores = OpBuilder.before(end), []
    for k, argument in enumerate(carried):
        value = end.operands[k + skip]
        if not isinstance(value.type, ir.RankedTensorType) or value == argument:
            continue
        if not careful and _updates(value, argument):
            continue
        if careful or not _fresh(value, block):
            value = _copied(b, value)
        stores.append((k, value, argument))
    for k, value, argument in stores:
        end.operands[k + skip] = b.one(_MATERIALIZE, value.type, value, argument)


def _updates(value: ir.Value, argument: ir.Value) -> bool:
    """Tell whether `value` is `argument` with some of its elements written: upstream does that in place."""
    if value == argument:
        return True
    op = producer(value)
    if op is None:
        return False
    number = _number(value)
    if op.name in ("tensor.insert", "tensor.insert_slice"):
        return _updates(op.operands[1], argument)
    if op.name == "linalg.generic":
        start = _start(op, number)
        return use_count(start) == 1 and _updates(start, argument)  # another reader needs the old
    if op.name == "scf.for":
        return _updates(op.operands[3 + number], argument)
    if op.name == "scf.if":
        return all(_updates(end.operands[number], argument) for end in _ends(op))
    return False


_RESHAPES = ("tensor.collapse_shape", "tensor.expand_shape")
_WINDOWS = (*_RESHAPES, "tensor.extract_slice", "tensor.cast")
_MATERIALIZE = "bufferization.materialize_in_destination"


def _fresh(value: ir.Value, block: ir.Block) -> bool:
    """Tell whether `value` is made in `block`, in a buffer of its own."""
    op = producer(value)
    if op is None or op.block != block:
        return False
    if op.name in _WINDOWS:
        return _fresh(op.operands[0], block)
    if op.name == "tensor.from_elements":
        return True
    if op.name == "linalg.generic":
        start = _start(op, _number(value))
        if WAIT in op.attributes:  # for what was started in a buffer of its own
            return _fresh(start, block)
        made_by = producer(start)
        return made_by is not None and made_by.name == "tensor.empty"
    return False
