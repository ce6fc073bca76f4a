"""dist-insert-redistribute: explicit moves wherever a value is read in another layout than it comes in.

before:  %h runs `results = [#a]`, is handed on as `values = [#b]`, and a reader wants `operands = [#c]`
after:   %1 = redistribute %h {source = #a, target = #b};  %2 = redistribute %1 {source = #b, target = #c}

One redistribute serves all readers that want the same layout; it stands behind the value's definition. `dist.constrain`
has done its work and goes. Values that cost nothing to make anew (fills, splats) are left to dist-partition.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from meshweave.bindings import ir
from meshweave.dialects.dist import LayoutAttr
from meshweave.transforms.base import Pass, fail, functions, ops_of, replace
from meshweave.transforms.bodies import captured_by, is_tensor
from meshweave.transforms.graph import MANUAL, STRUCTURED
from meshweave.transforms.mesh import mesh_of_module
from meshweave.transforms.rules import is_free


@dataclass(frozen=True)
class InsertRedistribute(Pass):
    """Insert a `dist.redistribute` wherever a value's layout and a reader's differ."""

    name: ClassVar[str] = "dist-insert-redistribute"

    def run(self, module: Any) -> None:
        if mesh_of_module(module) is None:
            return
        context = module.operation.context
        with context, ir.Location.unknown(context):
            for f in functions(module):
                _Inserter().function(f)
            _fold_chains(module)
            for op in ops_of(module, "dist.constrain"):
                replace(op, [op.operation.operands[0]])


class _Inserter:
    """Knows the layout (an attribute) of each value seen so far, and the moved copies made of it."""

    def __init__(self) -> None:
        self.layout: dict[Any, Any] = {}
        self.moved: dict[tuple[Any, Any], Any] = {}

    def function(self, f: Any) -> None:
        block = f.operation.regions[0].blocks[0]
        attrs = f.operation.attributes.get("arg_attrs")
        for i, argument in enumerate(block.arguments):
            entry = {a.name: a.attr for a in ir.DictAttr(attrs[i])} if attrs is not None else {}
            if "dist.layout" in entry:
                self.layout[argument] = entry["dist.layout"]
            elif is_tensor(argument.type):
                fail(f, f"argument {i} has no dist.layout: run dist-propagate first")
        self.block(block)

    def block(self, block: Any) -> None:
        for view in list(block.operations):
            op = view.operation
            if op.name == "dist.mesh" or is_free(op):
                continue
            record = op.attributes.get("dist.layouts")
            if record is None:
                self._unknown(op)
                continue
            record = ir.DictAttr(record)
            self.operands(op, record["operands"])
            self.results(op, record)
            if MANUAL in op.attributes:
                self.manual(op)
            else:
                self.regions(op, record)

    def _unknown(self, op: Any) -> None:
        if any(is_tensor(v.type) for v in [*op.operands, *op.results]):
            fail(op, f"'{op.name}' has no dist.layouts: run dist-propagate first")

    def operands(self, op: Any, wanted: Any) -> None:
        places = [(op, i) for i in range(len(op.operands))]
        if len(wanted) > len(places):
            places += [(c.reader, c.operand) for c in captured_by(op)]
        for (reader, i), target in zip(places, wanted):
            value = reader.operands[i]
            if not is_tensor(value.type) or isinstance(target, ir.UnitAttr):
                continue
            source = self.layout.get(value)
            if source is not None and source != target:
                reader.operands[i] = self.redistributed(value, source, target)

    def results(self, op: Any, record: Any) -> None:
        ran = list(record["results"])
        handed = list(record["values"]) if "values" in record else ran
        for result, source, target in zip(op.results, ran, handed):
            if isinstance(source, ir.UnitAttr):
                continue
            if source == target:
                self.layout[result] = source
                continue
            readers = [(use.owner, use.operand_number) for use in result.uses]
            moved = self.redistributed(result, source, target)
            for reader, i in readers:
                reader.operands[i] = moved
            self.layout[result] = source
        if "values" in record:
            kept = {a.name: a.attr for a in record if a.name != "values"}
            op.attributes["dist.layouts"] = ir.DictAttr.get(kept)

    def regions(self, op: Any, record: Any) -> None:
        if op.name not in STRUCTURED:
            return
        results, operands = list(record["results"]), list(record["operands"])
        entering = {"scf.for": [[None, *results]], "scf.while": [operands, results]}.get(op.name)
        for number, region in enumerate(op.regions):
            for block in region.blocks:
                for argument, layout in zip(block.arguments, entering[number] if entering else ()):
                    if layout is not None and is_tensor(argument.type):
                        self.layout[argument] = layout
                self.block(block)

    def manual(self, op: Any) -> None:
        """A region in the local view: only what enters it is ours."""
        for view in list(op.regions[0].blocks[0].operations):
            inner = view.operation
            if inner.name == "dist.to_local":
                self.operands(inner, ir.DictAttr(inner.attributes["dist.layouts"])["operands"])

    def redistributed(self, value: Any, source: Any, target: Any) -> Any:
        """`value` in the layout `target`, made right behind its definition so that every reader may use it."""
        key = (value, target)
        if key not in self.moved:
            owner = value.owner
            if isinstance(owner, ir.Block):
                ip, loc = ir.InsertionPoint.at_block_begin(owner), ir.Location.unknown()
            else:
                ip, loc = ir.InsertionPoint.after(owner), owner.location
            op = ir.Operation.create(
                "dist.redistribute",
                results=[value.type],
                operands=[value],
                attributes={"source": source, "target": target},
                loc=loc,
                ip=ip,
            )
            self.moved[key] = op.results[0]
            self.layout[op.results[0]] = target
        return self.moved[key]


def _fold_chains(module: Any) -> None:
    """A redistribute that is only read by another one is skipped: the plan from end to end is never dearer."""
    for op in ops_of(module, "dist.redistribute"):
        middle = op.operation.operands[0].owner
        if isinstance(middle, ir.Block) or middle.name != "dist.redistribute":
            continue
        middle = middle.operation
        if sum(1 for _ in middle.results[0].uses) == 1:
            op.operation.operands[0] = middle.operands[0]
            op.operation.attributes["source"] = middle.attributes["source"]
            middle.erase()


def layouts_of(attr: Any) -> list[Any]:
    """The Layouts of an array of layout attributes, None where it holds a unit attribute."""
    return [None if isinstance(a, ir.UnitAttr) else LayoutAttr(a).layout for a in attr]
