"""select-kernels: give each linalg op the fastest kernel that suits it and that nobody has switched off.

before:  linalg.matmul ins(..) outs(..)
after:   linalg.matmul {mw.kernel = "blas"} ins(..) outs(..)

Obeys the hints `kernels` and `numerics` of regions, and its own options, which no hint can undo. `bit_exact` computes
every op as written, and refuses sums in another order: over slices, over ranks. An attention that may be `flash`
becomes loops over tiles. What each op got, and why nothing faster, stays on the module as `mw.kernels`. On gpu an op
that may not take all families of kernels says so, `mw.switches = "-rows"`: which one it gets is for the lowering.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from meshweave.hints.fast_paths import (
    BF16,
    CHOSEN,
    FAMILIES,
    KERNEL,
    KERNELS,
    NO_PANELS,
    PANELS,
    PRODUCTS,
    REFERENCE,
    SHORT,
    SWITCHES,
    Choice,
)
from meshweave.hints.ledger import INFEASIBLE, Ledger, Outcome
from meshweave.ir.bindings import ir
from meshweave.ir.factorizations import LOOPS
from meshweave.ir.locations import location_text
from meshweave.ir.routines import LAPACK, LIBRARY
from meshweave.plan.collectives import dist_ops
from meshweave.plan.machine import bf16_unit, cache_bytes
from meshweave.transforms.attention import whole
from meshweave.transforms.attention.backward import Backward, backward_of, matrix_bytes
from meshweave.transforms.attention.flash import rewrite
from meshweave.transforms.attention.match import Attention, match, score_bytes
from meshweave.transforms.attention.reduced import ReducedBackward
from meshweave.transforms.attention.softmax import NotAttention
from meshweave.transforms.attention.strips import rewrite_backward
from meshweave.transforms.base import Pass, at, erase_unused, ops_of
from meshweave.transforms.kernels.generalize import generic_copy, take_over
from meshweave.transforms.kernels.kernel_choice import Askings, settle_asked
from meshweave.transforms.kernels.kernel_patterns import (
    element_of,
    has_softmax,
    is_convolution,
    is_product,
    linalg_ops,
)
from meshweave.transforms.slicing.ledger import (
    OP,
    number,
    ops_met,
    read_ledger,
    settle,
    write_ledger,
)

_BY_PANELS = (BF16[1:], PANELS[1:])
NO_UNIT = "this processor has no instructions for bf16"


class Row(NamedTuple):
    """Describe an op: its name, its kernel, and why nothing faster (empty: that is the fastest for it)."""

    op: str
    kernel: str
    why: str


@dataclass(frozen=True)
class SelectKernels(Pass):
    """Choose kernels, and rewrite what `flash` computes.

    disable: kernels that nothing may take; only: the only ones that something may (none given: all).
    enable:  kernels that are off by default, and may be taken.
    target:  what the program is compiled for: it says which kernels there are.
    cache_bytes: of the cache that tiles of `flash` should fit; 0: this machine's.
    bf16:    what multiplies bf16 in the processor, "tiles", "dots" or "off"; "": in this machine's.
    """

    name: ClassVar[str] = "select-kernels"
    disable: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    target: str = "cpu"
    cache_bytes: int = 0
    enable: tuple[str, ...] = ()
    bf16: str = ""

    def __post_init__(self) -> None:
        _ = self.choice

    @property
    def choice(self) -> Choice:
        """Return what the options say. Raises UsageError for a kernel that does not exist."""
        switches = dict.fromkeys(self.enable, True) | dict.fromkeys(self.disable, False)
        return Choice.of(self.only or None, switches)

    def _has(self, name: str) -> bool:
        return self.target in KERNELS[name].targets

    @property
    def _general(self) -> list[str]:
        """Return the kernels for ops of all kinds."""
        return [name for name in (*FAMILIES, "codegen") if self._has(name)]

    def run(self, module: ir.Module) -> None:
        ledger = read_ledger(module)
        with at(module):
            asked = Askings(ledger, self.choice)
        _refuse_sums(module, ledger, asked)
        settle_asked(module, ledger, asked)
        if not all(a.allows(name) for a in asked for name in self._general):
            take_over(module, generic_copy(module))  # so that every op can be marked
        cache = self.cache_bytes or cache_bytes()
        rows, refused = _flash(module, asked, cache, self.target)
        kernels = [n for n in KERNELS if n not in ("flash", LIBRARY) and self._has(n)]
        has_unit = (self.bf16 or bf16_unit() or "off") != "off"
        for op in linalg_ops(module):
            if KERNEL in op.attributes:
                continue
            row = (
                _mark_routine(op, ledger, asked, self._has(LIBRARY))
                if op.name == LAPACK
                else _mark(op, asked, refused, kernels, has_unit)
            )
            if row is not None:
                rows.append(row)
        rows = [*_stored(module), *rows]
        if rows:
            module.operation.attributes[CHOSEN] = _rows_attr(rows)
        if ledger.regions:
            write_ledger(module, ledger)


def kernel_rows(module: ir.Module) -> list[dict[str, str]]:
    """Return what each op got, {"op", "kernel", "why"}: why nothing faster. Empty before select-kernels has run."""
    rows = {row.op: row for row in _stored(module)}
    for op in linalg_ops(module):
        if KERNEL in op.attributes and op.attributes[KERNEL].value in KERNELS:
            name, kernel = _name(op), op.attributes[KERNEL].value
            rows.setdefault(name, Row(name, kernel, f"{kernel} is the fastest for it"))
    return [row._asdict() for row in rows.values()]


def _stored(module: ir.Module) -> list[Row]:
    """Return the rows that are on the module: of attentions, and of ops that a faster kernel would compute."""
    attr = module.operation.attributes.get(CHOSEN)
    found = [] if attr is None else [{n.name: n.attr.value for n in row} for row in attr]
    return [Row(row["op"], row["kernel"], row["why"]) for row in found]


def _rows_attr(rows: Iterable[Row]) -> ir.Attribute:
    made = [{k: ir.StringAttr.get(v) for k, v in row._asdict().items()} for row in rows]
    return ir.ArrayAttr.get([ir.DictAttr.get(row) for row in made])


def _mark(
    op: ir.Operation,
    asked: Askings,
    refused: Mapping[str, str],
    kernels: Sequence[str],
    has_unit: bool,
) -> Row | None:
    """Give an op the fastest kernel that it may take.

    Return why none faster, None where that one is the fastest for it.

    refused: by place, why products are no attention. kernels: those for single ops, the fastest first. has_unit:
    whether the processor has instructions for bf16.
    """
    mine, dtype, product = asked.of(op), element_of(op), is_product(op)
    panels = _suits_panels(op, dtype, product)
    _switch(op, [name for name in kernels if not mine.allows(name)], product)
    no_flash = refused.get(location_text(op)) if refused and product else None
    reasons = [("flash", no_flash)] if no_flash else []
    for name in kernels:
        kernel = KERNELS[name]
        if (name in PRODUCTS and not product) or (name in _BY_PANELS and not panels):
            continue
        if name == BF16[1:] and kernel.of_dtype(dtype):
            continue
        lacks = NO_UNIT if name == BF16[1:] and not has_unit else ""
        if reason := kernel.of_dtype(dtype) or mine.why_not(name) or lacks:
            if kernel.default or not kernel.of_dtype(dtype):
                reasons.append((name, reason))
            continue
        if name in FAMILIES:
            continue  # the lowering takes it where it can
        op.attributes[KERNEL] = ir.StringAttr.get(name)
        if name == BF16[1:] and mine.allows(PANELS[1:]):
            op.attributes[SWITCHES] = ir.StringAttr.get(PANELS)  # for sizes that blocks do not fit
        return Row(_name(op), name, joined(reasons)) if reasons else None
    raise AssertionError(f"{REFERENCE} computes every op")


def _mark_routine(
    op: ir.Operation, ledger: Ledger, asked: Askings, has_library: bool
) -> Row | None:
    """Let LAPACK do an `mw.lapack`, or loops where it may not and there are any; return why, None where it may."""
    mine, routine = asked.of(op), op.attributes["routine"].value
    reasons = [(LIBRARY, mine.why_not(LIBRARY))] if has_library else []
    if has_library and (mine.allows(LIBRARY) or routine not in LOOPS):
        op.attributes[KERNEL] = ir.StringAttr.get(LIBRARY)
        if mine.allows(LIBRARY):
            return None
        why = f"nothing else computes {routine}"
        said = [s for s in mine.kernels if (LIBRARY, False) in s.hint.parsed]
        met = [n for n in [number(op, OP)] if n >= 0]
        settle(ledger, said, met, Outcome(INFEASIBLE, why), op)
        return Row(_name(op), LIBRARY, why)
    name = "codegen" if mine.allows("codegen") else REFERENCE
    if name == REFERENCE:
        reasons.append(("codegen", mine.why_not("codegen")))
    op.attributes[KERNEL] = ir.StringAttr.get(name)
    return Row(_name(op), name, joined(reasons)) if reasons else None


def _suits_panels(op: ir.Operation, dtype: str, product: bool) -> bool:
    """Tell whether an op is a convolution, or a product of 16-bit floats that is added up in a longer type."""
    if not product:
        return is_convolution(op)
    return dtype in SHORT and str(op.results[0].type.element_type) not in SHORT


def joined(reasons: Iterable[tuple[str, str]]) -> str:
    """Return a row's text for (kernel, why not that one) pairs."""
    return "; ".join(f"{kernel}: {reason}" for kernel, reason in reasons)


