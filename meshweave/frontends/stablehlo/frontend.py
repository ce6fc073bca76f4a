"""Lower StableHLO, as JAX and others export it, with Shardy's shardings, to linalg in the global view.

    text -> shardy.text (generic form) -> parse -> inline -> shardy.importer, shardy.manual (dist ops)
         -> chlo and simplification (upstream) -> lowerings (what upstream leaves)
         -> stablehlo-legalize-to-linalg (upstream) -> scalars -> attributes of the signature

Nothing of StableHLO, CHLO, Shardy or MHLO is left. What we cannot lower is refused in one error that lists it all.
"""

from collections.abc import Sequence

from meshweave.errors import CompileError
from meshweave.frontends.shardy.importer import (
    Meshes,
    add_mesh,
    apply_signature,
    import_barriers,
    import_constraints,
    import_groups,
    import_op_shardings,
    import_signature,
    refuse_gspmd,
)
from meshweave.frontends.shardy.manual import close_regions, import_manual
from meshweave.frontends.shardy.text import to_generic
from meshweave.frontends.stablehlo import CAPTURED
from meshweave.frontends.stablehlo.captured import add_captured
from meshweave.frontends.stablehlo.inline import entry_function, inline_calls
from meshweave.frontends.stablehlo.lowerings import lowerings
from meshweave.frontends.stablehlo.lowerings.again import mark_copies
from meshweave.frontends.stablehlo.lowerings.elements import add_booleans, make_signless, saturate
from meshweave.frontends.stablehlo.refusals import (
    check_program,
    refuse_early,
    refuse_unknown,
    refuse_unsupported,
)
from meshweave.frontends.stablehlo.scalars import scalarise
from meshweave.frontends.stablehlo.sizes import set_sizes, settle_sizes
from meshweave.frontends.weights import add_weights
from meshweave.ir.bindings import PassManager, ir, stablehlo
from meshweave.ir.locations import compile_error, location_text, parse_module
from meshweave.ir.ops import Ops, ops_by_name, ops_named
from meshweave.ir.pipeline_text import CLEAN_UP

_COMPOSITES = "builtin.module(func.func(stablehlo-legalize-composite-to-call))"
_SIMPLIFY = (
    "builtin.module(func.func(chlo-legalize-to-stablehlo,stablehlo-aggressive-simplification))"
)
_TO_LINALG = (
    "builtin.module(stablehlo-legalize-to-linalg{enable-primitive-ops=true},"
    "stablehlo-convert-to-signless,reconcile-unrealized-casts)"
)
_LOWER = lowerings()
_CONVERT = "stablehlo.convert"
_OURS = (
    "builtin",
    "func",
    "linalg",
    "tensor",
    "arith",
    "math",
    "scf",
    "dist",
    "hint",
    "mw",
    "complex",
)
_UPSTREAM = ("stablehlo", "chlo", "shape")


def is_stablehlo(text: str) -> bool:
    """Tell whether the text holds ops of StableHLO, CHLO or Shardy, or is from JAX, which may need no op."""
    return any(word in text for word in ("stablehlo.", "chlo.", "sdy.", "mhlo.num_partitions"))


def load_stablehlo(
    text: str,
    ctx: ir.Context,
    name: str,
    shapes: Sequence[Sequence[int]] | None = None,
    weights: bool = True,
) -> ir.Module:
    """Return the module of `text`, pretty or generic, in the global view.

    shapes: of the arguments of a program that leaves sizes open. weights: large constants become arguments.

    Raises CompileError for what is wrong or not supported.
    """
    if stablehlo() is None:
        raise CompileError("StableHLO needs the torch-mlir package, which is not installed", name)
    if not ctx.is_dialect_loaded("chlo"):  # a pass that depends on it loads it when it runs
        with ctx, ir.Location.unknown(ctx):
            loader = PassManager.parse("builtin.module(func.func(convert-torch-to-stablehlo))")
            loader.run(ir.Module.create().operation)
    allowed = ctx.allow_unregistered_dialects
    ctx.allow_unregistered_dialects = True
    try:
        with ctx, ir.Location.unknown(ctx):
            return _load(text, ctx, name, shapes, weights)
    except ir.MLIRError as error:
        raise compile_error(error) from None
    finally:
        ctx.allow_unregistered_dialects = allowed


