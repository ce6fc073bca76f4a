"""What users get wrong: each mistake is one line that names the function, its values, what is right, and the place."""

import math

import numpy as np
import pytest
from traced import mw

from meshweave.errors import MeshweaveError

X = np.arange(6, dtype=np.float32).reshape(2, 3)
I = np.arange(6, dtype=np.int8).reshape(2, 3)  # noqa: E741


def branch(x, i):
    if x > 0:
        return x
    return -x


def hinted(**hints):
    def f(x, i):
        with mw.hint(**hints):
            return x + 1

    return f


MISTAKES = [
    # numbers and dtypes
    (lambda x, i: i + 300, "300 is no int8"),
    (lambda x, i: mw.where(i > 2, i, 300), "300 is no int8"),
    (lambda x, i: mw.full((3,), math.nan, dtype="i32"), "nan is no int32"),
    (lambda x, i: mw.full((3,), math.inf, dtype=int), "inf is no int64"),
    (lambda x, i: x < 1j, r"less: dtype meshweave.complex64, a real one is right"),
    (lambda x, i: mw.full((3,), 1j, dtype="f32"), "1j is no float32"),
    (lambda x, i: mw.astype(x + 1j, "f32"), "complex64 does not become meshweave.float32: mw.real"),
    (lambda x, i: mw.fft.fft(x, norm="half"), "fft: norm='half', backward, ortho, forward are right"),
    (lambda x, i: mw.fft.fft(x, n=0), "fft: n=0, at least 1 is right"),
    (lambda x, i: mw.fft.rfft(x * 1j), "rfft: dtype meshweave.complex64, a real one is right"),
    (lambda x, i: x & 1, "bitwise_and: dtype meshweave.float32, an integer or bool is right"),
    (lambda x, i: x << 1, "bitwise_left_shift: dtype meshweave.float32, an integer is right"),
    (lambda x, i: -(x > 0), "negative: dtype meshweave.bool, a number is right"),
    (lambda x, i: mw.sum(x, dtype=bool), "sum: dtype meshweave.bool, a number is right"),
    (lambda x, i: mw.astype(x, "float8"), "dtype float8: known are bool, int8"),
    (lambda x, i: mw.zeros((2,), dtype=np.longdouble), "zeros: dtype .*longdouble.*: known are"),
    (lambda x, i: mw.nextafter(i, i), "nextafter: dtype meshweave.int8, a floating one is right"),
    (lambda x, i: mw.isdtype(x.dtype, "float") or x, 'isdtype: kind "float": known are bool'),
    # shapes and axes
    (lambda x, i: x @ x, "matmul: shapes 2x3 and 2x3 do not fit: 3 columns meet 2 rows"),
    (lambda x, i: x + x.T, "shapes 2x3 and 3x2 do not broadcast: dim -2 has sizes"),
    (lambda x, i: mw.reshape(x, (4, 2)), "reshape: 2x3 has 6 elements, 4x2 has 8"),
    (lambda x, i: mw.reshape(x, (2.0, 3)), r"reshape: shape \(2.0, 3\), integers are right"),
    (lambda x, i: mw.sum(x, axis=2), "sum: there is no dim 2 of 2 dims"),
    (lambda x, i: mw.sum(x, axis=1.0), "sum: axis 1.0 is no integer"),
    (lambda x, i: mw.mean(x, axis=(0, -2)), "mean: a dim is named twice"),
    (lambda x, i: mw.max(x[:0]), r"max: there are no elements along dims \(0, 1\)"),
    (lambda x, i: mw.argmin(x[:0], axis=0), "argmin: there are no elements along dim 0"),
    (lambda x, i: mw.squeeze(x, 0), "squeeze: dim 0 has size 2, 1 is right"),
    (lambda x, i: mw.concat([x, x.T]), "concat: 3x2 beside 2x3: only dim 0 may differ"),
    (lambda x, i: mw.concat([]), "concat: no arrays"),
    (lambda x, i: mw.stack([x, x[0]]), "stack: shapes 3 and 2x3 must be equal"),
    (lambda x, i: mw.permute_dims(x, (0,)), "permute_dims: 1 dims in"),
    (lambda x, i: mw.broadcast_to(x, (3, 3)), "do not broadcast"),
    (lambda x, i: mw.cumulative_sum(x), "cumulative_sum: x has 2 dims: say along which axis"),
    (lambda x, i: mw.tril(x[0]), "tril: x has 1 dims, at least 2 are right"),
    (lambda x, i: x[0].T, r"x.T: x has 1 dims, 2 are right"),
    (lambda x, i: mw.einsum("ij,jk", x, x), "einsum: shapes .* do not fit"),
    (lambda x, i: mw.einsum("ii->i", x), "diagonals are not supported"),
    (lambda x, i: mw.zeros((-1,)), r"full: shape \(-1,\), sizes must not be negative"),
    (lambda x, i: mw.asarray([[1, 2], [3]]), "asarray: the lists are not of one length"),
    (lambda x, i: mw.asarray("one"), "an array is needed, got str"),
    (lambda x, i: mw.exp([1.0]), "got a list: mw.asarray or mw.stack make one"),
    (lambda x, i: mw.arange(math.inf), "arange: .*finite Python numbers"),
    (lambda x, i: mw.arange(0, 5, 0), "a step that is not 0"),
    (lambda x, i: mw.arange(300, dtype="i8"), "arange: 299 is no meshweave.int8"),
    (lambda x, i: mw.linspace(0, 1, 2.5), "linspace: .*a count are right"),
    (lambda x, i: mw.repeat(x, [1, 2], axis=1), "repeat: repeats=.*one number or 3"),
    (lambda x, i: mw.repeat(x, i[0], axis=1), "repeats is known only when the program runs"),
    (lambda x, i: mw.var(x, correction="1"), "var: correction='1', a Python number is right"),
    # indices
    (lambda x, i: x[2], "index 2 is out of range: dim 0 has size 2"),
    (lambda x, i: x[[0, 2]], "index 2 is out of range: dim 0 has size 2"),
    (lambda x, i: x[0, 0, 0], "3 indices for 2 dims"),
    (lambda x, i: x[1.5], "index 1.5: integers, slices"),
    (lambda x, i: x["a"], "index 'a': integers, slices"),
    (lambda x, i: x[x > 1], "an index is a mask: .*use mw.where"),
    (lambda x, i: x[:: i[0, 0]], "the bounds of a slice must be known when tracing|cannot become a number"),
    (lambda x, i: mw.take(x, x, axis=0), "take: indices of dtype meshweave.float32, integers"),
    (lambda x, i: x.__setitem__(2, 1), "index 2 is out of range: dim 0 has size 2"),
    # Python on values that only the run knows
    (branch, "a branch on a value that is known only when the program runs: use mw.where"),
    (lambda x, i: 0 < x < 1, "a branch on a value"),
    (lambda x, i: (1 in x), r"mw.any\(x == value\) is right"),
    (lambda x, i: range(i[0, 0]), "it cannot become a number"),
    (lambda x, i: math.sqrt(x[0, 0]), "it cannot become a number"),
    (lambda x, i: f"{x[0, 0]:.2f}", "it cannot become a number"),
    (lambda x, i: list(x[0, 0]), "iteration over x: it has no dims"),
    (lambda x, i: len(x[0, 0]), "x has no dims"),
    # NumPy's functions on traced values
    (lambda x, i: np.exp(x), "np.exp does not work on traced values: mw.exp does"),
    (lambda x, i: np.arctan2(x, x), "mw.atan2 does"),
    (lambda x, i: np.sum(x), "np.sum does not work on traced values: mw.sum does"),
    (lambda x, i: np.concatenate([x, x]), "mw.concat does"),
    (lambda x, i: np.linalg.svd(x), "np.svd does not work on traced values$"),
    (lambda x, i: np.add.reduce(x), "mw.sum does"),
    (lambda x, i: np.asarray(x), "no elements before the program runs"),
    # results, placement, hints
    (lambda x, i: None, "the function returns no array"),
    (lambda x, i: {"y": x, "name": "a"}, r"result\['name'\] is a str: no array"),
    (lambda x, i: mw.constrain(x, "[z, _]"), r'constrain: layout \[z, _\]: no axis "z" in mesh'),
    (lambda x, i: mw.constrain(x, "[x]"), r"constrain: layout \[x\] has 1 dims, the tensor 2x3"),
    (lambda x, i: mw.constrain(x, 3), "constrain: layout: text such as"),
    (hinted(slce="t=2"), 'unknown hint "slce": known are slice, order'),
    (hinted(slice="t=two"), 'hint slice = "t=two": NAME=COUNT'),
    (hinted(), "hint: nothing is asked for"),
    (hinted(order="sideways", slice="t=2"), "order"),
    # control flow
    (lambda x, i: mw.scan(lambda c, r: c, x[0], x), "scan: f must return two things"),
    (lambda x, i: mw.scan(lambda c, r: (c[:2], r), x[0], x), "scan: the carry is 2xf32, it must stay 3xf32"),
    (lambda x, i: mw.scan(lambda c, r: (c, r), x, None), "neither xs nor length says how many rounds"),
    (lambda x, i: mw.cond(x > 0, lambda: x, lambda: x), "cond: the condition is 2x3xi1, one bool is right"),
    (lambda x, i: mw.cond(x[0, 0] > 0, lambda: x, lambda: i), "cond: what the second branch returns"),
    (lambda x, i: mw.while_loop(lambda c: c, lambda c: c, x), "while_loop: the condition is 2x3xf32"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "says"), MISTAKES, ids=[str(n) for n in range(len(MISTAKES))])
