"""DIALECTS: ours, loaded into a context right after it is made and before any text is parsed."""

import threading
from typing import Any

from meshweave.dialects.dist import Dist
from meshweave.dialects.hint import Hint

DIALECTS = (Dist, Hint)
_LOADING = threading.Lock()


def load(ctx: Any) -> None:
    """Make `ctx` know our dialects. Loading twice is harmless."""
    from meshweave.bindings import ir

    # Loading goes through state of the dialect's class: two threads at it at once end the process.
    with _LOADING, ctx, ir.Location.unknown(ctx):
        for dialect in DIALECTS:
            if not ctx.is_dialect_loaded(dialect.DIALECT_NAMESPACE):
                dialect.load()
