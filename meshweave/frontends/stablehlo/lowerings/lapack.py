"""Lower factorisations, systems and decompositions: the LAPACK routines that JAX calls, and StableHLO's two ops.

Complex numbers go to `mw.lapack`, and come from it, as a last dim of their two parts.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, tensor_type
from meshweave.ir.lapack import lapack
from meshweave.ir.locations import location_text
from meshweave.ir.ops import replace_op
from meshweave.ir.routines import COMPLEX, PARTS, ROUTINES

Settings = Mapping[str, int]
Lowering = Callable[[OpBuilder, ir.Operation, Settings], Sequence[ir.Value]]
_NAMES = {"ungqr": "orgqr", "unmqr": "ormqr", "heevd": "syevd", "hetrd": "sytrd"}
"""Routines of complex numbers that have names of their own."""
_LETTERS = {"uplo": ("L", "lower"), "diag": ("U", "unit")}
"""Settings of LAPACK: the letter that means something, and the flag that says it in `mw.lapack`."""


def routine(target: str) -> str | None:
    """Return the LAPACK routine that a custom call names, without its letter for the type, or None."""
    found = re.fullmatch(r"(?:lapack_[sdcz])?([a-z0-9_]+)_ffi", target)
    name = _NAMES.get(found[1], found[1]) if found else None
    return name if name in _ROUTINES else None


def lower_library_call(op: ir.Operation) -> None:
    """Lower a stablehlo.custom_call of a routine that is known here; leave others."""
    name = routine(ir.StringAttr(op.attributes["call_target_name"]).value)
    if name is not None:
        made = _ROUTINES[name](OpBuilder.before(op), op, _settings(op))
        replace_op(op, made)


def _called(
    b: OpBuilder, name: str, operands: Sequence[ir.Value], flags: Sequence[str] = ()
) -> list[ir.Value]:
    """Call a routine on real or complex numbers; return its results."""
    if not isinstance(operands[0].type.element_type, ir.ComplexType):
        made, dims = lapack(b, name, list(operands), flags), ROUTINES[name].results
    else:
        made = lapack(b, name + COMPLEX, [_in_parts(b, v) for v in operands], flags)
        dims = ROUTINES[name + COMPLEX].results
    return [_of_parts(b, v) if d.endswith(PARTS) else v for v, d in zip(made, dims)]


def _in_parts(b: OpBuilder, value: ir.Value) -> ir.Value:
    """Return complex numbers as real ones, both parts in a last dim; others as they are."""
    shape, element = list(value.type.shape), value.type.element_type
    if not isinstance(element, ir.ComplexType):
        return value
    one = tensor_type([*shape, 1], element.element_type)
    parts = []
    for name in ("real", "imag"):
        part = b.one(f"stablehlo.{name}", tensor_type(shape, element.element_type), value)
        parts.append(b.one("stablehlo.reshape", one, part))
    both = tensor_type([*shape, 2], element.element_type)
    last = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), len(shape))
    return b.one("stablehlo.concatenate", both, *parts, dimension=last)


def _of_parts(b: OpBuilder, value: ir.Value) -> ir.Value:
    """Return the complex numbers whose parts are a last dim."""
    *shape, _ = value.type.shape
    element, parts = value.type.element_type, []
    for number in range(2):
        part = _cut(b, value, [*[(0, n) for n in shape], (number, number + 1)])
        parts.append(b.one("stablehlo.reshape", tensor_type(shape, element), part))
    return b.one("stablehlo.complex", tensor_type(shape, ir.ComplexType.get(element)), *parts)


def _cut(b: OpBuilder, value: ir.Value, bounds: Sequence[tuple[int, int]]) -> ir.Value:
    """Return the part of a tensor between bounds, one pair a dim."""
    starts, ends = ([pair[side] for pair in bounds] for side in (0, 1))
    said = {"start_indices": starts, "limit_indices": ends, "strides": [1] * len(bounds)}
    type_ = tensor_type([end - start for start, end in bounds], value.type.element_type)
    attributes = {name: ir.DenseI64ArrayAttr.get(numbers) for name, numbers in said.items()}
    return b.one("stablehlo.slice", type_, value, **attributes)


def _conjugate(b: OpBuilder, value: ir.Value) -> ir.Value:
    """Return the conjugates of complex numbers; real ones as they are."""
    element = value.type.element_type
    if not isinstance(element, ir.ComplexType):
        return value
    type_ = tensor_type(list(value.type.shape), element.element_type)
    real, imag = (b.one(f"stablehlo.{part}", type_, value) for part in ("real", "imag"))
    minus = b.one("stablehlo.negate", type_, imag)
    return b.one("stablehlo.complex", value.type, real, minus)


def _flags(given: Settings) -> list[str]:
    return [flag for key, (letter, flag) in _LETTERS.items() if given.get(key) == ord(letter)]


def _plain(name: str) -> Lowering:
    """Return the lowering of a routine whose results are JAX's."""
    return lambda b, op, given: _called(b, name, list(op.operands), _flags(given))


