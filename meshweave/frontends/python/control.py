"""Define control flow decided when the program runs: scan, cond and while_loop, over scf."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from meshweave.frontends.python import tree
from meshweave.frontends.python.builder import Block, TraceBuilder, fail, tensor_type
from meshweave.frontends.python.dtypes import DType, Scalar, bool_, promoted
from meshweave.frontends.python.functions.create import zeros_like
from meshweave.frontends.python.functions.elementwise import astype
from meshweave.frontends.python.mapping import control as mapped
from meshweave.frontends.python.tape import Tape, note, taped, unnoted
from meshweave.frontends.python.tracer import ArrayLike, Tracer, is_weak, tensor, tracing

_Leaves = list[Tracer]
T = TypeVar("T")


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: object,
    xs: object = None,
    *,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Run `for x in xs: carry, y = f(carry, x)`; return the last carry, and the ys stacked along a first dim.

    init, xs, and what f returns are pytrees; xs is taken apart along the first dim of its leaves. length: the number of
    rounds when xs has no leaves. reverse: from the last x to the first, ys in the order of xs. The carry keeps its
    shapes and dtypes: CompileError where it does not, or where the lengths of xs differ.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> sums = mw.jit(lambda xs: mw.scan(lambda c, x: (c + x, c + x), mw.zeros(()), xs))
    >>> last, each = sums(np.arange(4, dtype=np.float32))
    >>> float(last), np.asarray(each).tolist()
    (6.0, [0.0, 1.0, 3.0, 6.0])
    """
    level = mapped.innermost()
    if level is not None:
        mapped_scan: tuple[Any, Any] = mapped.scan(
            scan, level, f, init, xs, length=length, reverse=reverse
        )
        return mapped_scan
    return _loop(init, lambda carry, given: _scan(f, carry, given, xs, length, reverse))


def _scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    carry: _Leaves,
    given: _Carried,
    xs: object,
    length: int | None,
    reverse: bool,
) -> tuple[Any, Any]:
    trace = tracing()
    sources, form = _tensors(xs)
    rounds = _rounds(sources, length)
    with trace.inside("the body of a scan") as block:
        iv, arguments = trace.fresh(), _arguments(trace, carry)
        at = iv
        if reverse:
            at = trace.let(f"arith.subi {trace.index(rounds - 1)}, {iv} : index")
        with unnoted(trace):
            rows = [_row(trace, x, at) for x in sources]
        followed = [r for r, x in zip(rows, sources) if any(_follows(trace, x))]
        with taped(trace, [*arguments, *followed]) as tape:
            own = tree.unflatten(form, iter([row.again() for row in rows]))
            returned = f(given.value(arguments), own)
            if not isinstance(returned, tuple) or len(returned) != 2:
                fail("scan: f must return two things: the next carry and a y (None for none)")
            following = given.like("scan: the carry", returned[0], carry)
            ys, y_form = _tensors(returned[1])
    results = [*following, *ys]
    known = {v.key for v in (*rows, *ys)}
    kept = [v for v in _kept(trace, tape, block, results) if v.key not in known]
    buffers = [Tracer(trace, trace.fresh(), (rounds, *y.shape), y.dtype) for y in (*ys, *kept)]
    with trace.reopened(block):
        written = [_write(trace, y, into, at) for y, into in zip((*ys, *kept), buffers)]
        names = [*[trace.name(v) for v in following], *written]
    empties = [trace.let(f"tensor.empty() : {b.type}") for b in buffers]
    with unnoted(trace):
        starts = [*[trace.name(v) for v in carry], *empties]
    bound = zip([*arguments, *buffers], starts)
    types = [v.type for v in (*arguments, *buffers)]
    zero, end, one = (trace.index(n) for n in (0, rounds, 1))
    carried = [(v.name, start) for v, start in bound]
    made = _results(
        trace,
        for_loop(trace, f"{iv} = {zero} to {end} step {one}", carried, types, block, names),
        [*carry, *buffers],
    )
    if tape is not None:
        saved = dict(zip([v.key for v in kept], made[len(results) :]))
        held = dict(zip([v.key for v in (*rows, *ys)], [*sources, *made[len(carry) :]]))
        body = LoopBody(tape, arguments, rows, results, len(carry), saved, held, rounds, reverse)
        free = list(tape.free.values())
        note(trace, "scan", (body,), {}, [*carry, *sources, *free], made)
    return given.value(made[: len(carry)]), tree.unflatten(
        y_form, iter(made[len(carry) : len(results)])
    )


