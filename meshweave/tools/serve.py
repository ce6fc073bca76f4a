"""Define `meshweave serve`: a program, or a model that decodes, behind HTTP."""

import argparse
import sys
from pathlib import Path

from meshweave.api.progress import Bar
from meshweave.errors import UsageError
from meshweave.serving.application import Application
from meshweave.serving.array_routes import add_array_routes
from meshweave.serving.array_service import ArrayService
from meshweave.serving.completion_routes import CompletionRoutes
from meshweave.serving.decoder import decoder_of
from meshweave.serving.metrics import ServerMetrics
from meshweave.serving.running import serve
from meshweave.serving.slot_service import SlotService
from meshweave.serving.text import FileTokenizer
from meshweave.serving.work import ServerLimits
from meshweave.tools.run import StageDisplay, ended_by_signals, load_program, open_program
from meshweave.tools.sign import check_signature

_OF_PROGRAMS = ("target", "chip", "dim", "flight", "graph", "share", "require_signature")
_OF_DECODERS = ("tokenizer", "slots")


def serve_command(options: argparse.Namespace) -> int:
    """Run the command `serve`; return the exit status."""
    limits = ServerLimits(options.queue, options.max_body, options.time_limit, options.grace)
    metrics = ServerMetrics()
    make = _decoder if options.file.endswith(".py") else _arrays
    with ended_by_signals():
        service, application = make(options, limits, metrics)
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
    _refuse(options, _OF_DECODERS, "goes with a Python file whose function decoder returns a model")
    with StageDisplay(options.file, options.stage, quiet=False) as progress:
        source = open_program(options.file, options.dim)
        if options.require_signature is not None:
            check_signature(source.bundle, source.name, options.require_signature)
        program = load_program(source, options, progress)
    service = ArrayService(program, limits.queue, metrics.rank_failed)
    application = Application(service, limits, metrics)
    add_array_routes(application, service, options.file)
    return service, application


def _decoder(
    options: argparse.Namespace, limits: ServerLimits, metrics: ServerMetrics
) -> tuple[SlotService, Application]:
    """Make the model of a Python file, and put the routes for completions before it."""
    _refuse(options, _OF_PROGRAMS, "goes with a program, not with a Python file")
    tokenizer = None if options.tokenizer is None else FileTokenizer(options.tokenizer)
    names = ("mesh", "engine", "timeout", "slots")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    with Bar("meshweave", 1, quiet=False) as bar:
        bar(f"decoder of {options.file}")
        decoder = decoder_of(options.file, given)
    if tokenizer is not None and tokenizer.vocabulary > decoder.vocabulary:
        decoder.close()
        raise UsageError(
            f"--tokenizer {options.tokenizer}: {tokenizer.vocabulary} tokens, the model has "
            f"{decoder.vocabulary}"
        )
    service = SlotService(decoder, limits.queue, metrics.rank_failed, metrics.count_tokens)
    application = Application(service, limits, metrics, parallel=decoder.slots)
    CompletionRoutes(application, service, Path(options.file).stem, tokenizer)
    return service, application


def _refuse(options: argparse.Namespace, names: tuple[str, ...], why: str) -> None:
    """Raise UsageError for an option that means nothing here."""
    for name in names:
        if getattr(options, name):
            raise UsageError(f"--{name.replace('_', '-')} {why}")
