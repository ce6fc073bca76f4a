"""The `mw` dialect: the program of one rank after partition, from kernels to places in memory.

Two views. On *tensors*, after `lower-collectives` and `fuse-kernels`: the linalg ops have become `mw.launch`es of
`mw.kernel`s, the collectives `mw.collective`s, and each writes the tensor that it is given last. On *buffers*, after
`plan-memory`: the same ops on memrefs, without results, and `mw.place` says where in the rank's arena each buffer lies
and how long it lives. `mw.program` says what holds for the whole program.

`mw.scan`, `mw.order`, `mw.sort`, `mw.scatter`, `mw.lapack`, `mw.fft` and `mw.host` stand in the global view too:
frontends make them, since linalg has no such op. `mw.attention` and `mw.reduced_scores` are
what `select-kernels` makes of an attention and of its backward for gpus.
"""

# No `from __future__ import annotations` here: the field types are read as classes.
import math
from collections.abc import Sequence
from typing import Any

from meshweave.dialects.checks import ends_in, in_module, require
from meshweave.dialects.dist import I64Array, sorts
from meshweave.dialects.kept import kept_definition
from meshweave.dialects.rows import mixed_rows
from meshweave.ir.bindings import ext, ir
from meshweave.ir.fft import misfit as fft_misfit
from meshweave.ir.lapack import misfit, misplaced
from meshweave.ir.routines import ROUTINES
from meshweave.ir.scores.attention import misfit as attention_misfit
from meshweave.ir.scores.reduced import reduced_misfit

TIMES = "times:"
"""Begins an argument of a collective that is a multiple of an input of the program: "times:3*64"."""

MASKED = "mw.masked"
"""Marks a place where a tile begins of which nothing is used behind the end of a size."""


@kept_definition
class Mw(ext.Dialect, name="mw"):
    """Describe the program of one rank: kernels, their launches, collectives, and places in memory."""


class _PureOnTensors(ir.MemoryEffectsOpInterface):
    """Let an op have no effect where it gives results, and write memory where it gives none."""

    @staticmethod
    def get_effects(op: ir.Operation, effects: list[ir.MemoryEffect]) -> None:
        """Append the effects of `op` to `effects`."""
        if not len(op.results):
            effects.append(ir.MemoryEffect.Write)


@mixed_rows
class ScanOp(Mw.Operation, name="scan", traits=[ext.Pure]):
    """Combine the elements along `dim` one after another: element i of a result is what is combined up to element i.

    Operands are tensors of one shape, then for each what it starts from, a tensor without that dim. The body takes what
    is combined so far, one value of each, then an element of each, and yields what is combined then. It must be
    associative. `reverse`: from the last element to the first.
    """

    values: Sequence[ext.Operand[Any]]
    outputs: Sequence[ext.Result[Any]]
    dim: ir.IntegerAttr
    body: ext.Region

    def verify_invariants(self) -> bool:
        types = [v.type for v in self.operation.operands]
        count, dim = len(types) // 2, self.attributes.get("dim")
        ranked = all(isinstance(t, ir.RankedTensorType) for t in types)
        if not require(
            self,
            ranked and count > 0 and len(types) == 2 * count == 2 * len(self.operation.results),
            "needs a ranked tensor and a start for each result",
        ):
            return False
        shape = list(types[0].shape)
        if not require(
            self,
            isinstance(dim, ir.IntegerAttr) and 0 <= dim.value < len(shape),
            f"dim must be one of the {len(shape)} dims",
        ):
            return False
        rest = [*shape[: dim.value], *shape[dim.value + 1 :]]
        made = [r.type for r in self.operation.results]
        kinds = [t.element_type for t in types]
        return require(
            self,
            made == types[:count]
            and [list(t.shape) for t in types] == [shape] * count + [rest] * count
            and kinds[:count] == kinds[count:],
            f"needs inputs and results of one shape {shape}, and starts of shape {rest}",
        )

    def verify_region_invariants(self) -> bool:
        ops = ends_in(self, "mw.yield")
        given, made = len(self.operation.operands), len(self.operation.results)
        return ops is not None and require(
            self,
            (len(self.operation.regions[0].blocks[0].arguments), len(ops[-1].operands))
            == (given, made),
            f"needs a body of {given} scalars that yields {made}",
        )