class LoopBody(NamedTuple):
    """Hold what the gradient of a scan needs of its body.

    arguments, rows: what a round takes. results: what it gives, first the carry, of which there are `carried`. saved,
    held: by the key of a value of the body all rounds' values, stacked: those kept for this, and those there anyway.
    """

    tape: Tape
    arguments: _Leaves
    rows: _Leaves
    results: _Leaves
    carried: int
    saved: dict[str, Tracer]
    held: dict[str, Tracer]
    rounds: int
    reverse: bool


class BranchBody(NamedTuple):
    """Hold what the gradient of a cond needs of a branch.

    saved, held: by the key of a value inside what holds it outside: those kept for this, and those there anyway.
    """

    tape: Tape
    results: _Leaves
    saved: dict[str, Tracer]
    held: dict[str, Tracer]


def _follows(trace: TraceBuilder, value: Tracer) -> list[bool]:
    return [value.key in tape.tracked for tape in trace.tapes]


def _kept(trace: TraceBuilder, tape: Tape | None, block: Block, results: _Leaves) -> _Leaves:
    """Return the values of a body that going back over it uses.

    Where gradients are nested, those too that going back over what follows from these uses.
    """
    if tape is None:
        return []
    tape.reads(results)
    found: dict[str, Tracer] = {}
    while True:
        ends = [v for v in (*results, *found.values()) if v.dtype.kind in "fc"]
        with trace.rehearsed(block) as noted:
            tape.walk(tape, {v.key: zeros_like(v) for v in ends}, {})
        fresh = {k: v for k, v in noted.items() if k not in found and isinstance(v, Tracer)}
        found |= fresh
        if not fresh or len(trace.tapes) < 2:
            return list(found.values())


class _Retyped(Exception):
    """Ask for another round of tracing, in which a carried Python scalar has this dtype from the start."""

    def __init__(self, number: int, dtype: DType) -> None:
        self.number, self.dtype = number, dtype


class _Carried(NamedTuple):
    """Describe what a loop carries: its structure, and which leaves take the type of what they meet."""

    structure: tree.Structure
    weak: frozenset[int] = frozenset()

    def value(self, leaves: _Leaves) -> Any:
        """Return leaves in the structure, each a value of its own."""
        return tree.unflatten(self.structure, iter([v.again() for v in leaves]))

    def like(self, what: str, value: object, wanted: _Leaves) -> _Leaves:
        """Return the leaves of a value. Raises CompileError unless it has the structure and types of another."""
        leaves, form = _tensors(value)
        if form != self.structure:
            fail(f"{what} must keep its structure: {len(leaves)} leaves, {len(wanted)} are right")
        for number, (leaf, right) in enumerate(zip(leaves, wanted)):
            if leaf.type == right.type:
                continue
            dtype = promoted([leaf.dtype, right.dtype], [])
            if number in self.weak and leaf.shape == right.shape and dtype != right.dtype:
                raise _Retyped(number, dtype)
            path = tree.paths(self.structure)[number]
            fail(f"{what}{path} is {_short(leaf)}, it must stay {_short(right)}")
        return leaves


def _loop(init: object, body: Callable[[_Leaves, _Carried], T]) -> T:
    """Return body(start, given); carried Python scalars have the dtypes that they get in the body."""
    leaves, structure = tree.flatten(init)
    start = [tensor(leaf) for leaf in leaves]
    weak = [k for k, v in enumerate(leaves) if isinstance(v, Scalar | Tracer) and is_weak(v)]
    trace = tracing()
    while True:
        regions = len(trace.regions)
        try:
            return body(start, _Carried(structure, frozenset(weak)))
        except _Retyped as found:
            start[found.number] = astype(leaves[found.number], found.dtype)
            del trace.regions[regions:]


def _tensors(value: object) -> tuple[_Leaves, tree.Structure]:
    leaves, structure = tree.flatten(value)
    return [tensor(leaf).again() for leaf in leaves], structure


def _arguments(trace: TraceBuilder, like: _Leaves) -> _Leaves:
    return [Tracer(trace, trace.fresh(), v.shape, v.dtype) for v in like]


def _results(trace: TraceBuilder, names: Sequence[str], like: _Leaves) -> _Leaves:
    return [Tracer(trace, n, v.shape, v.dtype) for n, v in zip(names, like)]


