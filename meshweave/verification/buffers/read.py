"""Read a module of the `mw` dialect, on tensors or on buffers, as the plain values of program.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial

from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.build import DYNAMIC
from meshweave.ir.calls import CALLS, called
from meshweave.ir.locations import location_text
from meshweave.ir.ops import functions_of
from meshweave.layout.mesh import Mesh
from meshweave.verification.answer import Finding
from meshweave.verification.buffers.program import (
    AffineIndex,
    BufferAddress,
    CheckedProgram,
    CheckedStep,
    Function,
    Indices,
    Kernel,
    Shape,
    StepBlock,
    Subview,
    Work,
)
from meshweave.verification.buffers.regions import ZERO, region
from meshweave.verification.buffers.scalars import ComputedScalar
from meshweave.verification.terms.samples import OpenError, applied

_WIDTHS = {
    "f64": 8, "i64": 8, "index": 8, "f32": 4, "i32": 4,
    "f16": 2, "bf16": 2, "i16": 2, "i8": 1, "i1": 1,
}  # fmt: skip
_WORK = {
    "mw.launch": "launch", "mw.collective": "collective", "mw.start": "start", "mw.wait": "wait",
    "mw.call": "call", "func.call": "call", **dict.fromkeys(CALLS, "routine"),
}  # fmt: skip
# Ops that must be in both programs if they are read.
_MEETING = ("mw.collective", "mw.start", "mw.wait")
_VIEWS = ("tensor.extract_slice", "memref.subview")
_RESHAPES = (
    "tensor.expand_shape", "tensor.collapse_shape", "tensor.cast", "memref.expand_shape",
    "memref.collapse_shape", "memref.cast", "mw.share",
)  # fmt: skip
_LOOPS = {"scf.for": "for", "scf.if": "if", "scf.while": "while"}
_BODIES = (*_LOOPS, "mw.fuse")
_OWN = {"kernel", "outs", "callee", "symbol", "ticket", "area", "sent", "scratch"}


class NoRuleError(CompileError):
    """Tell of an op that the check has no rule for."""


_step: Callable[[tuple[object, ...]], CheckedStep] = partial(tuple.__new__, CheckedStep)
"""Make a step of its seven fields, in half the time."""


class SourcePlace:
    """Say where an op comes from, once it is asked."""

    __slots__ = ("location",)

    def __init__(self, location: ir.Location) -> None:
        self.location = location

    def __str__(self) -> str:
        """Return `file:line:col`."""
        return location_text(self.location)


def changed_kernels(before: CheckedProgram, after: CheckedProgram) -> list[Finding]:
    """Return a finding for each kernel that is not what its name says in the program on tensors."""
    kernels = after.kernels
    return kernels.changed_from(before.kernels) if isinstance(kernels, _Kernels) else []


def read(module: ir.Module) -> CheckedProgram:
    """Return a program that fuse-kernels or plan-memory has made. Raises NoRuleError for an op without a rule."""
    reader = _FunctionReader(module)
    functions = {name: reader.function(name, op) for name, op in functions_of(module).items()}
    return CheckedProgram(functions, reader.shapes, _Kernels(module))


class _FunctionReader:
    """Read functions; values are numbered as they appear."""

    def __init__(self, module: ir.Module) -> None:
        self.shapes: dict[int, Shape] = {}
        self._numbers: dict[ir.Value, int] = {}
        self._forms: dict[ir.Type, Shape | None] = {}
        self._windows: dict[tuple[ir.Attribute, ...], Subview] = {}
        self._constants: dict[int, int] = {}
        self._places: dict[int, int] = {}  # of the buffers of a function, by number
        self._empty: list[int] = []  # tensors of a function that nobody has written
        ops = [view.operation for view in module.operation.regions[0].blocks[0].operations]
        globals_ = [op.attributes for op in ops if op.name == "memref.global"]
        self._globals = {a["sym_name"].value: a["initial_value"] for a in globals_}
        self._takes = next((_takes(op) for op in ops if op.name == "mw.program"), ())
        self._members = [n for op in ops if op.name == "mw.program" for n in _members(op)]

    def function(self, name: str, op: ir.Operation) -> Function:
        """Return a function. `outputs` is 0 on tensors."""
        blocks, attributes = op.regions[0].blocks, op.attributes
        self._places, self._empty = {}, []
        body = self._body(blocks[0]) if len(blocks) else StepBlock((), (), ())
        outputs, arena = (
            attributes[key].value if key in attributes else 0
            for key in ("mw.outputs", "mw.arena_bytes")
        )
        taken = tuple(attributes["mw.taken"]) if "mw.taken" in attributes else ()
        if taken and (len(taken) != outputs or max(taken) >= len(body.arguments) - outputs):
            raise NoRuleError(
                f"@{name}: mw.taken {list(taken)} is of other inputs", location_text(op.location)
            )
        promised = self._takes if name == "main" and outputs else ()
        place, empty = SourcePlace(op.location), tuple(self._empty)
        return Function(name, body, outputs, arena, place, taken, promised, empty)

    def _body(self, block: ir.Block) -> StepBlock:
        arguments = tuple([self._new(value) for value in block.arguments])
        *ops, end = [view.operation for view in block.operations]
        steps: list[CheckedStep] = []
        for op in ops:
            self._read(op, steps)
        return StepBlock(arguments, tuple(steps), tuple([self._number(v) for v in end.operands]))

    def _new(self, value: ir.Value) -> int:
        number = self._numbers[value] = len(self._numbers)
        type_ = value.type
        shape = self._forms.get(type_) or self._shape(type_)
        if shape is not None:
            self.shapes[number] = shape
        return number

    def _number(self, value: ir.Value) -> int:
        return self._numbers[value]

    def _shape(self, type_: ir.Type) -> Shape | None:
        if type_ not in self._forms:
            self._forms[type_] = _shape_of(type_)
        return self._forms[type_]

    # Ops.

    def _read(self, op: ir.Operation, steps: list[CheckedStep]) -> None:
        """Add the steps of an op."""
        name = op.name
        if name == "tensor.empty":
            self._empty.append(self._new(op.result))
            return
        if name in _LOOPS and self._inlined(op, name, steps):
            return
        operands = tuple(map(self._numbers.__getitem__, op.operands))
        bodies: tuple[StepBlock, ...] = ()
        if name in _BODIES:
            bodies = tuple([self._region(region) for region in op.regions])
        what, key = self._kind(op, name, operands)
        results = tuple(map(self._new, op.results))
        if what == "scalar":
            known = key if isinstance(key, int) else self._folded(key, operands)
            if known is not None:
                self._constants[results[0]], key, operands = known, known, ()
        dead = name in _MEETING and not any(True for value in op.results for _ in value.uses)
        place = SourcePlace(op.location)
        steps.append(_step((what, operands, results, key, place, bodies, dead)))

    def _folded(self, key: Hashable, operands: Sequence[int]) -> int | None:
        """Return the integer that an op on known integers gives; None where it is not known."""
        assert isinstance(key, ComputedScalar)
        values = [self._constants.get(number) for number in operands]
        if None in values or not values or not isinstance(key.details, tuple):
            return None
        if key.name == "arith.select":
            return values[1] if values[0] else values[2]
        *details, types, type_ = key.details
        try:
            number = applied(key.name, tuple(details), str(type_), values, list(map(str, types)))
        except OpenError:
            return None
        return number if isinstance(number, int) else None

    def _region(self, region: ir.Region) -> StepBlock:
        return self._body(region.blocks[0]) if len(region.blocks) else StepBlock((), (), ())

    def _inlined(self, op: ir.Operation, name: str, steps: list[CheckedStep]) -> bool:
        """Add the steps of a loop of one trip or none, or of a branch that is surely taken; tell whether it is such."""
        operands = [self._number(value) for value in op.operands]
        if name == "scf.while" or any(
            n not in self._constants for n in operands[: 3 if name == "scf.for" else 1]
        ):
            return False
        constants = [self._constants.get(n, 0) for n in operands]
        if name == "scf.for":
            low, high, step = constants[:3]
            trips = max(0, -(-(high - low) // step)) if step > 0 else 2
            if trips > 1:
                return False
            values, block = operands[3:], op.regions[0].blocks[0] if trips else None
            for value, number in zip(
                list(block.arguments) if block else (), [operands[0], *values]
            ):
                self._numbers[value] = number
        else:
            region = op.regions[0 if constants[0] else 1]
            values, block = [], region.blocks[0] if len(region.blocks) else None
        if block is not None:
            *ops, end = [view.operation for view in block.operations]
            for inner in ops:
                self._read(inner, steps)
            values = [self._number(value) for value in end.operands]
        for value, number in zip(op.results, values):
            self._numbers[value] = number
        return True

    def _kind(self, op: ir.Operation, name: str, operands: Sequence[int]) -> tuple[str, Hashable]:
        attributes = op.attributes
        if name in _WORK:
            return "work", _work(op, name)
        if name in _VIEWS:
            return "view", self._window(op, operands[1:])
        if name in _RESHAPES:
            return "reshape", None
        if name in _PLAIN:
            return _PLAIN[name], None
        if name == "tensor.insert_slice":
            return "insert", self._window(op, operands[2:])
        if name == "mw.place":
            shape = self._shape(op.results[0].type)
            assert shape is not None
            place, number = attributes["offset"].value, attributes["buffer"].value
            known = self._places.setdefault(number, place)
            if known != place:
                raise NoRuleError(
                    f"mw.place: buffer {number} lies at byte {known}, here at {place}",
                    location_text(op.location),
                )
            return "place", BufferAddress(place, shape.nbytes, number)
        if name == "memref.get_global":
            return "constant", self._globals[attributes["name"].value]
        if name == "mw.fuse":
            return "fuse", attributes["rows"].value
        if name == "arith.constant":
            return self._constant(op)
        shaped = any(isinstance(r.type, ir.ShapedType) for r in op.results)
        if name == "arith.select" and shaped and not isinstance(op.operands[0].type, ir.ShapedType):
            return "choose", None
        if name == "mw.member":
            group = attributes["group"].value
            return "scalar", ComputedScalar(name, (group, self._members[group]))
        if name.startswith(("arith.", "math.")) and not shaped:
            details = tuple([(key, attributes[key]) for key in attributes])
            types = tuple([value.type for value in op.operands])
            return "scalar", ComputedScalar(name, (*details, types, op.results[0].type))
        raise NoRuleError(f"{name}: the check has no rule for this op", location_text(op.location))

    def _window(self, op: ir.Operation, dynamic: Sequence[int]) -> Subview:
        said = op.attributes
        key = tuple(map(said.__getitem__, _STATIC))
        found = self._windows.get(key)
        if found is None:
            offsets, sizes, steps = map(tuple, key)
            every = tuple([None if offset == DYNAMIC else offset for offset in offsets])
            found = self._windows[key] = Subview(every, sizes, steps)
        if len(dynamic) != found.offsets.count(None):
            raise NoRuleError(
                f"{op.name}: sizes or steps that are not static", location_text(op.location)
            )
        return found

    def _constant(self, op: ir.Operation) -> tuple[str, Hashable]:
        value = op.attributes["value"]
        if isinstance(value, ir.IntegerAttr):
            return "scalar", int(value.value)
        is_tensor = self._shape(op.results[0].type) is not None
        return (
            ("constant", value)
            if is_tensor
            else ("scalar", ComputedScalar("arith.constant", value))
        )


_PLAIN = _LOOPS | {
    "memref.copy": "copy", "memref.load": "load", "memref.store": "store",
    "tensor.extract": "load", "tensor.insert": "put", "tensor.from_elements": "elements",
}  # fmt: skip


def _shape_of(type_: ir.Type) -> Shape | None:
    """Return how the elements of a tensor or buffer lie; None for a scalar."""
    if not isinstance(type_, (ir.RankedTensorType, ir.MemRefType)):
        return None
    sizes, element = tuple(type_.shape), str(type_.element_type)
    if element not in _WIDTHS or DYNAMIC in sizes:
        raise NoRuleError(f"a tensor or buffer of type {type_}")
    width, offset = _WIDTHS[element], 0
    if isinstance(type_, ir.MemRefType) and 0 not in sizes:
        strides, offset = type_.get_strides_and_offset()
        if DYNAMIC in strides:
            raise NoRuleError(f"a buffer whose layout is not known: {type_}")
    else:
        strides = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    known = None if offset == DYNAMIC else offset * width
    nbytes = math.prod(sizes) * width
    steps = tuple([s * width for s in strides])
    own = region(ZERO, sizes, steps, width)
    return Shape(sizes, steps, known, width, element, nbytes, own, own.is_all_of(nbytes))


def _takes(program: ir.Operation) -> tuple[int, ...]:
    """Return the input whose buffer each output takes, -1 for none; nothing where no output takes any."""
    outputs = program.attributes["outputs"]
    taken = tuple([o["takes"].value if "takes" in o else -1 for o in outputs])
    return taken if max(taken, default=-1) >= 0 else ()


def _members(program: ir.Operation) -> list[int]:
    """Return how many ranks each group of a program has."""
    mesh = Mesh.parse(program.attributes["mesh"].value)
    groups = program.attributes["groups"]
    return [math.prod(mesh.size(axis.value) for axis in axes) for axes in groups]


_STATIC = ("static_offsets", "static_sizes", "static_strides")


def _work(op: ir.Operation, name: str) -> Work:
    attributes = op.attributes
    kind = _WORK[name]
    if kind in ("launch", "call"):
        callee = attributes["kernel" if kind == "launch" else "callee"].value
        outs = attributes["outs"].value if "outs" in attributes else 0
        return Work(kind, callee, None, outs, int(name == "mw.call"))
    operands = len(op.operands)
    numbers = {
        key: attributes[key].value for key in ("ticket", "area", "sent") if key in attributes
    }
    if kind == "routine":
        said = called(op)
        outs = attributes["outs"].value if "outs" in attributes else 0
        memory = operands - outs - said.inputs if outs else 0
        return Work(kind, said.title, said.key, outs, memory)
    details = tuple(
        sorted(
            [(key, attributes[key]) for key in attributes if key not in _OWN],
            key=lambda pair: pair[0],
        )
    )
    symbol = attributes["symbol"].value if "symbol" in attributes else ""
    return Work(kind, symbol, details, 1, operands - 2, **numbers)


# Kernels.


class _Kernels(Mapping[str, Kernel]):
    """Read the kernels of a module when they are asked for."""

    def __init__(self, module: ir.Module) -> None:
        ops = [view.operation for view in module.operation.regions[0].blocks[0].operations]
        self._ops = {op.attributes["sym_name"].value: op for op in ops if op.name == "mw.kernel"}
        self._read: dict[str, Kernel] = {}
        self._maps: dict[ir.Attribute, Indices] = {}

    def __getitem__(self, name: str) -> Kernel:
        if name not in self._read:
            self._read[name] = _kernel(self._ops[name], self._indices)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ops)

    def __len__(self) -> int:
        return len(self._ops)

    def changed_from(self, before: Mapping[str, Kernel]) -> list[Finding]:
        """Return a finding for each kernel that is another one than that of its name before."""
        ops = before._ops if isinstance(before, _Kernels) else {}
        reason = "is another kernel than that of this name in the program on tensors"
        return [
            Finding(f"mw.kernel @{name}", location_text(op.location), reason)
            for name, op in self._ops.items()
            if name in ops and ops[name] != op and str(ops[name]) != str(op)
        ]

    def _indices(self, attr: ir.AffineMapAttr) -> Indices:
        if attr not in self._maps:
            self._maps[attr] = _indices(attr)
        return self._maps[attr]


def _kernel(op: ir.Operation, indices: Callable[[ir.AffineMapAttr], Indices]) -> Kernel:
    loads: list[tuple[int, Indices]] = []
    continues: set[int] = set()
    for view in op.regions[0].blocks[0].operations:
        inner = view.operation
        name, attributes = inner.name, inner.attributes
        if name == "mw.load":
            loads.append((attributes["operand"].value, indices(attributes["map"])))
        elif name == "mw.gather":
            loads.append((attributes["operand"].value, None))
        elif name == "mw.accumulator" and not len(inner.operands):
            continues.add(attributes["result"].value)
    outputs = tuple([indices(attr) for attr in op.attributes["outputs"]])
    return Kernel(
        tuple(op.attributes["sizes"]),
        frozenset(op.attributes["reductions"]),
        tuple(loads),
        outputs,
        tuple([k in continues for k in range(len(outputs))]),
        "contraction" in op.attributes,
    )


def _indices(attr: ir.AffineMapAttr) -> Indices:
    found = [_index(expr) for expr in attr.value.results]
    known = [index for index in found if index is not None]
    return tuple(known) if len(known) == len(found) else None


def _index(expr: ir.AffineExpr) -> AffineIndex | None:
    """Return an affine expression as a sum; None where it is none."""
    if isinstance(expr, ir.AffineConstantExpr):
        return AffineIndex(expr.value, (), ())
    if isinstance(expr, ir.AffineDimExpr):
        return AffineIndex(0, ((expr.position, 1),), ())
    if isinstance(expr, ir.AffineSymbolExpr):
        return AffineIndex(0, (), ((expr.position, 1),))
    if not isinstance(expr, (ir.AffineAddExpr, ir.AffineMulExpr)):
        return None
    left, right = _index(expr.lhs), _index(expr.rhs)
    if left is None or right is None:
        return None
    if isinstance(expr, ir.AffineAddExpr):
        return AffineIndex(
            left.const + right.const, left.loops + right.loops, left.operands + right.operands
        )
    for one, other in ((left, right), (right, left)):
        if not one.loops and not one.operands:
            by = one.const
            scaled = [tuple([(n, f * by) for n, f in terms]) for terms in other[1:]]
            return AffineIndex(other.const * by, *scaled)
    return None
