"""Arrays as JSON: nested lists, or a .npy file in base64; the ports of a program say what is right.

Infinities and NaN, which JSON has not, are the strings "inf", "-inf" and "nan". A complex number is a pair in one more
dim. bf16 and floats of 8 bits are given and returned as f32, integers of 4 bits as those of 8.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshweave.bundle import OF_A_BYTE, Port, numpy_dtype
from meshweave.errors import UsageError

_FORMS = ("lists", "npy")
_WORDS = {"inf": np.inf, "-inf": -np.inf, "nan": np.nan}
_KINDS = {"f": "iuf", "i": "iu", "u": "iu", "b": "b", "c": ""}  # of lists, for each kind of dtype
_RIGHT = {
    "f": "numbers", "i": "whole numbers", "u": "whole numbers", "b": "true and false",
    "c": "pairs [real, imaginary]",
}  # fmt: skip


def described(port: Port, index: int, what: str) -> dict[str, Any]:
    """Return what a client must know of a port."""
    names = port.lengths or ("",) * len(port.global_shape)
    shape = [own or size for own, size in zip(names, port.global_shape)]
    return {"name": port_name(port, index, what), "shape": shape,
            "dtype": port.dtype, "layout": port.layout}  # fmt: skip


def port_name(port: Port, index: int, what: str) -> str:
    """Return the name of a port, or "result0" where it has none."""
    return port.name or f"{what}{index}"


def read_arguments(ports: Sequence[Port], given: object) -> list[np.ndarray[Any, Any]]:
    """Return the arguments of a program: a list in order, or an object by name. Raises UsageError."""
    names = [port_name(port, index, "input") for index, port in enumerate(ports)]
    if isinstance(given, Mapping):
        for name in given:
            if name not in names:
                raise UsageError(f'inputs: no input "{name}": the program has {_few(names)}')
        missing = [name for name in names if name not in given]
        if missing:
            raise UsageError(f"inputs: {_few(missing)} not given")
        given = [given[name] for name in names]
    if not isinstance(given, list):
        raise UsageError("inputs: a list in order, or an object by name, is needed")
    if len(given) != len(ports):
        raise UsageError(
            f"inputs: {len(given)} given, the program takes {len(ports)}: {_few(names)}"
        )
    return [_read(port, name, value) for port, name, value in zip(ports, names, given)]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names)[:300] or "none"


def _read(port: Port, name: str, value: object) -> np.ndarray[Any, Any]:
    """Return an argument as the program takes it. Raises UsageError that names it."""
    wanted = _as_told(port)
    found = _npy(name, value) if isinstance(value, Mapping) else _lists(port, name, value, wanted)
    if found.shape != port.at(found.shape).global_shape:
        raise UsageError(f"{name}: shape {_by(found.shape)}, {_by(port.global_shape)} is right")
    if found.dtype != wanted:
        raise UsageError(f"{name}: dtype {found.dtype}, {wanted} is right")
    if port.dtype not in OF_A_BYTE:
        return found
    made = found.astype(numpy_dtype(port.dtype))
    if wanted.kind in "iu" and (made.astype(wanted) != found).any():
        raise UsageError(f"{name}: a number is no {made.dtype}")
    return made


def _as_told(port: Port) -> np.dtype[Any]:
    """Return the dtype in which JSON has the numbers of a port: a wider one where NumPy does not know them."""
    if port.dtype == "bf16" or port.dtype.startswith("f8"):
        return np.dtype(np.float32)
    return np.dtype({"i4": np.int8, "ui4": np.uint8}.get(port.dtype, numpy_dtype(port.dtype)))


def _npy(name: str, value: Mapping[str, object]) -> np.ndarray[Any, Any]:
    text = value.get("npy")
    if set(value) != {"npy"} or not isinstance(text, str):
        raise UsageError(f'{name}: nested lists, or {{"npy": base64 of a .npy file}}, is needed')
    try:
        found = np.load(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False)
    except Exception as error:  # zipfile, tokenize and others raise their own kinds
        said = " ".join(str(error).split())[:160] or type(error).__name__
        raise UsageError(f"{name}: no .npy file in base64: {said}") from None
    if not isinstance(found, np.ndarray):
        raise UsageError(f"{name}: an .npz archive: a .npy file is right")
    return found


def _lists(port: Port, name: str, value: object, wanted: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return nested lists as an array, if no value changes its meaning."""
    try:
        found = np.asarray(value)
    except ValueError:
        right = _by(port.global_shape)
        raise UsageError(f"{name}: the lists are ragged, {right} is right") from None
    if wanted.kind in "fc" and found.dtype.kind == "U":
        found = _with_words(name, np.asarray(value, object))
    if wanted.kind == "c" and found.dtype.kind in "iuf":
        return _paired(port, name, found, wanted)
    # Floats or objects are what NumPy makes of numbers beyond 63 bits.
    if wanted.kind in "iu" and found.dtype.kind in "fO":
        whole = np.asarray(value, object)
        if whole.size and all(type(number) is int for number in whole.flat):
            return _fitting(name, whole, wanted)
    if found.size == 0 and found.dtype.kind == "f":  # what NumPy makes of lists without a number
        return found.astype(wanted)
    if found.dtype.kind not in _KINDS[wanted.kind]:
        raise UsageError(f"{name}: {_said(found)}, {_RIGHT[wanted.kind]} are right")
    return _fitting(name, found, wanted)


