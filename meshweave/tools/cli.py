"""Define the command `meshweave`: run a program on a mesh, compile it to a file, see what this machine can do.

Exit status: 0 done; 1 the program or its input is wrong; 2 wrong usage; 3 a rank failed. What went wrong is one line on
standard error.
"""

import argparse
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn, TypeAlias

from meshweave import __version__
from meshweave.device import CHIPS
from meshweave.errors import MeshweaveError, UsageError, did_you_mean
from meshweave.targets import CHIP, ENGINES, TARGETS
from meshweave.tools.guard import GRACE, Stage, guarded, silent

_SHELLS = ("bash", "zsh", "fish")
_FILES = ("FILE", "BUNDLE", "GLOBAL", "LOCAL", "OTHER")

Commands: TypeAlias = "argparse._SubParsersAction[Any]"
"""What `add_subparsers` returns, with parsers of any class; argparse has no public name for it."""


class _CommandParser(argparse.ArgumentParser):
    """Raise UsageError for wrong usage: one line, with the nearest known name."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        known = [flag for action in self._actions for flag in action.option_strings]
        if unknown := re.match(r"unrecognized arguments: (--?[^\s=]+)", message):
            message = f'no option "{unknown[1]}"{did_you_mean(unknown[1], known)}'
        raise UsageError(f"{message}; see {self.prog} --help")


def main() -> int:
    """Run the command in a child process, so that a crash of native code still ends in a line and a status."""
    grace = None if sys.argv[1:2] == ["serve"] else GRACE  # a server has a limit of its own
    return guarded(lambda stage: command(sys.argv[1:], stage), "meshweave", grace)


def command(arguments: Sequence[str], stage: Stage = silent) -> int:
    """Run a command line; return the exit status. stage: called with what is done next."""
    try:
        options = _read(arguments)
        options.stage = stage
        return int(options.command(options))
    except MeshweaveError as error:
        print(f"meshweave: error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_status
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


def _parser() -> tuple[_CommandParser, Mapping[str, argparse.ArgumentParser]]:
    """Return the parser of the command line, and those of its commands by name."""
    parser = _CommandParser(
        prog="meshweave",
        description="Run a program on a mesh, compile it to a file, and see what this machine can do.",
        epilog="Exit status: 0 done; 1 the program or its input is wrong; 2 wrong usage; 3 a rank failed; 130 "
        "interrupted. What went wrong is one line on standard error. meshweave COMMAND --help says more.",
    )
    parser.add_argument("--version", action="version", version=f"meshweave {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_serve(commands)
    _add_compile(commands)
    _add_report(commands)
    _add_check(commands)
    _add_view(commands)
    _add_plan(commands)
    _add_verify(commands)
    _add_sign(commands)
    doctor = commands.add_parser(
        "doctor",
        help="show what is installed, and what will work; read flight recorders",
        description="Show what is installed here, and what will work; with --dump, what the ranks of a failed run did "
        "last.",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON instead of a table")
    doctor.add_argument(
        "--dump",
        action="extend",
        metavar="FILE",
        nargs="+",
        help="read flight recorders (files, or folders of them) side by side and name the rank that held the others up",
    )
    doctor.add_argument(
        "--profile",
        action="store_true",
        help="measure this machine, in some seconds, for the predictions of placement",
    )
    doctor.add_argument("-o", dest="output", metavar="PROFILE.toml", help="where --profile writes")
    doctor.set_defaults(command=_loaded_later("doctor", "doctor_command"))
    _add_completion(commands)
    return parser, commands.choices


def _choice(what: str, *names: str) -> Callable[[str], str]:
    """Return a reader of arguments that are one of a few names."""

    def read(text: str) -> str:
        if text in names:
            return text
        if len(names) == 1:
            raise UsageError(f'no {what} "{text}"; there is only {names[0]}')
        raise UsageError(
            f'no {what} "{text}"{did_you_mean(text, names) or "; there are " + ", ".join(names)}'
        )

    return read


def _number(
    name: str, kind: Callable[[str], float], least: float, what: str
) -> Callable[[str], float]:
    """Return a reader of arguments that are numbers of at least `least`."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value < math.inf:
            raise UsageError(f"{name} {text}: {what} is needed")
        return value

    return read


