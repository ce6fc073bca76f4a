"""Define `mw.special`, the functions of `scipy.special` that programs use, elementwise and with gradients.

They are computed in float64 and rounded once to the type of their argument, float32 of integers.
"""

from __future__ import annotations

from meshweave.frontends.python.functions.elementwise import erf, expm1, log1p
from meshweave.frontends.python.functions.elementwise import sigmoid as expit
from meshweave.frontends.python.functions.reduce import log_softmax, logsumexp, softmax
from meshweave.frontends.python.nn.activations import log_sigmoid as log_expit
from meshweave.frontends.python.special.incomplete import gammainc, gammaincc
from meshweave.frontends.python.special.numbers import (
    beta,
    betaln,
    digamma,
    entr,
    erfc,
    erfcinv,
    erfcx,
    erfinv,
    factorial,
    gamma,
    gammaln,
    i0,
    i0e,
    i1,
    i1e,
    kl_div,
    log_ndtr,
    logit,
    multigammaln,
    ndtr,
    ndtri,
    polygamma,
    psi,
    rel_entr,
    xlog1py,
    xlogy,
    zeta,
)

__all__ = [
    "beta", "betaln", "digamma", "entr", "erf", "erfc", "erfcinv", "erfcx", "erfinv", "expit", "expm1", "factorial",
    "gamma", "gammainc", "gammaincc", "gammaln", "i0", "i0e", "i1", "i1e", "kl_div", "log1p", "log_expit", "log_ndtr",
    "log_softmax", "logit", "logsumexp", "multigammaln", "ndtr", "ndtri", "polygamma", "psi", "rel_entr", "softmax",
    "xlog1py", "xlogy", "zeta",
]  # fmt: skip
