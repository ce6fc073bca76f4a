"""Sign data with Ed25519 keys in PEM files, and check signatures (RFC 8032, by the package `cryptography`)."""

from __future__ import annotations

import os
from typing import Any

from meshweave.errors import MeshweaveError, UsageError

_MAKE = {
    "private": "openssl genpkey -algorithm ed25519 -out KEY.pem",
    "public": "openssl pkey -in KEY.pem -pubout -out PUBLIC.pem",
}


def signed(data: bytes, key: str | os.PathLike[str]) -> bytes:
    """Return the signature of `data`. key: the PEM file of a private key, without a password.

    Raises MeshweaveError for a file that cannot be read or holds no such key, UsageError without the package.
    """
    signature: bytes = _key(key, "private").sign(data)
    return signature


def is_signed(data: bytes, signature: bytes, key: str | os.PathLike[str]) -> bool:
    """Tell whether `signature` is that of `data` by the owner of a key. key: the PEM file of the public key.

    Raises as `signed` does.
    """
    public = _key(key, "public")
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(signature, data)
    except InvalidSignature:
        return False
    return True


def _key(path: str | os.PathLike[str], kind: str) -> Any:
    """Read an Ed25519 key, "private" or "public"."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric import ed25519
        from cryptography.hazmat.primitives.serialization import (
            load_pem_private_key,
            load_pem_public_key,
        )
    except ImportError:
        raise UsageError(
            "signatures need the package cryptography: pip install 'meshweave[sign]'"
        ) from None
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError as error:
        raise MeshweaveError(f"{path}: cannot read the key: {error.strerror}") from None
    key: object = None
    try:
        if kind == "private":
            key = load_pem_private_key(text, password=None)
        else:
            key = load_pem_public_key(text)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        pass  # no PEM, one of the other kind, with a password, or of another algorithm
    wanted = ed25519.Ed25519PrivateKey if kind == "private" else ed25519.Ed25519PublicKey
    if not isinstance(key, wanted):
        raise MeshweaveError(
            f"{path}: no {kind} Ed25519 key without a password in PEM form, as `{_MAKE[kind]}` makes it"
        )
    return key
