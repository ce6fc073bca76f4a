"""Let ops of dialects defined from Python take values of several types in one variadic group.

IRDL gives all values of a variadic group one type. So an op is declared with ROWS such groups in the place of each, one
for each value at most, and says in `operandSegmentSizes` / `resultSegmentSizes` which hold one. The text need not:
the sizes are there only while the op is verified.
"""

# No `from __future__ import annotations`: see the dialects.
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from meshweave.dialects.checks import require
from meshweave.ir.bindings import ir

OpClass = TypeVar("OpClass", bound=type[ir.OpView])

ROWS = 64
"""How often the type may change in a row."""

_SIZES = {
    "OperandDef": ("operands", "operandSegmentSizes"),
    "ResultDef": ("results", "resultSegmentSizes"),
}


def mixed_rows(kind: OpClass) -> OpClass:
    """Decorate the class of an op whose variadic operands or results are of any types each.

    Its values are told apart after its `verify_invariants` and until its `verify_region_invariants`, which run around
    IRDL's own checks.
    """
    emit = kind._emit_operation
    verify = getattr(kind, "verify_invariants", lambda op: True)
    verify_regions = getattr(kind, "verify_region_invariants", lambda op: True)
    variadic = [f for f in kind._fields if f.variadicity.name == "variadic"]
    sizes = [_SIZES[type(f).__name__] for f in variadic]

    def emit_rows() -> None:
        """Emit the IRDL definition, with ROWS groups for each variadic field."""
        declared = kind._fields
        kind._fields = [
            replace(f, name=f"{f.name}{i}") if i is not None else f
            for f in declared
            for i in (range(ROWS) if f in variadic else (None,))
        ]
        try:
            emit()
        finally:
            kind._fields = declared

    def verify_and_split(op: ir.OpView) -> bool:
        return verify(op) and all(_split_rows(op, *names) for names in sizes)

    def merge_and_verify(op: ir.OpView) -> bool:
        for _, attribute in sizes:
            del op.operation.attributes[attribute]
        return bool(verify_regions(op))

    kind._emit_operation = emit_rows
    kind.verify_invariants = verify_and_split
    kind.verify_region_invariants = merge_and_verify
    return kind


def _split_rows(op: ir.OpView, what: str, attribute: str) -> bool:
    """Tell IRDL which group each operand or result is in; return False, with an error, for too many types."""
    runs = [len(list(run)) for _, run in groupby(v.type for v in getattr(op.operation, what))]
    if not require(op, len(runs) <= ROWS, f"has more than {ROWS} runs of {what} of one type"):
        return False
    sizes = [*runs, *[0] * (ROWS - len(runs))]
    op.operation.attributes[attribute] = ir.DenseI32ArrayAttr.get(
        sizes, context=op.operation.context
    )
    return True
