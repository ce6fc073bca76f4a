"""From a graph of PyTorch to linalg in the global view: torch-mlir's importer and its pipelines, and what they leave.

    GraphModule (regions as hints_wrapper) -> torch dialect, a function for each region
         -> torch-mlir's pipelines -> linalg on tensors -> regions in place of the calls -> dist attributes

What torch-mlir cannot lower is refused in one error that names the op and its place in the user's source.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshweave.bindings import PassManager, context, ir, torch_importer
from meshweave.dialects.dist import LayoutAttr
from meshweave.dialects.hint import hints_in
from meshweave.errors import CompileError
from meshweave.frontends.inline import inline_calls
from meshweave.frontends.refusals import refuse_leftovers
from meshweave.frontends.sdy_import import add_mesh
from meshweave.frontends.torch_control import ask_first, import_cond, import_while
from meshweave.frontends.torch_leftovers import simplify
from meshweave.frontends.torch_loops import lower_tm_tensor
from meshweave.frontends.torch_probe import failing_ops, refusal
from meshweave.frontends.torch_products import unfold_products
from meshweave.layout import Layout, Mesh
from meshweave.locations import compile_error, location_text

_TO_TORCH = (
    "builtin.module(func.func(torch-match-quantized-custom-ops),"
    "torchdynamo-export-to-torch-backend-pipeline{extra-library=})"
)
_TO_LINALG = (
    "builtin.module(torch-backend-to-linalg-on-tensors-backend-pipeline{allow-non-finites=true})"
)
_CONTRACT = "torch-verify-linalg-on-tensors-backend-contract"  # allows no calls; we look ourselves
_CLEAN_UP = "builtin.module(canonicalize,cse)"
_OURS = ("builtin", "func", "linalg", "tensor", "arith", "math", "scf", "dist", "hint")
_ILLEGAL = re.compile(r"failed to legalize operation '(torch\.[\w.]+)'")
_OPERATOR = re.compile(r'torch\.operator"? ?\(?"torch\.([\w.]+)"|name = "torch\.([\w.]+)"')


@dataclass(frozen=True)
class Region:
    """What the function of a region is about: its hints and its place."""

    hints: Mapping[str, Any]
    location: Any


def linalg_text(
    graph: Any, arguments: Sequence[Layout | None], results: Sequence[Layout | None], mesh: Mesh
) -> str:
    """The program of a GraphModule as text: `@main` with a `dist.layout` on each argument and result that has one.

    Raises CompileError for what is wrong or not supported in it, all of it in one.
    """
    try:
        return _text(graph, arguments, results, mesh)
    except CompileError as error:
        if not error.message.startswith("not supported: "):
            raise
        problems = failing_ops(graph, lambda one: _text(one, (), (), Mesh()))
        raise (refusal(problems) if problems else error) from None


def _text(
    graph: Any, arguments: Sequence[Layout | None], results: Sequence[Layout | None], mesh: Mesh
) -> str:
    bindings = torch_importer()
    if bindings is None:
        raise CompileError("PyTorch programs need the torch-mlir package, which is not installed")
    ctx = context(unregistered=True)
    bindings.register(ctx)
    with ctx, ir.Location.unknown(ctx):
        module, regions = _imported(bindings.importer, graph, ctx)
        _run(module, _TO_TORCH)
        _run(module, _without(_TO_LINALG, _CONTRACT))
        ask_first(module)
        _run(module, _CLEAN_UP)
        lower_tm_tensor(module)
        simplify(module)
        unfold_products(module)
        _place_regions(module, regions)
        _run(module, _CLEAN_UP)
        refuse_leftovers(module, _OURS)
        add_mesh(module, mesh)
        _set_layouts(module, arguments, results)
        _clean(module)
        module.operation.verify()
        return str(module.operation.get_asm(enable_debug_info=True))


def _imported(importer: Any, graph: Any, ctx: Any) -> tuple[Any, dict[str, Region]]:
    """The module in torch's dialect, and the regions by the names of their functions."""
    regions: dict[str, Region] = {}
    kind = _node_importer(importer, regions)
    fx = importer.FxImporter(context=ctx, graph_node_importer_cls=kind)
    try:
        fx.import_stateless_graph(graph.graph, func_name="main")
    except NotImplementedError as error:
        raise CompileError(f"not supported: {_first_line(error)}") from None
    except ir.MLIRError as error:
        raise compile_error(error) from None
    return fx.module, regions


def _node_importer(importer: Any, regions: dict[str, Region]) -> Any:
    """The class that imports nodes, and puts the regions that it meets into `regions`."""

    class NodeImporter(importer.GraphNodeImporter):  # type: ignore[misc]
        """Imports regions under hints as calls of functions."""

        def _import_hop_hints_wrapper(self, loc: Any, node: Any, hop: Any) -> None:
            body_node, operands, *_ = node.args
            body = getattr(node.graph.owning_module, body_node.target)
            name = f"meshweave_region_{len(regions)}"
            regions[name] = Region(node.kwargs["hints"], loc)
            function = self.fx_importer.import_stateless_graph(body.graph, func_name=name)
            function.operation.attributes["no_inline"] = ir.UnitAttr.get()
            values = [self._import_argument(loc, operand) for operand in operands]
            kind = function.operation.attributes["function_type"].value
            call = ir.Operation.create(
                "func.call",
                results=list(kind.results),
                operands=values,
                attributes={"callee": ir.FlatSymbolRefAttr.get(name)},
                loc=loc,
            )
            self._bind(node, call.results)

        def _import_hop_cond(self, loc: Any, node: Any, hop: Any) -> None:
            self._bind(node, import_cond(self, loc, node))

        def _import_hop_while_loop(self, loc: Any, node: Any, hop: Any) -> None:
            self._bind(node, import_while(self, loc, node))

        def _bind(self, node: Any, values: Any) -> None:
            self._multi_result_nodes.add(node)
            for index, value in enumerate(values):
                self.bind_node_value(node, value, index)

        def _import_literal(self, py_value: Any, info: Any = None) -> Any:
            """Constants of several elements as text; upstream's resources are bytes beside the program."""
            if getattr(py_value, "ndim", 0) == 0 or py_value.numel() < 2:
                return super()._import_literal(py_value, info)
            kind, plain = py_value.dtype, _literal_dtype(py_value)
            value = ir.DenseElementsAttr.get(
                np.array(py_value.tolist(), dtype=str(plain).removeprefix("torch.")),
                type=importer.TORCH_DTYPE_TO_MLIR_TYPE[plain](),
                shape=list(py_value.shape),
            )
            made = ir.Operation.create(
                "torch.vtensor.literal",
                results=[self._cc.create_vtensor_type(plain, py_value.size())],
                attributes={"value": value},
            ).result
            if plain is kind:
                return made
            return self._convert_type(made, type(py_value), kind, py_value.size())

    return NodeImporter


