"""Hold the house in order: imports point one way, folders stay small, a class name has one meaning,
and arguments have types.
"""

import ast
import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "meshweave"

# What each room of the package may import from the rest of it. `errors` is for all.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "abi": set(),
    "certificate": set(),
    "report": {"certificate"},
    "files": set(),
    "layout": set(),
    "hints": set(),
    "exchange": {"abi", "device", "layout"},
    "plan": {"exchange", "layout", "processor"},
    "device": set(),
    "processor": set(),
    "targets": {"device"},
    "bundle": {"abi", "certificate", "device", "files", "layout"},
    "cache": {"bundle", "files"},
    "runtime": {
        *("abi", "bundle", "device", "exchange", "files", "layout", "processor", "targets"),
    },
    "simulator": {"bundle", "device", "runtime"},
    "ir": set(),
    "dialects": {"hints", "ir", "layout", "plan"},
    "frontends": {"dialects", "files", "ir", "layout"},
    "verification": {"abi", "dialects", "ir", "layout"},
    "transforms": {"dialects", "hints", "ir", "layout", "plan", "verification"},
    "lowering": {
        *("abi", "bundle", "cache", "certificate", "device", "processor", "report", "targets"),
        *("dialects", "exchange", "hints", "ir", "layout", "plan", "transforms", "verification"),
    },
    "pipeline": {"dialects", "hints", "ir", "lowering", "transforms"},
    "see": {
        "abi",
        "bundle",
        "dialects",
        "files",
        "ir",
        "layout",
        "plan",
        "report",
        "runtime",
        "transforms",
    },
    "frontends.python": {"bundle", "hints", "ir", "layout"},  # of ir what loads no MLIR
}
TOP = {"api", "jax", "serving", "torch", "tools", "__init__"}  # the faces: they may import anything

MLIR_PACKAGES = {"torch_mlir", "mlir"}


@pytest.fixture(autouse=True, scope="module")
def without_garbage_collection() -> Iterator[None]:
    """It takes four times as long as parsing the sources, and finds nothing."""
    gc.disable()
    yield
    gc.enable()


@cache
def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:2]) if ".".join(parts[:2]) in MAY_IMPORT else parts[0]


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Return the nodes of a file's syntax tree that are looked at here."""
    wanted = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.arg)
    found = statements(ast.parse(path.read_text()).body)
    return [n for n in found if isinstance(n, wanted)]


def statements(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield statements and those inside them, and the arguments of functions: expressions would take long."""
    for node in body:
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from ast.walk(node.args)
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(node, part, ()))


@cache
def imports(path: Path) -> set[tuple[str, int]]:
    """(module, line) of every import statement, also those inside functions."""
    found: set[tuple[str, int]] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {(alias.name, node.lineno) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are written in full"
            found.add((node.module or "", node.lineno))
            if node.module == "meshweave":
                found |= {(f"meshweave.{alias.name}", node.lineno) for alias in node.names}
    return found


def wrong_imports(path: Path) -> list[str]:
    """What the imports of a file break: the table, and that bindings.py alone imports MLIR."""
    part, found = part_of(path), []
    allowed = MAY_IMPORT.get(part, set()) | {part.split(".")[0], "errors"}
    for module, line in imports(path):
        names, where = module.split("."), f"{path.relative_to(ROOT)}:{line}"
        ours = names[0] == "meshweave" and len(names) > 1 and part not in TOP
        if ours and names[1] not in allowed:
            found.append(f"{where}: {part} must not import {module}")
        if names[0] in MLIR_PACKAGES and path != PACKAGE / "ir" / "bindings.py":
            found.append(f"{where}: take it from meshweave.ir.bindings")
    return found


def test_imports_point_one_way() -> None:
    assert not [line for path in files() for line in wrong_imports(path)]


def test_the_pure_core_and_the_runtime_start_without_mlir() -> None:
    """Also through what they import: in a fresh interpreter no MLIR package gets loaded."""
    import subprocess
    import sys

    modules = [
        ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for part in ("layout", "exchange", "plan", "runtime", "simulator/**")
        for p in sorted(PACKAGE.glob(f"{part}/*.py"))
        if p.name not in ("worker.py", "__main__.py")  # these start to work when they are run
    ]
    code = (
        f"import importlib, sys\nfor m in {modules!r} + ['meshweave', 'meshweave.bundle']:\n"
        "    importlib.import_module(m)\n"
        "loaded = {'torch_mlir', 'mlir'} & set(sys.modules)\nassert not loaded, loaded"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=500
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


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def known_modules() -> set[str]:
    return {module_of(path) for path in files()}


def imported_modules(path: Path) -> set[str]:
    """Return the modules of ours that a file imports, inside functions and for types too."""
    known, found = known_modules(), set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & known or {node.module or ""}
    return found & known


def test_imports_inside_functions_and_for_types_hide_no_circle() -> None:
    """Those are for what loads late: take away the modules that import nothing left, and none must stay."""
    left = {module_of(path): imported_modules(path) - {module_of(path)} for path in files()}
    while free := {module for module, needs in left.items() if not needs & left.keys()}:
        left = {module: needs for module, needs in left.items() if module not in free}
    assert not left, f"in circles, or they import one: {sorted(left)}"


def test_a_folder_holds_twenty_files_at_most() -> None:
    counts = Counter(path.parent.relative_to(ROOT) for path in files())
    assert not {str(folder): count for folder, count in counts.items() if count > 20}


def test_a_class_name_has_one_meaning() -> None:
    """Ops of two dialects may share a name, as may a pass and what it makes: less than 2 % in all."""
    names = Counter(n.name for path in files() for n in nodes(path) if isinstance(n, ast.ClassDef))
    twice = sorted(name for name, count in names.items() if count > 1)
    assert len(twice) < 0.02 * len(names), f"used for several classes: {', '.join(twice)}"


def test_arguments_have_types() -> None:
    """`Any` is for what the user may give: less than 3 % of all arguments."""
    args = [n for path in files() for n in nodes(path) if isinstance(n, ast.arg) and n.annotation]
    untyped = [n for n in args if isinstance(n.annotation, ast.Name) and n.annotation.id == "Any"]
    assert len(untyped) < 0.03 * len(args)
