"""The commands as the shell starts them: Ctrl-C is one line, also while they load."""

import signal
import sys
from types import ModuleType

import pytest

from meshweave.tools import start


@pytest.mark.parametrize("name", ["meshweave", "meshweave-opt"])
def test_ctrl_c_while_a_command_loads_is_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def import_module(_: str) -> ModuleType:
        raise KeyboardInterrupt

    monkeypatch.setattr(start, "import_module", import_module)
    assert getattr(start, name.replace("-", "_"))() == 128 + signal.SIGINT
    assert capsys.readouterr().err == f"{name}: interrupted\n"


def test_the_commands_are_those_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    for module in ("cli", "opt"):
        fake = ModuleType(module)
        fake.main = lambda module=module: called.append(module) or 0
        monkeypatch.setitem(sys.modules, f"meshweave.tools.{module}", fake)
    assert (start.meshweave(), start.meshweave_opt()) == (0, 0)
    assert called == ["cli", "opt"]
