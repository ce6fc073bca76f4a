"""Serve torch.compile as a backend, for inference and training.

fast = torch.compile(module, backend="meshweave")
fast = torch.compile(module.eval(), backend=mw.torch_backend(mesh="tp=2", placements={"up.weight": "[tp, _]"}))
"""

from __future__ import annotations

import re
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from fnmatch import fnmatchcase
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from meshweave.api.jit import CacheInfo
from meshweave.api.program import budget_hints
from meshweave.errors import MeshweaveError, UsageError
from meshweave.frontends.python.place import chosen_kernels
from meshweave.frontends.torch.export import RandomNumbersError, torch_package, unused_name
from meshweave.frontends.torch.layouts import Placement
from meshweave.layout import Mesh
from meshweave.layout.lengths import Dim
from meshweave.runtime.forks import new_lock
from meshweave.torch.aliases import Result, outputs_of, returned_numbers, written_arguments
from meshweave.torch.entry import from_torch
from meshweave.torch.laid import LaidOut
from meshweave.torch.ports import to_torch
from meshweave.torch.program import TorchProgram
from meshweave.torch.scalars import with_scalars
from meshweave.torch.sizes import (
    OpenInputs,
    numbers_in,
    open_inputs,
    sizes_in,
    with_metas,
    with_numbers,
)
from meshweave.torch.training import TrainedGraph

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh
    from torch.fx import Graph, GraphModule, Node


def torch_backend(
    mesh: Mesh | str | DeviceMesh | None = None,
    placements: Mapping[str, Placement] | None = None,
    engine: str = "local",
    timeout: float | None = None,
    frozen: bool = False,
    verify: bool = True,
    peak_bytes: int | str | None = None,
) -> TorchBackend:
    """Return a backend for `torch.compile(module, backend=...)`, with and without gradients.

    mesh, placements, engine, timeout (in seconds), verify: as in `from_torch`; placements by the names of the module's
    state_dict and of the arguments of `forward`, where the piece of the module that torch hands over has them.
    frozen: parameters and buffers are written through torch alone, if at all. Without it each call compares them with
            what was laid out, since a write through `.data` or NumPy leaves no trace: that reads them once.
    peak_bytes: the intermediate bytes that a rank may take in each program by itself, "64MiB". What a forward program
            saves for the backward one is a result of the one and an argument of the other.
    What a piece writes, of its parameters, buffers or arguments, is written when the call ends: on one rank an argument
    where it lies, without copies, as the cache of a language model.
    Each piece is compiled when it is first called with arguments of its kind: shapes, dtypes, and `mw.kernels` around
    the call. Sizes that torch leaves open, with `dynamic=True` or where it has seen several, are left to each call: one
    program serves all up to the bound of `torch._dynamo.mark_dynamic(x, 0, min=2, max=512)`, else up to a power of two
    from 64 on. A piece that does more than such a program can (docs/lengths.md), or records gradients, has one for each
    size. Parameters are laid out once, and again after they have been written. Results that are views of an argument in
    eager torch, or share memory, do here too. Regions annotated with
    `torch.fx.traceback.annotate({"meshweave": {...}})` are hints, as for `from_torch`. A call that records gradients
    runs a forward program, and `backward()` another one; what the one saves for the other stays on its ranks.
    `cache_info()` of the backend counts calls and programs. Raises UsageError where torch is not installed; the first
    call of a piece raises CompileError for what is not supported.

    >>> import torch
    >>> import meshweave as mw
    >>> module, x = torch.nn.Linear(4, 8).eval(), torch.ones(2, 4)
    >>> fast = torch.compile(module, backend=mw.torch_backend(mesh="tp=2"))
    >>> with torch.no_grad():
    ...     torch.allclose(fast(x), module(x), atol=1e-5)
    True
    """
    torch_package()
    budget_hints(peak_bytes)  # refused here, not by the first call
    build = partial(
        from_torch,
        mesh=mesh,
        engine=engine,
        timeout=timeout,
        verify=verify,
        peak_bytes=peak_bytes,
    )
    return TorchBackend(build, placements or {}, frozen)


