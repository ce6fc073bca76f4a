"""dist-insert-redistribute: explicit moves wherever a value is read in another layout than it comes in.

before:  %h runs `results = [#a]`, is handed on as `values = [#b]`, and a reader wants `operands = [#c]`
after:   %1 = redistribute %h {source = #a, target = #b};  %2 = redistribute %1 {source = #b, target = #c}

One redistribute serves all readers that want the same layout; it stands behind the value's definition. `dist.constrain`
has done its work and goes. Values that cost nothing to make anew (fills, splats) are left to dist-partition. A layout
beyond blocks that dist-propagate noted as an interface (transforms/interface.py) is put back, with a redistribute
between it and the blocks inside.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from meshweave.bindings import ir
from meshweave.transforms.base import Pass, fail, functions, ops_of, replace
from meshweave.transforms.bodies import captured_by, is_tensor
from meshweave.transforms.fold_redistribute import fold_redistributes
from meshweave.transforms.graph import MANUAL, STRUCTURED
from meshweave.transforms.interface import INTERFACE
from meshweave.transforms.mesh import mesh_of_module
from meshweave.transforms.rules import is_free
from meshweave.transforms.symbolic import is_given, ran


@dataclass(frozen=True)
class InsertRedistribute(Pass):
    """Insert a `dist.redistribute` wherever a value's layout and a reader's differ."""

    name: ClassVar[str] = "dist-insert-redistribute"

    def run(self, module: Any) -> None:
        if mesh_of_module(module) is None:
            return
        context = module.operation.context
        with context, ir.Location.unknown(context):
            interfaces = {
                f.operation.attributes["sym_name"].value: _close(f) for f in functions(module)
            }
            for f in functions(module):
                _Inserter(interfaces).function(f)
            fold_redistributes(module)
            drop_constraints(module)
        ran(module, self.name)


class _Inserter:
    """Knows the layout (an attribute) of each value seen so far, and the moved copies made of it."""

    def __init__(self, interfaces: "dict[str, _Interface]") -> None:
        """interfaces: of every function of the module, by name."""
        self.interfaces = interfaces
        self.layout: dict[Any, Any] = {}
        self.moved: dict[tuple[Any, Any], Any] = {}

    def function(self, f: Any) -> None:
        block = f.operation.regions[0].blocks[0]
        attrs = f.operation.attributes.get("arg_attrs")
        self.interface = self.interfaces[f.operation.attributes["sym_name"].value]
        for i, argument in enumerate(block.arguments):
            entry = {a.name: a.attr for a in ir.DictAttr(attrs[i])} if attrs is not None else {}
            if "dist.layout" in entry:
                self.layout[argument] = entry["dist.layout"]
            elif is_tensor(argument.type):
                fail(f, f"argument {i} has no dist.layout: run dist-propagate first")
            if i in self.interface.arguments:
                self.leaves(argument, entry["dist.layout"], self.interface.arguments[i])
        self.block(block)

    def leaves(self, value: Any, outside: Any, inside: Any) -> None:
        """`value` comes in the layout `outside`; whoever reads it gets it in `inside`."""
        readers = [(use.owner, use.operand_number) for use in value.uses]
        self.layout[value] = outside
        if readers:
            moved = self.redistributed(value, outside, inside, readers[0][0])
            for reader, i in readers:
                reader.operands[i] = moved

    def enters(self, op: Any, i: int, inside: Any, outside: Any) -> None:
        """Operand `i` of `op`, in the layout `inside` by now, is wanted in `outside`; one made anew is made so."""
        value = op.operands[i]
        if value in self.layout:
            op.operands[i] = self.redistributed(value, inside, outside)

    def block(self, block: Any) -> None:
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

    def is_own(self, op: Any) -> bool:
        """Is it a redistribute made here, behind the arguments?"""
        return op.name == "dist.redistribute" and op.results[0] in self.layout

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
                reader.operands[i] = self.redistributed(value, source, target, reader)

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

    def edges(self, op: Any, record: Any) -> Any:
        """The record of an op, once what it hands to or takes from an interface is in the layout that was said."""
        takes: dict[int, Any] = {}
        gives: dict[int, Any] = {}
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
                wanted = ir.DictAttr(inner.attributes["dist.layouts"])["operands"]
                self.operands(inner, wanted)
                if INTERFACE in inner.attributes:
                    self.enters(inner, 0, wanted[0], inner.attributes[INTERFACE])
            if inner.name in ("dist.to_local", "dist.to_global") and INTERFACE in inner.attributes:
                inner.attributes["layout"] = inner.attributes[INTERFACE]
                del inner.attributes[INTERFACE]

    def redistributed(self, value: Any, source: Any, target: Any, reader: Any = None) -> Any:
        """`value` in the layout `target`, made right behind its definition so that every reader may use it.

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


@dataclass(frozen=True)
class _Interface:
    """Arguments and results of a function, by number, whose layout is not that of the value inside: the one inside.
    said: the layouts outside, of arguments and of results.
    """

    arguments: dict[int, Any]
    results: dict[int, Any]
    said: tuple[dict[int, Any], dict[int, Any]]

    def outside(self, result: int) -> Any:
        """The layout that result number `result` is handed out in."""
        return self.said[1][result]


def _close(f: Any) -> _Interface:
    """Put back what dist-propagate noted: dist.layout is again what was said."""
    found: list[tuple[dict[int, Any], dict[int, Any]]] = []
    for key in ("arg_attrs", "res_attrs"):
        inside, said, entries = {}, {}, []
        attrs = f.operation.attributes.get(key)
        for i, given in enumerate(attrs if attrs is not None else ()):
            entry = {a.name: a.attr for a in ir.DictAttr(given)}
            if "dist.interface" in entry:
                inside[i], said[i] = entry["dist.layout"], entry.pop("dist.interface")
                entry["dist.layout"] = said[i]
                entry.pop("dist.open", None)
            entries.append(ir.DictAttr.get(entry))
        if said:
            f.operation.attributes[key] = ir.ArrayAttr.get(entries)
        found.append((inside, said))
    (arguments, taken), (results, given) = found
    return _Interface(arguments, results, (taken, given))


def _manual_results(op: Any) -> dict[int, Any]:
    """Results of a region in the local view that leave it in another layout than propagation gave them."""
    block = op.regions[0].blocks[0]
    end = block.operations[len(block.operations) - 1].operation
    made = [value.owner for value in end.operands]
    return {i: o.attributes[INTERFACE] for i, o in enumerate(made) if INTERFACE in o.attributes}


def drop_constraints(module: Any) -> None:
    """Remove what has done its work, but not while sizes of the mesh are symbols: layouts may be chosen anew."""
    for op in ops_of(module, "dist.constrain"):
        if not is_given(op):
            replace(op, [op.operation.operands[0]])