def _trsm(b: OpBuilder, op: ir.Operation, given: Settings) -> list[ir.Value]:
    a, sides = op.operands
    turned = given.get("trans_x") in (ord("T"), ord("C"))
    if given.get("trans_x") == ord("C"):
        a = _conjugate(b, a)
    name = "trsm_right" if given["side"] == ord("R") else "trsm_left"
    return _called(b, name, [a, sides], [*_flags(given), *["transposed"] * turned])


def _svd(b: OpBuilder, op: ir.Operation, name: str, mode: int) -> list[ir.Value]:
    """Return what LAPACK leaves in the place of the matrix, which nothing reads, and the factors.

    mode: "A" for square factors, "N" for none, whose places nothing may read.
    """
    (a,) = op.operands
    if mode == ord("N"):
        values, info = _called(b, f"{name}_values", [a])
        return [a, values, *[b.empty(result.type) for result in list(op.results)[2:4]], info]
    return [a, *_called(b, f"{name}_full" if mode == ord("A") else name, [a])]


def _syevd(b: OpBuilder, op: ir.Operation, given: Settings) -> list[ir.Value]:
    (a,), flags = op.operands, _flags(given)
    if given.get("mode") == ord("N"):
        return [a, *_called(b, "syevd_values", [a], flags)]
    return _called(b, "syevd", [a], flags)


def _ormqr(b: OpBuilder, op: ir.Operation, given: Settings) -> list[ir.Value]:
    name = "ormqr_left" if given["left"] else "ormqr_right"
    return _called(b, name, list(op.operands), ["transposed"] * bool(given["transpose"]))


def _geev(b: OpBuilder, op: ir.Operation, given: Settings) -> list[ir.Value]:
    """Return eigenvalues, and both kinds of vectors; nothing may read the places of those that are not computed."""
    wanted = [given[f"compute_{side}"] == ord("V") for side in ("left", "right")]
    ends = {(True, True): "", (True, False): "_left", (False, True): "_right"}
    *made, info = _called(b, "geev" + ends.get((wanted[0], wanted[1]), "_values"), op.operands)
    vectors = iter(made[len(made) - sum(wanted) :])
    places = [
        next(vectors) if one else b.empty(result.type)
        for one, result in zip(wanted, list(op.results)[-3:-1])
    ]
    return [*made[: len(made) - sum(wanted)], *places, info]


def _gees(b: OpBuilder, op: ir.Operation, given: Settings) -> list[ir.Value]:
    """Return the form, vectors or a place that nothing may read, eigenvalues, how many were moved, and `info`."""
    if given["sort"] != ord("N"):
        _refuse(op, "eigenvalues in an order")
    with_vectors = given["mode"] == ord("V")
    form, *made, info = _called(b, "gees" if with_vectors else "gees_form", op.operands)
    vectors = [made.pop(0) if with_vectors else b.empty(op.results[1].type)]
    return [form, *vectors, *made, _zeros(b, info.type), info]


def _zeros(b: OpBuilder, type_: ir.Type) -> ir.Value:
    zero = ir.DenseElementsAttr.get_splat(type_, ir.IntegerAttr.get(type_.element_type, 0))
    return b.one("stablehlo.constant", type_, value=zero)


