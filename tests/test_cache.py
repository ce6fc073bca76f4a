"""The cache of compiled programs: found again by content, never wrong, never in the way."""

import errno
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from depth import sampled

import meshweave as mw
from meshweave import cache
from meshweave.api.program import build

ROOT = Path(__file__).resolve().parent.parent
ADD = """
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %e = tensor.empty() : tensor<4xf32>
  %r = linalg.add ins(%a, %a : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  return %r : tensor<4xf32>
}
"""


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the programs that were compiled, not found."""
    from meshweave.api import program as api

    names: list[str] = []
    built = api._built

    def counted(text: str, name: str, *rest: Any) -> Any:
        names.append(name)
        return built(text, name, *rest)

    monkeypatch.setattr(api, "_built", counted)
    return names


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.mwb"))


def test_equal_programs_are_compiled_once(disk_cache: Path, compiled: list[str]) -> None:
    first, second = build(ADD, name="p"), build(ADD, name="p")
    assert compiled == ["p"] and len(files(disk_cache)) == 1
    assert first.digest == second.digest
    assert disk_cache.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "other",
    [
        {"source": ADD.replace("linalg.add", "linalg.mul")},
        {"mesh": "x=4"},
        {"engine": "mpi"},
        {"name": "other.mlir"},  # it is in the places that errors name
        {"whole": True},
    ],
)
def test_another_program_is_another_file(
    disk_cache: Path, compiled: list[str], other: dict[str, Any]
) -> None:
    build(ADD, name="p")
    build(**{"source": ADD, "name": "p", **other})
    assert len(compiled) == 2 and len(files(disk_cache)) == 2


def test_other_sources_compile_again(
    disk_cache: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build(ADD, name="p")
    monkeypatch.setattr(cache, "fingerprint", lambda: "of another version")
    build(ADD, name="p")
    assert len(compiled) == 2


def test_the_fingerprint_knows_sources_compiler_and_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = cache.fingerprint.__wrapped__
    assert here() == here() == cache.fingerprint()
    if Path("/proc/cpuinfo").exists():
        assert "flags" in cache._processor() or "Features" in cache._processor()
    assert any(".so" in name and nbytes > 0 for name, nbytes, _ in cache._mlir())
    for part in ("_processor", "_mlir"):
        with monkeypatch.context() as patch:
            patch.setattr(cache, part, lambda: "other")
            assert here() != cache.fingerprint()


def damaged(data: bytes) -> dict[str, bytes]:
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 0xFF
    return {
        "empty": b"",
        "cut short": data[: len(data) // 2],
        "flipped": bytes(flipped),
        "foreign": b"hello" * 100,
    }


@pytest.mark.parametrize("how", ["empty", "cut short", "flipped", "foreign"])
def test_a_damaged_file_is_replaced(disk_cache: Path, compiled: list[str], how: str) -> None:
    good = build(ADD, name="p")
    (path,) = files(disk_cache)
    whole = path.read_bytes()
    path.write_bytes(damaged(whole)[how])
    assert build(ADD, name="p").digest == good.digest
    assert len(compiled) == 2 and path.read_bytes() == whole


@pytest.mark.parametrize("what", ["pipe", "sparse", "other program"])
def test_what_is_no_entry_of_its_name_is_replaced(
    disk_cache: Path, compiled: list[str], what: str
) -> None:
    good = build(ADD, name="p")
    (path,) = files(disk_cache)
    whole = path.read_bytes()
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "sparse":
        with open(path, "wb") as file:
            file.truncate(1 << 40)
    else:
        build(ADD.replace("linalg.add", "linalg.mul"), name="p")
        files(disk_cache)[0].rename(path)
        compiled.clear()
    assert build(ADD, name="p").digest == good.digest
    assert path.is_file() and path.read_bytes() == whole and compiled[-1:] == ["p"]


def test_an_entry_is_for_its_user_alone(disk_cache: Path) -> None:
    before = os.umask(0)
    try:
        build(ADD, name="p")
    finally:
        os.umask(before)
    assert files(disk_cache)[0].stat().st_mode & 0o777 == 0o600


@sampled(1)
@pytest.mark.parametrize("kind", ["program", "object"])
def test_no_damage_gives_an_error_or_other_code(disk_cache: Path, kind: str) -> None:
    bundle = build(ADD, name="p")
    code = bundle.objects[0]
    cache.clear()

    def holds() -> bool:
        if kind == "program":
            return cache.cached(("p",), lambda: bundle)[0].digest == bundle.digest
        return cache.cached_object(("p",), lambda: code) == code

    assert holds()
    (path,) = (p for p in disk_cache.rglob("*") if p.is_file())
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for cut in range(0, len(whole), 97):
        path.write_bytes(whole[:cut])
        assert holds() and path.read_bytes() == whole
    for _ in range(400):
        changed = bytearray(whole)
        changed[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        path.write_bytes(changed)
        assert holds()


def test_objects_that_many_programs_hold_are_made_once(
    disk_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshweave.lowering.cpu.collectives import objects as collectives
    from meshweave.lowering.cpu.collectives import serve

    made: list[str] = []
    compiled = collectives.compile_text

    def counted(text: str, externals: Any) -> bytes:
        made.append(text)
        return compiled(text, externals)

    monkeypatch.setattr(collectives, "compile_text", counted)
    objects = []
    for _ in range(2):
        serve.serve_object.cache_clear()  # as in another process
        collectives._object.cache_clear()
        objects.append(
            (serve.serve_object(), collectives.collectives_object("local", ["mw_all_gather"]))
        )
    assert len(made) == 2 and objects[0] == objects[1]
    assert len(list((disk_cache / cache.OBJECTS).iterdir())) == 2 == cache.clear()


def test_writers_readers_and_clear_at_a_time(disk_cache: Path) -> None:
    bundle = build(ADD, name="p")

    def work(number: int) -> None:
        for turn in range(40):
            if number == 0:
                cache.clear()
            found, _ = cache.cached(("part", turn % 3), lambda: bundle)
            assert found.digest == bundle.digest

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, number) for number in range(8)]:
            done.result()
    cache.clear()
    assert not list(disk_cache.iterdir())


def test_a_wrong_program_is_not_kept(disk_cache: Path) -> None:
    for _ in range(2):
        with pytest.raises(mw.MeshweaveError, match=r"^p:6:10: use of undeclared"):
            build(ADD.replace("return %r", "return %q"), name="p")
    assert not files(disk_cache)


def test_what_was_used_longest_ago_goes(
    disk_cache: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        build(ADD, name=name)
    one = files(disk_cache)[0].stat().st_size
    for age, path in enumerate(files(disk_cache)):
        os.utime(path, (1000 + age, 1000 + age))
    build(ADD, name="a")  # used again, and so the newest
    monkeypatch.setattr(cache, "LIMIT", int(2.5 * one))
    monkeypatch.setattr(cache, "EVERY", 1)
    build(ADD, name="c")
    assert len(files(disk_cache)) == 2
    build(ADD, name="a")
    assert compiled == ["a", "b", "c"]
    monkeypatch.setattr(cache, "LIMIT", 10)  # smaller than any
    build(ADD, name="d")
    assert compiled[-1] == "d" and len(files(disk_cache)) == 2


def test_what_a_killed_writer_left_goes(disk_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "EVERY", 1)
    build(ADD, name="a")
    old, new, foreign = (disk_cache / n for n in (".k.mwb.old", ".k.mwb.new", "notes.txt"))
    for path in (old, new, foreign):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 2 * cache.ABANDONED,) * 2)
    os.utime(foreign, (1000, 1000))
    build(ADD, name="b")
    assert not old.exists() and new.exists() and foreign.exists()
    assert cache.clear() == 3 and foreign.exists()


def test_folders_that_do_not_serve_are_not_used(
    tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for_all = tmp_path / "for all"
    for_all.mkdir()
    for_all.chmod(0o777)
    a_file = tmp_path / "file"
    a_file.write_text("")
    for said in (str(for_all), str(a_file), str(a_file / "below"), "off", "OFF", "0"):
        monkeypatch.setenv("MESHWEAVE_CACHE", said)
        assert cache.folder() is None, said
    monkeypatch.setenv("MESHWEAVE_CACHE", str(for_all))
    build(ADD, name="p")
    assert compiled == ["p"] and not list(for_all.iterdir())


@sampled(1)
@pytest.mark.parametrize("call", ["os.open", "os.fsync", "os.replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_disk_that_takes_nothing_is_no_error(
    disk_cache: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    bundle = build(ADD, name="p")

    def refused(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(call, refused)
        patch.setattr("os.utime", refused)
        assert cache.cached(("new",), lambda: bundle) == (bundle, False)
        assert len(list(disk_cache.iterdir())) == 1  # nothing half written
        build(ADD, name="p")  # what was there is found
    assert cache.clear() == 1


def test_a_full_disk_where_llvm_writes_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Code is made in memory, whatever the folder of temporary files takes."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    assert build(ADD, name="p").objects


def test_clear_takes_device_modules_too(disk_cache: Path) -> None:
    build(ADD, name="p")
    kernels = disk_cache / cache.KERNELS
    kernels.mkdir()
    for name in ("a.mwk", ".b.mwk.half", "notes.txt"):
        (kernels / name).write_bytes(b"x")
    assert cache.clear() == 3 and [path.name for path in kernels.iterdir()] == ["notes.txt"]


def test_a_folder_in_the_place_of_a_program_is_left_alone(
    disk_cache: Path, compiled: list[str]
) -> None:
    build(ADD, name="p")
    (path,) = files(disk_cache)
    path.unlink()
    path.mkdir()
    build(ADD, name="p")
    assert compiled == ["p", "p"] and path.is_dir() and len(list(disk_cache.iterdir())) == 1


def test_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESHWEAVE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder() == tmp_path / "xdg" / "meshweave"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.folder() == tmp_path / "home" / ".cache" / "meshweave"


START = f"""
import sys
import numpy as np, meshweave as mw
with mw.compile({ADD!r}) as program:
    assert (program(np.arange(4, dtype=np.float32))[0] == [0, 2, 4, 6]).all()
