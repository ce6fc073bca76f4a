"""A time axis that stands before a mesh axis of the same dim: `[t*x, _]`, slices first, each over all of x.

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
from typing import Any

from meshweave.bindings import ir
from meshweave.dialects.dist import LayoutAttr
from meshweave.errors import LayoutError
from meshweave.layout.layout import AxisFactor, Layout, LocalFactor
from meshweave.layout.mesh import Mesh
from meshweave.locations import location_text
from meshweave.transforms.base import walk
from meshweave.transforms.bodies import BODIES, captured_by, is_tensor
from meshweave.transforms.graph import MANUAL
from meshweave.transforms.hint_make import Make, tensor_of
from meshweave.transforms.hint_ties import REDUCTION, WHOLE, Loop, Made, Node, Ties, Use, loops
from meshweave.transforms.local import Local
from meshweave.transforms.masking import mask
from meshweave.transforms.rules import is_free

UNEVEN_OPS = ("linalg.", "arith.", "math.", "dist.constrain", "hint.", "scf.")


@dataclass(frozen=True)
class Digits:
    """A dim of `extent` elements as digits, major first: their sizes, and which of them choose the rank."""

    extent: int
    sizes: tuple[int, ...]
    device: tuple[bool, ...]

    @staticmethod
    def of(layout: Layout, dim: int, extent: int, mesh: Mesh) -> "Digits":
        """Those of a dim of so many elements. LayoutError for factors that blocks cannot stand for."""
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
        """How many places there are."""
        return prod(self.sizes)

    @property
    def inside(self) -> tuple[int, ...]:
        """The digits, by number, in their order inside: those of the rank first."""
        return tuple(sorted(range(len(self.sizes)), key=lambda k: not self.device[k]))

    def outside(self, index: Any, make: Make) -> Any:
        """The index outside of one inside."""
        found: dict[int, Any] = {}
        left = index
        for k in reversed(self.inside):
            size = make.index(self.sizes[k])
            found[k] = make.arith("remui", left, size)
            left = make.arith("divui", left, size)
        total = found[0]
        for k in range(1, len(self.sizes)):
            total = make.arith("addi", make.times(total, self.sizes[k]), found[k])
        return total


@dataclass(frozen=True)
class _End:
    """Where a loop over such a dim ends."""

    digits: Digits

    def inside(self, index: Any, before: Any, local: Local) -> Any:
        """Is the element at the index, in the order inside, none of the padding?"""
        make = Make(ir.InsertionPoint(before), before.location)
        end = make.index(self.digits.extent)
        return local.compared("ult", self.digits.outside(index, make), end, before)


@dataclass
class Outer:
    """Gives a region its values in the order of digits inside, for one constraint.

    layout: what the constraint says to space.
    done:   of dims that are in the order inside their factors; this adds to it.
    """

    region: Any
    mesh: Mesh
    layout: Layout
    done: dict[Node, tuple[Any, ...]]
    ties: Ties = field(init=False)
    digits: dict[int, Digits] = field(default_factory=dict)
    dim_of: dict[Node, int] = field(default_factory=dict)
    moved: dict[Any, Any] = field(default_factory=dict)

    def run(self, value: Any) -> None:
        """`value`, in the region, is what the constraint is about. Raises LayoutError."""
        shape = value.type.shape
        self.ties = Ties(self.region)
        changed: list[Node] = []
        for d, factors in enumerate(self.layout.dims):
            if any(isinstance(f, LocalFactor) and f.extent for f in factors):
                self.digits[d] = Digits.of(self.layout, d, shape[d], self.mesh)
        for d in sorted(range(self.layout.ndim), key=lambda d: d not in self.digits):
            nodes = self.ties.together(Made(value, d))
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
        indices = self._indices([n for n in changed if isinstance(n, Loop)])
        entering = self._entering([n for n in changed if isinstance(n, Use)])
        results = self._results(changed)
        sums = self._sums(changed)
        for index, digits, exempt in indices:
            _count_outside(index, digits, exempt)
        for op, i, dims in entering:
            self._enter(op, i, dims)
        self._grow([n for n in changed if isinstance(n, Made)])
        for op, ends in sums:
            mask(op, ends, Local(self.mesh))
        for i, dims in results.items():
            self._leave(i, dims)

    def _check(self, nodes: list[Node], d: int, value: Any) -> None:
        """Refuse what cares about the order of the dim, or must not meet its padding."""
        what = f"layout {self.layout}: dim {d}"
        for loop in loops(nodes, WHOLE):
            raise LayoutError(f"{what} is needed whole by {_named(loop.op)}")
        for node in nodes:
            if isinstance(node, Made):
                self._said_alike(node, d, value)
                self.done[node] = self.layout.dims[d]
        if self.digits[d].padded == self.digits[d].extent:
            return
        cut = f"{what} of {self.digits[d].extent} is not cut evenly"
        for node in nodes:
            if isinstance(node, Loop) and not node.padding_safe:
                raise LayoutError(f"{cut}, and {_named(node.op)} must not run on padding")
            if isinstance(node, Loop) and not node.op.name.startswith(UNEVEN_OPS):
                raise LayoutError(f"{cut}, and {_named(node.op)} says its extent")

    def _said_alike(self, node: Made, d: int, value: Any) -> None:
        """Refuse another constraint that lays mesh axes on the dim in its own way."""
        owner = node.value.owner
        if node.value == value or isinstance(owner, ir.Block) or owner.name != "dist.constrain":
            return
        other = LayoutAttr(owner.attributes["layout"]).layout
        unsplit = any(not self.mesh.has(axis) for axis in other.used_axes)  # it is looked at later
        if not unsplit and len(other.dims[node.dim]) > 1:
            raise LayoutError(f"layout {self.layout} of dim {d}, which runs with one in {other}")

    def _inside(self, dims: dict[int, int], ndim: int) -> tuple[Layout, Layout]:
        """What lies outside and inside so, of a value whose dim a is dim dims[a] of the constraint."""
        rows = [self.layout.dims[dims[a]] if a in dims else () for a in range(ndim)]
        blocks = [[f.name for f in row if isinstance(f, AxisFactor)] for row in rows]
        return Layout(tuple(rows)), Layout.blocks(blocks)

    def _entering(self, uses: list[Use]) -> list[tuple[Any, int, dict[int, int]]]:
        """The operands to change, each with the dim of the constraint for those of its dims that run with one."""
        found = []
        for op, i in dict.fromkeys((u.op, u.operand) for u in uses):
            rows = enumerate(self.ties.operand_row(op, i))
            found.append((op, i, {a: self.dim_of[n] for a, n in rows if n in self.dim_of}))
        return found

    def _enter(self, op: Any, i: int, dims: dict[int, int]) -> None:
        """What comes from outside, in the order inside; a free value as long as it is inside."""
        value = op.operands[i]
        shape = tuple(value.type.shape)
        self._once(dims, value)
        wanted = self._grown(shape, dims)
        if not isinstance(value.owner, ir.Block) and is_free(value.owner.operation):
            if wanted != shape:
                op.operands[i] = _anew(value, wanted, op)
            return
        key = (value, tuple(dims.items()))
        if key not in self.moved:
            make = Make(ir.InsertionPoint(self.region), self.region.location)
            outside, inside = self._inside(dims, len(shape))
            self.moved[key] = reordered(value, outside, inside, wanted, self.mesh, make)
        op.operands[i] = self.moved[key]

    def _once(self, dims: dict[int, int], value: Any) -> None:
        if len(set(dims.values())) < len(dims):
            raise LayoutError(
                f"layout {self.layout}: two dims of a value of {value.type} run with one dim of it"
            )

    def _grown(self, shape: Sequence[int], dims: dict[int, int]) -> tuple[int, ...]:
        return tuple(
            self.digits[dims[a]].padded if dims.get(a) in self.digits else n
            for a, n in enumerate(shape)
        )

    def _grow(self, made: list[Made]) -> None:
        """The types of what the region makes."""
        for value in dict.fromkeys(n.value for n in made):
            dims = {
                a: self.dim_of[n]
                for a in range(len(value.type.shape))
                if (n := Made(value, a)) in self.dim_of
            }
            self._once(dims, value)
            shape = self._grown(value.type.shape, dims)
            if shape != tuple(value.type.shape):
                value.set_type(tensor_of(shape, value.type.element_type))

    def _results(self, changed: list[Node]) -> dict[int, dict[int, int]]:
        """Results of the region in the order inside: for each of its dims that of the constraint."""
        ops = self.region.regions[0].blocks[0].operations
        end = ops[len(ops) - 1].operation
        found: dict[int, dict[int, int]] = {}
        changing = set(changed)
        for i, value in enumerate(end.operands):
            rows = self.ties.operand_row(end, i) if is_tensor(value.type) else []
            if any(node in changing for node in rows):
                found[i] = {a: self.dim_of[n] for a, n in enumerate(rows) if n in self.dim_of}
        return found

    def _leave(self, i: int, dims: dict[int, int]) -> None:
        """Result `i` of the region, in the order outside to those who read it."""
        result = self.region.results[i]
        readers = [(use.owner, use.operand_number) for use in result.uses]
        shape = tuple(result.type.shape)
        grown = self._grown(shape, dims)
        if grown != shape:
            result.set_type(tensor_of(grown, result.type.element_type))
        make = Make(ir.InsertionPoint.after(self.region), self.region.location)
        outside, inside = self._inside(dims, len(shape))
        back = reordered(result, inside, outside, shape, self.mesh, make)
        for reader, number in readers:
            reader.operands[number] = back

    def _sums(self, changed: list[Node]) -> list[tuple[Any, dict[int, _End]]]:
        """The ops that reduce over padding, with the loops over it."""
        found: dict[Any, dict[int, _End]] = {}
        for loop in loops(changed, REDUCTION):
            digits = self.digits[self.dim_of[loop]]
            if digits.padded != digits.extent:
                found.setdefault(loop.op, {})[loop.number] = _End(digits)
        return list(found.items())

    def _indices(self, changed: list[Loop]) -> list[tuple[Any, Digits, list[tuple[Any, int]]]]:
        """Loop indices that are to count as they do outside, and what reads in the order inside: it stays."""
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


def _count_outside(index: Any, digits: Digits, exempt: list[tuple[Any, int]]) -> None:
    """The index outside of one inside, to all its readers but some."""
    value = index.results[0]
    uses = [(use.owner.operation, use.operand_number) for use in value.uses]
    total = digits.outside(value, Make(ir.InsertionPoint.after(index), index.location))
    for reader, i in uses:
        if (reader, i) not in exempt:
            reader.operands[i] = total


def reordered(
    value: Any, source: Layout, target: Layout, shape: Sequence[int], mesh: Mesh, make: Make
) -> Any:
    """The value of `shape` in the layout `target` of which each rank holds what it holds of `value` in `source`."""
    element = value.type.element_type
    local = tensor_of(source.local_shape(mesh, tuple(value.type.shape)), element)
    type_ = tensor_of(shape, element)
    unit = ir.UnitAttr.get()
    region = make.op("scf.execute_region", [type_], [], 1, **{MANUAL: unit, "no_inline": unit})
    inner = Make(ir.InsertionPoint(region.regions[0].blocks.append()), make.loc)
    held = inner.op("dist.to_local", [local], [value], layout=LayoutAttr.make(source))
    made = inner.op("dist.to_global", [type_], list(held.results), layout=LayoutAttr.make(target))
    inner.op("scf.yield", [], list(made.results))
    return region.results[0]


def _anew(value: Any, shape: Sequence[int], before: Any) -> Any:
    """A free value of another shape."""
    old = value.owner.operation
    type_ = tensor_of(shape, value.type.element_type)
    new = old.clone(ir.InsertionPoint(before))
    if old.name == "arith.constant":
        attr = ir.DenseElementsAttr(old.attributes["value"])
        new.attributes["value"] = ir.DenseElementsAttr.get_splat(type_, attr.get_splat_value())
    elif old.name == "linalg.fill":
        make = Make(ir.InsertionPoint(new), old.location)
        new.operands[1] = make.empty(shape, type_.element_type)
    new.results[0].set_type(type_)
    return new.results[0]


def _named(op: Any) -> str:
    return f"'{op.name}' at {location_text(op)}"
