"""Run a bundle whose sizes each call chooses: it says itself which dims those are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from meshweave.api.lengths.call import Lengths, LengthsCompiled, OpenShape
from meshweave.api.lowered import Lowered
from meshweave.api.program import Program
from meshweave.bundle import Bundle, Port, public_dtype
from meshweave.errors import MeshweaveError
from meshweave.frontends.python import tree
from meshweave.frontends.python.dtypes import as_dtype
from meshweave.frontends.python.program import ArgumentSpec, TracedProgram
from meshweave.layout.lengths import Dim, Formula, SizesOfDim
from meshweave.runtime.arrays.array import Array
from meshweave.runtime.engine import Engine


@dataclass
class SizedProgram(Program):
    """Hold a compiled program of which each call chooses sizes, up to bounds; call it as a Program.

    `inputs` are those that a call gives: sizes follow from their shapes.
    """

    @cached_property
    def _compiled(self) -> LengthsCompiled:
        manifest = self.bundle.manifest
        specs = [ArgumentSpec(port.global_shape, as_dtype(_public(port))) for port in self.inputs]
        structure = tree.Container(tuple, None, (tree.LEAF,) * len(manifest.outputs))
        names = [f'{index} "{port.name}"' for index, port in enumerate(self.inputs)]
        traced = TracedProgram("", structure)
        lowered = Lowered(self.name or "program", traced, specs, names, self.mesh, manifest.engine)
        return LengthsCompiled(lowered, self, 0.0, lengths_of(self.bundle))

    @property
    def inputs(self) -> Sequence[Port]:
        """List the inputs that a call gives, in order, as large as the bounds."""
        return [port for port in self.bundle.manifest.given if not port.length]

    def __call__(self, *arrays: object) -> tuple[Any, ...]:
        """Run the program once. Raises MeshweaveError for wrong arguments, RankError when a rank fails."""
        if len(arrays) != len(self.inputs):
            raise MeshweaveError(f"{len(arrays)} inputs, the program has {len(self.inputs)}")
        given = [_narrowed(value, port) for value, port in zip(arrays, self.inputs)]
        began = time.perf_counter()
        results = self._compiled.call(given)
        self.seconds["run"] = time.perf_counter() - began
        return tuple([result.numpy() for result in results])


def program_of(bundle: Bundle, engine: Engine) -> Program:
    """Return the loaded program of a bundle."""
    sized = any(port.length for port in bundle.manifest.given)
    return (SizedProgram if sized else Program)(bundle, engine)


def lengths_of(bundle: Bundle) -> Lengths:
    """Return what calls of a bundle's program may choose. Raises MeshweaveError where its manifest does not fit."""
    manifest = bundle.manifest
    arguments = [port for port in manifest.given if not port.length]
    bounds = {
        name: size
        for port in arguments
        for name, size in zip(port.lengths, port.global_shape)
        if name
    }
    try:
        dims = {
            p.length: Dim(p.length, bounds[p.length], p.least) for p in manifest.given if p.length
        }
        shapes: list[OpenShape | None] = [
            tuple([dims[n] if n else s for n, s in zip(port.lengths, port.global_shape)])
            if port.lengths
            else None
            for port in arguments
        ]
    except KeyError as error:
        raise MeshweaveError(f"the manifest has no bound of size {error}") from None
    return Lengths(tuple(dims.values()), tuple(shapes), [_sizes(p) for p in manifest.outputs])


def _sizes(port: Port) -> list[SizesOfDim]:
    """Return what the size of each dim of a result is a product of."""
    names = port.lengths or ("",) * len(port.global_shape)
    parts = [_size(n) if n else size for n, size in zip(names, port.global_shape)]
    found, first = list[SizesOfDim](), 0
    for many in port.merged or (1,) * len(parts):
        found.append(tuple(parts[first : first + many]))
        first += many
    return found


def _size(text: str) -> str | Formula:
    formula = Formula.parse(text)
    return formula.dim or formula


def _public(port: Port) -> str:
    return str(public_dtype(port.dtype).name)


def _narrowed(value: object, port: Port) -> object:
    """Return an argument of a bf16 port as bf16: it comes as float32, or as its bits."""
    if port.dtype != "bf16" or isinstance(value, Array):
        return value
    array = np.asarray(value)
    bf16 = public_dtype("bf16")
    return array.view(bf16) if array.dtype == np.uint16 else array.astype(bf16)
