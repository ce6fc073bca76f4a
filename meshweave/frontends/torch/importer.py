"""Lower a graph of PyTorch to linalg in the global view, by torch-mlir's importer and pipelines; lower what they leave.

    GraphModule (regions as hints_wrapper) -> torch dialect, a function for each region
         -> torch-mlir's pipelines -> linalg on tensors -> regions in place of the calls -> dist attributes

What torch-mlir cannot lower is refused in one error that names the op and its place in the user's source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from meshweave.dialects import context
from meshweave.dialects.dist import DONATE, TAKES, LayoutAttr
from meshweave.dialects.hint import hints_in
from meshweave.errors import CompileError
from meshweave.frontends.complex.ports import dict_of
from meshweave.frontends.shardy.importer import add_mesh
from meshweave.frontends.stablehlo.inline import callee_of, inline_calls
from meshweave.frontends.stablehlo.refusals import refuse_unknown
from meshweave.frontends.torch.complex import mark_complex, without_complex
from meshweave.frontends.torch.control import ControlFlow, ask_first, import_body
from meshweave.frontends.torch.export import first_line
from meshweave.frontends.torch.host import (
    call_python,
    host_call,
    is_called,
    operands_of,
    results_of,
)
from meshweave.frontends.torch.leftovers import simplify, unfold_products
from meshweave.frontends.torch.loops import lower_tm_tensor
from meshweave.frontends.torch.probe import failing_ops, refusal
from meshweave.frontends.torch.routines import (
    BITS_OP,
    CAST,
    CONSTRAIN_OP,
    DECLARE,
    EXTREME_OP,
    LOG_SUMS_OP,
    SUMMED_OP,
    call_routines,
    compute_elements,
    declare_constraint,
    declare_elementwise,
    declare_host,
    declare_log_sums,
    declare_sum,
    place_constraints,
    sum_products,
    transform,
)
from meshweave.frontends.torch.unsigned import compute_wide, mark_unsigned
from meshweave.ir.bindings import PassManager, ir, torch_importer
from meshweave.ir.build import OpBuilder, i64
from meshweave.ir.locations import compile_error, location_text
from meshweave.ir.ops import functions_of, ops_by_name, ops_named, replace_op
from meshweave.ir.pipeline_text import CLEAN_UP
from meshweave.layout import Layout, Mesh

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    import torch
    from torch.fx import GraphModule, Node

_TO_TORCH = (
    "builtin.module(func.func(torch-match-quantized-custom-ops),"
    "torchdynamo-export-to-torch-backend-pipeline{extra-library=})"
)
_TO_LINALG = (
    "builtin.module(torch-backend-to-linalg-on-tensors-backend-pipeline{allow-non-finites=true})"
)
_CONTRACT = "torch-verify-linalg-on-tensors-backend-contract"  # allows no calls; we look ourselves
_OURS = (
    *("builtin", "func", "linalg", "tensor", "arith", "math", "complex", "scf"),
    *("dist", "hint", "mw"),
)
_ILLEGAL = re.compile(r"failed to legalize operation '(torch\.[\w.]+)'")
_OPERATOR = re.compile(r'torch\.operator"? ?\(?"torch\.([\w.]+)"|name = "torch\.([\w.]+)"')


NOTHING_WRITTEN: Mapping[int, int] = MappingProxyType({})
NO_HINTS: Mapping[str, str] = MappingProxyType({})
FxImporter: TypeAlias = Any  # the module torch_mlir.extras.fx_importer, which has no types
HintValue: TypeAlias = str | int | Mapping[str, "HintValue"]


class OutlinedRegion(NamedTuple):
    """Describe a region that is imported as a function: its hints and its place."""

    hints: Mapping[str, HintValue]
    location: ir.Location


def linalg_text(
    graph: GraphModule,
    arguments: Sequence[Layout | None],
    results: Sequence[Layout | None],
    mesh: Mesh,
    written: Mapping[int, int] = NOTHING_WRITTEN,
    hints: Mapping[str, str] = NO_HINTS,
) -> str:
    """Return a GraphModule as MLIR text: `@main` with a `dist.layout` on each argument and result that has one.

    written: the results that are what an argument is afterwards, each with the argument, which is donated.
    hints:   what holds around all of it, by key.

    Raises one CompileError for all that is wrong or not supported in it.
    """
    try:
        return _text(graph, arguments, results, mesh, written, hints)
    except CompileError as error:
        if not error.message.startswith("not supported: "):
            raise
        problems = failing_ops(graph, lambda one: _text(one, (), (), mesh))
        raise (refusal(problems) if problems else error) from None


def _text(
    graph: GraphModule,
    arguments: Sequence[Layout | None],
    results: Sequence[Layout | None],
    mesh: Mesh,
    written: Mapping[int, int] = NOTHING_WRITTEN,
    hints: Mapping[str, str] = NO_HINTS,
) -> str:
    bindings = torch_importer()
    if bindings is None:
        raise CompileError("PyTorch programs need the torch-mlir package, which is not installed")
    graph = without_complex(graph)
    compute_wide(graph)
    ctx = context(unregistered=True)
    bindings.register(ctx)
    with ctx, ir.Location.unknown(ctx):
        module, regions = _imported(bindings.importer, graph, ctx)
        _run(module, _TO_TORCH)
        _run(module, _without(_TO_LINALG, _CONTRACT))
        ask_first(module)
        _run(module, CLEAN_UP)
        call_routines(module)
        call_python(module)
        sum_products(module)
        compute_elements(module)
        transform(module)
        lower_tm_tensor(module)
        simplify(module)
        unfold_products(module)
        add_mesh(module, mesh)
        place_constraints(module)
        _place_regions(module, regions)
        _run(module, CLEAN_UP)
        refuse_unknown(ops_by_name(module.operation), _OURS)
        _set_layouts(module, arguments, results)
        mark_unsigned(functions_of(module)["main"], graph)
        mark_complex(functions_of(module)["main"], graph)
        _set_donations(module, written)
        if hints:
            _set_hints(module, hints)
        for op in (module.operation, *(o.operation for o in module.body.operations)):
            for name in [name for name in op.attributes if name.startswith("torch.")]:
                del op.attributes[name]
        module.operation.verify()
        return str(module.operation.get_asm(enable_debug_info=True))


def _set_hints(module: ir.Module, hints: Mapping[str, str]) -> None:
    """Put hints around the program."""
    said = {key: ir.StringAttr.get(value) for key, value in hints.items()}
    main = next(op for op in module.body.operations if op.operation.name == "func.func")
    main.operation.attributes["hint.hints"] = ir.DictAttr.get(said)


def _imported(
    importer: FxImporter, graph: GraphModule, ctx: ir.Context
) -> tuple[ir.Module, dict[str, OutlinedRegion]]:
    """Return the module in torch's dialect, and the regions by the names of their functions."""
    regions: dict[str, OutlinedRegion] = {}
    kind = _node_importer(importer, regions)
    fx = importer.FxImporter(context=ctx, graph_node_importer_cls=kind)
    fx._cc = _node_places(importer)(ctx, py_attr_tracker=fx._py_attr_tracker)
    try:
        fx.import_stateless_graph(graph.graph, func_name="main")
    except NotImplementedError as error:
        raise CompileError(f"not supported: {first_line(error)}") from None
    except ir.MLIRError as error:
        raise compile_error(error) from None
    return fx.module, regions