def reasons_of(why: str) -> list[tuple[str, str]]:
    """Return the (kernel, why not that one) pairs of a row's text, as `joined` writes it."""
    parts = re.split(rf"(?:^|; )(?=(?:{'|'.join(KERNELS)}): )", why)
    pairs = (part.partition(": ") for part in parts)
    return [(kernel, reason) for kernel, _, reason in pairs if kernel in KERNELS]


def _switch(op: ir.Operation, off: Sequence[str], product: bool) -> None:
    """Mark on an op which families it may not take."""
    families = (*FAMILIES, *(PRODUCTS if product else ()))
    words = [f"-{name}" for name in off if name in families and KERNELS[name].targets == {"gpu"}]
    if product and PANELS[1:] in off and "blas" not in off:
        words.append(NO_PANELS)
    if words:
        op.attributes[SWITCHES] = ir.StringAttr.get(" ".join(words))


def _name(op: ir.Operation) -> str:
    return f"{op.name} at {location_text(op)}"


# Sums in another order


def _refuse_sums(module: ir.Module, ledger: Ledger, asked: Askings) -> None:
    """Refuse bit_exact where ranks hold parts of a sum of floats: its order would depend on the number of ranks."""
    for op in ops_of(module, *dist_ops(lambda row: row.reduces)):
        op = op.operation
        if op.attributes["kind"].value not in ("sum", "avg", "prod") or not _is_float(op):
            continue
        mine = asked.of(op)
        if mine.numerics is not None and mine.as_written:
            axes = ", ".join(a.value for a in op.attributes["axes"])
            reason = f"ranks along {axes} would each add up a part, in another order"
            remedy = "replicate the dim that is summed over, or ask for numerics = deterministic"
            mine.outcomes.pop(mine.numerics.number, None)
            met = [n for n in ops_met(module, ledger) if asked.of_number(n) is mine]
            settle(ledger, [mine.numerics], met, Outcome(INFEASIBLE, reason, remedy), op)


