"""Define what a pass is, and the few helpers that read and change IR without ever leaving it broken.

A pass is a frozen dataclass: its fields are its options. It raises `PassFailure` (through `fail`)
for what users did wrong; the pipeline turns that into a diagnostic at the op and stops. Erasing a
value that is still read, or reading an op after it is gone, would end the process: so `erase`
checks, and everything here returns plain lists taken before any change.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import cache, cmp_to_key
from typing import ClassVar, NoReturn, TypeAlias, get_type_hints

from meshweave.errors import CompileError, LayoutError, MeshweaveError
from meshweave.hints.ledger import Refusal
from meshweave.ir.bindings import ir
from meshweave.ir.locations import location_text
from meshweave.ir.ops import ADVANCE, SKIP, move_body, replace_op
from meshweave.layout.mesh import Mesh

Located: TypeAlias = ir.Operation | ir.OpView | ir.Value | ir.Location
"""What has a place in the user's source."""

OpKind: TypeAlias = str | type[ir.OpView]
"""The name of an op, or its class."""


@dataclass(frozen=True)
class Pass:
    """Describe one step of a pipeline, run on the whole module.

    name: what the pipeline text and the command line call it, `dist-fold-redistribute`. The
          dataclass fields are the options (int, float, bool, str, or tuple[str, ...]; `max_uses` is
          written `max-uses=1`), each with a default.
    """

    name: ClassVar[str]

    def run(self, module: ir.Module) -> None:
        """Change `module` (a `builtin.module` op) in place, in its context, which the caller has entered.

        Raises PassFailure, by `fail`, when the program is at fault.
        """
        raise NotImplementedError

    @classmethod
    @cache
    def options(cls) -> dict[str, type]:
        """Return the type of each option by its name in text (with dashes)."""
        hints = get_type_hints(cls)
        return {f.name.replace("_", "-"): hints[f.name] for f in fields(cls)}

    def __str__(self) -> str:
        """Return the pass as pipeline text, with the options that are not at their default."""
        given = [(f.name, v) for f in fields(self) if (v := getattr(self, f.name)) != f.default]
        if not given:
            return self.name
        text = " ".join(f"{n.replace('_', '-')}={_value_text(v)}" for n, v in given)
        return f"{self.name}{{{text}}}"


