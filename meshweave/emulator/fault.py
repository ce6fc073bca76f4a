"""What the emulator says when a kernel does what it must not, or what the emulator cannot do."""

from __future__ import annotations

from meshweave.errors import MeshweaveError


class EmulationError(MeshweaveError):
    """A kernel broke a rule of the machine, or its PTX cannot be read or executed here."""
