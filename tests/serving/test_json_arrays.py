"""Arrays in requests and results: values come through as they are, and what does not fit is refused by name."""

import base64
import io
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from meshweave.bundle import NUMPY_DTYPES, Port, numpy_dtype
from meshweave.errors import UsageError
from meshweave.serving.json_arrays import check_form, read_arguments, written


def port(dtype: str, *shape: int, name: str = "x") -> Port:
    return Port(name, dtype, shape, shape, "")


def npy(array: np.ndarray) -> dict[str, str]:
    file = io.BytesIO()
    np.save(file, array)
    return {"npy": base64.b64encode(file.getvalue()).decode()}


def of_type(dtype: str) -> np.ndarray:
    """Six values as the program takes and gives them: the least and the largest, and what floats have besides."""
    kind = np.dtype("float32") if dtype == "bf16" else numpy_dtype(dtype)
    if kind.kind == "b":
        values: Any = [True, False, True, True, False, False]
    elif kind.kind in "iu" or dtype in ("i4", "ui4"):
        limits = ml_dtypes.iinfo(kind)
        values = [int(limits.min), int(limits.max), 0, 1, 2, 3]
    else:
        values = [0.1, -1.5, float("nan"), float("inf"), float("-inf"), 3.0]
    made = np.array(values, kind)
    if kind.kind == "c":
        made.imag = made.real[::-1]
    return made


@pytest.mark.parametrize("form", ["lists", "npy"])
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_a_result_can_be_given_as_an_argument(dtype: str, form: str) -> None:
    value, here = of_type(dtype).reshape(2, 3), port(dtype, 2, 3)
    made = json.loads(json.dumps(written(here, 0, value, form), allow_nan=False))
    assert (made["name"], made["shape"], made["dtype"]) == ("x", [2, 3], dtype)
    given = made["data"] if form == "lists" else {"npy": made["npy"]}
    for inputs in ([given], {"x": given}):
        (again,) = read_arguments([here], inputs)
        assert again.dtype == value.dtype
        wide = [v.astype(np.complex128) for v in (again, value)]
        np.testing.assert_array_equal(*wide)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (0, 3)])
def test_arrays_without_dims_or_elements(shape: tuple[int, ...]) -> None:
    value, here = np.full(shape, 7, np.int32), port("i32", *shape)
    given = written(here, 0, value, "lists")["data"]
    if shape == (0, 3):
        return  # as lists it is [], whose shape is (0,)
    (again,) = read_arguments([here], [given])
    np.testing.assert_array_equal(again, value)


@pytest.mark.parametrize(
    ("dtype", "given", "message"),
    [
        ("f32", [1, 2, 3], "x: shape 3, 2 is right"),
        ("f32", [[1], [2, 3]], "x: the lists are ragged, 2 is right"),
        ("f32", [1, "two"], "x: 'two' is no number"),
        ("f32", [1, "2"], "x: '2' is no number"),
        ("f32", [1, None], "x: values that are no numbers, numbers are right"),
        ("f32", [1, 1e39], "x: a number is too large for float32"),
        ("f16", [1, 70000], "x: a number is too large for float16"),
        ("f32", [True, False], "x: true or false, numbers are right"),
        ("f32", {"data": 1}, 'x: nested lists, or {"npy": base64 of a .npy file}, is needed'),
        ("f32", {"npy": "###"}, "x: no .npy file in base64: Only base64 data is allowed"),
        ("f32", {"npy": "AAAA"}, "x: no .npy file in base64: "),
        ("f32", npy(np.ones(2)), "x: dtype float64, float32 is right"),
        ("f32", npy(np.array([None, None])), "x: no .npy file in base64: .*allow_pickle"),
        ("i32", [1, 2.0], "x: fractions, whole numbers are right"),
        ("i32", [1, 2**31], "x: 2147483648 is no int32"),
        ("ui8", [-1, 2], "x: -1 is no uint8"),
        ("i64", [1, 2**64], "x: 18446744073709551616 is no int64"),
        ("i64", [1, None], "x: values that are no numbers, whole numbers are right"),
        ("i64", [1, 1e30], "x: fractions, whole numbers are right"),
        ("i1", [1, 0], "x: whole numbers, true and false are right"),
        ("complex<f32>", [1, 2], r"x: complex numbers are pairs \[real, imaginary\]"),
    ],
)
def test_what_is_no_argument_is_refused(dtype: str, given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_arguments([port(dtype, 2)], [given])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (3, "inputs: a list in order, or an object by name, is needed"),
        ([1], "inputs: 1 given, the program takes 2: x, input1"),
        ({"x": [1, 2], "z": 1}, 'inputs: no input "z": the program has x, input1'),
        ({"x": [1, 2]}, "inputs: input1 not given"),
    ],
)
def test_inputs_are_those_of_the_program(inputs: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_arguments([port("f32", 2), port("f32", 2, name="")], inputs)


def test_results_have_two_forms() -> None:
    assert check_form("npy") == "npy"
    with pytest.raises(UsageError, match=r'results: \[\]: "lists" or "npy" is right'):
        check_form([])
