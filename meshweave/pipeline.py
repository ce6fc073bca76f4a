"""Read, check and run pipelines: text that mixes our passes and MLIR's.

    dist-propagate,dist-partition{allow-uneven=true},func.func(canonicalize,cse)

is what goes inside `builtin.module(...)`, which may be written too. Our passes run on the whole module; MLIR's may be
nested. Everything is checked before anything runs: names, options and nesting, because a wrong nesting that reaches
MLIR's pass manager ends the process. One pass manager holds all passes, so its verifier and its timing see both
worlds.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache, partial
from itertools import groupby
from typing import Protocol, TextIO

from meshweave.dialects.alias import module_text
from meshweave.errors import CompileError, MeshweaveError, UsageError, did_you_mean
from meshweave.hints.ledger import Refusal, RefusedHintError
from meshweave.ir.bindings import PassManager, ir
from meshweave.ir.locations import compile_error
from meshweave.ir.pipeline_text import (
    CANONICALIZE,
    GLOBAL_PASSES,
    PassEntry,
    parse_options,
    parse_value,
    read,
)
from meshweave.transforms.base import Pass, PassFailure, remarks_to

_TO_BUFFERS = "fuse-kernels,limit-kernels,order-launches,plan-memory"

# Named pipelines: a name in a pipeline is replaced by its text. Those that lower begin where dist-pipeline ends.
PIPELINES: dict[str, str] = {
    "dist-pipeline": ",".join(GLOBAL_PASSES),
    "to-cpu-local": f"lower-collectives{{engine=local}},{_TO_BUFFERS},to-llvm",
    "to-cpu-mpi": f"lower-collectives{{engine=mpi}},{_TO_BUFFERS},to-llvm",
    "to-gpu-nccl": f"lower-collectives{{engine=nccl}},{_TO_BUFFERS},to-gpu",
}

_ANCHORS = ("builtin.module", "func.func", "gpu.module", "gpu.func", "llvm.func", "any")


@dataclass(frozen=True)
class PipelineEntry:
    """Hold one pass of a checked pipeline: `own`, or MLIR's, run on the ops that `path` leads to."""

    name: str
    text: str
    path: tuple[str, ...] = ()
    own: Pass | None = None


def summary(kind: type[Pass]) -> str:
    """Return the first paragraph of the docstring of our pass's file, without its name."""
    module = sys.modules[kind.__module__]
    first = (module.__doc__ or kind.__doc__ or "").strip().split("\n\n", 1)[0]
    return " ".join(first.split()).removeprefix(f"{kind.name}:").strip()


@cache
def all_passes() -> dict[str, type[Pass]]:
    """Return our passes, transforms and lowerings, in pipeline order."""
    from meshweave import lowering, transforms

    return {**transforms.PASSES, **getattr(lowering, "PASSES", {})}


def pipeline_text(entries: Sequence[PipelineEntry]) -> str:
    """Return the pipeline as text, such that `check_pipeline` of it gives the same entries."""
    return ",".join(
        _nested(",".join(s.text for s in group), path)
        for path, group in ((p, list(g)) for p, g in groupby(entries, key=lambda s: s.path))
    )


def _nested(text: str, path: Sequence[str]) -> str:
    for anchor in reversed(path):
        text = f"{anchor}({text})"
    return text


def check_pipeline(text: str, ctx: ir.Context) -> tuple[PipelineEntry, ...]:
    """Return the entries of a pipeline, after checking every name, option and nesting.

    Raises UsageError, with the nearest known name, for what is wrong.
    """
    elements = read(text)
    while (
        len(elements) == 1
        and elements[0].name == "builtin.module"
        and elements[0].children is not None
    ):
        elements = elements[0].children
    entries = tuple(_entries(elements, (), ctx))
    for is_own, group in groupby(entries, key=lambda s: s.own is not None):
        if not is_own:
            _check_upstream(list(group), ctx)
    return entries


def _entries(
    elements: Iterable[PassEntry], path: tuple[str, ...], ctx: ir.Context
) -> Iterable[PipelineEntry]:
    for e in elements:
        if e.children is not None:
            _check_anchor(e, ctx)
            yield from _entries(e.children, (*path, e.name), ctx)
        elif e.name in PIPELINES:
            if e.options or path:
                raise UsageError(
                    f"{e.name} is a named pipeline: it takes no options and no nesting"
                )
            yield from _entries(read(PIPELINES[e.name]), path, ctx)
        elif (kind := all_passes().get(e.name)) is not None:
            if path:
                raise UsageError(
                    f"{e.name} runs on the whole module: write it outside of {'('.join(path)}(...)"
                )
            made = make_pass(kind, e.options or "")
            yield PipelineEntry(e.name, str(made), own=made)
        elif (e.name, e.options) == ("canonicalize", None):
            yield PipelineEntry(e.name, CANONICALIZE, path)
        else:
            yield PipelineEntry(
                e.name, e.name + (f"{{{e.options}}}" if e.options is not None else ""), path
            )


