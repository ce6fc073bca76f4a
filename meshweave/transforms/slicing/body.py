"""Copy a region's body to a function on the mesh of its time axes, so that the passes for space slice it.

What the body reads from outside becomes arguments, one for each use, so that each use has the layout it wants. Values
that cost nothing to make anew are copied in.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from meshweave.dialects.dist import LayoutAttr
from meshweave.errors import LayoutError
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.ops import replace_op, terminator
from meshweave.layout.layout import AxisFactor, Layout
from meshweave.layout.mesh import Mesh
from meshweave.transforms.base import at, port_attrs, remarks_to, walk
from meshweave.transforms.partitioning.partition import Partition
from meshweave.transforms.propagation.bodies import is_tensor
from meshweave.transforms.propagation.propagate import Propagate
from meshweave.transforms.propagation.values import is_free
from meshweave.transforms.redistribution.insert_redistribute import InsertRedistribute
from meshweave.transforms.redistribution.legalize_redistribute import LegalizeRedistribute


@dataclass
class SliceBody:
    """Hold the function, and what each of its arguments is outside.

    module:   holds the mesh of time axes and the function.
    captured: for each argument the value it stands for.
    layouts:  of the arguments, then of the results, once it is partitioned (None: no tensor).
    shapes:   of the same, before.
    """

    module: ir.Module
    mesh: Mesh
    captured: list[ir.Value] = field(default_factory=list)
    layouts: list[Layout | None] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def function(self) -> ir.Operation:
        """Return the function op."""
        return self.module.body.operations[1].operation

    @property
    def block(self) -> ir.Block:
        """Return its one block."""
        return self.function.regions[0].blocks[0]

    def layout(self, number: int) -> Layout:
        """Return the layout of an argument or result that is a tensor."""
        found = self.layouts[number]
        assert found is not None
        return found


def outside(region: ir.Operation) -> list[tuple[ir.Operation, int]]:
    """Return (op, operand) of every read of a value from outside `region`, in program order."""
    inner = set()
    for op in walk(region):
        inner |= set(op.results)
        inner |= {a for r in op.regions for b in r.blocks for a in b.arguments}
    inner -= set(region.results)
    return [
        (op, i)
        for op in walk(region)
        if op != region
        for i, value in enumerate(op.operands)
        if value not in inner
    ]


def body_of(
    region: ir.Operation, mesh: Mesh, results: Sequence[Layout | None], axes: Collection[str]
) -> SliceBody:
    """Return the body of `region` on `mesh`, which may lack those of `axes` that cut nothing.

    results: layouts that the results must have, None where any will do.
    """
    made = ir.Module.create(loc=region.location)
    body = SliceBody(made, mesh)
    b = OpBuilder(ir.InsertionPoint(made.body), region.location)
    b.op("dist.mesh", sym_name=ir.StringAttr.get("mesh"), axes=ir.StringAttr.get(str(mesh)))
    end = terminator(region.regions[0].blocks[0])
    types = [v.type for v in end.operands]
    f = b.op(
        "func.func",
        regions=1,
        sym_name=ir.StringAttr.get("slice"),
        function_type=ir.TypeAttr.get(ir.FunctionType.get([], types)),
    )
    f.regions[0].blocks.append()
    _Copier(body, region, axes).run()
    block = body.block
    f.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get([a.type for a in block.arguments], types)
    )
    if any(layout is not None for layout in results):
        f.attributes["res_attrs"] = ir.ArrayAttr.get([_wish(layout) for layout in results])
    body.shapes = [_shape(t) for t in [*[a.type for a in block.arguments], *types]]
    return body


def _wish(layout: Layout | None) -> ir.Attribute:
    return ir.DictAttr.get({} if layout is None else {"dist.layout": LayoutAttr.make(layout)})


def _shape(type_: ir.Type) -> tuple[int, ...]:
    return tuple(type_.shape) if is_tensor(type_) else ()


class _Copier:
    """Copy a region's ops into the function."""

    def __init__(self, body: SliceBody, region: ir.Operation, mine: Collection[str]) -> None:
        self.body = body
        self.mine = mine
        self.region = region
        self.block = body.block
        self.known: dict[ir.Value, ir.Value] = {}
        self.captured = {(op, i) for op, i in outside(region)}

    def run(self) -> None:
        ops = [view.operation for view in self.region.regions[0].blocks[0].operations]
        end = ops.pop()
        for op in ops:
            new = op.clone(ir.InsertionPoint(self.block))
            for mine, copy in zip(walk(op), walk(new)):
                for i, value in enumerate(mine.operands):
                    if value in self.known:
                        copy.operands[i] = self.known[value]
                    elif (mine, i) in self.captured:
                        copy.operands[i] = self.argument(value, ir.InsertionPoint(new))
            self.known.update(zip(op.results, new.results))
        given = [
            self.known[v] if v in self.known else self.argument(v, ir.InsertionPoint(self.block))
            for v in end.operands
        ]
        OpBuilder(ir.InsertionPoint(self.block), end.location).op("func.return", [], given)
        for op in walk(self.body.function):
            if op.name == "hint.place":
                _constrain(op, self.body.mesh, self.mine)

    def argument(self, value: ir.Value, ip: ir.InsertionPoint) -> ir.Value:
        """Return what replaces an outer value: a copy of what makes it, or an argument."""
        owner = value.owner
        if not isinstance(owner, ir.Block):
            op = owner.operation
            if is_free(op) or op.name == "arith.constant":
                new = op.clone(ip)
                for i, operand in enumerate(op.operands):
                    new.operands[i] = self.argument(operand, ir.InsertionPoint(new))
                return new.results[0]
        if not is_tensor(value.type) and value in self.known:
            return self.known[value]
        self.body.captured.append(value)
        made = self.block.add_argument(value.type, self.region.location)
        if not is_tensor(value.type):
            self.known[value] = made
        return made


