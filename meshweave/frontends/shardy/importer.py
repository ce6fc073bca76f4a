"""Import what Shardy says of a program: the mesh, the layouts of the signature, constraints.

This runs after inlining, on StableHLO: the only function is the entry function. manual.py imports
`sdy.manual_computation`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from meshweave.dialects.dist import DONATE, TAKES, UNSIGNED, WEIGHT, LayoutAttr
from meshweave.errors import CompileError, LayoutError
from meshweave.frontends.shardy.shardings import (
    MeshText,
    ShardyLayout,
    parse_axes,
    parse_mesh,
    parse_per_value,
    parse_sharding,
)
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64
from meshweave.ir.locations import location_text
from meshweave.ir.ops import Ops, is_used, ops_where, producer
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh

_CONTROL = ("stablehlo.while", "stablehlo.case", "stablehlo.if", "sdy.manual_computation")


Attributes: TypeAlias = Mapping[str, ir.Attribute]
Place: TypeAlias = ir.Operation | ir.Location
"""Where an error is: an op, or a location."""


class EntryAttributes(NamedTuple):
    """Hold the attributes of the arguments and results of @main in our terms, empty where there are none."""

    arguments: tuple[Attributes, ...]
    results: tuple[Attributes, ...]


class Meshes:
    """Collect the meshes of a program. They must be one: shardings are read against it."""

    def __init__(self, ops: Ops) -> None:
        self.declared = {
            required(op, "sym_name").value: _declared(op) for op in ops.get("sdy.mesh", ())
        }
        self.used: MeshText | None = None
        self.used_at = ""
        self.axes_named: set[str] = set()

    def read(self, sharding: ShardyLayout, kind: ir.Type, where: Place) -> ShardyLayout:
        """Check that the sharding of a value of type `kind` is over the program's one mesh, and return it.

        A tensor that one device alone holds (a maximal sharding) is whole on all ranks. Errors are at `where`.
        """
        mesh = sharding.mesh
        if isinstance(mesh, str):
            if mesh not in self.declared:
                raise CompileError(f"sharding over @{mesh}: no such mesh", location_text(where))
            mesh = self.declared[mesh]
        if mesh.is_maximal:
            return ShardyLayout.whole(mesh, len(getattr(kind, "shape", ())))
        self.axes_named |= sharding.named_axes
        if mesh.axes:
            self._use(mesh, where)
        return sharding

    def _use(self, mesh: MeshText, where: Place) -> None:
        if self.used is None:
            self.used, self.used_at = mesh, location_text(where)
        elif mesh != self.used:
            raise CompileError(
                f"shardings over several meshes ({_axes_text(self.used)} at {self.used_at}, "
                f"{_axes_text(mesh)} here): a program has one mesh; name axes of sub-meshes in it",
                location_text(where),
            )

    def _chosen(self) -> MeshText | None:
        chosen = {self.used} if self.used else {m for m in self.declared.values() if m.axes}
        return chosen.pop() if len(chosen) == 1 else None

    def devices(self) -> tuple[int, ...]:
        """Return the numbers that the program has for the ranks of its mesh, in order."""
        chosen, mesh = self._chosen(), self.mesh()
        return () if chosen is None or mesh is None else chosen.devices(mesh.nranks)

    def mesh(self) -> Mesh | None:
        """Return the program's mesh: the one its shardings use, else the one it declares, else None."""
        chosen = self._chosen()
        if chosen is None:
            return None
        try:
            return chosen.mesh()
        except CompileError as error:
            raise CompileError(error.message, self.used_at or None) from None


@contextmanager
def errors_at(where: Place, about: str = "") -> Iterator[None]:
    """Give the errors of readers, which know no place, this one, and say what they are about."""
    try:
        yield
    except CompileError as error:
        raise CompileError(f"{about}{error.message}", location_text(where)) from None


def required(op: ir.Operation, name: str) -> Any:
    """Return an attribute of an op of Shardy, which nothing has verified. Raises CompileError where there is none."""
    if name not in op.attributes:
        raise CompileError(f'{op.name}: it has no attribute "{name}"', location_text(op.location))
    return op.attributes[name]


def _declared(op: ir.Operation) -> MeshText:
    with errors_at(op):
        return parse_mesh(str(required(op, "mesh")))