@mw.jit(mesh="x=2", in_layouts="[x]")
def triple(x):
    return x * 3
assert (triple(np.arange(4, dtype=np.float32)).numpy() == [0, 3, 6, 9]).all()
array = mw.Array.from_numpy(np.arange(4), mesh="x=2", layout="[x]")
for _ in range(2):
    moved = array.redistribute("[_]")
assert [list(shard) for shard in moved.shards] == [[0, 1, 2, 3]] * 2
print("compiled" if "torch_mlir" in sys.modules else "found")
"""


def start(folder: Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MESHWEAVE_CACHE": str(folder)}
    script = folder.parent / "program.py"  # its name is in the places of what it traces
    script.write_text(START)
    return subprocess.Popen(
        [sys.executable, str(script)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finished(process: "subprocess.Popen[str]") -> str:
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    return out.strip()


def test_a_later_process_loads_no_compiler(tmp_path: Path) -> None:
    """Two at a time begin on an empty cache; one behind them finds everything."""
    folder = tmp_path / "cache"
    both = [start(folder), start(folder)]
    assert [finished(process) for process in both] == ["compiled", "compiled"]
    whole = [path.suffix for path in folder.rglob("*") if path.is_file()]
    assert whole.count(".mwb") == 3 and set(whole) == {".mwb", ".mwo"}  # nothing half written
    assert finished(start(folder)) == "found"


def test_results_are_those_of_the_compiled_program(disk_cache: Path) -> None:
    value = np.arange(4, dtype=np.float32)
    results = []
    for _ in range(2):
        with mw.compile(ADD, mesh="x=2") as program:
            results.append(program(value)[0])
    np.testing.assert_array_equal(results[0], results[1])
    assert len(files(disk_cache)) == 1
