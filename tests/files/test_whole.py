"""Files are written whole or not at all, and what is no regular file is never replaced."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from meshweave.errors import UsageError
from meshweave.files.whole import renamed_to, replacing, write_text


def test_a_file_is_replaced_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    with replacing(path) as out:
        out.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["out"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as out:
        out.write(b"new" * (1 // 0))
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["out"]


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    write_text(str(path), "text")
    reader.join()
    assert read == ["text"] and path.is_fifo()


def test_a_device_is_never_replaced() -> None:
    write_text(os.devnull, "text")
    assert not os.path.isfile(os.devnull)


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name in ("there/out", "there/new"):  # the second does not exist yet
        link = tmp_path / f"to {name[-3:]}"
        link.symlink_to(name)
        write_text(str(link), "text")
        assert link.is_symlink() and (tmp_path / name).read_text() == "text"
    assert sorted(os.listdir(tmp_path / "there")) == ["new", "out"]


def test_a_named_device_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "null"
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root may make devices")
    write_text(str(path), "text")
    assert path.is_char_device()


def test_what_this_process_writes_to_stays_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    code = "from meshweave.files.whole import write_text; write_text('/dev/stdout', 'text')"
    with open(path, "w") as out:
        number = os.fstat(out.fileno()).st_ino
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert path.read_text() == "text" and path.stat().st_ino == number


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(str(tmp_path / "out"), "text")
        with renamed_to(tmp_path / "own", 0o600):
            pass
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("out", "own")]
    assert modes == [0o640, 0o600]


def test_text_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    write_text("-", "text\n")
    assert capsys.readouterr().out == "text\n"


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "no" / "out")
    with pytest.raises(UsageError, match=rf"{path}: cannot be written: No such file"):
        write_text(path, "text")
