"""dist-insert-redistribute: explicit moves wherever a value is read in another layout than it comes in.

before:  %h runs `results = [#a]`, is handed on as `values = [#b]`, and a reader wants `operands = [#c]`
after:   %1 = redistribute %h {source = #a, target = #b};  %2 = redistribute %1 {source = #b, target = #c}

One redistribute serves all readers that want the same layout; it stands behind the value's definition. `dist.constrain`
has done its work and goes. Values that cost nothing to make anew (fills, splats) are left to dist-partition; numbers
that count places are made again in the other layout. A layout beyond blocks that dist-propagate noted as an interface
(propagation/interface.py) is put back, with a redistribute between it and the blocks inside.
"""

from dataclasses import dataclass
from typing import ClassVar

from meshweave.dialects.dist import LayoutAttr
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.ops import replace_op, terminator
from meshweave.transforms.base import (
    Pass,
    fail,
    functions,
    mesh_of_module,
    ops_of,
    port_attrs,
    set_port_attrs,
)
from meshweave.transforms.propagation.bodies import captured_by, is_tensor
from meshweave.transforms.propagation.graph import MANUAL, STRUCTURED
from meshweave.transforms.propagation.interface import INTERFACE
from meshweave.transforms.propagation.symbolic import is_given, ran
from meshweave.transforms.propagation.values import counts_places, is_free
from meshweave.transforms.redistribution.fold_redistribute import fold_redistributes


@dataclass(frozen=True)
class InsertRedistribute(Pass):
    """Insert a `dist.redistribute` wherever a value's layout and a reader's differ."""

    name: ClassVar[str] = "dist-insert-redistribute"

    def run(self, module: ir.Module) -> None:
        if mesh_of_module(module) is None:
            return
        interfaces = {
            f.operation.attributes["sym_name"].value: _close(f) for f in functions(module)
        }
        for f in functions(module):
            _Inserter(interfaces).function(f)
        fold_redistributes(module)
        drop_constraints(module)
        ran(module, self.name)


class _Inserter:
    """Know the layout (an attribute) of each value seen so far, and the moved copies made of it."""

    def __init__(self, interfaces: "dict[str, _Interface]") -> None:
        """Take the interfaces of every function of the module, by name."""
        self.interfaces = interfaces
        self.layout: dict[ir.Value, ir.Attribute] = {}
        self.moved: dict[tuple[ir.Value, ir.Attribute], ir.Value] = {}

    def function(self, f: ir.Operation) -> None:
        block = f.operation.regions[0].blocks[0]
        self.interface = self.interfaces[f.operation.attributes["sym_name"].value]
        for i, (argument, entry) in enumerate(zip(block.arguments, port_attrs(f, "arg_attrs"))):
            if "dist.layout" in entry:
                self.layout[argument] = entry["dist.layout"]
            elif is_tensor(argument.type):
                fail(f, f"argument {i} has no dist.layout: run dist-propagate first")
            if i in self.interface.arguments:
                self.leaves(argument, entry["dist.layout"], self.interface.arguments[i])
        self.block(block)

    def leaves(self, value: ir.Value, outside: ir.Attribute, inside: ir.Attribute) -> None:
        """Note that `value` comes in the layout `outside`; its readers get it in `inside`."""
        readers = [(use.owner, use.operand_number) for use in value.uses]
        self.layout[value] = outside
        if readers:
            moved = self.redistributed(value, outside, inside, readers[0][0])
            for reader, i in readers:
                reader.operands[i] = moved

    def enters(self, op: ir.Operation, i: int, inside: ir.Attribute, outside: ir.Attribute) -> None:
        """Bring operand `i` of `op`, in the layout `inside` by now, into `outside`; a free one is made in it."""
        value = op.operands[i]
        if value in self.layout:
            op.operands[i] = self.redistributed(value, inside, outside)

    def block(self, block: ir.Block) -> None:
        for view in list(block.operations):
            op = view.operation
            if op.name == "dist.mesh" or is_free(op) or self.is_own(op):
                continue
            record = op.attributes.get("dist.layouts")
            if record is None:
                self._unknown(op)
                if op.name in STRUCTURED:  # it carries no tensor, but ops in it may read some
                    for region in op.regions:
                        for inside in region.blocks:
                            self.block(inside)
                continue
            record = ir.DictAttr(record)
            self.operands(op, record["operands"])
            record = self.edges(op, record)
            self.results(op, record)
            if MANUAL in op.attributes:
                self.manual(op)
            else:
                self.regions(op, record)

    def is_own(self, op: ir.Operation) -> bool:
        """Tell whether it is a redistribute made here, behind the arguments."""
        return op.name == "dist.redistribute" and op.results[0] in self.layout

    def _unknown(self, op: ir.Operation) -> None:
        if any(is_tensor(v.type) for v in [*op.operands, *op.results]):
            fail(op, f"'{op.name}' has no dist.layouts: run dist-propagate first")

    def operands(self, op: ir.Operation, wanted: ir.Value) -> None:
        places = [(op, i) for i in range(len(op.operands))]
        if len(wanted) > len(places):
            places += [(c.reader, c.operand) for c in captured_by(op)]
        for (reader, i), target in zip(places, wanted):
            value = reader.operands[i]
            if not is_tensor(value.type) or isinstance(target, ir.UnitAttr):
                continue
            source = self.layout.get(value)
            if source is not None and source != target:
                reader.operands[i] = self.redistributed(value, source, target, reader)

    def results(self, op: ir.Operation, record: ir.Attribute) -> None:
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

    def edges(self, op: ir.Operation, record: ir.Attribute) -> ir.Attribute:
        """Return the record of an op, with what it hands to or takes from an interface in the layout that was said."""
        takes: dict[int, ir.Attribute] = {}
        gives: dict[int, ir.Attribute] = {}
        if op.name == "func.return":
            takes = {i: self.interface.outside(i) for i in self.interface.results}
        elif op.name == "func.call":
            callee = self.interfaces.get(op.attributes["callee"].value)
            if callee is not None:
                takes, gives = callee.said
        elif op.name == "dist.constrain" and INTERFACE in op.attributes:
            takes = gives = {0: op.attributes[INTERFACE]}
        elif MANUAL in op.attributes:
            gives = _manual_results(op)
        if not takes and not gives:
            return record
        inside = list(record["operands"])
        for i, outside in takes.items():
            self.enters(op, i, inside[i], outside)
        handed = list(record["values"]) if "values" in record else list(record["results"])
        entry = {
            "operands": [takes.get(i, a) for i, a in enumerate(inside)],
            "results": [gives.get(i, a) for i, a in enumerate(record["results"])],
            "values": handed,
        }
        record = ir.DictAttr.get({n: ir.ArrayAttr.get(a) for n, a in entry.items()})
        op.attributes["dist.layouts"] = record
        return record

    def regions(self, op: ir.Operation, record: ir.Attribute) -> None:
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

    def manual(self, op: ir.Operation) -> None:
        """Move what enters a region in the local view; its inside is left alone."""
        for view in list(op.regions[0].blocks[0].operations):
            inner = view.operation
            if inner.name == "dist.to_local":
                wanted = ir.DictAttr(inner.attributes["dist.layouts"])["operands"]
                self.operands(inner, wanted)
                if INTERFACE in inner.attributes:
                    self.enters(inner, 0, wanted[0], inner.attributes[INTERFACE])
            if inner.name in ("dist.to_local", "dist.to_global") and INTERFACE in inner.attributes:
                inner.attributes["layout"] = inner.attributes[INTERFACE]
                del inner.attributes[INTERFACE]

    def redistributed(
        self,
        value: ir.Value,
        source: ir.Attribute,
        target: ir.Attribute,
        reader: ir.Operation | None = None,
    ) -> ir.Value:
        """Return `value` in the layout `target`, made right behind its definition so that every reader may use it.

        Its place in the source is that of the definition; of an argument, which nothing there defines, the first
        reader's.
        """
        key = (value, target)
        if key not in self.moved:
            owner = value.owner
            if isinstance(owner, ir.Block):
                ip = ir.InsertionPoint.at_block_begin(owner)
                loc = value.location if reader is None else reader.location
            else:
                ip, loc = ir.InsertionPoint.after(owner), owner.location
            partial = LayoutAttr(target).layout.partial
            if not isinstance(owner, ir.Block) and not partial and counts_places(owner.operation):
                moved = _made_again(owner.operation, target, ip)
            else:
                moved = OpBuilder(ip, loc).one(
                    "dist.redistribute", value.type, value, source=source, target=target
                )
            self.moved[key] = moved
            self.layout[moved] = target
        return self.moved[key]


