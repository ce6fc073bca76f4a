"""Read the parts of a constant tensor of complex numbers, which the bindings do not know: from its text."""

from __future__ import annotations

import re

import numpy as np

from meshweave.ir.bindings import ir
from meshweave.ir.build import tensor_type

_DENSE = re.compile(r"dense<(.*)> : tensor<((?:\d+x)*)complex<(f\d+)>>", re.DOTALL)
_TO_LISTS = str.maketrans("()", "[]")


def constant_parts(op: ir.Operation) -> tuple[ir.Attribute, ir.Attribute]:
    """Return the elements of the real and of the imaginary part of an arith.constant."""
    found = _DENSE.search(op.get_asm(use_local_scope=True))
    assert found is not None, "arith.constant prints its elements"
    text, shape, element = found.groups()
    type_ = tensor_type([int(n) for n in shape.split("x")[:-1]], ir.Type.parse(element))
    if text.startswith("("):
        pair = _numbers(f"dense<{text}> : tensor<2x{element}>")
        one, other = [
            ir.DenseElementsAttr.get_splat(type_, ir.FloatAttr.get(type_.element_type, float(n)))
            for n in pair
        ]
        return one, other
    parts = _numbers(f"dense<{text}> : tensor<{shape}2x{element}>")
    one, other = [
        ir.DenseElementsAttr.get(np.ascontiguousarray(parts[..., k]), type=type_) for k in (0, 1)
    ]
    return one, other


def _numbers(text: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the elements of a constant whose pairs of numbers are lists."""
    head, elements, tail = re.split(r"(?<=dense<)(.*)(?=> : )", text, flags=re.DOTALL)
    if not elements.startswith('"'):
        elements = elements.translate(_TO_LISTS)
    return np.array(ir.DenseElementsAttr(ir.Attribute.parse(head + elements + tail)))
