"""What a pass is, and the few helpers that read and change IR without ever leaving it broken.

A pass is a frozen dataclass: its fields are its options. It raises `PassFailure` (through `fail`)
for what users did wrong; the pipeline turns that into a diagnostic at the op and stops. Erasing a
value that is still read, or reading an op after it is gone, would end the process: so `erase`
checks, and everything here returns plain lists taken before any change.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, NoReturn, get_type_hints

from meshweave.bindings import ir
from meshweave.errors import CompileError, MeshweaveError
from meshweave.locations import location_text


@dataclass(frozen=True)
class Pass:
    """One step of a pipeline, run on the whole module.

    name: what the pipeline text and the command line call it, `dist-fold-redistribute`. The
          dataclass fields are the options (int, float, bool, str, or tuple[str, ...]; `max_uses` is
          written `max-uses=1`), each with a default.
    """

    name: ClassVar[str]

    def run(self, module: Any) -> None:
        """Change `module` (a `builtin.module` op) in place. Raises PassFailure, by `fail`, when the
        program is at fault.
        """
        raise NotImplementedError

    @classmethod
    def options(cls) -> dict[str, Any]:
        """Type of each option by its name in text (dashes)."""
        return dict(_options(cls))

    def __str__(self) -> str:
        """The pass as pipeline text, with the options that are not at their default."""
        given = [(f.name, v) for f in fields(self) if (v := getattr(self, f.name)) != f.default]
        if not given:
            return self.name
        text = " ".join(f"{n.replace('_', '-')}={_value_text(v)}" for n, v in given)
        return f"{self.name}{{{text}}}"


@cache
def _options(kind: type[Pass]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {f.name.replace("_", "-"): hints[f.name] for f in fields(kind)}


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    text = str(value)
    return f'"{text}"' if any(c in text for c in ' {}"=') else text


class PassFailure(CompileError):
    """A pass refuses the program: one or more messages, each at the location of the op that it is
    about.
    """

    def __init__(self, *diagnostics: tuple[Any, str]) -> None:
        (loc, message), *_ = diagnostics
        super().__init__(message, location_text(loc))
        self.diagnostics = diagnostics


def also(op: Any, what: str = "") -> str:
    """`what` (default: the op's name in quotes) and where it is: the second party of a message."""
    return f"{what or chr(34) + op.operation.name + chr(34)} at {location_text(op)}"


def fail(op: Any, message: str, notes: Sequence[Any] = ()) -> NoReturn:
    """Refuse the program at `op` (an op, value or location). Each note, an op or a text, is named
    in brackets after it.
    """
    raise PassFailure((_location(op), _noted(message, notes)))


def fail_all(problems: Sequence[tuple[Any, str]]) -> None:
    """Refuse the program for every (op, message) at once, in order; does nothing when there are
    none.
    """
    if problems:
        raise PassFailure(*((_location(op), message) for op, message in problems))


def _location(op: Any) -> Any:
    if isinstance(op, ir.Location):
        return op
    return op.location


def _noted(message: str, notes: Sequence[Any]) -> str:
    if not notes:
        return message
    return f"{message} (see {', '.join(n if isinstance(n, str) else also(n) for n in notes)})"


@contextmanager
def at(op: Any, who: str = "") -> Iterator[None]:
    """Errors of the pure core (LayoutError, PlanError, ..) raised inside become failures at `op`,
    after `who: `.
    """
    try:
        yield
    except PassFailure:
        raise
    except MeshweaveError as error:
        raise PassFailure((_location(op), f"{who}: {error}" if who else str(error))) from error


# A remark is no failure, and the bindings can emit errors only: whoever runs the pipeline listens
# here.
_REMARKS: ContextVar[Callable[[Any, str], None] | None] = ContextVar(
    "meshweave_remarks", default=None
)


def remark(op: Any, message: str, notes: Sequence[Any] = ()) -> None:
    """Tell the user something about `op` that is no mistake. Nobody hears it when no listener is
    set.
    """
    if (listener := _REMARKS.get()) is not None:
        listener(_location(op), _noted(message, notes))


@contextmanager
def remarks_to(listener: Callable[[Any, str], None] | None) -> Iterator[None]:
    """Remarks inside go to `listener(location, message)`."""
    token = _REMARKS.set(listener)
    try:
        yield
    finally:
        _REMARKS.reset(token)


def walk(root: Any, post: bool = False) -> list[Any]:
    """Every `ir.Operation` in and below `root`, parents first (children first when `post`), taken
    before any change.
    """
    found: list[Any] = []

    def visit(op: Any) -> Any:
        found.append(op)
        return ir.WalkResult.ADVANCE

    root.operation.walk(visit, ir.WalkOrder.POST_ORDER if post else ir.WalkOrder.PRE_ORDER)
    return found


def op_name(kind: Any) -> str:
    """`dist.redistribute` of the class RedistributeOp; a name is itself."""
    return kind if isinstance(kind, str) else kind.OPERATION_NAME


_SCALAR_BODIES = ("linalg.generic", "linalg.map", "linalg.reduce")
_OUTSIDE = (
    "linalg.generic",
    "linalg.softmax",
    "memref.global",
    "tensor.empty",
    "tensor.pad",
    "tensor.concat",
)


def ops_of(root: Any, *kinds: Any) -> list[Any]:
    """The ops below `root` of these classes (or names), as their own classes, in program order."""
    names = {op_name(k) for k in kinds}
    # Most ops of a program stand in bodies of linalg ops: no use looking there for what only stands outside.
    outside = all(n.startswith(("dist.", "hint.")) or n in _OUTSIDE for n in names)
    found: list[Any] = []

    def visit(op: Any) -> Any:
        name = op.name
        if name in names:
            found.append(op.opview)
        return ir.WalkResult.SKIP if outside and name in _SCALAR_BODIES else ir.WalkResult.ADVANCE

    root.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


def copied(source: Any) -> Any:
    """A copy of the module: what tries something, or lowers, changes that."""
    module = ir.Module.create(loc=source.operation.location)
    for op in source.operation.regions[0].blocks[0].operations:
        op.operation.clone(ir.InsertionPoint(module.body))
    return module


def functions(module: Any) -> list[Any]:
    """The `func.func` ops of the module that have a body, in order."""
    ops = module.operation.regions[0].blocks[0].operations
    return [
        f for f in ops if f.operation.name == "func.func" and len(f.operation.regions[0].blocks)
    ]


def users(value: Any) -> list[Any]:
    """The ops that read `value`, one entry per use."""
    return [use.owner for use in value.uses]


def use_count(value: Any) -> int:
    """How many operands read `value`."""
    return sum(1 for _ in value.uses)


def unused(op: Any) -> bool:
    """True when nothing reads any result of `op`."""
    return not any(True for r in op.operation.results for _ in r.uses)


def erase(op: Any) -> None:
    """Remove `op`, which nothing reads any more. Later use of any wrapper of it is forbidden."""
    assert unused(op), f"{op.operation.name} is still read"
    op.operation.erase()


def erase_unused(root: Any, *kinds: Any) -> int:
    """Remove the ops of these classes that nothing reads, last first so that chains go whole; how
    many went.
    """
    gone = 0
    for op in reversed(ops_of(root, *kinds)):
        if unused(op):
            op.operation.erase()
            gone += 1
    return gone


def replace(op: Any, values: Sequence[Any]) -> None:
    """Let every reader of `op`'s results read `values` instead, and remove `op`."""
    results = list(op.operation.results)
    assert len(results) == len(values), (
        f"{op.operation.name} has {len(results)} results, not {len(values)}"
    )
    for result, value in zip(results, values):
        result.replace_all_uses_with(value)
    op.operation.erase()


def clone_with(op: Any, vmap: MutableMapping[Any, Any], ip: Any) -> Any:
    """A copy of `op` at `ip` that reads `vmap[v]` for each operand `v` in it, in nested regions
    too.

    The results of the copy are put in `vmap` under those of `op`.
    """
    new = op.operation.clone(ip)
    new.walk(lambda inner: _remap(inner, vmap))
    vmap.update(zip(op.operation.results, new.results))
    return new


def _remap(op: Any, vmap: Mapping[Any, Any]) -> Any:
    for i, value in enumerate(op.operands):
        if value in vmap:
            op.operands[i] = vmap[value]
    return ir.WalkResult.ADVANCE


def inline_single_block(op: Any) -> None:
    """Splice the body of `op` (one region, one block) in its place: yielded values for results,
    then `op` is gone.

    The last op of the body yields the results; it is dropped. Block arguments must have been replaced before.
    """
    block = op.operation.regions[0].blocks[0]
    assert not any(True for a in block.arguments for _ in a.uses), "block arguments are still read"
    *body, end = list(block.operations)
    yielded = list(end.operation.operands)
    for o in body:
        o.operation.move_before(op.operation)
    replace(op, yielded)
