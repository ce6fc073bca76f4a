"""The mesh of a module, read from its one `dist.mesh` op."""

from typing import Any

from meshweave.errors import LayoutError
from meshweave.layout.mesh import Mesh
from meshweave.transforms.base import fail


def mesh_op(module: Any) -> Any | None:
    """The module's `dist.mesh`; None when it has none. A second one is refused."""
    block = module.operation.regions[0].blocks[0]
    found = [o for o in block.operations if o.operation.name == "dist.mesh"]
    if len(found) > 1:
        fail(found[1], f"one mesh per module, this is number {len(found)}", [found[0]])
    return found[0] if found else None


def mesh_of_module(module: Any, concrete: bool = False) -> Mesh | None:
    """The module's mesh; None when it has none (a program for one rank).

    concrete: refuse a mesh whose sizes are still symbols.
    """
    op = mesh_op(module)
    if op is None:
        return None
    try:
        mesh = Mesh.parse(op.operation.attributes["axes"].value)
    except LayoutError as error:
        fail(op, str(error))
    if concrete and mesh.is_symbolic:
        fail(op, f"mesh ({mesh}) still has symbolic sizes: run dist-specialize-mesh first")
    return mesh
