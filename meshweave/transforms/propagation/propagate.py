"""dist-propagate: a layout for every value, from those of arguments, results and constraints.

Recorded on each op as `dist.layouts = {operands = [..], results = [..], values = [..]}`: the layouts it runs with, and,
where it differs, the layout its results are handed on in (a partial result is reduced in between). Arguments and
results of functions get their `dist.layout`. It is a cache: run the pass again after a change.

Where sizes of the mesh are symbols the layouts are those for 2 ranks along each, and the module notes for which other
numbers they are the same: see symbolic.py.
"""

from dataclasses import dataclass
from typing import ClassVar

from meshweave.dialects.dist import TAKES, LayoutAttr
from meshweave.ir.bindings import ir
from meshweave.layout.layout import Layout
from meshweave.plan.family import Asked, probe, sizes_text
from meshweave.plan.propagation.arrange import arrange
from meshweave.plan.propagation.defer import defer
from meshweave.plan.propagation.nearer import bring_nearer
from meshweave.plan.propagation.propagate import Decision, propagate
from meshweave.transforms.base import (
    Pass,
    functions,
    mesh_of_module,
    port_attrs,
    remark,
    set_port_attrs,
)
from meshweave.transforms.propagation import symbolic
from meshweave.transforms.propagation.graph import Built, Site, build
from meshweave.transforms.propagation.interface import beyond_blocks, open_interfaces


@dataclass(frozen=True)
class Propagate(Pass):
    """Give every value a layout, forwards and backwards from what arguments, results and constraints say.

    slices: the axes are of time (hint-slice): a sum over them costs nothing, what another slice makes cannot be had.
    """

    name: ClassVar[str] = "dist-propagate"
    slices: bool = False

    def run(self, module: ir.Module) -> None:
        mesh = mesh_of_module(module)
        if mesh is None:
            return
        open_interfaces(module, mesh)
        built = build(module, mesh, windows=not self.slices)
        graph = built.graph.without_windows() if mesh.is_symbolic else built.graph
        chosen_at = probe(mesh)
        asked = Asked(mesh, self.slices) if mesh.is_symbolic else None
        chosen = propagate(graph, chosen_at, asked, self.slices)
        if asked is None and not self.slices:
            chosen = bring_nearer(graph, *chosen, mesh)
        layouts, decisions = defer(graph, *chosen, chosen_at)
        if asked is None and not self.slices:
            said = beyond_blocks(module, built)
            layouts, decisions = arrange(graph, layouts, decisions, said, mesh)
        if asked is not None:
            symbolic.mark_given(module)
            sizes = asked.same_for(graph, *chosen, built.graph.rules)
            symbolic.ran(module, str(self), [sizes_text(each) for each in sizes])
        for op in built.table.unknown:
            remark(op, f"dist-propagate: no rule for '{op.name}': its operands are gathered whole")
        LayoutWriter(built, layouts).write(module, decisions)


class LayoutWriter:
    """Write layouts back as attributes, each distinct one made once."""

    def __init__(self, built: Built, layouts: list[Layout | None]) -> None:
        self.built = built
        self.layouts = layouts
        self._attrs: dict[Layout | None, ir.Attribute] = {None: ir.UnitAttr.get()}
        self._records: dict[tuple[int, ...], tuple[ir.Attribute, Decision]] = {}

    def attr(self, layout: Layout | None) -> ir.Attribute:
        """Return the layout as an attribute; a unit attribute for what is no tensor."""
        if layout not in self._attrs:
            assert layout is not None  # it is in from the beginning
            self._attrs[layout] = LayoutAttr.make(layout)
        return self._attrs[layout]

    def write(self, module: ir.Module, decisions: list[Decision]) -> None:
        values_of = self.built.graph.values_of
        merged: dict[ir.Operation, list[tuple[Site, Decision, tuple[int, ...]]]] = {}
        for site, decision, values in zip(self.built.sites, decisions, values_of):
            if site.results and len(site.op.results) == len(site.results):
                key = (id(decision), *[id(self.layouts[v]) if v >= 0 else 0 for v in values])
                if key not in self._records:
                    self._records[key] = (self._record(site, decision, values), decision)
                site.op.attributes["dist.layouts"] = self._records[key][0]
            else:
                merged.setdefault(site.op, []).append((site, decision, values))
        for op in self.built.openings:
            merged.setdefault(op, [])
        for op, passes in merged.items():
            self._write_passes(op, passes)
        for f in functions(module):
            self._write_function(f)

    def _record(self, site: Site, decision: Decision, values: tuple[int, ...]) -> ir.Attribute:
        nops = len(site.operands)
        handed = [self.layouts[v] if v >= 0 else None for v in values[nops:]]
        entry = {
            "operands": ir.ArrayAttr.get([self.attr(x) for x in decision.operands]),
            "results": ir.ArrayAttr.get([self.attr(x) for x in decision.results]),
        }
        if tuple(handed) != decision.results:
            entry["values"] = ir.ArrayAttr.get([self.attr(x) for x in handed])
        return ir.DictAttr.get(entry)

    def _write_passes(
        self, op: ir.Operation, passes: list[tuple[Site, Decision, tuple[int, ...]]]
    ) -> None:
        """Record an op that hands values on: each operand must come in the layout of the value it becomes."""
        wanted = [self.attr(None)] * len(op.operands)
        for site, _, values in passes:
            ((_, operand),) = site.operands
            wanted[operand] = self.attr(self.layouts[values[1]])
        numbers = [self.built.values.get(r, -1) for r in op.results]
        results = [self.attr(self.layouts[n] if n >= 0 else None) for n in numbers]
        op.attributes["dist.layouts"] = ir.DictAttr.get(
            {"operands": ir.ArrayAttr.get(wanted), "results": ir.ArrayAttr.get(results)}
        )

    def _write_function(self, f: ir.Operation) -> None:
        arguments = f.operation.regions[0].blocks[0].arguments
        numbers = [self.built.values.get(a, -1) for a in arguments]
        self._annotate(f, "arg_attrs", numbers)
        results = list(self.built.results[f.operation.attributes["sym_name"].value])
        for number, entry in enumerate(port_attrs(f, "res_attrs")):
            if TAKES in entry:  # it lies in a buffer of that argument
                results[number] = numbers[entry[TAKES].value]
        self._annotate(f, "res_attrs", results)

    def _annotate(self, f: ir.Operation, key: str, numbers: list[int]) -> None:
        entries = port_attrs(f, key)
        for entry, number in zip(entries, numbers):
            if number >= 0:
                entry["dist.layout"] = self.attr(self.layouts[number])
        set_port_attrs(f, key, entries)