class OrderOp(Mw.Operation, name="order", traits=[ext.Pure]):
    """Give the places along `dim` of the elements that come first in order, the smallest first; equal ones in order.

    The result has as many places along the dim as its type says. Floats are ordered as numbers: zeros are equal, and so
    are NaNs, which are the largest. `total`: by their bits, -NaN < -inf < .. < -0 < 0 < .. < inf < NaN. `descending`:
    the largest first. `unsigned`: integers have no sign; those of one bit never have.
    """

    values: ext.Operand[Any]
    places: ext.Result[Any]
    dim: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        types = [v.type for v in (*self.operation.operands, *self.operation.results)]
        dim = self.attributes.get("dim")
        ranked = len(types) == 2 and all(isinstance(t, ir.RankedTensorType) for t in types)
        if not require(self, ranked, "needs a ranked tensor and gives one"):
            return False
        given, made = (list(t.shape) for t in types)
        if not require(
            self,
            isinstance(dim, ir.IntegerAttr) and 0 <= dim.value < len(given),
            f"dim must be one of the {len(given)} dims",
        ):
            return False
        most = given[dim.value]
        fits = len(made) == len(given) and 0 <= made[dim.value] <= most < 1 << 31
        return require(
            self,
            fits
            and [*made[: dim.value], most, *made[dim.value + 1 :]] == given
            and str(types[1].element_type) == "i32",
            f"gives i32 places, at most {most} of them along dim {dim.value} of {given}",
        )


@mixed_rows
class SortOp(Mw.Operation, name="sort", traits=[ext.Pure]):
    """Put tensors of one shape in the order that the first one has along `dim`; see `mw.order`.

    Each result has the elements of its operand, moved along the dim as those of the first are; the last one, of i32,
    the places where they have been.
    """

    values: Sequence[ext.Operand[Any]]
    outputs: Sequence[ext.Result[Any]]
    dim: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        made = [r.type for r in self.operation.results]
        i32 = ir.IntegerType.get_signless(32, context=self.operation.context)
        shape = list(getattr(made[-1], "shape", ())) if made else []
        places = bool(made) and made[-1] == ir.RankedTensorType.get(shape, i32, loc=self.location)
        return sorts(self, 1) and require(
            self, places and shape == list(made[0].shape), "gives i32 places last"
        )


@mixed_rows
class LapackOp(Mw.Operation, name="lapack", traits=[_PureOnTensors]):
    """Call the LAPACK routine `routine` on each matrix of a batch: all dims but the last two, or as many as it needs.

    `potrf` factors a positive matrix: `lower` or upper, the other triangle keeps what it holds; then 0, or the step at
    which there is no factor. `getrf` factors by rows: both factors in one matrix, the row from 1 that each step swaps
    in, and 0 or the first step without a pivot; `laswp` swaps rows of a
    matrix so, or back where it is `transposed`. `trsm_left` solves op(A) X = B by A and B, `trsm_right` X op(A) = B,
    with the `lower` or upper triangle of A, `transposed` or not, whose diagonal is 1 where it is `unit`.

    `geqrf` gives R and below it the reflectors of Q, and their scales; `orgqr` makes the first columns of Q of these.
    `gesdd` gives the singular values, the largest first, U and V transposed (`gesdd_full`: square ones), and 0 if it
    has converged; `gesdd_values` no factors; `gesvd`, `gesvd_full` and `gesvd_values` find the same in another way.
    `syevd` gives the eigenvectors of a symmetric matrix, of which it reads
    the `lower` or upper triangle, as columns, its eigenvalues, the smallest first, and 0 if it has converged;
    `syevd_values` no vectors.

    `ormqr_left` multiplies by Q of such reflectors, or by Q `transposed`, from the left, `ormqr_right` from the right.
    `geqp3` is `geqrf` of columns in an order that it finds and gives, counted from 1: those where it is given another
    number than 0 stay in front. `geev` gives the real and the imaginary parts of the eigenvalues of any matrix, left
    and right eigenvectors as complex columns, and 0 if it has converged, -4 for what is not finite; `geev_left`,
    `geev_right` one kind of vectors, `geev_values` none. `gees` gives the Schur form, its vectors, eigenvalues like
    `geev`, and the same number; `gees_form` no vectors. `gehrd` gives the Hessenberg form and below it reflectors, and
    their scales; `sytrd` reflectors, of a symmetric matrix, of which it reads the `lower` or upper triangle, diagonal
    and neighbours of a tridiagonal matrix, and scales. `gtsv` solves A X = B of a tridiagonal A, given by what is below
    the diagonal (behind a number that is not read), on it and above it, and gives 0 or the step without a pivot;
    `gtsv_finite` makes pivots near 0 a little larger, and is a loop of its own.

    A name with `_complex` behind it is of the routine on complex numbers, whose parts are a last dim of 2; their
    matrices are Hermitian where others are symmetric, V and Q are transposed and conjugate, eigenvalues one tensor. On
    buffers its `outs` results and its own memory come after the operands.
    """

    values: Sequence[ext.Operand[Any]]
    outputs: Sequence[ext.Result[Any]]
    routine: ir.StringAttr

    def verify_invariants(self) -> bool:
        routine = self.attributes.get("routine")
        name = str(getattr(routine, "value", ""))
        known = f"needs a `routine`, one of {', '.join(ROUTINES)}"
        if not require(self, name in ROUTINES, known):
            return False
        row, types = ROUTINES[name], [v.type for v in self.operation.operands]
        types += [r.type for r in self.operation.results]
        own = 0 if len(self.operation.results) else len(types) - len(row.tensors)
        if not require(
            self,
            len(types) - max(own, 0) == len(row.tensors) and own <= 1,
            f"{name} takes {len(row.operands)} operands and gives {len(row.results)} results",
        ):
            return False
        wrong = misfit(name, types[: len(row.tensors)])
        wrong = wrong or misplaced(name, types) if not len(self.operation.results) else wrong
        return require(self, not wrong, f"{name} {wrong}")