def _check_anchor(e: PassEntry, ctx: ir.Context) -> None:
    if e.options:
        raise UsageError(f"{e.name}(...) holds a nested pipeline and takes no options")
    if e.name != "any" and not ctx.is_registered_operation(e.name):
        raise UsageError(f'no op "{e.name}" to nest passes in{did_you_mean(e.name, _ANCHORS)}')


def make_pass(kind: type[Pass], options: str = "") -> Pass:
    """Make an instance of our pass `kind`, its options given as text, `max-uses=1 keep=a,b`. Raises UsageError."""
    types, values = kind.options(), {}
    for name, value in parse_options(options, kind.name).items():
        if name not in types:
            raise UsageError(f'{kind.name} has no option "{name}"{did_you_mean(name, types)}')
        values[name.replace("-", "_")] = parse_value(
            value, types[name], f"{kind.name}: option {name}"
        )
    for f in fields(kind):
        if f.default is MISSING and f.default_factory is MISSING and f.name not in values:
            raise UsageError(f"{kind.name} needs the option {f.name.replace('_', '-')}")
    try:
        return kind(**values)
    except MeshweaveError as error:  # a value that only the pass itself can judge
        raise UsageError(f"{kind.name}: {error}") from error


def _parses(entries: Sequence[PipelineEntry], ctx: ir.Context) -> str | None:
    """Return None when MLIR accepts these entries, else its message."""
    try:
        PassManager.parse(f"builtin.module({pipeline_text(entries)})", ctx)
    except ValueError as error:
        return str(error)
    return None


def _check_upstream(entries: Sequence[PipelineEntry], ctx: ir.Context) -> None:
    if _parses(entries, ctx) is None:
        return
    for entry in entries:
        if (said := _parses([entry], ctx)) is not None:
            raise _upstream_error(entry, said, ctx)
    raise UsageError(f"pipeline: MLIR does not take {pipeline_text(entries)}")


def _upstream_error(entry: PipelineEntry, said: str, ctx: ir.Context) -> UsageError:
    """Report what is wrong with one of MLIR's passes: its name, an option, a value or its place."""
    from meshweave.ir.upstream_passes import NAMES

    if "does not refer to a registered pass" in said and f"'{entry.name}'" in said:
        return UsageError(
            f'no pass "{entry.name}"{did_you_mean(entry.name, (*all_passes(), *PIPELINES, *NAMES))}'
        )
    if "restricted to" in said:
        wanted = said.split("restricted to '", 1)[1].split("'", 1)[0]
        here = entry.path[-1] if entry.path else "builtin.module"
        return UsageError(
            f"{entry.name} runs on {wanted}, not on {here}{_how_to_nest(wanted, entry.name)}"
        )
    if "no such option" in said:
        option = said.split("no such option ", 1)[1].split("\n", 1)[0].strip()
        meant = did_you_mean(option, _upstream_options(entry, ctx))
        return UsageError(f'{entry.name} has no option "{option}"{meant}')
    if "failed to add" in said:
        return UsageError(f"{entry.name} does not take {entry.text[len(entry.name) :]} as options")
    return UsageError(f"{entry.text}: {' '.join(said.split())}")


def _how_to_nest(wanted: str, name: str) -> str:
    return ": write it outside" if wanted == "builtin.module" else f": write {wanted}({name})"


def _upstream_options(entry: PipelineEntry, ctx: ir.Context) -> list[str]:
    """Return the option names of one of MLIR's passes, read from how it prints itself."""
    try:
        printed = str(PassManager.parse(f"builtin.module({_nested(entry.name, entry.path)})", ctx))
    except ValueError:
        return []
    return re.findall(r"([\w-]+)=", printed)


Listener = Callable[[ir.Location, str], None]


@dataclass(frozen=True)
class Dumps:
    """Choose the passes to print the module before and after: names, or True for every pass.

    elide_above: leave out element lists longer than this; debuginfo, generic: as MLIR's printing flags.
    """

    before: Collection[str] | bool = ()
    after: Collection[str] | bool = ()
    after_failure: bool = False
    debuginfo: bool = False
    generic: bool = False
    elide_above: int | None = None

    def wanted(self, which: str, name: str) -> bool:
        chosen = self.before if which == "Before" else self.after
        return chosen if isinstance(chosen, bool) else name in chosen

    def text(self, module: ir.Module) -> str:
        return module_text(
            module, debuginfo=self.debuginfo, generic=self.generic, elide_above=self.elide_above
        )


