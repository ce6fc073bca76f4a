"""What a program says in Shardy's words, said in ours: the mesh, the signature's layouts,
`dist.constrain`.

Runs after inlining, on StableHLO: the only function is the entry function.
`sdy.manual_computation` is manual.py's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshweave.bindings import ir
from meshweave.dialects.dist import LayoutAttr
from meshweave.errors import CompileError, LayoutError
from meshweave.frontends.sdy import MeshText, Sharding, parse_mesh, parse_per_value, parse_sharding
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.locations import location_text

Ops = Mapping[str, Sequence[Any]]
"""The ops of the program by name: one walk serves all who look for some."""

_CONTROL = ("stablehlo.while", "stablehlo.case", "stablehlo.if", "sdy.manual_computation")


@dataclass(frozen=True)
class Signature:
    """Attributes of the arguments and results of @main in our terms, each a dictionary of
    attributes, empty for none.
    """

    arguments: tuple[dict[str, Any], ...]
    results: tuple[dict[str, Any], ...]


class Meshes:
    """The meshes of a program, which must be one: shardings are read against it."""

    def __init__(self, ops: Ops) -> None:
        self.declared = {
            op.attributes["sym_name"].value: _declared(op) for op in ops.get("sdy.mesh", ())
        }
        self.used: MeshText | None = None
        self.used_at = ""
        self.axes_named: set[str] = set()

    def read(self, sharding: Sharding, where: Any) -> Sharding:
        """`sharding`, after a check that it is over the program's one mesh; `where`: its op or
        location, for errors.
        """
        mesh = sharding.mesh
        if isinstance(mesh, str):
            if mesh not in self.declared:
                raise CompileError(f"sharding over @{mesh}: no such mesh", location_text(where))
            mesh = self.declared[mesh]
        if mesh.is_maximal:
            raise CompileError(
                f"a maximal sharding (one whole tensor on device {mesh.device_ids}) is not "
                "supported: shard it over mesh axes or replicate it",
                location_text(where),
            )
        self.axes_named |= sharding.named_axes
        if mesh.axes:
            self._use(mesh, where)
        return sharding

    def _use(self, mesh: MeshText, where: Any) -> None:
        if self.used is None:
            self.used, self.used_at = mesh, location_text(where)
        elif mesh != self.used:
            raise CompileError(
                f"shardings over several meshes ({_axes_text(self.used)} at {self.used_at}, "
                f"{_axes_text(mesh)} here): a program has one mesh; name axes of sub-meshes in it",
                location_text(where),
            )

    def mesh(self) -> Mesh | None:
        """The program's mesh: the one its shardings use, else the one it declares; None when it
        has none.
        """
        chosen = self.used
        if chosen is None:
            declared = {mesh for mesh in self.declared.values() if mesh.axes}
            if len(declared) != 1:
                return None
            (chosen,) = declared
        try:
            return chosen.mesh()
        except CompileError as error:
            raise CompileError(error.message, self.used_at or None) from None


def _declared(op: Any) -> MeshText:
    try:
        return parse_mesh(str(op.attributes["mesh"]))
    except (CompileError, KeyError) as error:
        text = error.message if isinstance(error, CompileError) else "sdy.mesh needs a mesh"
        raise CompileError(text, location_text(op)) from None


def _axes_text(mesh: MeshText) -> str:
    return ", ".join(f"{name}={size}" for name, size in mesh.axes)


def read_at(where: Any, text: str, meshes: Meshes) -> Sharding:
    """The sharding `text`, errors at `where`."""
    try:
        sharding = parse_sharding(text)
    except CompileError as error:
        raise CompileError(f"{text}: {error.message}", location_text(where)) from None
    return meshes.read(sharding, where)


def layout_attributes(sharding: Sharding, where: Any) -> dict[str, Any]:
    """`layout`, and `open`, `replicated`, `priorities` where the sharding says more than a layout
    does.
    """
    try:
        layout = sharding.layout()
    except CompileError as error:
        raise CompileError(error.message, location_text(where)) from None
    attrs: dict[str, Any] = {"layout": LayoutAttr.make(layout)}
    if sharding.open_dims:
        attrs["open"] = ir.DenseI64ArrayAttr.get(list(sharding.open_dims))
    if sharding.replicated:
        attrs["replicated"] = ir.ArrayAttr.get([ir.StringAttr.get(a) for a in sharding.replicated])
    if any(p is not None for p in sharding.priorities):
        attrs["priorities"] = ir.DenseI64ArrayAttr.get([p or 0 for p in sharding.priorities])
    return attrs


def import_signature(main: Any, meshes: Meshes) -> Signature:
    """Read and take off the attributes of the arguments and results of `main`.

    `sdy.sharding` becomes `dist.layout` and its companions; an unsigned argument or result is
    marked `dist.unsigned`, because linalg has signless integers only. Annotations of the
    partitioner before Shardy are refused.
    """
    kind = main.attributes["function_type"].value
    read: dict[str, tuple[dict[str, Any], ...]] = {}
    for key, types in (("arg_attrs", kind.inputs), ("res_attrs", kind.results)):
        given = main.attributes[key] if key in main.attributes else [{}] * len(types)
        read[key] = tuple(
            _value_attributes(attrs, t, meshes, main) for attrs, t in zip(given, types, strict=True)
        )
        if key in main.attributes:
            del main.attributes[key]
    return Signature(read["arg_attrs"], read["res_attrs"])


def _value_attributes(attrs: Any, kind: Any, meshes: Meshes, main: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "sdy.sharding" in attrs:
        sharding = read_at(main, str(attrs["sdy.sharding"]), meshes)
        found = {f"dist.{k}": v for k, v in layout_attributes(sharding, main).items()}
    elif "mhlo.sharding" in attrs:
        refuse_gspmd(attrs["mhlo.sharding"], main)
        found["dist.layout"] = LayoutAttr.make(str(Layout.replicated(len(kind.shape))))
    for name in ("dist.layout", "dist.open", "dist.replicated", "dist.priorities"):
        if name in attrs and name not in found:  # a program that has ours already
            found[name] = attrs[name]
    element = getattr(kind, "element_type", None)
    if isinstance(element, ir.IntegerType) and element.is_unsigned:
        found["dist.unsigned"] = ir.UnitAttr.get()
    return found


def refuse_gspmd(annotation: Any, where: Any) -> None:
    """Refuse an `mhlo.sharding`, unless it says that the value is replicated."""
    text = (
        ir.StringAttr(annotation).value
        if isinstance(annotation, ir.StringAttr)
        else str(annotation)
    )
    if text.strip() != "{replicated}":
        raise CompileError(
            f'mhlo.sharding = "{text}": annotations of the GSPMD partitioner are not supported: '
            "export with Shardy (jax_use_shardy_partitioner=True, the default)",
            location_text(where),
        )


def import_constraints(ops: Ops, meshes: Meshes) -> None:
    """Every sdy.sharding_constraint becomes dist.constrain, every sharding on an op's results one
    constraint each.
    """
    for op in ops.get("sdy.sharding_constraint", ()):
        sharding = read_at(op, str(op.attributes["sharding"]), meshes)
        value, result = op.operands[0], op.results[0]
        if _in_scalar_region(op) or _says_nothing(sharding, op):
            result.replace_all_uses_with(value)
        else:
            new = constrain(value, sharding, op, ir.InsertionPoint(op))
            if not any(True for _ in result.uses):
                _apply_to_all_uses(new)
            result.replace_all_uses_with(new.result)
        op.erase()


def constrain(value: Any, sharding: Sharding, where: Any, ip: Any) -> Any:
    """A `dist.constrain` of `value`, at the location of the op `where`."""
    attrs = layout_attributes(sharding, where)
    _check_fits(sharding, value, where)
    return ir.Operation.create(
        "dist.constrain", [value.type], [value], attrs, loc=where.location, ip=ip
    )


def _check_fits(sharding: Sharding, value: Any, where: Any) -> None:
    dims = len(value.type.shape) if isinstance(value.type, ir.RankedTensorType) else None
    if dims != len(sharding.axes):
        raise CompileError(
            f"a sharding of {len(sharding.axes)} dims for a value of type {value.type}",
            location_text(where),
        )


def _in_scalar_region(op: Any) -> bool:
    """Inside a reducer or comparator: its values are elements, they lie nowhere."""
    parent = op.parent
    return parent.name.startswith("stablehlo.") and parent.name not in _CONTROL


def _says_nothing(sharding: Sharding, op: Any) -> bool:
    """Inside a manual computation all axes are taken: a constraint that names none says nothing."""
    parent = op.parent
    while parent is not None and parent.name != "sdy.manual_computation":
        parent = parent.operation.parent
    if parent is None:
        return False
    if sharding.named_axes:
        raise CompileError(
            f"sharding_constraint over {', '.join(sorted(sharding.named_axes))} inside "
            "sdy.manual_computation, whose values are local already",
            location_text(op),
        )
    return True


def _apply_to_all_uses(constraint: Any) -> None:
    """A constraint whose result nobody reads is about its operand: let all who read that read the
    result.
    """
    value = constraint.operands[0]
    if isinstance(value, ir.BlockArgument):
        first = value.owner.operations[0].operation
        if first != constraint:
            constraint.move_before(first)
    else:
        constraint.move_after(value.owner)
    value.replace_all_uses_except(constraint.result, constraint)


def import_op_shardings(module: Any, meshes: Meshes) -> None:
    """Shardings that stand on other ops (`sdy.sharding = #sdy.sharding_per_value<..>`) become
    constraints of the results.
    """
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if "sdy.sharding" in op.attributes:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in found:
        for result, sharding in _op_shardings(op, meshes):
            new = constrain(result, sharding, op, ir.InsertionPoint(op))
            new.move_after(op)
            result.replace_all_uses_except(new.result, new)
        del op.attributes["sdy.sharding"]


def _op_shardings(op: Any, meshes: Meshes) -> Iterator[tuple[Any, Sharding]]:
    text = str(op.attributes["sdy.sharding"])
    try:
        shardings = parse_per_value(text)
    except CompileError as error:
        raise CompileError(error.message, location_text(op)) from None
    if len(shardings) != len(op.results):
        raise CompileError(
            f"{len(shardings)} shardings for {len(op.results)} results", location_text(op)
        )
    for result, sharding in zip(op.results, shardings, strict=True):
        yield result, meshes.read(sharding, op)


def apply_signature(main: Any, signature: Signature, mesh: Mesh | None) -> None:
    """Set the attributes of `signature` on `main`, each layout checked against the mesh and the
    type.
    """
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


def _check_layout(layout: Any, kind: Any, mesh: Mesh, what: str, where: Any) -> None:
    try:
        parsed = layout.layout
        if parsed.ndim != len(kind.shape):
            raise LayoutError(f"{parsed} has {parsed.ndim} dims, but the value is {kind}")
        parsed.check(mesh, tuple(kind.shape))
    except LayoutError as error:
        raise CompileError(f"{what}: {error}", location_text(where)) from None


def add_mesh(module: Any, mesh: Mesh | None) -> None:
    """`dist.mesh` first in the module, unless there is no mesh."""
    if mesh is not None:
        attrs = {"sym_name": ir.StringAttr.get("mesh"), "axes": ir.StringAttr.get(str(mesh))}
        ip = ir.InsertionPoint.at_block_begin(module.body)
        ir.Operation.create("dist.mesh", [], [], attrs, loc=ir.Location.unknown(), ip=ip)
