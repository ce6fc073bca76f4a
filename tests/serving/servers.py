"""Servers for tests: in this process, and the real command in a process of its own."""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp.test_utils import TestClient, TestServer
from commands import start

from meshweave.runtime.processes.launch import descendants
from meshweave.serving.application import Application, Service
from meshweave.serving.metrics import ServerMetrics
from meshweave.serving.work import ServerLimits

Talk = Callable[[TestClient], Awaitable[None]]
MakeService = Callable[[ServerMetrics], tuple[Service, Callable[[Application], object]]]


def talk(make: MakeService, say: Talk, limits: ServerLimits | None = None) -> Application:
    """Let a client talk to a server in this process. make: gives the service, and what adds its routes."""
    metrics = ServerMetrics()
    service, add_routes = make(metrics)
    application = Application(service, limits or ServerLimits(), metrics)
    add_routes(application)

    async def all_of_it() -> None:
        server = TestServer(application.inner, handler_cancellation=True)
        async with TestClient(server) as client:
            await say(client)

    try:
        asyncio.run(all_of_it())
    finally:
        service.close()
    return application


@dataclass(frozen=True)
class Served:
    """The real command. url: where it answers."""

    process: "subprocess.Popen[str]"
    url: str

    def workers(self) -> list[int]:
        """Return the processes of ranks of engine mpi."""
        started = [p for p in descendants(self.process.pid) if "processes.launcher" in _command(p)]
        return sorted({rank for each in started for rank in descendants(each)})


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


@contextmanager
def served(*arguments: Any) -> Iterator[Served]:
    """`meshweave serve ARGUMENTS` on a free port; killed at the end if it still runs."""
    process = start("meshweave", "serve", *arguments, "--port", 0)
    try:
        line = process.stdout.readline()
        assert " on http" in line, line + process.stderr.read()
        yield Served(process, line.split()[-1])
    finally:
        process.kill()
        process.communicate()


async def post(session: aiohttp.ClientSession, url: str, body: Any) -> tuple[int, Any]:
    """Return the status and the JSON of an answer."""
    async with session.post(url, json=body) as answer:
        return answer.status, await answer.json()
