"""Make a rank's sections of a program's exchanges, when the program is loaded."""

from __future__ import annotations

from meshweave.bundle import Manifest
from meshweave.errors import MeshweaveError
from meshweave.exchange.section import Section
from meshweave.exchange.table import Table
from meshweave.layout import Layout, Mesh
from meshweave.targets import engine_traits


def sections(manifest: Manifest, rank: int) -> list[Section]:
    """Return what a rank does in each exchange of a program.

    Raises MeshweaveError where it would need more memory for messages than it has.
    """
    mesh, made = Mesh.parse(manifest.mesh), []
    sends = not engine_traits(manifest.engine).reads_peers
    for info in manifest.exchanges:
        source, target = (Layout.parse(text) for text in (info.source, info.target))
        group = mesh.group(info.axes, rank) if info.axes else (rank,)
        table = Table(source, target, mesh, info.shape)
        section = Section(table, rank, group, info.width, messages=sends and bool(info.axes))
        if section.mail.staging > info.staging:
            raise MeshweaveError(
                f"rank {rank}: messages from {info.source} to {info.target} need "
                f"{section.mail.staging} bytes, there are {info.staging}"
            )
        made.append(section)
    return made
