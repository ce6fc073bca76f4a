"""Pipelines: text that mixes our passes and MLIR's, read, checked and run as one.

    dist-propagate,dist-partition{allow-uneven=true},func.func(canonicalize,cse)

is what stands inside `builtin.module(...)`, which may be written too. Our passes run on the whole
module; MLIR's may be nested. Everything is checked before anything runs: names, options and
nesting, because a wrong nesting that reaches MLIR's pass manager ends the process. One pass manager
holds all passes, so its verifier and its timing see both worlds.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from itertools import groupby
from typing import Any, TextIO

from meshweave.bindings import PassManager, ir
from meshweave.dialects.alias import module_text
from meshweave.errors import CompileError, MeshweaveError, UsageError, did_you_mean
from meshweave.locations import compile_error
from meshweave.pipeline_text import (
    GLOBAL_PASSES,
    Element,
    parse_options,
    parse_value,
    read,
)
from meshweave.transforms.base import Pass, PassFailure, remarks_to

# Named pipelines: a name in a pipeline stands for its text.
PIPELINES: dict[str, str] = {"dist-pipeline": ",".join(GLOBAL_PASSES)}

_ANCHORS = ("builtin.module", "func.func", "gpu.module", "gpu.func", "llvm.func", "any")


@dataclass(frozen=True)
class Step:
    """One pass of a checked pipeline: `own`, or MLIR's, run on the ops that `path` leads to."""

    name: str
    text: str
    path: tuple[str, ...] = ()
    own: Pass | None = None


def summary(kind: type[Pass]) -> str:
    """What our pass `kind` does: the first paragraph of its file's docstring, without its name."""
    module = sys.modules[kind.__module__]
    first = (module.__doc__ or kind.__doc__ or "").strip().split("\n\n", 1)[0]
    return " ".join(first.split()).removeprefix(f"{kind.name}:").strip()


@cache
def all_passes() -> dict[str, type[Pass]]:
    """Our passes, transforms and lowerings, in pipeline order."""
    from meshweave import lowering, transforms

    return {**transforms.PASSES, **getattr(lowering, "PASSES", {})}


def pipeline_text(steps: Sequence[Step]) -> str:
    """The pipeline in text, such that `check_pipeline` of it gives the same steps."""
    return ",".join(
        _nested(",".join(s.text for s in group), path)
        for path, group in ((p, list(g)) for p, g in groupby(steps, key=lambda s: s.path))
    )


def _nested(text: str, path: Sequence[str]) -> str:
    for anchor in reversed(path):
        text = f"{anchor}({text})"
    return text


def check_pipeline(text: str, ctx: Any) -> tuple[Step, ...]:
    """The steps of a pipeline, every name, option and nesting known to be right.

    Raises UsageError, with the nearest known name, for what is wrong.
    """
    elements = read(text)
    while (
        len(elements) == 1
        and elements[0].name == "builtin.module"
        and elements[0].children is not None
    ):
        elements = elements[0].children
    steps = tuple(_steps(elements, (), ctx))
    for is_own, group in groupby(steps, key=lambda s: s.own is not None):
        if not is_own:
            _check_upstream(list(group), ctx)
    return steps


def _steps(elements: Iterable[Element], path: tuple[str, ...], ctx: Any) -> Iterable[Step]:
    for e in elements:
        if e.children is not None:
            _check_anchor(e, ctx)
            yield from _steps(e.children, (*path, e.name), ctx)
        elif e.name in PIPELINES:
            if e.options or path:
                raise UsageError(
                    f"{e.name} is a named pipeline: it takes no options and no nesting"
                )
            yield from _steps(read(PIPELINES[e.name]), path, ctx)
        elif (kind := all_passes().get(e.name)) is not None:
            if path:
                raise UsageError(
                    f"{e.name} runs on the whole module: write it outside of {'('.join(path)}(...)"
                )
            made = make_pass(kind, e.options or "")
            yield Step(e.name, str(made), own=made)
        else:
            yield Step(e.name, e.name + (f"{{{e.options}}}" if e.options is not None else ""), path)


def _check_anchor(e: Element, ctx: Any) -> None:
    if e.options:
        raise UsageError(f"{e.name}(...) holds a nested pipeline and takes no options")
    if e.name != "any" and not ctx.is_registered_operation(e.name):
        raise UsageError(f'no op "{e.name}" to nest passes in{did_you_mean(e.name, _ANCHORS)}')


def make_pass(kind: type[Pass], options: str = "") -> Pass:
    """An instance of our pass `kind` with its options given as text, `max-uses=1 keep=a,b`. Raises
    UsageError.
    """
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


def _parses(steps: Sequence[Step], ctx: Any) -> str | None:
    """None when MLIR takes these steps, else what it says."""
    try:
        PassManager.parse(f"builtin.module({pipeline_text(steps)})", ctx)
    except ValueError as error:
        return str(error)
    return None


def _check_upstream(steps: Sequence[Step], ctx: Any) -> None:
    if _parses(steps, ctx) is None:
        return
    for step in steps:
        if (said := _parses([step], ctx)) is not None:
            raise _upstream_error(step, said, ctx)
    raise UsageError(f"pipeline: MLIR does not take {pipeline_text(steps)}")


