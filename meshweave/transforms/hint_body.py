"""A region's body as a function of its own on the mesh of its time axes, so that the passes for space slice it.

What the body reads from outside becomes arguments, one for each use, so that each use has the layout it wants. Values
that cost nothing to make anew are copied in.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshweave.bindings import ir
from meshweave.dialects.dist import LayoutAttr
from meshweave.errors import LayoutError
from meshweave.layout.layout import AxisFactor, Layout
from meshweave.layout.mesh import Mesh
from meshweave.transforms.base import at, remarks_to, replace, walk
from meshweave.transforms.hint_make import Make
from meshweave.transforms.insert_redistribute import InsertRedistribute
from meshweave.transforms.legalize_redistribute import LegalizeRedistribute
from meshweave.transforms.partition import Partition
from meshweave.transforms.propagate import Propagate
from meshweave.transforms.rules import is_free, is_tensor


@dataclass
class Body:
    """The function, and what each of its arguments is outside.

    module:   holds the mesh of time axes and the function.
    captured: for each argument the value it stands for.
    layouts:  of the arguments, then of the results, once it is partitioned (None: no tensor).
    shapes:   of the same, before.
    """

    module: Any
    mesh: Mesh
    captured: list[Any] = field(default_factory=list)
    layouts: list[Layout | None] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def function(self) -> Any:
        """The function op."""
        return self.module.body.operations[1].operation

    @property
    def block(self) -> Any:
        """Its one block."""
        return self.function.regions[0].blocks[0]

    def layout(self, number: int) -> Layout:
        """The layout of an argument or result that is a tensor."""
        found = self.layouts[number]
        assert found is not None
        return found


def outside(region: Any) -> list[tuple[Any, int]]:
    """(op, operand) of every read of a value from outside `region`, in program order."""
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
    region: Any, mesh: Mesh, results: Sequence[Layout | None], axes: Collection[str]
) -> Body:
    """The body of `region` on `mesh`, of which `axes` that cut nothing may be missing.

    results: layouts that the results must have, None where any will do.
    """
    made = ir.Module.create(loc=region.location)
    body = Body(made, mesh)
    ir.Operation.create(
        "dist.mesh",
        attributes={"sym_name": ir.StringAttr.get("mesh"), "axes": ir.StringAttr.get(str(mesh))},
        loc=region.location,
        ip=ir.InsertionPoint(made.body),
    )
    end = _last(region)
    types = [v.type for v in end.operands]
    f = ir.Operation.create(
        "func.func",
        attributes={
            "sym_name": ir.StringAttr.get("slice"),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get([], types)),
        },
        regions=1,
        loc=region.location,
        ip=ir.InsertionPoint(made.body),
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


def _wish(layout: Layout | None) -> Any:
    return ir.DictAttr.get({} if layout is None else {"dist.layout": LayoutAttr.make(layout)})


def _shape(type_: Any) -> tuple[int, ...]:
    return tuple(type_.shape) if is_tensor(type_) else ()


def _last(region: Any) -> Any:
    ops = region.regions[0].blocks[0].operations
    return ops[len(ops) - 1].operation


class _Copier:
    """Copies a region's ops into the function."""

    def __init__(self, body: Body, region: Any, mine: Collection[str]) -> None:
        self.body = body
        self.mine = mine
        self.region = region
        self.block = body.block
        self.known: dict[Any, Any] = {}
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
        ir.Operation.create(
            "func.return", operands=given, loc=end.location, ip=ir.InsertionPoint(self.block)
        )
        for op in walk(self.body.function):
            if op.name == "hint.place":
                _constrain(op, self.body.mesh, self.mine)

    def argument(self, value: Any, ip: Any) -> Any:
        """What stands for an outer value: a copy of what makes it, or an argument."""
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


def _constrain(place: Any, mesh: Mesh, axes: Collection[str]) -> None:
    """A place as a constraint on the axes of `mesh`. What names others than `axes`, those of the region, is about inner
    regions and stays a place."""
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
        make = Make(ir.InsertionPoint(place), place.location)
        value = make.laid("dist.constrain", value, LayoutAttr.make(Layout.blocks(cut)))
    rest = [dim[len(now) :] for dim, now in zip(names, mine)]
    if any(rest):
        place.operands[0] = value
        place.attributes["layout"] = LayoutAttr.make(Layout.blocks(rest))
    else:
        replace(place, [value])


def partitioned(body: Body) -> None:
    """Make the function that of one slice: propagate, move, partition, as over devices. Raises PassFailure."""
    with remarks_to(None):
        Propagate(slices=True).run(body.module)
        attributes = body.function.attributes
        sides = (
            ("arg_attrs", len(body.captured)),
            ("res_attrs", len(body.shapes) - len(body.captured)),
        )
        for key, count in sides:
            attrs = attributes.get(key)
            for i in range(count):
                entry = {a.name: a.attr for a in ir.DictAttr(attrs[i])} if attrs is not None else {}
                named = entry.get("dist.layout")
                body.layouts.append(LayoutAttr(named).layout if named is not None else None)
        InsertRedistribute().run(body.module)
        LegalizeRedistribute(steps="block").run(body.module)  # slices are blocks, of nothing too
        Partition().run(body.module)