def _rounds(sources: _Leaves, length: int | None) -> int:
    if any(not x.shape for x in sources):
        fail("scan: a leaf of xs has no dims to go along")
    counts = {x.shape[0] for x in sources} | ({length} if length is not None else set())
    if len(counts) != 1:
        wrong = "leaves of xs (and length) say" if counts else "neither xs nor length says"
        fail(f"scan: {wrong} how many rounds: {sorted(counts)}, one number is right")
    number = operator.index(counts.pop())
    if number < 0:
        fail(f"scan: length={number} is negative")
    return number


def _row(trace: TraceBuilder, value: Tracer, at: str) -> Tracer:
    """Read `value[at]`; the index is known only when the program runs."""
    shape = value.shape[1:]
    if 0 in shape:  # no offset is within a dim of no elements
        name = trace.let(f"tensor.empty() : {tensor_type(shape, value.dtype)}")
        return Tracer(trace, name, shape, value.dtype)
    offsets = ", ".join([at, *["0"] * len(shape)])
    sizes, steps = [1, *shape], [1] * value.ndim
    name = trace.let(
        f"tensor.extract_slice {trace.name(value)}[{offsets}] {sizes} {steps} "
        f": {value.type} to {tensor_type(shape, value.dtype)}"
    )
    return Tracer(trace, name, shape, value.dtype)


def _write(trace: TraceBuilder, row: Tracer, into: Tracer, at: str) -> str:
    if 0 in row.shape:
        return into.name
    offsets = ", ".join([at, *["0"] * row.ndim])
    return trace.let(
        f"tensor.insert_slice {trace.name(row)} into {into.name}[{offsets}] {[1, *row.shape]} "
        f"{[1] * into.ndim} : {row.type} into {into.type}"
    )


def _short(value: Tracer) -> str:
    return f"{'x'.join(map(str, value.shape))}{'x' if value.shape else ''}{value.dtype}"


def for_loop(
    trace: TraceBuilder,
    bounds: str,
    carried: Sequence[tuple[str, str]],
    types: list[str],
    block: Block,
    following: list[str],
) -> list[str]:
    """Write scf.for over `bounds` ("%i = %zero to %end step %one"); return the names of its results.

    carried: (name in the block, start) of each carried value. following: what the block yields.
    """
    given = ", ".join([f"{name} = {start}" for name, start in carried])
    head = f"scf.for {bounds}"
    head += f" iter_args({given}) -> ({', '.join(types)}) {{" if types else " {"
    return structured(trace, head, [(block, following, "")], types)


def structured(
    trace: TraceBuilder, head: str, parts: Sequence[tuple[Block, list[str], str]], types: list[str]
) -> list[str]:
    """Write an scf op of several regions; return the names of its results.

    parts: for each region its block, what it yields, and the line in front of it.
    """
    outer = trace.fresh() if types else ""
    many = f":{len(types)}" if len(types) > 1 else ""
    lines = trace.block.lines
    lines.append(f"{outer}{many} = {head}" if types else head)
    loc = trace.loc()
    for block, names, front in parts:
        if front:
            lines.append(front)
        lines += block.lines
        if names:
            lines.append(f"scf.yield {', '.join(names)} : {', '.join(types)}{loc}")
    lines.append(f"}}{loc}")
    return [f"{outer}#{i}" for i in range(len(types))] if many else [outer] * len(types)


def _predicate(name: str, value: ArrayLike) -> Tracer:
    chosen = tensor(value)
    if chosen.shape or chosen.dtype is not bool_:
        fail(f"{name}: the condition is {_short(chosen)}, one bool is right")
    return chosen


def _scalar(trace: TraceBuilder, value: Tracer) -> str:
    return trace.let(f"tensor.extract {trace.name(value)}[] : {value.type}")