def _value_text(value: ir.Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    text = str(value)
    return f'"{text}"' if any(c in text for c in ' {}"=') else text


class PassFailure(CompileError):
    """Refuse the program: one or more messages, each at the location of the op that it is about.

    refusal: what the message says of a required hint, as values; None where it is about none.
    """

    def __init__(
        self, *diagnostics: tuple[ir.Location, str], refusal: Refusal | None = None
    ) -> None:
        (loc, message), *_ = diagnostics
        super().__init__(message, location_text(loc))
        self.diagnostics = diagnostics
        self.refusal = refusal


def fail(op: Located, message: str) -> NoReturn:
    """Refuse the program at `op` (an op, value or location)."""
    raise PassFailure((_location(op), message))


def fail_all(problems: Sequence[tuple[Located, str]]) -> None:
    """Refuse the program for every (op, message) at once, in order. Does nothing when there are none."""
    if problems:
        raise PassFailure(*((_location(op), message) for op, message in problems))


def _location(op: Located) -> ir.Location:
    if isinstance(op, ir.Location):
        return op
    return op.location


@contextmanager
def at(op: Located, who: str = "") -> Iterator[None]:
    """Turn errors of the pure core (LayoutError, PlanError, ...) raised inside into failures at `op`, after `who: `."""
    try:
        yield
    except PassFailure:
        raise
    except MeshweaveError as error:
        raise PassFailure((_location(op), f"{who}: {error}" if who else str(error))) from error


# A remark is no failure, and the bindings can emit errors only: whoever runs the pipeline listens
# here.
_REMARKS: ContextVar[Callable[[ir.Location, str], None] | None] = ContextVar(
    "meshweave_remarks", default=None
)


def remark(op: Located, message: str) -> None:
    """Tell the user something about `op` that is no mistake. It is lost when no listener is set."""
    if (listener := _REMARKS.get()) is not None:
        listener(_location(op), message)


@contextmanager
def remarks_to(listener: Callable[[ir.Location, str], None] | None) -> Iterator[None]:
    """Send the remarks made inside to `listener(location, message)`."""
    token = _REMARKS.set(listener)
    try:
        yield
    finally:
        _REMARKS.reset(token)


def walk(root: ir.Operation, post: bool = False) -> list[ir.Operation]:
    """Return every op in and below `root`, parents first (children first when `post`), taken before any change."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        found.append(op)
        return ADVANCE

    root.operation.walk(visit, ir.WalkOrder.POST_ORDER if post else ir.WalkOrder.PRE_ORDER)
    return found


def op_name(kind: OpKind) -> str:
    """Return `dist.redistribute` for the class RedistributeOp; a name is itself."""
    return kind if isinstance(kind, str) else kind.OPERATION_NAME


_SCALAR_BODIES = ("linalg.generic", "linalg.map", "linalg.reduce", "mw.kernel")
_OUTSIDE_DIALECTS = ("dist.", "hint.", "mw.", "memref.")
_OUTSIDE = (
    "func.func",
    "linalg.generic",
    "linalg.softmax",
    "memref.global",
    "tensor.empty",
    "tensor.pad",
    "tensor.concat",
)


def ops_of(root: ir.Operation, *kinds: OpKind) -> list[ir.OpView]:
    """Return the ops below `root` of these classes (or names), as their own classes, in program order."""
    names = {op_name(k) for k in kinds}
    # Most ops of a program stand in bodies of linalg ops: no use looking there for what only stands outside.
    outside = all(n.startswith(_OUTSIDE_DIALECTS) or n in _OUTSIDE for n in names)
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        name = op.name
        if name in names:
            found.append(op.opview)
        return SKIP if outside and name in _SCALAR_BODIES else ADVANCE

    root.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


def copied(source: ir.Module) -> ir.Module:
    """Copy a module, for what tries something or lowers it."""
    module = ir.Module.create(loc=source.operation.location)
    for op in source.operation.regions[0].blocks[0].operations:
        op.operation.clone(ir.InsertionPoint(module.body))
    return module


def functions(module: ir.Module) -> list[ir.OpView]:
    """Return the `func.func` ops of the module that have a body, in order."""
    ops = module.operation.regions[0].blocks[0].operations
    return [
        f for f in ops if f.operation.name == "func.func" and len(f.operation.regions[0].blocks)
    ]


def mesh_op(module: ir.Module) -> ir.OpView | None:
    """Return the module's `dist.mesh`; None when it has none. A second one is refused."""
    block = module.operation.regions[0].blocks[0]
    found = [o for o in block.operations if o.operation.name == "dist.mesh"]
    if len(found) > 1:
        first = f'"dist.mesh" at {location_text(found[0])}'
        fail(found[1], f"one mesh per module, this is number {len(found)} (see {first})")
    return found[0] if found else None


def set_mesh(module: ir.Module, mesh: Mesh) -> None:
    """Write another mesh into the module's `dist.mesh`, which it has."""
    op = mesh_op(module)
    assert op is not None
    op.operation.attributes["axes"] = ir.StringAttr.get(str(mesh))


def mesh_of_module(module: ir.Module, concrete: bool = False) -> Mesh | None:
    """Return the module's mesh; None when it has none (a program for one rank).

    concrete: refuse a mesh whose sizes are still symbols.
    """
    op = mesh_op(module)
    if op is None:
        return None
    try:
        mesh = Mesh.parse(op.operation.attributes["axes"].value)
    except LayoutError as error:
        fail(op, str(error))
    if concrete and mesh.is_symbolic:
        fail(op, f"mesh ({mesh}) still has symbolic sizes: run dist-specialize-mesh first")
    return mesh


def port_attrs(f: ir.Operation | ir.OpView, key: str) -> list[dict[str, ir.Attribute]]:
    """Return the attributes of each argument (key `arg_attrs`) or result (`res_attrs`) of a function."""
    attrs = f.operation.attributes.get(key)
    if attrs is not None:
        read: dict[ir.Attribute, dict[str, ir.Attribute]] = {}  # many say the same
        for given in (rows := list(attrs)):
            if given not in read:
                read[given] = {a.name: a.attr for a in ir.DictAttr(given)}
        return [dict(read[given]) for given in rows]
    kind = f.operation.attributes["function_type"].value
    return [{} for _ in (kind.inputs if key == "arg_attrs" else kind.results)]


def set_port_attrs(
    f: ir.Operation | ir.OpView, key: str, entries: Sequence[Mapping[str, ir.Attribute]]
) -> None:
    """Give each argument or result of a function its attributes."""
    if entries:
        made = [ir.DictAttr.get(dict(entry)) for entry in entries]
        f.operation.attributes[key] = ir.ArrayAttr.get(made)


def _order(a: ir.Operation, b: ir.Operation) -> int:
    return 0 if a == b else -1 if a.is_before_in_block(b) else 1


in_block = cmp_to_key(_order)
"""Key that sorts ops of one block by their places in it."""


def users(value: ir.Value) -> list[ir.Operation]:
    """Return the ops that read `value`, one entry per use."""
    return [use.owner for use in value.uses]


def use_count(value: ir.Value) -> int:
    """Count the operands that read `value`."""
    return sum(1 for _ in value.uses)


def unused(op: ir.Operation) -> bool:
    """Tell whether nothing reads any result of `op`."""
    return not any(True for r in op.operation.results for _ in r.uses)


def erase(op: ir.Operation) -> None:
    """Remove `op`, which nothing reads. Later use of any wrapper of it is forbidden."""
    assert unused(op), f"{op.operation.name} is still read"
    op.operation.erase()


def erase_unused(root: ir.Operation, *kinds: OpKind) -> int:
    """Remove the ops of these classes that nothing reads, last first so that whole chains go. Return how many went."""
    gone = 0
    for op in reversed(ops_of(root, *kinds)):
        if unused(op):
            op.operation.erase()
            gone += 1
    return gone


def clone_with(
    op: ir.Operation, vmap: MutableMapping[ir.Value, ir.Value], ip: ir.InsertionPoint
) -> ir.Operation:
    """Copy `op` to `ip`; the copy reads `vmap[v]` for each operand `v` in it, in nested regions too.

    The results of the copy are put in `vmap` under those of `op`.
    """
    new = op.operation.clone(ip)
    new.walk(lambda inner: _remap(inner, vmap))
    vmap.update(zip(op.operation.results, new.results))
    return new


def _remap(op: ir.Operation, vmap: Mapping[ir.Value, ir.Value]) -> ir.WalkResult:
    for i, value in enumerate(op.operands):
        if value in vmap:
            op.operands[i] = vmap[value]
    return ADVANCE


def inline_single_block(op: ir.Operation) -> None:
    """Put the body of `op` (one region, one block) in its place: yielded values for results, then `op` is gone.

    The last op of the body yields the results; it is dropped. Block arguments must have been replaced before.
    """
    block = op.operation.regions[0].blocks[0]
    assert not any(True for a in block.arguments for _ in a.uses), "block arguments are still read"
    replace_op(op, move_body(block, ir.InsertionPoint(op)))
