"""StableHLO, as JAX and others export it, with Shardy's shardings, to linalg in the global view.

    text -> sdy_text (generic form) -> parse -> inline -> sdy_import, manual (dist ops)
         -> chlo and simplification (upstream) -> control, loops, elements (what upstream leaves)
         -> stablehlo-legalize-to-linalg (upstream) -> scalars -> attributes of the signature

Nothing of StableHLO, CHLO, Shardy or MHLO is left; what we cannot lower is refused in one error
that lists it all.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, ClassVar

from meshweave.bindings import PassManager, ir, stablehlo
from meshweave.errors import CompileError
from meshweave.frontends.control import lower_barrier, lower_case, lower_if, lower_while
from meshweave.frontends.elements import accumulate_wide, broadcast_bits, make_signless, saturate
from meshweave.frontends.inline import entry_function, inline_calls
from meshweave.frontends.lapack import (
    lower_cholesky,
    lower_library_call,
    lower_triangular_solve,
)
from meshweave.frontends.loops import lower_scatter, lower_sort
from meshweave.frontends.manual import close_regions, import_manual
from meshweave.frontends.pooling import lower_select_and_scatter
from meshweave.frontends.refusals import (
    check_program,
    refuse_early,
    refuse_leftovers,
    refuse_unsupported,
)
from meshweave.frontends.scalars import scalarise
from meshweave.frontends.sdy_import import (
    Meshes,
    Ops,
    add_mesh,
    apply_signature,
    import_constraints,
    import_op_shardings,
    import_signature,
    refuse_gspmd,
)
from meshweave.frontends.sdy_text import to_generic
from meshweave.locations import compile_error, location_text, parse_module

_COMPOSITES = "builtin.module(stablehlo-legalize-composite-to-call)"
_SIMPLIFY = (
    "builtin.module(func.func(chlo-legalize-to-stablehlo,stablehlo-aggressive-simplification))"
)
_TO_LINALG = (
    "builtin.module(stablehlo-legalize-to-linalg{enable-primitive-ops=true},"
    "stablehlo-convert-to-signless,reconcile-unrealized-casts)"
)
_CLEAN_UP = "builtin.module(canonicalize,cse)"
_LOWER: dict[str, Callable[[Any], None]] = {
    "stablehlo.while": lower_while,
    "stablehlo.case": lower_case,
    "stablehlo.if": lower_if,
    "stablehlo.optimization_barrier": lower_barrier,
    "stablehlo.sort": lower_sort,
    "stablehlo.scatter": lower_scatter,
    "stablehlo.select_and_scatter": lower_select_and_scatter,
    "stablehlo.custom_call": lower_library_call,
    "stablehlo.cholesky": lower_cholesky,
    "stablehlo.triangular_solve": lower_triangular_solve,
    "stablehlo.broadcast_in_dim": broadcast_bits,
    "stablehlo.dot_general": accumulate_wide,
    "stablehlo.convolution": accumulate_wide,
}
_OURS = ("builtin", "func", "linalg", "tensor", "arith", "math", "scf", "dist", "hint")
_UPSTREAM = ("stablehlo", "chlo", "shape", "complex")


class StableHlo:
    """The frontend for StableHLO text, pretty or generic."""

    name: ClassVar[str] = "stablehlo"

    @staticmethod
    def accepts(text: str) -> bool:
        """Whether the text holds ops of StableHLO, CHLO or Shardy, or is from JAX, which may need no op."""
        words = ("stablehlo.", "chlo.", "sdy.", "mhlo.num_partitions")
        return any(word in text for word in words)

    @staticmethod
    def load(text: str, ctx: Any, name: str) -> Any:
        """The module of `text` in the global view. Raises CompileError for what is wrong or not
        supported in it.
        """
        if stablehlo() is None:
            raise CompileError(
                "StableHLO needs the torch-mlir package, which is not installed", name
            )
        load_chlo(ctx)
        allowed = ctx.allow_unregistered_dialects
        ctx.allow_unregistered_dialects = True
        try:
            with ctx, ir.Location.unknown(ctx):
                return _load(text, ctx, name)
        except ir.MLIRError as error:
            raise compile_error(error) from None
        finally:
            ctx.allow_unregistered_dialects = allowed


def load_chlo(ctx: Any) -> None:
    """Make `ctx` know CHLO. The bindings cannot register it, but a pass that depends on it loads
    it when it runs.
    """
    if not ctx.is_dialect_loaded("chlo"):
        with ctx, ir.Location.unknown(ctx):
            loader = PassManager.parse("builtin.module(func.func(convert-torch-to-stablehlo))")
            loader.run(ir.Module.create().operation)


def _load(text: str, ctx: Any, name: str) -> Any:
    refuse_early(text, name)
    module = parse_module(to_generic(text, name), ctx, name)
    if "stablehlo.composite" in text:
        _run(module, _COMPOSITES)
    main = entry_function(module)
    check_program(module)
    inline_calls(module, main)
    ops = inventory(module)
    refuse_unsupported(module, ops, text)
    meshes = Meshes(ops)
    signature = import_signature(main, meshes)
    _drop_gspmd(ops)
    _import_shardings(module, ops, meshes, on_ops="sdy.sharding = #sdy.sharding_per_value" in text)
    mesh = meshes.mesh()
    refuse_leftovers(
        module, (*_OURS, *_UPSTREAM)
    )  # upstream passes crash on regions of ops they do not know
    _run(module, _SIMPLIFY)
    rounds = _lower(module)
    _run(module, _TO_LINALG)
    if rounds:
        saturate(module)
    make_signless(entry_function(module))
    # Once, where it matters: verifying after every pass would take as long as the passes.
    module.operation.verify()
    _run(module, _CLEAN_UP)
    if scalarise(module):
        _run(module, _CLEAN_UP)
    if "sdy.manual_computation" in ops:
        close_regions(module)
    refuse_leftovers(module, _OURS)
    _clean(module)
    add_mesh(module, mesh)
    apply_signature(entry_function(module), signature, mesh)
    return module


def _run(module: Any, pipeline: str) -> None:
    manager = PassManager.parse(pipeline)
    manager.enable_verifier(False)
    manager.run(module.operation)


def inventory(module: Any) -> Ops:
    """The ops of the module by name, inner ops before those around them. Valid until upstream
    passes run.
    """
    found: dict[str, list[Any]] = defaultdict(list)

    def visit(op: Any) -> Any:
        found[op.name].append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _import_shardings(module: Any, ops: Ops, meshes: Meshes, on_ops: bool) -> None:
    for name in ops:
        if name.startswith("sdy.") and name not in _SDY_OPS:
            raise CompileError(f"{name} is not supported", location_text(ops[name][0]))
    if on_ops:
        import_op_shardings(module, meshes)
    import_constraints(ops, meshes)
    import_manual(ops, meshes)
    for op in ops.get("sdy.mesh", ()):
        op.erase()


_SDY_OPS = ("sdy.mesh", "sdy.sharding_constraint", "sdy.manual_computation", "sdy.return")


def _drop_gspmd(ops: Ops) -> None:
    """custom_call @Sharding that only says "replicated" is its operand; anything else of GSPMD is
    refused.
    """
    for op in ops.get("stablehlo.custom_call", ()):
        if "mhlo.sharding" in op.attributes:
            refuse_gspmd(op.attributes["mhlo.sharding"], op)
            if ir.StringAttr(op.attributes["call_target_name"]).value == "Sharding":
                op.results[0].replace_all_uses_with(op.operands[0])
                op.erase()


def _lower(module: Any) -> bool:
    """What upstream's pass leaves or gets wrong, inner ops first; whether floats are converted to integers."""
    work: list[Any] = []
    converts: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name in _LOWER:
            work.append(op)
        elif op.name == "stablehlo.convert":
            converts.append(op.results[0].type.element_type)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in work:
        _LOWER[op.name](op)
    return any(isinstance(kind, ir.IntegerType) and kind.width > 1 for kind in converts)


def _clean(module: Any) -> None:
    """Take off what jax, mhlo and sdy left on the module and the function; the function is called
    @main.
    """
    attrs = module.operation.attributes
    for name in list(attrs):
        if name.startswith(("mhlo.", "jax.", "sdy.", "stablehlo.", "tf.")):
            del attrs[name]
    main = entry_function(module)
    for name in list(main.attributes):
        if name.startswith(("mhlo.", "jax.", "sdy.", "stablehlo.", "tf.", "xla.")):
            del main.attributes[name]
    main.attributes["sym_name"] = ir.StringAttr.get("main")
    main.attributes["sym_visibility"] = ir.StringAttr.get("public")
