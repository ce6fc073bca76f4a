"""Lower special functions that upstream computes in two ways and chooses from: one that serves all is faster."""

from typing import NamedTuple

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, tensor_type
from meshweave.ir.ops import replace_op


class _Fit(NamedTuple):
    """Hold erfc(z) e^(z^2) as a polynomial of (z - middle) / (z + middle), its terms from the highest power on.

    It is a least-squares fit of Chebyshev polynomials whose weights even out the relative error, for 0 <= z <= 10.1:
    behind that erfc is 0 in f32.
    """

    middle: float
    terms: tuple[float, ...]


_OF_32_BITS = _Fit(  # within 7e-9
    2.75,
    (
        *(
            -1.3515259541911777e-4,
            -1.956688657792203e-4,
            1.3546399981846007e-3,
            -2.0341780046654977e-4,
        ),
        *(-1.3686258812701213e-2, 5.683561450267324e-2, -0.13973726065709477, 0.24989032040302037),
        *(-0.34780701409862436, 0.19366209741530926),
    ),
)
_OF_16_BITS = _Fit(  # within 2.1e-5
    2.0,
    (
        *(6.115882626046017e-3, 3.083372555327653e-3, -7.866339948573785e-2, 0.24177458920341235),
        *(-0.4272209844363455, 0.25539370066009),
    ),
)


def lower_erfc(op: ir.Operation) -> None:
    """Lower chlo.erfc of floats of 32 or 16 bits, to e^(-z^2) times a polynomial for z = |x|; others are left."""
    type_ = op.results[0].type
    if type_.element_type not in (ir.F32Type.get(), ir.F16Type.get(), ir.BF16Type.get()):
        return
    fit, b = _OF_32_BITS, OpBuilder.before(op)
    if type_.element_type.width == 16:
        fit = _OF_16_BITS
    wide = tensor_type(type_.shape, ir.F32Type.get())
    x = op.operands[0] if type_ == wide else b.one("stablehlo.convert", wide, op.operands[0])

    def number(value: float) -> ir.Value:
        splat = ir.DenseElementsAttr.get_splat(wide, ir.FloatAttr.get_f32(value))
        return b.one("stablehlo.constant", wide, value=splat)

    def of(name: str, *operands: ir.Value) -> ir.Value:
        return b.one(f"stablehlo.{name}", wide, *operands)

    z = of("abs", x)
    # 1 - 2 m / (z + m) is (z - m) / (z + m), and 1 at infinity
    t = of(
        "subtract",
        number(1.0),
        of("divide", number(2 * fit.middle), of("add", z, number(fit.middle))),
    )
    scaled = number(fit.terms[0])
    for term in fit.terms[1:]:
        scaled = of("add", of("multiply", scaled, t), number(term))
    found = of("multiply", of("exponential", of("negate", of("multiply", z, z))), scaled)
    found = of("abs", found)  # behind 10.1 the polynomial may be negative, its product is 0
    below = b.one(
        "stablehlo.compare",
        tensor_type(type_.shape, ir.IntegerType.get_signless(1)),
        x,
        number(0.0),
        comparison_direction=ir.Attribute.parse("#stablehlo<comparison_direction LT>"),
    )
    found = of("select", below, of("subtract", number(2.0), found), found)
    replace_op(op, [found if type_ == wide else b.one("stablehlo.convert", type_, found)])


LOWER = {"chlo.erfc": lower_erfc}
