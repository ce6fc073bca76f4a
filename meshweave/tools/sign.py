"""The command `meshweave sign`, and the check of what it wrote."""

from __future__ import annotations

import argparse
from dataclasses import replace

from meshweave.bundle import Bundle
from meshweave.errors import MeshweaveError
from meshweave.files.signature import is_signed, signed


def sign(options: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    bundle = Bundle.read(options.file)
    replace(bundle, signature=signed(bundle.claim, options.key)).write(options.file)
    print(f"{options.file}: signed, sha256 {bundle.digest}")
    return 0


def check_signature(bundle: Bundle | None, name: str, key: str) -> None:
    """Raise MeshweaveError unless this is a bundle that the owner of a public key has signed. key: its PEM file."""
    if bundle is None:
        raise MeshweaveError(
            f"{name}: a program's text has no signature: compile it, and sign the bundle"
        )
    if not bundle.signature:
        raise MeshweaveError(f"{name}: the bundle has no signature: `meshweave sign` gives it one")
    if not is_signed(bundle.claim, bundle.signature, key):
        raise MeshweaveError(f"{name}: the signature is not by the key in {key}")
