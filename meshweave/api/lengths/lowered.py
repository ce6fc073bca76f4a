"""Lower a function for arguments with `Dim`s: trace it at the bounds and at other sizes, and make one of all."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from meshweave.api.lengths.call import Lengths, LengthsCompiled
from meshweave.api.lowered import Lowered
from meshweave.errors import MeshweaveError, UsageError
from meshweave.frontends.python.program import TracedProgram
from meshweave.layout.lengths import Dim, ShapeDtype, Sizes, SizesOfDim, large_sizes, probes

if TYPE_CHECKING:
    from meshweave.api.program import Program

T = TypeVar("T")


def dims_of(leaves: Sequence[object]) -> tuple[Dim, ...]:
    """Return the dims in the shapes of arguments, each once. Raises UsageError where two bounds are one dim's."""
    found: dict[str, Dim] = {}
    for leaf in leaves:
        for size in leaf.shape if isinstance(leaf, ShapeDtype) else ():
            if isinstance(size, Dim) and found.setdefault(size.name, size) != size:
                raise UsageError(
                    f"dim {size.name} is {found[size.name]} and {size}: one bound is right"
                )
    return tuple(found.values())


def lower_lengths(
    leaves: Sequence[object],
    dims: Sequence[Dim],
    lower: Callable[[Sequence[object]], Lowered],
    compiled: MakeCompiled,
) -> LengthsLowered:
    """Return a function lowered for arguments with dims.

    lower: for arguments of known sizes.

    Raises MeshweaveError, at the line at fault, for what cannot have a size that is known only when it is called.
    """
    shapes = tuple([leaf.shape if isinstance(leaf, ShapeDtype) else None for leaf in leaves])

    def trace(sizes: Sizes) -> Lowered:
        return lower([at(leaf, sizes) for leaf in leaves])

    made = one_of_all(leaves, dims, trace, lambda lowered: lowered.program.text)
    lengths = Lengths(tuple(dims), shapes, made.results, made.bounded)
    program = replace(made.traced[0].program, text=made.text)
    return LengthsLowered(made.traced[0], program, lengths, compiled)


@dataclass(frozen=True)
class OneOfAll(Generic[T]):
    """Hold the text of a program that serves all sizes.

    sizes: those traced. traced: what was traced for each. results: as in `Lengths`. bounded: its text for other bounds.
    """

    sizes: Sequence[Sizes]
    traced: Sequence[T]
    text: str
    results: list[list[SizesOfDim]]
    bounded: Callable[[Sizes], str]


def one_of_all(
    leaves: Sequence[object],
    dims: Sequence[Dim],
    trace: Callable[[Sizes], T],
    text_of: Callable[[T], str],
) -> OneOfAll[T]:
    """Return one program that serves all sizes of a function of `leaves`, traced for some of them.

    Raises CompileError, at the line at fault, for what cannot have a size that is known only when it is called.
    """
    ones = dict.fromkeys([dim.name for dim in dims], 1)
    fixed = {n for leaf in leaves for n in getattr(at(leaf, ones), "shape", ())}
    for _ in range(TRIES):
        large = large_sizes(dims, fixed)
        first = _traced(large, trace)
        found = _extents(text_of(first))
        sizes = probes(dims, large, fixed | found)
        traced = [first, *[_traced(probe, trace) for probe in sizes[1:]]]
        same = found.intersection(*(_extents(text_of(one)) for one in traced[1:]))
        if all(n % p or not n for n in same for p in large.values()):
            break  # no size of the program is by chance one of `large`, or has it as a factor
        fixed |= same
    texts = [text_of(one) for one in traced]
    text, results = _masked(texts, sizes, dims)

    def bounded(bounds: Sizes) -> str:
        return _masked(texts, sizes, [replace(dim, max=bounds[dim.name]) for dim in dims])[0]

    return OneOfAll(sizes, traced, text, results, bounded)


GENERALIZE = "builtin.module(func.func(linalg-generalize-named-ops))"
TRIES = 3  # to find sizes that the program does not have by chance


def _extents(text: str) -> set[int]:
    """Return the sizes of dims in the text of a program."""
    shapes = re.findall(r"tensor<((?:\d+x)+)", text)
    return {int(size) for shape in set(shapes) for size in shape.split("x")[:-1]}


def _traced(sizes: Sizes, trace: Callable[[Sizes], T]) -> T:
    """Trace for some sizes; errors say which."""
    try:
        return trace(sizes)
    except MeshweaveError as error:
        said = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise error.told(f"for {said}: {error.message}", error.location) from None


def _masked(
    texts: Sequence[str], sizes: Sequence[Sizes], dims: Sequence[Dim]
) -> tuple[str, list[list[SizesOfDim]]]:
    """Return the program for all sizes, and the sizes of each dim of each result."""
    from meshweave.dialects import context
    from meshweave.dialects.alias import module_text
    from meshweave.frontends.load import load_module
    from meshweave.ir.bindings import PassManager
    from meshweave.transforms.lengths.family import compared, windows_grow
    from meshweave.transforms.lengths.grow import grow
    from meshweave.transforms.lengths.mask import mask_lengths

    ctx = context(unregistered=True)
    with ctx:
        modules = [load_module(text, ctx, "the function", weights=False) for text in texts]
        if windows_grow(modules):
            for module in modules:  # whose maps say what their attributes do
                PassManager.parse(GENERALIZE).run(module.operation)
        family = compared(modules, sizes, dims)
        grow(modules[0], family)
        results = mask_lengths(modules[0], family)
        return module_text(modules[0], debuginfo=True), results


def at(leaf: object, sizes: Sizes) -> object:
    """Return an argument with numbers in the place of dims."""
    return leaf.at(sizes) if isinstance(leaf, ShapeDtype) else leaf


class LengthsLowered(Lowered):
    """Hold a function traced for arguments whose sizes each call chooses, up to bounds."""

    def __init__(
        self, bound: Lowered, program: TracedProgram, lengths: Lengths, compiled: MakeCompiled
    ) -> None:
        """Replace the program of `bound`, which is lowered for some sizes."""
        super().__init__(
            *(bound.name, program, bound.specs, bound.names, bound.mesh, bound.engine),
            *(bound.kernels, bound.verify, bound.leaves_of),
        )
        self.lengths, self._compiled = lengths, compiled

    def bound_leaves(self, leaves: Sequence[object]) -> list[object]:
        """Return arguments with their bounds in the place of dims."""
        return [at(leaf, {dim.name: dim.max for dim in self.lengths.dims}) for leaf in leaves]

    def compile(self, timeout: float | None = None, flight: str | None = None) -> LengthsCompiled:
        """Compile and load the program, as `Lowered.compile`. The function that was lowered takes it from now on."""
        began = time.perf_counter()
        loaded = self.loaded(timeout, flight)
        return self._compiled(self, loaded, time.perf_counter() - began)


MakeCompiled: TypeAlias = Callable[[LengthsLowered, "Program", float], LengthsCompiled]
"""Makes what is called, of a program and the seconds that compiling it took."""
