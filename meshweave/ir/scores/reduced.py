"""Read and build `mw.reduced_scores`, sums of what is made of scores, and write it as the ops that it stands for.

An attention's gradients are such sums, and so are the numbers of its rows that they need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.ops import body_of
from meshweave.ir.scores.attention import (
    Form,
    LoopSpeller,
    affine_form,
    form_of,
    maps_misfit,
    resized,
)

REDUCED_SCORES, REDUCED = "mw.reduced_scores", "mw.reduced"
"""The op, and what a kernel says in its place."""
NEUTRAL = {"addf": 0.0, "maximumf": -inf, "maxnumf": -inf}
"""What a row may be reduced by, and what changes nothing there."""


@dataclass(frozen=True)
class ReducedForm:
    """Hold what an `mw.reduced_scores` says.

    sizes: of its loops: `batch` ones, row, column, those of heads that are added up, turn, and what each of `products`
    adds up. maps: for each operand, then the result, a form for each dim. bounds: (upper, slope, offset) that hold
    wherever something is left: turn <= slope * row + offset, or >= where not `upper`. kind: how turns are reduced.
    weighted: whether each is multiplied with a row of another matrix.
    """

    sizes: tuple[int, ...]
    batch: int
    products: int
    maps: tuple[tuple[Form, ...], ...]
    bounds: tuple[tuple[int, int, int], ...]
    kind: str
    weighted: bool

    @classmethod
    def of(cls, op: ir.Operation) -> ReducedForm:
        """Read an op that its verifier has passed."""
        attributes = op.attributes
        maps = [tuple([form_of(e) for e in m.value.results]) for m in attributes["maps"]]
        numbers = list(attributes["bounds"])
        bounds = zip(numbers[::3], numbers[1::3], numbers[2::3])
        return cls(
            tuple(attributes["sizes"]), attributes["batch"].value, attributes["products"].value,
            tuple(maps), tuple(bounds), attributes["kind"].value, "weighted" in attributes,
        )  # fmt: skip

    @property
    def row(self) -> int:
        """Return the loop of the rows; that of the columns comes behind it."""
        return self.batch

    @property
    def turn(self) -> int:
        """Return the loop that is reduced."""
        return len(self.sizes) - self.products - 1

    @property
    def heads(self) -> range:
        """Return the loops of heads that are added up."""
        return range(self.batch + 2, self.turn)

    @property
    def further(self) -> int:
        """Return the number of the first operand that is read element by element."""
        return 2 * self.products + int(self.weighted)

    def attributes(self) -> dict[str, ir.Attribute]:
        """Return the attributes of the op."""
        count, i64 = len(self.sizes), ir.IntegerType.get_signless(64)
        maps = [affine_form(count, forms) for forms in self.maps]
        flat = [number for bound in self.bounds for number in bound]
        found: dict[str, ir.Attribute] = {
            "maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
            "sizes": ir.DenseI64ArrayAttr.get(self.sizes),
            "batch": ir.IntegerAttr.get(i64, self.batch),
            "products": ir.IntegerAttr.get(i64, self.products),
            "bounds": ir.DenseI64ArrayAttr.get(flat),
            "kind": ir.StringAttr.get(self.kind),
        }
        return {**found, "weighted": ir.UnitAttr.get()} if self.weighted else found


def reduced_misfit(op: ir.Operation) -> str:
    """Say what is wrong with the attributes or types of an `mw.reduced_scores`; "" where they fit."""
    attributes = op.attributes
    maps, sizes, bounds = (attributes.get(name) for name in ("maps", "sizes", "bounds"))
    counts = [attributes.get(name) for name in ("batch", "products")]
    types = [value.type for value in (*op.operands, *op.results)]
    if not all(isinstance(n, ir.IntegerAttr) for n in counts):
        return "needs the numbers of its loops of the batch and of its products"
    batch, products = (n.value for n in counts)
    weighted = "weighted" in attributes
    least = 2 * products + int(weighted) + 1
    if not isinstance(maps, ir.ArrayAttr) or len(op.results) != 1 or len(maps) != len(types):
        return "needs one result, and a map for each of its tensors"
    if products < 1 or len(types) < least:
        return f"needs two operands for each of {products} products"
    if not isinstance(sizes, ir.DenseI64ArrayAttr) or len(sizes) < batch + 3 + products:
        return "needs the sizes of its loops: batch, row, column, turn and a sum for each product"
    if not isinstance(bounds, ir.DenseI64ArrayAttr) or len(bounds) % 3:
        return "needs bounds of three numbers each"
    kind = attributes.get("kind")
    if not isinstance(kind, ir.StringAttr) or kind.value not in NEUTRAL:
        return f"needs a kind of {', '.join(NEUTRAL)}"
    if weighted and kind.value != "addf":
        return "needs the kind addf where it multiplies"
    if refused := maps_misfit(maps, types, sizes):
        return refused
    written = [form_of(e) for e in maps[len(maps) - 1].value.results]
    parallel = range(batch + 2)
    once = len(set(written)) == len(written) and set(written) <= {((d, 1),) for d in parallel}
    missing = [d for d in parallel if ((d, 1),) not in written and sizes[d] != 1]
    return "" if once and not missing else "needs a result with a dim for each parallel loop"


def spelled_sums(op: ir.Operation, b: OpBuilder, operands: Sequence[ir.Value]) -> ir.Value:
    """Write what an `mw.reduced_scores` of these operands means as linalg ops; return the result."""
    return _SumsSpeller(op, b, operands).result()


class _SumsSpeller(LoopSpeller):
    def __init__(self, op: ir.Operation, b: OpBuilder, operands: Sequence[ir.Value]) -> None:
        self.form = ReducedForm.of(op)
        dtype = body_of(op).arguments[0].type
        super().__init__(op, b, operands, self.form.sizes, self.form.maps, dtype)

    def result(self) -> ir.Value:
        form = self.form
        heads, turn = list(form.heads), form.turn
        self.matrix = [*range(form.batch), *heads, form.row, turn]
        made = []
        for n in range(form.products):
            loops = [*self.matrix, turn + 1 + n]
            sides = [2 * n, 2 * n + 1]
            made.append(self.generic(loops, sides, self.matrix, 0.0, self.multiply_add))
        given = [(raw, self.matrix) for raw in made]
        more = list(range(form.further, len(self.operands)))
        value = self.generic(self.matrix, more, self.matrix, None, self._value, given)
        out = [loop for ((loop, _),) in form.maps[-1]]
        others = [d for d in range(form.batch + 2) if d not in out and self._is_read(d)]
        loops = [*out, *others, *heads, turn]
        if form.weighted:
            place = [2 * form.products]
            total = self.generic(loops, place, out, 0.0, self._add_weighted, [(value, self.matrix)])
        else:
            total = self.generic(
                loops, [], out, NEUTRAL[form.kind], self._reduce, [(value, self.matrix)]
            )
        type_ = self.op.results[0].type.element_type
        if type_ == self.dtype:
            return total
        return self.generic(
            out, [], out, None, lambda b, e: resized(b, e[0], type_), [(total, out)], type_
        )

    def _is_read(self, loop: int) -> bool:
        """Tell whether a loop of one trip is read by what is reduced."""
        maps = [self.form.maps[2 * self.form.products]] if self.form.weighted else []
        return loop in self.matrix or any(d == loop for m in maps for f in m for d, _ in f)

    def _value(self, b: OpBuilder, elements: list[ir.Value]) -> ir.Value:
        return self.body(b, elements[:-1], self.matrix)

    def _reduce(self, b: OpBuilder, elements: list[ir.Value]) -> ir.Value:
        return b.binary(self.form.kind, elements[1], elements[0])

    def _add_weighted(self, b: OpBuilder, elements: list[ir.Value]) -> ir.Value:
        value, other, out = elements
        return b.binary("addf", out, b.binary("mulf", value, resized(b, other, out.type)))
