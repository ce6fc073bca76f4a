"""Define the error for what a kernel must not do, and for what the emulator cannot do."""

from __future__ import annotations

from meshweave.errors import MeshweaveError


class EmulationError(MeshweaveError):
    """Report that a kernel broke a rule of the machine, or that its PTX cannot be read or executed here."""
