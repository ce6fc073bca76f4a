"""Start a server and stop it: on SIGTERM those requests that were begun are finished, and new ones are refused."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

from meshweave.errors import UsageError
from meshweave.serving.application import Application, hosts_for

_LOOK = 0.02  # seconds between looks whether the last request is done
_BACKLOG = 1024


def serve(application: Application, host: str, port: int, ready: Callable[[str], None]) -> int:
    """Answer requests until a signal; return how many did not finish in time.

    ready: called with the address, once requests are taken. port: 0 for any that is free. Raises UsageError for an
    address that cannot be had.
    """
    return asyncio.run(_served(application, host, port, ready))


async def _served(
    application: Application, host: str, port: int, ready: Callable[[str], None]
) -> int:
    web, told = application.web, asyncio.Event()
    application.hosts = hosts_for(host)
    runner = web.AppRunner(
        application.inner, access_log=None, handler_cancellation=True, shutdown_timeout=1.0
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, backlog=_BACKLOG).start()
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"cannot listen on {host} port {port}: {reason}") from None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, told.set)
        ready(_address(runner.addresses[0]))
        await told.wait()
        application.stopping = True
        told.clear()  # a second signal ends it at once
        end = time.monotonic() + application.limits.grace
        while application.active and time.monotonic() < end and not told.is_set():
            await asyncio.sleep(_LOOK)
        return application.active
    finally:
        await runner.cleanup()


def _address(found: tuple[object, ...]) -> str:
    host, port = found[0], found[1]
    return f"http://[{host}]:{port}" if ":" in str(host) else f"http://{host}:{port}"
