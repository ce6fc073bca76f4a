"""Declare our dialects, one file each, and make contexts that know them.

Contexts stay single-threaded: Python verifiers on MLIR's worker threads would deadlock on the interpreter lock.
"""

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from meshweave.dialects.dist import Dist
from meshweave.dialects.hint import HintDialect
from meshweave.dialects.mw import Mw
from meshweave.ir.bindings import ir
from meshweave.ir.bindings import stablehlo as stablehlo_bindings  # a file here has that name

DIALECTS = (Dist, HintDialect, Mw)
_LOADING = threading.Lock()
os.register_at_fork(after_in_child=_LOADING._at_fork_reinit)  # type: ignore[attr-defined]


def load(ctx: ir.Context) -> None:
    """Make `ctx` know our dialects. Loading twice is harmless."""
    # Loading goes through state of the dialect's class: two threads at it at once end the process.
    with _LOADING, ctx, ir.Location.unknown(ctx):
        for dialect in DIALECTS:
            if not ctx.is_dialect_loaded(dialect.DIALECT_NAMESPACE):
                dialect.load()


def context(unregistered: bool = False) -> ir.Context:
    """Return a new context with the `dist`, `hint` and (where available) `stablehlo` dialects loaded.

    unregistered: also accept ops of unregistered dialects (`sdy`, `chlo` in what JAX exports).
    """
    ctx = ir.Context()
    load(ctx)
    if (hlo := stablehlo_bindings()) is not None:
        hlo.register_dialect(ctx, True)
    ctx.allow_unregistered_dialects = unregistered
    return ctx


_LEAST = 1 << 16
"""Bytes that a program counts for, however short its text."""
_MOST = 32 * _LEAST
"""Bytes of programs in a context: it keeps all types and attributes that were ever made in it."""
_IDLE: deque[tuple[ir.Context, int]] = deque(maxlen=2)


@contextmanager
def lent_context(nbytes: int = 0, unregistered: bool = True) -> Iterator[ir.Context]:
    """Lend a context like `context(unregistered)` to programs that are compiled one after another.

    nbytes: of the program's text.

    Making a context takes as long as the passes on a small program. A returned context is lent again, to one program
    at a time, until it has held a number of bytes; not after an error.
    """
    try:
        ctx, held = _IDLE.pop()
    except IndexError:
        ctx, held = context(), 0
    ctx.allow_unregistered_dialects = unregistered
    yield ctx
    held += max(nbytes, _LEAST)
    if held < _MOST:
        _IDLE.append((ctx, held))