def _node_places(importer: FxImporter) -> type:
    """Return the class that gives nodes their locations, which have the names of layers too."""

    class NodePlaces(importer.ContextCache):  # type: ignore[misc]
        """Put the layer of a node around its place: `layers.0.up/linear`."""

        def get_node_location(self, node: Node) -> ir.Location | None:
            """Return the location of a node; None where nothing is known of it."""
            place: ir.Location | None = super().get_node_location(node)
            layer = layer_of(node)
            if place is None or not layer:
                return place
            own = getattr(node.target, "__name__", str(node.target)).split(".")[0]
            name = node.meta.get("torch_fn", ("", own))[1].split(".")[-1]
            return ir.Location.name(f"{layer}/{name}", place, self._c)

    return NodePlaces


def layer_of(node: Node) -> str:
    """Return the module that a node of the graph is of, `layers.0.up`; of a backward pass in `transpose()`."""
    own, forward = (node.meta.get(key) for key in ("nn_module_stack", "fwd_nn_module_stack"))
    stack = own or forward
    path = str(list(stack.values())[-1][0]) if stack else ""
    path = re.sub(r"\['?(\w+)'?\]", r".\1", path.replace("._modules", ""))
    path = path.removeprefix("L.self").removeprefix("L__self__").strip("._")
    return f"transpose({path})" if path and not own else path