def _paired(
    port: Port, name: str, found: np.ndarray[Any, Any], wanted: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    """Return pairs as complex numbers."""
    if found.ndim != len(port.global_shape) + 1 or found.shape[-1] != 2:
        raise UsageError(f"{name}: complex numbers are {_RIGHT['c']}")
    made = np.empty(found.shape[:-1], wanted)
    made.real, made.imag = found[..., 0], found[..., 1]
    return made


def _fitting(name: str, found: np.ndarray[Any, Any], wanted: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return numbers in the dtype that is wanted. Raises UsageError for one that it does not hold."""
    if wanted.kind in "iu" and found.size:
        limits = np.iinfo(wanted)
        for number in (int(found.min()), int(found.max())):
            if not int(limits.min) <= number <= int(limits.max):
                raise UsageError(f"{name}: {number} is no {wanted}")
    with np.errstate(over="ignore"):
        made = found.astype(wanted)
    if wanted.kind == "f" and np.isinf(made).sum() > np.isinf(found.astype(np.float64)).sum():
        raise UsageError(f"{name}: a number is too large for {wanted}")
    return made


def _said(found: np.ndarray[Any, Any]) -> str:
    known = {"b": "true or false", "f": "fractions", "i": "whole numbers", "u": "whole numbers"}
    return known.get(found.dtype.kind, "values that are no numbers")


def _with_words(name: str, found: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return numbers among which "inf", "-inf" and "nan" stand for what they say."""
    made = np.empty(found.shape, np.float64)
    for at, value in np.ndenumerate(found):
        number = _WORDS.get(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise UsageError(f"{name}: {value!r:.40} is no number")
        made[at] = number
    return made


def check_form(form: object) -> str:
    """Return the form in which results are asked for. Raises UsageError."""
    if form not in _FORMS:
        raise UsageError(f'results: {form!r:.40}: "lists" or "npy" is right')
    return str(form)


def written(port: Port, index: int, value: np.ndarray[Any, Any], form: str) -> dict[str, Any]:
    """Return a result as JSON takes it, in the form "lists" or "npy"."""
    array = np.asarray(value).astype(_as_told(port), copy=False)
    made: dict[str, Any] = {"name": port_name(port, index, "result"), "shape": list(array.shape),
                            "dtype": port.dtype}  # fmt: skip
    if form == "npy":
        file = io.BytesIO()
        np.save(file, array, allow_pickle=False)
        return {**made, "npy": base64.b64encode(file.getvalue()).decode()}
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], axis=-1)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return {**made, "data": _worded(array.tolist())}
    return {**made, "data": array.tolist()}


def _worded(value: Any) -> Any:
    """Return nested lists with words for what JSON has no numbers for."""
    if isinstance(value, list):
        return [_worded(inner) for inner in value]
    return value if np.isfinite(value) else str(value)


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "()"
