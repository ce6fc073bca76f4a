"""Know which dims ops read from their end on, where a call says where that is, and read them so.

before:  y[i] = x[-i + n - 1]
after:   t[i] = x[max(n - 1 - i, 0)];  y[i] = t[i]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshweave.ir.bindings import ir, linalg
from meshweave.layout.lengths import Formula, Sizes, fitted
from meshweave.transforms.propagation.rules.structured import coefficients


@dataclass(frozen=True)
class TurnedDim:
    """Say that an op reads operand `number` from place `first` of its dim `dim` on, back to the start."""

    result: ir.Value
    number: int
    dim: int
    first: Formula

    def read(self, expr: ir.AffineExpr) -> None:
        """Let the op read the dim by another expression of its loops."""
        op = self.op
        maps = [attr.value for attr in linalg.get_indexing_maps(op.opview)]
        exprs = list(maps[self.number].results)
        exprs[self.dim] = expr
        maps[self.number] = ir.AffineMap.get(maps[self.number].n_dims, 0, exprs)
        op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])

    @property
    def op(self) -> ir.Operation:
        """Return the op."""
        return self.result.owner

    def loop(self) -> ir.AffineExpr:
        """Return the loop that runs with the dim."""
        expr = linalg.get_indexing_maps(self.op.opview)[self.number].value.results[self.dim]
        return ir.AffineDimExpr.get(next(k for k in coefficients(expr) or {} if k is not None))


def turned_dims(ops: Sequence[ir.Operation], sizes: Sequence[Sizes]) -> list[TurnedDim] | None:
    """Return the dims that one op, given it in the program for each size, reads from their end on.

    Return None where its maps differ otherwise.
    """
    found = []
    every = [[attr.value for attr in op.attributes["indexing_maps"]] for op in ops]
    for number, same in enumerate(zip(*every, strict=True)):
        for dim, exprs in enumerate(zip(*(map_.results for map_ in same), strict=True)):
            forms = [coefficients(expr) or {} for expr in exprs]
            begins = [form.pop(None, 0) for form in forms]
            if all(form == forms[0] for form in forms) and len(set(begins)) == 1:
                continue
            first = fitted(sizes, begins)
            if first is None or any(f != forms[0] or list(f.values()) != [-1] for f in forms):
                return None
            found.append(TurnedDim(ops[0].results[0], number, dim, first))
    return found
