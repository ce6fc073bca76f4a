"""The ops of random programs that have regions: linalg.generic of many kinds, control flow, calls, local regions."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from program_generic import BODIES, FOLDS, Generic, kinds, loop_maps
from program_ops import OPS, arith, dot_bound, scalar_first
from programs import Array, Program, Value, evaluate, exact, extend, tensor_type
from strategies import layouts

LOWEST = -99  # where the search for a largest element starts


def generic(draw: st.DrawFn, p: Program, a: Value) -> None:
    """A generic with random maps: out[..] = init[..] fold f(a[..], b[..], index)."""
    if a.element == "i1":
        return
    loops = len(a.shape)
    rows = [list(draw(st.permutations(range(loops))))]
    sizes = {d: a.shape[i] for i, d in enumerate(rows[0])}
    b = draw(st.sampled_from([v for v in p.values if v.element == a.element]))
    row: list[int] = []
    for extent in b.shape:
        fitting = [d for d, n in sizes.items() if n == extent and d not in row]
        if fitting and draw(st.booleans()):
            row.append(draw(st.sampled_from(fitting)))
        else:
            sizes[loops] = extent
            row.append(loops)
            loops += 1
    rows.append(row)
    if loops > 5 or np.prod(list(sizes.values())) > 4096:
        return
    reduced = draw(st.sets(st.integers(0, loops - 1), max_size=3))
    out = list(draw(st.permutations([d for d in range(loops) if d not in reduced])))
    shape = tuple(sizes[d] for d in out)
    name, _ = BODIES[draw(st.sampled_from(sorted(BODIES)))]
    fold = draw(st.sampled_from(sorted(FOLDS))) if reduced else "none"
    index = draw(st.sampled_from([None, *range(loops)])) if loops else None
    if name == "mul" and fold == "add":
        index = None if draw(st.booleans()) else index
    plain = fold == "none" and draw(st.booleans())  # an accumulator that is only added to
    start = draw(st.sampled_from([0, 1]))
    made = Generic((a, b), (rows[0], rows[1]), out, name, "plain" if plain else fold, index, start)
    inits = [v for v in p.values if v.shape == shape and v.element == a.element]
    given = draw(st.sampled_from(inits)) if inits and draw(st.booleans()) else None
    init = given.name if given is not None else p.filled(shape, start, a.element)
    others = (given,) if given is not None else ()
    p.op(made.text(init), made.compute, a, b, *others, bound=made.bound())


def two_results(draw: st.DrawFn, p: Program, a: Value) -> None:
    """Sum and largest at once, over one dim."""
    if a.element == "i1":
        return
    dim = draw(st.integers(0, len(a.shape) - 1))
    out = [d for d in range(len(a.shape)) if d != dim]
    shape = tuple(a.shape[d] for d in out)
    type_, e = tensor_type(shape, a.element), a.element
    inits = p.filled(shape, 0, e), p.filled(shape, -9, e)
    every = list(range(len(a.shape)))
    pair = p.helper(
        f"linalg.generic {{indexing_maps = {loop_maps([every, out, out], len(every))}, "
        f"iterator_types = {kinds(len(every), {dim})}}} ins({a.name} : {a.type}) "
        f"outs({inits[0]}, {inits[1]} : {type_}, {type_}) {{\n    ^bb0(%x: {e}, %o: {e}, %q: {e}):\n"
        f"      %s = {arith('add', a)} %o, %x : {e}\n      %m = {arith('max', a)} %q, %x : {e}\n"
        f"      linalg.yield %s, %m : {e}, {e}\n  }} -> ({type_}, {type_})",
        "pair",
    )
    p.lines[-1] = p.lines[-1].replace(f"{pair} =", f"{pair}:2 =")
    zero = p.filled(shape, 0, e)
    for i, fold in enumerate((np.add, np.maximum)):
        text = f"linalg.add ins({pair}#{i}, {zero} : {type_}, {type_}) outs($E : $T) -> $T"
        low = 0 if i == 0 else -9
        total = float(np.abs(a.value.astype("f8")).sum())
        p.op(
            text,
            lambda x, f=fold, low=low: f.reduce(x, axis=dim, initial=low).astype(x.dtype),
            a,
            bound=total,
        )


def largest_place(draw: st.DrawFn, p: Program, a: Value) -> None:
    """Where the largest element along a dim stands, as JAX lowers argmax: two accumulators."""
    if a.element == "i1" or not all(a.shape):
        return
    dim = draw(st.integers(0, len(a.shape) - 1))
    out, every = [d for d in range(len(a.shape)) if d != dim], list(range(len(a.shape)))
    shape, e = tuple(a.shape[d] for d in out), a.element
    best, place = tensor_type(shape, e), tensor_type(shape, "i32")
    inits = p.filled(shape, LOWEST, e), p.filled(shape, 0, "i32")
    greater = "arith.cmpf ogt" if a.is_float else "arith.cmpi sgt"
    pair = p.helper(
        f"linalg.generic {{indexing_maps = {loop_maps([every, out, out], len(every))}, "
        f"iterator_types = {kinds(len(every), {dim})}}} ins({a.name} : {a.type}) "
        f"outs({inits[0]}, {inits[1]} : {best}, {place}) {{\n    ^bb0(%x: {e}, %o: {e}, %q: i32):\n"
        f"      %i = linalg.index {dim} : index\n      %w = arith.index_cast %i : index to i32\n"
        f"      %c = {greater}, %x, %o : {e}\n      %m = arith.select %c, %x, %o : {e}\n"
        f"      %k = arith.select %c, %w, %q : i32\n      linalg.yield %m, %k : {e}, i32\n"
        f"  }} -> ({best}, {place})",
        "pair",
    )
    p.lines[-1] = p.lines[-1].replace(f"{pair} =", f"{pair}:2 =")
    zero = p.filled(shape, 0, "i32")
    text = f"arith.addi {pair}#1, {zero} : $T"

    def first(x: np.ndarray) -> np.ndarray:
        return np.where(x.max(axis=dim) > LOWEST, np.argmax(x, axis=dim), 0)

    p.op(text, first, a, element="i32")


def lookup(draw: st.DrawFn, p: Program, a: Value) -> None:
    """Rows of a table at the (clamped) places that `a` says."""
    if a.element == "i1" or len(a.shape) > 2:
        return
    table = draw(st.sampled_from([v for v in p.values if len(v.shape) in (1, 2)]))
    if not all(table.shape):
        return
    rows, cols = table.shape[0], table.shape[1:]
    loops, e, ins = len(a.shape) + len(cols), table.element, list(range(len(a.shape)))
    direct = draw(st.booleans())  # the table's other dim is read at the loop's own index
    index = [f"%j = linalg.index {loops - 1} : index"] if cols else []
    where = "%k, %j" if cols else "%k"
    if cols and not direct:
        index.append("%zero = arith.constant 0 : index")
        index.append("%jj = arith.maxsi %j, %zero : index")
        where = "%k, %jj"
    as_i32 = {"i32": [], "i64": [f"%w = arith.trunci %x : {a.element} to i32"]}
    cast = as_i32.get(a.element, [f"%w = arith.fptosi %x : {a.element} to i32"])
    body = [
        *cast,
        "%lo = arith.constant 0 : i32",
        f"%hi = arith.constant {rows - 1} : i32",
        f"%l = arith.maxsi {'%w' if cast else '%x'}, %lo : i32",
        "%m = arith.minsi %l, %hi : i32",
        "%k = arith.index_cast %m : i32 to index",
        *index,
        f"%v = tensor.extract {table.name}[{where}] : {table.type}",
        f"linalg.yield %v : {e}",
    ]
    text = (
        f"linalg.generic {{indexing_maps = {loop_maps([ins, list(range(loops))], loops)}, "
        f"iterator_types = {kinds(loops, set())}}} ins({a.name} : {a.type}) outs($E : $T) {{\n"
        f"    ^bb0(%x: {a.element}, %o: {e}):\n      " + "\n      ".join(body) + "\n  } -> $T"
    )
    p.op(
        text, lambda t, x: t[np.clip(x.astype("i4"), 0, rows - 1)], table, a, element=table.element
    )


def read_at_loop(draw: st.DrawFn, p: Program, a: Value) -> None:
    """a[i, ..] + t[i] with t read in the body at the loop's index, as a captured tensor."""
    if a.element == "i1":
        return
    dim = draw(st.integers(0, len(a.shape) - 1))
    tables = [
        v
        for v in p.values
        if v.element == a.element and len(v.shape) == 1 and v.shape[0] >= a.shape[dim]
    ]
    if not tables:
        return
    t = draw(st.sampled_from(tables))
    every, e = list(range(len(a.shape))), a.element
    text = (
        f"linalg.generic {{indexing_maps = {loop_maps([every, every], len(every))}, "
        f"iterator_types = {kinds(len(every), set())}}} ins({a.name} : {a.type}) outs($E : $T) {{\n"
        f"    ^bb0(%x: {e}, %o: {e}):\n      %i = linalg.index {dim} : index\n"
        f"      %v = tensor.extract {t.name}[%i] : {t.type}\n      %s = {arith('add', a)} %x, %v : {e}\n"
        f"      linalg.yield %s : {e}\n  }} -> $T"
    )
    row = [-1 if d == dim else 1 for d in every]
    p.op(text, lambda x, y: x + y[: x.shape[dim]].reshape(row), a, t)