def _axes_text(mesh: MeshText) -> str:
    return ", ".join(f"{name}={size}" for name, size in mesh.axes)


def read_at(where: Place, text: str, kind: ir.Type, meshes: Meshes) -> ShardyLayout:
    """Read the sharding `text` of a value of type `kind`. Errors are at `where`."""
    with errors_at(where, f"{text}: "):
        sharding = parse_sharding(text)
    return meshes.read(sharding, kind, where)


def layout_attributes(sharding: ShardyLayout, where: Place) -> dict[str, ir.Attribute]:
    """Return `layout`, and `open`, `replicated`, `priorities` where the sharding says more than a layout does."""
    with errors_at(where):
        layout = sharding.layout()
    attrs: dict[str, ir.Attribute] = {"layout": LayoutAttr.make(layout)}
    if sharding.open_dims:
        attrs["open"] = ir.DenseI64ArrayAttr.get(list(sharding.open_dims))
    if sharding.replicated:
        attrs["replicated"] = ir.ArrayAttr.get([ir.StringAttr.get(a) for a in sharding.replicated])
    if any(p is not None for p in sharding.priorities):
        attrs["priorities"] = ir.DenseI64ArrayAttr.get([p or 0 for p in sharding.priorities])
    return attrs


def import_signature(main: ir.Operation, meshes: Meshes) -> EntryAttributes:
    """Read and take off the attributes of the arguments and results of `main`.

    `sdy.sharding` becomes `dist.layout` and its companions. An unsigned argument or result is marked `dist.unsigned`,
    because linalg has signless integers only. Annotations of GSPMD, the partitioner before Shardy, are refused. What
    XLA and JAX say of donations (`tf.aliasing_output`, `jax.buffer_donor`) becomes `dist.donate` and `dist.takes`.
    """
    kind = main.attributes["function_type"].value
    read: dict[str, tuple[Attributes, ...]] = {}
    none = ir.DictAttr.get({})
    known: dict[tuple[ir.Attribute, ir.Type], Attributes] = {}  # many say the same
    for key, types in (("arg_attrs", kind.inputs), ("res_attrs", kind.results)):
        given = list(main.attributes[key]) if key in main.attributes else [none] * len(types)
        said = list(zip(given, types, strict=True))
        for attrs, type_ in said:
            if (attrs, type_) not in known:
                known[attrs, type_] = _value_attributes(attrs, type_, meshes, main)
        read[key] = tuple(known[each] for each in said)
    arguments, results = (
        [dict(entry) for entry in read[key]] for key in ("arg_attrs", "res_attrs")
    )
    if "arg_attrs" in main.attributes:
        for number, attrs in enumerate(main.attributes["arg_attrs"]):
            _import_donation(number, attrs, arguments[number], results, main)
    for key in read:
        if key in main.attributes:
            del main.attributes[key]
    return EntryAttributes(tuple(arguments), tuple(results))


def _import_donation(
    number: int, attrs: Attributes, argument: dict[str, ir.Attribute],
    results: Sequence[dict[str, ir.Attribute]], main: ir.Operation,
) -> None:  # fmt: skip
    """Note that an argument is donated, and the result that takes its buffer where that is said."""
    if "tf.aliasing_output" in attrs:
        result = attrs["tf.aliasing_output"].value
        if not 0 <= result < len(results):
            text = f"argument {number}: tf.aliasing_output = {result}, there are {len(results)} results"
            raise CompileError(text, location_text(main.location))
        results[result].setdefault(TAKES, i64(number))
    elif "jax.buffer_donor" not in attrs:
        return
    argument.setdefault(DONATE, ir.StringAttr.get("preferred"))


def _value_attributes(
    attrs: Attributes, kind: ir.Type, meshes: Meshes, main: ir.Operation
) -> Attributes:
    found: dict[str, ir.Attribute] = {}
    if "sdy.sharding" in attrs:
        sharding = read_at(main, str(attrs["sdy.sharding"]), kind, meshes)
        found = {f"dist.{k}": v for k, v in layout_attributes(sharding, main).items()}
    elif "mhlo.sharding" in attrs:
        refuse_gspmd(attrs["mhlo.sharding"], main)
        found["dist.layout"] = LayoutAttr.make(str(Layout.replicated(len(kind.shape))))
    kept = ("dist.layout", "dist.open", "dist.replicated", "dist.priorities", DONATE, TAKES, WEIGHT)
    for name in kept:
        if name in attrs and name not in found:  # a program that has ours already
            found[name] = attrs[name]
    element = getattr(kind, "element_type", None)
    if isinstance(element, ir.IntegerType) and element.is_unsigned:
        found[UNSIGNED] = ir.UnitAttr.get()
    return found