def _constrain(place: ir.Operation, mesh: Mesh, axes: Collection[str]) -> None:
    """Turn a place into a constraint on the axes of `mesh`.

    One that names others than `axes`, those of the region, is about inner regions and stays a place.
    """
    layout = LayoutAttr(place.attributes["layout"]).layout
    with at(place, "hint.place"):
        names = [[f.name for f in dim if isinstance(f, AxisFactor)] for dim in layout.dims]
        mine = [[n for n in dim if n in axes] for dim in names]
        for dim, now in zip(names, mine):
            if dim[: len(now)] != now:
                raise LayoutError(
                    f"layout {layout}: {', '.join(now)} is the outer time axis: it must stand first"
                )
    value = place.operands[0]
    cut = [[n for n in dim if mesh.has(n)] for dim in mine]
    if any(mine):
        b = OpBuilder.before(place)
        value = b.one(
            "dist.constrain", value.type, value, layout=LayoutAttr.make(Layout.blocks(cut))
        )
    rest = [dim[len(now) :] for dim, now in zip(names, mine)]
    if any(rest):
        place.operands[0] = value
        place.attributes["layout"] = LayoutAttr.make(Layout.blocks(rest))
    else:
        replace_op(place, [value])


def partitioned(body: SliceBody) -> None:
    """Make the function that of one slice: propagate, move, partition, as over devices. Raises PassFailure."""
    with remarks_to(None):
        Propagate(slices=True).run(body.module)
        for key in ("arg_attrs", "res_attrs"):
            for entry in port_attrs(body.function, key):
                named = entry.get("dist.layout")
                body.layouts.append(LayoutAttr(named).layout if named is not None else None)
        InsertRedistribute().run(body.module)
        LegalizeRedistribute(steps="block").run(body.module)  # slices are blocks, of nothing too
        Partition().run(body.module)
