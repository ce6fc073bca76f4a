"""Define `meshweave serve`: a program behind HTTP."""

import argparse
import sys

from meshweave.serving.application import Application
from meshweave.serving.array_routes import add_array_routes
from meshweave.serving.array_service import ArrayService
from meshweave.serving.metrics import ServerMetrics
from meshweave.serving.running import serve
from meshweave.serving.work import ServerLimits
from meshweave.tools.run import StageDisplay, ended_by_signals, load_program, open_program
from meshweave.tools.sign import check_signature


def serve_command(options: argparse.Namespace) -> int:
    """Run the command `serve`; return the exit status."""
    limits = ServerLimits(options.queue, options.max_body, options.time_limit, options.grace)
    metrics = ServerMetrics()
    with ended_by_signals():
        service, application = _arrays(options, limits, metrics)
        try:
            left = serve(application, options.host, options.port, lambda at: _ready(options, at))
        finally:
            service.close()
    if left:
        print(
            f"meshweave serve: {left} requests were not done in {limits.grace:g} s", file=sys.stderr
        )
    return 1 if left else 0


def _ready(options: argparse.Namespace, address: str) -> None:
    options.stage(f"serving {options.file}")
    print(f"meshweave: serving {options.file} on {address}", flush=True)


def _arrays(
    options: argparse.Namespace, limits: ServerLimits, metrics: ServerMetrics
) -> tuple[ArrayService, Application]:
    """Load a program, and put the routes for arrays before it."""
    with StageDisplay(options.file, options.stage, quiet=False) as progress:
        source = open_program(options.file)
        if options.require_signature is not None:
            check_signature(source.bundle, source.name, options.require_signature)
        program = load_program(source, options, progress)
    service = ArrayService(program, limits.queue, metrics.rank_failed)
    application = Application(service, limits, metrics)
    add_array_routes(application, service, options.file)
    return service, application
