"""Control flow that the program decides when it runs: scan, cond and while_loop, over scf."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshweave.trace import tree
from meshweave.trace.builder import Block, Trace, fail, tensor_type
from meshweave.trace.dtypes import bool_
from meshweave.trace.tracer import Tracer, tensor, tracing

_Leaves = list[Tracer]


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    *,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """`for x in xs: carry, y = f(carry, x)`; the last carry, and the ys stacked along a first dim.

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
    trace = tracing()
    carry, structure = _tensors(init)
    sources, form = _tensors(xs)
    rounds = _rounds(sources, length)
    with trace.inside("the body of a scan") as block:
        iv, arguments = trace.fresh(), _arguments(trace, carry)
        at = _from_end(trace, iv, rounds) if reverse else iv
        rows = [_row(trace, x, at) for x in sources]
        returned = f(tree.unflatten(structure, iter(arguments)), tree.unflatten(form, iter(rows)))
        if not isinstance(returned, tuple) or len(returned) != 2:
            fail("scan: f must return two things: the next carry and a y (None for none)")
        following = _like("scan: the carry", returned[0], carry, structure)
        ys, y_form = _tensors(returned[1])
        buffers = [Tracer(trace, trace.fresh(), (rounds, *y.shape), y.dtype) for y in ys]
        written = [_write(trace, y, into, at) for y, into in zip(ys, buffers)]
        names = [*[trace.name(v) for v in following], *written]
    empties = [trace.let(f"tensor.empty() : {b.type}") for b in buffers]
    bound = zip([*arguments, *buffers], [*[trace.name(v) for v in carry], *empties])
    types = [v.type for v in (*arguments, *buffers)]
    zero, end, one = (trace.index(n) for n in (0, rounds, 1))
    given = ", ".join([f"{v.name} = {start}" for v, start in bound])
    head = f"scf.for {iv} = {zero} to {end} step {one}"
    head += f" iter_args({given}) -> ({', '.join(types)}) {{" if types else " {"
    results = _structured(trace, head, [(block, names, "")], types)
    made = [Tracer(trace, n, v.shape, v.dtype) for n, v in zip(results, [*carry, *buffers])]
    last = tree.unflatten(structure, iter(made[: len(carry)]))
    return last, tree.unflatten(y_form, iter(made[len(carry) :]))


def _tensors(value: Any) -> tuple[_Leaves, tree.Structure]:
    leaves, structure = tree.flatten(value)
    return [tensor(leaf) for leaf in leaves], structure


def _arguments(trace: Trace, like: _Leaves) -> _Leaves:
    return [Tracer(trace, trace.fresh(), v.shape, v.dtype) for v in like]


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


def _from_end(trace: Trace, iv: str, rounds: int) -> str:
    last = trace.index(rounds - 1)
    return trace.let(f"arith.subi {last}, {iv} : index")


def _row(trace: Trace, value: Tracer, at: str) -> Tracer:
    """`value[at]` for an index that only the run knows."""
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


def _write(trace: Trace, row: Tracer, into: Tracer, at: str) -> str:
    if 0 in row.shape:
        return into.name
    offsets = ", ".join([at, *["0"] * row.ndim])
    return trace.let(
        f"tensor.insert_slice {trace.name(row)} into {into.name}[{offsets}] {[1, *row.shape]} "
        f"{[1] * into.ndim} : {row.type} into {into.type}"
    )


def _like(what: str, value: Any, wanted: _Leaves, structure: tree.Structure) -> _Leaves:
    """The leaves of a value that must be of the structure and types of another. CompileError when it is not."""
    leaves, form = _tensors(value)
    if form != structure:
        fail(f"{what} must keep its structure: {len(leaves)} leaves, {len(wanted)} are right")
    for path, leaf, right in zip(tree.paths(structure), leaves, wanted):
        if leaf.type != right.type:
            fail(f"{what}{path} is {_short(leaf)}, it must stay {_short(right)}")
    return leaves


def _short(value: Tracer) -> str:
    return f"{'x'.join(map(str, value.shape))}{'x' if value.shape else ''}{value.dtype}"


def _structured(
    trace: Trace, head: str, parts: Sequence[tuple[Block, list[str], str]], types: list[str]
) -> list[str]:
    """An scf op of several regions: each a block, what it yields, and the line in front of it; names of its results."""
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


def _predicate(name: str, value: Any) -> Tracer:
    chosen = tensor(value)
    if chosen.shape or chosen.dtype is not bool_:
        fail(f"{name}: the condition is {_short(chosen)}, one bool is right")
    return chosen


def _scalar(trace: Trace, value: Tracer) -> str:
    return trace.let(f"tensor.extract {trace.name(value)}[] : {value.type}")


def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *args: Any) -> Any:
    """`true_fun(*args)` where the scalar bool `pred` holds when the program runs, else `false_fun(*args)`.

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
    condition = _scalar(trace, _predicate("cond", pred))
    with trace.inside("a branch of a cond") as yes:
        first, structure = _tensors(true_fun(*args))
        kept = [trace.name(v) for v in first]
    with trace.inside("a branch of a cond") as no:
        second = _like("cond: what the second branch returns", false_fun(*args), first, structure)
        given = [trace.name(v) for v in second]
    if not first:
        return tree.unflatten(structure, iter(()))
    types = [v.type for v in first]
    head = f"scf.if {condition} -> ({', '.join(types)}) {{"
    names = _structured(trace, head, [(yes, kept, ""), (no, given, "} else {")], types)
    made = [Tracer(trace, n, v.shape, v.dtype) for n, v in zip(names, first)]
    return tree.unflatten(structure, iter(made))


def while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init: Any) -> Any:
    """`while cond_fun(value): value = body_fun(value)` from `init`, a pytree that keeps its shapes and dtypes.

    Raises CompileError where body_fun changes them, or cond_fun gives no scalar bool.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> double = mw.jit(lambda x: mw.while_loop(lambda v: mw.sum(v) < 10, lambda v: v * 2, x))
    >>> np.asarray(double(np.ones(3, np.float32))).tolist()
    [4.0, 4.0, 4.0]
    """
    trace = tracing()
    carry, structure = _tensors(init)
    if not carry:
        fail("while_loop: init has no leaves")
    with trace.inside("the condition of a while_loop") as before:
        tested = _arguments(trace, carry)
        holds = _predicate("while_loop", cond_fun(tree.unflatten(structure, iter(tested))))
        types = [v.type for v in carry]
        flag, names = _scalar(trace, holds), ", ".join([v.name for v in tested])
        trace.add(f"scf.condition({flag}) {names} : {', '.join(types)}")
    with trace.inside("the body of a while_loop") as body:
        given = _arguments(trace, carry)
        made = body_fun(tree.unflatten(structure, iter(given)))
        following = [trace.name(v) for v in _like("while_loop: the value", made, carry, structure)]
    starts = ", ".join([f"{v.name} = {trace.name(c)}" for v, c in zip(tested, carry)])
    joined = ", ".join(types)
    head = f"scf.while ({starts}) : ({joined}) -> ({joined}) {{"
    arguments = ", ".join([f"{v.name}: {v.type}" for v in given])
    parts = [(before, [], ""), (body, following, f"}} do {{\n^bb0({arguments}):")]
    results = _structured(trace, head, parts, types)
    last = [Tracer(trace, n, v.shape, v.dtype) for n, v in zip(results, carry)]
    return tree.unflatten(structure, iter(last))
