"""Compute the error function."""

from __future__ import annotations

from meshweave.ir.bindings import arith, ir, math
from meshweave.lowering.cpu.mathpoly.exponential import exp
from meshweave.lowering.cpu.mathpoly.floats import Floats, P

_P = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
      -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)  # fmt: skip
_Q = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
      -1.42647390514189e-02)  # fmt: skip
# (erf(x) / x - 2 / sqrt(pi)) / x^2 as a polynomial of x^2, for |x| <= 1
_SMALL = (6.162686941524001e-11, -1.14940543184652e-09, 1.4690980749928795e-08,
          -1.6354915664233504e-07, 1.6461429643335728e-06, -1.4925621587599426e-05,
          0.00012055332182955463, -0.0008548327009346721, 0.0052239776252948475,
          -0.026866170645123276, 0.11283791670955108, -0.37612638903183754)  # fmt: skip
# (1 - erf(x)) e^(x^2) as a polynomial of (x - 2) / (x + 2), for 1 <= x <= 6
_REST = (-1.1852940597687113e-06, 1.3430252935456083e-06, 3.999995871861313e-06,
         1.2819781038779467e-06, -1.3988872815028284e-05, -2.755933664672508e-05,
         2.7525454325470025e-05, 0.00017435934518625213, 4.3555731578028766e-05,
         -0.0009819769416751249, -0.0008471432591384538, 0.006997461737169058,
         0.0037328924045226548, -0.07897858101571044, 0.24165819424246487, -0.4271858474139585,
         0.25539567631050575)  # fmt: skip
_SLOPE, _SLOPE_LOW = 1.1283791670955126, 1.533545961316588e-17  # 2 / sqrt(pi)


def erf(b: Floats, x: ir.Value) -> ir.Value:
    """Compute the error function, +-1 from where it is nearest to that."""
    return _erf_single(b, x) if b.width == 32 else _erf_double(b, x)


def _erf_single(b: Floats, x: ir.Value) -> ir.Value:
    inside = b.clamp(x, -4.0, 4.0)
    square = b.mul(inside, inside)
    y = arith.divf(b.mul(inside, b.poly(square, _P)), b.poly(square, _Q))
    slope = b.mul(x, b.number(_SLOPE))  # exact enough, and right for denormals
    return b.select(P.OLT, math.absf(x), b.number(2e-4), slope, y)


def _erf_double(b: Floats, x: ir.Value) -> ir.Value:
    """Compute it as a polynomial, from 1 on as what e^-x^2 leaves of 1."""
    square = b.mul(x, x)
    more = b.mul(square, b.poly(square, _SMALL))
    small = math.fma(x, b.number(_SLOPE), b.mul(x, b.add(more, b.number(_SLOPE_LOW))))
    size = b.clamp(math.absf(x), 1.0, 6.0)
    t = arith.divf(arith.subf(size, b.number(2.0)), arith.addf(size, b.number(2.0)))
    falling = exp(b, arith.negf(arith.mulf(size, size)))
    large = arith.subf(b.number(1.0), arith.mulf(falling, b.poly(t, _REST)))
    return b.select(P.OLT, math.absf(x), b.number(1.0), small, math.copysign(large, x))
