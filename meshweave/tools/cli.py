"""`meshweave`: run a program on a mesh, compile it to a file, and see what this machine can do.

Exit status: 0 done; 1 the program or its input is wrong; 2 wrong usage; 3 a rank failed. What went wrong is one line on
standard error.
"""

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NoReturn

from meshweave import __version__
from meshweave.device import CHIPS
from meshweave.errors import MeshweaveError, UsageError, did_you_mean
from meshweave.targets import CHIP, TARGETS
from meshweave.tools.guard import Stage, guarded, silent
from meshweave.tools.plan_options import add_plan
from meshweave.tools.start import interrupted


class _Parser(argparse.ArgumentParser):
    """Wrong usage is a UsageError: one line, with the nearest known name."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        known = [flag for action in self._actions for flag in action.option_strings]
        if unknown := re.match(r"unrecognized arguments: (--?[^\s=]+)", message):
            message = f'no option "{unknown[1]}"{did_you_mean(unknown[1], known)}'
        raise UsageError(f"{message}; see {self.prog} --help")


def main() -> int:
    """The command of the shell, in a child process: native code that crashes still ends in a line and a status."""
    return guarded(lambda stage: command(sys.argv[1:], stage), "meshweave")


def command(arguments: Sequence[str], stage: Stage = silent) -> int:
    """The command line; returns the exit status. stage: told what is done next."""
    try:
        options = _read(arguments)
        options.stage = stage
        return int(options.command(options))
    except MeshweaveError as error:
        print(f"meshweave: error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return interrupted("meshweave")
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except MemoryError as error:
        print(f"meshweave: error: out of memory: {error}", file=sys.stderr)
        return 1


def _read(arguments: Sequence[str]) -> argparse.Namespace:
    parser, names = _parser()
    first = next((a for a in arguments if not a.startswith("-")), None)
    if first is not None and first not in names:
        parser.error(f'no command "{first}"{did_you_mean(first, names)}')
    options, rest = parser.parse_known_args(arguments)
    if rest:
        names[first or ""].error(f"unrecognized arguments: {rest[0]}")
    return options


def _parser() -> tuple[_Parser, dict[str, Any]]:
    """The parser of the command line, and those of its commands."""
    parser = _Parser(
        prog="meshweave",
        description="Run a program on a mesh, compile it to a file, and see what this machine can do.",
        epilog="Exit status: 0 done; 1 the program or its input is wrong; 2 wrong usage; 3 a rank failed; 130 "
        "interrupted. What went wrong is one line on standard error. meshweave COMMAND --help says more.",
    )
    parser.add_argument("--version", action="version", version=f"meshweave {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_compile(commands)
    _add_report(commands)
    add_plan(commands)
    doctor = commands.add_parser("doctor", help="what is installed, and what will work")
    doctor.add_argument("--json", action="store_true", help="print JSON instead of a table")
    doctor.set_defaults(command=_doctor)
    return parser, commands.choices


def _choice(what: str, *names: str) -> Callable[[str], str]:
    """The type of an argument that is one of a few names."""

    def read(text: str) -> str:
        if text in names:
            return text
        if len(names) == 1:
            raise UsageError(f'no {what} "{text}"; there is only {names[0]}')
        raise UsageError(
            f'no {what} "{text}"{did_you_mean(text, names) or "; there are " + ", ".join(names)}'
        )

    return read


def _number(name: str, kind: Any, least: float, what: str) -> Callable[[str], Any]:
    """The type of an argument that is a number of at least `least`."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value < math.inf:
            raise UsageError(f"{name} {text}: {what} is needed")
        return value

    return read


