"""The example programs, as they are and in bf16."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
NAMES = ("mlp", "attention", "block", "gpt2l")
MESH = "dp=2, tp=2"
TOLERANCE = {"f32": 2e-4, "bf16": 2e-2}
"""Of the largest element of the result that JAX gave in f32."""


def text_of(name: str, dtype: str) -> str:
    """The program; in bf16 all that was f32."""
    text = (EXAMPLES / name / f"{name}.mlir").read_text()
    if dtype == "f32":
        return text
    return re.sub(r"<0x([0-9A-F]{4})[0-9A-F]{4}>", r"<0x\1>", text.replace("f32", dtype))


def arguments(name: str) -> list[np.ndarray]:
    """Its inputs, in order."""
    folder = EXAMPLES / name
    return [np.load(folder / f"in{i}.npy") for i in range(len(list(folder.glob("in*.npy"))))]


def expected(name: str) -> np.ndarray:
    """Its result."""
    return np.load(EXAMPLES / name / "out0.npy")
