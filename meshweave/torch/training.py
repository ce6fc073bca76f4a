"""Run a captured graph with gradients: torch cuts it into a forward and a backward graph, each becomes a program.

torch's autograd calls them. What the forward program saves for the backward one stays on its ranks, in the layout that
it has there: autograd is handed tensors without elements in its place. A graph that draws random numbers, or maps over
a dim with `torch.vmap`, takes this way without gradients too, as one program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from meshweave.errors import UsageError
from meshweave.frontends.python.builder import STATE
from meshweave.frontends.python.place import chosen_kernels
from meshweave.frontends.torch.export import torch_package
from meshweave.frontends.torch.layouts import Placement, is_dtensor
from meshweave.hints.fast_paths import Choice
from meshweave.runtime.arrays.array import Array
from meshweave.runtime.forks import new_lock
from meshweave.torch.aliases import overlaps, with_strides
from meshweave.torch.draws import lifted
from meshweave.torch.ports import to_torch
from meshweave.torch.program import TorchProgram
from meshweave.torch.scores import remake_scores

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    from torch import Tensor
    from torch.fx import Graph, GraphModule, Node

Build = Callable[..., TorchProgram]


class TrainedGraph:
    """Run a graph whose call records gradients, on tensors like those that it was made for.

    placements: of its arguments, by number. forward, backward: the programs, None until the first call of each.
    """

    def __init__(
        self,
        graph: GraphModule,
        args: Sequence[Any],
        placements: Mapping[int, Placement],
        build: Build,
    ) -> None:
        if sharded := next((a for a in args if is_dtensor(a)), None):
            what = f"not a DTensor of {tuple(sharded.shape)}"
            raise UsageError(
                f"torch.compile: a call that records gradients takes whole tensors, {what}"
            )
        package = torch_package()
        from torch._functorch import config
        from torch._functorch.aot_autograd import aot_module_simplified
        from torch._functorch.partitioners import min_cut_rematerialization_partition
        from torch.nn.attention import SDPBackend, sdpa_kernel

        from meshweave.frontends.torch.decompositions.gradients import decompositions

        self.halves: list[_Half] = []
        own: dict[str, Placement] = {}
        kernels = chosen_kernels()
        given, results = [k for k, a in enumerate(args) if isinstance(a, package.Tensor)], 0
        sizes = {k: a for k, a in enumerate(args) if k not in given}

        def parted(joint: GraphModule, inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
            nonlocal results
            results = num_fwd_outputs
            names = [n.name for n in joint.graph.nodes if n.name.startswith("primals_")]
            ours = names[len(names) - len(given) :]  # behind what orders the ops that may fail
            own.update((ours[given.index(k)], layout) for k, layout in placements.items())
            remake_scores(joint.graph, kernels)
            return min_cut_rematerialization_partition(
                joint, inputs, num_fwd_outputs=num_fwd_outputs, **options
            )

        def half(piece: GraphModule, _: Sequence[Any]) -> Callable[..., list[Any]]:
            names = [n.name for n in piece.graph.nodes if n.op == "placeholder"]
            goes_back = any(name.startswith("tangents_") for name in names)
            made = _Half(piece, own, build, None if goes_back else results, kernels)
            self.halves.append(made)
            return made

        class Fixed(package.nn.Module):  # type: ignore[misc, name-defined]
            """Fill in the sizes among the arguments, which are numbers now."""

            def forward(self, *tensors: Tensor) -> Any:
                whole = {**sizes, **dict(zip(given, tensors, strict=True))}
                found = graph(*[whole[k] for k in range(len(whole))])
                return [_apart(value) for value in found]

        def alone(piece: GraphModule, _: Sequence[Any]) -> Callable[..., list[Any]]:
            """Make the only half: no gradients are recorded."""
            names = [n.name for n in piece.graph.nodes if n.op == "placeholder"]
            ours = names[len(names) - len(given) :]
            placed = {ours[given.index(k)]: layout for k, layout in placements.items()}
            count = len(piece.graph.output_node().args[0])
            self.halves.append(_Half(piece, placed, build, count, kernels))
            return self.halves[-1]

        # Fused attention has no backward op that can be lowered, its parts have. A view that is saved is a copy.
        # `backward()` stands outside of autocast, as in eager PyTorch: what f32 was computed in goes back in f32.
        said = {"recompute_views": True, "backward_pass_autocast": "off"}
        known = {name: value for name, value in said.items() if hasattr(config, name)}
        with sdpa_kernel([SDPBackend.MATH]), config.patch(known):
            self._call = aot_module_simplified(
                *(Fixed(), [args[k] for k in given], half, half, parted),
                decompositions(),
                inference_compiler=alone,
            )
        self._given = given

    @property
    def forward(self) -> TorchProgram | None:
        """Return the program of the forward graph, once it has run."""
        return next((one.program for one in self.halves if one.is_forward), None)

    @property
    def backward(self) -> TorchProgram | None:
        """Return the program of the backward graph, once it has run."""
        return next((one.program for one in self.halves if not one.is_forward), None)

    def __call__(self, *args: Any) -> Sequence[Any]:
        """Return the results, which autograd can go back from."""
        found: Sequence[Any] = self._call(*[args[k] for k in self._given])
        return found


class _Half:
    """Run the forward or the backward graph. It is compiled by the first call.

    results: how many of the results autograd hands on, the others are saved; None for a backward graph.
    """

    _boxed_call = True  # torch hands over its list of arguments, to be emptied

    def __init__(
        self,
        graph: GraphModule,
        placements: Mapping[str, Placement],
        build: Build,
        results: int | None,
        kernels: Choice | None,
    ) -> None:
        fx = torch_package().fx
        whole = fx.Graph()
        values: dict[Node, Node] = {}
        for node in graph.graph.nodes:
            values[node] = whole.node_copy(node, lambda old: values[old])
        _without_checks(whole)
        self._draws = lifted(whole)
        given = [node for node in whole.nodes if node.op == "placeholder"]
        returned = whole.output_node().args[0]
        # An argument that is saved, or handed on, is that itself.
        self._same = {k: given.index(node) for k, node in enumerate(returned) if node in given}
        self._left = [
            k for k, one in enumerate(returned) if k not in self._same and one is not None
        ]
        self._like = {k: returned[k].meta["val"] for k in self._left}
        whole.output_node().args = (tuple(returned[k] for k in self._left),)
        self._read = [k for k, node in enumerate(given) if node.users]
        for node in given:
            if not node.users:
                whole.erase_node(node)
        for node in whole.nodes:
            node.meta = {k: v for k, v in node.meta.items() if k in _KEPT}
        self._module = fx.GraphModule(graph, whole)
        names = {given[k].name for k in self._read}
        self._placements = {name: one for name, one in placements.items() if name in names}
        self.is_forward = results is not None
        self._count, self._saved = len(returned), len(returned) if results is None else results
        self._build, self._kernels, self._lock = build, kernels, new_lock()
        self.program: TorchProgram | None = None

    def __call__(self, args: list[Any]) -> list[Any]:
        """Return the results on a list of arguments, which is emptied."""
        given = [_with_elements(value) for value in args]
        args.clear()
        for draw in self._draws:
            given.append(draw(given))
        found: list[Any] = [None] * self._count
        for k, number in self._same.items():
            value = given[number]
            found[k] = to_torch(value) if isinstance(value, Array) else value
        if self._left:
            read = [given[k] for k in self._read]
            kept = frozenset(n for n, k in enumerate(self._left) if k >= self._saved)
            made = self._compiled(read).results(read, kept)
            for k, value in zip(self._left, made, strict=True):
                found[k] = _as_torch(value, self._like[k])
        return found

    def _compiled(self, given: Sequence[Any]) -> TorchProgram:
        with self._lock:
            if self.program is None:
                # Not in this thread: autograd has switched off here what torch.export traces with.
                with ThreadPoolExecutor(1) as thread:
                    self.program = thread.submit(self._compile, given).result()
            return self.program

    def _compile(self, given: Sequence[Any]) -> TorchProgram:
        STATE.kernels = self._kernels
        whole = [value.detach() if hasattr(value, "detach") else value for value in given]
        return self._build(self._module, tuple(whole), self._placements)


_KEPT = ("custom", "stack_trace", "nn_module_stack")


def _apart(value: Any) -> Any:
    """Return a result with a place for each element: torch copies the slope of windows that overlap into their form.

    Then elements that share a place have one slope, where each had its own.
    """
    return value.contiguous() if hasattr(value, "stride") and overlaps(value) else value


def _without_checks(graph: Graph) -> None:
    """Take out what raises where LAPACK finds no answer: results are NaN there."""
    torch = torch_package()
    check, ordered = (
        torch.ops.aten._linalg_check_errors.default,
        torch.ops.higher_order.with_effects,
    )
    for node in list(graph.nodes):
        if node.target is ordered and node.args[1] is check:
            for user in list(node.users):  # what orders such ops, handed on
                user.replace_all_uses_with(node.args[0])
                graph.erase_node(user)
            graph.erase_node(node)


def _as_torch(value: Any, like: Tensor) -> Any:
    """Return a result as autograd takes it. like: its dtype, and the strides that it has in eager PyTorch.

    An Array becomes a tensor that stands for it: torch refuses to read that.
    """
    torch = torch_package()
    if isinstance(value, Array):
        made = torch.empty(value.shape, dtype=like.dtype, device="meta")
        made._meshweave_array = value
        return made
    return with_strides(value, like.stride()) if isinstance(value, torch.Tensor) else value


def _with_elements(value: Any) -> Any:
    """Return the Array that a tensor stands for, or the value itself."""
    array = getattr(value, "_meshweave_array", None)
    if array is None and getattr(value, "is_meta", False):
        raise UsageError(
            "backward: what a program saves stays on its ranks: saved_tensors_hooks that move or copy it"
            " are not supported"
        )
    return value if array is None else array