def test_a_mistake_is_one_line_at_the_users_own(function, says):
    with pytest.raises(MeshweaveError, match=says) as caught:
        mw.jit(function, mesh="x=2")(X, I)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    file, _, line = caught.value.location.rpartition(":")
    code = function.__code__
    assert file == __file__
    assert 0 <= int(line) - code.co_firstlineno <= 2, caught.value.location


PLAIN = [
    (lambda x: x.exp(), AttributeError, r"a traced value has no attribute 'exp': mw\.exp\(x\) is right"),
    (lambda x: x.spam, AttributeError, "a traced value has no attribute 'spam'$"),
    (lambda x: x + "a", TypeError, "unsupported operand"),
    (lambda x: mw.sum(x, 1, 2), TypeError, "positional argument"),
    (lambda x: mw.fht(x), AttributeError, "module 'meshweave' has no attribute 'fht'"),
    (lambda x: {}["missing"], KeyError, "missing"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "kind", "says"), PLAIN)
def test_pythons_own_errors_stay_what_they_are(function, kind, says):
    with pytest.raises(kind, match=says):
        mw.jit(function)(X)
    assert mw.jit(lambda x: x + 1)(X).shape == (2, 3)  # the next trace begins anew


def test_functions_outside_of_a_program_say_so():
    for call in (lambda: mw.constrain(X, "[_, _]"), lambda: mw.hint(order="dfs").__enter__()):
        with pytest.raises(
            MeshweaveError, match=r"work inside a function under @mw\.jit"
        ) as caught:
            call()
        assert caught.value.location.startswith(f"{__file__}:")
