"""Return from a captured graph what eager PyTorch returns: views of arguments, and results that share memory.

A program's results are memory of its own. The graph says which of its outputs lie in the memory of an argument: these
are not computed, but made of the argument of each call by the ops of the graph. Where several outputs lie in the memory
of one tensor inside, that tensor is the program's result, and they are views of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from meshweave.errors import CompileError
from meshweave.frontends.torch.export import torch_package
from meshweave.frontends.torch.layouts import is_dtensor

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    import torch
    from torch import Tensor
    from torch.fx import GraphModule, Node


@dataclass(frozen=True)
class View:
    """Describe a view: its shape and strides, and how many elements behind the first of its base it begins."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def of(self, base: Tensor) -> Tensor:
        """Return the view of a tensor."""
        alike = base if self.dtype == base.dtype else base.view(self.dtype)
        return alike.as_strided(self.shape, self.strides, base.storage_offset() + self.offset)


class OutputSource(NamedTuple):
    """Say what an output is: made of the arguments, a constant, an argument, a result, or a view of one of these."""

    make: Callable[..., Any] | None = None
    argument: int | None = None
    result: int | None = None
    view: View | None = None
    constant: object = None

    def value(self, arguments: Sequence[Any], results: Sequence[Tensor]) -> object:
        """Return the output of a call, after it has written what it writes."""
        if self.make is not None:
            return self.make(*arguments)
        if self.argument is not None:
            whole = arguments[self.argument]
        elif self.result is not None:
            whole = results[self.result]
        else:
            return self.constant
        return whole if self.view is None else self.view.of(whole)


class Result(NamedTuple):
    """Describe a result that the program computes: its node, and the strides that it needs for views, if any."""

    node: Node
    strides: tuple[int, ...] | None = None

    def laid_out(self, value: Tensor) -> Tensor:
        """Return a value of the program in memory of these strides."""
        return value if self.strides is None else with_strides(value, self.strides)


