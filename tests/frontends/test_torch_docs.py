"""The snippets of docs/pytorch.md run, one after the other."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pytorch.md"


def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(snippets) >= 4
    names: dict[str, object] = {"__name__": "pytorch_page"}
    for number, snippet in enumerate(snippets):
        path = tmp_path / f"snippet{number}.py"  # torch looks for the source of what it exports
        path.write_text(snippet)
        exec(compile(snippet, str(path), "exec"), names)
    names["program"].close()  # type: ignore[attr-defined]
