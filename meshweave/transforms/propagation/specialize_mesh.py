"""dist-specialize-mesh: symbolic axis sizes become numbers.

before:  dist.mesh {axes = "x=N, y=2"}
after:   dist.mesh {axes = "x=4, y=2"}          with -p dist-specialize-mesh{sizes=N=4}

It may run anywhere before dist-partition: the module is then as if the passes before it had run on the mesh of numbers.
Where they chose layouts that hold for these numbers they stay; otherwise the passes run again. Plans are made anew.

`mesh` replaces the whole mesh by one with the same axis names (what `meshweave run --mesh` does); its sizes may be
symbols, as long as no pass has looked at the old ones.
"""

from dataclasses import dataclass
from typing import ClassVar

from meshweave.errors import LayoutError, UsageError
from meshweave.ir.bindings import ir
from meshweave.layout.mesh import Mesh
from meshweave.transforms.base import Pass, fail, mesh_of_module, mesh_op
from meshweave.transforms.propagation.propagate import Propagate
from meshweave.transforms.propagation.symbolic import Record, forget, take_back
from meshweave.transforms.redistribution.fold_redistribute import fold_redistributes
from meshweave.transforms.redistribution.insert_redistribute import (
    InsertRedistribute,
    drop_constraints,
)
from meshweave.transforms.redistribution.legalize_redistribute import STEPS, LegalizeRedistribute

_LEGALIZE = tuple(LegalizeRedistribute(steps) for steps in STEPS)
_RERUN: dict[str, Pass] = {
    str(made): made
    for made in (Propagate(), Propagate(slices=True), InsertRedistribute(), *_LEGALIZE)
}


@dataclass(frozen=True)
class SpecializeMesh(Pass):
    """Replace symbolic sizes of the mesh by numbers (`sizes=N=4,M=2`), or all sizes (`mesh="x=4, y=2"`)."""

    name: ClassVar[str] = "dist-specialize-mesh"
    sizes: tuple[str, ...] = ()
    mesh: str = ""

    def __post_init__(self) -> None:
        if self.sizes and self.mesh:
            raise UsageError("give sizes or a whole mesh, not both")

    def run(self, module: ir.Module) -> None:
        op = mesh_op(module)
        if op is None:
            return
        old = mesh_of_module(module)
        assert old is not None
        try:
            new = self._specialized(old)
        except LayoutError as error:
            fail(op, f"{self.name}: {error}")
        record = Record.of(op)
        if new.is_symbolic and (record.passes or not self.mesh):
            fail(
                op,
                f"{self.name}: mesh ({new}) still has symbolic sizes: give each a number, sizes=N=4",
            )
        if new == old:
            return
        context = module.operation.context
        with context, ir.Location.unknown(context):
            op.operation.attributes["axes"] = ir.StringAttr.get(str(new))
            self._settle(module, record, old, new)

    def _settle(self, module: ir.Module, record: Record, old: Mesh, new: Mesh) -> None:
        """Let the module be what the passes of `record` would have made of it on `new`."""
        again = record.again(old, new)
        if again:
            take_back(module)
        forget(module)
        if not again and InsertRedistribute.name in record.passes:
            fold_redistributes(module)
            drop_constraints(module)
        legalize = [name for name in record.passes if name in map(str, _LEGALIZE)]
        for name in again or legalize[-1:]:
            _RERUN[name].run(module)

    def _specialized(self, old: Mesh) -> Mesh:
        if self.mesh:
            new = Mesh.parse(self.mesh)
            missing = [name for name in old.names if name not in new.names]
            if missing:
                raise LayoutError(
                    f"mesh ({new}) lacks axis {', '.join(missing)} of the module's mesh ({old})"
                )
            return new
        numbers: dict[str, int] = {}
        for text in self.sizes:
            symbol, _, number = (part.strip() for part in text.partition("="))
            if not (number.isascii() and number.isdigit() and len(number) < 20):
                raise LayoutError(f'size "{text}" is not SYMBOL=NUMBER')
            if symbol in numbers:
                raise LayoutError(f"{symbol} has two numbers, {numbers[symbol]} and {number}")
            numbers[symbol] = int(number)
        return old.specialize(**numbers)