def _literal_dtype(value: Any) -> Any:
    """Elements that NumPy has, from which the others follow."""
    import torch

    others = {torch.bfloat16: torch.float32, torch.bool: torch.int32}
    return others.get(value.dtype, value.dtype)


def _run(module: Any, pipeline: str) -> None:
    try:
        PassManager.parse(pipeline).run(module.operation)
    except ir.MLIRError as error:
        raise _unsupported(error) from None


def _without(pipeline: str, unwanted: str) -> str:
    """A pipeline with all its passes named, but for one."""
    whole = str(PassManager.parse(pipeline)).strip()
    whole = whole[len("PassManager:") :].strip() if whole.startswith("PassManager:") else whole
    return re.sub(rf",?\b{unwanted}\b(\{{[^}}]*\}})?", "", whole)


def _unsupported(error: Any) -> CompileError:
    """Which op torch-mlir could not lower, where."""
    diagnostics = list(error.error_diagnostics)
    for diagnostic in diagnostics:
        found = _ILLEGAL.search(diagnostic.message)
        if found is not None:
            name = found[1]
            said = [diagnostic.message, *(note.message for note in diagnostic.notes)]
            if name == "torch.operator":
                custom = _OPERATOR.search("\n".join(said))
                name = f"torch.{custom[1] or custom[2]}" if custom else name
            where = location_text(diagnostic.location)
            return CompileError(f"not supported: {name}", None if where == "<unknown>" else where)
    return compile_error(error)


def _first_line(error: Exception) -> str:
    text = str(error).strip().split("\n", 1)[0]
    return text if len(text) <= 200 else text[:197] + "..."


# Regions


def _place_regions(module: Any, regions: Mapping[str, Region]) -> None:
    """Put a region under hints in place of each call of a region's function, the function's body in it."""
    calls: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name == "func.call" and _callee(op) in regions:
            calls.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for call in calls:
        _place(call, regions[_callee(call)])
    main = next(
        f for f in module.body.operations if f.operation.attributes["sym_name"].value == "main"
    )
    inline_calls(module, main.operation)


def _callee(call: Any) -> str:
    return str(ir.FlatSymbolRefAttr(call.attributes["callee"]).value)


def _place(call: Any, region: Region) -> None:
    made = ir.Operation.create(
        "hint.region",
        results=[result.type for result in call.results],
        attributes={"hints": _hints_attr(region.hints, region.location)},
        regions=1,
        loc=region.location,
        ip=ir.InsertionPoint(call),
    )
    block = ir.Block.create_at_start(made.regions[0], [])
    for result, new in zip(call.results, made.results, strict=True):
        result.replace_all_uses_with(new)
    inner = call.clone(ip=ir.InsertionPoint(block))
    call.erase()
    ir.Operation.create(
        "hint.yield",
        operands=list(inner.results),
        loc=region.location,
        ip=ir.InsertionPoint(block),
    )


def _hints_attr(hints: Mapping[str, Any], location: Any) -> Any:
    """The dictionary of hints as an attribute. HintError for one that cannot be read."""
    where = location_text(location)
    attr = ir.DictAttr.get({key: _hint_attr(key, v, where) for key, v in hints.items()})
    try:
        hints_in(attr, where)
    except CompileError as error:
        raise type(error)(error.message, where) from None
    return attr


def _hint_attr(key: str, value: Any, where: str) -> Any:
    if isinstance(value, Mapping):
        return ir.DictAttr.get({k: _hint_attr(key, v, where) for k, v in value.items()})
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    raise CompileError(f"hint {key}: its value is a text or a number, not {value!r:.60}", where)


# The signature


def _set_layouts(
    module: Any, arguments: Sequence[Layout | None], results: Sequence[Layout | None]
) -> None:
    main = next(op.operation for op in module.body.operations if op.operation.name == "func.func")
    main.attributes["sym_visibility"] = ir.StringAttr.get("public")
    for key, layouts in (("arg_attrs", arguments), ("res_attrs", results)):
        if any(layout is not None for layout in layouts):
            main.attributes[key] = ir.ArrayAttr.get([_layout_attr(one) for one in layouts])


def _layout_attr(layout: Layout | None) -> Any:
    return ir.DictAttr.get({} if layout is None else {"dist.layout": LayoutAttr.make(layout)})


def _clean(module: Any) -> None:
    """Take off what torch-mlir left on the module and the function."""
    for op in (module.operation, *(o.operation for o in module.body.operations)):
        for name in list(op.attributes):
            if name.startswith("torch."):
                del op.attributes[name]