@mixed_rows
class FftOp(Mw.Operation, name="fft", traits=[_PureOnTensors]):
    """Transform along `dim`, each row apart: number k of `length` becomes the sum of x[j] e^(-2 pi i j k / length).

    `kind`: `fft`, and `ifft` back, divided by the length; `rfft` of real numbers, of which it gives the half that the
    others are conjugates of, and `irfft` back. Complex numbers are a tensor of them, where a program comes in; later
    one of their parts, whose last dim is of 2, or two, real and imaginary parts. On buffers its `outs` results and its
    own memory come after the operands.
    """

    values: Sequence[ext.Operand[Any]]
    outputs: Sequence[ext.Result[Any]]
    kind: ir.StringAttr
    dim: ir.IntegerAttr
    length: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        wrong = fft_misfit(self.operation)
        return require(self, not wrong, wrong)


class _AsSaid(_PureOnTensors):
    """Let an op have `effects` where it says so, besides."""

    @staticmethod
    def get_effects(op: ir.Operation, effects: list[ir.MemoryEffect]) -> None:
        """Append the effects of `op` to `effects`."""
        if not len(op.results) or "effects" in op.attributes:
            effects.append(ir.MemoryEffect.Write)


@mixed_rows
class HostOp(Mw.Operation, name="host", traits=[_AsSaid]):
    """Call number `number` of the functions of the process that compiled the program, `function` by name, with tensors.

    Every rank calls it, and it gives the same on all. Where it has `effects`, it runs as often, and in the order, that
    the program says; one i1, where it gives nothing else, means nothing. `first`: rank 0 alone calls it, and
    dist-partition gives its results, integers, to the others. On buffers its `outs` results come after the operands.
    """

    values: Sequence[ext.Operand[Any]]
    outputs: Sequence[ext.Result[Any]]
    number: ir.IntegerAttr
    function: ir.StringAttr

    def verify_invariants(self) -> bool:
        values = [*self.operation.operands, *self.operation.results]
        shaped = [value.type for value in values if isinstance(value.type, ir.ShapedType)]
        return require(
            self,
            len(shaped) == len(values)
            and all(type_.has_static_shape and 0 not in type_.shape for type_ in shaped),
            "takes and gives tensors of static shapes, with elements",
        )


