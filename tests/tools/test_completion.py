"""A shell completes commands, options, their values and files, by the script that `meshweave completion` prints."""

import shutil
import subprocess
from pathlib import Path

import pytest

from meshweave.tools.cli import command

BASH = shutil.which("bash")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    (folder / "product.mlir").touch()
    (folder / "parts").mkdir()
    return folder / "meshweave.bash"


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@pytest.mark.parametrize(
    "words, wanted",
    [
        ("meshweave comp", {"compile", "completion"}),
        ("meshweave run --engine n", {"nccl"}),
        ("meshweave compile --di", {"--dim"}),
        ("meshweave compile --emit l", {"llvm"}),
        ("meshweave doctor --pro", {"--profile"}),
        ("meshweave run prod", {"product.mlir"}),
        ("meshweave plan --dump pa", {"parts"}),
    ],
)
def test_bash_completes(
    words: str, wanted: set[str], script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not script.exists():
        assert command(["completion", "bash"]) == 0
        script.write_text(capsys.readouterr().out)
    typed = words.split()
    asked = f"source {script.name}; COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}; _shtab_meshweave; "
    done = subprocess.run(
        [BASH, "-c", f'{asked} printf "%s\\n" "${{COMPREPLY[@]}}"'],
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert set(done.stdout.split()) == wanted, done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_for_other_shells_know_the_commands(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["completion", shell]) == 0
    said = capsys.readouterr().out
    assert "meshweave" in said and "completion" in said and "--engine" in said


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["completion", "bashh"]) == 2
    assert capsys.readouterr().err == 'meshweave: error: no shell "bashh"; did you mean "bash"?\n'