def in_region(
    draw: st.DrawFn, p: Program, entering: list[Value], visible: list[Value]
) -> tuple[list[str], list[Value]]:
    """A few ops in a region of their own: its lines, and for each of `entering` a value of the same type."""
    lines, values = p.lines, p.values
    p.lines, p.values = [], [*visible, *entering]
    nested = (*OPS, *SIMPLE, for_loop, branch) if p.depth < 2 else OPS + SIMPLE
    p.depth += 1
    extend(draw, p, nested, 2)
    p.depth -= 1
    made = p.values[len(visible) :]
    leaving = []
    for value in entering:
        fitting = [v for v in made if v.type == value.type]
        leaving.append(draw(st.sampled_from([fitting[-1], *fitting])))
    body, p.lines, p.values = p.lines, lines, values
    return body, leaving


def for_loop(draw: st.DrawFn, p: Program, a: Value) -> None:
    """A loop that carries one or two tensors."""
    trips = draw(st.integers(0, 3))
    start = [a, *([draw(st.sampled_from(p.values))] if draw(st.booleans()) else [])]
    start = [v for v in start if v.element != "index"]
    entering, around = [Value(p.name("it"), v.element, v.value) for v in start], list(p.values)
    body, leaving = in_region(draw, p, entering, p.values)

    def looped(*first: Array) -> list[Array]:
        now, outside = list(first[: len(start)]), dict(zip(around, first[len(start) :]))
        for _ in range(trips):
            known = outside | dict(zip(entering, now))
            now = [evaluate(v, known) for v in leaving]
            trail.extend((v.element, x) for v, x in known.items())
        return now

    trail: list[tuple[str, Array]] = []
    results = looped(*[v.value for v in (*start, *around)])
    if not all(exact([x], element) for element, x in trail):
        return
    bounds = [p.helper(f"arith.constant {n} : index", "c") for n in (0, trips, 1)]
    carried = ", ".join(f"{e.name} = {v.name}" for e, v in zip(entering, start))
    types = ", ".join(v.type for v in start)
    head = f"scf.for {p.name('iv')} = {bounds[0]} to {bounds[1]} step {bounds[2]}"
    name = p.helper(
        f"{head} iter_args({carried}) -> ({types}) {{\n    "
        + "\n    ".join([*body, f"scf.yield {', '.join(v.name for v in leaving)} : {types}"])
        + "\n  }",
        "for",
    )
    _take(p, name, start, around, looped, results)


