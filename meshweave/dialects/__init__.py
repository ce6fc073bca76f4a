"""DIALECTS: ours, loaded into a context right after it is made and before any text is parsed."""

from typing import Any

from meshweave.dialects.dist import Dist
from meshweave.dialects.hint import Hint

DIALECTS = (Dist, Hint)


def load(ctx: Any) -> None:
    """Make `ctx` know our dialects. Loading twice is harmless."""
    from meshweave.bindings import ir

    with ctx, ir.Location.unknown(ctx):
        for dialect in DIALECTS:
            if not ctx.is_dialect_loaded(dialect.DIALECT_NAMESPACE):
                dialect.load()