def _is_float(op: ir.Operation) -> bool:
    return isinstance(op.results[0].type.element_type, ir.FloatType | ir.ComplexType)


# Attention


def _flash(
    module: ir.Module, asked: Askings, cache: int, target: str
) -> tuple[list[Row], dict[str, str]]:
    """Rewrite all attentions that may be flash: as loops over tiles, on gpus as the one op that has a kernel there.

    Return what they got, and why other products that come close end none.
    """
    rows: list[Row] = []
    if not any(a.allows("flash") for a in asked) or not has_softmax(module):
        return rows, {}
    made = generic_copy(module)
    attentions, refused = _attentions(made, target)
    backwards = _backwards(made, refused, target)
    every: list[Attention | Backward] = [*attentions, *backwards]
    if any(_may(found, asked) for found in every):
        take_over(module, made)
        # The last first: an attention may read what another one gives, which is replaced when its turn comes.
        for found in reversed(_attentions(module, target)[0]):
            if _may(found, asked):
                rows.insert(0, _rewritten(found, asked, cache, target))
        left = _backwards(module, {}, target) if backwards else []
        for begin in [found.begin for found in left]:
            backward = _backward(begin, target)  # anew: what it reads may have been replaced
            if backward is not None and _may(backward, asked):
                made_as = (
                    _reduced(backward) if target == "gpu" else _in_strips(backward, asked, cache)
                )
                rows.append(made_as)
        erase_unused(module, "linalg.generic", "tensor.empty")
    return rows, refused


