"""The routes of a compiled program: what it takes, and a call with arrays."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from meshweave.errors import UsageError
from meshweave.serving.application import Application, Inbox, Request, Response, give_up
from meshweave.serving.array_service import ArrayJob, Arrays, ArrayService
from meshweave.serving.json_arrays import check_form, described, read_arguments, written


def add_array_routes(application: Application, service: ArrayService, name: str) -> None:
    """Add GET /v1/program and POST /v1/run."""
    program = service.program

    async def about(request: Request) -> Response:
        return application.json(
            {
                "program": name, "mesh": str(program.mesh), "engine": program.engine.name,
                "inputs": [described(p, i, "input") for i, p in enumerate(program.inputs)],
                "results": [described(p, i, "result") for i, p in enumerate(program.outputs)],
            }
        )  # fmt: skip

    async def run(request: Request) -> Response:
        body = await application.body(request)
        form, given = _asked(body)
        arguments = await asyncio.to_thread(read_arguments, program.inputs, given)
        inbox = Inbox(application)
        job = ArrayJob(arguments, inbox.tell)
        try:
            service.submit(job)
            made = await inbox.get()
        finally:
            give_up([job])
        if isinstance(made, Exception):
            raise made
        text = await asyncio.to_thread(_results, service, made, form)
        return application.json({"results": text})

    application.inner.router.add_get("/v1/program", about)
    application.add_work("/v1/run", run)


def _asked(body: object) -> tuple[str, object]:
    """Return the form of the results, and the arguments. Raises UsageError."""
    if not isinstance(body, Mapping) or "inputs" not in body:
        raise UsageError("an object with inputs is needed")
    unknown = [name for name in body if name not in ("inputs", "results")]
    if unknown:
        raise UsageError(f'no field "{unknown[0]:.40}"; there are inputs and results')
    return check_form(body.get("results", "lists")), body["inputs"]


def _results(service: ArrayService, made: Arrays, form: str) -> list[dict[str, Any]]:
    ports = service.program.outputs
    return [
        written(port, index, value, form) for index, (port, value) in enumerate(zip(ports, made))
    ]