@mixed_rows
class AttentionOp(Mw.Operation, name="attention", traits=[ext.Pure]):
    """Compute softmax(f(q k^T)) v without its scores; f is the body.

    Operands are q, k, v and whatever else f reads. `maps` says for each, and at last for the result, where its dims run
    with loops of `sizes`: those of the batch, then query, column, key and the loop that scores add up. The body takes
    the sum of products of a query and a key, then an element of each further operand, and yields the score, then the
    score where all `bounds` hold. These are three numbers each, `upper, slope, offset`: a score is -inf but where
    key <= slope * query + offset, or >= for an `upper` of 0. Weights are `rounded` to a type before they are summed;
    a row that the body leaves nothing of is 0/0, or 0 with `zeros`.
    """

    values: Sequence[ext.Operand[Any]]
    output: ext.Result[Any]
    maps: ir.ArrayAttr
    sizes: I64Array
    bounds: I64Array
    rounded: ir.TypeAttr
    body: ext.Region

    def verify_invariants(self) -> bool:
        wrong = attention_misfit(self.operation)
        return require(self, not wrong, wrong)

    def verify_region_invariants(self) -> bool:
        ops = ends_in(self, "mw.yield")
        if ops is None:
            return False
        block, end = self.operation.regions[0].blocks[0], list(ops[-1].operands)
        given = len(self.operation.operands) - 2
        return require(
            self,
            len(block.arguments) == given and len(end) == 2,
            f"needs a body of {given} scalars that yields two scores",
        )


@mixed_rows
class ReducedScoresOp(Mw.Operation, name="reduced_scores", traits=[ext.Pure]):
    """Reduce what is made of scores along their rows or columns, without the scores: f is the body.

    Loops of `sizes` are those of the `batch`, row, column, heads that are added up, turn, and the sum of each of
    `products`. Operands are two for each product, of rows and of turns, then with `weighted` a matrix of turns and
    columns, then whatever else f reads. `maps` says for each, and at last for the result, where its dims run. The body
    takes the products of a row and a turn, then an element of each further operand, and yields f of them, then the same
    where all `bounds` hold: three numbers each as of `mw.attention`, where turn <= slope * row + offset or >=; f is
    neutral elsewhere. Turns are reduced by `kind`, an op of arith; with `weighted` each is multiplied with the row of
    the matrix before.
    """

    values: Sequence[ext.Operand[Any]]
    output: ext.Result[Any]
    maps: ir.ArrayAttr
    sizes: I64Array
    batch: ir.IntegerAttr
    products: ir.IntegerAttr
    bounds: I64Array
    kind: ir.StringAttr
    body: ext.Region

    def verify_invariants(self) -> bool:
        wrong = reduced_misfit(self.operation)
        return require(self, not wrong, wrong)

    def verify_region_invariants(self) -> bool:
        ops = ends_in(self, "mw.yield")
        if ops is None:
            return False
        op = self.operation
        block, end = op.regions[0].blocks[0], list(ops[-1].operands)
        products = op.attributes["products"].value
        given = len(op.operands) - products - int("weighted" in op.attributes)
        return require(
            self,
            len(block.arguments) == given and len(end) == 2,
            f"needs a body of {given} scalars that yields two numbers",
        )


