"""Handle a time axis before a mesh axis of the same dim: `[t*x, _]`, slices first, each over all of x.

To space that is `[2*x*_, _]`: every rank holds a piece of each slice. Ops run on blocks, so the region gets its values
with the dim in another order, the ranks' pieces one behind the other, where `[x, _]` is what was said:

    i = (slice, rank, element)  of the dim outside        i' = (rank, slice, element)  inside

before:  constrain %v {[t*x, _]} in a region that reads %a and gives %r
after:   the region reads the rows of %a in the order of i', gives %r in it, and constrain and place say [x, _], [t, _];
         dist.to_local / to_global around the region change the order and are no work for a rank

No op may care about the order along the dim: a loop index is computed back, an op that needs the dim whole is refused.
Where sizes do not divide, the dim is longer inside by its padding, which reductions are kept from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from meshweave.dialects.dist import LayoutAttr
from meshweave.errors import LayoutError
from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import OpBuilder, tensor_type
from meshweave.ir.locations import location_text
from meshweave.ir.ops import terminator
from meshweave.layout.layout import AxisFactor, Layout, LocalFactor
from meshweave.layout.mesh import Mesh
from meshweave.transforms.base import walk
from meshweave.transforms.partitioning.masking import mask
from meshweave.transforms.propagation.bodies import BODIES, captured_by, is_tensor
from meshweave.transforms.propagation.graph import MANUAL
from meshweave.transforms.propagation.values import is_made_free
from meshweave.transforms.slicing.ties import (
    REDUCTION,
    WHOLE,
    DimFactors,
    MadeDim,
    Node,
    OpFactor,
    Ties,
    UsedDim,
    loops,
)

UNEVEN_OPS = ("linalg.", "arith.", "math.", "dist.constrain", "hint.", "scf.")


@dataclass(frozen=True)
class Digits:
    """Split a dim of `extent` elements into digits, major first: their sizes, and which of them choose the rank."""

    extent: int
    sizes: tuple[int, ...]
    device: tuple[bool, ...]

    @staticmethod
    def of(layout: Layout, dim: int, extent: int, mesh: Mesh) -> "Digits":
        """Return the digits of a dim of `extent` elements.

        Raises LayoutError for factors that blocks cannot represent.
        """
        factors = layout.dims[dim]
        for f in factors:
            if isinstance(f, AxisFactor) and (f.sub is not None or f.extents is not None):
                raise LayoutError(f"layout {layout}: {f} and a time axis on dim {dim}")
        known = [mesh.size(f.name) if isinstance(f, AxisFactor) else f.extent or 0 for f in factors]
        rest = -(-extent // prod(n for n in known if n))
        return Digits(
            extent,
            tuple(n or rest for n in known),
            tuple(isinstance(f, AxisFactor) for f in factors),
        )

    @property
    def padded(self) -> int:
        """Count the places that the digits number."""
        return prod(self.sizes)

    @property
    def inside(self) -> tuple[int, ...]:
        """Return the numbers of the digits in their order inside: those of the rank first."""
        return tuple(sorted(range(len(self.sizes)), key=lambda k: not self.device[k]))

    def outside(self, index: ir.Value, b: OpBuilder) -> ir.Value:
        """Return the index outside for one inside."""
        found: dict[int, ir.Value] = {}
        left = index
        for k in reversed(self.inside):
            size = b.index(self.sizes[k])
            found[k] = b.binary("remui", left, size)
            left = b.binary("divui", left, size)
        total = found[0]
        for k in range(1, len(self.sizes)):
            total = b.binary("addi", b.times(total, self.sizes[k]), found[k])
        return total


@dataclass(frozen=True)
class _End:
    """Say where a loop over such a dim ends."""

    digits: Digits

    def inside(self, b: OpBuilder, index: ir.Value) -> ir.Value:
        """Compare the index, taken outside, with the extent: an i1, false on padding."""
        end = b.index(self.digits.extent)
        return b.compare(arith.CmpIPredicate.ult, self.digits.outside(index, b), end)


@dataclass
class Outer:
    """Give a region its values in the order of digits inside, for one constraint.

    layout: what the constraint says to space.
    done:   of dims that are in the order inside their factors; this adds to it.
    """

    region: ir.Operation
    mesh: Mesh
    layout: Layout
    done: dict[Node, DimFactors]
    ties: Ties = field(init=False)
    digits: dict[int, Digits] = field(default_factory=dict)
    dim_of: dict[Node, int] = field(default_factory=dict)
    moved: dict[tuple[ir.Value, tuple[tuple[int, int], ...]], ir.Value] = field(
        default_factory=dict
    )

    def run(self, value: ir.Value) -> None:
        """Reorder the region, where `value` is what the constraint is about. Raises LayoutError."""
        shape = value.type.shape
        self.ties = Ties(self.region)
        changed: list[Node] = []
        for d, factors in enumerate(self.layout.dims):
            if any(isinstance(f, LocalFactor) and f.extent for f in factors):
                self.digits[d] = Digits.of(self.layout, d, shape[d], self.mesh)
        for d in sorted(range(self.layout.ndim), key=lambda d: d not in self.digits):
            nodes = self.ties.together(MadeDim(value, d))
            for node in nodes:
                other = self.dim_of.setdefault(node, d)
                if other != d and other in self.digits:
                    raise LayoutError(
                        f"layout {self.layout}: dims {d} and {other} run together in the region"
                    )
            if d in self.digits:
                self._check(nodes, d, value)
                changed += nodes
        # Look first, change then: nodes name ops, and an op hashes by what it is and reads.
        indices = self._indices([n for n in changed if isinstance(n, OpFactor)])
        entering = self._entering([n for n in changed if isinstance(n, UsedDim)])
        results = self._results(changed)
        sums = self._sums(changed)
        for index, digits, exempt in indices:
            _count_outside(index, digits, exempt)
        for op, i, dims in entering:
            self._enter(op, i, dims)
        self._grow([n for n in changed if isinstance(n, MadeDim)])
        for op, ends in sums:
            mask(op, ends)
        for i, dims in results.items():
            self._leave(i, dims)

    def _check(self, nodes: list[Node], d: int, value: ir.Value) -> None:
        """Refuse ops that care about the order of the dim, or must not meet its padding."""
        what = f"layout {self.layout}: dim {d}"
        for loop in loops(nodes, WHOLE):
            raise LayoutError(f"{what} is needed whole by {_named(loop.op)}")
        for node in nodes:
            if isinstance(node, MadeDim):
                self._said_alike(node, d, value)
                self.done[node] = self.layout.dims[d]
        if self.digits[d].padded == self.digits[d].extent:
            return
        cut = f"{what} of {self.digits[d].extent} is not cut evenly"
        for node in nodes:
            if isinstance(node, OpFactor) and not node.padding_safe:
                raise LayoutError(f"{cut}, and {_named(node.op)} must not run on padding")
            if isinstance(node, OpFactor) and not node.op.name.startswith(UNEVEN_OPS):
                raise LayoutError(f"{cut}, and {_named(node.op)} says its extent")

    def _said_alike(self, node: MadeDim, d: int, value: ir.Value) -> None:
        """Refuse another constraint that lays mesh axes on the dim in its own way."""
        owner = node.value.owner
        if node.value == value or isinstance(owner, ir.Block) or owner.name != "dist.constrain":
            return
        other = LayoutAttr(owner.attributes["layout"]).layout
        unsplit = any(not self.mesh.has(axis) for axis in other.used_axes)  # it is looked at later
        if not unsplit and len(other.dims[node.dim]) > 1:
            raise LayoutError(f"layout {self.layout} of dim {d}, which runs with one in {other}")

    def _inside(self, dims: dict[int, int], ndim: int) -> tuple[Layout, Layout]:
        """Return the layouts outside and inside of a value whose dim a is dim dims[a] of the constraint."""
        rows = [self.layout.dims[dims[a]] if a in dims else () for a in range(ndim)]
        blocks = [[f.name for f in row if isinstance(f, AxisFactor)] for row in rows]
        return Layout(tuple(rows)), Layout.blocks(blocks)

    def _entering(self, uses: list[UsedDim]) -> list[tuple[ir.Operation, int, dict[int, int]]]:
        """Return the operands to change and, for each of their dims that runs with one, the dim of the constraint."""
        found = []
        for op, i in dict.fromkeys((u.op, u.operand) for u in uses):
            rows = enumerate(self.ties.operand_row(op, i))
            found.append((op, i, {a: self.dim_of[n] for a, n in rows if n in self.dim_of}))
        return found

    def _enter(self, op: ir.Operation, i: int, dims: dict[int, int]) -> None:
        """Bring what comes from outside into the order inside; a free value only gets its extent."""
        value = op.operands[i]
        shape = tuple(value.type.shape)
        self._once(dims, value)
        wanted = self._grown(shape, dims)
        if is_made_free(value):
            if wanted != shape:
                op.operands[i] = _anew(value, wanted, op)
            return
        key = (value, tuple(dims.items()))
        if key not in self.moved:
            b = OpBuilder.before(self.region)
            outside, inside = self._inside(dims, len(shape))
            self.moved[key] = reordered(value, outside, inside, wanted, self.mesh, b)
        op.operands[i] = self.moved[key]

    def _once(self, dims: dict[int, int], value: ir.Value) -> None:
        if len(set(dims.values())) < len(dims):
            raise LayoutError(
                f"layout {self.layout}: two dims of a value of {value.type} run with one dim of it"
            )

    def _grown(self, shape: Sequence[int], dims: dict[int, int]) -> tuple[int, ...]:
        return tuple(
            self.digits[dims[a]].padded if dims.get(a) in self.digits else n
            for a, n in enumerate(shape)
        )

    def _grow(self, made: list[MadeDim]) -> None:
        """Set the types of what the region makes."""
        for value in dict.fromkeys(n.value for n in made):
            dims = {
                a: self.dim_of[n]
                for a in range(len(value.type.shape))
                if (n := MadeDim(value, a)) in self.dim_of
            }
            self._once(dims, value)
            shape = self._grown(value.type.shape, dims)
            if shape != tuple(value.type.shape):
                value.set_type(tensor_type(shape, value.type.element_type))

    def _results(self, changed: list[Node]) -> dict[int, dict[int, int]]:
        """Return the results of the region in the order inside: for each of their dims that of the constraint."""
        end = terminator(self.region.regions[0].blocks[0])
        found: dict[int, dict[int, int]] = {}
        changing = set(changed)
        for i, value in enumerate(end.operands):
            rows = self.ties.operand_row(end, i) if is_tensor(value.type) else []
            if any(node in changing for node in rows):
                found[i] = {a: self.dim_of[n] for a, n in enumerate(rows) if n in self.dim_of}
        return found

    def _leave(self, i: int, dims: dict[int, int]) -> None:
        """Give the readers of result `i` of the region its value in the order outside."""
        result = self.region.results[i]
        readers = [(use.owner, use.operand_number) for use in result.uses]
        shape = tuple(result.type.shape)
        grown = self._grown(shape, dims)
        if grown != shape:
            result.set_type(tensor_type(grown, result.type.element_type))
        b = OpBuilder.after(self.region)
        outside, inside = self._inside(dims, len(shape))
        back = reordered(result, inside, outside, shape, self.mesh, b)
        for reader, number in readers:
            reader.operands[number] = back

    def _sums(self, changed: list[Node]) -> list[tuple[ir.Operation, dict[int, _End]]]:
        """Return the ops that reduce over padding, with the loops over it."""
        found: dict[ir.Operation, dict[int, _End]] = {}
        for loop in loops(changed, REDUCTION):
            digits = self.digits[self.dim_of[loop]]
            if digits.padded != digits.extent:
                found.setdefault(loop.op, {})[loop.number] = _End(digits)
        return list(found.items())

    def _indices(
        self, changed: list[OpFactor]
    ) -> list[tuple[ir.Operation, Digits, list[tuple[ir.Operation, int]]]]:
        """Return loop indices that must count as they do outside, and the readers that keep the order inside."""
        found = []
        for loop in changed:
            if loop.op.name not in BODIES:
                continue
            exempt = [
                (c.reader, a + 1)
                for c in captured_by(loop.op)
                for a, node in enumerate(self.ties.operand_row(c.reader, c.operand))
                if self.ties.find(node) == self.ties.find(loop)
            ]
            for op in walk(loop.op):
                if op.name == "linalg.index" and op.attributes["dim"].value == loop.number:
                    found.append((op, self.digits[self.dim_of[loop]], exempt))
        return found


def _count_outside(
    index: ir.Operation, digits: Digits, exempt: list[tuple[ir.Operation, int]]
) -> None:
    """Give the readers of an index, except some, the index outside."""
    value = index.results[0]
    uses = [(use.owner.operation, use.operand_number) for use in value.uses]
    total = digits.outside(value, OpBuilder.after(index))
    for reader, i in uses:
        if (reader, i) not in exempt:
            reader.operands[i] = total


def reordered(
    value: ir.Value, source: Layout, target: Layout, shape: Sequence[int], mesh: Mesh, b: OpBuilder
) -> ir.Value:
    """Return the value in layout `target` of which each rank holds what it holds of `value` in `source`.

    The result has shape `shape`.
    """
    element = value.type.element_type
    local = tensor_type(source.local_shape(mesh, tuple(value.type.shape)), element)
    type_ = tensor_type(shape, element)
    unit = ir.UnitAttr.get()
    region = b.op("scf.execute_region", [type_], [], 1, **{MANUAL: unit, "no_inline": unit})
    inner, _ = b.block(region.regions[0])
    held = inner.one("dist.to_local", local, value, layout=LayoutAttr.make(source))
    whole = inner.one("dist.to_global", type_, held, layout=LayoutAttr.make(target))
    inner.op("scf.yield", [], [whole])
    return region.result


def _anew(value: ir.Value, shape: Sequence[int], before: ir.Operation) -> ir.Value:
    """Make a free value of another shape."""
    old = value.owner.operation
    type_ = tensor_type(shape, value.type.element_type)
    new = old.clone(ir.InsertionPoint(before))
    if old.name == "arith.constant":
        attr = ir.DenseElementsAttr(old.attributes["value"])
        new.attributes["value"] = ir.DenseElementsAttr.get_splat(type_, attr.get_splat_value())
    elif old.name == "linalg.fill":
        b = OpBuilder(ir.InsertionPoint(new), old.location)
        new.operands[1] = b.empty(tensor_type(shape, type_.element_type))
    new.results[0].set_type(type_)
    return new.results[0]


def _named(op: ir.Operation) -> str:
    return f"'{op.name}' at {location_text(op)}"