def _take(
    p: Program,
    name: str,
    like: list[Value],
    around: list[Value],
    compute: Any,
    results: list[Array],
) -> None:
    """Results of an op with several, as values of the program. around: what its body may read besides."""
    if len(like) > 1:
        p.lines[-1] = p.lines[-1].replace(f"{name} =", f"{name}:{len(like)} =", 1)
    for i, (value, result) in enumerate(zip(like, results)):
        text = f"{name}#{i}" if len(like) > 1 else name
        fn = lambda *x, i=i: compute(*x)[i]  # noqa: E731
        p.values.append(Value(text, value.element, result, (fn, (*like, *around))))


def while_loop(draw: st.DrawFn, p: Program, a: Value) -> None:
    """A loop that counts in a scalar, or in a tensor of one element, and carries `a`."""
    if a.element == "i1":
        return
    trips = draw(st.integers(0, 3))
    entering, around = [Value(p.name("it"), a.element, a.value)], list(p.values)
    body, leaving = in_region(draw, p, entering, p.values)

    def looped(x: Array, *others: Array) -> list[Array]:
        for _ in range(trips):
            known = dict(zip(around, others)) | {entering[0]: x}
            x = evaluate(leaving[0], known)
            trail.extend((v.element, y) for v, y in known.items())
        return [x]

    trail: list[tuple[str, Array]] = []
    results = looped(*[v.value for v in (a, *around)])
    if not all(exact([x], element) for element, x in trail):
        return
    zero, end = (p.helper(f"arith.constant {n} : i32", "c") for n in (0, trips))
    one = p.helper("arith.constant 1 : i32", "c")
    inner, t, n = entering[0].name, a.type, p.name("n")
    name = p.helper(
        f"scf.while ({n} = {zero}, %b = {a.name}) : (i32, {t}) -> (i32, {t}) {{\n"
        f"    %more = arith.cmpi slt, {n}, {end} : i32\n    scf.condition(%more) {n}, %b : i32, {t}\n  }} do {{\n"
        f"  ^bb0({n}: i32, {inner}: {t}):\n    %next = arith.addi {n}, {one} : i32\n    "
        + "\n    ".join([*body, f"scf.yield %next, {leaving[0].name} : i32, {t}"])
        + "\n  }",
        "while",
    )
    p.lines[-1] = p.lines[-1].replace(f"{name} =", f"{name}:2 =", 1)
    fn = lambda *x: looped(*x)[0]  # noqa: E731
    p.values.append(Value(f"{name}#1", a.element, results[0], (fn, (a, *around))))


