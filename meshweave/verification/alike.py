"""Tell whether two functions are written alike: the same ops on the same values, whatever is said of how they run.

On one rank the program of the rank is the whole program, unless hints have changed it. Where it is written alike,
nothing has to be derived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshweave.dialects.dist import LayoutAttr
from meshweave.ir.bindings import ir
from meshweave.verification.terms.ranks import Ranks

_HOW = ("mw.", "hint.")  # attributes that say how something runs, not what it computes
_RESERVED = ("dist.", "hint.", "mw.")


def alike(
    ranks: Ranks,
    f: ir.Operation,
    g: ir.Operation,
    theirs: Mapping[str, ir.Operation],
    ours: Mapping[str, ir.Operation],
) -> bool:
    """Tell whether `g`, of the only rank, is surely `f`: each value of the one is that of the other.

    theirs, ours: the functions that each may call.
    """
    if ranks.mesh.nranks != 1 or not all(map(_plain, (f, g))):
        return False
    return _Pairs(theirs, ours).functions(f, g)


def _plain(function: ir.Operation) -> bool:
    """Tell whether arguments and results lie in memory as their types say, where something is said of that."""
    said = [
        a
        for name in ("arg_attrs", "res_attrs")
        if name in function.attributes
        for each in ir.ArrayAttr(function.attributes[name])
        for a in ir.DictAttr(each)
        if a.name.startswith("dist.") and a.name != "dist.global"
    ]
    if any(a.name != "dist.layout" for a in said):
        return False
    layouts = [LayoutAttr(a.attr).layout for a in said]
    return all(lay.is_block and not lay.partial and lay.without_order() == lay for lay in layouts)


@dataclass
class _Pairs:
    """Pair the values of two programs."""

    theirs: Mapping[str, ir.Operation]
    ours: Mapping[str, ir.Operation]
    values: dict[ir.Value, ir.Value] = field(default_factory=dict)
    called: dict[str, bool] = field(default_factory=dict)

    def functions(self, f: ir.Operation, g: ir.Operation) -> bool:
        """Tell whether two functions with bodies are alike."""
        return f.attributes["function_type"] == g.attributes["function_type"] and self._regions(
            f, g
        )

    def _regions(self, f: ir.Operation, g: ir.Operation) -> bool:
        if len(f.regions) != len(g.regions):
            return False
        return all(self._region(a, b) for a, b in zip(f.regions, g.regions))

    def _region(self, a: ir.Region, b: ir.Region) -> bool:
        if len(a.blocks) != len(b.blocks) or len(a.blocks) > 1:
            return False
        return all(self._block(x, y) for x, y in zip(a.blocks, b.blocks))

    def _block(self, a: ir.Block, b: ir.Block) -> bool:
        if [v.type for v in a.arguments] != [v.type for v in b.arguments]:
            return False
        self.values.update(zip(a.arguments, b.arguments))
        mine, others = list(a.operations), list(b.operations)
        return len(mine) == len(others) and all(
            self._op(x.operation, y.operation) for x, y in zip(mine, others)
        )

    def _op(self, a: ir.Operation, b: ir.Operation) -> bool:
        name = a.name
        if name != b.name or name.startswith(_RESERVED):
            return False
        if [self.values.get(v) for v in a.operands] != list(b.operands):
            return False
        results, made = list(a.results), list(b.results)
        if [v.type for v in results] != [v.type for v in made] or _what(a) != _what(b):
            return False
        if name == "func.call" and not self._called(a.attributes["callee"].value):
            return False
        self.values.update(zip(results, made))
        return self._regions(a, b)

    def _called(self, name: str) -> bool:
        if name not in self.called:
            f, g = self.theirs.get(name), self.ours.get(name)
            self.called[name] = True  # a function that calls itself is like one that does
            self.called[name] = (
                f is not None and g is not None and _plain(f) and _plain(g) and self.functions(f, g)
            )
        return self.called[name]


def _what(op: ir.Operation) -> dict[str, ir.Attribute]:
    """Return the attributes that say what an op computes."""
    said = op.attributes
    return {name: said[name] for name in said if not name.startswith(_HOW)}
