"""Rows of values of several types, in dialects defined from Python.

IRDL gives all values of a variadic group one type. So an op is declared with ROWS such groups in the place of each, one
for each value at most, and says in `operandSegmentSizes` / `resultSegmentSizes` which hold one. The text need not:
the sizes are there only while the op is verified.
"""

# No `from __future__ import annotations`: see the dialects.
from dataclasses import replace
from typing import Any

from meshweave.bindings import ir
from meshweave.dialects.checks import require

ROWS = 64
"""How often the type may change in a row."""

_SIZES = {"operands": "operandSegmentSizes", "results": "resultSegmentSizes"}


def mixed_rows(kind: Any) -> Any:
    """Decorates the class of an op whose variadic operands or results are of any types each.

    Its verifiers call `spread` first; `gather` takes the sizes away again, when all else is verified.
    """
    emit = kind._emit_operation

    def emit_rows() -> None:
        """The IRDL definition, with ROWS groups for each variadic field."""
        declared = kind._fields
        kind._fields = [
            replace(f, name=f"{f.name}{i}") if i is not None else f
            for f in declared
            for i in (range(ROWS) if f.variadicity.name == "variadic" else (None,))
        ]
        try:
            emit()
        finally:
            kind._fields = declared

    kind._emit_operation = emit_rows
    return kind


def spread(op: Any, what: str) -> bool:
    """Say to IRDL which group each value of `what`, "operands" or "results", is in. False, with an error, for too many
    types."""
    runs: list[int] = []
    last = None
    for value in getattr(op.operation, what):
        if runs and value.type == last:
            runs[-1] += 1
        else:
            runs.append(1)
        last = value.type
    if not require(op, len(runs) <= ROWS, f"has more than {ROWS} runs of {what} of one type"):
        return False
    sizes = [*runs, *[0] * (ROWS - len(runs))]
    op.operation.attributes[_SIZES[what]] = ir.DenseI32ArrayAttr.get(
        sizes, context=op.operation.context
    )
    return True


def gather(op: Any, what: str) -> bool:
    """Take away what `spread` said."""
    del op.operation.attributes[_SIZES[what]]
    return True