def _made_again(op: ir.Operation, target: ir.Attribute, ip: ir.InsertionPoint) -> ir.Value:
    """Make the places of elements again in another layout; nothing moves."""
    made = op.clone(ip)
    said = ir.DictAttr(op.attributes["dist.layouts"])["operands"]
    rank = op.results[0].type.rank
    # Numbers that are read stay as they are.
    operands = [target if v.type.rank == rank else a for v, a in zip(op.operands, said)]
    record = {"operands": ir.ArrayAttr.get(operands), "results": ir.ArrayAttr.get([target])}
    made.operation.attributes["dist.layouts"] = ir.DictAttr.get(record)
    return made.operation.results[0]


@dataclass(frozen=True)
class _Interface:
    """Hold the inner layouts of arguments and results, by number, that differ from the outer ones.

    said: the outer layouts, of arguments and of results.
    """

    arguments: dict[int, ir.Attribute]
    results: dict[int, ir.Attribute]
    said: tuple[dict[int, ir.Attribute], dict[int, ir.Attribute]]

    def outside(self, result: int) -> ir.Attribute:
        """Return the layout that result number `result` is handed out in."""
        return self.said[1][result]


def _close(f: ir.Operation) -> _Interface:
    """Restore what dist-propagate noted: dist.layout is again what was said."""
    found: list[tuple[dict[int, ir.Attribute], dict[int, ir.Attribute]]] = []
    for key in ("arg_attrs", "res_attrs"):
        inside, said, entries = {}, {}, port_attrs(f, key)
        for i, entry in enumerate(entries):
            if "dist.interface" in entry:
                inside[i], said[i] = entry["dist.layout"], entry.pop("dist.interface")
                entry["dist.layout"] = said[i]
                entry.pop("dist.open", None)
        if said:
            set_port_attrs(f, key, entries)
        found.append((inside, said))
    (arguments, taken), (results, given) = found
    return _Interface(arguments, results, (taken, given))


def _manual_results(op: ir.Operation) -> dict[int, ir.Attribute]:
    """Return the layouts of a local region's results that differ from what propagation gave them, by number."""
    made = [value.owner for value in terminator(op.regions[0].blocks[0]).operands]
    return {i: o.attributes[INTERFACE] for i, o in enumerate(made) if INTERFACE in o.attributes}


def drop_constraints(module: ir.Module) -> None:
    """Remove constraints, which have done their work.

    While sizes of the mesh are symbols they stay: layouts may then be chosen again.
    """
    for op in ops_of(module, "dist.constrain"):
        if not is_given(op):
            replace_op(op, [op.operation.operands[0]])