def _may(found: Attention | Backward, asked: Askings) -> bool:
    """Tell whether all ops of an attention, or of the backward of one, allow flash."""
    return all(asked.of(op).allows("flash") for op in found.ops)


def _backward(op: ir.Operation, target: str) -> Backward | None:
    """Return the backward of an attention that begins with `op`, of a form that the target has kernels for."""
    if target != "gpu":
        return backward_of(op)
    found = backward_of(op, whole.SCORES, 0)
    if found is not None:
        ReducedBackward(found)
    return found


def _backwards(module: ir.Module, refused: dict[str, str], target: str) -> list[Backward]:
    """Return the backwards of attentions in a module of generics. refused: as of `_attentions`, added to."""
    found: list[Backward] = []
    for op in ops_of(module, "linalg.generic"):
        try:
            taken = KERNEL in op.operation.attributes
            backward = None if taken else _backward(op.operation, target)
        except NotAttention as error:
            refused.setdefault(location_text(op), str(error))
            continue
        found += [] if backward is None else [backward]
    return found


def _attentions(module: ir.Module, target: str) -> tuple[list[Attention], dict[str, str]]:
    """Return the attentions of a module of generics and, by place, why products that come close end none."""
    found: list[Attention] = []
    refused: dict[str, str] = {}
    plain = set[ir.Value]()
    for op in ops_of(module, "linalg.generic"):
        try:
            if target == "gpu":
                attention = match(op.operation, whole.SCORES, 0, alone=True, plain=plain)
                whole.suitable(attention)
            else:
                attention = match(op.operation, plain=plain)
            found.append(attention)
        except NotAttention as error:
            if str(error).startswith("the scores"):
                refused[location_text(op)] = str(error)
    return found, refused


def _rewritten(found: Attention, asked: Askings, cache: int, target: str) -> Row:
    """Rewrite one attention; its parts take the fastest kernels that they may."""
    if target == "gpu":
        return _made_whole(found)
    marks, product = _marks(found.final, asked)
    saved, where = score_bytes(found), location_text(found.final)
    rewrite(found, marks, {**marks, KERNEL: ir.StringAttr.get(product)}, cache)
    why = f"the fastest there is: {saved} bytes of scores are never made, products of tiles by {product}"
    return Row(f"attention at {where}", "flash", why)


def _in_strips(found: Backward, asked: Askings, cache: int) -> Row:
    """Rewrite the backward of an attention; its parts take the fastest kernels that they may."""
    marks, product = _marks(found.begin, asked)
    saved, where = matrix_bytes(found), location_text(found.begin)
    rewrite_backward(found, marks, {**marks, KERNEL: ir.StringAttr.get(product)}, cache)
    why = f"the fastest there is: matrices of {saved} bytes are made in strips, products of them by {product}"
    return Row(f"backward of an attention at {where}", "flash", why)


def _reduced(found: Backward) -> Row:
    """Make ops that have kernels of a backward."""
    saved, where = matrix_bytes(found), location_text(found.begin)
    ReducedBackward(found).rewrite(_flash_marks(found.begin))
    why = f"the fastest there is: matrices of {saved} bytes are never made"
    return Row(f"backward of an attention at {where}", "flash", why)


def _flash_marks(op: ir.Operation) -> dict[str, ir.Attribute]:
    """Return the attributes of an op that takes the place of `op`."""
    marks = {KERNEL: ir.StringAttr.get("flash")}
    return {**marks, OP: op.attributes[OP]} if OP in op.attributes else marks


def _marks(op: ir.Operation, asked: Askings) -> tuple[dict[str, ir.Attribute], str]:
    """Return the attributes of the parts of an attention, and the kernel of those that are products."""
    mine = asked.of(op)
    other = "codegen" if mine.allows("codegen") else REFERENCE
    product = "blas" if other == REFERENCE and mine.allows("blas") else other
    marks = {KERNEL: ir.StringAttr.get(other)}
    if OP in op.attributes:
        marks[OP] = op.attributes[OP]
    return marks, product


def _made_whole(found: Attention) -> Row:
    """Make one op of an attention."""
    saved, where = score_bytes(found), location_text(found.final)
    whole.suitable(found).rewrite(_flash_marks(found.final))
    return Row(
        f"attention at {where}",
        "flash",
        f"the fastest there is: {saved} bytes of scores are never made",
    )
