"""Describe where an op reads or writes, by linear forms over loop dims.

`Linear(const, ((dim, factor), ...))` is const + sum of factor * loop index. Negative dims are
values known only when the program runs (a rank's member index, the induction variable of a loop
around the op): symbol s is dim -1 - s. A tensor access is one linear form per tensor dim. Composing
accesses folds transposes, broadcasts, slices and reshapes into their readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from meshweave.ir.bindings import ir


class Linear(NamedTuple):
    """Hold const + sum of factor * index over `terms`, which are sorted by dim and have no zero factor."""

    const: int
    terms: tuple[tuple[int, int], ...] = ()

    def over(self, indices: Sequence[Linear]) -> Linear:
        """Replace loop dim d by `indices[d]`; symbols stay."""
        if len(self.terms) == 1 and self.const == 0:
            dim, factor = self.terms[0]
            if factor == 1 and dim >= 0:
                return indices[dim]
        const, factors = self.const, dict[int, int]()
        for dim, factor in self.terms:
            if dim < 0:
                factors[dim] = factors.get(dim, 0) + factor
                continue
            inner = indices[dim]
            const += factor * inner.const
            for key, value in inner.terms:
                factors[key] = factors.get(key, 0) + factor * value
        return Linear(const, tuple(sorted((k, f) for k, f in factors.items() if f)))

    def scaled(self, factor: int) -> Linear:
        """Multiply the form by a number."""
        if factor == 0:
            return ZERO
        return Linear(self.const * factor, tuple((d, f * factor) for d, f in self.terms))

    def plus(self, other: Linear) -> Linear:
        """Add two forms."""
        factors = dict(self.terms)
        for dim, factor in other.terms:
            factors[dim] = factors.get(dim, 0) + factor
        terms = tuple(sorted((k, f) for k, f in factors.items() if f))
        return Linear(self.const + other.const, terms)

    @property
    def dim(self) -> int | None:
        """Return the loop dim that this form is, None when it is anything else."""
        if self.const == 0 and len(self.terms) == 1:
            dim, factor = self.terms[0]
            if factor == 1 and dim >= 0:
                return dim
        return None


ZERO = Linear(0)


@cache
def loop_dim(dim: int) -> Linear:
    """Return the form that is loop dim `dim`."""
    return Linear(0, ((dim, 1),))


def symbol(number: int) -> Linear:
    """Return the form that is run-time value `number`."""
    return Linear(0, ((-1 - number, 1),))


IndexMap = tuple[Linear, ...]
"""One linear form for each dim of a tensor: where an op reads or writes it."""


@cache
def identity(ndim: int) -> IndexMap:
    """Return the map that reads element (i, j) in iteration (i, j)."""
    return tuple(loop_dim(d) for d in range(ndim))


def from_expr(expr: ir.AffineExpr) -> Linear | None:
    """Return the linear form of an affine expression.

    Return None when it has a mod, a division or a product of dims.
    """
    if isinstance(expr, ir.AffineDimExpr):
        return loop_dim(expr.position)
    if isinstance(expr, ir.AffineSymbolExpr):
        return symbol(expr.position)
    if isinstance(expr, ir.AffineConstantExpr):
        return Linear(expr.value)
    if isinstance(expr, (ir.AffineAddExpr, ir.AffineMulExpr)):
        left, right = from_expr(expr.lhs), from_expr(expr.rhs)
        if left is None or right is None:
            return None
        if isinstance(expr, ir.AffineAddExpr):
            return left.plus(right)
        if not right.terms:
            return left.scaled(right.const)
        return right.scaled(left.const) if not left.terms else None
    return None


def to_expr(form: Linear) -> ir.AffineExpr:
    """Return a linear form as an affine expression; the reverse of `from_expr`."""
    made: ir.AffineExpr | None = None
    for dim, factor in form.terms:
        index = ir.AffineDimExpr.get(dim) if dim >= 0 else ir.AffineSymbolExpr.get(-1 - dim)
        by = ir.AffineConstantExpr.get(factor)
        term = index if factor == 1 else ir.AffineMulExpr.get(index, by)
        made = term if made is None else ir.AffineAddExpr.get(made, term)
    constant = ir.AffineConstantExpr.get(form.const)
    if made is None:
        return constant
    return made if form.const == 0 else ir.AffineAddExpr.get(made, constant)


def from_map(attr: ir.AffineMapAttr) -> IndexMap | None:
    """Return the index map of an affine map attribute, None when one of its results is not linear."""
    forms = [from_expr(e) for e in attr.value.results]
    known = [form for form in forms if form is not None]
    return tuple(known) if len(known) == len(forms) else None


def inverse(access: Sequence[Linear], ndim: int) -> IndexMap | None:
    """Return each loop dim as a form over tensor dims, for an access that permutes all `ndim` loop dims; else None."""
    if len(access) != ndim:
        return None
    result = dict[int, Linear]()
    for position, form in enumerate(access):
        dim = form.dim
        if dim is None or dim in result:
            return None
        result[dim] = loop_dim(position)
    return tuple([result[dim] for dim in range(ndim)])


def expand_access(
    groups: Sequence[Sequence[int]], shape: Sequence[int], index: Sequence[Linear]
) -> IndexMap:
    """Return where an expand_shape to `shape` reads its source for its result at `index`."""
    out = []
    for group in groups:
        form = ZERO
        for dim in group:
            form = form.scaled(shape[dim]) if form != ZERO else form
            if shape[dim] != 1:
                form = form.plus(index[dim]) if form != ZERO else index[dim]
        out.append(form)
    return tuple(out)


def collapse_access(
    groups: Sequence[Sequence[int]], shape: Sequence[int], index: Sequence[Linear]
) -> IndexMap | None:
    """Return where a collapse_shape reads its source, of `shape`; None when a group has two dims that are not 1."""
    out = [ZERO] * len(shape)
    for group, form in zip(groups, index):
        wide = [d for d in group if shape[d] != 1]
        if len(wide) > 1:
            return None
        if wide:
            out[wide[0]] = form
    return tuple(out)


def slice_access(
    offsets: Sequence[Linear], strides: Sequence[int], kept: Sequence[bool], index: Sequence[Linear]
) -> IndexMap:
    """Return where an extract_slice reads its source for its result at `index`.

    kept[d]: whether source dim d is a dim of the result.
    """
    result = iter(index)
    return tuple(
        next(result).scaled(stride).plus(offset) if keep else offset
        for offset, stride, keep in zip(offsets, strides, kept)
    )