def with_strides(value: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Return a tensor in memory of these strides, which may let elements that are equal share a place."""
    if value.stride() == strides:
        return value
    torch = torch_package()
    laid: Tensor = torch.empty_strided(value.shape, strides, dtype=value.dtype)
    place = laid
    for dim, step in enumerate(strides):
        if step == 0 and value.shape[dim] > 1:  # torch copies to no place twice
            place, value = place.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    place.copy_(value)
    return laid


def overlaps(value: Tensor) -> bool:
    """Tell whether two elements may lie at one place, beside those that a stride of 0 repeats."""
    reach = 1
    for step, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size > 1 and 0 < step < reach:
            return True
        reach += (size - 1) * step
    return False


def outputs_of(captured: GraphModule) -> tuple[list[OutputSource], list[Result]]:
    """Return what each output of a graph is, and the results that a program has to compute for them."""
    nodes = list(captured.graph.nodes)
    first: dict[int, Node] = {}  # the first node in each memory
    for node in nodes:
        if (memory := _memory(node)) is not None:
            first.setdefault(memory, node)
    returned = nodes[-1].args[0]
    shared = [_memory(node) for node in returned]
    given = [node for node in nodes if node.op == "placeholder"]
    writes, numbers = any(map(_writes, nodes)), _numbers(captured)
    outputs: list[OutputSource] = []
    results: list[Result] = []
    for node, memory in zip(returned, shared, strict=True):
        base = node if memory is None else first[memory]
        if not hasattr(node, "op"):
            outputs.append(OutputSource(constant=node))
        elif base.op == "placeholder" and writes:
            outputs.append(_of_argument(given.index(base), base, node))
        elif base.op == "placeholder" or node in numbers:
            outputs.append(OutputSource(make=_making(captured, node)))
        elif (
            memory is not None
            and shared.count(memory) > 1
            and _known(base)
            and (base is node or _view(base, node))
        ):
            strides = base.meta["example_value"].stride()
            view = None if base is node else _view(base, node)
            outputs.append(OutputSource(result=_number(results, Result(base, strides)), view=view))
        else:
            outputs.append(OutputSource(result=_number(results, Result(node))))
    if not results:  # compiled all the same, for what it writes
        results += [Result(first[m]) for m in shared if m is not None][:1]
    return outputs, results


def _numbers(captured: GraphModule) -> set[Node]:
    """Return the nodes that are whole numbers, made of arguments that are, and of nothing else."""
    found: set[Node] = set()
    for node in captured.graph.nodes:
        inputs = node.all_input_nodes
        computed = node.op == "call_function" and inputs and all(one in found for one in inputs)
        whole = isinstance(node.meta.get("example_value"), int | torch_package().SymInt)
        if whole and (node.op == "placeholder" or computed):
            found.add(node)
    return found


def returned_numbers(captured: GraphModule) -> set[Node]:
    """Return those of the whole numbers that are only made to be returned: no program computes them, or takes them."""
    numbers = _numbers(captured)
    found: set[Node] = set()
    for node in reversed(captured.graph.nodes):
        if node in numbers and all(one.op == "output" or one in found for one in node.users):
            found.add(node)
    return found


def _writes(node: Node) -> bool:
    """Tell whether a node writes one of its arguments: its name ends in "_", or it is `x[i] = v` or one of its kin."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = node.op in ("call_method", "call_function") and name.endswith("_")
    return (in_place and not name.endswith("__")) or name in _WRITING


def written_arguments(captured: GraphModule) -> set[Node]:
    """Return the arguments of a graph whose memory its nodes write."""
    nodes = list(captured.graph.nodes)
    given = {_memory(node): node for node in nodes if node.op == "placeholder"}
    found = {_memory(target) for node in nodes if _writes(node) for target in _targets(node)}
    return {given[memory] for memory in found if memory is not None and memory in given}


def _targets(node: Node) -> Sequence[object]:
    """Return what a node that writes may write: its first argument, and the statistics of a normalization."""
    name = getattr(node.target, "__name__", "")
    named = [node.kwargs.get(key) for key in ("running_mean", "running_var", "input")]
    return [*node.args[: 3 if name in ("batch_norm", "instance_norm") else 1], *named]


_WRITING = {
    "setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor",
    "batch_norm", "instance_norm", "copy_",
}  # fmt: skip


def _of_argument(number: int, base: Node, node: Node) -> OutputSource:
    """Return an output that lies in an argument, which the graph may write: it cannot be made a second time."""
    whole, part = base.meta["example_value"], node.meta["example_value"]
    if base is node:  # a tensor, or a size that a call chooses
        return OutputSource(argument=number)
    ends = [(v.dtype, v.shape, v.stride(), v.storage_offset()) for v in (whole, part)]
    view = None if ends[0] == ends[1] else _view(base, node)
    if ends[0] != ends[1] and view is None:
        raise CompileError(
            f"not supported: {node.name} shares the memory of {base.name}, which is written, in another form"
        )
    return OutputSource(argument=number, view=view)


def _number(results: list[Result], one: Result) -> int:
    if one not in results:
        results.append(one)
    return results.index(one)


def _memory(node: object) -> int | None:
    """Return what tells the memory of a node's value apart, None for what is no plain tensor."""
    value, torch = getattr(node, "meta", {}).get("example_value"), torch_package()
    if not isinstance(value, torch.Tensor) or is_dtensor(value):
        return None
    if torch._C._functorch.is_functorch_wrapped_tensor(value):  # inside a torch.vmap
        return None
    memory: int = value.untyped_storage()._cdata
    return memory


def _making(captured: GraphModule, node: Node) -> Callable[..., Any]:
    """Return the part of a graph that makes one node, as a function of all its arguments."""
    fx = torch_package().fx
    needed, open_ = set(), [node]
    while open_:
        one = open_.pop()
        if one not in needed:
            needed.add(one)
            open_ += one.all_input_nodes
    graph = fx.Graph()
    values: dict[Node, Node] = {}
    for one in captured.graph.nodes:
        if one.op == "placeholder" or one in needed:
            values[one] = graph.node_copy(one, lambda old: values[old])
    graph.output(values[node])
    made: Callable[..., Any] = fx.GraphModule(captured, graph)
    return made


def _view(base: Node, node: Node) -> View | None:
    """Return how the value of a node views that of a base in the same memory; None where that cannot be said.

    That is where it reaches beyond the base, has elements of another size, or a size is not known yet.
    """
    whole, part = base.meta["example_value"], node.meta["example_value"]
    sizes = (*whole.shape, *part.shape, *part.stride())
    if whole.element_size() != part.element_size() or not all(type(n) is int for n in sizes):
        return None
    offset = part.storage_offset() - whole.storage_offset()
    if offset < 0 or offset + _span(part) > _span(whole) or _span(whole) != whole.numel():
        return None
    return View(part.dtype, tuple(part.shape), tuple(part.stride()), offset)


def _known(node: Node) -> bool:
    """Tell whether the strides of a node's value are numbers, not sizes of a call."""
    return all(type(n) is int for n in node.meta["example_value"].stride())


def _span(value: Tensor) -> int:
    """Return how many elements lie between a tensor's first and its last, both counted."""
    if not value.numel():
        return 0
    last: int = sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    return 1 + last
