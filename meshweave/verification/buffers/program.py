"""Hold a program on tensors or on buffers as plain values: what the check reads of it, and no more.

Values are numbered. On tensors each value is made once; on buffers a value is a view of memory.

    what        operands                        results   key
    scalar      scalars                         scalar    `ComputedScalar`
    constant                                    tensor or buffer   its elements, as one hashable value
    place                                       buffer    `BufferAddress`
    view        source, dynamic offsets         view      `Subview`
    reshape     source                          view
    insert      source, target, dynamic offsets tensor    `Subview`
    elements    scalars                         tensor
    put         scalar, tensor, indices         tensor
    copy        source, target
    store       scalar, buffer, indices
    load        tensor or buffer, indices       scalar
    choose      condition, two tensors or buffers          one of them
    work        what is read, then what is written         tensors   `Work`
    for         lower, upper, step, what is carried        what is carried
    if          condition
    while       what is carried
    fuse                                                   rows
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from meshweave.verification.buffers.regions import ByteRegion


class Where(Protocol):
    """A place in the source, made into text where it is reported."""

    def __str__(self) -> str:
        """Return `file:line:col`."""


class Shape(NamedTuple):
    """Describe how the elements of a tensor or buffer lie.

    strides, offset: in bytes; offset None: not known. width: bytes of one. nbytes: of all. region: their bytes, from
    that of the first on. dense: whether they lie in order, with nothing between them.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int | None
    width: int
    element: str
    nbytes: int
    region: ByteRegion
    dense: bool


class Subview(NamedTuple):
    """Describe a box of a tensor or buffer: None stands for the next dynamic offset."""

    offsets: tuple[int | None, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]


class BufferAddress(NamedTuple):
    """Describe where a buffer lies. number: of the buffer, for reports."""

    offset: int
    nbytes: int
    number: int

    def __str__(self) -> str:
        """Name the buffer, for a message."""
        return f"buffer {self.number} at bytes {self.offset} to {self.offset + self.nbytes}"


class Work(NamedTuple):
    """Describe what runs: a kernel, a collective, a function.

    kind: "launch", "collective", "start", "wait", "routine" or "call". name: of kernel, collective, routine or callee.
    details: what else must be the same in both programs. outs: how many operands are written. memory: how many more,
    on buffers, are the step's own memory. ticket: of start and wait; area, sent: see `mw.start`.
    """

    kind: str
    name: str
    details: Hashable
    outs: int
    memory: int = 0
    ticket: int = -1
    area: int = -1
    sent: int = 0


class CheckedStep(NamedTuple):
    """Describe one thing that a program does; `what` and the rest are as in the table above."""

    what: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    key: Hashable
    where: Where
    bodies: tuple[StepBlock, ...] = ()
    dead: bool = False  # nothing reads its results


class StepBlock(NamedTuple):
    """Hold the steps of a block. ends: the operands of its last op."""

    arguments: tuple[int, ...]
    steps: tuple[CheckedStep, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """Hold a function. outputs: how many of the arguments, the last, it writes (on buffers). arena: bytes of it.

    taken: for each of these the input that it writes in its place, -1 for none; empty: none for all. promised: the
    same, as `mw.program` says. empty: values that are tensors which nobody has written.
    """

    name: str
    body: StepBlock
    outputs: int
    arena: int
    where: Where
    taken: tuple[int, ...] = ()
    promised: tuple[int, ...] = ()
    empty: tuple[int, ...] = ()


class AffineIndex(NamedTuple):
    """Hold const + sum of factor * loop over `loops` + sum of factor * operand of the launch over `operands`."""

    const: int
    loops: tuple[tuple[int, int], ...]
    operands: tuple[tuple[int, int], ...]


Indices = tuple[AffineIndex, ...] | None
"""Where an element lies, an index for each dim; None: at a computed place."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Describe what a kernel touches.

    loads: the operand and place of each element that is read. outputs: the place of each that is written. continues:
    whether an output goes on from what its buffer holds. product: a contraction.
    """

    sizes: tuple[int, ...]
    reductions: frozenset[int]
    loads: tuple[tuple[int, Indices], ...]
    outputs: tuple[Indices, ...]
    continues: tuple[bool, ...]
    product: bool


@dataclass(frozen=True, slots=True)
class CheckedProgram:
    """Hold functions by name, callees before callers, shapes by value, and kernels by name."""

    functions: Mapping[str, Function]
    shapes: Mapping[int, Shape]
    kernels: Mapping[str, Kernel]
