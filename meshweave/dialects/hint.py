"""The `hint` dialect: what the programmer asks of a region, carried around the ops it is about."""

# No `from __future__ import annotations` here: the field types are read as classes.
from collections.abc import Sequence
from typing import Any

from meshweave.bindings import ext, ir
from meshweave.dialects.checks import require


class Hint(ext.Dialect, name="hint"):
    """Schedules, budgets and kernels that the programmer asks for."""


HINT_KEYS = (
    "slice",
    "order",
    "width",
    "peak_bytes",
    "stream",
    "bundle",
    "fuse",
    "kernels",
    "numerics",
    "overlap",
)
"""The keys a region may carry; any other is an error, so that a misspelt hint is never lost."""


class RegionOp(Hint.Operation, name="region"):
    """Ops under a hint: `%r = "hint.region"() ({ ... "hint.yield"(%v) }) {hints = {order = "dfs"}}`.

    The region reads outer values freely and yields its results, which are all of one type: dialects defined in Python
    cannot say more of a row of results. Keys of `hints` are those of HINT_KEYS.
    """

    outs: Sequence[ext.Result[Any]]
    hints: ir.DictAttr
    body: ext.Region

    def verify_invariants(self) -> bool:
        hints = self.attributes.get("hints")
        if not require(self, isinstance(hints, ir.DictAttr), "needs a dictionary `hints`"):
            return False
        types = {str(result.type) for result in self.operation.results}
        if not require(
            self,
            len(types) < 2,
            f"has results of types {', '.join(sorted(types))}; all must be of one type",
        ):
            return False
        unknown = [named.name for named in hints if named.name not in HINT_KEYS]
        return require(
            self,
            not unknown,
            f'unknown hint "{", ".join(unknown)}": known are {", ".join(HINT_KEYS)}',
        )

    def verify_region_invariants(self) -> bool:
        blocks = self.regions[0].blocks
        if not require(self, len(blocks) == 1, f"needs one block, has {len(blocks)}"):
            return False
        ops = blocks[0].operations
        last = ops[len(ops) - 1].operation if len(ops) else None
        if not require(
            self, last is not None and last.name == "hint.yield", "must end in hint.yield"
        ):
            return False
        given = [str(v.type) for v in last.operands]
        wanted = [str(r.type) for r in self.operation.results]
        return require(
            self,
            given == wanted,
            f"yields ({', '.join(given)}) but its results are ({', '.join(wanted)})",
        )


class YieldOp(Hint.Operation, name="yield", traits=[ir.IsTerminatorTrait, ext.Pure]):
    """The results of the hint.region around it."""

    values: Sequence[ext.Operand[Any]]
