"""dist-specialize-mesh: symbolic axis sizes become numbers.

before:  dist.mesh {axes = "x=N, y=2"}
after:   dist.mesh {axes = "x=4, y=2"}          with -p dist-specialize-mesh{sizes=N=4}

`mesh` replaces the whole mesh by one with the same axis names (what `meshweave run --mesh` does). Plans, which depend
on the sizes, are dropped: run dist-legalize-redistribute again.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from meshweave.bindings import ir
from meshweave.errors import LayoutError
from meshweave.layout.mesh import Mesh
from meshweave.transforms.base import Pass, fail, ops_of
from meshweave.transforms.mesh import mesh_of_module, mesh_op


@dataclass(frozen=True)
class SpecializeMesh(Pass):
    """Replace symbolic sizes of the mesh by numbers (`sizes=N=4,M=2`), or all sizes (`mesh="x=4, y=2"`)."""

    name: ClassVar[str] = "dist-specialize-mesh"
    sizes: tuple[str, ...] = ()
    mesh: str = ""

    def run(self, module: Any) -> None:
        op = mesh_op(module)
        if op is None:
            return
        old = mesh_of_module(module)
        assert old is not None
        try:
            new = self._specialized(old)
        except LayoutError as error:
            fail(op, f"{self.name}: {error}")
        if new.is_symbolic:
            fail(
                op,
                f"{self.name}: mesh ({new}) still has symbolic sizes: give each a number, sizes=N=4",
            )
        if new == old:
            return
        context = module.operation.context
        with context, ir.Location.unknown(context):
            op.operation.attributes["axes"] = ir.StringAttr.get(str(new))
        for redistribute in ops_of(module, "dist.redistribute"):
            if "plan" in redistribute.operation.attributes:
                del redistribute.operation.attributes["plan"]

    def _specialized(self, old: Mesh) -> Mesh:
        if self.mesh:
            new = Mesh.parse(self.mesh)
            missing = [name for name in old.names if name not in new.names]
            if missing:
                raise LayoutError(
                    f"mesh ({new}) lacks axis {', '.join(missing)} of the module's mesh ({old})"
                )
            return new
        numbers = {}
        for text in self.sizes:
            symbol, _, number = text.partition("=")
            if not number.strip().isdigit():
                raise LayoutError(f'size "{text}" is not SYMBOL=NUMBER')
            numbers[symbol.strip()] = int(number)
        return old.specialize(**numbers)