@mixed_rows
class ScatterOp(Mw.Operation, name="scatter", traits=[ext.Pure]):
    """Update tensors at places that are computed, in loops whose rounds come in order.

    Operands are tensors that are read, then those that are updated, of one shape, a result for each. `maps` says for
    each that is read with which loops its dims run, and at last for the updated ones: each dim runs with a loop, or its
    place is computed, which numbers behind those of the loops say. The body takes the indices of the loops, an element
    of each tensor, and yields whether there is an update, the places, and the new elements; only these may depend on
    what is there by now. An update outside of the tensors is left out.
    """

    values: Sequence[ext.Operand[Any]]
    outputs: Sequence[ext.Result[Any]]
    maps: ir.ArrayAttr
    body: ext.Region

    def verify_invariants(self) -> bool:
        types = [v.type for v in self.operation.operands]
        made, maps = [r.type for r in self.operation.results], self.attributes.get("maps")
        starts = types[len(types) - len(made) :]
        ranked = all(isinstance(t, ir.RankedTensorType) for t in types)
        if not require(
            self,
            ranked and 0 < len(made) < len(types) and made == starts,
            "needs ranked tensors to read, and those that it updates, a result for each",
        ):
            return False
        if not require(
            self,
            len({tuple(t.shape) for t in starts}) == 1
            and isinstance(maps, ir.ArrayAttr)
            and len(maps) == len(types) - len(made) + 1
            and all(isinstance(m, ir.AffineMapAttr) for m in maps),
            "updates tensors of one shape, and needs a map for each that it reads, then one for them",
        ):
            return False
        return _runs_with_loops(self, [m.value for m in maps], types)

    def verify_region_invariants(self) -> bool:
        ops = ends_in(self, "mw.yield")
        if ops is None:
            return False
        maps = [m.value for m in self.attributes["maps"]]
        made, places = len(self.operation.results), maps[-1].n_dims - maps[0].n_dims
        given = maps[0].n_dims + len(self.operation.operands)
        block, where = self.operation.regions[0].blocks[0], list(ops[-1].operands)
        if not require(
            self,
            (len(block.arguments), len(where)) == (given, 1 + places + made),
            f"needs a body of {given} scalars that yields whether, {places} places and {made} elements",
        ):
            return False
        old, known = set(list(block.arguments)[given - made :]), set(where[: 1 + places])
        for op in reversed(ops[:-1]):
            if any(r in known for r in op.results):
                known.update(op.operands)
        return require(self, not old & known, "must not choose a place by what is there by now")


def _runs_with_loops(op: ir.Operation, maps: "list[ir.AffineMap]", types: "list[ir.Type]") -> bool:
    """Check that each dim of a scatter's tensors runs with a loop, and that these fit together."""
    *reads, to = maps
    plain = all(isinstance(e, ir.AffineDimExpr) for m in maps for e in m.results)
    same = {m.n_dims for m in reads} == {reads[0].n_dims} and to.n_dims >= reads[0].n_dims
    fits = plain and same and all(len(m.results) == len(t.shape) for m, t in zip(maps, types))
    if not require(op, fits, "needs maps that give a loop for each dim"):
        return False
    loops, sizes = reads[0].n_dims, dict[int, int]()
    for m, t in zip(maps, types):
        for e, size in zip(m.results, t.shape):
            known = sizes.setdefault(e.position, size)
            if not require(op, known == size, f"has a loop of {known} and of {size} rounds"):
                return False
    written = [e.position for e in to.results]
    places = list(range(loops, to.n_dims))
    return require(
        op,
        set(range(loops)) <= {e.position for m in reads for e in m.results}
        and len(set(written)) == len(written)
        and [p for p in written if p >= loops] == places,
        "needs each loop in a tensor that it reads, and each place once, in order",
    )


class ProgramOp(Mw.Operation, name="program"):
    """Describe the whole program: engine, mesh, groups of ranks, inputs, outputs and exchanges of layouts.

    `groups` lists the mesh axes of each group that a collective or `mw.member` names by number. An entry of `inputs` or
    `outputs` is `{name, dtype, global_shape, local_shape, layout}`; an output may have `takes`, the number of the input
    whose buffer it takes. One of `exchanges`, which a collective names by
    number, is `{axes, source, target, shape, width, staging}`: the group's axes, two layouts, the shape of the whole
    tensor, and in bytes an element and what a rank has for messages.
    """

    engine: ir.StringAttr
    mesh: ir.StringAttr
    groups: ir.ArrayAttr
    inputs: ir.ArrayAttr
    outputs: ir.ArrayAttr
    exchanges: ir.ArrayAttr

    def verify_invariants(self) -> bool:
        block = self.operation.block
        programs = [o for o in block.operations if o.operation.name == "mw.program"]
        return require(self, len(programs) == 1, f"one per module, this one has {len(programs)}")


