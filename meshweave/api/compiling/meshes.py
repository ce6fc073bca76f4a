"""Give a program the mesh that it is compiled for."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from meshweave.api.compiling.rank_program import verified
from meshweave.errors import CompileError, MeshweaveError, UsageError
from meshweave.files.sources import Source
from meshweave.layout import Mesh
from meshweave.layout.mesh import AUTO

if TYPE_CHECKING:  # here, for what is read from the disk needs no compiler
    from meshweave.ir.bindings import ir
    from meshweave.plan.placement.goal import PlacementGoal
    from meshweave.plan.placement.prices import MachinePrices


def mesh_of(mesh: "str | Mesh | None") -> Mesh | None:
    """Return the mesh that an argument means. Raises UsageError if it is none."""
    if mesh is None or isinstance(mesh, Mesh):
        return mesh
    if not isinstance(mesh, str):
        raise UsageError(f"mesh: text or a Mesh is needed, got {type(mesh).__name__}")
    try:
        parsed = Mesh.parse(mesh)
    except MeshweaveError as error:
        raise UsageError(f"mesh: {error}") from None
    if parsed.is_symbolic:
        raise UsageError(f"mesh: {parsed} has a symbol for a size, a number is needed")
    return parsed


def mesh_of_ranks(mesh: "Mesh | str | None", ranks: int | None) -> Mesh:
    """Return the mesh that arguments mean; for "auto" one whose axes are to be chosen."""
    if mesh == AUTO:
        if ranks is None:
            raise UsageError('jit: mesh="auto" needs the number of ranks: ranks=4')
        mesh = f"{AUTO}={ranks}"
    elif ranks is not None:
        raise UsageError(
            f'jit: ranks={ranks} goes with mesh="auto": ({mesh or "one rank"}) is said'
        )
    if isinstance(mesh, str):
        mesh = Mesh.parse(mesh)
    if mesh is not None and not isinstance(mesh, Mesh):
        raise UsageError(f"jit: mesh is a {type(mesh).__name__}, a Mesh or its text is right")
    if mesh is not None and mesh.is_symbolic:
        raise UsageError(f"jit: mesh ({mesh}) has a symbol for a size, a number is needed")
    return mesh or Mesh()


def own_mesh(source: Source) -> Mesh:
    """Return the mesh that a program is written for."""
    from meshweave.dialects import lent_context
    from meshweave.frontends.load import load_module
    from meshweave.ir.bindings import ir
    from meshweave.transforms.base import mesh_of_module

    with lent_context(len(source.text)) as ctx, ctx, ir.Location.unknown():
        return mesh_of_module(load_module(source.text, ctx, source.name)) or Mesh()


def axis_names(module: "ir.Module") -> tuple[str, ...]:
    """Return the axes that layouts of a module may name."""
    from meshweave.transforms.base import mesh_of_module

    own = mesh_of_module(module)
    return own.names if own is not None and own.ranks_to_arrange is None else ()


def check_mesh(module: "ir.Module", mesh: Mesh | None) -> None:
    """Raise UsageError where a program that is one rank's already is for another mesh."""
    from meshweave.lowering.stages import mesh_text

    own = mesh_text(module)
    if mesh is not None and str(mesh) != str(Mesh.parse(own)):
        raise UsageError(
            f"the program is one rank's of mesh {own or 'of one rank'} already, not of {mesh}"
        )


def give_mesh(module: "ir.Module", mesh: Mesh | None) -> Mesh:
    """Set the module's mesh, or its sizes; a module without any gets `mesh`, by default that of one rank."""
    from meshweave.ir.bindings import ir
    from meshweave.ir.build import OpBuilder
    from meshweave.ir.locations import location_text
    from meshweave.transforms.base import mesh_of_module, mesh_op, set_mesh
    from meshweave.transforms.propagation.specialize_mesh import SpecializeMesh

    own = mesh_of_module(module)
    if own is None:
        at = ir.InsertionPoint.at_block_begin(module.body)
        axes = ir.StringAttr.get(str(mesh or Mesh()))
        b = OpBuilder(at, ir.Location.unknown())
        b.op("dist.mesh", sym_name=ir.StringAttr.get("mesh"), axes=axes)
        verified(module)  # the layouts that it has, against a mesh that nobody has looked at yet
        return mesh or Mesh()
    where = location_text(mesh_op(module))
    if mesh is not None and mesh.ranks_to_arrange is not None:
        set_mesh(module, mesh)
        return mesh
    if mesh is None and own.is_symbolic:
        raise CompileError(f"mesh ({own}) has symbolic sizes: say which mesh to compile for", where)
    if mesh is None:
        return own
    if not mesh.axes:
        raise CompileError(
            f"the program needs axes {', '.join(own.names)}, the mesh given has none", where
        )
    SpecializeMesh(mesh=str(mesh)).run(module)
    verified(module)
    return mesh


def arrange(
    module: "ir.Module",
    mesh: Mesh,
    names: Sequence[str],
    machine: "MachinePrices | None",
    goal: "PlacementGoal",
) -> Mesh:
    """Give a module whose ranks are to be arranged the mesh on which it takes the least predicted time."""
    from meshweave.plan.placement.prices import MachinePrices
    from meshweave.transforms.propagation.place import arrange_ranks

    residents = replace(goal, share=0.0)  # what fits beside them is found out behind it
    chosen = arrange_ranks(module, mesh, machine or MachinePrices(), names, residents)
    verified(module)
    return chosen
