"""Out of PyTorch: a module or an exported program as one graph of plain ops, with what it holds and what it takes.

nn.Module -> torch.export (annotations kept) -> decompositions -> hints as regions -> Exported
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from meshweave.errors import CompileError, UsageError
from meshweave.frontends.torch_decompose import decompositions
from meshweave.frontends.torch_probe import Problem, refusal
from meshweave.frontends.torch_regions import (
    Nested,
    chain_of,
    inline_wrappers,
    place_of,
    wrap_regions,
)


@dataclass
class Exported:
    """A program of PyTorch, ready to be imported.

    graph:   a GraphModule whose placeholders are `names`, in order, each a tensor.
    names:   of parameters, buffers and constants as in the state_dict, and of inputs as in `forward`.
    bound:   the values of those that the program holds, by name; the others are inputs.
    inputs:  for each leaf of the arguments the index of its placeholder, None where it is a constant of the program.
    outputs: for each leaf of what it returns the index of its result, or the constant that stands there.
    """

    graph: Any
    names: list[str]
    bound: dict[str, Any]
    inputs: list[int | None]
    outputs: list[tuple[int | None, Any]]
    in_spec: Any
    out_spec: Any


def torch_package() -> Any:
    """The package torch. UsageError where it is not installed."""
    try:
        import torch
        import torch.export
    except ImportError:
        raise UsageError("from_torch needs PyTorch, which is not installed") from None
    return torch


def export(source: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exported:
    """Export a module (or take an exported program), take it apart into ops that can be imported, mark its regions.

    Raises UsageError for arguments that do not fit, CompileError for what is not supported.
    """
    torch = torch_package()
    from meshweave.bindings import torch_importer

    importer = torch_importer()
    if importer is None:
        raise CompileError("PyTorch programs need the torch-mlir package, which is not installed")
    program = source
    if not isinstance(source, torch.export.ExportedProgram):
        program = _exported(torch, source, tuple(args), dict(kwargs))
    _check(torch, program)
    inline_wrappers(program.graph_module, torch.ops.higher_order.hints_wrapper)
    table = decompositions(torch, importer.decompositions())
    try:
        program = program.run_decompositions(table)
    except Exception as error:  # whatever torch raises: it is about the user's program
        raise CompileError(f"torch cannot decompose the program: {_line(error)}") from None
    _check_signature(torch, program)
    problems: list[Problem] = []
    for graph in _graphs(program.graph_module):
        _set_places(graph)
        problems += _problems(torch, graph)
    problems += _inner_hints(program.graph_module)
    if problems:
        raise refusal(problems)
    wrap_regions(program.graph_module, torch.ops.higher_order.hints_wrapper)
    return _described(torch, program)


def _exported(torch: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not isinstance(module, torch.nn.Module):
        raise UsageError(
            f"from_torch: an nn.Module or an ExportedProgram is needed, got {type(module).__name__}"
        )
    _check_arguments(module, args, kwargs)
    with torch.no_grad():
        program = _traced(torch, module, args, kwargs, strict=False)
        if any(_wrappers(torch, graph) for graph in _graphs(program.graph_module)):
            # What the body of a hints_wrapper captures becomes an argument of it in the strict mode alone.
            program = _traced(torch, module, args, kwargs, strict=True)
    return program


def _traced(torch: Any, module: Any, args: Any, kwargs: Any, strict: bool) -> Any:
    try:
        with _annotations():
            return torch.export.export(module, args, kwargs, strict=strict)
    except Exception as error:  # whatever torch raises: it is about the user's program
        raise CompileError(f"torch.export refuses the module: {_line(error)}") from None


@contextmanager
def _annotations() -> Iterator[None]:
    """Keep annotations while torch traces, nested ones both."""
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


def _check_arguments(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """UsageError unless `forward` can be called so."""
    import inspect

    try:
        inspect.signature(module.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(f"from_torch: {type(module).__name__}.forward: {error}") from None


def _graphs(root: Any) -> list[Any]:
    """The GraphModules of a program, inner ones too."""
    torch = torch_package()
    return [m for m in root.modules() if isinstance(m, torch.fx.GraphModule)]


def _wrappers(torch: Any, graph: Any) -> bool:
    wrapper = torch.ops.higher_order.hints_wrapper
    return any(n.op == "call_function" and n.target is wrapper for n in graph.graph.nodes)


def _check(torch: Any, program: Any) -> None:
    """Refuse what computes otherwise in training, while the ops still have the names that the user knows."""
    aten = torch.ops.aten
    drops = {aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default}
    for graph in _graphs(program.graph_module):
        _set_places(graph)
        for node in graph.graph.nodes:
            if node.op != "call_function":
                continue
            training = node.target in drops and bool(node.args[2]) and node.args[1] > 0
            attention = node.target is aten.scaled_dot_product_attention.default
            dropout = _argument(node, 4, "dropout_p", 0.0) if attention else 0.0
            if training or dropout:
                raise CompileError(
                    "dropout in training mode: call module.eval() first", place_of(node)
                )


def _argument(node: Any, index: int, name: str, default: Any) -> Any:
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def _check_signature(torch: Any, program: Any) -> None:
    """Refuse programs that write what they hold or are given, and shapes that are not fixed."""
    kinds = torch.export.graph_signature.OutputKind
    for spec in program.graph_signature.output_specs:
        if spec.kind != kinds.USER_OUTPUT:
            raise CompileError(
                f"the program writes {spec.target}: only programs without state are supported"
                " (a batch norm in training mode writes its buffers: call module.eval() first)"
            )
    for node in program.graph.nodes:
        value = node.meta.get("val")
        shape = value.shape if isinstance(value, torch.Tensor) else ()
        if node.op == "placeholder" and any(isinstance(size, torch.SymInt) for size in shape):
            raise CompileError(
                f"{node.name}: dynamic shapes are not supported: export with fixed sizes"
            )


def _problems(torch: Any, graph: Any) -> list[Problem]:
    """Random numbers, shapes that depend on data, and elements that no buffer here has."""
    known, found = _dtypes(torch), []
    for node in graph.graph.nodes:
        values = node.meta.get("val")
        tensors = values if isinstance(values, tuple | list) else (values,)
        for value in tensors:
            if not isinstance(value, torch.Tensor):
                continue
            if value.dtype not in known:
                found.append((f"{node.name} has elements of {value.dtype}", place_of(node)))
            if any(isinstance(size, torch.SymInt) for size in value.shape):
                found.append((f"{_name(node)}: a shape that depends on data", place_of(node)))
        tags = getattr(node.target, "tags", ())
        if node.op == "call_function" and torch.Tag.nondeterministic_seeded in tags:
            found.append((f"{_name(node)}: random numbers", place_of(node)))
    return found


def _inner_hints(root: Any) -> list[Problem]:
    """Hints in the bodies of torch.cond and loops, beyond those around the op itself."""
    found = []
    for graph in _graphs(root):
        for node in graph.graph.nodes:
            bodies = [a for a in node.args if getattr(a, "op", "") == "get_attr"]
            inner = [getattr(graph, a.target, None) for a in bodies]
            around = len(chain_of(node))
            for body in inner:
                nodes = getattr(getattr(body, "graph", None), "nodes", ())
                deeper = [n for n in nodes if len(chain_of(n)) > around]
                found += [(f"hints inside {node.target}", place_of(n)) for n in deeper[:1]]
    return found


def _name(node: Any) -> str:
    return str(node.target) if node.op == "call_function" else str(node.name)


def _dtypes(torch: Any) -> set[Any]:
    names = "float64 float32 float16 bfloat16 int64 int32 int16 int8 bool"
    return {getattr(torch, name) for name in names.split()}


def _set_places(graph: Any) -> None:
    """Give each node its place in the user's source: the innermost line that is not torch's own."""
    import os
    import re

    home = os.path.dirname(torch_package().__file__)
    for node in graph.graph.nodes:
        trace = node.meta.get("stack_trace") or ""
        frames = re.findall(r'File "([^"]+)", line ([0-9]+)', trace)
        own = [f for f in frames if not f[0].startswith(home)] or frames
        if own:
            file, line = own[-1]
            node.meta["meshweave_place"] = f"{file}:{line}"
            node.meta["stack_trace"] = f'File "{file}", line {line}, in forward'


def _described(torch: Any, program: Any) -> Exported:
    """Names, values and structure of a program's arguments and results."""
    kinds, signature = torch.export.graph_signature.InputKind, program.graph_signature
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    names: list[str] = []
    bound: dict[str, Any] = {}
    inputs: list[int | None] = []
    for spec in signature.input_specs:
        node = nodes[spec.arg.name]
        is_input = spec.kind == kinds.USER_INPUT
        if not isinstance(node.meta.get("val"), torch.Tensor):
            if node.users:
                raise CompileError(f"{spec.arg.name} is no tensor: only tensors go into programs")
            program.graph.erase_node(node)
            inputs.append(None)
            continue
        name = spec.arg.name if is_input else spec.target
        if is_input:
            inputs.append(len(names))
        else:
            bound[name] = _value(program, spec.target)
        names.append(name)
    outputs: list[tuple[int | None, Any]] = []
    count = 0
    for spec in signature.output_specs:
        constant = not isinstance(spec.arg, torch.export.graph_signature.TensorArgument)
        outputs.append((None, getattr(spec.arg, "value", None)) if constant else (count, None))
        count += not constant
    _drop_constants(program, torch)
    spec = program.call_spec
    return Exported(
        program.graph_module, names, bound, inputs, outputs, spec.in_spec, spec.out_spec
    )


def _drop_constants(program: Any, torch: Any) -> None:
    """Leave tensors alone among what the graph returns."""
    output = next(n for n in program.graph.nodes if n.op == "output")
    output.args = (tuple(n for n in output.args[0] if isinstance(n, torch.fx.Node)),)
    if not output.args[0]:
        raise CompileError("the program returns no tensor")
    program.graph_module.recompile()


def _value(program: Any, target: str) -> Any:
    held = program.state_dict.get(target)
    return program.constants[target] if held is None else held


def _line(error: BaseException) -> str:
    text = next((line for line in str(error).strip().split("\n") if line.strip()), "")
    text = text.strip() or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