class KernelOp(Mw.Operation, name="kernel", traits=[ir.IsIsolatedFromAboveTrait]):
    """Define a loop nest and the scalar code of one iteration.

    `sizes` are the trip counts of its loops, outermost first; loops in `reductions` reduce, the others are parallel. An
    element is loaded by `mw.load`, computed by arith and math ops, and stored at the place that its affine map in
    `outputs` gives. `inputs` are the types of what a launch gives it to read; symbol k of a map is operand k of the
    launch. Optional: `contraction` (a multiply-add with reuse), `no_library` (no library may do it), `switches`
    (kernels that are on and off for it), `limits` (loop, operand, loop, operand, ..: loops that may end at such a
    number of the launch, which is at most their size; one that reduces must).
    """

    sym_name: ir.StringAttr
    sizes: I64Array
    reductions: I64Array
    inputs: ir.ArrayAttr
    outputs: ir.ArrayAttr
    body: ext.Region

    def verify_region_invariants(self) -> bool:
        ops = ends_in(self, "mw.yield")
        if ops is None:
            return False
        end = ops[-1]
        outputs, ndim = len(self.attributes["outputs"]), len(self.attributes["sizes"])
        wide = [d for d in self.attributes["reductions"] if not 0 <= d < ndim]
        return (
            require(
                self, len(end.operands) == outputs,
                f"yields {len(end.operands)} values for {outputs} outputs",
            )
            and require(self, not wide, f"reduces over loop {wide[:1]}, it has {ndim} loops")
            and all(self._map_fits(a, ndim) for a in self.attributes["outputs"])
        )  # fmt: skip

    def _map_fits(self, attr: ir.Attribute, ndim: int) -> bool:
        fits = isinstance(attr, ir.AffineMapAttr) and attr.value.n_dims == ndim
        return require(self, fits, f"needs maps over {ndim} loops, not {attr}")


class LoadOp(Mw.Operation, name="load", traits=[ext.Pure]):
    """Load the element that `map` names of operand number `operand` of the launch."""

    operand: ir.IntegerAttr
    map: ir.AffineMapAttr
    output: ext.Result[Any]


class GatherOp(Mw.Operation, name="gather", traits=[ext.Pure]):
    """Load the element at computed `indices` of operand number `operand` of the launch."""

    indices: Sequence[ext.Operand[ir.IndexType]]
    operand: ir.IntegerAttr
    output: ext.Result[Any]


class IndexOp(Mw.Operation, name="index", traits=[ext.Pure]):
    """Compute an affine form of the loop indices."""

    map: ir.AffineMapAttr
    output: ext.Result[ir.IndexType]


class ScalarOp(Mw.Operation, name="scalar", traits=[ext.Pure]):
    """Read operand number `operand` of the launch, a scalar."""

    operand: ir.IntegerAttr
    output: ext.Result[Any]


class AccumulatorOp(Mw.Operation, name="accumulator", traits=[ext.Pure]):
    """Read what output number `result` holds so far: at first `start`, or what its buffer holds where none is given."""

    start: Sequence[ext.Operand[Any]]
    result: ir.IntegerAttr
    output: ext.Result[Any]


class ScoresOp(Mw.Operation, name="scores", traits=[ext.Pure]):
    """Multiply two elements, of a query and a key, and add up along the loop that reduces both."""

    query: ext.Operand[Any]
    key: ext.Operand[Any]
    output: ext.Result[Any]


class WeightedOp(Mw.Operation, name="weighted", traits=[ext.Pure]):
    """Weight elements with the softmax of their scores and add up, along the loop of the keys.

    `inside` is the score where all `bounds` hold, which are of `query` and of the loop of the `keys`, so many. Bounds
    and `zeros` are those of `mw.attention`.
    """

    score: ext.Operand[Any]
    inside: ext.Operand[Any]
    value: ext.Operand[Any]
    query: ext.Operand[ir.IndexType]
    bounds: I64Array
    keys: ir.IntegerAttr
    output: ext.Result[Any]


@mixed_rows
class YieldOp(Mw.Operation, name="yield", traits=[ir.IsTerminatorTrait, ext.Pure]):
    """Store one value in each output of the `mw.kernel` around it; end an `mw.fuse`, a scan's body, or a scatter's."""

    values: Sequence[ext.Operand[Any]]


class _WritingOp(Mw.Operation):
    """Write the last operands: an op that gives results on tensors, and none on buffers."""

    values: Sequence[ext.Operand[Any]]
    outputs: Sequence[ext.Result[Any]]

    def verify_invariants(self) -> bool:
        given = [str(v.type) for v in self.operation.operands]
        made = [str(r.type) for r in self.operation.results]
        return require(
            self,
            not made or given[-len(made) :] == made or self.operation.name == "mw.collective",
            f"gives ({', '.join(made)}) but writes ({', '.join(given[-len(made) :])})",
        )