def cond(
    pred: ArrayLike, true_fun: Callable[..., T], false_fun: Callable[..., T], *args: object
) -> T:
    """Call `true_fun(*args)` if the scalar bool `pred` holds when the program runs, else `false_fun(*args)`.

    Both return pytrees of one structure, with equal shapes and dtypes; only the chosen one is computed. A Python bool
    decides at once. Raises CompileError where the two differ, or pred is no scalar bool.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> half = mw.jit(lambda x: mw.cond(mw.sum(x) > 1, lambda v: v / 2, lambda v: v, x))
    >>> np.asarray(half(np.ones(2, np.float32))).tolist()
    [0.5, 0.5]
    """
    if isinstance(pred, bool | np.bool_):
        return true_fun(*args) if pred else false_fun(*args)
    trace = tracing(pred)
    pred = _predicate("cond", pred)
    level = mapped.innermost()
    if level is not None:
        yes_side, no_side = (partial(side, *args) for side in (true_fun, false_fun))
        chosen: T = mapped.cond(cond, level, pred, yes_side, no_side)
        return chosen
    condition = _scalar(trace, pred)
    with trace.inside("a branch of a cond") as yes, taped(trace, []) as yes_tape:
        first, structure = _tensors(true_fun(*args))
    with trace.inside("a branch of a cond") as no, taped(trace, []) as no_tape:
        second = _Carried(structure).like(
            "cond: what the second branch returns", false_fun(*args), first
        )
    made: T
    if not first:
        made = tree.unflatten(structure, iter(()))
        return made
    kept = [_kept(trace, yes_tape, yes, first), _kept(trace, no_tape, no, second)]
    for number, ends in enumerate((first, second)):
        known = {v.key for v in ends}
        kept[number] = [v for v in kept[number] if v.key not in known]
    with trace.reopened(yes):
        given = [trace.name(v) for v in (*first, *kept[0], *map(zeros_like, kept[1]))]
    with trace.reopened(no):
        other = [trace.name(v) for v in (*second, *map(zeros_like, kept[0]), *kept[1])]
    every = [*first, *kept[0], *kept[1]]
    types = [v.type for v in every]
    head = f"scf.if {condition} -> ({', '.join(types)}) {{"
    names = structured(trace, head, [(yes, given, ""), (no, other, "} else {")], types)
    results = _results(trace, names, every)
    if yes_tape is not None and no_tape is not None:
        saved = dict(zip([v.key for v in (*kept[0], *kept[1])], results[len(first) :]))
        bodies = [
            BranchBody(tape, ends, saved, dict(zip([v.key for v in ends], results)))
            for tape, ends in ((yes_tape, first), (no_tape, second))
        ]
        free = list({**yes_tape.free, **no_tape.free}.values())
        note(trace, "cond", (pred, *bodies), {}, free, results)
    made = tree.unflatten(structure, iter(results[: len(first)]))
    return made


def while_loop(
    cond_fun: Callable[[Any], ArrayLike], body_fun: Callable[[Any], T], init: object
) -> T:
    """Run `while cond_fun(value): value = body_fun(value)` from `init`, a pytree that keeps its shapes and dtypes.

    Raises CompileError where body_fun changes them, or cond_fun gives no scalar bool.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> double = mw.jit(lambda x: mw.while_loop(lambda v: mw.sum(v) < 10, lambda v: v * 2, x))
    >>> np.asarray(double(np.ones(3, np.float32))).tolist()
    [4.0, 4.0, 4.0]
    """
    level = mapped.innermost()
    if level is not None:
        ended: T = mapped.while_loop(while_loop, level, cond_fun, body_fun, init)
        return ended
    return _loop(init, lambda carry, given: _while(cond_fun, body_fun, carry, given))


def _while(
    cond_fun: Callable[[Any], ArrayLike],
    body_fun: Callable[[Any], T],
    carry: _Leaves,
    given: _Carried,
) -> T:
    trace = tracing()
    if not carry:
        fail("while_loop: init has no leaves")
    with trace.inside("the condition of a while_loop") as before:
        tested = _arguments(trace, carry)
        with taped(trace, []):
            holds = _predicate("while_loop", cond_fun(given.value(tested)))
        types = [v.type for v in carry]
        flag, names = _scalar(trace, holds), ", ".join([v.name for v in tested])
        trace.add(f"scf.condition({flag}) {names} : {', '.join(types)}")
    with trace.inside("the body of a while_loop") as body:
        inside = _arguments(trace, carry)
        with taped(trace, inside) as tape:
            made = body_fun(given.value(inside))
            results = given.like("while_loop: the value", made, carry)
        with unnoted(trace):
            following = [trace.name(v) for v in results]
    with unnoted(trace):
        starts = ", ".join([f"{v.name} = {trace.name(c)}" for v, c in zip(tested, carry)])
    joined = ", ".join(types)
    head = f"scf.while ({starts}) : ({joined}) -> ({joined}) {{"
    arguments = ", ".join([f"{v.name}: {v.type}" for v in inside])
    parts = [(before, [], ""), (body, following, f"}} do {{\n^bb0({arguments}):")]
    ends = _results(trace, structured(trace, head, parts, types), carry)
    if tape is not None:
        tape.reads(results)
        note(trace, "while_loop", (), {}, [*carry, *tape.free.values()], ends)
    last: T = given.value(ends)
    return last