def _read_size(text: str) -> Any:
    """Read an argument of --dim."""
    return import_module("meshweave.api.lengths.text").BoundedSize.parse(text)


def _add_program(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("file", metavar="FILE", help="the program; - reads standard input")
    add(
        "--mesh",
        help='axes and sizes, "x=2,y=2" (default: the program\'s own, or one rank); "auto=4": choose them',
    )
    add(
        "--dim",
        action="append",
        type=_read_size,
        default=[],
        metavar="NAME=BOUND",
        help='a size that each call chooses, up to a bound, where the program has ?: "n=4096", or "n=4..4096" '
        'from 4 on; "n=4096@0.1" for dim 1 of argument 0',
    )
    add(
        "--profile",
        metavar="PROFILE.toml",
        help="the machine that --mesh auto=N chooses for, as meshweave doctor --profile has measured it",
    )
    add(
        "--engine",
        type=_choice("engine", *ENGINES),
        metavar=f"{{{','.join(ENGINES)}}}",
        help="what runs the program. cpu: threads of one process (local, default) or processes (mpi); "
        "gpu: a process per gpu (nccl, default) or an emulator",
    )
    add(
        "--target",
        type=_choice("target", *TARGETS),
        metavar=f"{{{','.join(TARGETS)}}}",
        help="what code is made for (default: what the engine runs, cpu)",
    )
    add(
        "--chip",
        type=_choice("chip", *CHIPS),
        metavar=f"{{{','.join(CHIPS)}}}",
        help=f"the gpu (default: {CHIP})",
    )
    add(
        "--peak-bytes",
        metavar="BYTES",
        help="the bytes that a rank may take between arguments and results, 512MiB: slices, or values computed again; "
        "with --mesh auto=N those of arguments and results count too",
    )
    add(
        "--objective",
        default="time",
        metavar="WHAT",
        help='what --mesh auto=N minimises: predicted "time" (default), "bytes" of a rank, "bytes within SECONDS"',
    )
    add(
        "--no-verify",
        dest="verify",
        action="store_false",
        help="do not check the program of one rank against the whole program",
    )


def _add_run(commands: Commands) -> None:
    run = commands.add_parser(
        "run",
        help="compile a program and run it on a mesh",
        description="Compile FILE (StableHLO with Shardy shardings, or MLIR with dist ops), or load what meshweave "
        "compile wrote, and run it on a mesh of ranks.",
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
        "--trace",
        metavar="OUT.json",
        help="write what each rank did and when, for ui.perfetto.dev; a name that ends in .xplane.pb: for XProf",
    )
    add(
        "--perf-map",
        action="store_true",
        help="write /tmp/perf-PID.map and .elf, by which perf report and gdb name compiled functions (engine local)",
    )
    _add_running(run)
    add("--json", action="store_true", help="print JSON instead of a table")
    run.set_defaults(command=_loaded_later("run", "run"))


def _add_running(command: argparse.ArgumentParser) -> None:
    """Add what says how an engine runs a program."""
    add = command.add_argument
    add(
        "--timeout",
        type=_number("--timeout", float, 1e-3, "a positive number of seconds"),
        metavar="S",
        help="end a run in which no rank makes progress for S seconds (default: 60 while one waits for another, no "
        "limit while all compute)",
    )
    add(
        "--flight",
        metavar="DIR",
        help="when the run fails, write there what each rank did last, for meshweave doctor --dump",
    )
    add("--graph", action="store_true", help="with engine nccl: repeat the step as a CUDA graph")
    add("--share", action="store_true", help="with engine nccl: let ranks share a gpu, for trials")
    add(
        "--require-signature",
        metavar="PUBLIC.pem",
        help="run only a bundle that the owner of this Ed25519 key has signed",
    )


def _add_serve(commands: Commands) -> None:
    served = commands.add_parser(
        "serve",
        help="answer requests over HTTP with a program, or with a model that decodes",
        description="Answer requests over HTTP: with arrays, where FILE is a program or what meshweave compile wrote; "
        "with completions, where FILE is Python whose function decoder returns a model. See docs/serving.md.",
    )
    _add_program(served)
    _add_running(served)
    add, whole = served.add_argument, "a whole number of at least 1"
    add("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    add(
        "--port",
        type=_number("--port", int, 0, "a whole number of at least 0"),
        default=8000,
        metavar="N",
        help="the port (default: 8000); 0 takes one that is free",
    )
    add("--tokenizer", metavar="FILE", help="tokenizer.json of the model: prompts may be text")
    add(
        "--slots",
        type=_number("--slots", int, 1, whole),
        metavar="N",
        help="sequences that are decoded at a time (default: the file's own)",
    )
    add(
        "--queue",
        type=_number("--queue", int, 1, whole),
        default=256,
        metavar="N",
        help="requests that may wait (default: 256); more are told to come back, with status 429",
    )
    add(
        "--max-body",
        type=_number("--max-body", int, 1, whole),
        default=64 << 20,
        metavar="BYTES",
        help="bytes that a request may have (default: 64 MiB)",
    )
    add(
        "--time-limit",
        type=_number("--time-limit", float, 1e-3, "a positive number of seconds"),
        default=120.0,
        metavar="S",
        help="seconds that a request may take, its wait included (default: 120)",
    )
    add(
        "--grace",
        type=_number("--grace", float, 0, "a number of seconds"),
        default=30.0,
        metavar="S",
        help="seconds in which requests may finish after SIGTERM (default: 30)",
    )
    served.set_defaults(command=_loaded_later("serve", "serve_command"))


def _add_compile(commands: Commands) -> None:
    compiled = commands.add_parser(
        "compile",
        help="compile a program to a file that runs without a compiler",
        description="Compile FILE for a mesh, to a file that meshweave run takes.",
    )
    _add_program(compiled)
    compiled.add_argument("-o", dest="output", metavar="PROG.mwb", help="default: FILE with .mwb")
    compiled.add_argument(
        "--report-json", metavar="R.json", help="write the decisions: memory, slices, hints, ..."
    )
    compiled.add_argument(
        "--ptx",
        metavar="DIR",
        help="with target gpu: write the PTX of each kernel and the host code",
    )
    compiled.add_argument(
        "--emit",
        type=_choice("code", "asm", "buffers", "host", "kernels", "llvm", "ptx"),
        metavar="{kernels,buffers,llvm,asm,host,ptx}",
        help="print this code, as far as the target has it; write no file",
    )
    compiled.set_defaults(command=_loaded_later("run", "write_bundle"))


def _add_report(commands: Commands) -> None:
    report = commands.add_parser(
        "report",
        help="show what compiling a program decides: memory, slices, hints, kernels, collectives",
        description="Print what compiling FILE for a mesh decides, and draw the live bytes over a step.",
    )
    _add_program(report)
    report.add_argument("--json", action="store_true", help="print JSON instead of tables")
    report.add_argument(
        "--svg", metavar="OUT.svg", help="draw the live bytes op by op, with and without hints"
    )
    report.set_defaults(command=_loaded_later("report", "report_command"))


def _add_view(commands: Commands) -> None:
    view = commands.add_parser(
        "view",
        help="write a page about a program: what moves and why, layouts, time, memory",
        description="Write one HTML file about FILE, or what meshweave compile wrote, that needs no network. See "
        "docs/see.md.",
    )
    _add_program(view)
    add = view.add_argument
    add("-o", dest="output", metavar="PAGE.html", help="default: FILE with .html")
    add(
        "--trace",
        metavar="T.json",
        help="what meshweave run --trace has written, to show beside the prediction",
    )
    add("--diff", metavar="OTHER", help="another program or bundle to compare with")
    add(
        "--diff-mesh", metavar="MESH", help="the mesh of what is compared (default: that of --mesh)"
    )
    add(
        "--budget", metavar="BUDGET.toml", help="limits, as of meshweave check, to show in the page"
    )
    add(
        "--explorer",
        metavar="G.json",
        help="write the ops as graphs for Model Explorer too, and G.bytes.json, what each move brings, as node data",
    )
    view.set_defaults(command=_loaded_later("see", "view_command"))


def _add_check(commands: Commands) -> None:
    check = commands.add_parser(
        "check",
        help="hold a program to a budget: bytes, collectives, memory",
        description="Compare what a call of FILE takes with limits: bytes, peak, compiles, [collectives]. "
        "Exit status: 0 within them; 1 not, with the reasons. See docs/see.md.",
    )
    _add_program(check)
    check.add_argument("--budget", metavar="BUDGET.toml", required=True, help="the limits")
    check.add_argument("--json", action="store_true", help="print JSON: within, spent, reasons")
    check.set_defaults(command=_loaded_later("see", "check_command"))


def _add_verify(commands: Commands) -> None:
    verify = commands.add_parser(
        "verify",
        help="check the program of one rank against the whole program",
        description="Prove that LOCAL, the program of one rank, computes its part of GLOBAL, the whole program, on "
        "every rank. Exit status: 0 proven; 1 a result is refuted; 3 not all results are proven.",
    )
    verify.add_argument("whole", metavar="GLOBAL", help="the whole program")
    verify.add_argument("local", metavar="LOCAL", help="the program of one rank")
    verify.add_argument("--json", action="store_true", help="print JSON: proven, refuted, unproven")
    verify.set_defaults(command=_loaded_later("verify", "verify_command"))


def _add_plan(commands: Commands) -> None:
    plan = commands.add_parser(
        "plan",
        help="show how a tensor gets from one layout to another, and what that costs",
        description="Print the cheapest steps from one layout to another, the bytes that the busiest "
        "rank receives, and what is proved about them.",
    )
    add = plan.add_argument
    add("--mesh", required=True, help='axes and sizes, "x=2,y=2"; a symbol, "x=N", for formulas')
    add("--profile", metavar="PROFILE.toml", help="the machine, of meshweave doctor --profile")
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
    plan.set_defaults(command=_loaded_later("plan", "plan_command"))


def _add_sign(commands: Commands) -> None:
    sign = commands.add_parser(
        "sign",
        help="sign a bundle, so that meshweave run --require-signature takes it",
        description="Write a signature of BUNDLE into it. A bundle is native code: see docs/security.md.",
    )
    sign.add_argument("file", metavar="BUNDLE", help="what meshweave compile wrote")
    sign.add_argument("--key", metavar="KEY.pem", required=True, help="a private Ed25519 key")
    sign.set_defaults(command=_loaded_later("sign", "sign"))


def _add_completion(commands: Commands) -> None:
    completion = commands.add_parser(
        "completion",
        help="print what a shell needs to complete these commands",
        description="Print a script that has SHELL complete commands, options, their values and files. In bash: "
        'eval "$(meshweave completion bash)".',
    )
    completion.add_argument(
        "shell", metavar=f"{{{','.join(_SHELLS)}}}", type=_choice("shell", *_SHELLS)
    )
    completion.set_defaults(command=_completion)


def _completion(options: argparse.Namespace) -> int:
    """Print the script. What an option takes is read off its metavar: `{names}`, a folder, a file."""
    import shtab  # which no other command needs

    parser, commands = _parser()
    for command in commands.values():
        for action in command._actions:
            name = action.metavar if isinstance(action.metavar, str) else ""
            if name.startswith("{"):
                action.choices = name.strip("{}").split(",")
            elif name == "DIR" or name in _FILES or "." in name.strip("."):
                action.complete = shtab.DIRECTORY if name == "DIR" else shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, options.shell))
    return 0


def _loaded_later(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    """Return a command whose module is loaded when it runs."""

    def command(options: argparse.Namespace) -> int:
        return int(getattr(import_module(f"meshweave.tools.{module}"), name)(options))

    return command


if __name__ == "__main__":
    sys.exit(main())
