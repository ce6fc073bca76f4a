"""Find what each op does with its dims: one Rule per op, read off indexing maps where there are any.

`RuleTable.rule(op)` answers with the number of the op's rule; ops alike in name, maps and types share one, so most of a
deep model costs a dictionary lookup an op. An op that nobody knows needs all its operands whole.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

from meshweave.ir.bindings import ir, linalg
from meshweave.ir.calls import HOST
from meshweave.ir.fft import FFT
from meshweave.ir.routines import LAPACK
from meshweave.ir.scans import SCAN
from meshweave.ir.scatters import SCATTER
from meshweave.ir.sorting import ORDER, SORT
from meshweave.layout.factors import (
    SORTED,
    WHOLE,
    Rule,
)
from meshweave.plan.collectives import ROWS
from meshweave.transforms.propagation.bodies import (
    BodyKey,
    Captured,
    body_key,
    captured_by,
)
from meshweave.transforms.propagation.rules.basic import (
    aligned_op_rule,
    aligned_rule,
    whole_rule,
)
from meshweave.transforms.propagation.rules.moving import (
    concat_rule,
    extract_slice_rule,
    held_offsets,
    insert_slice_rule,
    pad_rule,
    reassociation_rule,
)
from meshweave.transforms.propagation.rules.rows import (
    collective_rule,
    fft_rule,
    host_rule,
    lapack_rule,
    order_rule,
    scan_rule,
    scatter_rule,
    sort_rule,
)
from meshweave.transforms.propagation.rules.structured import BodyTraits, structured_rule

KNOWN_WHOLE = (
    "arith.constant",
    "tensor.extract",
    "tensor.dim",
    "tensor.from_elements",
    "tensor.generate",
)
"""Ops that are known to need whole tensors, or to make them: no remark about these."""


@dataclass
class RuleTable:
    """Number rules, by what they were read from. windows: tensors may be read through windows, else they are whole."""

    windows: bool = False
    rules: list[Rule] = field(default_factory=list)
    unknown: list[ir.Operation] = field(default_factory=list)
    _numbers: dict[Hashable, int] = field(default_factory=dict)
    _kinds: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    _bodies: dict[Hashable, BodyTraits] = field(default_factory=dict)

    def rule(self, op: ir.Operation) -> tuple[int, list[Captured], int]:
        """Return the number of the rule of `op`, what it reads in its body besides its operands, and its kind.

        The kind is a number, the same for ops with one rule whose bodies are the same.
        """
        name = op.name
        read = READERS.get(name) or (
            structured_rule
            if name.startswith("linalg.")
            else READERS.get(_family(name), whole_rule)
        )
        body = body_key(op)
        captured = captured_by(op) if body is None else []
        values = [*op.operands, *[c.value for c in captured], *op.results]
        results = op.results
        key = (
            name,
            tuple([v.type for v in values]),
            len(results),
            tuple([c.loops for c in captured]),
            *self._attributes(op, read),
        )
        # Bodies that are not told apart, and those of several results, are looked at each time.
        own = (key, op if body is None or len(results) > 1 else body)
        if own not in self._kinds:
            self._kinds[own] = self._number((*key, self._body(op, read, body)), op, read, captured)
        return self._kinds[own][0], captured, self._kinds[own][1]

    def _number(
        self, key: Hashable, op: ir.Operation, read: Callable[..., Rule], captured: list[Captured]
    ) -> tuple[int, int]:
        """Return the number of the rule of an op with this key, and the next number of a kind."""
        if key not in self._numbers:
            self._numbers[key] = self.add(read(op, captured))
            if read is whole_rule and op.name not in KNOWN_WHOLE:
                self.unknown.append(op)
        return self._numbers[key], len(self._kinds)

    def _attributes(self, op: ir.Operation, read: Callable[..., Rule]) -> tuple[Hashable, ...]:
        """Return the maps of linalg ops, the static attributes of the others."""
        if read is structured_rule:
            if op.name == "linalg.generic":
                return op.attributes["indexing_maps"], op.attributes["iterator_types"]
            maps = linalg.get_indexing_maps(op.opview)
            if maps is not None:
                return tuple(maps)
        if read is aligned_op_rule:
            return ()
        said = [op.attributes[name] for name in op.attributes if name != "dist.layouts"]
        if read in (extract_slice_rule, insert_slice_rule):
            said += held_offsets(op)
        return tuple(said)

    def _body(
        self, op: ir.Operation, read: Callable[..., Rule], body: BodyKey | None
    ) -> BodyTraits | BodyKey | None:
        """Return what a rule depends on in the body of an op."""
        if read is aligned_op_rule:
            return None
        if read is structured_rule and linalg.get_indexing_maps(op.opview) is not None:
            types = op.attributes["iterator_types"] if op.name == "linalg.generic" else None
            return self._traits(op, types, body)
        return body

    def _traits(
        self, op: ir.Operation, types: ir.Attribute | None, body: BodyKey | None
    ) -> BodyTraits:
        """Read how the body reduces, whether padding harms it, what it is linear in: once for equal bodies."""
        result = op.results[0].type if len(op.results) else None
        key = (op.name, result, types, len(op.operands), body)
        if body is None or len(op.results) > 1 or key not in self._bodies:
            self._bodies[key] = BodyTraits.of(op)
        return self._bodies[key]

    def holding(self, number: int, held: tuple[tuple[int, tuple[str, ...]], ...]) -> int:
        """Return the number of rule `number` with `held`."""
        key = (number, held)
        if key not in self._numbers:
            self._numbers[key] = self.add(replace(self.rules[number], held=held))
        return self._numbers[key]

    def add(self, rule: Rule) -> int:
        """Add a rule that belongs to no op (a value that enters a region, say); return its number."""
        turns = any(factor.kind in (WHOLE, SORTED) for factor in rule.factors)
        rule = replace(rule, turns=True) if turns else rule
        self.rules.append(rule if self.windows else rule.without_windows())
        return len(self.rules) - 1

    def identity(self, type_: ir.Type) -> int:
        """Return the rule of a value that is passed on: into a region, out of it, to a caller."""
        key = ("identity", type_)
        if key not in self._numbers:
            self._numbers[key] = self.add(aligned_rule("pass", [type_], [type_]))
        return self._numbers[key]


def _family(name: str) -> str:
    return name.split(".", 1)[0] + ".*"


READERS: dict[str, Callable[[ir.Operation, list[Captured]], Rule]] = {
    "tensor.expand_shape": reassociation_rule,
    "tensor.collapse_shape": reassociation_rule,
    "tensor.extract_slice": extract_slice_rule,
    "tensor.insert_slice": insert_slice_rule,
    "tensor.concat": concat_rule,
    "tensor.pad": pad_rule,
    "tensor.cast": aligned_op_rule,
    "hint.place": aligned_op_rule,
    **{
        f"dist.{row.op}": collective_rule if row.has_dims else aligned_op_rule
        for row in ROWS
        if row.is_blockwise
    },
    "tensor.bitcast": aligned_op_rule,
    SCAN: scan_rule,
    ORDER: order_rule,
    SORT: sort_rule,
    LAPACK: lapack_rule,
    FFT: fft_rule,
    HOST: host_rule,
    SCATTER: scatter_rule,
    "arith.constant": whole_rule,
    "arith.*": aligned_op_rule,
    "math.*": aligned_op_rule,
}
"""How the rule of an op is read, by its name or its dialect; linalg ops by their maps, all others need whole tensors.
"""
