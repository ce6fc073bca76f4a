"""Trace a step of training, a function that calls modules and optimizers, as one graph without writes.

step(model, optimizer, x) -> a graph: (what it keeps, learning rates, x, drawn numbers) -> (results, what it writes)

What a step keeps are the parameters and buffers of its modules and the state of its optimizers. The function runs once,
on tensors without elements, with torch's autograd and its optimizers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.amp import GradScaler
from torch.fx import GraphModule, traceback
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from meshweave.errors import CompileError, UsageError
from meshweave.frontends.python.program import line_of
from meshweave.frontends.torch.constrain import constrain
from meshweave.frontends.torch.decompositions.gradients import decompositions
from meshweave.frontends.torch.export import first_line
from meshweave.frontends.torch.layouts import is_dtensor
from meshweave.frontends.torch.losses import WithoutNumbers
from meshweave.layout import Layout, Mesh
from meshweave.torch.away import OF_FORM, replaced
from meshweave.torch.constraints import constrained, gathered
from meshweave.torch.draws import Draw, lifted
from meshweave.torch.steps.averages import cumulative_averages
from meshweave.torch.steps.scalers import ScalerEntry, TracedScalers, entries, options
from meshweave.torch.steps.schedules import SchedulerCall, check_order, noted


class ModuleEntry(NamedTuple):
    """Name an entry of a module's dictionary of parameters or buffers."""

    row: dict[str, Any]
    key: str

    def find(self) -> Tensor | None:
        """Return the tensor that is there now."""
        found: Tensor | None = self.row.get(self.key)
        return found


class StateEntry(NamedTuple):
    """Name a tensor of an optimizer's state."""

    optimizer: Optimizer
    parameter: Tensor
    key: str

    def find(self) -> Tensor | None:
        """Return the tensor that is there now."""
        found: Tensor | None = self.optimizer.state.get(self.parameter, {}).get(self.key)
        return found


Entry: TypeAlias = ModuleEntry | StateEntry | ScalerEntry


class RateGroup(NamedTuple):
    """Name a group of an optimizer's parameters, whose learning rate each call reads."""

    optimizer: Optimizer
    number: int

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of the group, as they are now."""
        found: dict[str, Any] = self.optimizer.param_groups[self.number]
        return found


@dataclass
class StepSubjects:
    """Hold what a step reads and writes beside its arguments: tensors by name, and learning rates by name.

    tied: the further places of tensors that lie in several. groups: the parameters of each learning rate.
    numbers: those of each scaler that are compiled in.
    """

    kept: dict[str, Entry]
    tied: list[tuple[str, ModuleEntry]]
    rates: dict[str, RateGroup]
    groups: dict[str, list[str]]
    optimizers: dict[str, Optimizer]
    modules: dict[str, nn.Module]
    scalers: dict[str, GradScaler]
    numbers: dict[str, dict[str, float]]

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that the step keeps now."""
        found = {name: one.find() for name, one in self.kept.items()}
        return {name: value for name, value in found.items() if value is not None}

    def changed(self) -> str | None:
        """Return what is not as it was when the step was compiled: tied tensors, and the groups of optimizers."""
        for name, entry in self.tied:
            if entry.find() is not self.kept[name].find():
                return f"{name} is not in all the places any more that it was in"
        for key, numbers in self.numbers.items():
            given = options(self.scalers[key])
            for one, number in numbers.items():
                if given[one] != number:
                    return f"{one} of {key} is {given[one]}, not {number}"
        groups = [group for one in self.optimizers.values() for group in one.param_groups]
        if len(groups) != len(self.rates):
            return f"optimizers have {len(groups)} groups of parameters, not {len(self.rates)}"
        for rate, names in self.groups.items():
            now = self.rates[rate].options["params"]
            if len(now) != len(names):
                return f"the group of {rate} has {len(now)} parameters, not {len(names)}"
            for name, value in zip(names, now):
                if self.kept[name].find() is not value:
                    return f"{name} is not the parameter of the optimizer any more"
        return None

    def overlap(self) -> tuple[str, str] | None:
        """Return the names of two tensors that share memory."""
        ends: list[tuple[int, int, str]] = []
        with torch._C.DisableTorchFunctionSubclass():
            for name, value in self.tensors().items():
                memory = value.to_local() if is_dtensor(value) else value
                if memory.numel():
                    last = sum((n - 1) * s for n, s in zip(memory.shape, memory.stride()))
                    begin = memory.data_ptr()
                    ends.append((begin, begin + (last + 1) * memory.element_size(), name))
        ends.sort()
        return next(((a[2], b[2]) for a, b in pairwise(ends) if b[0] < a[1]), None)