def _load(
    text: str,
    ctx: ir.Context,
    name: str,
    shapes: Sequence[Sequence[int]] | None,
    weights: bool,
) -> ir.Module:
    refuse_early(text, name)
    module = parse_module(to_generic(text, name), ctx, name)
    if "stablehlo.composite" in text:
        _run(module, _COMPOSITES)
    main = entry_function(module)
    if shapes is not None:
        inline_calls(module, main)  # calls say the types of their arguments
        set_sizes(main, shapes)
    settle_sizes(module, main, text)
    check_program(module, text)
    inline_calls(module, main)
    if weights:
        add_weights(module, text)
    if CAPTURED in text:
        add_captured(main, ops_named(module.operation, "stablehlo.custom_call"))
    ops = ops_by_name(module.operation)
    refuse_unsupported(module, ops, text)
    for op in ops.get("stablehlo.add", ()):
        add_booleans(op)
    meshes = Meshes(ops)
    signature = import_signature(main, meshes)
    _drop_gspmd(ops)
    manual = "sdy.manual_computation" in ops
    on_ops = "sdy.sharding_per_value" in text
    if on_ops:
        import_op_shardings(module, meshes)
    import_barriers(ops)
    import_groups(main, ops, meshes, signature.arguments)
    _import_shardings(ops, meshes)
    mesh = meshes.mesh()
    # Upstream passes crash on regions of ops they do not know.
    ops = ops_by_name(module.operation)
    refuse_unknown(ops, (*_OURS, *_UPSTREAM))
    for name in ("chlo.top_k", "chlo.erfc"):  # upstream's take longer
        for op in ops.get(name, ()):
            _LOWER[name](op)
    _run(module, _SIMPLIFY)
    rounds = _lower(module)
    _run(module, _TO_LINALG)
    if rounds:
        saturate(module)
    make_signless(entry_function(module))
    # Once, where it matters: verifying after every pass would take as long as the passes.
    module.operation.verify()
    ops = _cleaned(module)
    if scalarise(module, ops):
        ops = _cleaned(module)
    if mark_copies(entry_function(module), ops):
        ops = _cleaned(module)
    if manual:
        close_regions(module)
        ops = ops_by_name(module.operation)
    refuse_unknown(ops, _OURS)
    _clean(module)
    add_mesh(module, mesh)
    apply_signature(entry_function(module), signature, mesh)
    return module


def _run(module: ir.Module, pipeline: str) -> None:
    manager = PassManager.parse(pipeline)
    manager.enable_verifier(False)
    manager.run(module.operation)


def _cleaned(module: ir.Module) -> Ops:
    """Run CLEAN_UP; return what is left."""
    _run(module, CLEAN_UP)
    return ops_by_name(module.operation)


def _import_shardings(ops: Ops, meshes: Meshes) -> None:
    for name in ops:
        if name.startswith("sdy.") and name not in _SDY_OPS:
            raise CompileError(f"{name} is not supported", location_text(ops[name][0]))
    import_constraints(ops, meshes)
    import_manual(ops, meshes)
    for op in ops.get("sdy.mesh", ()):
        op.erase()


_SDY_OPS = (
    *("sdy.mesh", "sdy.sharding_constraint", "sdy.manual_computation", "sdy.return"),
    *("sdy.propagation_barrier", "sdy.sharding_group"),
)


def _drop_gspmd(ops: Ops) -> None:
    """Replace each custom_call @Sharding that says "replicated" by its operand; refuse all else of GSPMD."""
    for op in ops.get("stablehlo.custom_call", ()):
        if "mhlo.sharding" in op.attributes:
            refuse_gspmd(op.attributes["mhlo.sharding"], op)
            if ir.StringAttr(op.attributes["call_target_name"]).value == "Sharding":
                op.results[0].replace_all_uses_with(op.operands[0])
                op.erase()


def _lower(module: ir.Module) -> bool:
    """Lower what upstream's pass leaves or gets wrong; tell whether anything is converted to integers."""
    rounds = False
    for op in ops_named(module.operation, *_LOWER, _CONVERT):
        if op.name == _CONVERT:
            element = op.results[0].type.element_type
            rounds |= isinstance(element, ir.IntegerType) and element.width > 1
        else:
            _LOWER[op.name](op)
    return rounds


def _clean(module: ir.Module) -> None:
    """Take off what jax, mhlo and sdy left on the module and the function; call the function @main."""
    main = entry_function(module)
    for op in (module.operation, main):
        for name in list(op.attributes):
            if name.startswith(("mhlo.", "jax.", "sdy.", "stablehlo.", "tf.", "xla.")):
                del op.attributes[name]
    main.attributes["sym_name"] = ir.StringAttr.get("main")
    main.attributes["sym_visibility"] = ir.StringAttr.get("public")
