"""The `hint` dialect: what the programmer asks of a region, carried around the ops it is about."""

# No `from __future__ import annotations` here: the field types are read as classes.
from collections.abc import Sequence
from typing import Any

from meshweave.bindings import ext, ir
from meshweave.dialects.checks import layout_fits, require
from meshweave.dialects.rows import gather, mixed_rows, spread
from meshweave.hints import Hint as Hint_
from meshweave.hints import HintError


class Hint(ext.Dialect, name="hint"):
    """Schedules, budgets and kernels that the programmer asks for."""


def hints_in(attr: Any, where: str = "") -> "list[Hint_]":
    """The hints of a dictionary attribute. HintError names what is wrong in it."""
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
        found.append(Hint_.make(named.name, value.value, strength, where))
    return found


@mixed_rows
class RegionOp(Hint.Operation, name="region"):
    """Ops under a hint: `%r = "hint.region"() ({ ... "hint.yield"(%v) }) {hints = {order = "dfs"}}`.

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
        return spread(self, "results")

    def verify_region_invariants(self) -> bool:
        gather(self, "results")
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


@mixed_rows
class YieldOp(Hint.Operation, name="yield", traits=[ir.IsTerminatorTrait, ext.Pure]):
    """The results of the hint.region around it."""

    values: Sequence[ext.Operand[Any]]

    def verify_invariants(self) -> bool:
        return spread(self, "operands")

    def verify_region_invariants(self) -> bool:
        return gather(self, "operands")


class PlaceOp(Hint.Operation, name="place", traits=[ext.Pure]):
    """Within the slices of the region around it, `input` is laid out so: `layout` names time axes alone.

    hint-apply makes it of a `dist.constrain` that names a time axis, hint-slice reads it and takes it away. The layout
    is of another dialect: no field, the verifier looks at it.
    """

    input: ext.Operand[Any]
    output: ext.Result[Any]

    def verify_invariants(self) -> bool:
        values = [*self.operation.operands, *self.operation.results]
        return (
            require(self, len(values) == 2, "takes one operand and gives one result")
            and require(
                self,
                values[0].type == values[1].type,
                f"must keep the type, but goes from {values[0].type} to {values[1].type}",
            )
            and layout_fits(self, self.attributes.get("layout"), values[1].type, "layout")
        )
