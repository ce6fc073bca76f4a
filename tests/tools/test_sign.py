"""`meshweave sign` and `run --require-signature`: what is signed runs, what is not ends in one line."""

from dataclasses import replace

import pytest
from commands import meshweave
from depth import sampled
from runtime.programs import program

from meshweave.bundle import Bundle

pytest.importorskip("cryptography")
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)


def keys(folder, name, made=None, how=None):
    made = made or ed25519.Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}-public.pem"
    private.write_bytes(
        made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how or NoEncryption())
    )
    public.write_bytes(
        made.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


@pytest.fixture
def bundle(tmp_path):
    path = tmp_path / "a.mwb"
    program("x=1", "local", [], [], [], [""]).write(path)
    return path


def refused(outcome, *words):
    assert outcome.status == 1 and outcome.out == "" and outcome.err.count("\n") == 1
    assert outcome.err.startswith("meshweave: error: ") and all(w in outcome.err for w in words)


def test_what_is_signed_runs(tmp_path, bundle):
    private, public = keys(tmp_path, "mine")
    unsigned = Bundle.read(bundle)
    done = meshweave("sign", bundle, "--key", private)
    assert done.status == 0 and unsigned.digest in done.out
    assert replace(Bundle.read(bundle), signature=b"") == unsigned
    assert meshweave("run", bundle, "--require-signature", public).status == 0
    assert meshweave("run", bundle).status == 0
    assert meshweave("sign", bundle, "--key", private).status == 0  # again, with the same result
    assert meshweave("run", bundle, "--require-signature", public).status == 0


def test_what_is_not_signed_by_that_key_does_not_run(tmp_path, bundle):
    private, public = keys(tmp_path, "mine")
    _, other = keys(tmp_path, "other")
    refused(meshweave("run", bundle, "--require-signature", public), "a.mwb", "no signature")
    meshweave("sign", bundle, "--key", private)
    refused(
        meshweave("run", bundle, "--require-signature", other),
        "a.mwb",
        "signature",
        "other-public.pem",
    )


def test_a_signature_is_of_one_program(tmp_path, bundle):
    private, public = keys(tmp_path, "mine")
    meshweave("sign", bundle, "--key", private)
    signature = Bundle.read(bundle).signature
    changed = program("x=2", "local", [], [], [], [""])
    replace(changed, signature=signature).write(bundle)
    refused(meshweave("run", bundle, "--require-signature", public), "signature is not by the key")


def test_a_program_that_is_no_bundle_has_no_signature(tmp_path):
    _, public = keys(tmp_path, "mine")
    file = tmp_path / "a.mlir"
    file.write_text(
        "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }"
    )
    refused(meshweave("run", file, "--require-signature", public), "a.mlir", "signature")


@sampled(1)
@pytest.mark.parametrize(
    "text", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_what_is_no_key_is_said(tmp_path, bundle, text):
    file = tmp_path / "key.pem"
    file.write_bytes(text)
    before = bundle.read_bytes()
    refused(meshweave("sign", bundle, "--key", file), "key.pem: no private Ed25519 key")
    assert bundle.read_bytes() == before


def test_other_keys_are_told_apart(tmp_path, bundle):
    private, public = keys(tmp_path, "mine")
    curve, _ = keys(tmp_path, "curve", ec.generate_private_key(ec.SECP256R1()))
    locked, _ = keys(tmp_path, "locked", how=BestAvailableEncryption(b"word"))
    for wrong in (curve, locked, public):
        refused(meshweave("sign", bundle, "--key", wrong), wrong.name, "no private Ed25519 key")
    refused(
        meshweave("sign", bundle, "--key", tmp_path / "none.pem"), "none.pem: cannot read the key"
    )
    refused(meshweave("run", bundle, "--require-signature", private), "no signature")
    meshweave("sign", bundle, "--key", private)
    refused(
        meshweave("run", bundle, "--require-signature", private), "mine.pem: no public Ed25519 key"
    )