class _TransferOp(_WritingOp, traits=[_PureOnTensors]):
    """Call a function of the engine."""

    symbol: ir.StringAttr
    group: ir.IntegerAttr
    arguments: ir.ArrayAttr
    what: ir.StringAttr
    title: ir.StringAttr


@mixed_rows
class LaunchOp(_WritingOp, name="launch", traits=[_PureOnTensors]):
    """Run a kernel: operands are what it reads, in the order of its operand numbers, then the `outs` that it writes.

    On tensors its results are the written `outs`; on memrefs it has none.
    """

    kernel: ir.FlatSymbolRefAttr
    outs: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        kernel, outs = self.attributes.get("kernel"), self.attributes.get("outs")
        if not require(
            self,
            isinstance(kernel, ir.FlatSymbolRefAttr) and isinstance(outs, ir.IntegerAttr),
            "needs `kernel = @name` and `outs`, the number of tensors it writes",
        ):
            return False
        found = _symbol(self, kernel.value, "mw.kernel")
        if found is None:
            return require(self, False, f"no mw.kernel @{kernel.value} in this module")
        wanted, given = len(found.attributes["outputs"]), len(self.operation.operands)
        return require(
            self,
            outs.value == wanted <= given,
            f"writes {outs.value} of {given} operands, @{kernel.value} has {wanted} outputs",
        ) and _WritingOp.verify_invariants(self)


def _symbol(op: ir.Operation, name: str, kind: str) -> ir.Operation | None:
    """Find the op of that kind and name in the module around `op`."""
    found = (o for o in in_module(op, kind) if o.attributes["sym_name"].value == name)
    return next(found, None)


class MemberOp(Mw.Operation, name="member", traits=[ext.Pure]):
    """Give this rank's member number in group number `group` of the program."""

    group: ir.IntegerAttr
    output: ext.Result[ir.IndexType]


@mixed_rows
class CollectiveOp(_TransferOp, name="collective"):
    """Call a collective of the engine: operands are what is sent, what is received, and perhaps scratch memory.

    `symbol` is the function, `group` the number of the group. `arguments` are the numbers after the two buffers, a text
    `"table:2,0,1"` being the entry at this rank's member number, `"times:3*64"` the number that input 3 of the program
    holds times 64; `exchange` is the number of the exchange that it does.
    `what`, `axes`, `bytes` and `title` say what it is for reports; `runs` the lengths in bytes of what it copies at a
    time; `scratch` the bytes of scratch memory.
    """


@mixed_rows
class StartOp(_TransferOp, name="start"):
    """Start a collective; an `mw.wait` with the same `ticket`, later in the block, ends it. Attributes as there.

    `sent` is the number of bytes that are sent; after plan-memory `area` is where in the arena they wait to be read.
    """

    ticket: ir.IntegerAttr
    sent: ir.IntegerAttr


@mixed_rows
class WaitOp(_WritingOp, name="wait", traits=[_PureOnTensors]):
    """Wait for the collective that the `mw.start` with the same `ticket` began, on the same operands."""

    ticket: ir.IntegerAttr


@mixed_rows
class CallOp(_WritingOp, name="call"):
    """Call a function of the program on buffers: its inputs, its outputs, and the frame, its part of the arena."""

    callee: ir.FlatSymbolRefAttr
    outs: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        callee = self.attributes.get("callee")
        name = callee.value if isinstance(callee, ir.FlatSymbolRefAttr) else ""
        known = _symbol(self, name, "func.func") is not None
        return require(self, known, f"no function @{name}") and _WritingOp.verify_invariants(self)


class PlaceOp(Mw.Operation, name="place"):
    """Place a buffer in the arena at byte `offset`; it lives from step `lifetime[0]` to step `lifetime[1]`.

    Ops with the same number `buffer` are one buffer, which several tensors have shared.
    """

    offset: ir.IntegerAttr
    buffer: ir.IntegerAttr
    lifetime: I64Array
    output: ext.Result[ir.MemRefType]

    def verify_invariants(self) -> bool:
        offset, life = self.attributes.get("offset"), self.attributes.get("lifetime")
        return require(
            self,
            isinstance(offset, ir.IntegerAttr) and offset.value >= 0,
            "needs `offset`, a number of bytes that is not negative",
        ) and require(
            self,
            isinstance(life, ir.DenseI64ArrayAttr) and len(life) == 2 and life[0] <= life[1],
            "needs `lifetime = array<i64: first, last>`",
        )


