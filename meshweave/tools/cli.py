"""`meshweave`: run a program on a mesh, and see what this machine can do.

Exit status: 0 done; 1 the program or its input is wrong; 2 wrong usage; 3 a rank failed. What went wrong is one line on
standard error.
"""

import argparse
import sys
from collections.abc import Sequence

from meshweave import __version__
from meshweave.errors import MeshweaveError
from meshweave.tools.guard import Stage, guarded, silent


def main() -> int:
    """The command of the shell, in a child process: native code that crashes still ends in a line and a status."""
    return guarded(lambda stage: command(sys.argv[1:], stage), "meshweave")


def command(arguments: Sequence[str], stage: Stage = silent) -> int:
    """The command line; returns the exit status. stage: told what is done next."""
    options = _parser().parse_args(arguments)
    options.stage = stage
    try:
        return int(options.command(options))
    except MeshweaveError as error:
        print(f"meshweave: error: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("meshweave: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="meshweave", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--version", action="version", version=f"meshweave {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_run(commands)
    doctor = commands.add_parser("doctor", help="what is installed, and what will work")
    doctor.add_argument("--json", action="store_true", help="print JSON instead of a table")
    doctor.set_defaults(command=_doctor)
    return parser


def _add_run(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    run = commands.add_parser(
        "run",
        help="compile a program and run it on a mesh",
        description="Compile FILE (StableHLO with Shardy shardings, or MLIR with dist ops) and run it on a mesh of ranks.",
    )
    run.add_argument("file", metavar="FILE", help="the program; - reads standard input")
    run.add_argument("--mesh", help='axes and sizes, "x=2,y=2" (default: the program\'s own)')
    run.add_argument(
        "--engine", choices=("local", "mpi"), default="local", help="threads or processes"
    )
    run.add_argument("--target", choices=("cpu",), default="cpu")
    given = run.add_mutually_exclusive_group()
    given.add_argument(
        "--input", action="append", metavar="F.npy", help="an argument, in order", nargs="+"
    )
    given.add_argument(
        "--random", type=int, metavar="SEED", help="arguments from a seed (default: 0)"
    )
    run.add_argument(
        "--check", action="store_true", help="compare with the same program, unsharded"
    )
    run.add_argument(
        "--expect", action="append", metavar="F.npy", nargs="+", help="compare with these results"
    )
    run.add_argument("--dump", metavar="DIR", help="write the global results as DIR/result{i}.npy")
    run.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="run N times, report the fastest"
    )
    run.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="end a stalled run after S seconds"
    )
    run.add_argument("--json", action="store_true", help="print JSON instead of a table")
    run.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from meshweave.tools.run import run

    return run(options)


def _doctor(options: argparse.Namespace) -> int:
    from meshweave.tools.doctor import doctor

    return doctor(as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
