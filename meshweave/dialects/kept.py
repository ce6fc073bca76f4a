"""Define a dialect once for all contexts of the process.

Making the definition from Python takes most of the time of a new context; reading it again takes a fifth of that.
"""

# No `from __future__ import annotations`: see the dialects.
import io
from typing import TypeVar

from meshweave.ir.bindings import ir

DialectClass = TypeVar("DialectClass", bound=type[ir.Dialect])


def kept_definition(dialect: DialectClass) -> DialectClass:
    """Decorate the class of a dialect: contexts after the first read its definition from bytecode."""
    emit = dialect._emit_module
    kept = io.BytesIO()

    def emit_or_read() -> ir.Module:
        """Return the definition in the current context."""
        # Keep what the first context has loaded.
        if not kept.getvalue() and hasattr(dialect, "_mlir_module"):
            dialect._mlir_module.operation.write_bytecode(kept)
        return ir.Module.parse(kept.getvalue()) if kept.getvalue() else emit()

    dialect._emit_module = emit_or_read
    return dialect