def _node_importer(importer: FxImporter, regions: dict[str, OutlinedRegion]) -> type:
    """Return the class that imports nodes, and puts the regions that it meets into `regions`."""

    class NodeImporter(importer.GraphNodeImporter):  # type: ignore[misc]
        """Import regions under hints as calls of functions."""

        def _import_hop_hints_wrapper(self, loc: ir.Location, node: Node, hop: object) -> None:
            body, operands, *_ = node.args
            name = f"meshweave_region_{len(regions)}"
            regions[name] = OutlinedRegion(node.kwargs["hints"], loc)
            function = import_body(self, node, body, name)
            values = [self._import_argument(loc, operand) for operand in operands]
            types = list(function.attributes["function_type"].value.results)
            self._bind(node, list(_call(loc, name, types, values).results))

        def _import_hop_cond(self, loc: ir.Location, node: Node, hop: object) -> None:
            self._bind(node, ControlFlow(self, loc, node).cond())

        def _import_hop_while_loop(self, loc: ir.Location, node: Node, hop: object) -> None:
            self._bind(node, ControlFlow(self, loc, node).while_loop())

        def _import_torch_op_overload(
            self, loc: ir.Location, node: Node, concrete_target: object = None
        ) -> None:
            """Import what upstream does not know as calls of functions without a body."""
            target, module = str(node.target), self.fx_importer.module
            if target in DECLARE:
                operands, *said = node.args
                values = [self._import_argument(loc, operand) for operand in operands]
                types = [self._cc.value_info_to_type(value) for value in node.meta["val"]]
                name = DECLARE[target](module, *said, values, types)
                self._bind(node, list(_call(loc, name, types, values).results))
                return
            if is_called(node.target):
                self._import_host_call(loc, node)
                return
            if target == CONSTRAIN_OP:
                of, layout, axes = node.args
                values = [self._import_argument(loc, of)]
                type_, name = values[0].type, declare_constraint(module, layout, axes, values[0])
            elif target == SUMMED_OP:
                values = [self._import_argument(loc, operand) for operand in node.args]
                type_ = self._cc.value_info_to_type(node.meta["val"])
                name = declare_sum(module, values, type_)
            elif target == BITS_OP and _is_as_wide(node):
                values = [self._import_argument(loc, node.args[0])]
                type_ = self._cc.value_info_to_type(node.meta["val"])
                name = declare_elementwise(module, CAST, values, type_)
            elif target == LOG_SUMS_OP:
                values = [self._import_argument(loc, node.args[0])]
                type_ = values[0].type
                name = declare_log_sums(module, node.args[1], values[0])
            elif target == EXTREME_OP:
                *operands, largest = node.args
                values = [self._import_argument(loc, operand) for operand in operands]
                type_ = self._cc.value_info_to_type(node.meta["val"])
                op = "arith.maximumf" if largest else "arith.minimumf"
                name = declare_elementwise(module, op, values, type_)
            else:
                super()._import_torch_op_overload(loc, node, concrete_target)
                return
            self.bind_node_value(node, _call(loc, name, [type_], values).result)

        def _import_hop_auto_functionalized(self, loc: ir.Location, node: Node, _: object) -> None:
            self._import_host_call(loc, node)

        _import_hop_auto_functionalized_v2 = _import_hop_auto_functionalized

        def _import_host_call(self, loc: ir.Location, node: Node) -> None:
            values = [self._import_argument(loc, operand) for operand in operands_of(node)]
            types = [self._cc.value_info_to_type(value) for value in results_of(node)]
            name = declare_host(self.fx_importer.module, host_call(node), values, types)
            made = list(_call(loc, name, types, values).results)
            if isinstance(node.meta["val"], tuple | list):
                self._bind(node, made)
            else:
                self.bind_node_value(node, made[0])

        def _bind(self, node: Node, values: Sequence[ir.Value]) -> None:
            self._multi_result_nodes.add(node)
            for index, value in enumerate(values):
                self.bind_node_value(node, value, index)

        def _import_literal(self, py_value: torch.Tensor, info: object = None) -> ir.Value:
            """Import constants of several elements as text; upstream's resources are bytes beside the program.

            py_value: a tensor, or a number, which upstream imports.
            """
            if getattr(py_value, "ndim", 0) == 0 or py_value.numel() < 2:
                return super()._import_literal(py_value, info)
            import torch

            kind = py_value.dtype  # NumPy has no bfloat16, and bools are imported as integers
            plain = {torch.bfloat16: torch.float32, torch.bool: torch.int32}.get(kind, kind)
            value = ir.DenseElementsAttr.get(
                np.array(py_value.tolist(), dtype=str(plain).removeprefix("torch.")),
                type=importer.TORCH_DTYPE_TO_MLIR_TYPE[plain](),
                shape=list(py_value.shape),
            )
            type_ = self._cc.create_vtensor_type(plain, py_value.size())
            b = OpBuilder(ir.InsertionPoint.current, ir.Location.current)
            made = b.one("torch.vtensor.literal", type_, value=value)
            if plain is kind:
                return made
            return self._convert_type(made, type(py_value), kind, py_value.size())

    return NodeImporter


