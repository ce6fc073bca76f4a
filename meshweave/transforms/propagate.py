"""dist-propagate: a layout for every value, from those of arguments, results and constraints.

Recorded on each op as `dist.layouts = {operands = [..], results = [..], values = [..]}`: the layouts it runs with, and,
where it differs, the layout its results are handed on in (a partial result is reduced in between). Arguments and
results of functions get their `dist.layout`. It is a cache: run the pass again after a change.

Where sizes of the mesh are symbols the layouts are those for 2 ranks along each, and the module notes for which other
numbers they are the same: see symbolic.py.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from meshweave.bindings import ir
from meshweave.dialects.dist import LayoutAttr
from meshweave.layout.layout import Layout
from meshweave.plan.defer import defer
from meshweave.plan.family import Asked, probe, sizes_text
from meshweave.plan.propagate import Decision, propagate
from meshweave.transforms import symbolic
from meshweave.transforms.base import Pass, functions, remark
from meshweave.transforms.graph import Built, Site, build
from meshweave.transforms.interface import open_interfaces
from meshweave.transforms.mesh import mesh_of_module


@dataclass(frozen=True)
class Propagate(Pass):
    """Give every value a layout, forwards and backwards from what arguments, results and constraints say.

    slices: the axes are of time (hint-slice): a sum over them costs nothing, what another slice makes cannot be had.
    """

    name: ClassVar[str] = "dist-propagate"
    slices: bool = False

    def run(self, module: Any) -> None:
        mesh = mesh_of_module(module)
        if mesh is None:
            return
        context = module.operation.context
        with context, ir.Location.unknown(context):
            open_interfaces(module, mesh)
            built = build(module, mesh)
            chosen_at = probe(mesh)
            asked = Asked(mesh, self.slices) if mesh.is_symbolic else None
            chosen = propagate(built.graph, chosen_at, asked, self.slices)
            layouts, decisions = defer(built.graph, *chosen, chosen_at)
            if asked is not None:
                symbolic.mark_given(module)
                sizes = asked.same_for(built.graph, *chosen)
                symbolic.ran(module, str(self), [sizes_text(each) for each in sizes])
            for op in built.table.unknown:
                remark(
                    op, f"dist-propagate: no rule for '{op.name}': its operands are gathered whole"
                )
            _Writer(built, layouts).write(module, decisions)


class _Writer:
    """Writes layouts back as attributes, each distinct one made once."""

    def __init__(self, built: Built, layouts: list[Layout | None]) -> None:
        self.built = built
        self.layouts = layouts
        self._attrs: dict[Layout | None, Any] = {None: ir.UnitAttr.get()}
        self._records: dict[tuple[Any, ...], Any] = {}

    def attr(self, layout: Layout | None) -> Any:
        """The layout as an attribute; a unit attribute for what is no tensor."""
        if layout not in self._attrs:
            self._attrs[layout] = LayoutAttr.make(layout)
        return self._attrs[layout]

    def write(self, module: Any, decisions: list[Decision]) -> None:
        values_of = self.built.graph.values_of
        merged: dict[Any, list[tuple[Site, Decision, tuple[int, ...]]]] = {}
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

    def _record(self, site: Site, decision: Decision, values: tuple[int, ...]) -> Any:
        nops = len(site.operands)
        handed = [self.layouts[v] if v >= 0 else None for v in values[nops:]]
        entry = {
            "operands": ir.ArrayAttr.get([self.attr(x) for x in decision.operands]),
            "results": ir.ArrayAttr.get([self.attr(x) for x in decision.results]),
        }
        if tuple(handed) != decision.results:
            entry["values"] = ir.ArrayAttr.get([self.attr(x) for x in handed])
        return ir.DictAttr.get(entry)

    def _write_passes(self, op: Any, passes: list[tuple[Site, Decision, tuple[int, ...]]]) -> None:
        """An op that hands values on: each operand must come in the layout of the value it becomes."""
        wanted = [self.attr(None)] * len(op.operands)
        for site, _, values in passes:
            ((_, operand),) = site.operands
            wanted[operand] = self.attr(self.layouts[values[1]])
        results = [
            self.attr(self.layouts[number])
            if (number := self.built.values.get(r, -1)) >= 0
            else self.attr(None)
            for r in op.results
        ]
        op.attributes["dist.layouts"] = ir.DictAttr.get(
            {"operands": ir.ArrayAttr.get(wanted), "results": ir.ArrayAttr.get(results)}
        )

    def _write_function(self, f: Any) -> None:
        arguments = f.operation.regions[0].blocks[0].arguments
        numbers = [self.built.values.get(a, -1) for a in arguments]
        self._annotate(f, "arg_attrs", numbers)
        self._annotate(f, "res_attrs", self.built.results[f.operation.attributes["sym_name"].value])

    def _annotate(self, f: Any, key: str, numbers: list[int]) -> None:
        if not numbers:
            return
        attrs = f.operation.attributes.get(key)
        entries = []
        for i, number in enumerate(numbers):
            entry = {a.name: a.attr for a in ir.DictAttr(attrs[i])} if attrs is not None else {}
            if number >= 0:
                entry["dist.layout"] = self.attr(self.layouts[number])
            entries.append(ir.DictAttr.get(entry))
        f.operation.attributes[key] = ir.ArrayAttr.get(entries)
