"""Define the command `meshweave-opt`, which runs passes on MLIR text with the habits of MLIR's own drivers.

    meshweave-opt block.mlir -p "dist-propagate,func.func(canonicalize)"
    meshweave-opt block.mlir --dist-propagate --dist-partition="allow-uneven=true" --mlir-timing -o
    out.mlir

Exit status: 0 done; 1 the program is wrong (one line on standard error); 2 wrong usage.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from meshweave.errors import CompileError, MeshweaveError, UsageError, did_you_mean
from meshweave.files.whole import write_text
from meshweave.hints.ledger import Ledger
from meshweave.tools.diagnostics import Diagnostic, expectations, from_error, from_mlir, mismatches
from meshweave.tools.guard import Stage, guarded, silent
from meshweave.tools.streams import held_stderr, read_text

if TYPE_CHECKING:  # here, for --help needs no compiler
    from meshweave.ir.bindings import ir
    from meshweave.pipeline import PipelineEntry

SEPARATOR = "// -----"


class _OptParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see --help")


def _parser() -> _OptParser:
    p = _OptParser(
        prog="meshweave-opt",
        description="Run a pipeline of passes, ours and MLIR's, on MLIR text; StableHLO is read as by meshweave run.",
        epilog='Passes may be flags, in order: --dist-propagate --inline="max-iterations=2". '
        "Exit status: 0 done; 1 the program is wrong; 2 wrong usage; 130 interrupted.",
        allow_abbrev=False,
    )
    add, flag = p.add_argument, partial(p.add_argument, action="store_true")
    add("file", nargs="?", default="-", help="MLIR or StableHLO text; - or nothing: standard input")
    add(
        "-p",
        "--pass-pipeline",
        metavar="PIPELINE",
        help='e.g. "dist-propagate,func.func(cse)", builtin.module(...) around it or not',
    )
    add(
        "-o",
        dest="output",
        metavar="FILE",
        default="-",
        help="write here, whole or not at all; default: standard output",
    )
    flag("--list-passes", help="list the passes and their options")
    flag(
        "--split-input-file", help=f'treat what "{SEPARATOR}" lines separate as files of their own'
    )
    flag("--verify-diagnostics", help="check errors and remarks against expected-error comments")
    flag(
        "--allow-unregistered-dialect",
        help="accept ops of dialects that are not registered; take StableHLO as it is",
    )
    flag("--no-verify-each", help="do not run the verifier after every pass")
    flag("--mlir-timing", help="seconds of each pass, on standard error")
    add(
        "--hint-report",
        metavar="FILE",
        help="write what became of each hint, behind hint-verify: JSON if FILE ends in .json, else text",
    )
    _add_printing(p)
    flag("--version", help="print the version")
    return p


def _add_printing(p: argparse.ArgumentParser) -> None:
    """Add the options for what is printed, when and how."""
    add, flag = p.add_argument, partial(p.add_argument, action="store_true")
    flag("--mlir-print-ir-before-all", help="print the module before every pass, on standard error")
    flag("--mlir-print-ir-after-all", help="print the module after every pass")
    add(
        "--mlir-print-ir-before",
        action="append",
        default=[],
        metavar="PASS",
        help="the same for one pass; may be repeated",
    )
    add(
        "--mlir-print-ir-after",
        action="append",
        default=[],
        metavar="PASS",
        help="the same for one pass; may be repeated",
    )
    flag("--mlir-print-ir-after-failure", help="print the module when a pass fails")
    flag("--mlir-print-op-generic", help="print ops in generic form")
    flag("--mlir-print-debuginfo", help="print locations")
    add(
        "--mlir-elide-elementsattrs-if-larger",
        type=int,
        metavar="N",
        help="leave out constants of more than N elements",
    )


def _read_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, str]:
    """Return the arguments, and the pipeline they ask for. A long name may have one dash, as in LLVM."""
    parser = _parser()
    args, rest = parser.parse_known_args(
        ["-" + a if len(a) > 2 and a[0] == "-" and a[1] != "-" else a for a in argv]
    )
    flags = [_pass_flag(a, parser) for a in rest]
    if flags and args.pass_pipeline is not None:
        raise UsageError(f"give the passes as flags ({rest[0]}) or as a pipeline, not both")
    return args, ",".join(flags) if args.pass_pipeline is None else args.pass_pipeline


def _pass_flag(arg: str, parser: argparse.ArgumentParser) -> str:
    """Turn `--name=options` into an element of a pipeline."""
    if not arg.startswith("--"):
        raise UsageError(f'unexpected argument "{arg}": one file at a time')
    name, has_options, options = arg[2:].partition("=")
    known = [flag for action in parser._actions for flag in action.option_strings]
    if not _is_pass(name) and (meant := did_you_mean(f"--{name}", known)):
        raise UsageError(f'no option or pass "--{name}"{meant}')
    return f"{name}{{{options}}}" if has_options else name


def _is_pass(name: str) -> bool:
    from meshweave.ir.upstream_passes import NAMES
    from meshweave.pipeline import PIPELINES, all_passes

    return name in all_passes() or name in PIPELINES or name in NAMES


def main() -> int:
    """Run the command in a child process; return the exit status."""
    return guarded(lambda stage: run(sys.argv[1:], stage), "meshweave-opt")


def run(arguments: Sequence[str], stage: Stage = silent) -> int:
    """Run the command in this process; return the exit status. stage: called with what is done next."""
    try:
        args, pipeline = _read_arguments(arguments)
        if args.version:
            print(_version())
        elif args.list_passes:
            _list_passes()
        else:
            return _drive(args, pipeline, stage)
        return 0
    except UsageError as error:
        print(f"meshweave-opt: {error}", file=sys.stderr)
        return error.exit_status
    except MeshweaveError as error:
        where = "" if error.location else "meshweave-opt: "
        print(f"{where}{from_error(error)}", file=sys.stderr)
        return error.exit_status


def _drive(args: argparse.Namespace, pipeline: str, stage: Stage) -> int:
    stage(f"checking the pipeline {pipeline}")
    driver = _Driver(args, _checked(pipeline), stage)
    name, text = read_text(args.file)
    outcomes = [driver.run(chunk, name) for chunk in _chunks(text, args.split_input_file)]
    problems = [p for outcome in outcomes for p in outcome.problems]
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        return 1
    if args.hint_report is not None:
        report = _hint_report(outcomes, args.hint_report.endswith(".json"))
        write_text(args.hint_report, report, CompileError)
    printed = [o.printed for o in outcomes if o.printed is not None]
    text = f"\n{SEPARATOR}\n".join(printed) + "\n" if printed else ""
    write_text(args.output, text, CompileError)
    return 0


def _hint_report(outcomes: "Sequence[_Outcome]", as_json: bool) -> str:
    """Join the ledgers of all chunks in one text. Raises MeshweaveError if one does not close."""
    ledgers = [o.ledger for o in outcomes if o.ledger is not None]
    if not as_json:
        return "".join(ledger.report() for ledger in ledgers)
    rows = [row for ledger in ledgers for row in ledger.rows()]
    return json.dumps({"ledger": rows}, indent=1) + "\n"


def _chunks(text: str, split: bool) -> Iterator[str]:
    """Split `text`; empty lines in front of each part keep its line numbers those of the file."""
    if not split:
        yield text
        return
    chunk: list[str] = []
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line.startswith(SEPARATOR):
            yield "\n".join(chunk)
            chunk = [""] * (number + 1)
        else:
            chunk.append(line)
    yield "\n".join(chunk)


def _checked(pipeline: str) -> "Sequence[PipelineEntry]":
    """Return the entries of the pipeline; hold back what MLIR prints, since our message says it too."""
    from meshweave.dialects import context
    from meshweave.pipeline import check_pipeline

    with held_stderr() as held:
        ctx = context()
        with ctx:
            steps = check_pipeline(pipeline, ctx)
        held.keep()
    return steps


@dataclass(frozen=True)
class _Outcome:
    """Hold what became of one chunk: its text after the passes, or None; unmet expectations; its ledger."""

    printed: str | None
    problems: tuple[Diagnostic, ...] = ()
    ledger: Ledger | None = None


class _Driver:
    """Run the pipeline on one chunk after the other, each in a context of its own."""

    def __init__(
        self, args: argparse.Namespace, steps: "Sequence[PipelineEntry]", stage: Stage
    ) -> None:
        from meshweave.pipeline import Dumps

        self.args, self.steps, self.stage = args, steps, stage
        self.dumps = Dumps(
            before=args.mlir_print_ir_before_all or self._names(args.mlir_print_ir_before),
            after=args.mlir_print_ir_after_all or self._names(args.mlir_print_ir_after),
            after_failure=args.mlir_print_ir_after_failure,
            debuginfo=args.mlir_print_debuginfo,
            generic=args.mlir_print_op_generic,
            elide_above=args.mlir_elide_elementsattrs_if_larger,
        )

    def _names(self, given: Sequence[str]) -> tuple[str, ...]:
        names = tuple(n for text in given for n in text.split(","))
        steps = [s.name for s in self.steps]
        for name in names:
            if name not in steps:
                raise UsageError(f'no pass "{name}" in the pipeline{did_you_mean(name, steps)}')
        return names

    def run(self, chunk: str, name: str) -> _Outcome:
        """Run it on one chunk. Diagnostics are printed as they come, or kept and compared."""
        from meshweave.dialects import context

        ctx = context(unregistered=self.args.allow_unregistered_dialect)
        if not self.args.verify_diagnostics:
            with _handler(ctx, lambda d: print(d[0], file=sys.stderr), errors=False):
                return self._transform(chunk, name, ctx)
        return self._verify(chunk, name, ctx)

    def _verify(self, chunk: str, name: str, ctx: "ir.Context") -> _Outcome:
        """Run it on one chunk, and compare the diagnostics with the comments that expect them."""
        expected = expectations(chunk)
        produced: list[Diagnostic] = []
        ctx.emit_error_diagnostics = True
        outcome = _Outcome(None)
        with _handler(ctx, produced.extend, errors=True):
            try:
                outcome = self._transform(chunk, name, ctx, produced.append)
            except UsageError:
                raise
            except MeshweaveError as error:
                if not any(d.severity == "error" for d in produced):
                    produced.append(from_error(error))
        named = [d.under(name) for d in produced]
        return replace(outcome, problems=tuple(mismatches(expected, named, name)))

    def _read(self, chunk: str, name: str, ctx: "ir.Context") -> "ir.Module":
        """Return the module of a chunk, in the global view where it is StableHLO.

        The text is taken as it is where the user allows ops of unknown dialects, or runs a pass of StableHLO's.
        """
        from meshweave.frontends.load import read_text
        from meshweave.ir.locations import parse_module

        of_stablehlo = any(step.name.startswith(("stablehlo-", "chlo-")) for step in self.steps)
        if of_stablehlo or self.args.allow_unregistered_dialect:
            return parse_module(chunk, ctx, name)
        return read_text(chunk, ctx, name)

    def _transform(
        self,
        chunk: str,
        name: str,
        ctx: "ir.Context",
        remark: Callable[[Diagnostic], None] | None = None,
    ) -> _Outcome:
        from meshweave.ir.locations import location_text
        from meshweave.pipeline import run_pipeline
        from meshweave.transforms.slicing.ledger import read_ledger

        def remarked(location: "ir.Location", message: str) -> None:
            d = Diagnostic("remark", location_text(location), message)
            print(d, file=sys.stderr) if remark is None else remark(d)

        self.stage(f"reading {name}")
        module = self._read(chunk, name, ctx)
        self.stage(f"running {','.join(s.name for s in self.steps)} on {name}")
        run_pipeline(
            module,
            self.steps,
            timing=self.args.mlir_timing,
            dumps=self.dumps,
            verify=not self.args.no_verify_each,
            remark=remarked,
        )
        self.stage(f"printing what {name} became")
        printed = self.dumps.text(module)
        if self.args.hint_report is None:
            return _Outcome(printed)
        with ctx:
            return _Outcome(printed, ledger=read_ledger(module))


@contextmanager
def _handler(
    ctx: "ir.Context", take: Callable[[list[Diagnostic]], object], *, errors: bool
) -> Iterator[None]:
    """Give MLIR's diagnostics to `take`, as lists of values; errors only if asked, else they are raised."""

    def handle(diagnostic: "ir.Diagnostic") -> bool:
        values = from_mlir(diagnostic)
        if values[0].severity == "error" and not errors:
            return False
        take(values)
        return True

    handler = ctx.attach_diagnostic_handler(handle)
    try:
        yield
    finally:
        handler.detach()


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    def of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "(not installed)"

    return f"meshweave-opt {of('meshweave')}, MLIR of torch-mlir {of('torch-mlir')}"


def _list_passes() -> None:
    from rich.console import Console
    from rich.table import Table

    from meshweave.ir.pipeline_text import type_text
    from meshweave.ir.upstream_passes import NAMES
    from meshweave.pipeline import PIPELINES, all_passes, summary

    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(
        "pass", "options", "what it does", title="passes of meshweave", title_justify="left"
    )
    for name, kind in all_passes().items():
        options = "\n".join(f"{o}={type_text(t)}" for o, t in kind.options().items())
        table.add_row(name, options, summary(kind))
    console.print(table)
    named = Table("name", "stands for", title="named pipelines", title_justify="left")
    for name, text in PIPELINES.items():
        named.add_row(name, text.replace(",", ", "))
    console.print(named)
    console.print(f"passes of MLIR ({len(NAMES)}):")
    console.print(", ".join(NAMES), style="dim", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
