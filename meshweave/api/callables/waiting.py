"""Call programs from coroutines: `await program.call_async(x)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshweave.frontends.python.builder import STATE
from meshweave.frontends.python.dtypes import CHOSEN


async def in_a_thread(
    call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call in a thread of the event loop's, under the kernels and the default dtype that hold here.

    A call that is under way runs to its end, also where nobody waits for it any more.
    """
    import asyncio  # it takes long to load, and whoever waits has it

    kernels, floating = STATE.kernels, CHOSEN.floating

    def run() -> Any:
        before = STATE.kernels, CHOSEN.floating
        STATE.kernels, CHOSEN.floating = kernels, floating
        try:
            return call(*args, **kwargs)
        finally:
            STATE.kernels, CHOSEN.floating = before

    return await asyncio.to_thread(run)