class TorchBackend:
    """Compile the pieces of programs that `torch.compile` captures, and count their calls."""

    def __init__(
        self,
        build: Callable[..., TorchProgram],
        placements: Mapping[str, Placement],
        frozen: bool,
    ) -> None:
        """Keep what `torch_backend` says. build: compiles a module."""
        self._build, self._placements, self._laid = build, placements, LaidOut(frozen)
        self._pieces: weakref.WeakSet[_CapturedGraph | _CapturedNumbers] = weakref.WeakSet()
        self._hits = self._misses = 0
        self._lock = new_lock()

    def __call__(
        self, graph: GraphModule, _: Sequence[object]
    ) -> Callable[..., tuple[Tensor, ...]]:
        """Return what runs a graph that torch has captured."""
        rest = (self._placements, self._counted, self._laid, self._found)
        graph, numbers = with_scalars(graph, numbers_in(graph.graph))
        piece = _CapturedNumbers(graph, numbers, *rest) if numbers else _CapturedGraph(graph, *rest)
        self._pieces.add(piece)
        return piece

    def __deepcopy__(self, memo: object) -> TorchBackend:
        """Return itself: transformers copies the options of `generate`, of which a backend may be one."""
        return self

    def cache_info(self) -> CacheInfo:
        """Count the calls of pieces that compiled nothing, the programs that were compiled, and those kept now."""
        return CacheInfo(self._hits, self._misses, sum(piece.size for piece in self._pieces))

    def _counted(self, *args: Any, **options: Any) -> TorchProgram:
        made = self._build(*args, **options)
        with self._lock:
            self._misses += 1
        return made

    @contextmanager
    def _found(self) -> Iterator[None]:
        """Count a call that compiles nothing meanwhile."""
        before = self._misses
        yield
        with self._lock:
            self._hits += self._misses == before


def backend(
    graph: GraphModule, example: Sequence[object], **options: Mapping[str, Any]
) -> Callable[..., tuple[Tensor, ...]]:
    """Compile a graph for `torch.compile(module, backend="meshweave", options={...})`.

    options: those of `torch_backend`, under the name `options`.
    """
    known = ("mesh", "placements", "engine", "timeout", "frozen", "verify", "peak_bytes")
    given = dict(options.get("options") or {})
    if unknown := [name for name in given if name not in known]:
        raise UsageError(f'torch.compile: no option "{unknown[0]}" of backend meshweave: {known}')
    return torch_backend(**given)(graph, example)


_Key = TypeVar("_Key")


