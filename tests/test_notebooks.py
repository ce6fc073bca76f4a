"""The notebooks of docs/notebooks run from the first cell to the last, and show what they are about."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "notebooks"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda p: p.stem)
def test_a_notebook_runs(path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent.parent))
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # they are kept without results
    nbclient.NotebookClient(notebook, timeout=500, kernel_name="python3").execute()
    shown = {
        cell.source.splitlines()[-1]: [o.get("data", {}) for o in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
    assert "<table" in shown["x"][0]["text/html"]
    assert "<table" in shown['mw.show("[x, _]", shape=(4, 6), mesh="x=2, y=2")'][0]["text/html"]
    assert "peak" in shown["layer.explain()"][0]["text/html"]
    assert "27." in shown["slopes"][0]["text/plain"]
    assert shown["bool(mw.all(again == y))"][0]["text/plain"] == "True"