class ShareOp(Mw.Operation, name="share"):
    """See the memory of another buffer as a memref of another shape: a result lies in it."""

    source: ext.Operand[Any]
    output: ext.Result[ir.MemRefType]

    def verify_invariants(self) -> bool:
        sizes = {_nbytes(v.type) for v in (*self.operation.operands, *self.operation.results)}
        return require(self, len(sizes) == 1, f"must keep the number of bytes, has {sizes}")


def _nbytes(type_: ir.Type) -> str:
    if not isinstance(type_, ir.MemRefType) or not type_.has_static_shape:
        return str(type_)
    width = getattr(type_.element_type, "width", 64)
    return str(math.prod(type_.shape) * max(8, width))


class FuseOp(Mw.Operation, name="fuse"):
    """Run several launches as one kernel, row by row: they share their `rows` outer loops.

    The loops of a launch or copy run from the one with the largest step in its first result to the one with the
    smallest, those that reduce last; behind a contraction, in the order in which it stores what they read of it.
    """

    rows: ir.IntegerAttr
    body: ext.Region

    def verify_region_invariants(self) -> bool:
        ops = ends_in(self, "mw.yield")
        others = sorted({op.name for op in (ops or ())[:-1]} - {"mw.launch", "memref.copy"})
        return ops is not None and require(
            self, not others, f"holds launches and copies, not {others[:1]}"
        )


class AddressOp(Mw.Operation, name="address", traits=[ext.Pure]):
    """Give the address in device memory of an element of the buffer that `source` lies in.

    `map` says how many elements behind the first of `source` it is, from the values `symbols`.
    """

    source: ext.Operand[Any]
    symbols: Sequence[ext.Operand[ir.IndexType]]
    map: ir.AffineMapAttr
    output: ext.Result[Any]

    def verify_invariants(self) -> bool:
        found, given = self.attributes.get("map"), len(self.operation.operands) - 1
        if not require(self, isinstance(found, ir.AffineMapAttr), "needs `map`, an affine map"):
            return False
        map_ = found.value
        return require(
            self,
            (map_.n_dims, map_.n_symbols, map_.n_inputs) == (0, given, given)
            and len(map_.results) == 1,
            f"needs a map of {given} symbols to one number, not {map_}",
        )


class ScratchOp(Mw.Operation, name="scratch"):
    """Give the address of byte `first` of the memory where kernels of a compute stream leave parts of results.

    `nbytes` from there are used, by one launch and by the next, which joins the parts.
    """

    first: ir.IntegerAttr
    nbytes: ir.IntegerAttr
    output: ext.Result[Any]

    def verify_invariants(self) -> bool:
        first, nbytes = self.attributes["first"].value, self.attributes["nbytes"].value
        return require(
            self, first >= 0 and nbytes > 0, f"needs bytes from 0 on, not {nbytes} from {first}"
        )


class ProductOp(Mw.Operation, name="product"):
    """Let the library multiply matrices: D = A B, or D + A B, row-major; attributes are those of `device.GemmInfo`.

    spare: the kernel that is launched instead where the library has no algorithm.
    """

    a: ext.Operand[Any]
    b: ext.Operand[Any]
    d: ext.Operand[Any]
    dtype: ir.StringAttr
    m: ir.IntegerAttr
    n: ir.IntegerAttr
    k: ir.IntegerAttr
    lda: ir.IntegerAttr
    ldb: ir.IntegerAttr
    ldd: ir.IntegerAttr
    spare: ir.SymbolRefAttr


class StreamOp(Mw.Operation, name="stream"):
    """Launch from here on, to the end of the function or the next `mw.stream`, on compute stream `number`."""

    number: ir.IntegerAttr


class RecordOp(Mw.Operation, name="record"):
    """Let event `event` be when all that the stream has been given so far is done."""

    event: ir.IntegerAttr


class AwaitOp(Mw.Operation, name="await"):
    """Let the stream wait for event `event` before what it is given next."""

    event: ir.IntegerAttr
