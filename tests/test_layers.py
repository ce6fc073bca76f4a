"""Imports point one way: the table of the style guide, held against every import statement of the
package.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "meshweave"

# What each part of the package may import from the rest of it. `errors` is for all.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "layout": set(),
    "files": set(),
    "sources": set(),
    "cache": {"bundle", "files"},
    "hints": set(),
    "ledger": {"hints"},
    "fast_paths": set(),
    "machine": set(),
    "report": set(),
    "progress": set(),
    "abi": set(),
    "bundle": {"abi", "layout", "files", "archive", "records", "device"},
    "plan": {"layout"},
    "runtime": {"layout", "abi", "bundle", "device", "emulator"},
    "bindings": {"dialects"},  # context() loads them, inside the function
    "locations": {"bindings"},
    "dialects": {"layout", "hints", "bindings"},
    "frontends": {"layout", "sources", "dialects", "bindings", "locations"},
    "transforms": {
        "layout",
        "plan",
        "hints",
        "ledger",
        "fast_paths",
        "machine",
        "dialects",
        "bindings",
        "locations",
    },
    "archive": set(),
    "records": set(),
    "device": {"records"},
    "targets": {"device"},
    "emulator": set(),
    "lowering": {
        *(
            "layout",
            "plan",
            "bundle",
            "device",
            "abi",
            "cache",
            "fast_paths",
            "files",
            "hints",
            "ledger",
            "machine",
            "report",
            "targets",
            "dialects",
            "bindings",
            "locations",
        ),
        "transforms",
    },
    "trace": {
        *(
            "layout",
            "bundle",
            "runtime",
            "hints",
            "fast_paths",
            "api",
            "targets",
            "redistribution",
            "report",
            "plan",
        ),
        *(
            "bindings",
            "dialects",
            "frontends",
            "lowering",
            "pipeline",
        ),  # where a program is shown, inside functions
    },
    "torch_ports": {"layout", "bundle", "runtime", "frontends"},
    "torch_program": {
        "torch_ports",
        *("layout", "fast_paths", "runtime", "frontends", "trace", "api"),
        "transforms",  # to read the ledger, inside a function
    },
    "torch_compile": {"frontends", "torch_program", "trace"},
    "pipeline_text": set(),
    "upstream_passes": set(),
    "redistribution": {
        *("layout", "plan", "bundle", "cache", "runtime"),
        *("bindings", "transforms", "lowering", "pipeline"),  # to compile, inside functions
    },
    "pipeline": {
        *("dialects", "bindings", "locations", "transforms"),
        *("lowering", "pipeline_text", "upstream_passes"),
    },
}
TOP = {"api", "frontends_api", "tools", "__init__"}  # may import anything

MLIR_PACKAGES = {"torch_mlir", "mlir"}


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> set[tuple[str, int]]:
    """(module, line) of every import statement, also those inside functions."""
    found: set[tuple[str, int]] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {(alias.name, node.lineno) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are written in full"
            found.add((node.module or "", node.lineno))
            if node.module == "meshweave":
                found |= {(f"meshweave.{alias.name}", node.lineno) for alias in node.names}
    return found


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    if part in TOP:
        return
    allowed = MAY_IMPORT[part] | {part, "errors"}
    for module, line in imports(path):
        names = module.split(".")
        if names[0] == "meshweave" and len(names) > 1:
            assert names[1] in allowed, f"{path.name}:{line}: {part} must not import {module}"


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_only_bindings_imports_mlir(path: Path) -> None:
    if part_of(path) == "bindings":
        return
    for module, line in imports(path):
        top = module.split(".")[0]
        assert top not in MLIR_PACKAGES, f"{path.name}:{line}: take it from meshweave.bindings"


def test_the_pure_core_and_the_runtime_start_without_mlir() -> None:
    """Also through what they import: in a fresh interpreter no MLIR package gets loaded."""
    import subprocess
    import sys

    modules = [
        ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for part in ("layout", "plan", "runtime")
        for p in sorted((PACKAGE / part).glob("*.py"))
        if p.name not in ("worker.py", "__main__.py")  # these start to work when they are run
    ]
    code = (
        f"import importlib, sys\nfor m in {modules!r} + ['meshweave', 'meshweave.bundle']:\n"
        "    importlib.import_module(m)\n"
        "loaded = {'torch_mlir', 'mlir'} & set(sys.modules)\nassert not loaded, loaded"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_table_allows_nothing_that_nobody_uses() -> None:
    used: dict[str, set[str]] = {part: set() for part in MAY_IMPORT}
    for path in files():
        names = [module.split(".") for module, _ in imports(path)]
        used.setdefault(part_of(path), set()).update(
            n[1] for n in names if n[0] == "meshweave" and len(n) > 1
        )
    assert {part: allowed - used[part] for part, allowed in MAY_IMPORT.items()} == {
        part: set() for part in MAY_IMPORT
    }


def test_the_table_names_every_part() -> None:
    assert {part_of(p) for p in files()} <= set(MAY_IMPORT) | TOP