def _upstream_error(step: Step, said: str, ctx: Any) -> UsageError:
    """What is wrong with one of MLIR's passes: its name, an option, a value or its place."""
    from meshweave.upstream_passes import NAMES

    if "does not refer to a registered pass" in said and f"'{step.name}'" in said:
        return UsageError(
            f'no pass "{step.name}"{did_you_mean(step.name, (*all_passes(), *PIPELINES, *NAMES))}'
        )
    if "restricted to" in said:
        wanted = said.split("restricted to '", 1)[1].split("'", 1)[0]
        here = step.path[-1] if step.path else "builtin.module"
        return UsageError(
            f"{step.name} runs on {wanted}, not on {here}{_how_to_nest(wanted, step.name)}"
        )
    if "no such option" in said:
        option = said.split("no such option ", 1)[1].split("\n", 1)[0].strip()
        meant = did_you_mean(option, _upstream_options(step, ctx))
        return UsageError(f'{step.name} has no option "{option}"{meant}')
    if "failed to add" in said:
        return UsageError(f"{step.name} does not take {step.text[len(step.name) :]} as options")
    return UsageError(f"{step.text}: {' '.join(said.split())}")


def _how_to_nest(wanted: str, name: str) -> str:
    return ": write it outside" if wanted == "builtin.module" else f": write {wanted}({name})"


def _upstream_options(step: Step, ctx: Any) -> list[str]:
    """The option names of one of MLIR's passes, read from how it prints itself."""
    try:
        printed = str(PassManager.parse(f"builtin.module({_nested(step.name, step.path)})", ctx))
    except ValueError:
        return []
    return re.findall(r"([\w-]+)=", printed)


Listener = Callable[[Any, str], None]


@dataclass(frozen=True)
class Dumps:
    """Which passes to print the module before and after: names, or True for every pass.

    elide_above: leave out element lists longer than this; debuginfo, generic: as MLIR's printing
                 flags.
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

    def text(self, module: Any) -> str:
        return module_text(
            module, debuginfo=self.debuginfo, generic=self.generic, elide_above=self.elide_above
        )


def run_pipeline(
    module: Any,
    pipeline: str | Sequence[Step],
    *,
    timing: bool = False,
    dumps: Dumps = Dumps(),
    verify: bool = True,
    progress: Callable[[str], None] | None = None,
    remark: Listener | None = None,
    out: TextIO | None = None,
) -> None:
    """Run a pipeline (text, or what `check_pipeline` gave) on `module`, in place.

    Wrappers of anything inside the module that were taken before are void afterwards: fetch them
    again.
    timing:   print MLIR's table of seconds per pass, on standard error, at the end.
    dumps:    print the module around passes, to `out` (default: standard error).
    verify:   run the verifier after every pass.
    progress: called with the name of each pass before it runs.
    remark:   called with (location, message) for what passes remark.
    Raises UsageError before anything runs when the pipeline is wrong, CompileError when a pass
    refuses the program.
    """
    ctx = module.context
    with ctx, ir.Location.unknown(ctx), remarks_to(remark):
        steps = check_pipeline(pipeline, ctx) if isinstance(pipeline, str) else pipeline
        pm = _pass_manager(steps, dumps, progress, out or sys.stderr)
        pm.enable_verifier(verify)
        if timing:
            pm.enable_timing()
        try:
            pm.run(module.operation)
        except ir.MLIRError as error:
            if dumps.after_failure:
                _dump("After Failure", "pipeline", module, dumps, out or sys.stderr)
            raise _run_error(error) from None


def _run_error(error: Any) -> CompileError | UsageError:
    """A place that MLIR only refuses when it starts is a wrong pipeline, not a wrong program."""
    if error.error_diagnostics and "unable to schedule pass" in (
        said := error.error_diagnostics[0].message
    ):
        name, anchor = said.split("'")[1], said.split("'")[3]
        return UsageError(
            f"pipeline: {name} does not run on {anchor}: nest it, as in func.func(...)"
        )
    return compile_error(error)


def _dump(when: str, name: str, module: Any, dumps: Dumps, out: TextIO) -> None:
    print(
        f"// -----// IR Dump {when} {name} //----- //\n{dumps.text(module)}\n", file=out, flush=True
    )


def _pass_manager(
    steps: Sequence[Step], dumps: Dumps, progress: Callable[[str], None] | None, out: TextIO
) -> Any:
    """One pass manager for all steps; MLIR's stay together where nothing happens in between."""
    pm, segment = PassManager("builtin.module"), list[Step]()

    def flush() -> None:
        if segment:
            pm.add(pipeline_text(segment))
            segment.clear()

    def call(name: str, action: Callable[[Any], None]) -> None:
        flush()
        pm.add(lambda op, _: action(op), name)

    for step in steps:
        if progress is not None:
            call(f"progress({step.name})", lambda _, name=step.name: progress(name))
        if dumps.wanted("Before", step.name):
            call("print-ir", lambda op, name=step.name: _dump("Before", name, op, dumps, out))
        if step.own is not None:
            flush()
            pm.add(_runner(step.own), step.name)
        else:
            segment.append(step)
        if dumps.wanted("After", step.name):
            call("print-ir", lambda op, name=step.name: _dump("After", name, op, dumps, out))
    flush()
    return pm


def _runner(own: Pass) -> Callable[[Any, Any], None]:
    def run(op: Any, external: Any) -> None:
        try:
            own.run(op.opview)
        except PassFailure as failure:
            for location, message in failure.diagnostics:
                location.emit_error(message)
            external.signal_pass_failure()

    return run
