"""Compute mathematical functions, remainders and quotients by code that LLVM's loop vectoriser can use.

`replace` does it in the text of kernels; each other file has functions of one kind. f16 and bf16 are computed in f32,
some functions of f32 in f64. NaN goes through, infinities, zeros and denormals are right, and errors are at most 2.5
units in the last place, those of log1p, tanh and erf in f32 at most 3 to 6 (tests/lowering/test_mathpoly.py).

Coefficients are lists, highest power first: of log in f32 those of [Moshier, Cephes Mathematical Library, 1992]; of
tanh and erf in f32 rational minimax approximations on the range where the function is not yet constant; all others are
polynomials whose largest relative error is least (for e^x, that of e^x), by Remez' exchange in 60 digits.
Only `lowering/cpu/codegen.py` imports this room.
"""