class _CapturedGraph:
    """Run a graph that torch has captured. Call it with torch's arguments: parameters and inputs."""

    def __init__(
        self,
        graph: GraphModule,
        placements: Mapping[str, Placement],
        build: Callable[..., TorchProgram],
        laid: LaidOut,
        called: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Prepare it. laid: the tensors of all pieces. called: is around each call."""
        self._torch = torch_package()
        from meshweave.torch.away import fetched  # imports torch

        self._fetched = fetched
        self._laid, self._called, self._lock = laid, called, new_lock()
        graph, self._held = _with_arguments(self._torch, graph)
        self._constants = _constants(graph)
        self._outputs, self._results = outputs_of(graph)
        self._graph, self._states, self._inputs = _parted(self._torch, graph, self._results)
        self._open = self._open_inputs(graph)
        self._traced = any(map(_transforms, graph.graph.nodes))  # torch traces the graph, no module
        self._captured = graph  # torch forgets where its arguments come from once this returns
        sources = _sources(graph.graph)
        self._sources = [sources.get(n) for n in graph.graph.nodes if n.op == "placeholder"]
        self._build, self._placements = build, dict(placements)
        self._programs: dict[object, TorchProgram] = {}
        self._of_any_size: dict[object, _Sized] = {}
        self._refused: set[object] = set()  # what has no program for more sizes than it has one for
        self.trained: dict[object, TrainedGraph] = {}

    def __call__(self, *given: Tensor) -> tuple[Any, ...]:
        tensors = self._torch.Tensor
        whole = (*given, *self._held)
        # What a step keeps on its ranks comes here first.
        with self._called(), self._fetched(one for one in whole if isinstance(one, tensors)):
            return self._call(whole)

    @property
    def size(self) -> int:
        """Return how many programs are kept."""
        halves = [half for graph in self.trained.values() for half in graph.halves]
        return (
            len(self._programs)
            + len(self._of_any_size)
            + sum(half.program is not None for half in halves)
        )

    def _call(self, args: tuple[Tensor, ...]) -> tuple[Any, ...]:
        if self._torch.is_grad_enabled() and any(map(_needs_gradient, args)):
            return tuple(self._trained(args)(*args))
        found = None if self._traced else self._found(args)
        if found is None:
            return tuple(self._trained(args)(*args))
        made = [one.laid_out(value) for one, value in zip(self._results, found, strict=True)]
        return tuple(output.value(args, made) for output in self._outputs)

    def _found(self, args: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """Return the results; None, then and from now on, where torch has to draw random numbers first."""
        try:
            with self._lock:
                return self._run(args)
        except RandomNumbersError:
            self._traced = True
            return None

    def _run(self, args: Sequence[Tensor]) -> tuple[Tensor, ...]:
        states = [value for value, name in zip(args, self._states) if name]
        inputs = [value for value, name in zip(args, self._states) if name is None]
        names = [name for name in self._states if name]
        program = self._program(names, states, inputs)
        for name, value in zip(names, states):
            if name in program.parameters:  # it reads it
                self._laid.give(program, name, value)
        found = program.results(inputs, ())
        for name, value in zip(names, states):
            if name in program.written:
                with self._torch.no_grad():
                    value.copy_(to_torch(program.parameters[name]))
                self._laid.keep(program, name, value)
        return tuple(found)

    def _program(
        self, names: Sequence[str], states: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> TorchProgram:
        """Return the program for arguments of this kind."""
        rest = (tuple(map(_kind, states)), chosen_kernels())
        made = None if self._open is None else self._sized(self._open, rest, names, states, inputs)
        if made is not None:
            return made
        key = (tuple(map(_kind, inputs)), *rest)
        if key not in self._programs:
            self._programs[key] = self._made(names, states, inputs)
        return self._programs[key]

    def _sized(
        self,
        opened: OpenInputs,
        rest: Hashable,
        names: Sequence[str],
        states: Sequence[Tensor],
        inputs: Sequence[Tensor],
    ) -> TorchProgram | None:
        """Return the one program for all sizes of the inputs; None where the graph does what such a program cannot."""
        fixed = tuple([_kind(v) for v, shape in zip(inputs, opened.shapes) if shape is None])
        key, sizes = (fixed, opened.held(inputs), rest), opened.sizes(inputs)
        known = self._of_any_size.get(key)
        if known is not None and all(size <= known.dims[n].max for n, size in sizes.items()):
            return known.program
        if key in self._refused:
            return None
        if known is not None:  # as large along each dim as before
            sizes = {name: max(size, known.dims[name].max) for name, size in sizes.items()}
        for dims in opened.dims(sizes):
            with suppress(MeshweaveError):
                made = self._made(names, states, opened.arguments(inputs, dims))
                self._of_any_size[key] = _Sized(made, dims)
                if known is not None:
                    known.program.close()
                return made
        self._refused.add(key)
        return None

    def _made(
        self, names: Sequence[str], states: Sequence[Tensor], inputs: Sequence[object]
    ) -> TorchProgram:
        program = self._compiled(names, states, inputs)
        for name, value in zip(names, states):
            if name in program.parameters and not self._laid.knows(program, name, value):
                self._laid.keep(program, name, value)
        return program

    def _trained(self, args: Sequence[Tensor]) -> TrainedGraph:
        """Return what runs the graph as torch's autograd traces it, for arguments of this kind."""
        kinds = tuple([(_kind(a), _needs_gradient(a)) for a in args])
        key = (kinds, self._torch.is_grad_enabled(), chosen_kernels())
        with self._lock:
            found = self.trained.get(key)
            if found is None:
                owners = {k: one[0] for k, one in enumerate(self._sources) if one is not None}
                found = TrainedGraph(self._captured, args, self._placed(owners), self._build)
                self.trained[key] = found
            return found

    def _compiled(
        self, names: Sequence[str], states: Sequence[Tensor], inputs: Sequence[object]
    ) -> TorchProgram:
        attributes = {**self._constants, **dict(zip(names, states))}
        module = self._torch.fx.GraphModule(attributes, self._graph, "Captured")
        owners = dict(zip(names, names)) | self._inputs
        return self._build(module.eval(), tuple(inputs), self._placed(owners))

    def _open_inputs(self, captured: GraphModule) -> OpenInputs | None:
        """Return what sizes of inputs calls choose, none of those of inputs that are written; None for none at all.

        Where results have strides there are none.
        """
        given = [node for node in captured.graph.nodes if node.op == "placeholder"]
        plain_results = all(one.strides is None for one in self._results)
        if not plain_results:
            return None
        inputs = [node for node, name in zip(given, self._states) if name is None]
        opened = open_inputs(inputs)
        if opened is None:
            return None
        written = written_arguments(captured)
        kept = [shape for node, shape in zip(inputs, opened.shapes) if shape and node in written]
        return opened.without({n for shape in kept for n in shape if isinstance(n, str)})

    def _placed(self, owners: Mapping[_Key, str]) -> dict[_Key, Placement]:
        """Return the placements of values, given the name that each has in the user's program."""
        here: dict[_Key, Placement] = {}
        for key, layout in sorted(self._placements.items(), key=lambda p: p[0] in owners.values()):
            matched = [one for one, own in owners.items() if fnmatchcase(own, key)]
            here |= dict.fromkeys(matched, layout)  # an exact name comes last, and wins
            if not matched:
                warnings.warn(
                    f'torch.compile: placements: "{key}" is not in the piece that torch has captured '
                    f"({', '.join(owners.values())})",
                    stacklevel=2,
                )
        return here


class _CapturedNumbers:
    """Run a graph some of whose arguments are Python's floats, as tensors: it is one graph for each choice of these.

    Floats that are only used in arithmetic are tensors of the graph, and none of these.
    """

    def __init__(self, graph: GraphModule, numbers: Sequence[int], *rest: Any) -> None:
        """Take the numbers of these arguments, and what _CapturedGraph is made of besides."""
        self._graph, self._numbers, self._rest = with_metas(graph), numbers, rest
        self._pieces: dict[tuple[str, ...], _CapturedGraph] = {}

    @property
    def size(self) -> int:
        """Return how many programs are kept."""
        return sum(piece.size for piece in self._pieces.values())

    def __call__(self, *given: Tensor) -> tuple[Any, ...]:
        values = {k: float(given[k]) for k in self._numbers}
        # Texts tell -0.0 from 0.0, and a NaN is itself.
        key = tuple([value.hex() for value in values.values()])
        piece = self._pieces.get(key)
        if piece is None:
            piece = _CapturedGraph(with_numbers(self._graph, values), *self._rest)
            piece = self._pieces.setdefault(key, piece)
        return piece(*[value for k, value in enumerate(given) if k not in values])


class _Sized(NamedTuple):
    """Hold a program for all sizes up to the bounds of its dims."""

    program: TorchProgram
    dims: dict[str, Dim]


def _transforms(node: Node) -> bool:
    """Tell whether a node is part of a transformation of functions, as `torch.vmap` is."""
    home = getattr(node.target, "__module__", None)
    return home in ("torch._C._functorch", "torch._functorch.predispatch")


def _needs_gradient(value: object) -> bool:
    return bool(getattr(value, "requires_grad", False))


def _kind(value: Tensor) -> object:
    """Return what a program is compiled for: shape and dtype of a tensor, else the value."""
    return (tuple(value.shape), value.dtype) if hasattr(value, "dtype") else value


def _with_arguments(
    torch: ModuleType, captured: GraphModule
) -> tuple[GraphModule, tuple[Tensor, ...]]:
    """Return the graph with the tensors that it holds itself as further arguments, and these tensors.

    An optimizer's parameters and state are held so, and written.
    """
    held = {
        node.target: node
        for node in captured.graph.nodes
        if node.op == "get_attr" and isinstance(getattr(captured, node.target, None), torch.Tensor)
    }
    if not held:
        return captured, ()
    graph, values = torch.fx.Graph(), {}
    given = [node for node in captured.graph.nodes if node.op == "placeholder"]
    for node in given:
        values[node] = graph.node_copy(node)
    for name, node in held.items():
        made = graph.placeholder(name)
        made.meta = {**node.meta, _HELD: name}
        made.meta.setdefault("example_value", getattr(captured, name))
        held[name] = made
    for node in captured.graph.nodes:
        if node.op == "get_attr" and node.target in held:
            values[node] = held[node.target]
        elif node not in values:
            values[node] = graph.node_copy(node, lambda old: values[old])
    tensors = tuple(getattr(captured, name) for name in held)
    return torch.fx.GraphModule(captured, graph), tensors


_HELD = "meshweave_held"


def _constants(captured: GraphModule) -> dict[str, object]:
    """Return the graphs (of `torch.cond`) and tensors that a captured graph holds itself, by name."""
    targets = [n.target for n in captured.graph.nodes if n.op == "get_attr"]
    return {name: getattr(captured, name) for name in targets if "." not in name}


def _parted(
    torch: ModuleType, captured: GraphModule, results: Sequence[Result]
) -> tuple[Graph, list[str | None], dict[str, str]]:
    """Return the graph with parameters and buffers as attributes, and inputs, under their own names.

    It returns `results`. Buffers that it writes are inputs: a program works in the memory of such where it can.

    Also return for each argument of the captured graph the name of its parameter or buffer, None for an input, "" for
    the size of another, which the graph reads there, or a number that it does not need; and the user's name of each
    input.
    """
    graph = torch.fx.Graph()
    states: list[str | None] = []
    inputs: dict[str, str] = {}
    values: dict[Node, Node] = {}
    written, returned = written_arguments(captured), returned_numbers(captured)
    sizes = {k: v for k, v in sizes_in(captured.graph).items() if k not in returned}
    sources = _sources(captured.graph)
    taken = {name for name, is_state in sources.values() if is_state}
    for node in captured.graph.nodes:
        if node in sizes or node in returned:
            states += [""] if node.op == "placeholder" else []
            continue
        if node.op != "placeholder" and sizes:  # all arguments are there
            for one, (tensor, dim) in sizes.items():
                values[one] = graph.call_method("size", (values[tensor], dim))
            sizes = {}
        name = sources.get(node)
        if name is not None and node in written:
            name = name[0], False
        if node.op == "placeholder":
            states.append(name[0] if name is not None and name[1] else None)
        if name is not None and name[1]:
            values[node] = graph.create_node("get_attr", name[0])
        elif name is not None:
            # A name of Python's: a Sequential has numbers.
            own = re.sub(r"\W|^(?=\d)", "_", name[0])
            values[node] = graph.placeholder(unused_name(own, taken | set(inputs)))
            inputs[str(values[node].target)] = name[0]
        elif node.op == "output":
            values[node] = graph.output(tuple(values[result.node] for result in results))
        else:
            values[node] = graph.node_copy(node, lambda old: values[old])
        values[node].meta = {k: v for k, v in node.meta.items() if k in _KEPT}
        if node.op == "placeholder" and name is None:
            inputs[str(values[node].target)] = values[node].name
    return graph, states, inputs


_KEPT = ("custom", "stack_trace", "nn_module_stack")


def _sources(graph: Graph) -> dict[Node, tuple[str, bool]]:
    """Return the name of each argument in the user's program, and whether it is a parameter or buffer.

    Names of several modules that would be the same have that of the module in front.
    """
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    found = {node: one for node in nodes if (one := _source(node)) is not None}
    states = Counter(name for _, name, is_state in found.values() if is_state)
    named: dict[Node, tuple[str, bool]] = {}
    taken: set[str] = set()
    for node, (root, name, is_state) in found.items():
        whole = f"{root}.{name}" if is_state and states[name] > 1 else name
        named[node] = (unused_name(whole, taken), True) if is_state else (whole, False)
        taken |= {named[node][0]} if is_state else set()
    return named


def _source(node: Node) -> tuple[str, str, bool] | None:
    """Return what a placeholder belongs to, its name there, and whether it is a parameter or buffer."""
    if _HELD in node.meta:
        return "", node.meta[_HELD], True
    argument = node.meta.get("grapharg")
    if argument is None:
        return None
    text = argument.source.name
    text = (text() if callable(text) else text).replace(".__dict__['_modules']", "._modules")
    keys = re.findall(r"\['([^']+)'\]", text)
    if re.search(r"\._(parameters|buffers)\[", text):
        return keys[0], ".".join(keys[1:]), True
    # Decorators of transformers hand arguments on as entries of a dictionary: `L['kwargs']['input_ids']`.
    return (keys[-1], keys[-1], False) if re.fullmatch(r"L(\['\w+'\]){1,2}", text) else None
