"""Read what types, attributes, index maps and bodies say as plain values, once for both programs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.expressions import Scalar, read_body
from meshweave.verification.bodies import ReadBody, written
from meshweave.verification.loop_forms import LoopForm
from meshweave.verification.said import AttributeTexts, NotReadError

DecodedOp = tuple[list[ir.Value], ReadBody, Sequence[ir.Value], LoopForm]
"""What a linalg op is written of: its operands, its body, the values from around it that this reads, its loops."""


@dataclass
class AttributeReader(AttributeTexts):
    """Hold what types and attributes say, and what linalg ops are written of.

    bodies: by what they are written of. forms: what is worked out of index maps and shapes. linalg: what is known of
    each op that is read again.
    """

    bodies: dict[Hashable, ReadBody] = field(default_factory=dict)
    forms: dict[Hashable, LoopForm] = field(default_factory=dict)
    linalg: dict[ir.Operation, DecodedOp] = field(default_factory=dict)

    def body(self, block: ir.Block, key: Hashable | None = None) -> tuple[ReadBody, list[ir.Value]]:
        """Return a body, and the values from around the op that its scalars are, in order.

        key: what says all of it, where that is known; such a body reads nothing from around the op.
        Raises NotReadError for one with an op that is no scalar op.
        """
        outer: list[ir.Value] = []
        key = written(block, outer) if key is None else key
        found = None if key is None else self.bodies.get(key)
        if found is None:
            try:
                found = ReadBody(read_body(block), self)
            except CompileError as error:
                raise NotReadError(str(error)) from None
            if key is None:
                return found, [n.source for n in found.body.nodes if isinstance(n, Scalar)]
            self.bodies[key] = found
        return found, outer
