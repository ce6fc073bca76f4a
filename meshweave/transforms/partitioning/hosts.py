"""Fix calls of Python that rank 0 alone makes: what comes back goes to the other ranks.

before:  y = mw.host(x) {effects, first}
after:   y = mw.host(x) {effects, first}; z = all_reduce(select(rank == 0, y, 0))
"""

from meshweave.dialects.dist import axes_attr
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.transforms.partitioning.local import Local, is_first
from meshweave.transforms.partitioning.neutral import neutral_attr


def fix_host(op: ir.Operation, local: Local) -> None:
    """Let all ranks read the results of rank 0. They are integers, to which zeros add nothing."""
    axes = [name for name in local.mesh.names if local.mesh.size(name) > 1]
    if "first" not in op.attributes or not axes:
        return
    b = OpBuilder.after(op)
    for result in op.results:
        readers = [(use.owner, use.operand_number) for use in result.uses]
        if not readers:
            continue
        zeros = b.fill(b.constant(neutral_attr("sum", result.type.element_type)), result.type)
        own = b.select(is_first(b, axes), result, zeros)
        whole = b.one(
            "dist.all_reduce",
            result.type,
            own,
            axes=axes_attr(axes),
            kind=ir.StringAttr.get("sum"),
        )
        for reader, number in readers:
            reader.operands[number] = whole
