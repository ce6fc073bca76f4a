"""Run the command `meshweave verify`: check the program of one rank against the whole program."""

import argparse
import json

from meshweave.tools.run import read_text


def verify_command(options: argparse.Namespace) -> int:
    """Print what is proven; return 0 when all is, 1 when something is refuted, 3 otherwise."""
    from meshweave.dialects import context
    from meshweave.frontends.load import load_module
    from meshweave.ir.bindings import ir
    from meshweave.verification.check import verify

    sources = [read_text(options.whole), read_text(options.local)]
    options.stage("verify")
    with context() as ctx, ir.Location.unknown():
        whole, local = [load_module(s.text, ctx, s.name) for s in sources]
        answer = verify(whole, local)
    print(json.dumps(answer.as_json()) if options.json else str(answer))
    return answer.status
