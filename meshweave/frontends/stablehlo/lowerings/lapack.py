"""Lower factorisations, systems and decompositions: the LAPACK routines that JAX calls, and StableHLO's two ops."""

import re

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.lapack import lapack
from meshweave.ir.ops import replace_op

_ROUTINE = re.compile(r"lapack_[sd](potrf|getrf|trsm|geqrf|orgqr|gesdd|syevd)_ffi")
_LETTERS = {"uplo": ("L", "lower"), "trans_x": ("T", "transposed"), "diag": ("U", "unit")}
"""Settings of LAPACK: the letter that means something, and the flag that says it in `mw.lapack`."""


def routine(target: str) -> str | None:
    """Return the LAPACK routine that a custom call names, without its letter for the type, or None."""
    found = _ROUTINE.fullmatch(target)
    return found[1] if found else None


def lower_library_call(op: ir.Operation) -> None:
    """Lower a stablehlo.custom_call of a routine that is known here; leave others."""
    name = routine(ir.StringAttr(op.attributes["call_target_name"]).value)
    if name is None:
        return
    given = _settings(op)
    flags = [flag for key, (letter, flag) in _LETTERS.items() if given.get(key) == ord(letter)]
    b, operands = OpBuilder.before(op), list(op.operands)
    if name == "trsm":
        name = "trsm_right" if given["side"] == ord("R") else "trsm_left"
    if name == "gesdd":
        replace_op(op, [*operands, *_singular(b, op, given["mode"])])
        return
    if name == "syevd" and given.get("mode") == ord("N"):
        replace_op(op, [*operands, *lapack(b, "syevd_values", operands, flags)])
        return
    replace_op(op, lapack(b, name, operands, flags))


def _singular(b: OpBuilder, op: ir.Operation, mode: int) -> list[ir.Value]:
    """Return what gesdd gives behind its first result, which LAPACK leaves in the place of the matrix.

    mode: "A" for square factors, "N" for none, whose places nothing may read.
    """
    if mode == ord("N"):
        values, info = lapack(b, "gesdd_values", list(op.operands))
        return [values, *[b.empty(result.type) for result in list(op.results)[2:4]], info]
    return lapack(b, "gesdd_full" if mode == ord("A") else "gesdd", list(op.operands))


def _settings(op: ir.Operation) -> dict[str, int]:
    """Return the settings of a routine by LAPACK's names, letters by their code. Upstream renames the attribute."""
    for name in ("backend_config", "mhlo.backend_config"):
        given = op.attributes.get(name)
        if isinstance(given, ir.DictAttr):
            return {setting.name: ir.IntegerAttr(setting.attr).value for setting in given}
    return {}


def lower_cholesky(op: ir.Operation) -> None:
    """Lower stablehlo.cholesky."""
    flags = ["lower"] if _flag(op, "lower") else []
    replace_op(op, lapack(OpBuilder.before(op), "potrf", list(op.operands), flags)[:1])


def lower_triangular_solve(op: ir.Operation) -> None:
    """Lower stablehlo.triangular_solve."""
    said = {
        "lower": _flag(op, "lower"),
        "transposed": "NO_TRANSPOSE" not in str(op.attributes["transpose_a"]),
        "unit": _flag(op, "unit_diagonal"),
    }
    name = "trsm_left" if _flag(op, "left_side") else "trsm_right"
    flags = [flag for flag, holds in said.items() if holds]
    replace_op(op, lapack(OpBuilder.before(op), name, list(op.operands), flags))


def _flag(op: ir.Operation, name: str) -> bool:
    return name in op.attributes and bool(ir.BoolAttr(op.attributes[name]).value)


LOWER = {
    "stablehlo.cholesky": lower_cholesky,
    "stablehlo.triangular_solve": lower_triangular_solve,
}
