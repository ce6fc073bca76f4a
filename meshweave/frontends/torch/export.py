"""Export a PyTorch module or program as one graph of plain ops, with the tensors it holds and takes.

nn.Module -> torch.export (annotations kept) -> decompositions -> hints as regions -> Exported
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from meshweave.errors import CompileError, UsageError
from meshweave.frontends.torch.probe import Problem, refusal
from meshweave.frontends.torch.regions import (
    Nested,
    chain_of,
    inline_wrappers,
    place_of,
    wrap_regions,
)

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    from torch import Tensor, nn
    from torch.export import ExportedProgram
    from torch.fx import GraphModule
    from torch.utils._pytree import TreeSpec


class OutputLeaf(NamedTuple):
    """Describe a leaf of what a program returns: the index of its result, or None and the constant in its place."""

    result: int | None
    constant: object


@dataclass
class Exported:
    """Hold a program of PyTorch that can be imported.

    graph:   a GraphModule whose placeholders are `names`, in order, each a tensor.
    names:   the names of parameters, buffers and constants as in the state_dict, and of inputs as in `forward`.
    bound:   the tensors that the program holds, by name; the others are inputs.
    inputs:  for each leaf of the arguments the index of its placeholder, None for a constant of the program.
    fixed:   the leaves that are constants of the program, each with its name and value.
    outputs: for each leaf of the returned value.
    written: the results that are what an argument is afterwards, each with the index of its placeholder.
    in_spec, out_spec: the structure of arguments and results, as torch's pytrees describe it.
    """

    graph: GraphModule
    names: list[str]
    bound: dict[str, Tensor]
    inputs: list[int | None]
    outputs: list[OutputLeaf]
    in_spec: TreeSpec
    out_spec: TreeSpec
    written: dict[int, int]
    fixed: dict[int, tuple[str, object]] = field(default_factory=dict)


class RandomNumbersError(CompileError):
    """Say that a program draws random numbers, which torch has to do before a call."""


_DRAWS = ": random numbers"


def torch_package() -> ModuleType:
    """Return the package torch. Raises UsageError where it is not installed."""
    try:
        import_module("torch.export")
        return import_module("torch")
    except ImportError:
        raise UsageError("from_torch needs PyTorch, which is not installed") from None


def export(
    source: nn.Module | ExportedProgram, args: Sequence[object], kwargs: Mapping[str, object]
) -> Exported:
    """Export a module, or take an exported program; decompose it into ops that can be imported; mark its regions.

    Raises UsageError for arguments that do not fit, CompileError for what is not supported.
    """
    torch = torch_package()
    from meshweave.frontends.torch.decompositions.table import decompositions  # imports torch
    from meshweave.ir.bindings import torch_importer  # loads MLIR

    importer = torch_importer()
    if importer is None:
        raise CompileError("PyTorch programs need the torch-mlir package, which is not installed")
    program = source
    if not isinstance(source, torch.export.ExportedProgram):
        program = _exported(torch, source, tuple(args), dict(kwargs))
    _check(torch, program)
    inline_wrappers(program.graph_module, torch.ops.higher_order.hints_wrapper)
    table = decompositions(importer.decompositions())
    try:
        program = program.run_decompositions(table)
    except Exception as error:  # whatever torch raises: it is about the user's program
        raise CompileError(f"torch cannot decompose the program: {first_line(error)}") from None
    _check_signature(torch, program)
    problems: list[Problem] = []
    for graph in _graphs(program.graph_module):
        _set_places(graph)
        problems += _problems(torch, graph)
    problems += _inner_hints(program.graph_module)
    if problems:
        refused = refusal(problems)
        drawn = all(what.endswith(_DRAWS) for what, _ in problems)
        raise RandomNumbersError(refused.message, refused.location) if drawn else refused
    wrap_regions(program.graph_module, torch.ops.higher_order.hints_wrapper)
    return _described(torch, program)


def _exported(
    torch: ModuleType, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
) -> ExportedProgram:
    if not isinstance(module, torch.nn.Module):
        raise UsageError(
            f"from_torch: an nn.Module or an ExportedProgram is needed, got {type(module).__name__}"
        )
    try:
        inspect.signature(module.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(f"from_torch: {type(module).__name__}.forward: {error}") from None
    from meshweave.frontends.torch.losses import WithoutNumbers  # imports torch

    wrapper, program = torch.ops.higher_order.hints_wrapper, None
    for strict in (False, True):
        try:
            with torch.no_grad(), _annotations(), WithoutNumbers():
                program = torch.export.export(module, args, kwargs, strict=strict)
        except Exception as error:  # whatever torch raises: it is about the user's program
            raise CompileError(f"torch.export refuses the module: {first_line(error)}") from None
        # Only the strict mode makes arguments of what the body of a hints_wrapper captures.
        if not any(
            n.target is wrapper for g in _graphs(program.graph_module) for n in g.graph.nodes
        ):
            break
    return program


@contextmanager
def _annotations() -> Iterator[None]:
    """Keep annotations while torch traces, both of nested ones."""
    from torch.fx import traceback

    with traceback.preserve_node_meta():
        outer = traceback.current_meta.get("custom")
        traceback.current_meta["custom"] = Nested(outer or {})
        try:
            yield
        finally:
            traceback.current_meta.pop("custom", None)
            if outer is not None:
                traceback.current_meta["custom"] = outer


def _graphs(root: GraphModule) -> list[GraphModule]:
    """Return the GraphModules of a program, inner ones too."""
    torch = torch_package()
    return [m for m in root.modules() if isinstance(m, torch.fx.GraphModule)]


def _check(torch: ModuleType, program: ExportedProgram) -> None:
    """Refuse dropout in training mode, and flex_attention, while ops still have the names that the user knows."""
    aten = torch.ops.aten
    drops = {aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default}
    for graph in _graphs(program.graph_module):
        _set_places(graph)
        for node in graph.graph.nodes:
            if node.op != "call_function":
                continue
            # Torch cannot decompose it, and says so at length.
            if str(node.target) == "flex_attention":
                raise CompileError(
                    "not supported: flex_attention; scaled_dot_product_attention is", place_of(node)
                )
            training = node.target in drops and bool(node.args[2]) and node.args[1] > 0
            if node.target is aten.scaled_dot_product_attention.default:
                given = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
                training = bool(given)
            if training:
                raise RandomNumbersError(
                    "dropout in training mode: call module.eval() first", place_of(node)
                )


def _check_signature(torch: ModuleType, program: ExportedProgram) -> None:
    """Refuse programs that give anything but results and what their buffers and arguments become, and open shapes."""
    kinds = torch.export.graph_signature.OutputKind
    known = [kinds.USER_OUTPUT, kinds.BUFFER_MUTATION, kinds.USER_INPUT_MUTATION]
    known += [kinds.PARAMETER_MUTATION] if hasattr(kinds, "PARAMETER_MUTATION") else []
    for spec in program.graph_signature.output_specs:
        if spec.kind not in known:
            what = f"a {spec.kind.name.lower().replace('_', ' ')}"
            raise CompileError(f"not supported: the program gives {what}, {spec.arg.name}")
    for node in program.graph.nodes:
        value = node.meta.get("val")
        shape = value.shape if isinstance(value, torch.Tensor) else ()
        if node.op == "placeholder" and any(isinstance(size, torch.SymInt) for size in shape):
            raise CompileError(
                f"{node.name}: dynamic shapes are not supported: export with fixed sizes"
            )


def _problems(torch: ModuleType, graph: GraphModule) -> list[Problem]:
    """List random numbers, shapes that depend on data, and elements that no buffer here has."""
    names = (
        "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128 "
        "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"
    )
    known, found = {getattr(torch, name) for name in names.split()}, []
    for node in graph.graph.nodes:
        values = node.meta.get("val")
        name = node.target if node.op == "call_function" else node.name
        for value in values if isinstance(values, tuple | list) else (values,):
            if not isinstance(value, torch.Tensor):
                continue
            if value.dtype not in known:
                found.append((f"{node.name} has elements of {value.dtype}", place_of(node)))
            if _is_open(torch, value) and not any(
                _is_open(torch, one.meta.get("val")) for one in node.all_input_nodes
            ):
                what = f"{name}: a shape that depends on data"
                instead = next((_INSTEAD[k] for k in _INSTEAD if f".{k}" in str(name)), None)
                found.append((f"{what}; {instead}" if instead else what, place_of(node)))
                break
        tags = getattr(node.target, "tags", ())
        if node.op == "call_function" and torch.Tag.nondeterministic_seeded in tags:
            found.append((f"{name}{_DRAWS}", place_of(node)))
    return found


_INSTEAD = {
    "nonzero": "torch.nonzero_static(x, size=n) has one that is stated",
    "masked_select": "torch.where(mask, x, 0) keeps all places",
    "index": "torch.where(mask, x, 0) keeps all places of x[mask]",
    "_unique": "torch.sort(x) has equal elements side by side",
    "unique": "torch.sort(x) has equal elements side by side",
}
"""What has a shape that is known, in the place of these ops of torch."""


def _is_open(torch: ModuleType, value: object) -> bool:
    """Tell whether a value is a tensor of a size, or a list of tensors one of which is, that is not known."""
    values = value if isinstance(value, tuple | list) else (value,)
    tensors = [one for one in values if isinstance(one, torch.Tensor)]
    return any(isinstance(size, torch.SymInt) for one in tensors for size in one.shape)


def _inner_hints(root: GraphModule) -> list[Problem]:
    """List hints in the bodies of torch.cond and loops, beyond those around the op itself."""
    found = []
    for graph in _graphs(root):
        for node in graph.graph.nodes:
            around = len(chain_of(node))
            for body in (a for a in node.args if getattr(a, "op", "") == "get_attr"):
                inner = getattr(graph, body.target, None)
                nodes = getattr(getattr(inner, "graph", None), "nodes", ())
                deeper = [n for n in nodes if len(chain_of(n)) > around]
                found += [(f"hints inside {node.target}", place_of(n)) for n in deeper[:1]]
    return found


def _set_places(graph: GraphModule) -> None:
    """Give each node its place in the user's source: the innermost line that is not torch's own."""
    home = os.path.dirname(str(torch_package().__file__))
    for node in graph.graph.nodes:
        trace = node.meta.get("stack_trace") or ""
        frames = re.findall(r'File "([^"]+)", line ([0-9]+)', trace)
        own = [f for f in frames if not f[0].startswith((home, "<"))] or frames
        if own:
            file, line = own[-1]
            node.meta["meshweave_place"] = f"{file}:{line}"
            node.meta["stack_trace"] = f'File "{file}", line {line}, in forward'


def _described(torch: ModuleType, program: ExportedProgram) -> Exported:
    """Collect names, values and structure of a program's arguments and results."""
    kinds, signature = torch.export.graph_signature.InputKind, program.graph_signature
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    names: list[str] = []
    bound: dict[str, Tensor] = {}
    inputs: list[int | None] = []
    fixed: dict[int, tuple[str, object]] = {}
    places: dict[tuple[bool, str], int] = {}
    states = {spec.target for spec in signature.input_specs if spec.kind != kinds.USER_INPUT}
    taken = states | {spec.arg.name for spec in signature.input_specs}
    for spec in signature.input_specs:
        node = nodes[spec.arg.name]
        is_input = spec.kind == kinds.USER_INPUT
        if not isinstance(node.meta.get("val"), torch.Tensor):
            if node.users:
                raise CompileError(f"{spec.arg.name} is no tensor: only tensors go into programs")
            program.graph.erase_node(node)
            if is_input:
                fixed[len(inputs)] = spec.arg.name, getattr(spec.arg, "value", None)
            inputs.append(None)
            continue
        own = spec.arg.name if is_input else spec.target
        name = unused_name(own, taken) if is_input and own in states else own
        if is_input:
            inputs.append(len(names))
        else:
            held = program.state_dict.get(name)
            bound[name] = program.constants[name] if held is None else held
        places[is_input, own] = len(names)
        names.append(name)
    outputs: list[OutputLeaf] = []
    count, written = 0, dict[int, int]()
    given = torch.export.graph_signature.OutputKind
    for spec in signature.output_specs:
        if spec.kind != given.USER_OUTPUT:
            written[count] = places[spec.kind == given.USER_INPUT_MUTATION, spec.target]
            count += 1
            continue
        constant = not isinstance(spec.arg, torch.export.graph_signature.TensorArgument)
        value = getattr(spec.arg, "value", None)
        outputs.append(OutputLeaf(None, value) if constant else OutputLeaf(count, None))
        count += not constant
    output = next(n for n in program.graph.nodes if n.op == "output")
    output.args = (tuple(n for n in output.args[0] if isinstance(n, torch.fx.Node)),)
    if not output.args[0]:
        raise CompileError("the program returns no tensor")
    program.graph_module.recompile()
    spec = program.call_spec
    return Exported(
        *(program.graph_module, names, bound, inputs, outputs, spec.in_spec, spec.out_spec),
        *(written, fixed),
    )


def unused_name(name: str, taken: Collection[str]) -> str:
    """Return a name that nothing has yet."""
    return name if name not in taken else unused_name(f"{name}_", taken)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that says something, shortened."""
    text = next((line.strip() for line in str(error).split("\n") if line.strip()), "")
    text = text or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