def branch(draw: st.DrawFn, p: Program, a: Value) -> None:
    """One value or another of the type of `a`, by the sign of an element."""
    if a.element == "i1" or not all(a.shape):
        return
    lines = p.lines
    p.lines = []
    first = scalar_first(p, a)
    zero = p.constant(0, a.element)
    less = "arith.cmpf olt" if a.is_float else "arith.cmpi slt"
    condition = p.helper(f"{less}, {first}, {zero} : {a.element}", "cond")
    p.lines = [*lines, *p.lines]
    around = list(p.values)
    bodies = [in_region(draw, p, [a], p.values) for _ in range(2)]
    (yes,), (no,) = (leaving for _, leaving in bodies)
    text = [
        "\n    ".join([*body, f"scf.yield {leaving[0].name} : {a.type}"])
        for body, leaving in bodies
    ]
    name = p.helper(
        f"scf.if {condition} -> ({a.type}) {{\n    {text[0]}\n  }} else {{\n    {text[1]}\n  }}",
        "if",
    )

    def chosen(x: Array, *others: Array) -> Array:
        return evaluate(yes if x.flat[0] < 0 else no, dict(zip(around, others)) | {a: x})

    value = chosen(*[v.value for v in (a, *around)])
    p.values.append(Value(name, a.element, value, (chosen, (a, *around))))


def call(draw: st.DrawFn, p: Program, a: Value) -> None:
    """A private function, called with two values of one type."""
    b = draw(st.sampled_from(p.like(a)))
    argument = Value(p.name("p"), a.element, a.value)
    body, (result,) = in_region(draw, p, [argument], [])
    function = f"f{p.count}"

    def applied(x: Array) -> Array:
        known = {argument: x}
        return evaluate(result, known)

    for value in (a, b):
        known = {argument: value.value}
        evaluate(result, known)
        if not all(exact([x], v.element) for v, x in known.items()):
            return
    p.functions.append(
        f"func.func private @{function}({argument.name}: {a.type}) -> {result.type} {{\n  "
        + "\n  ".join([*body, f"return {result.name} : {result.type}"])
        + "\n}\n"
    )
    for value in (a, b):
        name = p.helper(f"call @{function}({value.name}) : ({a.type}) -> {result.type}", "call")
        p.values.append(Value(name, a.element, applied(value.value), (applied, (value,))))


def local_region(draw: st.DrawFn, p: Program, a: Value) -> None:
    """A region in the local view: gather one dim, or add up over an axis that the layout does not use."""
    layout = draw(layouts(p.mesh, len(a.shape), kinds=()))
    if a.element == "i1" or not layout.is_even(p.mesh, a.shape):
        return
    local = tensor_type(layout.local_shape(p.mesh, a.shape), a.element)
    free = [x for x in p.mesh.names if x not in layout.used_axes]
    cut = [d for d in range(len(a.shape)) if layout.axes_of(d)]
    lines, last, out, factor, type_ = [], "%l", layout, 1, local
    if free and draw(st.booleans()):
        lines.append(
            f'%r = "dist.all_reduce"(%l) {{axes = ["{free[0]}"], kind = "sum"}} : ({local}) -> {local}'
        )
        last, factor = "%r", p.mesh.size(free[0])
    if cut and draw(st.booleans()):
        dim = draw(st.sampled_from(cut))
        axes = ", ".join(f'"{x}"' for x in layout.axes_of(dim))
        out = layout.with_axes(dim, ())
        type_ = tensor_type(out.local_shape(p.mesh, a.shape), a.element)
        lines.append(
            f'%g = "dist.all_gather"({last}) {{axes = [{axes}], dim = {dim}}} : ({local}) -> {type_}'
        )
        last = "%g"
    text = (
        f'scf.execute_region -> $T no_inline {{\n    %l = "dist.to_local"({a.name}) {{layout = '
        f'#dist.layout<"{layout}">}} : ({a.type}) -> {local}\n    '
        + "\n    ".join(lines)
        + f'\n    %o = "dist.to_global"({last}) {{layout = #dist.layout<"{out}">}} : ({type_}) -> $T\n'
        "    scf.yield %o : $T\n  } {dist.manual}"
    )
    p.op(text, lambda x: x * x.dtype.type(factor), a)


SIMPLE = (generic, generic, generic, two_results, largest_place, lookup, read_at_loop)
REGIONS = (for_loop, while_loop, branch, call, local_region)
STEPS = (*OPS, *SIMPLE, *SIMPLE, *REGIONS)
__all__ = ["STEPS", "dot_bound"]
