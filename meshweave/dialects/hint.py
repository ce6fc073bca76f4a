"""Define the `hint` dialect: what the programmer asks of a region, carried around the ops it is about."""

# No `from __future__ import annotations` here: the field types are read as classes.
from collections.abc import Sequence
from typing import Any

from meshweave.dialects.checks import ends_in, layout_fits, require, same_type
from meshweave.dialects.kept import kept_definition
from meshweave.dialects.rows import mixed_rows
from meshweave.hints.keys import Hint, HintError
from meshweave.ir.bindings import ext, ir


@kept_definition
class HintDialect(ext.Dialect, name="hint"):
    """Carry schedules, budgets and kernels that the programmer asks for."""


def hints_in(attr: ir.Attribute, where: str = "") -> "list[Hint]":
    """Return the hints of a dictionary attribute. Raises HintError, which names what is wrong in it."""
    found = []
    for named in attr:
        value, strength = named.attr, None
        if isinstance(value, ir.DictAttr):
            entry = {a.name: a.attr for a in value}
            if set(entry) != {"value", "strength"} or not isinstance(
                entry["strength"], ir.StringAttr
            ):
                raise HintError(
                    f"hint {named.name}: a dictionary holds value and strength, "
                    'as {value = "dfs", strength = "required"}'
                )
            value, strength = entry["value"], entry["strength"].value
        if not isinstance(value, ir.StringAttr | ir.IntegerAttr):
            raise HintError(f"hint {named.name}: its value is a text or a number, not {value}")
        found.append(Hint.make(named.name, value.value, strength, where))
    return found


@mixed_rows
class RegionOp(HintDialect.Operation, name="region"):
    """Put ops under a hint: `%r = "hint.region"() ({ ... "hint.yield"(%v) }) {hints = {order = "dfs"}}`.

    The region reads outer values freely and yields its results, of any types. A value is a text or a number, or says
    its strength too: `order = {value = "dfs", strength = "required"}`.
    """

    outs: Sequence[ext.Result[Any]]
    hints: ir.DictAttr
    body: ext.Region

    def verify_invariants(self) -> bool:
        hints = self.attributes.get("hints")
        if not require(self, isinstance(hints, ir.DictAttr), "needs a dictionary `hints`"):
            return False
        try:
            hints_in(hints)
        except HintError as error:
            return require(self, False, error.message)
        return True

    def verify_region_invariants(self) -> bool:
        ops = ends_in(self, "hint.yield")
        if ops is None:
            return False
        given = [str(v.type) for v in ops[-1].operands]
        wanted = [str(r.type) for r in self.operation.results]
        return require(
            self,
            given == wanted,
            f"yields ({', '.join(given)}) but its results are ({', '.join(wanted)})",
        )


@mixed_rows
class YieldOp(HintDialect.Operation, name="yield", traits=[ir.IsTerminatorTrait, ext.Pure]):
    """Give the results of the hint.region around it."""

    values: Sequence[ext.Operand[Any]]


class PlaceOp(HintDialect.Operation, name="place", traits=[ext.Pure]):
    """Lay out `input` within the slices of the region around it: `layout` names time axes alone.

    hint-apply makes it of a `dist.constrain` that names a time axis, hint-slice reads it and takes it away. The layout
    is of another dialect: no field, the verifier looks at it.
    """

    input: ext.Operand[Any]
    output: ext.Result[Any]

    def verify_invariants(self) -> bool:
        return same_type(self) and layout_fits(self, self.operation.results[0].type)