def refuse_gspmd(annotation: ir.Attribute, where: Place) -> None:
    """Refuse an `mhlo.sharding`, unless it says that the value is replicated."""
    text = str(getattr(annotation, "value", annotation))
    if text.strip() != "{replicated}":
        raise CompileError(
            f'mhlo.sharding = "{text}": annotations of the GSPMD partitioner are not supported: '
            "export with Shardy (jax_use_shardy_partitioner=True, the default)",
            location_text(where),
        )


def import_constraints(ops: Ops, meshes: Meshes) -> None:
    """Turn every sdy.sharding_constraint into dist.constrain."""
    for op in ops.get("sdy.sharding_constraint", ()):
        value, result = op.operands[0], op.results[0]
        sharding = read_at(op, str(required(op, "sharding")), value.type, meshes)
        around = op.parent.name
        # In a reducer or comparator values are elements, which have no layout.
        scalar = around.startswith("stablehlo.") and around not in _CONTROL
        if scalar or _says_nothing(sharding, op):
            result.replace_all_uses_with(value)
        else:
            new = constrain(value, sharding, op)
            if not is_used(result):
                _apply_to_all_uses(new)
            result.replace_all_uses_with(new.result)
        op.erase()


def constrain(value: ir.Value, sharding: ShardyLayout, where: ir.Operation) -> ir.Operation:
    """Make a `dist.constrain` of `value` in front of the op `where`."""
    attrs = layout_attributes(sharding, where)
    dims = len(value.type.shape) if isinstance(value.type, ir.RankedTensorType) else None
    if dims != len(sharding.axes):
        raise CompileError(
            f"a sharding of {len(sharding.axes)} dims for a value of type {value.type}",
            location_text(where),
        )
    return OpBuilder.before(where).op("dist.constrain", [value.type], [value], **attrs)


def _says_nothing(sharding: ShardyLayout, op: ir.Operation) -> bool:
    """Tell whether a constraint is inside a manual computation. Raises if it names an axis that is manual there.

    Along the others each rank computes the whole there, whatever a constraint says.
    """
    manual = manual_around(op)
    if manual is None:
        return False
    with errors_at(op):
        axes = parse_axes(str(required(manual, "manual_axes")))
    if sharding.named_axes & set(axes):
        raise CompileError(
            f"sharding_constraint over {', '.join(sorted(sharding.named_axes))} inside "
            "sdy.manual_computation, whose values are local already",
            location_text(op),
        )
    return True


def manual_around(op: ir.Operation) -> ir.Operation | None:
    """Return the manual computation that an op is in, None for an op in none."""
    parent = op.parent
    while parent is not None and parent.operation.name != "sdy.manual_computation":
        parent = parent.operation.parent
    return None if parent is None else parent.operation


def import_groups(
    main: ir.Operation, ops: Ops, meshes: Meshes, arguments: Sequence[Attributes]
) -> None:
    """Give the values of each sdy.sharding_group the sharding that one of them has. Raises where none has."""
    groups: dict[int, list[ir.Operation]] = {}
    for op in ops.get("sdy.sharding_group", ()):
        groups.setdefault(required(op, "group_id").value, []).append(op)
    for number, members in groups.items():
        said = [_said_of(main, op, meshes, arguments) for op in members]
        known = next((attrs for attrs in said if attrs), None)
        if known is None:
            raise CompileError(
                f"sdy.sharding_group {number}: none of its values has a sharding: a sharding_constraint of one "
                "is right",
                location_text(members[0]),
            )
        for op, attrs in zip(members, said, strict=True):
            value = op.operands[0]
            if not attrs:
                new = OpBuilder.before(op).op("dist.constrain", [value.type], [value], **known)
                _apply_to_all_uses(new)
            op.erase()