@dataclass
class StepGraph:
    """Hold the graph of a step.

    graph:   its arguments are those that are kept, the learning rates, the tensors among the arguments, `constants`,
             and what `draws` make. It returns `count` results, and then what `written` names, as it is after the step.
    leaves:  of each leaf of what the step returns its result, or None and the constant in its place.
    calls:   of schedulers, behind it.
    """

    graph: GraphModule
    count: int
    written: list[str]
    leaves: list[tuple[int | None, object]]
    structure: _pytree.TreeSpec
    constants: list[Tensor]
    draws: list[Draw]
    calls: list[SchedulerCall]


def subjects_of(
    step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> StepSubjects:
    """Find the modules, optimizers and scalers that a step is called with, or that it refers to.

    Parameters and buffers are named as in the state_dict; behind the name of the module in the step where there are
    several modules. State of an optimizer is named behind its parameter: `up.weight.exp_avg`; of a scaler behind that.
    """
    named = _named(step, args, kwargs)
    modules = {k: v for k, v in named.items() if isinstance(v, nn.Module)}
    optimizers = {k: v for k, v in named.items() if isinstance(v, Optimizer)}
    states = {k: m for k, m in modules.items() if [*m.parameters(), *m.buffers()]}
    kept: dict[str, Entry] = {}
    tied: list[tuple[str, ModuleEntry]] = []
    names: dict[int, str] = {}  # of each tensor, by its identity: tied ones have one name
    for key, module in states.items():
        for path, inner in module.named_modules():
            for row in (inner._parameters, inner._buffers):
                for leaf, value in row.items():
                    if value is None:
                        continue
                    if id(value) in names:
                        tied.append((names[id(value)], ModuleEntry(row, leaf)))
                        continue
                    prefix = [key] if len(states) > 1 else []
                    name = ".".join([*prefix, *([path] if path else []), leaf])
                    names[id(value)], kept[name] = name, ModuleEntry(row, leaf)
    rates: dict[str, RateGroup] = {}
    groups: dict[str, list[str]] = {}
    for key, optimizer in optimizers.items():
        _make_state(optimizer)
        for number, group in enumerate(optimizer.param_groups):
            suffix = f".{number}" if len(optimizer.param_groups) > 1 else ""
            rates[f"{key}.lr{suffix}"] = RateGroup(optimizer, number)
            members = groups.setdefault(f"{key}.lr{suffix}", [])
            for place, parameter in enumerate(group["params"]):
                owner = names.get(id(parameter))
                if owner is None:
                    raise UsageError(
                        f"from_torch: {key}: parameter {place} of group {number}, {tuple(parameter.shape)}, is of no"
                        " module that the step is called with or refers to"
                    )
                members.append(owner)
                for entry, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, Tensor):
                        own = f"{owner}.{entry}"
                        own = own if own not in kept else f"{key}.{own}"
                        kept[own] = StateEntry(optimizer, parameter, entry)
    if not kept:
        raise UsageError(
            f"from_torch: {_name(step)} is called with no nn.Module that has parameters, and refers to none"
        )
    scalers = {k: v for k, v in named.items() if isinstance(v, GradScaler) and v.is_enabled()}
    for key, scaler in scalers.items():
        kept |= entries(key, scaler)
    numbers = {key: options(scaler) for key, scaler in scalers.items()}
    made = StepSubjects(kept, tied, rates, groups, optimizers, modules, scalers, numbers)
    if both := made.overlap():
        raise UsageError(
            f"from_torch: {both[0]} and {both[1]} share memory: one tensor in both places is right"
        )
    return made


_SUBJECTS = (nn.Module, Optimizer, GradScaler)


