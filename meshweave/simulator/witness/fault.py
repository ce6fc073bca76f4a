"""Define the error for what a kernel must not do, and for what the witness does not know."""

from __future__ import annotations

from meshweave.errors import MeshweaveError


class WitnessError(MeshweaveError):
    """Report that a kernel broke a rule, or that its LLVM IR has what the witness does not know."""