def _said_of(
    main: ir.Operation, group: ir.Operation, meshes: Meshes, arguments: Sequence[Attributes]
) -> dict[str, ir.Attribute] | None:
    """Return what is said of a value in a group: of an argument, or by a constraint that makes or reads it."""
    value = group.operands[0]
    maker = producer(value)
    if maker is None and value.owner == main.regions[0].blocks[0]:
        given = arguments[ir.BlockArgument(value).arg_number]
        found = {n: given[f"dist.{n}"] for n in _SAID if f"dist.{n}" in given}
        if found:
            return found
    around = [use.owner.operation for use in value.uses] + ([maker] if maker is not None else [])
    for op in around:
        if op.name == "sdy.sharding_constraint":
            sharding = read_at(op, str(required(op, "sharding")), value.type, meshes)
            return layout_attributes(sharding, op)
        if op.name == "dist.constrain":  # of a sharding on the op that makes it
            return {name: op.attributes[name] for name in _SAID if name in op.attributes}
    return None


_SAID = ("layout", "open", "replicated", "priorities")


def import_barriers(ops: Ops) -> None:
    """Take off every sdy.propagation_barrier: its result is its operand, and layouts are chosen by what they cost."""
    for op in ops.get("sdy.propagation_barrier", ()):
        op.results[0].replace_all_uses_with(op.operands[0])
        op.erase()


def _apply_to_all_uses(constraint: ir.Operation) -> None:
    """Let all ops that read the operand of a constraint read its result: one without uses is about its operand."""
    value = constraint.operands[0]
    maker = producer(value)
    if maker is None:
        first = value.owner.operations[0].operation
        if first != constraint:
            constraint.move_before(first)
    else:
        constraint.move_after(maker)
    value.replace_all_uses_except(constraint.result, constraint)


def import_op_shardings(module: ir.Module, meshes: Meshes) -> None:
    """Turn shardings on other ops (`sdy.sharding = #sdy.sharding_per_value<...>`) into constraints of their results."""
    for op in ops_where(module.operation, lambda op: "sdy.sharding" in op.attributes):
        for result, sharding in _op_shardings(op, meshes):
            new = constrain(result, sharding, op)
            new.move_after(op)
            result.replace_all_uses_except(new.result, new)
        del op.attributes["sdy.sharding"]


def _op_shardings(op: ir.Operation, meshes: Meshes) -> Iterator[tuple[ir.Value, ShardyLayout]]:
    text = str(op.attributes["sdy.sharding"])
    with errors_at(op):
        shardings = parse_per_value(text)
    if len(shardings) != len(op.results):
        raise CompileError(
            f"{len(shardings)} shardings for {len(op.results)} results", location_text(op)
        )
    for result, sharding in zip(op.results, shardings, strict=True):
        yield result, meshes.read(sharding, result.type, op)


def apply_signature(main: ir.Operation, signature: EntryAttributes, mesh: Mesh | None) -> None:
    """Set the attributes of `signature` on `main`; check each layout against the mesh and the type."""
    kind = main.attributes["function_type"].value
    for key, attrs, types, what in (
        ("arg_attrs", signature.arguments, kind.inputs, "argument"),
        ("res_attrs", signature.results, kind.results, "result"),
    ):
        for i, (given, t) in enumerate(zip(attrs, types, strict=True)):
            if mesh is not None and "dist.layout" in given:
                _check_layout(given["dist.layout"], t, mesh, f"{what} {i}", main)
        if any(attrs):
            main.attributes[key] = ir.ArrayAttr.get([ir.DictAttr.get(given) for given in attrs])


def _check_layout(
    layout: ir.Attribute, kind: ir.Type, mesh: Mesh, what: str, where: ir.Operation
) -> None:
    try:
        parsed = layout.layout
        if parsed.ndim != len(kind.shape):
            raise LayoutError(f"{parsed} has {parsed.ndim} dims, but the value is {kind}")
        parsed.check(mesh, tuple(kind.shape))
    except LayoutError as error:
        raise CompileError(f"{what}: {error}", location_text(where)) from None


def add_mesh(module: ir.Module, mesh: Mesh | None) -> None:
    """Put `dist.mesh` first in the module, unless there is no mesh."""
    if mesh is not None:
        attrs = {"sym_name": ir.StringAttr.get("mesh"), "axes": ir.StringAttr.get(str(mesh))}
        begin = ir.InsertionPoint.at_block_begin(module.body)
        OpBuilder(begin, ir.Location.unknown()).op("dist.mesh", **attrs)