def _name(step: Callable[..., Any]) -> str:
    return getattr(step, "__name__", type(step).__name__)


def _named(
    step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call and what the function refers to, by name."""
    try:
        bound = inspect.signature(step).bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(f"from_torch: {_name(step)}: {error}") from None
    bound.apply_defaults()
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        several = [v for v in _pytree.tree_leaves(value) if isinstance(v, _SUBJECTS)]
        keys = [name] if len(several) == 1 else [f"{name}.{k}" for k in range(len(several))]
        found |= dict(zip(keys, several, strict=True))
    function = inspect.unwrap(getattr(step, "__func__", step))
    if inspect.isfunction(function):
        variables = inspect.getclosurevars(function)
        found = {**variables.globals, **variables.nonlocals, **found}
    owner = getattr(step, "__self__", None)
    if owner is not None and not isinstance(owner, _SUBJECTS):
        found = {**getattr(owner, "__dict__", {}), **found}
    seen: dict[int, str] = {}
    for name, value in found.items():
        if isinstance(value, _SUBJECTS):
            whole = getattr(value, "_orig_mod", value)  # torch.compile's wrapper
            seen.setdefault(id(whole), name)
    by_name = {name: getattr(value, "_orig_mod", value) for name, value in found.items()}
    return {name: by_name[name] for name in seen.values()}


def _make_state(optimizer: Optimizer) -> None:
    """Let an optimizer make the state that it would make in its first step, where that is known."""
    given = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if all(optimizer.state.get(p) for p in given) or not hasattr(optimizer, "_init_group"):
        return
    before = [(p, p.grad) for p in given]
    count = len(inspect.signature(optimizer._init_group).parameters) - 1
    try:
        for p in given:
            blank = torch.zeros_like(p) if is_dtensor(p) else torch.zeros((), dtype=p.dtype)
            p.grad = blank.expand(p.shape)
        for group in optimizer.param_groups:
            optimizer._init_group(group, *[[] for _ in range(count)])
            if (
                isinstance(optimizer, torch.optim.SGD)
                and group["momentum"]
                and not group["dampening"]
            ):
                for p in group["params"]:  # zeros before the first step: the same as none
                    row = optimizer.state[p]
                    if p.requires_grad and row.get("momentum_buffer") is None:
                        row["momentum_buffer"] = torch.zeros_like(p)
    finally:
        for p, grad in before:
            p.grad = grad


class _Traced:
    """Give the tensors of a trace in the place of those that a step keeps.

    used: those that are read in another layout outside of the steps of optimizers.
    """

    def __init__(self, values: dict[str, Tensor], used: dict[str, Tensor]) -> None:
        self.values, self.used, self.stepping = values, used, False

    def here(self, name: str, tensor: Tensor, reads: bool) -> Tensor:
        return (
            self.values[name]
            if self.stepping or not reads
            else self.used.get(name, self.values[name])
        )


class _Redirected(TorchFunctionMode):  # type: ignore[misc]
    """Give tensors of a trace in the place of DTensors, which cannot be away."""

    def __init__(self, dtensors: dict[str, Tensor], home: _Traced) -> None:
        super().__init__()
        self._names = {id(value): name for name, value in dtensors.items()}
        self._home = home

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found: dict[int, Any] = {}
        reads = func not in OF_FORM

        def given(value: Any) -> Any:
            name = self._names.get(id(value)) if isinstance(value, Tensor) else None
            if name is None:
                return value
            made = self._home.here(name, value, reads)
            found[id(made)] = value
            return made

        args, kwargs = _pytree.tree_map(given, (args, kwargs or {}))
        made = func(*args, **kwargs)
        return found.get(id(made), made)


def traced_step(
    step: Callable[..., Any],
    leaves: Sequence[Any],
    structure: _pytree.TreeSpec,
    subjects: StepSubjects,
    mesh: Mesh,
) -> StepGraph:
    """Trace a step on the leaves of its arguments. Raises CompileError where torch cannot."""
    try:
        found = _traced(step, leaves, structure, subjects, mesh, with_gradients=True)
    except _ZeroedError:
        # None of them in their place, of which optimizers leave out those of what is not used.
        found = _traced(step, leaves, structure, subjects, mesh, with_gradients=False)
    if found is None:  # it ends without gradients: so it begins
        old = [
            n for n, value in subjects.tensors().items() if getattr(value, "grad", None) is not None
        ]
        if old:
            raise UsageError(
                f"from_torch: {_name(step)} adds to gradients, and {old[0]} has one already: call"
                " optimizer.zero_grad() first"
            )
        found = _traced(step, leaves, structure, subjects, mesh, with_gradients=False)
    assert found is not None
    return found


class _ZeroedError(Exception):
    """Say that a step fills the gradients that it finds with zeros, and does nothing else with them."""


def _traced(
    step: Callable[..., Any],
    leaves: Sequence[Any],
    structure: _pytree.TreeSpec,
    subjects: StepSubjects,
    mesh: Mesh,
    with_gradients: bool,
) -> StepGraph | None:
    """Trace a step; return None where gradients from before are added to, and it leaves none.

    with_gradients: whether parameters have gradients before it.
    """
    kept, name = subjects.tensors(), _name(step)
    trained = [n for n, value in kept.items() if value.requires_grad and with_gradients]
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    returned: list[Any] = []
    leaves_gradients, calls = False, list[SchedulerCall]()
    sharded = {n: value for n, value in kept.items() if is_dtensor(value)}
    plain = {n: value for n, value in kept.items() if n not in sharded}
    at_use: dict[str, Layout] = {}
    for module in subjects.modules.values():
        at_use |= gathered(module, sharded, mesh)

    def run(*given: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        nonlocal leaves_gradients
        calls.clear()
        values = dict(zip(kept, given))
        rates = dict(zip(subjects.rates, given[len(kept) :]))
        behind = given[len(kept) + len(rates) :]
        for one, value in values.items():
            value.requires_grad_(kept[one].requires_grad)
        for one, value in zip(trained, behind[len(places) :], strict=True):
            values[one].grad = value
        whole = list(leaves)
        for place, value in zip(places, behind):
            whole[place] = value.requires_grad_(leaves[place].requires_grad)
        args, kwargs = _pytree.tree_unflatten(whole, structure)
        with ExitStack() as stack:
            used = {
                n: constrain(values[n], str(layout), mesh.names) for n, layout in at_use.items()
            }
            home = _Traced(values, used)
            stack.enter_context(replaced(plain, home))
            if sharded:
                stack.enter_context(_Redirected(sharded, home))
            optimizers = subjects.optimizers.values()
            scalers = TracedScalers(name, subjects.scalers, optimizers)
            for optimizer in optimizers:
                stack.enter_context(
                    _stepping(optimizer, subjects, rates, name, home, calls, scalers)
                )
            stack.enter_context(noted(name, calls))
            stack.enter_context(scalers.inside())
            found = step(*args, **kwargs)
            after = _after(subjects, kept, values)
            leaves_gradients = any(values[one].grad is not None for one in trained)
            made, spec = _pytree.tree_flatten(found)
            returned[:] = [
                spec,
                *[None if isinstance(one, Tensor) else (None, one) for one in made],
            ]
            results = [one.detach() for one in made if isinstance(one, Tensor)]
            after += [*behind[: len(places)], *rates.values()]
            return results, [value.detach() for value in after]

    examples = [*kept.values(), *[torch.zeros((), dtype=torch.float64)] * len(subjects.rates)]
    examples += [*[leaves[k] for k in places], *[kept[one] for one in trained]]
    stream = _Stream()
    with ExitStack() as around:
        for module in subjects.modules.values():
            around.enter_context(constrained(module, mesh))
        around.enter_context(_tracing())
        around.enter_context(cumulative_averages())
        around.enter_context(stream.watched())
        fakes = [torch.empty_strided(tuple(t.shape), t.stride(), dtype=t.dtype) for t in examples]
        try:
            graph = make_fx(
                dispatch_functionalize(run, FunctionalTensorMode()),
                decomposition_table=decompositions(),
            )(*fakes)
        except (UsageError, CompileError):
            raise
        except Exception as error:  # whatever torch raises: it is about the user's step
            where = line_of(error, str(Path(torch.__file__).parent))
            raise CompileError(_refusal(name, error), where) from None
    stream.draw_once(graph)
    return _finished(graph, subjects, returned, len(places), trained, leaves_gradients, name, calls)


def _refusal(step: str, error: Exception) -> str:
    """Say why torch cannot trace a step, and what would be right."""
    if isinstance(error, DataDependentOutputException):
        return (
            f"from_torch: {step} reads a number of a tensor (item(), float(), an `if`), which a trace does not have:"
            " return the tensor, or choose by torch.where"
        )
    if isinstance(error, DynamicOutputShapeException):
        return (
            f"from_torch: {step} makes a tensor whose shape depends on data ({error}): torch.where, or a sum that"
            " leaves elements out, keeps the shape"
        )
    return f"torch cannot trace {step}: {first_line(error)}"


def _after(
    subjects: StepSubjects, kept: Mapping[str, Tensor], values: Mapping[str, Tensor]
) -> list[Tensor]:
    """Return what a step leaves of what it keeps. Modules have again the tensors that they had before."""
    found = []
    for name, value in values.items():
        entry = subjects.kept[name]
        now = entry.find()
        if isinstance(entry, ModuleEntry) and now is not kept[name]:
            entry.row[entry.key] = kept[name]
            if not isinstance(now, Tensor) or (now.shape, now.dtype) != (value.shape, value.dtype):
                raise UsageError(f"from_torch: the step puts a tensor of another form into {name}")
            value = now
        found.append(value)
    return found


def _finished(
    graph: GraphModule,
    subjects: StepSubjects,
    returned: list[Any],
    inputs: int,
    trained: list[str],
    leaves_gradients: bool,
    name: str,
    calls: list[SchedulerCall],
) -> StepGraph | None:
    """Take out of a graph what it does not need, and its random numbers."""
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and "profiler" in str(node.target):
            node.replace_all_uses_with(None)
            graph.graph.erase_node(node)
    kept = list(subjects.tensors())
    spec, entries = returned[0], returned[1:]
    output = graph.graph.output_node()
    results, after = output.args[0]
    given = [node for node in graph.graph.nodes if node.op == "placeholder"]
    arguments = given[len(kept) + len(subjects.rates) :][:inputs]
    behind = after[len(kept) :]
    for rate, old, new in zip(subjects.rates, given[len(kept) :], behind[inputs:]):
        if not _same(old, new):
            raise UsageError(
                f"from_torch: {name} changes {rate}: change it outside of the step, or by a scheduler"
            )
    for number, (old, new) in enumerate(zip(arguments, behind[:inputs], strict=True)):
        if not _same(old, new):
            raise UsageError(
                f"from_torch: {name} writes tensor {number} of its arguments, {tuple(old.meta['val'].shape)}: return"
                " the new value, or keep it in a buffer of a module"
            )
    written = [
        k for k, (old, new) in enumerate(zip(given, after[: len(kept)])) if not _same(old, new)
    ]
    output.args = ((*results, *[after[k] for k in written]),)
    graph.graph.eliminate_dead_code()
    gradients = given[len(kept) + len(subjects.rates) + inputs :]
    readers = [user.target for node in gradients for user in node.users]
    if readers and all(target is torch.ops.aten.zero.default for target in readers):
        raise _ZeroedError
    if readers:
        if not leaves_gradients:
            return None
        which = next(one for one, node in zip(trained, gradients, strict=True) if node.users)
        raise UsageError(
            f"from_torch: {name} adds to the gradient of {which} that an earlier call has left: call"
            " optimizer.zero_grad() in it"
        )
    if leaves_gradients and not subjects.optimizers:
        raise UsageError(
            f"from_torch: {name} leaves gradients, and calls no optimizer: return them (torch.autograd.grad), or step"
        )
    for node in gradients:
        graph.graph.erase_node(node)
    constants = _constants(graph)
    draws = lifted(graph.graph)
    graph.recompile()
    count, leaves = 0, list[tuple[int | None, object]]()
    for one in entries:
        leaves.append((count, None) if one is None else one)
        count += one is None
    writes = [kept[k] for k in written]
    return StepGraph(graph, count, writes, leaves, spec, constants, draws, calls)


def _constants(graph: GraphModule) -> list[Tensor]:
    """Make arguments of the tensors that a graph holds itself, behind its own; return them."""
    found: dict[str, Tensor] = {}
    last = [node for node in graph.graph.nodes if node.op == "placeholder"][-1]
    for node in [n for n in graph.graph.nodes if n.op == "get_attr"]:
        value = getattr(graph, node.target, None)
        if isinstance(value, Tensor):
            if node.target not in found:
                found[node.target] = value
                with graph.graph.inserting_after(last):
                    last = graph.graph.placeholder(node.target)
                last.meta = dict(node.meta) | {"val": value}
            argument = next(
                n for n in graph.graph.nodes if n.op == "placeholder" and n.target == node.target
            )
            node.replace_all_uses_with(argument)
            graph.graph.erase_node(node)
    for name in found:
        delattr(graph, name)
    return list(found.values())


def _same(old: Any, new: Any) -> bool:
    """Tell whether a value is an argument as it came."""
    while new.op == "call_function" and new.target is torch.ops.aten.detach.default:
        new = new.args[0]
    return old is new


@contextmanager
def _tracing() -> Iterator[None]:
    """Let torch trace in this block, without fused attention, which has no backward op that can be lowered."""
    flag = torch.compiler._is_compiling_flag
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode())
        stack.enter_context(enable_python_dispatcher())
        stack.enter_context(torch.enable_grad())
        stack.enter_context(sdpa_kernel([SDPBackend.MATH]))
        stack.enter_context(traceback.preserve_node_meta())
        stack.enter_context(WithoutNumbers())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        torch.compiler._is_compiling_flag = True
        try:
            yield
        finally:
            torch.compiler._is_compiling_flag = flag


class _Stream:
    """Follow the state of torch's random numbers in a trace: what is computed again draws the same ones again."""

    def __init__(self) -> None:
        self._states: list[
            tuple[int, int, bool]
        ] = []  # nodes before it; the state; whether it is taken up again
        self._count = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Let states of the generator be numbers in this block."""
        saved = torch.get_rng_state, torch.set_rng_state
        torch.get_rng_state, torch.set_rng_state = self._get, self._set
        try:
            yield
        finally:
            torch.get_rng_state, torch.set_rng_state = saved

    def _get(self) -> int:
        self._count += 1
        self._note(self._count, False)
        return self._count

    def _set(self, state: int) -> None:
        self._note(state, True)

    def _note(self, state: int, again: bool) -> None:
        mode = get_proxy_mode()
        assert mode is not None
        self._states.append((len(mode.tracer.graph.nodes), state, again))

    def draw_once(self, graph: GraphModule) -> None:
        """Let a node that draws the numbers of an earlier one be that one."""
        places: dict[int, int] = {}  # of each state: how many have drawn before
        drawn: list[Any] = []
        position, states = 0, list(self._states)
        for number, node in enumerate(list(graph.graph.nodes)):
            while states and states[0][0] <= number:
                _, state, again = states.pop(0)
                if again:
                    position = places[state]
                else:
                    places[state] = position
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                if position == len(drawn):
                    drawn.append(node)
                else:
                    assert drawn[position].target == node.target
                    node.replace_all_uses_with(drawn[position])
                    graph.graph.erase_node(node)
                position += 1


@contextmanager
def _stepping(
    optimizer: Optimizer,
    subjects: StepSubjects,
    rates: Mapping[str, Tensor],
    step: str,
    home: _Traced,
    calls: Sequence[SchedulerCall],
    scalers: TracedScalers,
) -> Iterator[None]:
    """Let an optimizer step with learning rates that are tensors, and whatever reads these in the step read the same.

    Raises UsageError where its state is not there yet, or is more than tensors.
    """
    groups = {id(one.options): rates[name] for name, one in subjects.rates.items()}
    said = [dict(group) for group in optimizer.param_groups]
    state = {p: dict(row) for p, row in optimizer.state.items()}
    exact = ExitStack()

    def unchanged() -> None:
        for group, old in zip(optimizer.param_groups, said, strict=True):
            for key, value in group.items():
                before = groups[id(group)] if key == "lr" else old.get(key)
                same = value is before or (key != "lr" and value == before)
                if key != "params" and not same:
                    raise UsageError(
                        f"from_torch: {step} changes {key} of {kind}: change it outside of the step, or by a scheduler"
                    )

    def begin(*_: Any) -> None:
        check_order(step, calls, optimizer)
        unchanged()
        for group in optimizer.param_groups:
            group |= {k: v for k, v in traceable.items() if k in group}
        home.stepping = True
        scalers.begin(optimizer)
        exact.enter_context(_ExactNumbers().within(optimizer))

    def end(*_: Any) -> None:
        exact.close()
        scalers.end(optimizer)
        home.stepping = False
        for group, old in zip(optimizer.param_groups, said, strict=True):
            group |= {k: old[k] for k in traceable if k in old}

    # What is capturable in Adam divides by the learning rate: NaN where that is 0, as at the start of a warm-up.
    divides = isinstance(optimizer, torch.optim.Adam | torch.optim.Adamax)
    traceable = {"capturable": not divides, "foreach": False, "fused": False}
    hooks = [optimizer.register_step_pre_hook(begin), optimizer.register_step_post_hook(end)]
    kind = type(optimizer).__name__
    for group in optimizer.param_groups:
        group["lr"] = groups[id(group)]
    try:
        yield
        unchanged()
        for p, row in optimizer.state.items():
            for key, value in row.items():
                old_value = state.get(p, {}).get(key)
                same = value is old_value if isinstance(value, Tensor) else value == old_value
                if not same:
                    what = (
                        "makes its state in its first step: take one in eager PyTorch before this"
                    )
                    what = what if old_value is None else "changes state that is no tensor"
                    raise UsageError(f"from_torch: {kind}: {key}: {step} {what}")
    finally:
        exact.close()
        for hook in hooks:
            hook.remove()
        for group, old in zip(optimizer.param_groups, said, strict=True):
            group.clear()
            group |= old
        for p in list(optimizer.state):
            if p not in state:
                del optimizer.state[p]
            else:
                row = optimizer.state[p]
                row.clear()
                row |= state[p]


class _ExactNumbers(TorchFunctionMode):  # type: ignore[misc]
    """Compute in an optimizer's step with tensors of f64 what eager PyTorch computes with numbers of Python."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "item" and args[0].dtype != torch.float64:  # of f64 it is asked by an `if`
            return args[0].double()
        if name == "lerp_" and isinstance(args[2], Tensor):
            args = (*args[:2], args[2].to(args[0].dtype))
        for key in ("alpha", "value"):
            if isinstance(kwargs.get(key), Tensor):
                factor = kwargs.pop(key)
                args = list(args)
                # In the type of the result: a short float times a learning rate would be rounded.
                kind = torch.promote_types(args[0].dtype, args[1].dtype)
                args[1] = args[1].to(kind) * factor
        if name == "__rpow__" and args[0].dim() == 0:
            return torch.pow(args[1], args[0].double())
        return func(*args, **kwargs)

    @contextmanager
    def within(self, optimizer: Optimizer) -> Iterator[None]:
        """Compute so in this block, also where the module of an optimizer calls Python's `min` and `max`."""
        names = inspect.unwrap(type(optimizer).step).__globals__
        known = {"min": _least, "max": _greatest}
        ours = {name: one for name, one in known.items() if name not in names}
        names.update(ours)
        try:
            with self:
                yield
        finally:
            for name in ours:
                del names[name]


def _least(*values: Any) -> Any:
    """Return the least of two numbers, of which one may be a tensor."""
    return _of_two(min, torch.minimum, values)


def _greatest(*values: Any) -> Any:
    """Return the greatest of two numbers, of which one may be a tensor."""
    return _of_two(max, torch.maximum, values)


def _of_two(of_numbers: Any, of_tensors: Any, values: Sequence[Any]) -> Any:
    if not any(isinstance(one, Tensor) for one in values):
        return of_numbers(*values)
    return of_tensors(*[torch.as_tensor(one, dtype=torch.float64) for one in values])
