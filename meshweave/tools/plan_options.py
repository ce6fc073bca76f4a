"""The options of `meshweave plan`, apart from what it does, so that the parser loads nothing else."""

import argparse
from typing import Any


def add_plan(commands: Any) -> None:
    """Add the command to the parser's."""
    plan = commands.add_parser(
        "plan",
        help="how a tensor gets from one layout to another, and what that costs",
        description="Print the cheapest steps from one layout to another, the bytes that the busiest "
        "rank receives, and what is proved of them.",
    )
    add = plan.add_argument
    add("--mesh", required=True, help='axes and sizes, "x=2,y=2"; a symbol, "x=N", for formulas')
    add("--shape", required=True, help='sizes of the tensor, "16x8"; "" for a scalar')
    add("--dtype", default="f32", help="element type: f32 (default), bf16, i8, i1, ...")
    add("--from", dest="source", required=True, metavar="LAYOUT", help='"[x, _]"')
    add("--to", dest="target", required=True, metavar="LAYOUT", help='"[_, y] +sum(x)"')
    add("--memory", metavar="BYTES", help="what a step may take on a rank, input and output")
    add("--steps", metavar="OP,...", help="the steps that may be used: all_gather,exchange,...")
    add("--execute", action="store_true", help="run it on the element numbers 0..n-1")
    add(
        "--engine",
        metavar="{local,mpi,nccl,emulate,simulate}",
        help="what runs it (default: local)",
    )
    add("--dump", metavar="DIR", help="write each rank's allocation, 1-D, as DIR/rank{r}.npy")
    add("--check", action="store_true", help="compare the result with what it should be")
    add("--json", action="store_true", help="print JSON instead of a table")
    plan.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from meshweave.tools.plan import plan_command

    return plan_command(options)