def _call(
    loc: ir.Location, name: str, types: Sequence[ir.Type], values: Sequence[ir.Value]
) -> ir.Operation:
    b = OpBuilder(ir.InsertionPoint.current, loc)
    return b.op("func.call", types, values, callee=ir.FlatSymbolRefAttr.get(name))


def _is_as_wide(node: Node) -> bool:
    """Tell whether what a node gives has as many bytes an element as what it takes."""
    widths = {one.meta["val"].dtype.itemsize for one in (node, *node.all_input_nodes)}
    return len(widths) == 1


def _run(module: ir.Module, pipeline: str) -> None:
    try:
        PassManager.parse(pipeline).run(module.operation)
    except ir.MLIRError as error:
        raise _unsupported(error) from None


def _without(pipeline: str, unwanted: str) -> str:
    """Return a pipeline with all its passes named, but for one."""
    whole = str(PassManager.parse(pipeline)).strip().removeprefix("PassManager:").strip()
    return re.sub(rf",?\b{unwanted}\b(\{{[^}}]*\}})?", "", whole)


def _unsupported(error: ir.MLIRError) -> CompileError:
    """Return the error that says which op torch-mlir could not lower, and where."""
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


# Regions


def _place_regions(module: ir.Module, regions: Mapping[str, OutlinedRegion]) -> None:
    """Replace each call of a region's function by a region under hints that holds the body of the function."""
    for call in ops_named(module.operation, "func.call"):
        if callee_of(call) in regions:
            _place(call, regions[callee_of(call)])
    inline_calls(module, functions_of(module)["main"])


def _place(call: ir.Operation, region: OutlinedRegion) -> None:
    b = OpBuilder(ir.InsertionPoint(call), region.location)
    hints = _hints_attr(region.hints, region.location)
    made = b.op("hint.region", [r.type for r in call.results], regions=1, hints=hints)
    inner, _ = b.block(made.regions[0])
    copy = call.clone(ip=inner.ip)
    inner.op("hint.yield", [], list(copy.results))
    replace_op(call, list(made.results))


def _hints_attr(hints: Mapping[str, HintValue], location: ir.Location) -> ir.DictAttr:
    """Return the dictionary of hints as an attribute. Raises HintError for one that cannot be read."""
    where = location_text(location)
    attr = ir.DictAttr.get({key: _hint_attr(key, v, where) for key, v in hints.items()})
    try:
        hints_in(attr, where)
    except CompileError as error:
        raise error.told(error.message, where) from None
    return attr


def _hint_attr(key: str, value: HintValue, where: str) -> ir.Attribute:
    if isinstance(value, Mapping):
        return ir.DictAttr.get({k: _hint_attr(key, v, where) for k, v in value.items()})
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return i64(value)
    raise CompileError(f"hint {key}: its value is a text or a number, not {value!r:.60}", where)


# The signature


def _set_layouts(
    module: ir.Module, arguments: Sequence[Layout | None], results: Sequence[Layout | None]
) -> None:
    (main,) = functions_of(module).values()
    main.attributes["sym_visibility"] = ir.StringAttr.get("public")
    for key, layouts in (("arg_attrs", arguments), ("res_attrs", results)):
        if any(layout is not None for layout in layouts):
            attrs = [
                {} if one is None else {"dist.layout": LayoutAttr.make(one)} for one in layouts
            ]
            main.attributes[key] = ir.ArrayAttr.get([ir.DictAttr.get(one) for one in attrs])


def _set_donations(module: ir.Module, written: Mapping[int, int]) -> None:
    """Let results take the buffers of the arguments that they are written to."""
    if not written:
        return
    (main,) = functions_of(module).values()
    for key, attributes in (
        ("arg_attrs", {n: {DONATE: ir.StringAttr.get("preferred")} for n in written.values()}),
        ("res_attrs", {n: {TAKES: i64(argument)} for n, argument in written.items()}),
    ):
        type_ = main.attributes["function_type"].value
        count = len(type_.inputs if key == "arg_attrs" else type_.results)
        given = list(main.attributes[key]) if key in main.attributes else [{}] * count
        said = [dict_of(entry) | attributes.get(k, {}) for k, entry in enumerate(given)]
        main.attributes[key] = ir.ArrayAttr.get([ir.DictAttr.get(entry) for entry in said])
