"""Bundles with changed bytes, or with another manifest under a right digest: refused, or they compute what they did."""

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from commands import meshweave
from hypothesis import strategies as st

import meshweave as mw
from fuzz.search import Kind
from fuzz.stablehlo import settled
from fuzz.text import damaged, json_changed
from meshweave.bundle import Bundle
from meshweave.errors import MeshweaveError
from meshweave.files.archive import packed

SEED = 3  # of the arguments


@functools.cache
def whole() -> bytes:
    """A program of two ranks with a product, a reduction and a move between them."""
    x, w = np.ones((8, 6), np.float32), np.ones((6, 4), np.float32)
    f = mw.jit(lambda x, w: (x @ w, mw.sum(x, axis=0)), mesh="x=2", in_layouts=("[x, _]", "[_, x]"))
    return f.lower(x, w).compile().program.bundle.to_bytes()


@st.composite
def cases(draw: st.DrawFn) -> bytes:
    """The bundle's file, changed."""
    if draw(st.booleans()):
        return draw(damaged(whole()))
    bundle = Bundle.from_bytes(whole())
    manifest = json.loads(bundle.manifest.to_json())
    for _ in range(draw(st.integers(1, 3))):
        manifest = json_changed(draw, manifest)
    text = json.dumps(manifest, sort_keys=True, indent=1)
    members = {"manifest.json": text.encode(), "object0.o": bundle.objects[0]}
    members |= {f"object{k}.o": code for k, code in enumerate(bundle.objects)}
    return packed(members | {"digest": _claim(text, bundle)})


def _claim(text: str, bundle: Bundle) -> bytes:
    """The digest of the changed bundle, where its manifest can be read."""
    from meshweave.bundle import Manifest

    try:
        return Bundle(Manifest.from_json(text), bundle.objects).claim
    except MeshweaveError:
        return bundle.claim


def check(data: bytes) -> None:
    """Run it by the command."""
    with tempfile.TemporaryDirectory(prefix="meshweave-fuzz-") as folder:
        file, out = Path(folder, "p.mwb"), Path(folder, "out")
        file.write_bytes(data)
        done = meshweave("run", file, "--random", SEED, "--dump", out, "--timeout", 5)
        settled(done)
        if done.status == 0:
            for name, right in results().items():
                assert np.array_equal(np.load(out / name), right), f"other results: {name}"


@functools.cache
def results() -> dict[str, Any]:
    """What the bundle computes."""
    with tempfile.TemporaryDirectory(prefix="meshweave-fuzz-") as folder:
        file, out = Path(folder, "p.mwb"), Path(folder, "out")
        file.write_bytes(whole())
        assert meshweave("run", file, "--random", SEED, "--dump", out).status == 0
        return {path.name: np.load(path) for path in out.iterdir()}


def text(data: bytes) -> str:
    """The manifest, where it can be read, and all bytes."""
    from meshweave.files.archive import unpacked

    try:
        head = unpacked(data, "bundle", "bundle")["manifest.json"].decode(errors="replace")
    except (MeshweaveError, KeyError):
        head = ""
    return f"{head}\n{data.hex()}"


KINDS = (Kind("bundles", cases(), check, text, seconds=60),)