def _add_program(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("file", metavar="FILE", help="the program; - reads standard input")
    add("--mesh", help='axes and sizes, "x=2,y=2" (default: the program\'s own, or one rank)')
    add(
        "--engine",
        type=_choice("engine", *chain(*TARGETS.values())),
        metavar="{local,mpi,nccl,emulate}",
        help="threads of one process (default), or processes; of target gpu: a process per gpu (default), or none",
    )
    add(
        "--target",
        type=_choice("target", *TARGETS),
        metavar="{cpu,gpu}",
        help="what code is made for (default: what the engine runs, cpu)",
    )
    add(
        "--chip",
        type=_choice("chip", *CHIPS),
        metavar="{sm_80,sm_90,sm_90a}",
        help=f"the gpu (default: {CHIP})",
    )


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="compile a program and run it on a mesh",
        description="Compile FILE (StableHLO with Shardy shardings, or MLIR with dist ops), or take what meshweave "
        "compile made of it, and run it on a mesh of ranks.",
    )
    _add_program(run)
    add, given = run.add_argument, run.add_mutually_exclusive_group()
    given.add_argument(
        "--input", action="extend", metavar="F.npy", nargs="+", help="the arguments, in order"
    )
    given.add_argument(
        "--random",
        type=_number("--random", int, 0, "a whole number of at least 0"),
        metavar="SEED",
        help="arguments from a seed (default: 0)",
    )
    add("--check", action="store_true", help="compare with the same program, unsharded")
    add("--expect", action="extend", metavar="F.npy", nargs="+", help="compare with these results")
    add("--dump", metavar="DIR", help="write the global results as DIR/result{i}.npy")
    add(
        "--repeat",
        type=_number("--repeat", int, 1, "a whole number of at least 1"),
        default=1,
        metavar="N",
        help="run N times, report the fastest",
    )
    add(
        "--timeout",
        type=_number("--timeout", float, 1e-3, "a positive number of seconds"),
        default=60.0,
        metavar="S",
        help="end a run in which no rank gets on for S seconds (default: 60)",
    )
    add("--graph", action="store_true", help="of engine nccl: repeat the step as a CUDA graph")
    add("--share", action="store_true", help="of engine nccl: ranks may share a gpu, for trials")
    add("--json", action="store_true", help="print JSON instead of a table")
    run.set_defaults(command=_run)


def _add_compile(commands: Any) -> None:
    compiled = commands.add_parser(
        "compile",
        help="compile a program to a file that runs without a compiler",
        description="Compile FILE for a mesh; meshweave run takes what is written.",
    )
    _add_program(compiled)
    compiled.add_argument("-o", dest="output", metavar="PROG.mwb", help="default: FILE with .mwb")
    compiled.add_argument(
        "--report-json", metavar="R.json", help="write what was decided: memory, slices, hints, ..."
    )
    compiled.add_argument(
        "--ptx", metavar="DIR", help="of target gpu: write the PTX of each kernel and the host code"
    )
    compiled.add_argument(
        "--emit",
        type=_choice("code", "host", "kernels", "llvm", "ptx"),
        metavar="{host,kernels,llvm,ptx}",
        help="of target gpu: print this code, write no file",
    )
    compiled.set_defaults(command=_compile)


def _add_report(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="what compiling a program decides: memory, slices, hints, kernels, collectives",
        description="Print what compiling FILE for a mesh decides, and draw the live bytes over a step.",
    )
    _add_program(report)
    report.add_argument("--json", action="store_true", help="print JSON instead of tables")
    report.add_argument(
        "--svg", metavar="OUT.svg", help="draw the live bytes op by op, with and without hints"
    )
    report.set_defaults(command=_report)


def _run(options: argparse.Namespace) -> int:
    from meshweave.tools.run import run

    return run(options)


def _compile(options: argparse.Namespace) -> int:
    from meshweave.tools.run import write_bundle

    return write_bundle(options)


def _report(options: argparse.Namespace) -> int:
    from meshweave.tools.report import report_command

    return report_command(options)


def _doctor(options: argparse.Namespace) -> int:
    from meshweave.tools.doctor import doctor

    return doctor(as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