def run_pipeline(
    module: ir.Module,
    pipeline: str | Sequence[PipelineEntry],
    *,
    timing: bool = False,
    dumps: Dumps = Dumps(),
    verify: bool = True,
    progress: Callable[[str], None] | None = None,
    remark: Listener | None = None,
    out: TextIO | None = None,
) -> None:
    """Run a pipeline (text, or what `check_pipeline` gave) on `module`, in place.

    Wrappers of anything inside the module that were taken before are invalid afterwards: fetch them again.
    timing:   print MLIR's table of seconds per pass, on standard error, at the end.
    dumps:    print the module around passes, to `out` (default: standard error).
    verify:   run the verifier after every pass.
    progress: called with the name of each pass before it runs.
    remark:   called with (location, message) for what passes remark.
    Raises UsageError before anything runs when the pipeline is wrong, CompileError when a pass refuses the program.
    """
    ctx = module.context
    with ctx, ir.Location.unknown(ctx), remarks_to(remark):
        entries = check_pipeline(pipeline, ctx) if isinstance(pipeline, str) else pipeline
        refused: list[Refusal] = []
        pm = _pass_manager(entries, dumps, progress, out or sys.stderr, refused)
        pm.enable_verifier(verify)
        if timing:
            pm.enable_timing()
        try:
            pm.run(module.operation)
        except ir.MLIRError as error:
            if dumps.after_failure:
                _dump("After Failure", "pipeline", dumps, out or sys.stderr, module)
            raise _run_error(error, refused) from None


def _run_error(error: ir.MLIRError, refused: Sequence[Refusal]) -> CompileError | UsageError:
    """Report an error of the pass manager; a place that MLIR refuses only when it starts is a wrong pipeline."""
    if error.error_diagnostics and "unable to schedule pass" in (
        said := error.error_diagnostics[0].message
    ):
        name, anchor = said.split("'")[1], said.split("'")[3]
        return UsageError(
            f"pipeline: {name} does not run on {anchor}: nest it, as in func.func(...)"
        )
    found = compile_error(error)
    return RefusedHintError(found.message, found.location, *refused) if refused else found


def _dump(when: str, name: str, dumps: Dumps, out: TextIO, module: ir.Module) -> None:
    print(
        f"// -----// IR Dump {when} {name} //----- //\n{dumps.text(module)}\n", file=out, flush=True
    )


def _pass_manager(
    entries: Sequence[PipelineEntry],
    dumps: Dumps,
    progress: Callable[[str], None] | None,
    out: TextIO,
    refused: list[Refusal],
) -> PassManager:
    """Make one pass manager for all entries; MLIR's stay together where nothing happens in between.

    refused: gets what a pass of ours refuses of hints.
    """
    pm, segment = PassManager("builtin.module"), list[PipelineEntry]()

    def flush() -> None:
        if segment:
            pm.add(pipeline_text(segment))
            segment.clear()

    def call(name: str, action: Callable[[ir.Operation], None]) -> None:
        flush()
        pm.add(lambda op, _: action(op), name)

    for entry in entries:
        if progress is not None:
            call(f"progress({entry.name})", _telling(progress, entry.name))
        if dumps.wanted("Before", entry.name):
            call("print-ir", partial(_dump, "Before", entry.name, dumps, out))
        if entry.own is not None:
            flush()
            pm.add(_runner(entry.own, refused), entry.name)
        else:
            segment.append(entry)
        if dumps.wanted("After", entry.name):
            call("print-ir", partial(_dump, "After", entry.name, dumps, out))
    flush()
    return pm


def _telling(progress: Callable[[str], None], name: str) -> Callable[[ir.Operation], None]:
    return lambda _: progress(name)


class ExternalPass(Protocol):
    """Let a pass written in Python tell MLIR's pass manager that it failed."""

    def signal_pass_failure(self) -> None:
        """Fail the pipeline once the pass returns."""


def _runner(own: Pass, refused: list[Refusal]) -> Callable[[ir.Operation, ExternalPass], None]:
    def run(op: ir.Operation, external: ExternalPass) -> None:
        try:
            own.run(op.opview)
        except PassFailure as failure:
            for location, message in failure.diagnostics:
                location.emit_error(message)
            if failure.refusal is not None:
                refused.append(failure.refusal)
            external.signal_pass_failure()

    return run