def _gehrd(b: OpBuilder, op: ir.Operation, given: Settings) -> list[ir.Value]:
    size = op.operands[0].type.shape[-1]
    if (given["low"], given["high"]) != (1, size):
        _refuse(op, f"rows {given['low']} to {given['high']} of {size}")
    return _as(b, op, _called(b, "gehrd", op.operands))


def _sytrd(b: OpBuilder, op: ir.Operation, given: Settings) -> list[ir.Value]:
    return _as(b, op, _called(b, "sytrd", op.operands, _flags(given)))


def _as(b: OpBuilder, op: ir.Operation, made: Sequence[ir.Value]) -> list[ir.Value]:
    """Return results as they are, but for what stands beside a matrix of one element: an op has nothing there."""
    return [
        value if value.type == result.type else b.empty(result.type)
        for value, result in zip(made, op.results, strict=True)
    ]


def _gtsv(b: OpBuilder, op: ir.Operation, given: Settings) -> list[ir.Value]:
    """Return the three diagonals, in whose place LAPACK leaves factors that nothing reads, and the solutions."""
    return [*list(op.operands)[:3], *_called(b, "gtsv", op.operands)]


def _solve_perturbed(b: OpBuilder, op: ir.Operation, given: Settings) -> list[ir.Value]:
    if isinstance(op.operands[0].type.element_type, ir.ComplexType):
        _refuse(op, "complex numbers")
    return _called(b, "gtsv_finite", op.operands)


def _refuse(op: ir.Operation, what: str) -> None:
    name = ir.StringAttr(op.attributes["call_target_name"]).value
    raise CompileError(
        f"not supported: stablehlo.custom_call @{name} with {what}", location_text(op)
    )


_ROUTINES: dict[str, Lowering] = {
    **{name: _plain(name) for name in ("potrf", "getrf", "geqrf", "orgqr", "geqp3")},
    "trsm": _trsm,
    "gesdd": lambda b, op, given: _svd(b, op, "gesdd", given["mode"]),
    "gesvd": lambda b, op, given: _svd(b, op, "gesvd", given["mode"]),
    "syevd": _syevd,
    "ormqr": _ormqr,
    "geev": _geev,
    "gees": _gees,
    "gehrd": _gehrd,
    "sytrd": _sytrd,
    "gtsv": _gtsv,
    "tridiagonal_solve_perturbed": _solve_perturbed,
}
"""How the custom call of each routine is lowered."""


def settings_of(op: ir.Operation) -> dict[str, ir.Attribute]:
    """Return the settings of a call of a library by their names. Upstream renames the attribute."""
    for name in ("backend_config", "mhlo.backend_config"):
        given = op.attributes.get(name)
        if isinstance(given, ir.DictAttr):
            return {setting.name: setting.attr for setting in given}
    return {}


def _settings(op: ir.Operation) -> dict[str, int]:
    """Return the settings of a routine by LAPACK's names, letters by their code."""
    return {name: ir.IntegerAttr(said).value for name, said in settings_of(op).items()}


def lower_cholesky(op: ir.Operation) -> None:
    """Lower stablehlo.cholesky."""
    flags = ["lower"] if _flag(op, "lower") else []
    replace_op(op, _called(OpBuilder.before(op), "potrf", list(op.operands), flags)[:1])


def lower_triangular_solve(op: ir.Operation) -> None:
    """Lower stablehlo.triangular_solve."""
    b, (a, sides) = OpBuilder.before(op), op.operands
    turned = str(op.attributes["transpose_a"])
    if "ADJOINT" in turned:
        a = _conjugate(b, a)
    said = {
        "lower": _flag(op, "lower"),
        "transposed": "NO_TRANSPOSE" not in turned,
        "unit": _flag(op, "unit_diagonal"),
    }
    name = "trsm_left" if _flag(op, "left_side") else "trsm_right"
    replace_op(op, _called(b, name, [a, sides], [flag for flag, holds in said.items() if holds]))


def _flag(op: ir.Operation, name: str) -> bool:
    return name in op.attributes and bool(ir.BoolAttr(op.attributes[name]).value)


LOWER = {
    "stablehlo.cholesky": lower_cholesky,
    "stablehlo.triangular_solve": lower_triangular_solve,
}
